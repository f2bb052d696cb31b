"""Mirrored queues: how a run gets them, and what is done to the nodes that lead and mirror them (F21).

The queues are declared after the policy that mirrors them, each at another node, which leads it then.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from tests.chaos.board import Host
from tests.chaos.cluster import POLL_S, READY_DEADLINE_S, Cluster, Member
from tests.chaos.faults import Fault
from tests.chaos.settings import KEPT, MIRRORED, TICK_S
from tests.differential import wire
from tests.powercut import amqp_client
from tests.powercut.node import NodeError

PREFIX = "mirrors-"
"""Of the names of mirrored groups."""
PATTERN = "^chaos-(mirrored|kept)$"
MEMBERS = ("node1", "node2")
"""The nodes of queues that are mirrored on two; the third keeps etcd going."""
ALONE_S = 12.0
"""In which a leader that does not reach its mirror does without it."""
LOAD_S = 3.0


class Mirrored(NamedTuple):
    """A queue: its leader, empty if unknown, and its synchronised mirrors, the next leader first."""

    leader: str
    synchronised: list[str]


def definition(promote: str, pair: bool) -> str:
    """The policy's definition. ``promote``: which mirrors may lead after a failure; ``pair``: mirrored on two nodes."""
    found: dict[str, object] = {
        "ha-mode": "all",
        "ha-sync-mode": "automatic",
        "ha-promote-on-failure": promote,
        "ha-promote-on-shutdown": "when-synced",
    }
    if pair:
        found |= {"ha-mode": "nodes", "ha-params": list(MEMBERS)}
    return json.dumps(found)


def set_policy(member: Member, policy: str) -> None:
    """Have the queues mirrored that are declared from now on. Raises ``NodeError``."""
    done = member.control("set_policy", "mirrors", PATTERN, policy, "--apply-to", "queues")
    if done.returncode:
        raise NodeError(f"the policy is refused: {done.stderr or done.stdout}")


async def declare(hosts: Sequence[Host]) -> None:
    """Declare the queues, each at another node. Raises ``OSError``."""
    for queue, host in zip((MIRRORED, KEPT), hosts, strict=False):
        connection = await amqp_client.Connection.open(host.amqp, host.address)
        fields = {"queue": queue, "durable": True, "arguments": {}}
        asked = wire.method(amqp_client.CHANNEL, "queue.declare", fields)
        await connection.ask(asked, "queue.declare-ok")
        connection.close()


def led(cluster: Cluster, wanted: int) -> tuple[str, ...]:
    """The mirrored groups, once so many have leaders. Raises ``NodeError``."""
    deadline = time.monotonic() + READY_DEADLINE_S
    while True:
        found = {group for each in cluster.members for group in each.leads()}
        groups = tuple(sorted(group for group in found if group.startswith(PREFIX)))
        if len(groups) >= wanted:
            return groups
        if time.monotonic() > deadline:
            raise NodeError(f"of {wanted} mirrored groups {len(groups)} have leaders")
        time.sleep(POLL_S)


class LeaderStopped(Fault):
    """F21: the node of a leader stops in an orderly way, so that a mirror leads before it is gone."""

    kind = "F21 leader stopped orderly"

    def begin(self) -> None:
        member, self.note = self.place.leader()
        self.members = [member]
        member.stop()

    def end(self) -> None:
        for member in self.members:
            member.launch()


class StoppedInTurn(Fault):
    """F21: all nodes stop in an orderly way, one after the other, and start in another order."""

    kind = "F21 all stopped in turn"

    def begin(self) -> None:
        self.members = self.place.up()
        self.place.random.shuffle(self.members)
        for member in self.members:
            member.stop()
        self.note = " ".join(self.names)

    def end(self) -> None:
        again = list(self.members)
        self.place.random.shuffle(again)
        for member in again:
            member.launch()
        self.note += f"; started {' '.join(member.name for member in again)}"


class HeldUp(Fault):
    """F21: the mirror that is next to lead is held up for less time than the leader waits for it, the leader's node is
    killed, and the mirror goes on: nothing may have been confirmed without it."""

    kind = "F21 mirror held up, leader killed"
    silent = True
    held_s: ClassVar[tuple[float, ...]] = (1.0, 2.0)

    def begin(self) -> None:
        leader, self.note = self.place.leader()
        kept = queues_of(leader).get(KEPT)
        if kept is not None and kept.leader:
            leader, self.note = self.place.cluster[kept.leader], f"leader of {KEPT}"
        others = [member for member in self.place.up() if member is not leader]
        heirs = [] if kept is None else kept.synchronised[:1]
        held = next((each for each in others if each.name in heirs), others[0])
        held_s = self.place.random.choice(self.held_s)
        self.members = [leader, held]
        self.note += f", {held.name} held up for {held_s:g} s"
        held.signal_all(signal.SIGSTOP)
        try:
            time.sleep(held_s)
            leader.kill()
        finally:
            held.signal_all(signal.SIGCONT)

    def end(self) -> None:
        self.members[0].launch()


class HeldUpForLong(HeldUp):
    """F21: it is held up for longer, and for less than its lease: what was confirmed without it is not on it, so that
    another has to lead."""

    kind = "F21 mirror silent, leader killed"
    held_s: ClassVar[tuple[float, ...]] = (2 * TICK_S,)


class LeaderApart(Fault):
    """F21: a leader and its only mirror do not reach each other, while both reach etcd by way of the third node. The leader
    does without the mirror, confirms what the mirror lacks, and is killed: the mirror leads then only if the policy says so."""

    kind = "F21 leader apart, then killed"

    def begin(self) -> None:
        leader, self.note = self.place.leader()
        mirror = next(
            member
            for member in self.place.cluster.members
            if member.name in MEMBERS and member is not leader
        )
        self.members = [leader, mirror]
        for one, other in ((leader, mirror), (mirror, leader)):
            self.place.network.block(one.number, other.number, silently=False)
        deadline = time.monotonic() + ALONE_S
        while not (alone := is_alone(leader)) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        if alone:
            time.sleep(LOAD_S)
        self.note += f", {mirror.name} {'not synchronised' if alone else 'still synchronised'}"
        leader.kill()

    def end(self) -> None:
        self.place.network.heal()
        self.members[0].launch()


def is_alone(leader: Member) -> bool:
    """Whether a node says that a queue that it leads has no synchronised mirror."""
    found = [each for each in queues_of(leader).values() if each.leader == leader.name]
    return bool(found) and not all(each.synchronised for each in found)


def queues_of(member: Member) -> dict[str, Mirrored]:
    """The mirrored queues as a node lists them; none when it does not answer."""
    done = member.control(
        "list_queues", "--formatter", "json", "name", "leader", "synchronised_mirror_nodes"
    )
    if done.returncode:
        return {}
    return {
        row["name"]: Mirrored(row["leader"], row["synchronised_mirror_nodes"])
        for row in json.loads(done.stdout)
        if row["name"] in (MIRRORED, KEPT)
    }

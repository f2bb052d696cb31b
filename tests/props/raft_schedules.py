"""Schedules: what can happen to a group of nodes, in any order, and what must hold all the while and in the end.

A schedule is a list of moves, each a name and two numbers that are taken modulo whatever there is to choose from, so
that any list of numbers is a schedule. Safety is checked by `Cluster` at every step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from random import Random

from fluxmq.raft.types import (
    COMMAND,
    ChangeVerb,
    Membership,
    MembershipChange,
    Message,
    ProposalAccepted,
    Role,
)
from tests.unit.raft.cluster import Cluster, Disk, Violation

Move = tuple[str, int, int]
NETWORK_MAX = 200
LIVENESS_TICKS = 400
NODES = 5
"""Those that are no voters at first may join."""


class Schedule:
    """A cluster with strangers that may join, and the moves that can be made."""

    def __init__(
        self, random: Callable[[int], int], voters: int = 3, **options: int | bool
    ) -> None:
        options.setdefault("max_message_bytes", 30)
        options.setdefault("max_inflight_bytes", 200)
        self.cluster = Cluster(voters, random=random, **options)
        for number in range(voters + 1, NODES + 1):
            self.cluster.add(number, Disk(Membership(())))
        self.proposed = 0
        self.snapshots = 0
        self.read_floors: dict[int, int] = {}
        self.accepted: dict[tuple[int, int], bytes] = {}

    def run(self, moves: Iterable[Move]) -> None:
        """Make the moves."""
        for name, first, second in moves:
            getattr(self, name)(first, second)

    def _member(self, choice: int) -> int:
        return 1 + choice % len(self.cluster.members)

    def _speaker(self, choice: int) -> int:
        """Usually a leader, for the others only refuse."""
        leading = [
            number
            for number, member in self.cluster.members.items()
            if member.node.status().role is Role.LEADER
        ]
        if leading and choice % 4:
            return leading[choice % len(leading)]
        return self._member(choice // 4)

    # Moves

    def tick(self, member: int, count: int) -> None:
        for _ in range(1 + count % 4):
            self.cluster[self._member(member)].node.tick()

    def turn(self, member: int, sync: int) -> None:
        """What a host does in a turn: take what is ready, complete some writes."""
        number = self._member(member)
        host = self.cluster[number]
        host.collect()
        if sync % 4:
            host.sync(sync % 4)
            host.collect()
        for peer in host.snapshot_wanted:
            message = host.node.offer_snapshot(peer, host.snapshot())
            if message is not None:
                self.snapshots += 1
                self.cluster.post([message])
                host.node.report_snapshot(peer, ok=sync % 3 != 0)
        host.snapshot_wanted.clear()
        self.check_reads(number)
        del self.cluster.network[:-NETWORK_MAX]

    def deliver(self, choice: int, count: int) -> None:
        """Deliver a message, and some of those behind it; `choice` makes it out of order."""
        network = self.cluster.network
        for _ in range(1 + count % 8):
            if network:
                self._hand(network.pop(choice % len(network)))

    def duplicate(self, choice: int, _: int) -> None:
        network = self.cluster.network
        if network:
            self._hand(dataclasses.replace(network[choice % len(network)]))

    def _hand(self, message: Message) -> None:
        if (message.source, message.target) not in self.cluster.cuts:
            self.cluster[message.target].node.step(message)

    def drop(self, choice: int, count: int) -> None:
        network = self.cluster.network
        for _ in range(1 + count % 4):
            if network:
                network.pop(choice % len(network))

    def propose(self, member: int, count: int) -> None:
        node = self.cluster[self._speaker(member)].node
        data = []
        for _ in range(1 + count % 3):
            self.proposed += 1
            data.append(b"%d" % self.proposed)
        outcome = node.propose(data)
        if isinstance(outcome, ProposalAccepted):
            for index, each in enumerate(data, outcome.first_index):
                self.accepted[index, outcome.term] = each

    def read(self, member: int, _: int) -> None:
        node = self.cluster[self._speaker(member)].node
        context = len(self.read_floors) + 1
        self.read_floors[context] = max(self.cluster.committed, default=0)
        node.read_index(context)

    def check_reads(self, number: int) -> None:
        """A read sees all that was applied anywhere when it was asked for."""
        for context, index in self.cluster[number].reads:
            if index < self.read_floors[context]:
                raise Violation(f"read {context} at {index}, {self.read_floors[context]} was known")
        self.cluster[number].reads.clear()

    def campaign(self, member: int, _: int) -> None:
        self.cluster[self._member(member)].node.campaign()

    def transfer(self, member: int, to: int) -> None:
        self.cluster[self._speaker(member)].node.transfer_leadership(self._member(to))

    def change(self, member: int, choice: int) -> None:
        verb = tuple(ChangeVerb)[choice % 3]
        change = MembershipChange(verb, self._member(choice // 3))
        self.cluster[self._speaker(member)].node.propose_membership(change)

    def crash(self, member: int, _: int) -> None:
        self.cluster[self._member(member)].crash()

    def compact(self, member: int, _: int) -> None:
        host = self.cluster[self._member(member)]
        host.collect()
        if not host.writes:
            host.compact()

    def cut(self, source: int, target: int) -> None:
        """One way."""
        self.cluster.cuts.add((self._member(source), self._member(target)))

    def heal(self, _: int, __: int) -> None:
        self.cluster.heal()

    # The end

    def finish(self) -> None:
        """Without faults the group finds a leader, and every member comes to hold all that was committed."""
        cluster = self.cluster
        cluster.heal()
        for _ in range(LIVENESS_TICKS):
            for number in cluster.members:
                self.turn(number - 1, 3)
                cluster[number].node.tick()
            self.settle()
            if self._is_whole():
                break
        else:
            raise AssertionError(
                [member.node.status() for member in cluster.members.values()], "no agreement"
            )
        cluster.check_logs()
        for index, entry in cluster.committed.items():
            if entry.kind == COMMAND and self.accepted.get((index, entry.term)) != entry.data:
                raise Violation(f"{entry} was not proposed as that")

    def settle(self) -> None:
        for _ in range(50):
            for number in self.cluster.members:
                self.turn(number - 1, 3)
            if not self.cluster.deliver():
                return

    def _is_whole(self) -> bool:
        leader = self.cluster.leader()
        if leader is None or leader.node.transfer_leadership(leader.number):
            return False
        status = leader.node.status()
        if status.role is not Role.LEADER or status.commit < status.last_index:
            return False
        members = status.membership.voters + status.membership.learners
        last = max(self.cluster.committed, default=0)
        return status.term == max(
            each.node.status().term
            for each in self.cluster.members.values()
            if each.number in members
        ) and all(self.cluster[number].applied == last == status.commit for number in members)


WEIGHTS = {
    "tick": 30,
    "turn": 60,
    "deliver": 90,
    "duplicate": 8,
    "drop": 6,
    "propose": 14,
    "read": 5,
    "campaign": 3,
    "transfer": 2,
    "change": 4,
    "crash": 2,
    "compact": 3,
    "cut": 1,
    "heal": 3,
}
NAMES = tuple(WEIGHTS)


def drawn_moves(random: Random, count: int) -> list[Move]:
    """Moves as often as they happen; the network is in order to a degree that is drawn as well."""
    in_order = random.choice([0.3, 0.8, 0.95, 1.0])
    moves = []
    for name in random.choices(NAMES, list(WEIGHTS.values()), k=count):
        first = random.randrange(1000)
        if name in ("deliver", "duplicate", "drop") and random.random() < in_order:
            first = 0
        moves.append((name, first, random.randrange(1000)))
    return moves

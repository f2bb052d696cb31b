"""What an operator does while the cluster is used: membership, leaders, moving queues and groups (F18 to F20)."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Sequence
from typing import ClassVar

from tests.chaos.cluster import Member
from tests.chaos.faults import GROUPS, Fault

ANSWER_S = 40.0
"""What an operator asks again and again has to have been done by then."""
PAUSE_S = 0.5


class NotAvailableError(RuntimeError):
    """The nodes cannot do what a fault needs; the text says what."""


class Asked(Fault):
    """What is said with ``fluxmqctl``. ``commands``: those that it must know."""

    commands: ClassVar[tuple[str, ...]] = ()

    def ask(self, member: Member, *words: str) -> bool:
        """Say it at a node; whether it was done."""
        done = member.control(*words)
        said = (done.stderr or done.stdout).strip().splitlines()
        last = said[-1] if said else ""
        success = not done.returncode or "already" in last
        outcome = "done" if success else f"not done: {last}"
        self.note += f"{'; ' if self.note else ''}{' '.join(words)} at {member.name}: {outcome}"
        return success

    def insist(self, *words: str) -> None:
        """Say it at one node after the other, until it was done. It is a finding when it never is."""
        deadline = time.monotonic() + ANSWER_S
        while True:
            if self.ask(self.place.some(), *words):
                return
            if time.monotonic() > deadline:
                self.findings.append(("I13", self.note))
                return
            time.sleep(PAUSE_S)


class Transferred(Asked):
    """F19: a group is led by another member."""

    kind = "F19 leadership transferred"
    commands: ClassVar[tuple[str, ...]] = ("transfer",)

    def begin(self) -> None:
        group = self.place.random.choice(GROUPS)
        self.members = [self.place.some()]
        leader = self.place.cluster.leader(group)
        self.ask(leader or self.members[0], "transfer", group, self.members[0].name)


class Rebalanced(Asked):
    """F19: leaders are moved to where they should be."""

    kind = "F19 rebalanced"
    commands: ClassVar[tuple[str, ...]] = ("rebalance",)

    def begin(self) -> None:
        self.members = [self.place.some()]
        self.ask(self.members[0], "rebalance")


class Migrated(Asked):
    """F19: a queue moves to the other group while it is used."""

    kind = "F19 queue migrated"
    commands: ClassVar[tuple[str, ...]] = ("migrate-queue",)

    def begin(self) -> None:
        self.members = [self.place.some()]
        group = self.place.random.choice(GROUPS)
        self.ask(self.members[0], "migrate-queue", "chaos-work", "--to", group)


class Reshaped(Asked):
    """F18: a member leaves a group and joins it again."""

    kind = "F18 member removed and added"
    commands: ClassVar[tuple[str, ...]] = ("grow", "shrink")

    def begin(self) -> None:
        self.members = [self.place.some()]
        self.group = self.place.random.choice(GROUPS)
        at = self.place.cluster.leader(self.group) or self.place.some()
        self.ask(at, "shrink", self.group, self.members[0].name)

    def end(self) -> None:
        # It becomes a voter by itself once it has caught up, which the end of the run waits for.
        self.insist("grow", self.group, self.members[0].name, "--no-wait")


class KilledWhileReshaped(Reshaped):
    """F18 under F3: a node dies while one leaves."""

    kind = "F18 member removed, node killed"

    def begin(self) -> None:
        self.killed = self.place.some()
        super().begin()
        self.killed.kill()
        self.note += f"; {self.killed.name} killed"

    def end(self) -> None:
        self.killed.launch()
        super().end()


class Pinned(Asked):
    """F20: groups change their shards on their nodes, each while it is used."""

    kind = "F20 groups pinned"
    commands: ClassVar[tuple[str, ...]] = ("pin", "groups")
    pins = 4

    def begin(self) -> None:
        for _ in range(self.pins):
            member = self.place.some()
            if member not in self.members:
                self.members.append(member)
            self.pin(member)

    def pin(self, member: Member) -> None:
        """Have one of a member's groups go to one of its shards, by chance."""
        groups = groups_of(member)
        if not groups:
            self.note += f"{'; ' if self.note else ''}{member.name} names no groups"
            return
        self.group = self.place.random.choice(groups)
        self.ask(member, "pin", self.group, f"shard-{self._shard(member)}")

    def _shard(self, member: Member) -> int:
        return self.place.random.randrange(member.workers)

    def end(self) -> None:
        # Whatever was under way meanwhile: a group that is used can be moved.
        self.insist("pin", "default", f"shard-{self._shard(self.place.some())}")


class KilledWhilePinned(Pinned):
    """F20 under F3: the node that leads dies while a group of another one is on its way."""

    kind = "F20 group pinned, leader killed"

    def begin(self) -> None:
        leader, self.note = self.place.leader()
        others = [member for member in self.place.up() if member is not leader]
        self.members = [leader, self.place.random.choice(others)]
        after_s = self.place.random.uniform(0.0, 1.5)
        killer = threading.Timer(after_s, leader.kill)
        killer.start()
        try:
            while killer.is_alive():
                self.pin(self.members[1])
        finally:
            killer.join()

    def end(self) -> None:
        self.members[0].launch()
        super().end()


def groups_of(member: Member) -> list[str]:
    """The groups that a node has on disk; none when it does not answer."""
    done = member.control("groups", "--json")
    if done.returncode:
        return []
    return [row["group"] for row in json.loads(done.stdout)["groups"] if row["role"] != "failed"]


def available(kinds: Iterable[type[Fault]], member: Member) -> Sequence[type[Fault]]:
    """Those of these faults that the nodes can do. Raises ``NotAvailableError`` when none is left."""
    missing: list[str] = []
    found: list[type[Fault]] = []
    wanted = list(kinds)
    for kind in wanted:
        commands = kind.commands if issubclass(kind, Asked) else ()
        unknown = [word for word in commands if member.control(word, "--help").returncode]
        missing += unknown
        if not unknown:
            found.append(kind)
    if wanted and not found:
        raise NotAvailableError(f"fluxmqctl knows no {', '.join(missing)}")
    return found

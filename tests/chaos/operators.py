"""What an operator does while the cluster is used: membership, leaders, moving queues (F18, F19)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from tests.chaos.cluster import Member
from tests.chaos.faults import GROUPS, Fault


class NotAvailableError(RuntimeError):
    """The nodes cannot do what a fault needs; the text says what."""


class Asked(Fault):
    """F18, F19: what an operator does with ``fluxmqctl``. ``commands``: what has to be known for it."""

    commands: ClassVar[tuple[str, ...]] = ()

    def ask(self, member: Member, *words: str) -> str:
        """Say it at a node; what was answered."""
        done = member.control(*words)
        said = (done.stdout or done.stderr).strip().splitlines()
        return f"{' '.join(words)}: {done.returncode} {said[-1] if said else ''}"


class Rebalanced(Asked):
    """F19: leaders are moved to where they should be."""

    kind = "F19 rebalanced"
    commands: ClassVar[tuple[str, ...]] = ("rebalance",)

    def begin(self) -> None:
        member = self.place.some()
        self.members = [member]
        self.note = self.ask(member, "rebalance")


class Migrated(Asked):
    """F19: a queue moves to the other group while it is used."""

    kind = "F19 queue migrated"
    commands: ClassVar[tuple[str, ...]] = ("migrate-queue",)

    def begin(self) -> None:
        member = self.place.some()
        self.members = [member]
        group = self.place.random.choice(GROUPS)
        self.note = self.ask(member, "migrate-queue", "chaos-work", group)


class Reshaped(Asked):
    """F18: a member leaves a group and joins it again."""

    kind = "F18 member removed and added"
    commands: ClassVar[tuple[str, ...]] = ("members", "grow", "shrink")

    def begin(self) -> None:
        self.members = [self.place.some()]
        self.group = self.place.random.choice(GROUPS)
        at = self.place.some()
        self.note = self.ask(at, "shrink", self.members[0].name, self.group)

    def end(self) -> None:
        at = self.place.some()
        self.note += "; " + self.ask(at, "grow", self.members[0].name, self.group)


class KilledWhileReshaped(Reshaped):
    """F18 under F3: the member that leaves, or another, dies in between."""

    kind = "F18 member removed, node killed"

    def begin(self) -> None:
        super().begin()
        self.killed = self.place.some()
        self.killed.kill()

    def end(self) -> None:
        self.killed.launch()
        super().end()


def check_available(kinds: Sequence[type[Fault]], member: Member) -> None:
    """Raises ``NotAvailableError`` when the nodes do not know a command that one of the faults needs."""
    for kind in kinds:
        if issubclass(kind, Asked):
            for command in kind.commands:
                if member.control(command, "--help").returncode:
                    raise NotAvailableError(f"{kind.kind}: fluxmqctl knows no {command}")

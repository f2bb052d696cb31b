"""What is done to processes; and what every fault is: each fault is begun, lasts, and is ended; in between nothing but its nodes is touched.

A fault is a small object with ``begin`` and ``end``, both of which block and run in a thread. The numbers are those of the
fault matrix. ``silent`` faults leave nodes that answer nobody, so that clients may wait for them.
"""

from __future__ import annotations

import contextlib
import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import ClassVar

from perf.processes import stat_fields
from tests.chaos.cluster import SHARD, Cluster, Member
from tests.chaos.network import Network, prefix_of
from tests.chaos.proxy import Link
from tests.powercut.image import tool

GROUPS = ("default", "hot")
CLOCK_SHIFTS_S = (-30, 1000, 86_400)
WALL_JUMPS_S = tuple(sign * hours * 3600 for hours in (8, 365 * 24) for sign in (1, -1))


@dataclass
class Field:
    """What faults act on."""

    cluster: Cluster
    network: Network
    random: Random
    proxied: bool = False
    groups: Sequence[str] = GROUPS
    """Those whose leaders are looked for."""
    links: dict[tuple[int, int, int], Link] = field(default_factory=dict)
    """By node, other node and port."""

    def up(self) -> list[Member]:
        """Members that run."""
        return [member for member in self.cluster.members if member.running]

    def some(self) -> Member:
        """A member that runs, by chance."""
        return self.random.choice(self.up())

    def leader(self) -> tuple[Member, str]:
        """Who leads one of the groups, and which; any member where that cannot be told."""
        group = self.random.choice(self.groups)
        found = self.cluster.leader(group)
        return (found, f"leader of {group}") if found else (self.some(), "leader not told")


class Fault(ABC):
    """One fault. ``kind``: its name in the history."""

    kind = ""
    silent = False
    recovery_s = 0.0
    """Time that the nodes get to work again, beyond that of elections."""

    def __init__(self, place: Field) -> None:
        self.place = place
        self.members: list[Member] = []
        self.note = ""
        self.findings: list[tuple[str, str]] = []
        """Rules that it saw broken, and how."""

    @property
    def names(self) -> tuple[str, ...]:
        """The nodes it is done to."""
        return tuple(member.name for member in self.members)

    @abstractmethod
    def begin(self) -> None:
        """Do it."""

    def end(self) -> None:  # noqa: B027 (some are over by themselves)
        """Undo it, as far as it is not over by itself."""


class Killed(Fault):
    """F1: the shard of the node that leads; its supervisor starts another."""

    kind = "F1 shard killed"
    words: ClassVar[tuple[str, ...]] = (SHARD,)

    def begin(self) -> None:
        member, self.note = self.place.leader()
        self.members = [member]
        for pid in member.pids_of(*self.words):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


class AcceptorKilled(Killed):
    """F2: the process that listens."""

    kind = "F2 acceptor killed"
    words: ClassVar[tuple[str, ...]] = ("fluxmq-acceptor",)


class SupervisorKilled(Fault):
    """F2: the supervisor; its processes have to go with it."""

    kind = "F2 supervisor killed"

    def begin(self) -> None:
        member = self.place.some()
        self.members = [member]
        assert member.process is not None
        self.children = member.pids()
        member.wanted = False
        member.process.kill()
        member.process.wait()

    def end(self) -> None:
        left = [pid for pid in self.children if stat_fields(pid)[:1] not in ([], ["Z"])]
        if left:
            self.findings.append(("F2", f"{self.names[0]}: {len(left)} processes outlived theirs"))
        for member in self.members:
            member.kill()
            member.launch()


class NodeKilled(Fault):
    """F3: everything of a node."""

    kind = "F3 node killed"

    def begin(self) -> None:
        member, self.note = self.place.leader()
        self.members = [member]
        member.kill()

    def end(self) -> None:
        for member in self.members:
            member.launch()


class Stopped(Fault):
    """F4: a node that leads is stopped, longer than an election takes, and goes on."""

    kind = "F4 node stopped"
    silent = True

    def begin(self) -> None:
        member, self.note = self.place.leader()
        self.members = [member]
        member.signal_all(signal.SIGSTOP)

    def end(self) -> None:
        for member in self.members:
            member.signal_all(signal.SIGCONT)


class ClockShifted(Fault):
    """F17: a node is started again with its monotonic clock elsewhere."""

    kind = "F17 clock shifted"

    def begin(self) -> None:
        member = self.place.some()
        self.members = [member]
        member.stop()
        seconds = str(self.place.random.choice(CLOCK_SHIFTS_S))
        self.note = f"{seconds} s"
        shifted = (tool("unshare"), "-T", "--fork", "--kill-child", "--monotonic", seconds)
        member.prefix = (*shifted, "--boottime", seconds, *prefix_of(member.number))
        member.launch()

    def end(self) -> None:
        for member in self.members:
            member.stop()
            member.prefix = prefix_of(member.number)
            member.launch()


class WallClockSet(Fault):
    """F17: the wall clock of a node jumps while the node runs, and is right again later."""

    kind = "F17 wall clock set"

    def begin(self) -> None:
        member, self.note = self.place.leader()
        self.members = [member]
        self.jump(member)

    def jump(self, member: Member) -> None:
        """Set it."""
        seconds = self.place.random.choice(WALL_JUMPS_S)
        self.note += f"{', ' if self.note else ''}by {seconds} s"
        member.wall.set(seconds)

    def end(self) -> None:
        for member in self.members:
            member.wall.set(0)


class WallClockWrong(WallClockSet):
    """F17: a node dies, its wall clock is wrong when it starts, and is set right while it runs."""

    kind = "F17 started with a wrong wall clock"

    def begin(self) -> None:
        member, self.note = self.place.leader()
        self.members = [member]
        member.kill()
        self.jump(member)
        member.launch()

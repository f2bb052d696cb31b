"""Three shards of three nodes that share some groups, with combined heartbeats between them: Raft nodes, and
frames that a test can hold back or lose with their streams."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fluxmq.raft.quiescence import Quiescence
from fluxmq.raft.types import Message, MessageKind, Role
from fluxmq.replication.heartbeats import ANSWER, BEAT, CombinedHeartbeats, Lease
from tests.unit.raft.cluster import Cluster, Member

NUMBERS = (1, 2, 3)
ELECTION = 20
"""Ticks in an election timeout; a beat is as long as `TICKS_PER_BEAT`."""
TICKS_PER_BEAT = 3
SILENCE = 5
HEARTBEATS = (MessageKind.HEARTBEAT, MessageKind.HEARTBEAT_ANSWER)


class GroupHere:
    """A group's member on a shard, as one that may rest."""

    def __init__(self, name: str, shard: Shard, member: Member) -> None:
        self.name = name
        self.shard = shard
        self.member = member
        self.leases: dict[int, Lease] = {}
        self.working = True
        self.unbelieved: set[int] = set()

    @property
    def quiescence(self) -> Quiescence:
        return self.member.node.quiescence

    def peer_of(self, member: int) -> int | None:
        if member in self.unbelieved:
            return None
        return member if self.shard.number not in self.shard.shards.apart(member) else 0

    def ticks(self, beats: int) -> int:
        return beats * TICKS_PER_BEAT

    def settle(self) -> None:
        """Nothing was left."""

    def slept(self) -> None:
        """Its ticks follow from its leases."""

    def woke(self, leases: Mapping[int, Lease]) -> None:
        """The same."""

    def stirred(self) -> None:
        """Something is about to happen to it."""
        self.shard.heartbeats.wake(self)


class Shard:
    """One of the shards. ``frames``: sent by it and not delivered yet."""

    def __init__(self, shards: Shards, number: int) -> None:
        self.shards = shards
        self.number = number
        self.frames: list[tuple[int, str, tuple[Any, ...]]] = []
        self.groups: dict[str, GroupHere] = {}
        self.stopped = False
        self.heartbeats = CombinedHeartbeats(self._send)
        self.heartbeats.silence_max = SILENCE

    def _send(self, peer: int, what: str, *arguments: Any) -> None:
        self.shards.sent += 1
        self.frames.append((peer, what, arguments))


class GroupCluster(Cluster):
    """A group: what its members say and hear stirs them."""

    here: Mapping[int, GroupHere]
    said = 0

    def post(self, messages: Iterable[Message]) -> None:
        for message in messages:
            if hasattr(self, "here"):
                self.said += 1
                if message.kind is not MessageKind.HEARTBEAT_ANSWER:
                    self.here[message.source].stirred()
            super().post([message])

    def deliver(self, wanted: Any = lambda message: True) -> bool:
        for message in self.network:
            if (message.source, message.target) not in self.cuts and hasattr(self, "here"):
                same_term = message.term == self[message.target].node.term
                if not (same_term and message.kind in HEARTBEATS):
                    self.here[message.target].stirred()
        return super().deliver(wanted)


class Shards:
    """All of it. The shard with the number 1 leads every group first."""

    def __init__(self, groups: int, members: int = 3) -> None:
        self.sent = 0
        """Frames sent so far."""
        self.cut: set[frozenset[int]] = set()
        self.shards = {number: Shard(self, number) for number in NUMBERS}
        self.clusters: dict[str, GroupCluster] = {}
        for shard in self.shards.values():
            for peer in NUMBERS:
                if peer != shard.number:
                    shard.heartbeats.came(peer)
        for place in range(groups):
            self._open(f"g{place}", members)

    def _open(self, name: str, members: int) -> None:
        cluster = GroupCluster(members, election_ticks=ELECTION, heartbeat_ticks=TICKS_PER_BEAT)
        self.clusters[name] = cluster
        here = {}
        for number, member in cluster.members.items():
            shard = self.shards[number]
            here[number] = shard.groups[name] = GroupHere(name, shard, member)
            shard.heartbeats.add(here[number])
        cluster.here = here
        cluster.elect(1)

    def __getitem__(self, number: int) -> Shard:
        return self.shards[number]

    def apart(self, number: int) -> set[int]:
        """The shards that have no stream with this one."""
        return {each for pair in self.cut if number in pair for each in pair}

    def tick(self, ticks: int = 1) -> None:
        """Let time pass for all groups that do not rest."""
        for _ in range(ticks):
            for name, cluster in self.clusters.items():
                for number, member in cluster.members.items():
                    group = self.shards[number].groups[name]
                    if not (group.leases or self.shards[number].stopped):
                        member.node.tick()
                cluster.settle()

    def beat(self, beats: int = 1) -> None:
        """Let time pass, with frames delivered after each beat."""
        for _ in range(beats):
            self.tick(TICKS_PER_BEAT)
            for shard in self.shards.values():
                if not shard.stopped:
                    shard.heartbeats.beat()
            self.carry()

    def carry(self) -> None:
        """Deliver frames until there are none; those of and to a stopped shard wait."""
        while any(self._carry(shard) for shard in self.shards.values()):
            pass

    def _carry(self, shard: Shard) -> bool:
        if shard.stopped:
            return False
        frames, shard.frames = shard.frames, []
        carried = False
        for peer, what, arguments in frames:
            if self.shards[peer].stopped:
                shard.frames.append((peer, what, arguments))
                continue
            other = self.shards[peer].heartbeats
            assert what in (BEAT, ANSWER)
            take: Callable[..., None] = other.on_beat if what == BEAT else other.on_answer
            take(shard.number, *arguments)
            carried = True
        return carried

    def stop(self, number: int) -> None:
        """A process stands still, and its streams stay."""
        self.shards[number].stopped = True
        for cluster in self.clusters.values():
            cluster.cut(number)

    def go_on(self, number: int) -> None:
        """The process goes on."""
        self.shards[number].stopped = False
        for cluster in self.clusters.values():
            cluster.heal()
        self.carry()

    def part(self, one: int, other: int) -> None:
        """The streams between two shards end."""
        self.cut.add(frozenset((one, other)))
        for cluster in self.clusters.values():
            cluster.cuts |= {(one, other), (other, one)}
        for here, there in ((one, other), (other, one)):
            self.shards[here].frames = [
                frame for frame in self.shards[here].frames if frame[0] != there
            ]
            self.shards[here].heartbeats.gone(there)

    def resting(self) -> list[int]:
        """How many groups rest on each shard."""
        return [shard.heartbeats.resting for shard in self.shards.values()]

    def leaders(self) -> dict[str, int | None]:
        """The leader of each group, of the highest term."""
        found = {}
        for name, cluster in self.clusters.items():
            leading = [
                (member.node.term, number)
                for number, member in cluster.members.items()
                if member.node.status().role is Role.LEADER
            ]
            found[name] = max(leading)[1] if leading else None
        return found

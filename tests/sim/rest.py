"""Combined heartbeats in a simulated group: the broker's own (`fluxmq.replication.heartbeats`), over simulated streams.

Responsible for what a host does around them: frames travel in order within a stream, a stream ends when a side dies or
the way between them is cut, which each side notices at its next beat, and what is said to a member or by it wakes it.
A member at rest has no ticks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from fluxmq.raft.quiescence import Quiescence
from fluxmq.raft.types import Message, MessageKind
from fluxmq.replication.heartbeats import ANSWER, BEAT, CombinedHeartbeats, Lease, beat_seconds
from tests.sim.events import FRAME
from tests.sim.member import Member

if TYPE_CHECKING:
    from tests.sim.world import World

NAME = "group"
HEARTBEATS = (MessageKind.HEARTBEAT, MessageKind.HEARTBEAT_ANSWER)
Pair = tuple[int, int]


class Here:
    """The group at one member, as one that may rest; of one of its lives."""

    def __init__(self, rests: Rests, member: Member) -> None:
        self.name = NAME
        self.leases: dict[int, Lease] = {}
        self.member = member
        self.life = member.life
        self.ticks_left = 0
        self._rests = rests
        self.heartbeats = CombinedHeartbeats(
            lambda peer, what, *arguments: rests.send(member.id, peer, what, arguments)
        )
        swarm = rests.world.swarm
        timings = (swarm.heartbeat_ticks, swarm.election_ticks)
        self.beat_ticks = max(1, int(beat_seconds([timings])[0]))
        self.heartbeats.silence_max = max(1, 3 * swarm.election_ticks // 4 // self.beat_ticks)
        self.heartbeats.add(self)

    @property
    def quiescence(self) -> Quiescence:
        """That of its node."""
        assert self.member.node is not None, "who is down does not beat"
        return self.member.node.quiescence

    @property
    def working(self) -> bool:
        """A member that runs works."""
        return True

    def peer_of(self, member: int) -> int | None:
        """Members and shards have the same numbers here."""
        if self._rests.stream(self.member.id, member):
            return member
        other = self._rests.world.members.get(member)
        return 0 if other is None or other.node is None else None

    def ticks(self, beats: int) -> int:
        """Ticks in so many beats."""
        return beats * self.beat_ticks

    def settle(self) -> None:
        """Leave nothing for later."""

    def slept(self) -> None:
        """Count it."""
        self._rests.world.seen["rests"] += 1

    def woke(self, leases: Mapping[int, Lease]) -> None:
        """Count it."""
        self._rests.world.seen["rests ended"] += 1


class Rests:
    """The combined heartbeats of all members of a world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._here: dict[int, Here] = {}
        self._streams: dict[Pair, int] = {}
        self._made = 0
        self._arrivals: dict[Pair, int] = {}

    def started(self, member: Member) -> None:
        """A member has begun another life; the streams of the one before are gone."""
        for pair in [pair for pair in self._streams if member.id in pair]:
            self._end(pair)
        if member.node is not None:
            self._here[member.id] = Here(self, member)

    def _of(self, member: Member) -> Here | None:
        here = self._here.get(member.id)
        living = here is not None and member.node is not None and here.life == member.life
        return here if living else None

    # Time

    def tick(self, member: Member) -> bool:
        """Let a tick pass for a member; return whether its node has one too."""
        here = self._of(member)
        if here is None:
            return True
        here.ticks_left -= 1
        if here.ticks_left <= 0:
            here.ticks_left = here.beat_ticks
            self._look(here)
            here.heartbeats.beat()
        return not here.leases

    def stirs(self, member: Member) -> None:
        """Something is about to happen to a member."""
        here = self._of(member)
        if here is not None:
            here.heartbeats.wake(here)

    def hears(self, member: Member, message: Message) -> None:
        """A message is about to come to a member."""
        here = self._of(member)
        if here is None or not here.leases or member.node is None:
            return
        if message.term != member.node.term or message.kind not in HEARTBEATS:
            here.heartbeats.wake(here)

    # Streams

    def stream(self, one: int, other: int) -> int:
        """The number of the stream between two members, 0 for none."""
        return self._streams.get((min(one, other), max(one, other)), 0)

    def _look(self, here: Here) -> None:
        """End and begin streams of a member."""
        world, me = self.world, here.member.id
        for other in list(world.members.values()):
            if other.id == me:
                continue
            there = self._of(other)
            parted = there is None or bool({(me, other.id), (other.id, me)} & world.cuts.keys())
            pair = (min(me, other.id), max(me, other.id))
            if pair in self._streams:
                if parted:
                    self._end(pair)
            elif there is not None and not parted and not other.removed:
                self._made += 1
                self._streams[pair] = self._made
                for side, far in ((here, other.id), (there, me)):
                    side.heartbeats.wake(side)  # the streams of groups begin as well
                    side.heartbeats.came(far)

    def _end(self, pair: Pair) -> None:
        del self._streams[pair]
        for me, other in (pair, pair[::-1]):
            here = self._of(self.world.members[me])
            if here is not None:
                here.heartbeats.gone(other)

    # Frames

    def send(self, source: int, target: int, what: str, arguments: tuple[Any, ...]) -> None:
        """Carry a frame, behind those sent before it."""
        world = self.world
        swarm = world.swarm
        delay = swarm.delay_us + int(swarm.jitter_us * world.chance())
        arrival = max(world.now_us + delay, self._arrivals.get((source, target), 0))
        self._arrivals[source, target] = arrival
        stream = self.stream(source, target)
        content = (source, stream, what, arguments)
        world.at(arrival - world.now_us, FRAME, world.members[target], content)

    def frame(self, member: Member, content: tuple[int, int, str, tuple[Any, ...]]) -> None:
        """A frame comes to a member, unless its stream has ended."""
        source, stream, what, arguments = content
        world = self.world
        if member.paused_until > world.now_us:
            world.at(member.paused_until - world.now_us, FRAME, member, content)
            return
        here = self._of(member)
        if here is None or not stream or self.stream(source, member.id) != stream:
            return
        if (source, member.id) in world.cuts:
            self._end((min(source, member.id), max(source, member.id)))
            return
        world.note(FRAME, source, member.id, int(what == BEAT), int(arguments[0]))
        assert what in (BEAT, ANSWER)
        heartbeats = here.heartbeats
        act: Callable[..., None] = heartbeats.on_beat if what == BEAT else heartbeats.on_answer
        act(source, *arguments)

"""Combined heartbeats: one frame between two shards for all groups that rest. Pure.

A group rests while nothing happens in it: its leader has sent and committed everything, and all
members that can be reached have it. A resting group has no ticks and sends nothing. Instead, the
shard of its leader sends each shard of another node one frame at every beat, for all groups that
it leads and that have a member there, and gets one answer. Frames carry only what has changed:

* ``beat(number, rest, awake)``: the groups in ``rest`` rest from now on, each with its leader's
  term and the end of its log; those in ``awake`` no longer do.
* ``beaten(number, awake)``: the answer to that frame, and groups that do not rest here (any more).
  It goes with this shard's own next frame to the other if there is one to come and nothing to
  tell: the two then wake each other once a beat instead of twice.

A member rests only if it follows that leader in that term and has its whole log, durable and
committed. Frames travel in order over one stream, so both sides know exactly which groups rest; if
the stream ends, none does. Whatever happens to a member wakes it: a message to it or from it, the
loss of a stream, a failure. It then has its own ticks and heartbeats again, and says so in its
shard's next frame, upon which the others wake as well.

When a shard is silent for three quarters of an election timeout, the groups that it leads wake at
their followers, and those that it follows wake at their leaders if the others are no majority. A
follower then continues its election timeout from the last frame, and a leader does not count that
shard's members as heard: elections begin when they would have begun, and a leader that has lost its
majority steps down within two election timeouts. An answer counts only for groups that were at rest
in the frame it answers. If the silent shard was only slow, its next frame puts the followers that
nothing else has happened to back to rest, so that one slow process does not wake all groups of a
cluster for long.

Time is counted in beats; streams, clocks and groups are behind ports.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from fluxmq.raft.quiescence import Quiescence

BEAT: Final = "beat"
ANSWER: Final = "beaten"
"""Names of the two frames."""

BEATS_PER_ELECTION: Final = 4
"""Least number of beats in the shortest election timeout of the groups."""
BEATS_PER_LOOK: Final = 3
"""Beats between two looks for groups that have failed at rest, of which nothing tells."""
CALM_BEATS: Final = 3
"""Beats without a new term or entry after which a group rests: more than it takes followers to learn
that the last entry is committed."""
SILENCE: Final = 0.75
"""Time after which a shard counts as silent, in the shortest election timeouts of the groups."""


class Lease(NamedTuple):
    """A resting group's trust in a member. ``number``: the frame from which on its leader's shard
    has said that the group rests; 0 on a follower."""

    peer: int
    number: int


class RestingGroup(Protocol):
    """A group's member on this shard. ``leases``: by member, while it rests."""

    name: str
    leases: dict[int, Lease]

    @property
    def quiescence(self) -> Quiescence:
        """The state of its Raft node."""

    @property
    def working(self) -> bool:
        """True if it takes part in the group: it has not failed, nor left it for now."""

    def peer_of(self, member: int) -> int | None:
        """Return the shard where a member is, by the stream to it; 0 without a stream, and None if
        the member is not believed or that shard does not understand combined heartbeats."""

    def ticks(self, beats: int) -> int:
        """Return the ticks of its clock in so many beats."""

    def settle(self) -> None:
        """Do what was left for the next tick."""

    def slept(self) -> None:
        """Stop ticks."""

    def woke(self, leases: Mapping[int, Lease]) -> None:
        """Begin ticks again, the first one after the duration of a tick. ``leases``: those that
        have ended."""


class _Peer:
    """A shard of another node."""

    __slots__ = (
        "added",
        "answered",
        "followed",
        "lapsed",
        "led",
        "missed",
        "number",
        "owed",
        "removed",
        "silent",
        "woken",
    )

    def __init__(self) -> None:
        self.number = 0
        """Number of the last frame sent."""
        self.answered = 0
        """Number of the last frame answered."""
        self.silent = 0
        """Frames sent since the last answer."""
        self.led: dict[str, int] = {}
        """Groups led here that rest with it, with the frame that told it."""
        self.added: list[tuple[str, int, int]] = []
        self.removed: list[str] = []
        """Changes of these groups, for the next frame."""
        self.followed: set[str] = set()
        """Groups led there that rest here."""
        self.missed = 0
        """Beats since its last frame."""
        self.lapsed: dict[str, tuple[int, int]] = {}
        """Groups led there that woke because it was silent, each with term and end of its log."""
        self.woken: dict[str, None] = {}
        """Groups that do not rest here (any more), for the next answer."""
        self.owed = 0
        """Number of its last frame, if the answer goes with the next frame to it; otherwise 0."""


class _Calm:
    """A group that does not rest, and for how many beats nothing has changed."""

    __slots__ = ("beats", "end", "group")

    def __init__(self, group: RestingGroup) -> None:
        self.group = group
        self.end = (0, 0)
        self.beats = 0


class CombinedHeartbeats:
    """Those of one shard. ``send``: sends a frame to a shard of another node, by its number, the
    frame's name and its arguments."""

    def __init__(self, send: Callable[..., None]) -> None:
        self._send = send
        self._peers: dict[int, _Peer] = {}
        self._awake: dict[str, _Calm] = {}
        self._resting: dict[str, RestingGroup] = {}
        self._beats = 0
        self.silence_max = 2
        """Beats without a frame or an answer after which a shard counts as silent."""

    @property
    def resting(self) -> int:
        """Number of groups that rest here."""
        return len(self._resting)

    # Groups

    def add(self, group: RestingGroup) -> None:
        """Take a group that was opened."""
        self._awake[group.name] = _Calm(group)

    def remove(self, group: RestingGroup) -> None:
        """Forget a group that is no longer here."""
        self._release(group)
        self._awake.pop(group.name, None)

    def wake(self, group: RestingGroup) -> None:
        """End a group's rest, before anything else happens to it. Needless for one that does not
        rest."""
        if group.leases:
            leases = group.leases
            self._release(group)
            group.woke(leases)

    def _release(self, group: RestingGroup) -> None:
        leases, group.leases = group.leases, {}
        if self._resting.pop(group.name, None) is None:
            return
        self._awake[group.name] = _Calm(group)
        heard, missed = [], 0
        for member, lease in leases.items():
            peer = self._peers[lease.peer]
            if lease.number:
                del peer.led[group.name]
                peer.removed.append(group.name)
                if peer.answered >= lease.number and peer.silent < self.silence_max:
                    heard.append(member)
            else:
                peer.followed.discard(group.name)
                peer.woken[group.name] = None
                missed = peer.missed
        group.quiescence.resume(group.ticks(missed), heard)

    # Shards of other nodes

    def came(self, peer: int) -> None:
        """Handle a new stream to a shard that understands combined heartbeats."""
        self.gone(peer)
        self._peers[peer] = _Peer()

    def gone(self, peer: int) -> None:
        """Handle the loss of the stream to a shard."""
        each = self._peers.get(peer)
        if each is not None:
            self._wake_all((*each.led, *each.followed))
            del self._peers[peer]

    def beat(self) -> None:
        """Let one beat pass: rest groups in which nothing happens, wake those whose other members
        are silent, and send each shard its frame."""
        self._beats += 1
        if self._beats % BEATS_PER_LOOK == 0:
            self._wake_all([name for name, group in self._resting.items() if not group.working])
        for peer in self._peers.values():
            if peer.silent >= self.silence_max:
                self._wake_all([name for name in peer.led if not self._has_majority(name)])
            peer.missed += 1
            if peer.followed and peer.missed > self.silence_max:
                self._lapse(peer)
        for calm in list(self._awake.values()):
            if calm.group.quiescence.leadership is not None and self._is_calm(calm):
                self._rest(calm.group)
        for number, peer in self._peers.items():
            if peer.owed:
                self._answer(number, peer, peer.owed)
            if peer.led or peer.removed:
                peer.number += 1
                peer.silent += 1
                added, peer.added = peer.added, []
                removed, peer.removed = peer.removed, []
                self._send(number, BEAT, peer.number, added, removed)

    def _has_majority(self, name: str) -> bool:
        """Return whether a resting group led here has a majority without the silent shards."""
        group = self._resting[name]
        present = [
            member
            for member, lease in group.leases.items()
            if self._peers[lease.peer].silent < self.silence_max
        ]
        return group.quiescence.suffice(present)

    def _lapse(self, peer: _Peer) -> None:
        """Wake the groups that a silent shard leads, until it is heard again."""
        for name in list(peer.followed):
            group = self._resting[name]
            lapsed = group.quiescence.end
            self.wake(group)
            del peer.woken[name]
            peer.lapsed[name] = lapsed

    def _wake_all(self, names: Collection[str]) -> None:
        for name in names:
            group = self._resting.get(name)
            if group is not None:
                self.wake(group)

    def _is_calm(self, calm: _Calm) -> bool:
        """Return whether nothing has changed in a group led here for long enough."""
        end = calm.group.quiescence.end
        if calm.end != end or not calm.group.working:
            calm.end, calm.beats = end, 0
            return False
        calm.beats += 1
        return calm.beats >= CALM_BEATS

    def _rest(self, group: RestingGroup) -> None:
        """Rest a group led here, if all its members that can be reached can rest and are a
        majority; otherwise try again later."""
        self._awake[group.name].beats = 0
        peers: dict[int, int] = {}
        for member in group.quiescence.members:
            peer = group.peer_of(member)
            if peer == 0:
                continue
            if peer is None or self._is_silent(peer):
                return
            peers[member] = peer
        group.settle()
        if not peers or not group.quiescence.leads_quietly(peers):
            return  # a group's only member has no leases that could end
        group.leases = {
            member: Lease(peer, self._peers[peer].number + 1) for member, peer in peers.items()
        }
        self._sleep(group)
        term, index = group.quiescence.end
        for lease in group.leases.values():
            each = self._peers[lease.peer]
            each.led[group.name] = lease.number
            each.added.append((group.name, term, index))

    def _is_silent(self, peer: int) -> bool:
        each = self._peers.get(peer)
        return each is None or each.silent >= self.silence_max

    def _sleep(self, group: RestingGroup) -> None:
        del self._awake[group.name]
        self._resting[group.name] = group
        group.slept()

    # Frames

    def on_beat(
        self, peer: int, number: int, added: Sequence[tuple[str, int, int]], removed: Sequence[str]
    ) -> None:
        """Handle the frame of a shard that leads groups."""
        each = self._peers[peer]
        each.missed = 0
        self._wake_all([name for name in removed if name in each.followed])
        for name in removed:
            each.woken.pop(name, None)  # its leader knows
            each.lapsed.pop(name, None)
        lapsed, each.lapsed = each.lapsed, {}
        for name, (term, index) in lapsed.items():
            if not self._follow(peer, name, term, index):
                each.woken[name] = None
        for name, term, index in added:
            if not self._follow(peer, name, term, index):
                each.woken[name] = None
        if each.led and not (added or removed or lapsed or each.woken):
            each.owed = number
        else:
            self._answer(peer, each, number)

    def _answer(self, peer: int, each: _Peer, number: int) -> None:
        each.owed = 0
        woken, each.woken = list(each.woken), {}
        self._send(peer, ANSWER, number, woken)

    def _follow(self, peer: int, name: str, term: int, index: int) -> bool:
        """Rest a group that another shard leads; return False if it cannot."""
        calm = self._awake.get(name)
        if calm is None or not calm.group.working:
            return False
        group = calm.group
        leader = next((each for each in group.quiescence.members if group.peer_of(each) == peer), 0)
        group.settle()
        if not group.quiescence.follows_quietly(leader, term, index):
            return False
        group.leases = {leader: Lease(peer, 0)}
        self._peers[peer].followed.add(name)
        self._sleep(group)
        return True

    def on_answer(self, peer: int, number: int, woken: Sequence[str]) -> None:
        """Handle the answer of a shard that follows groups."""
        each = self._peers[peer]
        if not each.answered < number <= each.number:
            raise ValueError(
                f"an answer to beat {number}, between {each.answered} and {each.number}"
            )
        each.answered = number
        each.silent = 0
        for name in woken:
            group = self._resting.get(name)
            if group is not None and each.led.get(name, number + 1) <= number:
                self.wake(group)


def beat_seconds(timings: Collection[tuple[float, float]]) -> tuple[float, int]:
    """Return the interval between beats, and the beats of silence to bear, from the groups'
    heartbeat and election timeouts in seconds."""
    elections = min(election for _, election in timings)
    interval = min(elections / BEATS_PER_ELECTION, *(heartbeat for heartbeat, _ in timings))
    return interval, int(SILENCE * elections / interval)

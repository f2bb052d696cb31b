"""Exchange of clock readings between nodes, over the links between their shards.

Each side sends a reading when a link comes up, before anything that depends on the time, and every
few seconds after that. A reading carries the time it was sent, and which reading of the other side
came last, how long ago: that gives the round trip, as NTP measures it. `fluxmq.cluster.clocks`
decides what follows from the readings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, Protocol

from fluxmq.cluster.clocks import ROUND_TRIP_US_MAX, PeerClocks, Reading, offset
from fluxmq.cluster.node_links import NodeLink
from fluxmq.logs import get_logger
from fluxmq.metrics.registry import Sample

CLOCK: Final = "clock"
"""Name of the control frame."""
TELL_US: Final = 5_000_000
"""Interval between two readings over a link: a clock that was set is noticed within it, and a
reading is a frame of a few dozen bytes.
"""

_log = get_logger("fluxmq.clock")


class SteeredClock(Protocol):
    """This process's steady time, which other nodes' clocks correct. Times are µs."""

    target: Callable[[int], int | None]
    """Maps the wall clock's reading to what it ought to show; None if that cannot be known."""

    @property
    def settled(self) -> bool:
        """True once the time needs no other node's confirmation any more."""

    def is_known(self) -> bool:
        """Return whether the time is settled; the first call starts a limited wait."""

    def now(self) -> int:
        """Return steady time."""

    def wall(self) -> int:
        """Return the wall clock."""

    def elapsed(self) -> int:
        """Return the time since boot."""

    def settle(self, correction: int) -> None:
        """Adopt the other nodes' time, once: `correction` is their lead."""


class ClockLinks:
    """Sends clock readings to other nodes, takes theirs, and steers this process's clock."""

    def __init__(
        self, clock: SteeredClock, nodes: int, links: Callable[[], Iterator[NodeLink]]
    ) -> None:
        self._clock = clock
        self._links = links
        self.peers = PeerClocks(nodes)
        self._heard: dict[int, tuple[int, int]] = {}
        """By peer: its last reading's send time by its clock, and arrival time by this node's."""
        self._told_at = 0
        clock.target = self._target

    def handlers(self) -> dict[str, Callable[..., None]]:
        """Return the handlers of control frames by name."""
        return {CLOCK: self._on_clock}

    def tell(self, link: NodeLink) -> None:
        """Send a reading to a shard of another node, if it understands readings."""
        if not link.tells_time:
            return
        clock, elapsed = self._clock, self._clock.elapsed()
        sent, came = self._heard.get(link.peer, (0, elapsed))
        showing = (clock.now(), clock.wall(), clock.settled)
        link.send_control(CLOCK, elapsed, sent, elapsed - came, *showing)

    def lost(self, link: NodeLink) -> None:
        """Forget a link that is down: late readings say nothing of the next one's round trips."""
        self._heard.pop(link.peer, None)

    def housekeeping(self) -> None:
        """Send readings when due, log clocks that drift apart; called by the shard's timer."""
        elapsed = self._clock.elapsed()
        self._settle(elapsed)
        if elapsed - self._told_at < TELL_US:
            return
        self._told_at = elapsed
        for link in self._links():
            self.tell(link)
        for node, ahead, apart in self.peers.changes(elapsed):
            seconds = round(ahead / 1_000_000, 3)
            if apart:
                _log.warning(
                    "clocks differ: make sure that NTP runs on both nodes",
                    extra={"node": node, "ahead": seconds},
                )
            else:
                _log.info("clocks agree again", extra={"node": node, "ahead": seconds})

    @property
    def apart(self) -> int:
        """Number of nodes whose clocks differ from this one's by more than the tolerance."""
        return len(self.peers.apart(self._clock.elapsed()))

    def samples(self) -> Iterator[Sample]:
        """Return metrics of other nodes' clocks."""
        elapsed = self._clock.elapsed()
        for node, reading in sorted(self.peers.fresh(elapsed).items()):
            yield "fluxmq_cluster_clock_offset_seconds", {"node": node}, reading.wall / 1_000_000
        yield "fluxmq_cluster_clocks_apart", {}, self.apart

    def _on_clock(
        self,
        link: NodeLink,
        sent: int,
        echo: int,
        held: int,
        steady: int,
        wall: int,
        settled: bool,
    ) -> None:
        """Take another node's reading."""
        clock, elapsed = self._clock, self._clock.elapsed()
        self._heard[link.peer] = (sent, elapsed)
        round_trip = elapsed - echo - held if echo else 0
        if not 0 <= round_trip <= ROUND_TRIP_US_MAX:
            return
        theirs = offset(steady, clock.now(), round_trip), offset(wall, clock.wall(), round_trip)
        self.peers.heard(link.node, Reading(*theirs, settled, elapsed))
        self._settle(elapsed)

    def _settle(self, elapsed: int) -> None:
        """Adopt other nodes' time once, if this process has just started and can trust them."""
        clock = self._clock
        if clock.settled:
            return
        correction = self.peers.correction(elapsed)
        if correction is not None:
            clock.settle(correction)
            self.peers.shifted(correction)

    def _target(self, wall: int) -> int | None:
        correction = self.peers.wall_correction(self._clock.elapsed())
        return None if correction is None else wall + correction

"""Comparison of the clocks of a cluster's nodes: which start of steady time to trust, and which
nodes are out of step.

A node that starts cannot tell a correct wall clock from one that is years off, and the time it
adopts decides which messages have expired. So it trusts nodes that have been running: those whose
time is settled. If none is settled, since all were off, a majority of the nodes has to report, and
the median of their times wins: the lower one of two, since a message that expires late can still be
delivered.

All times are microseconds; `at` is the time since boot of the node that compares. Nothing here
reads a clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

STALE_US: Final = 30_000_000
"""Age at which a reading is worthless: some rounds were missed, and the clock may have been set."""

ROUND_TRIP_US_MAX: Final = 1_000_000
"""Maximum round trip of a usable reading: half of that may be error, and readings are compared to
within a second.
"""

GATHER_US: Final = 1_500_000
"""Time that a majority of just started nodes waits for the others: of three clocks the wrong one is
outvoted, of two it is not. A node that is up dials and is dialled several times within it.
"""

APART_US: Final = 2_000_000
"""Difference of wall clocks that raises the alarm. NTP keeps them within milliseconds; the
measurement may be off by half a second on a slow link.
"""

TOGETHER_US: Final = 1_000_000
"""Difference of wall clocks that ends the alarm: less than what raises it, to avoid flapping."""


class Reading(NamedTuple):
    """Another node's clocks minus this node's, and whether that node's steady time is settled."""

    steady: int
    wall: int
    settled: bool
    at: int


def lower_median(values: Iterable[int]) -> int:
    """Return the middle value; of two the smaller one."""
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2]


def offset(theirs: int, ours: int, round_trip: int) -> int:
    """Return how far their clock is ahead, from its reading and from ours on arrival."""
    return theirs + round_trip // 2 - ours


class PeerClocks:
    """The clocks of the other nodes, as one node sees them. `nodes`: how many there are in all."""

    def __init__(self, nodes: int) -> None:
        self.nodes = nodes
        self._readings: dict[str, Reading] = {}
        self._apart: set[str] = set()
        self._first_at = 0
        """Time of the first reading."""

    def heard(self, node: str, reading: Reading) -> None:
        """Take a node's reading."""
        self._readings[node] = reading
        self._first_at = self._first_at or reading.at

    def shifted(self, by: int) -> None:
        """Adjust the readings after this node's steady time was set forward by `by`."""
        for node, reading in self._readings.items():
            self._readings[node] = reading._replace(steady=reading.steady - by)

    def fresh(self, at: int) -> dict[str, Reading]:
        """Return the readings that are not stale."""
        return {node: each for node, each in self._readings.items() if at - each.at < STALE_US}

    def correction(self, at: int) -> int | None:
        """Return the correction of a started node's steady time; None while it is unknown."""
        readings = self.fresh(at).values()
        settled = [each.steady for each in readings if each.settled]
        if settled:
            return lower_median(settled)
        known = len(readings) + 1
        if 2 * known <= self.nodes:
            return None
        if known < self.nodes and at - self._first_at < GATHER_US:
            return None
        return lower_median((0, *(each.steady for each in readings)))

    def wall_correction(self, at: int) -> int | None:
        """Return how far this node's wall clock is behind the median; None without a majority."""
        readings = self.fresh(at).values()
        if 2 * (len(readings) + 1) <= self.nodes:
            return None
        return lower_median((0, *(each.wall for each in readings)))

    def changes(self, at: int) -> list[tuple[str, int, bool]]:
        """Return the nodes whose wall clock began to differ too much since the last call (True), or
        agrees again.
        """
        found = []
        for node, reading in self.fresh(at).items():
            difference = abs(reading.wall)
            if node not in self._apart and difference > APART_US:
                self._apart.add(node)
                found.append((node, reading.wall, True))
            elif node in self._apart and difference < TOGETHER_US:
                self._apart.discard(node)
                found.append((node, reading.wall, False))
        return found

    def apart(self, at: int) -> dict[str, int]:
        """Return the nodes with an alarm, and how far their wall clock is ahead of this node's."""
        fresh = self.fresh(at)
        return {node: fresh[node].wall for node in sorted(self._apart) if node in fresh}

"""What the clocks of a cluster's nodes show, compared: which start of steady time is to be believed, and who is out of step.

A node that starts cannot tell a wall clock that is right from one that is years off, and what it takes from there decides
which messages have expired. So it believes those that have been running: a node whose time is settled. Where nobody's is,
since all were off, a majority of the nodes has to have spoken, and the median of what they take the time to be is it: the
lower one where there are two, since a message that expires late can still be delivered.

All times are microseconds; `at` is the time since boot of the node that compares. Nothing here reads a clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

STALE_US: Final = 30_000_000
"""What a node said of its clocks is worth nothing after that: some rounds were missed, and its clock may have been set."""

ROUND_TRIP_US_MAX: Final = 1_000_000
"""A reading that took longer is not used: by half of that it may be wrong, and what is compared is to be within a second."""

PATIENCE_US: Final = 1_500_000
"""How long a majority of nodes that have all just started waits for the others: of three clocks the wrong one is outvoted,
of two it is not. A node that is up dials and is dialled several times within it."""

APART_US: Final = 2_000_000
"""Wall clocks that differ by more raise the alarm. NTP keeps them within milliseconds; what is measured here may be wrong by
half a second on a slow link."""

TOGETHER_US: Final = 1_000_000
"""Wall clocks that differ by less end it: less than what raises it, so that it does not come and go."""


class Reading(NamedTuple):
    """Another node's clocks less this node's, and whether that node's steady time is settled."""

    steady: int
    wall: int
    settled: bool
    at: int


def lower_median(values: Iterable[int]) -> int:
    """Return the middle value; of two the smaller one."""
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2]


def offset(theirs: int, ours: int, round_trip: int) -> int:
    """Return by how much their clock is ahead, from what it showed when they spoke and ours when we heard of it."""
    return theirs + round_trip // 2 - ours


class PeerClocks:
    """The clocks of the other nodes, as one node sees them. `nodes`: how many there are in all."""

    def __init__(self, nodes: int) -> None:
        self._nodes = nodes
        self._readings: dict[str, Reading] = {}
        self._apart: set[str] = set()
        self._first_at = 0
        """When the first reading came."""

    def heard(self, node: str, reading: Reading) -> None:
        """Take what a node says of its clocks."""
        self._readings[node] = reading
        self._first_at = self._first_at or reading.at

    def shifted(self, by: int) -> None:
        """This node's steady time has been set forward by `by`."""
        for node, reading in self._readings.items():
            self._readings[node] = reading._replace(steady=reading.steady - by)

    def fresh(self, at: int) -> dict[str, Reading]:
        """Return the readings that are not stale."""
        return {node: each for node, each in self._readings.items() if at - each.at < STALE_US}

    def correction(self, at: int) -> int | None:
        """Return by how much to set the steady time of a node that has started; None while it cannot be known."""
        readings = self.fresh(at).values()
        settled = [each.steady for each in readings if each.settled]
        if settled:
            return lower_median(settled)
        known = len(readings) + 1
        if 2 * known <= self._nodes:
            return None
        if known < self._nodes and at - self._first_at < PATIENCE_US:
            return None
        return lower_median((0, *(each.steady for each in readings)))

    def wall_correction(self, at: int) -> int | None:
        """Return by how much this node's wall clock is behind what most show; None where no majority can be asked."""
        readings = self.fresh(at).values()
        if 2 * (len(readings) + 1) <= self._nodes:
            return None
        return lower_median((0, *(each.wall for each in readings)))

    def changes(self, at: int) -> list[tuple[str, int, bool]]:
        """Return the nodes whose wall clock has come to differ too much since the last call (True), or agrees again."""
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
        """Return the nodes for which the alarm is raised, and by how much their wall clock is ahead of this node's."""
        fresh = self.fresh(at)
        return {node: fresh[node].wall for node in sorted(self._apart) if node in fresh}

"""The time of one replication group, as its leader tells it: the node's steady time, or ahead of it.

Entries carry it, and it must not fall behind one that is applied: a former leader's may have been ahead, by little where
nodes are in step, by years where an entry was written by a program that believed its wall clock. Then it goes on from
there as fast as real time, so that back-off, visibility and time to live are what they ought to be, but for the little by
which steady time catches up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from fluxmq.model.steady import SLEW_PARTS

SHIFT_US: Final = 1_000_000
"""Where a group's time is ahead by more, times that messages bring with them are shifted: by less they may be off, as nodes
may differ by as much."""


class GroupTime:
    """The time of a group. `steady`: the node's, µs."""

    def __init__(self, steady: Callable[[], int]) -> None:
        self._steady = steady
        self._ahead = 0
        self._since = 0
        """Steady time at which it was that much ahead."""

    def now(self, applied: int) -> int:
        """The group's time, given that of the last entry applied."""
        steady = self._steady()
        now = steady + self._left(steady) if self._ahead else steady
        if now < applied:
            self._ahead, self._since = applied - steady, steady
            return applied
        return now

    @property
    def ahead(self) -> int:
        """By how much it is ahead of steady time, µs, as of the last `now`; it shrinks by itself."""
        return self._left(self._steady()) if self._ahead else 0

    def shift(self, applied: int) -> int:
        """By how much times that messages bring with them have to be shifted; 0 where it is not worth it."""
        self.now(applied)
        ahead = self.ahead
        return ahead if ahead > SHIFT_US else 0

    def of_node(self, due: int | None) -> int | None:
        """The node's steady time at which a timer of the group is due; 0, at once, and None, never, stay what they are."""
        return due - self.ahead if due else due

    def _left(self, steady: int) -> int:
        left = self._ahead - max(steady - self._since, 0) // SLEW_PARTS
        if left > 0:
            return left
        self._ahead = 0
        return 0

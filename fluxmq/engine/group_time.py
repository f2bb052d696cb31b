"""The clock of a replication group, kept by its leader: the node's steady time, or ahead of it.

Entries carry this time, and it must not fall behind an applied one: a former leader may have been
ahead, by little among synchronised nodes, by years if an entry came from a program that trusted its
wall clock. It then advances from there as fast as real time, so that back-off, visibility and time
to live stay right, except for the small correction by which steady time catches up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from fluxmq.model.steady import SLEW_PARTS

SHIFT_US: Final = 1_000_000
"""Lead of a group's clock above which times in messages are shifted; nodes may differ by as much
anyway."""


class GroupTime:
    """The clock of a group. `steady`: the node's, µs."""

    def __init__(self, steady: Callable[[], int]) -> None:
        self._steady = steady
        self._ahead = 0
        self._since = 0
        """Steady time at which it was that much ahead."""

    def now(self, applied: int) -> int:
        """Return the group's time, given that of the last entry applied."""
        steady = self._steady()
        now = steady + self._left(steady) if self._ahead else steady
        if now < applied:
            self._ahead, self._since = applied - steady, steady
            return applied
        return now

    @property
    def ahead(self) -> int:
        """Lead over steady time in µs, as of the last `now`; it shrinks by itself."""
        return self._left(self._steady()) if self._ahead else 0

    def shift(self, applied: int) -> int:
        """Return the shift for times in messages, µs; 0 if the lead is too small to matter."""
        self.now(applied)
        ahead = self.ahead
        return ahead if ahead > SHIFT_US else 0

    def of_node(self, due: int | None) -> int | None:
        """Convert a group timer's due time to the node's steady time; 0 (at once) and None (never)
        stay."""
        return due - self.ahead if due else due

    def _left(self, steady: int) -> int:
        left = self._ahead - max(steady - self._since, 0) // SLEW_PARTS
        if left > 0:
            return left
        self._ahead = 0
        return 0

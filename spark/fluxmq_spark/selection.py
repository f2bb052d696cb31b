"""Wanted offsets of a queue, and their states in a consumer group."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy
import pyarrow as pa  # type: ignore[import-untyped]
from numpy.typing import NDArray

READY: Final = "ready"
"""Never delivered to a consumer of the group."""
PENDING: Final = "pending"
"""Delivered and not settled, or waiting for redelivery."""
DEAD: Final = "dead"
"""Given up; to be dead-lettered."""
ACKNOWLEDGED: Final = "acknowledged"
STATES: Final = (ACKNOWLEDGED, READY, PENDING, DEAD)

Integers = NDArray[numpy.int64]


@dataclass(frozen=True)
class Selection:
    """A part of a queue's messages as of one moment. Can be pickled.

    `ranges`: the wanted offsets, (first, last) both included, ascending and disjoint; None for all.
    `labels`: (first, last, state) in the same way; offsets in none of them are acknowledged below
    `cursor` and ready from it on.
    """

    ranges: tuple[tuple[int, int], ...] | None
    labels: tuple[tuple[int, int, str], ...] = ()
    cursor: int = 0

    @cached_property
    def _bounds(self) -> tuple[Integers, Integers]:
        pairs = numpy.array(self.ranges or (), numpy.int64).reshape(-1, 2)
        return pairs[:, 0].copy(), pairs[:, 1] + 1

    @cached_property
    def _labels(self) -> tuple[Integers, Integers, Integers]:
        """Starts and stops of labels, and the numbers of their states."""
        rows = [(first, last + 1, STATES.index(state)) for first, last, state in self.labels]
        table = numpy.array(rows, numpy.int64).reshape(-1, 3)
        return table[:, 0].copy(), table[:, 1].copy(), table[:, 2].copy()

    def count(self, first: int, stop: int) -> int:
        """Return the number of wanted offsets from `first` to before `stop`."""
        if self.ranges is None:
            return max(0, stop - first)
        starts, stops = self._bounds
        return int(
            numpy.maximum(numpy.minimum(stops, stop) - numpy.maximum(starts, first), 0).sum()
        )

    def following(self, offset: int) -> int | None:
        """Return the first wanted offset that is not before `offset`, None if there is none."""
        if self.ranges is None:
            return offset
        starts, stops = self._bounds
        at = int(stops.searchsorted(numpy.int64(offset), "right"))
        return None if at == len(starts) else max(offset, int(starts[at]))

    def mask(self, first: int, stop: int) -> NDArray[numpy.bool_] | None:
        """Return for each offset from `first` to before `stop` whether it is wanted; None if all
        are."""
        if self.count(first, stop) == max(0, stop - first):
            return None
        starts, stops = self._bounds
        offsets = numpy.arange(first, stop)
        at = starts.searchsorted(offsets, "right") - 1
        inside: NDArray[numpy.bool_] = (at >= 0) & (offsets < stops[numpy.maximum(at, 0)])
        return inside

    def overlaps(self, firsts: Integers, stops: Integers) -> NDArray[numpy.bool_]:
        """Return for each range of offsets, from its first to before its stop, whether any of it is
        wanted."""
        if self.ranges is None:
            return numpy.ones(len(firsts), bool)
        starts, ends = self._bounds
        if not starts.size:
            return numpy.zeros(len(firsts), bool)
        at = ends.searchsorted(firsts, "right")
        there = at < len(starts)
        overlap: NDArray[numpy.bool_] = there & (starts[numpy.minimum(at, len(starts) - 1)] < stops)
        return overlap

    def states(self, first: int, stop: int) -> pa.StringArray:
        """Return the state of each offset from `first` to before `stop`."""
        offsets = numpy.arange(first, stop)
        numbers = (offsets >= self.cursor).astype(numpy.int64)
        starts, stops, states = self._labels
        if starts.size:
            at = numpy.maximum(starts.searchsorted(offsets, "right") - 1, 0)
            inside = (offsets >= starts[at]) & (offsets < stops[at])
            numbers = numpy.where(inside, states[at], numbers)
        return pa.array(STATES).take(pa.array(numbers))

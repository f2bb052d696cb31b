"""Ranges of segments to tasks: a large segment is divided among several, small ones share one.

Cuts are by offset, at entries of the index if one is near: a task then starts reading at its first
batch. Otherwise the cut is where the bytes are about right; the task reads from the entry before it
and finds its first message itself.
"""

from __future__ import annotations

import heapq
import itertools
import logging
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any, Final, NamedTuple, TypeVar

import numpy
from numpy.typing import NDArray

from fluxmq.model.segments import INDEX_ENTRY_BYTES, PAGE_BYTES, IndexEntries
from fluxmq_spark.scan import SegmentRange, Selection
from fluxmq_spark.storage import Storage

LOG: Final = logging.getLogger(__name__)

TASK_SEGMENTS_MAX: Final = 1000
"""Segments that share a task: thousands of nearly empty ones still fit into a few tasks, each some
seconds at most."""

TASKS_MAX: Final = 100_000
"""Maximum tasks of a plan: beyond that tasks become larger than requested."""

_NEAR: Final = 0.25
"""Maximum distance of an index entry from the best cut, as a fraction of a task."""


R = TypeVar("R", tuple[int, int], tuple[int, int, str])


class Piece(NamedTuple):
    """A segment range, and about how many bytes reading it takes."""

    segment_range: SegmentRange
    bytes: int


@dataclass(frozen=True)
class Task:
    """Work of one Spark task, in order. `selections`: by queue, the wanted messages."""

    segment_ranges: tuple[SegmentRange, ...]
    bytes: int
    selections: Mapping[str, Selection] = field(default_factory=dict)


def make_tasks(
    storage: Storage,
    pieces: Sequence[Piece],
    bytes_per_task: int,
    least: int,
    selections: Mapping[str, Selection],
) -> list[Task]:
    """Return tasks of about `bytes_per_task` at most, and at least `least` of them if there are as
    many messages."""
    total = sum(piece.bytes for piece in pieces)
    target = max(bytes_per_task, -(-total // TASKS_MAX))
    if least:
        target = max(min(target, -(-total // least)), 1)
    parts = [part for piece in pieces for part in _cut(storage, piece, target)]
    packed = _split_to(list(_packed(parts, target)), least)
    return [
        _task([part.segment_range for part in task], _bytes(task), selections) for task in packed
    ]


def _bytes(task: Iterable[Piece]) -> int:
    return sum(part.bytes for part in task)


def _task(
    segment_ranges: list[SegmentRange], size: int, selections: Mapping[str, Selection]
) -> Task:
    own = {}
    for queue in dict.fromkeys(segment_range.queue for segment_range in segment_ranges):
        if queue in selections:
            parts = [
                segment_range for segment_range in segment_ranges if segment_range.queue == queue
            ]
            own[queue] = _narrowed(selections[queue], parts[0].first, parts[-1].stop)
    return Task(tuple(segment_ranges), size, own)


def _narrowed(selection: Selection, first: int, stop: int) -> Selection:
    """Return a selection limited to some offsets: it may have tens of thousands of ranges, and each
    task is sent its own."""
    return replace(
        selection,
        ranges=None if selection.ranges is None else _overlapping(selection.ranges, first, stop),
        labels=_overlapping(selection.labels, first, stop),
    )


def _overlapping(ranges: tuple[R, ...], first: int, stop: int) -> tuple[R, ...]:
    """Return those of ascending and disjoint ranges that have an offset from `first` to before
    `stop`."""
    begin = bisect_left(ranges, first, key=itemgetter(1))
    return ranges[begin : bisect_left(ranges, stop, key=itemgetter(0))]


def _packed(parts: Iterable[Piece], target: int) -> Iterator[list[Piece]]:
    task: list[Piece] = []
    size = 0
    for part in parts:
        if task and (size + part.bytes > target or len(task) == TASK_SEGMENTS_MAX):
            yield task
            task, size = [], 0
        task.append(part)
        size += part.bytes
    if task:
        yield task


_Entry = tuple[int, tuple[int, ...], int, list[Piece]]
"""Negated messages, place among the tasks, a tie-breaker, the task."""


def _split_to(tasks: list[list[Piece]], least: int) -> list[list[Piece]]:
    """Halve the tasks with most messages until there are as many as requested; order is kept."""
    count = itertools.count()
    heap: list[_Entry] = [
        (-_messages(task), (number,), next(count), task) for number, task in enumerate(tasks)
    ]
    heapq.heapify(heap)
    while heap and len(heap) < least and heap[0][0] < -1:
        _, place, _, task = heapq.heappop(heap)
        for side, half in enumerate(_halves(task)):
            heapq.heappush(heap, (-_messages(half), (*place, side), next(count), half))
    return [task for _, _, _, task in sorted(heap, key=lambda entry: entry[1])]


def _messages(task: Iterable[Piece]) -> int:
    return sum(piece.segment_range.stop - piece.segment_range.first for piece in task)


def _halves(task: list[Piece]) -> tuple[list[Piece], list[Piece]]:
    """Return a task of at least two messages as two with at least a message each."""
    wanted = _messages(task) // 2
    before: list[Piece] = []
    for number, piece in enumerate(task):
        messages = piece.segment_range.stop - piece.segment_range.first
        if messages < wanted:
            before.append(piece)
            wanted -= messages
            continue
        if messages == wanted:
            return [*before, piece], task[number + 1 :]
        middle = piece.segment_range.first + wanted
        share = piece.bytes * wanted // messages
        first = Piece(replace(piece.segment_range, stop=middle), share)
        second = Piece(replace(piece.segment_range, first=middle), piece.bytes - share)
        return [*before, first], [second, *task[number + 1 :]]
    raise AssertionError("half of the messages come before all of them")


# --- cutting a segment -----------------------------------------------------------------------------------------------


def _cut(storage: Storage, piece: Piece, target: int) -> list[Piece]:
    """Return a piece as pieces of about `target` bytes."""
    segment_range = piece.segment_range
    count = min(-(-piece.bytes // target), segment_range.stop - segment_range.first)
    if count <= 1:
        return [piece]
    offsets, positions = _index_points(storage, segment_range, piece.bytes)
    begin, end = (
        float(numpy.interp(offset, offsets, positions))
        for offset in (segment_range.first, segment_range.stop)
    )
    step = (end - begin) / count
    best = begin + step * numpy.arange(1, count)
    nearest = _nearest(positions, best)
    cuts = numpy.where(
        numpy.abs(positions[nearest] - best) <= step * _NEAR,
        offsets[nearest],
        numpy.interp(best, positions, offsets).astype(numpy.int64),
    )
    inside = cuts[(cuts > segment_range.first) & (cuts < segment_range.stop)]
    bounds = [segment_range.first, *map(int, numpy.unique(inside)), segment_range.stop]
    at = numpy.interp(bounds, offsets, positions)
    return [
        Piece(replace(segment_range, first=first, stop=stop), max(int(after - before), 1))
        for first, stop, before, after in zip(bounds, bounds[1:], at, at[1:], strict=False)
    ]


def _nearest(
    sorted_values: NDArray[numpy.int64], wanted: NDArray[numpy.floating[Any]]
) -> NDArray[numpy.int64]:
    right = numpy.clip(numpy.searchsorted(sorted_values, wanted), 1, len(sorted_values) - 1)
    is_left = wanted - sorted_values[right - 1] < sorted_values[right] - wanted
    return right - is_left.astype(numpy.int64)


def _index_points(
    storage: Storage, segment_range: SegmentRange, size: int
) -> tuple[NDArray[numpy.int64], NDArray[numpy.int64]]:
    """Return offsets and their positions, ends included; only the ends if the index is missing or
    senseless.

    The index is not verified: a wrong one changes the sizes of tasks, but not their messages.
    """
    entries = IndexEntries()
    try:
        data = storage.read(segment_range.index_path)
        entries.extend(data[: len(data) // INDEX_ENTRY_BYTES * INDEX_ENTRY_BYTES])
    except FileNotFoundError:
        LOG.debug("no index %s", segment_range.index_path)
    messages = segment_range.segment_next - segment_range.base_offset
    end = max(segment_range.end, PAGE_BYTES + size)
    offsets = numpy.array(entries.offsets, numpy.int64)
    positions = numpy.array(entries.positions, numpy.int64)
    # In a sealed segment's index the last entry is a check, with an offset after all.
    good = (offsets > 0) & (offsets < messages) & (positions > PAGE_BYTES) & (positions < end)
    offsets = numpy.concatenate(([0], offsets[good], [messages]))
    positions = numpy.concatenate(([PAGE_BYTES], positions[good], [end]))
    if bool((numpy.diff(offsets) <= 0).any() or (numpy.diff(positions) <= 0).any()):
        offsets, positions = offsets[[0, -1]], positions[[0, -1]]
    return offsets + segment_range.base_offset, positions

"""Plan of a query: queues by name, ranges of offsets by the given bounds, tasks by size.

Each queue's head, read once, bounds everything. The broker goes on meanwhile: retention moves the
head's start before it removes a segment, so a missing file makes the planner read the head again.
"""

from __future__ import annotations

import logging
import re
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from errno import ENOENT
from operator import itemgetter
from typing import Final, NamedTuple

from fluxmq.model.segments import FOOTER_BYTES, PAGE_BYTES, base_of
from fluxmq_spark.catalog import Log, QueueFiles, SegmentFile, find_queues, missing, read_log
from fluxmq_spark.errors import Damage, DataLoss, OptionError
from fluxmq_spark.options import (
    EARLIEST,
    LATEST,
    STATE_DEAD_LETTERED,
    ReadOptions,
)
from fluxmq_spark.partitions import Piece, Task, make_tasks
from fluxmq_spark.scan import SegmentRange, Selection
from fluxmq_spark.storage import Storage, storage_of
from fluxmq_spark.times import TimeSearch

LOG: Final = logging.getLogger(__name__)

DEAD_LETTERS: Final = "$dlq/"
"""Prefix of the names of dead-letter queues."""

NAMES_SHOWN_MAX: Final = 20
"""Maximum queues that an error lists: there may be thousands."""

_SKIP: Final = "set failOnDataLoss=false to skip them"


class QueueRange(NamedTuple):
    """Range of a queue to read: offsets from `first` to before `stop`, of a log at one moment."""

    files: QueueFiles
    log: Log
    first: int
    stop: int
    pieces: tuple[Piece, ...]


@dataclass(frozen=True)
class QueuePlan:
    """Plan for one queue. `segments_considered`: those that the queue has; `bytes`: of `segments`,
    about."""

    queue: str
    start: int
    committed: int
    first: int
    stop: int
    segments_considered: int
    segments: int
    bytes: int


@dataclass(frozen=True)
class Plan:
    """Plan of a query; its `str()` is for people."""

    queues: tuple[QueuePlan, ...]
    tasks: tuple[Task, ...]

    @property
    def segments_considered(self) -> int:
        """Number of the queues' segments."""
        return sum(queue.segments_considered for queue in self.queues)

    @property
    def segments(self) -> int:
        """Number of segments to read."""
        return sum(queue.segments for queue in self.queues)

    @property
    def bytes(self) -> int:
        """Approximate bytes to read."""
        return sum(queue.bytes for queue in self.queues)

    @property
    def partitions(self) -> int:
        """Number of partitions, which are Spark's tasks."""
        return len(self.tasks)

    def __str__(self) -> str:
        segments = f"{self.segments} of {self.segments_considered} segments"
        size = f"about {self.bytes:,} bytes, {self.partitions} partitions"
        lines = [f"{len(self.queues)} queues, {segments}, {size}"]
        lines += [
            f"  {queue.queue}: offsets {queue.first} to {queue.stop - 1} of {queue.start} to"
            f" {queue.committed - 1}, {queue.segments} of {queue.segments_considered} segments"
            if queue.first < queue.stop
            else f"  {queue.queue}: nothing of offsets {queue.start} to {queue.committed - 1}"
            for queue in self.queues
        ]
        return "\n".join(lines)


# --- queues ----------------------------------------------------------------------------------------------------------


def select_queues(storage: Storage, root: str, options: ReadOptions) -> list[QueueFiles]:
    """Return the queues that options name, by name. Raises OptionError for missing ones,
    SparkSourceError."""
    found = find_queues(storage, root)
    by_name = {files.queue: files for files in found}
    if len(by_name) < len(found):
        twice = next(files for files in found if by_name[files.queue] != files)
        other = by_name[twice.queue].directory
        what = f"{twice.directory} and {other}; give one of them as path"
        raise OptionError(f"queue {twice.queue!r} occurs twice: {what}")
    dead = options.state == STATE_DEAD_LETTERED
    if options.queues is None:
        wanted = [
            name
            for name in by_name
            if name.startswith(DEAD_LETTERS) or not dead
            if re.fullmatch(options.pattern, name.removeprefix(DEAD_LETTERS) if dead else name)
        ]
        return [by_name[name] for name in wanted]
    unknown = [name for name in options.queues if name not in by_name]
    if dead:
        # A queue without dead letters has no dead-letter queue yet.
        names = [DEAD_LETTERS + name for name in options.queues]
        unknown = [name for name in unknown if DEAD_LETTERS + name not in by_name]
    else:
        names = list(options.queues)
    if unknown:
        raise OptionError(
            f"path {root!r} has no queue {_listed(unknown)}; it has {_listed(by_name)}"
        )
    return sorted(by_name[name] for name in names if name in by_name)


def _listed(names: Sequence[str] | Mapping[str, object]) -> str:
    shown = ", ".join(repr(name) for name in list(names)[:NAMES_SHOWN_MAX])
    more = len(names) - NAMES_SHOWN_MAX
    return (shown or "none") + (f" and {more} more" if more > 0 else "")


def readable_log(storage: Storage, files: QueueFiles, options: ReadOptions) -> Log | None:
    """Return a queue's log, None for one without messages. Raises Damage for segments without a
    head."""
    log = read_log(storage, files)
    if log is None and any(base_of(name) is not None for name in storage.list(files.directory)):
        damage = Damage(f"{files.directory}/head", 0, "no slot of the head is valid")
        if options.fail_on_data_loss:
            raise damage
        LOG.warning("queue %r is skipped: %s", files.queue, damage)
    return log


# --- ranges ----------------------------------------------------------------------------------------------------------


RangeOf = Callable[[Log], tuple[int, int]]
"""Function from a log to the offsets to read, first and the one after the last. May raise
FileNotFoundError."""


def ranges_of(
    storage: Storage, queues: Sequence[QueueFiles], options: ReadOptions
) -> list[QueueRange]:
    """Return the ranges of the queues by the options' bounds. Raises DataLoss, Damage, OptionError
    for all bad offsets."""
    known = {files.queue for files in queues}
    sides = (("startingOffsets", options.starting), ("endingOffsets", options.ending))
    mistakes = [
        f"{side} names queue {name!r}, which is not read"
        for side, bounds in sides
        for name in bounds.offsets
        if name not in known
    ]
    found = []
    for files in queues:
        try:
            log = readable_log(storage, files, options)
            if log is not None:
                range_of = _by_bounds(storage, files, options)
                found.append(look(storage, files, log, options, range_of))
        except OptionError as error:
            mistakes.append(str(error))
    if mistakes:
        raise OptionError("; ".join(mistakes))
    return found


def look(
    storage: Storage, files: QueueFiles, log: Log, options: ReadOptions, range_of: RangeOf
) -> QueueRange:
    """Return a range of a log; read the log again as long as retention removes what was to be read.

    Raises DataLoss when files are missing whose messages the head keeps, unless that is not fatal.
    """
    while True:
        try:
            first, stop = _covered(files, log, *range_of(log), options)
            return QueueRange(files, log, first, stop, _pieces(storage, files, log, first, stop))
        except FileNotFoundError as error:
            newer = read_log(storage, files)
            if newer is None or newer.head.start == log.head.start:
                what = f"{error.filename or error} is missing, although the head keeps its messages"
                raise DataLoss(f"queue {files.queue!r}: {what}; {_SKIP}") from None
            log = newer


def _by_bounds(storage: Storage, files: QueueFiles, options: ReadOptions) -> RangeOf:
    """Return the function from a log to its range by the options' bounds."""
    starting, ending = options.starting, options.ending
    low, high = starting.of(files.queue), ending.of(files.queue)
    if starting.time is None and ending.time is None and low > high >= 0:
        what = f"startingOffsets are {low}, behind endingOffsets, {high}"
        raise OptionError(f"queue {files.queue!r}: {what}")

    def range_of(log: Log) -> tuple[int, int]:
        first = start_of(storage, files, log, options)
        if ending.time is not None:
            search = TimeSearch(storage, log, skip_damage=not options.fail_on_data_loss)
            stop = search.first_not_before(ending.time)
        else:
            stop = log.head.committed if high == LATEST else high
        if stop > log.head.committed:
            raise OptionError(_beyond(files, "endingOffsets", stop, log))
        return first, max(first, stop)

    return range_of


def start_of(storage: Storage, files: QueueFiles, log: Log, options: ReadOptions) -> int:
    """Return the offset at which reading begins.

    Raises DataLoss for one that retention removed, OptionError for one that does not exist yet, and
    the errors of a search for a time.
    """
    if options.starting.time is not None:
        search = TimeSearch(storage, log, skip_damage=not options.fail_on_data_loss)
        return search.first_not_before(options.starting.time)
    offset = options.starting.of(files.queue)
    if offset in (EARLIEST, LATEST):
        return log.head.start if offset == EARLIEST else log.head.committed
    if offset > log.head.committed:
        raise OptionError(_beyond(files, "startingOffsets", offset, log))
    return kept(files.queue, log, offset, options)


def kept(queue: str, log: Log, offset: int, options: ReadOptions) -> int:
    """Return `offset`, or the first one kept when that is not fatal. Raises DataLoss."""
    if offset >= log.head.start:
        return offset
    lost = f"offsets {offset} to {log.head.start - 1} were removed by retention"
    return lose(queue, lost, options, log.head.start)


def lose(queue: str, lost: str, options: ReadOptions, go_on: int) -> int:
    """Raise DataLoss, or warn and return where to continue."""
    if options.fail_on_data_loss:
        raise DataLoss(f"queue {queue!r}: {lost}; {_SKIP}")
    LOG.warning("queue %r: %s; skipped", queue, lost)
    return go_on


def _beyond(files: QueueFiles, name: str, offset: int, log: Log) -> str:
    what = f"{name} are {offset}, and the offset after its last message is {log.head.committed}"
    return f"queue {files.queue!r}: {what}"


def _covered(
    files: QueueFiles, log: Log, first: int, stop: int, options: ReadOptions
) -> tuple[int, int]:
    """Return the range, without offsets at its ends that no file has when that is not fatal. Raises
    DataLoss."""
    for low, high in missing(log, first, stop):
        lost = (
            f"the files with offsets {low} to {high - 1} are missing, although its head keeps them"
        )
        lose(files.queue, lost, options, high)
        if low == first:
            first = high
        else:
            stop = low
    return first, max(first, stop)


def _pieces(
    storage: Storage, files: QueueFiles, log: Log, first: int, stop: int
) -> tuple[Piece, ...]:
    """Return the parts of segments in a range, with their approximate bytes. Raises
    FileNotFoundError."""
    segments = [
        segment
        for segment in log.segments
        if max(first, segment.base_offset) < min(stop, segment.next_offset)
    ]
    sizes = storage.sizes(files.directory) if segments else {}
    return tuple(_piece(files.queue, segment, first, stop, sizes) for segment in segments)


def _piece(
    queue: str, segment: SegmentFile, first: int, stop: int, sizes: Mapping[str, int]
) -> Piece:
    name = segment.path.rpartition("/")[2]
    if name not in sizes:
        raise FileNotFoundError(ENOENT, "removed since it was listed", segment.path)
    segment_range = SegmentRange(
        queue=queue,
        path=segment.path,
        index_path=segment.index_path,
        base_offset=segment.base_offset,
        segment_next=segment.next_offset,
        end=segment.end,
        sealed=segment.sealed,
        first=max(first, segment.base_offset),
        stop=min(stop, segment.next_offset),
    )
    size = sizes[name] - FOOTER_BYTES if segment.end < 0 else segment.end
    share = max(size - PAGE_BYTES, 1) * (segment_range.stop - segment_range.first)
    return Piece(segment_range, max(share // (segment.next_offset - segment.base_offset), 1))


# --- the whole -------------------------------------------------------------------------------------------------------


def make_plan(storage: Storage, root: str, options: ReadOptions) -> Plan:
    """Return the plan of batch reading with these options. Raises SparkSourceError."""
    queues = select_queues(storage, root, options)
    found = ranges_of(storage, queues, options)
    selections = {}
    if options.group:
        # Imported late: only consumer groups need it.
        from fluxmq_spark.states import selection_of

        for each in found:
            selection = selection_of(storage, each.files, options.group, options.state)
            selections[each.files.queue] = selection
    return plan_of(storage, found, options, selections)


def plan_of(
    storage: Storage,
    found: Sequence[QueueRange],
    options: ReadOptions,
    selections: Mapping[str, Selection],
) -> Plan:
    """Return the plan for ranges of queues. `selections`: by queue, the wanted messages if not all
    are."""
    pieces: list[Piece] = []
    plans = []
    for each in found:
        queue, head = each.files.queue, each.log.head
        own = list(each.pieces)
        if queue in selections:
            own = selected(own, selections[queue])
        plans.append(
            QueuePlan(
                *(queue, head.start, head.committed, each.first, each.stop),
                segments_considered=len(each.log.segments),
                segments=len(own),
                bytes=sum(piece.bytes for piece in own),
            )
        )
        pieces += own
    tasks = make_tasks(
        storage, pieces, options.bytes_per_partition, options.min_partitions, selections
    )
    return Plan(tuple(plans), tuple(tasks))


def selected(pieces: Sequence[Piece], selection: Selection) -> list[Piece]:
    """Return pieces without the messages before the first and after the last wanted one of each
    segment."""
    if selection.ranges is None:
        return list(pieces)
    found = []
    for segment_range, size in pieces:
        begin = bisect_left(selection.ranges, segment_range.first, key=itemgetter(1))
        end = bisect_left(selection.ranges, segment_range.stop, key=itemgetter(0))
        if begin == end:
            continue
        first = max(selection.ranges[begin][0], segment_range.first)
        stop = min(selection.ranges[end - 1][1] + 1, segment_range.stop)
        share = size * (stop - first) // (segment_range.stop - segment_range.first)
        found.append(Piece(replace(segment_range, first=first, stop=stop), max(share, 1)))
    return found


def open_path(options: ReadOptions) -> tuple[Storage, str]:
    """Return the storage and path of the options' path. Raises OptionError."""
    return storage_of(options.path, options.storage_options)

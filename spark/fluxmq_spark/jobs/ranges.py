"""Ranges of queues for a job: currently committed offsets, within the requested bounds.

For jobs that read segments in tasks of their own and not through the source.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from fluxmq_spark.catalog import Log, SegmentFile, find_queues, read_log
from fluxmq_spark.jobs.arguments import Bound, Selection, UsageError
from fluxmq_spark.storage import Storage, storage_of
from fluxmq_spark.times import TimeSearch


@dataclass(frozen=True, slots=True)
class QueueRange:
    """Offsets of a queue from `first` to before `stop`, of those kept: from `start` to before
    `committed`."""

    queue: str
    directory: str
    start: int
    committed: int
    first: int
    stop: int
    segments: tuple[SegmentFile, ...]

    def between(self, first: int, stop: int) -> QueueRange:
        """Return the same queue with other bounds."""
        return replace(self, first=first, stop=stop)


def ranges_of(selection: Selection, *, skip_damage: bool = False) -> list[QueueRange]:
    """Return the selected queues, by name, and their requested ranges, which may be empty.

    Raises `UsageError` for a named queue that does not exist, SparkSourceError for an invalid path,
    and Damage when a time must be searched in a damaged file, unless that is to be skipped.
    """
    storage, root = storage_of(selection.path, selection.filesystem())
    files = find_queues(storage, root)
    there = {each.queue for each in files}
    absent = [queue for queue in selection.queues if queue not in there]
    if absent:
        raise UsageError(f"{selection.path} has no queue {', '.join(map(repr, absent))}")
    wanted = re.compile(selection.pattern) if selection.pattern is not None else None
    found = []
    for each in files:
        if selection.queues and each.queue not in selection.queues:
            continue
        if wanted is not None and wanted.fullmatch(each.queue) is None:
            continue
        log = read_log(storage, each)
        if log is None:
            continue
        start, committed = log.head.start, log.head.committed
        first = _offset_of(storage, log, selection.start, start, skip_damage)
        stop = _offset_of(storage, log, selection.stop, committed, skip_damage)
        first, stop = max(first, start), min(stop, committed)
        found.append(
            QueueRange(
                *(each.queue, each.directory, start, committed),
                *(first, max(first, stop), log.segments),
            )
        )
    return sorted(found, key=lambda one: one.queue)


def _offset_of(storage: Storage, log: Log, bound: Bound, end: int, skip_damage: bool) -> int:
    """Return the offset of a bound in one queue; `end` if it names none."""
    if bound.time is not None:
        return TimeSearch(storage, log, skip_damage=skip_damage).first_not_before(bound.time)
    return end if bound.offset is None else bound.offset

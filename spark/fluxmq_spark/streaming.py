"""Queues as a stream: each micro-batch takes ranges of offsets up to each queue's head.

Spark keeps the offsets, ``{"orders": 1234}``: the next offset of each queue, and repeats a batch
that a crash interrupted with the same ranges. A queue that appears later is read from its first
message kept. The offsets do not reveal that a queue was deleted and created again; that is detected
when the new one is shorter than what was read.

Options are validated when Spark first asks something: an error while the reader is created is lost
in Spark's own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property, partial

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from fluxmq.model.segments import QueueHead
from fluxmq_spark.catalog import Log, QueueFiles, read_head
from fluxmq_spark.options import STREAM, ReadOptions, read_options
from fluxmq_spark.planning import (
    QueueRange,
    kept,
    look,
    lose,
    open_path,
    plan_of,
    ranges_of,
    readable_log,
    select_queues,
)
from fluxmq_spark.reading import TaskPartition, TaskReader, task_reader
from fluxmq_spark.storage import Storage

Offsets = dict[str, int]
"""The next offset of each queue."""


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads queues as they grow. Lives on the driver as long as the query; a copy without state
    reads in tasks."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        self._given = dict(given)
        self._schema = schema
        self._named: list[QueueFiles] | None = None
        self._target: Offsets | None = None
        self._latest: Offsets | None = None

    @cached_property
    def _options(self) -> ReadOptions:
        return read_options(self._given, STREAM)

    @cached_property
    def _place(self) -> tuple[Storage, str]:
        return open_path(self._options)

    @cached_property
    def _reader(self) -> TaskReader:
        return task_reader(self._place[0], self._options, self._schema)

    # --- queues and their heads ---

    def _queues(self) -> list[QueueFiles]:
        """Return the existing queues; named ones must exist when a query starts, unless loss is not
        fatal."""
        options = self._options
        if self._named is not None:
            return self._named
        if options.queues is None:
            return select_queues(*self._place, options)
        if options.fail_on_data_loss:
            found = select_queues(*self._place, options)
            # A dead-letter queue exists from its first dead letter on.
            self._named = found if len(found) == len(options.queues) else None
            return found
        pattern = "|".join(map(re.escape, options.queues))
        return select_queues(*self._place, replace(options, queues=None, pattern=pattern))

    def _logs(self) -> dict[str, tuple[QueueFiles, Log]]:
        found = {}
        for files in self._queues():
            log = readable_log(self._place[0], files, self._options)
            if log is not None:
                found[files.queue] = (files, log)
        return found

    def _heads(self) -> dict[str, QueueHead]:
        """Return the heads of queues; for an unreadable one the log tells damage from a deleted
        queue."""
        found = {}
        for files in self._queues():
            head = read_head(self._place[0], files)
            if head is None:
                log = readable_log(self._place[0], files, self._options)
                head = None if log is None else log.head
            if head is not None:
                found[files.queue] = head
        return found

    # --- called by Spark on the driver ---

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return the size of a micro-batch: ``maxOffsetsPerTrigger``, else all there is. Raises
        OptionError."""
        # Spark's first call: report a wrong schema now, and not in a task.
        task_reader(self._place[0], self._options, self._schema)
        most = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def initialOffset(self) -> Offsets:  # noqa: N802 - Spark's name
        """Return the start of a new query. Raises SparkSourceError; not called when resuming from a
        checkpoint."""
        storage, options = self._place[0], self._options
        found = ranges_of(storage, self._queues(), options)
        return {each.files.queue: each.first for each in found}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Record the present heads: the query ends there."""
        self._target = {queue: head.committed for queue, head in self._heads().items()}

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:  # noqa: N802 - Spark's name
        """Return the end of the next micro-batch. Raises DataLoss for queues that are gone or
        shorter than what was read."""
        heads = self._heads()
        self._latest = {queue: head.committed for queue, head in heads.items()}
        for queue in start.keys() - heads.keys():
            self._lose(queue, f"it is gone; it was read up to offset {start[queue]}")
        begins = {
            queue: self._begin(queue, start.get(queue), head)
            for queue, head in heads.items()
            if self._target is None or queue in self._target or queue in start
        }
        backlogs = {
            queue: max(self._end_of(queue, heads[queue], begin) - begin, 0)
            for queue, begin in begins.items()
        }
        if isinstance(limit, ReadMaxRows):
            backlogs = shares(backlogs, limit.max_rows)
        return {queue: begin + backlogs[queue] for queue, begin in begins.items()}

    def _end_of(self, queue: str, head: QueueHead, begin: int) -> int:
        if self._target is None:
            return head.committed
        return min(self._target.get(queue, begin), head.committed)

    def _begin(self, queue: str, start: int | None, head: QueueHead) -> int:
        """Return where to continue; what retention removed is reported when the batch is planned,
        or is left out here."""
        if start is None:
            return head.start
        if start > head.committed:
            self._lose(queue, _shorter(start, head))
            return head.start
        return start if self._options.fail_on_data_loss else max(start, head.start)

    def _lose(self, queue: str, lost: str) -> None:
        lose(queue, lost, self._options, 0)

    def reportLatestOffset(self) -> Offsets | None:  # noqa: N802 - Spark's name
        """Return the heads last seen: a query's progress shows its lag."""
        return self._latest

    def partitions(self, start: Offsets, end: Offsets) -> list[InputPartition]:
        """Return the tasks of a micro-batch. Raises DataLoss."""
        storage, options = self._place[0], self._options
        logs = self._logs()
        found: list[QueueRange] = []
        for queue, stop in end.items():
            if queue not in logs:
                self._lose(queue, f"it is gone; offsets up to {stop - 1} were to be read")
                continue
            files, log = logs[queue]
            between = partial(self._between, queue, start.get(queue), stop)
            found.append(look(storage, files, log, options, between))
        return [TaskPartition(task) for task in plan_of(storage, found, options, {}).tasks]

    def _between(self, queue: str, start: int | None, stop: int, log: Log) -> tuple[int, int]:
        head = log.head
        first = head.start if start is None else start
        if first > stop or stop > head.committed:
            # The offsets belong to another queue of the same name.
            self._lose(queue, _shorter(max(first, stop), head))
            first, stop = head.start, min(stop, head.committed)
        if first < stop:
            first = kept(queue, log, first, self._options)
        return first, max(first, stop)

    # --- called in tasks ---

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a task's messages as Arrow batches."""
        return self._reader.read(partition)


def _shorter(start: int, head: QueueHead) -> str:
    what = f"it was read up to offset {start} and has {head.start} to {head.committed - 1} now"
    return f"{what}: it was created again, or its head is older than before"


def shares(backlogs: Mapping[str, int], most: int) -> Offsets:
    """Return the messages of each queue in a micro-batch of `most`, in proportion to its backlog.

    Each queue with a backlog gets at least one, as far as `most` goes.
    """
    total = sum(backlogs.values())
    if total <= most:
        return dict(backlogs)
    order = sorted((queue for queue in backlogs if backlogs[queue]), key=backlogs.__getitem__)
    found = dict.fromkeys(backlogs, 0)
    # The smallest first: the largest miss least what rounding up to one takes.
    for queue in order[-most:]:
        share = max(most * backlogs[queue] // total, 1)
        found[queue] = min(share, backlogs[queue])
        most -= found[queue]
        total -= backlogs[queue]
    return found

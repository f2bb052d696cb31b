"""Metadata in a broker's files as DataFrames: batches, segments, queues, consumer groups.

Read from heads, pages, footers, headers of batches and the files ``groups``; no message is decoded,
so a queue of a terabyte is examined in seconds. Rows of one queue are of one moment, those of
different queues of nearly the same one. Data that retention removes meanwhile is left out; damage
is an error unless ``failOnDataLoss`` is false.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy
import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import (
    BooleanType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from fluxmq.model.group_states import STREAM, ConsumerGroupState, QueueGroups
from fluxmq.model.segments import (
    FOOTER_BYTES,
    PAGE_BYTES,
    TIME_NONE,
    Footer,
    HeaderPage,
    SegmentError,
)
from fluxmq_spark.catalog import Log, QueueFiles, SegmentFile, read_log
from fluxmq_spark.errors import Damage, DataLoss, OptionError
from fluxmq_spark.headers import Headers, headers_of, time_at
from fluxmq_spark.options import ReadOptions
from fluxmq_spark.planning import open_path, readable_log, select_queues
from fluxmq_spark.schema import arrow_schema_of, check_names, check_schema
from fluxmq_spark.states import read_groups
from fluxmq_spark.storage import OpenFile, Storage

LOG: Final = logging.getLogger(__name__)

PARTITIONS_MAX: Final = 200
"""Maximum tasks of a view: they share queues and segments, most of which take a millisecond."""

ROWS_MAX: Final = 8192
"""Rows of a record batch, as Spark likes them."""

Fields = dict[str, tuple[DataType, bool]]

_BATCHES: Final[Fields] = {
    "queue": (StringType(), False),
    "segment": (StringType(), False),
    "position": (LongType(), False),
    "base_offset": (LongType(), False),
    "count": (LongType(), False),
    "first_time": (TimestampType(), False),
    "last_time": (TimestampType(), False),
    "bytes": (LongType(), False),
    "key_bytes": (LongType(), False),
    "property_bytes": (LongType(), False),
    "payload_bytes": (LongType(), False),
    "term": (LongType(), False),
    "flags": (IntegerType(), False),
    "payload_check": (StringType(), False),
}
_SEGMENTS: Final[Fields] = {
    "queue": (StringType(), False),
    "replication_group": (StringType(), False),
    "file": (StringType(), False),
    "base_offset": (LongType(), False),
    "next_offset": (LongType(), False),
    "count": (LongType(), False),
    "bytes": (LongType(), False),
    "created": (TimestampType(), False),
    "first_time": (TimestampType(), False),
    "last_time": (TimestampType(), False),
    "sealed": (BooleanType(), False),
    "hash": (StringType(), True),
}
_QUEUES: Final[Fields] = {
    "queue": (StringType(), False),
    "replication_group": (StringType(), False),
    "start": (LongType(), False),
    "committed": (LongType(), False),
    "count": (LongType(), False),
    "bytes": (LongType(), False),
    "segments": (LongType(), False),
    "first_time": (TimestampType(), True),
    "last_time": (TimestampType(), True),
}
_GROUPS: Final[Fields] = {
    "queue": (StringType(), False),
    "replication_group": (StringType(), False),
    "consumer_group": (StringType(), False),
    "mode": (StringType(), False),
    "filter": (StringType(), False),
    "members": (LongType(), False),
    "cursor": (LongType(), False),
    "floor": (LongType(), False),
    "ready": (LongType(), False),
    "pending": (LongType(), False),
    "dead": (LongType(), False),
    "lag_messages": (LongType(), False),
    "lag_seconds": (DoubleType(), False),
    "as_of": (TimestampType(), False),
}
_VIEWS: Final = {
    "batches": _BATCHES,
    "segments": _SEGMENTS,
    "queues": _QUEUES,
    "groups": _GROUPS,
}

Row = dict[str, object]
T = TypeVar("T")


def view_schema(view: str, columns: Sequence[str] | None = None) -> StructType:
    """Return the schema of a view, or of some of its columns in the order given. Raises
    OptionError."""
    fields = _VIEWS[view]
    names = list(fields) if columns is None else columns
    mistakes = check_names(names, list(fields))
    if mistakes:
        raise OptionError(f"options: {'; '.join(mistakes)}")
    return StructType([StructField(name, *fields[name]) for name in names])


def view_reader(view: str, options: ReadOptions, schema: StructType) -> DataSourceReader:
    """Return the reader of a view with a user's schema, or `view_schema`'s. Raises OptionError for
    another one."""
    check_schema(schema, view_schema(view), f": view={view}")
    return ViewReader(view, options, schema)


@dataclass
class ViewPartition(InputPartition):
    """Work of one task: queues or some of their segments. `start`: first offset a head keeps."""

    queues: tuple[QueueFiles, ...] = ()
    segments: tuple[tuple[QueueFiles, SegmentFile, int], ...] = ()


class ViewReader(DataSourceReader):
    """Reads one view; pickled for executors."""

    def __init__(self, view: str, options: ReadOptions, schema: StructType) -> None:
        self._view = view
        self._options = options
        self._names = schema.names
        self._schema = arrow_schema_of(schema)

    def partitions(self) -> list[InputPartition]:
        """Return the tasks. Raises SparkSourceError."""
        storage, root = open_path(self._options)
        queues = select_queues(storage, root, self._options)
        if self._view != "batches":
            return [ViewPartition(queues=part) for part in _shares(queues)]
        logs = [(files, readable_log(storage, files, self._options)) for files in queues]
        segments = [
            (files, segment, log.head.start)
            for files, log in logs
            if log is not None
            for segment in log.segments
        ]
        return [ViewPartition(segments=part) for part in _shares(segments)]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition. Raises SparkSourceError."""
        if not isinstance(partition, ViewPartition):
            return
        storage, _ = open_path(self._options)
        if self._view == "batches":
            for files, segment, start in partition.segments:
                yield from self._batches(storage, files, segment, start)
            return
        rows_of = _ROWS[self._view]
        rows: list[Row] = []
        for files in partition.queues:
            for row in rows_of(_Look(storage, files, self._options)):
                rows.append(row)
                if len(rows) == ROWS_MAX:
                    yield pa.RecordBatch.from_pylist(rows, schema=self._schema)
                    rows.clear()
        if rows:
            yield pa.RecordBatch.from_pylist(rows, schema=self._schema)

    def _batches(
        self, storage: Storage, files: QueueFiles, segment: SegmentFile, start: int
    ) -> Iterator[pa.RecordBatch]:
        skip = not self._options.fail_on_data_loss
        try:
            for headers in headers_of(storage, files.queue, segment, skip_damage=skip):
                for part in _parts(headers, start, segment.next_offset):
                    columns = _columns(files.queue, segment.path, part)
                    arrays = [
                        columns[name]().cast(self._schema.field(name).type) for name in self._names
                    ]
                    yield pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        except FileNotFoundError:
            _gone(storage, files, segment, skip=skip)


def _shares(items: Sequence[T]) -> list[tuple[T, ...]]:
    """Return the items, in order, as PARTITIONS_MAX parts at most."""
    size = max(1, -(-len(items) // PARTITIONS_MAX))
    return [tuple(items[at : at + size]) for at in range(0, len(items), size)]


def _gone(storage: Storage, files: QueueFiles, segment: SegmentFile, *, skip: bool) -> None:
    """Handle a missing segment file: unless removed by retention, it is lost. Raises DataLoss."""
    log = read_log(storage, files)
    if log is not None and log.head.start >= segment.next_offset:
        return
    what = f"queue {files.queue!r}: {segment.path} is missing, although the head keeps its messages"
    if not skip:
        raise DataLoss(f"{what}; set failOnDataLoss=false to skip it")
    LOG.warning("%s; skipped", what)


# --- batches ---------------------------------------------------------------------------------------------------------


def _parts(headers: Headers, start: int, stop: int) -> Iterator[Headers]:
    """Yield headers of batches with messages from `start` to before `stop`, ROWS_MAX at a time."""
    table = headers.headers
    first = table["base_offset"].astype(numpy.int64)
    wanted = (first + table["count"] > start) & (first < stop)
    positions, table = headers.positions[wanted], table[wanted]
    for at in range(0, len(table), ROWS_MAX):
        yield Headers(positions[at : at + ROWS_MAX], table[at : at + ROWS_MAX])


def _columns(queue: str, path: str, part: Headers) -> dict[str, Callable[[], pa.Array]]:
    """Return functions that make each column of the view of batches."""
    table = part.headers

    def number(name: str) -> Callable[[], pa.Array]:
        return lambda: pa.array(table[name].astype(numpy.int64))

    times = pa.timestamp("us", tz="UTC")
    return {
        "queue": lambda: pa.repeat(queue, len(table)),
        "segment": lambda: pa.repeat(path, len(table)),
        "position": lambda: pa.array(part.positions),
        "base_offset": number("base_offset"),
        "count": number("count"),
        "first_time": lambda: pa.array(table["base_time"].astype(numpy.int64)).cast(times),
        "last_time": lambda: pa.array(
            table["base_time"].astype(numpy.int64) + table["last_delta"]
        ).cast(times),
        "bytes": number("length"),
        "key_bytes": number("key_bytes"),
        "property_bytes": number("property_bytes"),
        "payload_bytes": number("payload_bytes"),
        "term": number("term"),
        "flags": number("flags"),
        "payload_check": lambda: pa.array(
            [f"{check:016x}" for check in table["payload_check"].tolist()], pa.string()
        ),
    }


# --- segments, queues, groups ----------------------------------------------------------------------------------------


class _Look:
    """A queue while its rows are made: its log, and the handling of damage."""

    def __init__(self, storage: Storage, files: QueueFiles, options: ReadOptions) -> None:
        self.storage = storage
        self.files = files
        self.skip = not options.fail_on_data_loss
        self.log = readable_log(storage, files, options)

    def again(self) -> Log | None:
        """Read the head again after a file was missing; None if unexplained. Raises DataLoss."""
        before = self.log
        self.log = read_log(self.storage, self.files)
        if before is not None and self.log is not None and self.log.head.start > before.head.start:
            return self.log
        what = (
            f"queue {self.files.queue!r}: files are missing, although its head keeps their messages"
        )
        if not self.skip:
            raise DataLoss(f"{what}; set failOnDataLoss=false to skip them")
        LOG.warning("%s; skipped", what)
        return None

    def damaged(self, damage: Damage) -> None:
        """Raise the damage, or warn and continue."""
        if not self.skip:
            raise damage
        LOG.warning("queue %r: left out of the view: %s", self.files.queue, damage)

    def time_at(self, offset: int) -> int | None:
        """Return a message's time; None when it is unknown and that is to be skipped."""
        while self.log is not None and self.log.head.start <= offset < self.log.head.committed:
            try:
                return time_at(self.storage, self.log, offset)
            except Damage as damage:
                self.damaged(damage)
                return None
            except FileNotFoundError:
                if self.again() is None:
                    return None
        return None

    @property
    def common(self) -> Row:
        """Columns that identify the queue."""
        return {"queue": self.files.queue, "replication_group": self.files.group}


def _segment_rows(look: _Look) -> Iterator[Row]:
    if look.log is None:
        return
    for segment in look.log.segments:
        try:
            row = _segment_row(look, segment)
        except FileNotFoundError:
            _gone(look.storage, look.files, segment, skip=look.skip)
            continue
        except Damage as damage:
            look.damaged(damage)
            continue
        yield row


def _segment_row(look: _Look, segment: SegmentFile) -> Row:
    assert look.log is not None, "the segment is of the log"
    with look.storage.open(segment.path) as file:
        try:
            page = HeaderPage.decode(_read(file, 0, PAGE_BYTES))
        except SegmentError as error:
            raise Damage(segment.path, 0, str(error)) from None
        if (page.queue, page.base_offset) != (look.files.queue, segment.base_offset):
            what = f"the page is of queue {page.queue!r} from offset {page.base_offset}"
            raise Damage(segment.path, 0, what)
        end = file.size() - FOOTER_BYTES if segment.end < 0 else segment.end
        footer: Footer | None = None
        try:
            footer = Footer.decode(_read(file, end, FOOTER_BYTES))
        except SegmentError as error:
            if segment.sealed:
                raise Damage(segment.path, end, str(error)) from None
    # Read beyond the head: a growing segment that is sealed meanwhile may end elsewhere.
    whole = footer is not None and footer.length == end
    if segment.sealed and footer is not None and footer.last_offset + 1 != segment.next_offset:
        what = f"the segment ends at offset {footer.last_offset}, the next one begins elsewhere"
        raise Damage(segment.path, end, what)
    return {
        **look.common,
        "file": segment.path,
        "base_offset": segment.base_offset,
        "next_offset": segment.next_offset,
        "count": segment.next_offset - segment.base_offset,
        "bytes": end + FOOTER_BYTES if whole else end,
        "created": page.created,
        "first_time": footer.first_time if whole and footer else page.created,
        "last_time": footer.last_time if whole and footer else look.log.head.time,
        "sealed": whole,
        "hash": footer.hash.hex() if whole and footer else None,
    }


def _read(file: OpenFile, position: int, size: int) -> bytes:
    target = bytearray(size)
    return bytes(memoryview(target)[: file.read_into(memoryview(target), max(position, 0))])


def _queue_rows(look: _Look) -> Iterator[Row]:
    first = look.time_at(look.log.head.start) if look.log is not None else None
    log = look.log
    start, committed = (log.head.start, log.head.committed) if log is not None else (0, 0)
    segments = log.segments if log is not None else ()
    sizes = look.storage.sizes(look.files.directory) if segments else {}
    latest = log.head.time if log is not None and committed > start else TIME_NONE
    yield {
        **look.common,
        "start": start,
        "committed": committed,
        "count": committed - start,
        "bytes": sum(
            sizes.get(each.path.rpartition("/")[2], 0) if each.end < 0 else each.end
            for each in segments
        ),
        "segments": len(segments),
        "first_time": first,
        "last_time": None if latest == TIME_NONE else latest,
    }


def _group_rows(look: _Look) -> Iterator[Row]:
    try:
        groups = read_groups(look.storage, look.files)
    except Damage as damage:
        look.damaged(damage)
        return
    if groups is None:
        LOG.warning(
            "queue %r: the broker has not written where its consumer groups are", look.files.queue
        )
        return
    for group in groups.groups:
        yield _group_row(look, groups, group)


def _group_row(look: _Look, groups: QueueGroups, group: ConsumerGroupState) -> Row:
    """Return a group's row. All counts are of the file's moment, and so consistent."""
    ready = max(0, groups.next_offset - max(group.cursor, groups.start))
    unsettled = ready if group.mode == STREAM else ready + group.pending_messages
    return {
        **look.common,
        "consumer_group": group.name,
        "mode": group.mode,
        "filter": group.filter,
        "members": group.members,
        "cursor": group.cursor,
        "floor": group.floor,
        "ready": ready,
        "pending": group.pending_messages,
        "dead": group.dead_messages,
        "lag_messages": unsettled,
        "lag_seconds": _lag_seconds(look, groups, group.floor) if unsettled else 0.0,
        "as_of": groups.time,
    }


def _lag_seconds(look: _Look, groups: QueueGroups, floor: int) -> float:
    """Return the time from the oldest unsettled to the newest message, as far as known."""
    if look.log is None:
        return 0.0
    head = look.log.head
    newest = min(groups.next_offset, head.committed) - 1
    oldest = look.time_at(max(floor, head.start))
    latest = head.time if newest == head.committed - 1 else look.time_at(newest)
    if oldest is None or latest is None:
        return 0.0
    return max(0, latest - oldest) / 1_000_000


_ROWS: Final[dict[str, Callable[[_Look], Iterator[Row]]]] = {
    "segments": _segment_rows,
    "queues": _queue_rows,
    "groups": _group_rows,
}

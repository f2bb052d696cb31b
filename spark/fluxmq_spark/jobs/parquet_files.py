"""Record batches into Parquet files by queue and day, in the executors: rows never pass through the
JVM.

A file gets rows until it has enough of them; written files are returned as values, which the driver
puts into a manifest (``fluxmq_spark.exports``). Files are synced before they are reported.
"""

from __future__ import annotations

import contextlib
import os
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, timedelta
from typing import Any, Final

import numpy
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from fluxmq_spark.exports import SUFFIX, ExportDirectory, ExportedFile, partition_of

DAY_US: Final = 86_400_000_000

COMPRESSIONS: Final = ("zstd", "snappy", "lz4", "gzip", "none")

ROW_GROUP_ROWS: Final = 1 << 18
ROW_GROUP_BYTES: Final = 32 << 20
"""Buffered bytes at which a row group is written: readers skip by row groups, and large ones
compress better."""

OPEN_FILES_MAX: Final = 16
"""Maximum open files of a task: one for most tasks, two around midnight. More means a clock that
jumps."""


@dataclass(slots=True)
class _Part:
    """A file being written."""

    path: str
    queue: str
    day: int
    sink: Any
    writer: Any
    rows: int = 0
    waiting: list[pa.RecordBatch] = field(default_factory=list)
    waiting_rows: int = 0
    waiting_bytes: int = 0
    offsets: list[int] = field(default_factory=list)
    times: list[int] = field(default_factory=list)


class PartWriter:
    """Writes the rows that one task reads. `run` and `task` make the names of its files unique."""

    def __init__(
        self,
        directory: ExportDirectory,
        schema: pa.Schema,
        *,
        run: str,
        task: str,
        compression: str,
        rows_per_file: int,
    ) -> None:
        self.directory = directory
        self.filesystem = directory.open()
        self.schema = schema
        self.prefix = f"part-{run}-{task}"
        self.compression = compression
        self.rows_per_file = rows_per_file
        self.open_parts: OrderedDict[tuple[str, int], _Part] = OrderedDict()
        self.written: list[ExportedFile] = []
        self.count = 0

    def add(self, queue: str, batch: pa.RecordBatch) -> None:
        """Write a batch's rows; it has columns ``offset`` and ``timestamp`` and all of the
        schema."""
        times = batch.column("timestamp").cast(pa.int64()).to_numpy(zero_copy_only=False)
        days = times // DAY_US
        ends = [*(numpy.flatnonzero(numpy.diff(days)) + 1).tolist(), len(days)]
        columns = batch.select(self.schema.names)
        first = 0
        for end in ends:
            if end > first:
                self._add_day(queue, int(days[first]), columns.slice(first, end - first))
            first = end

    def _add_day(self, queue: str, day: int, batch: pa.RecordBatch) -> None:
        while batch.num_rows:
            part = self._part(queue, day)
            piece = batch.slice(0, self.rows_per_file - part.rows)
            batch = batch.slice(piece.num_rows)
            self._append(part, piece)
            if part.rows >= self.rows_per_file:
                self._close(self.open_parts.pop((queue, day)))

    def _append(self, part: _Part, piece: pa.RecordBatch) -> None:
        for bounds, name in ((part.offsets, "offset"), (part.times, "timestamp")):
            values = piece.column(name).cast(pa.int64()).to_numpy(zero_copy_only=False)
            low, high = int(values.min()), int(values.max())
            bounds[:] = [min(low, *bounds[:1]), max(high, *bounds[1:])] if bounds else [low, high]
        part.rows += piece.num_rows
        part.waiting.append(piece)
        part.waiting_rows += piece.num_rows
        part.waiting_bytes += piece.nbytes
        if part.waiting_rows >= ROW_GROUP_ROWS or part.waiting_bytes >= ROW_GROUP_BYTES:
            _flush(part)

    def _part(self, queue: str, day: int) -> _Part:
        part = self.open_parts.get((queue, day))
        if part is not None:
            self.open_parts.move_to_end((queue, day))
            return part
        if len(self.open_parts) >= OPEN_FILES_MAX:
            self._close(self.open_parts.popitem(last=False)[1])
        text = (date(1970, 1, 1) + timedelta(days=day)).isoformat()
        where = f"{partition_of(queue)}/date={text}"
        path = f"{where}/{self.prefix}-{self.count}{SUFFIX}"
        self.count += 1
        self.filesystem.makedirs(self.directory.path(where), exist_ok=True)
        sink = self.filesystem.open(self.directory.path(path), "wb")
        schema = self.schema.with_metadata({"fluxmq.queue": queue})
        writer = pq.ParquetWriter(sink, schema, compression=self.compression)
        part = self.open_parts[queue, day] = _Part(path, queue, day, sink, writer)
        return part

    def _close(self, part: _Part) -> None:
        _flush(part)
        part.writer.close()
        size = part.sink.tell()
        if self.directory.local:
            part.sink.flush()
            os.fsync(part.sink.fileno())
        part.sink.close()
        text = (date(1970, 1, 1) + timedelta(days=part.day)).isoformat()
        self.written.append(
            ExportedFile(part.path, part.queue, text, part.rows, size, *part.offsets, *part.times)
        )

    def finish(self) -> list[ExportedFile]:
        """Close all files; return those written."""
        while self.open_parts:
            self._close(self.open_parts.popitem(last=False)[1])
        return self.written

    def give_up(self) -> None:
        """Close open files and ignore errors: the task failed, and its files belong to nothing."""
        for part in self.open_parts.values():
            # A full disk makes closing fail as well, and the first error is the one to report.
            with contextlib.suppress(OSError, pa.ArrowException):
                part.writer.close()
                part.sink.close()
        self.open_parts.clear()


def _flush(part: _Part) -> None:
    if part.waiting:
        part.writer.write_table(pa.Table.from_batches(part.waiting), row_group_size=ROW_GROUP_ROWS)
        part.waiting, part.waiting_rows, part.waiting_bytes = [], 0, 0


def result_row(info: ExportedFile) -> Mapping[str, object]:
    """Return a file as the row that a task returns."""
    return {name: getattr(info, name) for name in RESULT_FIELDS}


RESULT_FIELDS: Final = tuple(ExportedFile.__dataclass_fields__)

"""Work of executors on segments whose rows need not pass through the JVM: checking, or writing
Parquet.

The driver makes one task for each segment's part of a range; a task reads it with the source's own
scan and returns a few values as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa  # type: ignore[import-untyped]

from fluxmq_spark.errors import DataLoss
from fluxmq_spark.exports import ExportDirectory, ExportedFile
from fluxmq_spark.jobs.arguments import Selection
from fluxmq_spark.jobs.parquet_files import PartWriter
from fluxmq_spark.jobs.ranges import QueueRange
from fluxmq_spark.scan import SegmentRange, Statistics, scan
from fluxmq_spark.schema import arrow_schema
from fluxmq_spark.storage import Storage, storage_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RESULT: Final = pa.schema([pa.field("result", pa.string())])
RESULT_DDL: Final = "result string"

Work = Callable[[int], object]


def segment_ranges_of(ranges: Iterable[QueueRange]) -> list[SegmentRange]:
    """Return the segment range to read of each segment that has messages of a range."""
    return [
        SegmentRange(
            queue=each.queue,
            path=segment.path,
            index_path=segment.index_path,
            base_offset=segment.base_offset,
            segment_next=segment.next_offset,
            end=segment.end,
            sealed=segment.sealed,
            first=max(each.first, segment.base_offset),
            stop=min(each.stop, segment.next_offset),
        )
        for each in ranges
        for segment in each.segments
        if max(each.first, segment.base_offset) < min(each.stop, segment.next_offset)
    ]


def run_tasks(spark: SparkSession, count: int, work: Work) -> list[Any]:
    """Run the work for the numbers from 0 in a task each; return the results, decoded from JSON, in
    any order."""
    if count == 0:
        return []

    def do(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                text = json.dumps(work(number))
                yield pa.RecordBatch.from_pydict({"result": [text]}, schema=RESULT)

    rows = spark.range(0, count, 1, count).mapInArrow(do, RESULT_DDL).collect()
    return [json.loads(row["result"]) for row in rows]


# --- checking --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Checked:
    """Result of checking every message of a segment range. `gone`: the file is missing."""

    queue: str
    path: str
    first: int
    stop: int
    rows: int
    damage: tuple[str, ...]
    gone: bool = False


@dataclass(frozen=True, slots=True)
class Check:
    """Checks segment ranges; pickled for executors."""

    storage: Storage
    segment_ranges: Sequence[SegmentRange]

    def __call__(self, number: int) -> object:
        """Check one of the segment ranges; return its defects as JSON takes them."""
        segment_range = self.segment_ranges[number]
        statistics = Statistics()
        rows, gone = 0, False
        # Includes a column after the headers, so that the contents are verified against their
        # check.
        names = ["offset", "payload"]
        try:
            for batch in scan(
                *(self.storage, segment_range, names, arrow_schema(names)),
                verify=True,
                fail_on_data_loss=False,
                statistics=statistics,
            ):
                rows += batch.num_rows
        except DataLoss:
            gone = True
        checked = Checked(
            *(
                segment_range.queue,
                segment_range.path,
                segment_range.first,
                segment_range.stop,
                rows,
            ),
            tuple(statistics.damage),
            gone or not self.storage.exists(segment_range.path),
        )
        return asdict(checked)


def check_segments(
    spark: SparkSession, selection: Selection, ranges: Sequence[QueueRange]
) -> list[Checked]:
    """Verify every message of the ranges against its check; results in the order of queue and
    offset."""
    storage, _ = storage_of(selection.path, selection.filesystem())
    segment_ranges = segment_ranges_of(ranges)
    found = run_tasks(spark, len(segment_ranges), Check(storage, segment_ranges))
    checked = [Checked(**{**each, "damage": tuple(each["damage"])}) for each in found]
    return sorted(checked, key=lambda each: (each.queue, each.first))


# --- exporting -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Export:
    """Writes segment ranges as Parquet; pickled for executors. `lists`: the segment ranges of each
    task."""

    storage: Storage
    lists: Sequence[Sequence[SegmentRange]]
    directory: ExportDirectory
    schema: pa.Schema
    run: str
    compression: str
    rows_per_file: int
    fail_on_data_loss: bool
    attempt: Callable[[], str]

    def __call__(self, number: int) -> object:
        """Return the files of one task, and the number of unavailable offsets, as JSON takes
        them."""
        statistics = Statistics()
        writer = PartWriter(
            *(self.directory, self.schema),
            run=self.run,
            task=f"{number}-{self.attempt()}",
            compression=self.compression,
            rows_per_file=self.rows_per_file,
        )
        lost: dict[str, int] = {}
        try:
            for segment_range in self.lists[number]:
                rows = 0
                for batch in scan(
                    *(self.storage, segment_range, self.schema.names, self.schema),
                    verify=True,
                    fail_on_data_loss=self.fail_on_data_loss,
                    statistics=statistics,
                ):
                    rows += batch.num_rows
                    writer.add(segment_range.queue, batch)
                missing = segment_range.stop - segment_range.first - rows
                lost[segment_range.queue] = lost.get(segment_range.queue, 0) + missing
            files = writer.finish()
        finally:
            writer.give_up()
        return {
            "files": [asdict(each) for each in files],
            "lost": lost,
            "damage": statistics.damage,
        }


def attempt_number() -> str:
    """Return a name unique to this attempt at a task, even when Spark runs two at once."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return "0" if context is None else str(context.taskAttemptId())


def files_of(results: Iterable[Any]) -> list[ExportedFile]:
    """Return the files that tasks wrote."""
    return [ExportedFile(**each) for result in results for each in result["files"]]

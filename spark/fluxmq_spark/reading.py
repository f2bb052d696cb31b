"""Execution of a task: reads its segment ranges one after the other, and counts. Shared by batches
and streams."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from fluxmq_spark.errors import OptionError
from fluxmq_spark.metrics import write_statistics
from fluxmq_spark.options import ReadOptions
from fluxmq_spark.partitions import Task
from fluxmq_spark.scan import Statistics, scan
from fluxmq_spark.schema import (
    HEADER_COLUMNS,
    STATE_COLUMN,
    arrow_schema_of,
    check_schema,
    message_schema,
)
from fluxmq_spark.storage import Storage


class TaskPartition(InputPartition):
    """A task as Spark sends it to an executor."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.task = task


@dataclass(frozen=True)
class TaskReader:
    """Reads tasks into batches of a schema; pickled for executors."""

    storage: Storage
    schema: pa.Schema
    verify: bool
    fail_on_data_loss: bool
    metrics_path: str

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition. Raises Damage and DataLoss if they are fatal."""
        # Spark makes a partition without a value of a plan without partitions.
        if not isinstance(partition, TaskPartition):
            return
        statistics = Statistics()
        try:
            for segment_range in partition.task.segment_ranges:
                yield from scan(
                    *(self.storage, segment_range, self.schema.names, self.schema),
                    verify=self.verify,
                    fail_on_data_loss=self.fail_on_data_loss,
                    statistics=statistics,
                    selection=partition.task.selections.get(segment_range.queue),
                )
        except GeneratorExit:
            self._count(partition, statistics)
            raise
        self._count(partition, statistics)

    def _count(self, partition: TaskPartition, statistics: Statistics) -> None:
        if self.metrics_path:
            queues = [segment_range.queue for segment_range in partition.task.segment_ranges]
            write_statistics(self.metrics_path, statistics, queues)


def task_reader(storage: Storage, options: ReadOptions, schema: StructType) -> TaskReader:
    """Return the reader of tasks with these options. Raises OptionError for a schema that messages
    do not have."""
    columns = options.all_columns()
    left_out = []
    if not options.include_headers:
        left_out.append(f"; includeHeaders=false leaves out {' and '.join(HEADER_COLUMNS)}")
    if not options.group:
        left_out.append(f"; {STATE_COLUMN} needs group")
    check_schema(schema, message_schema(columns), "".join(left_out))
    check_columns(options, schema)
    return TaskReader(
        storage,
        arrow_schema_of(schema),
        options.verify_checksums,
        options.fail_on_data_loss,
        options.metrics_path,
    )


def check_columns(options: ReadOptions, schema: StructType) -> None:
    """Raise OptionError when a schema is given and ``columns`` names others, or in another
    order."""
    if options.columns is not None and list(options.columns) != schema.names:
        both = f"{', '.join(options.columns)}, and the schema {', '.join(schema.names)}"
        raise OptionError(f"columns are {both}; give one of them")

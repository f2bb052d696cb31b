"""``df.write.format("fluxmq")``: every task publishes its partition through AMQP and waits for all
confirms.

Spark repeats a failed task, and what it published before is kept once (`outgoing`). Published
messages stay even if the job as a whole fails: a queue has no transactions across connections.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from fluxmq_spark.outgoing import Target, publish_batches, target_of


@dataclass(frozen=True)
class Published(WriterCommitMessage):
    """Messages that one task published, including duplicates that queues dropped: AMQP does not
    tell."""

    rows: int


class Writer(DataSourceArrowWriter):
    """Publishes a DataFrame. Created on the driver, which gives the job its name, and copied to the
    tasks."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._job = target.producer or str(uuid.uuid4())

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Published:
        """Publish a partition. Raises PublishError, and SparkSourceError for an invalid row."""
        context = TaskContext.get()
        partition = 0 if context is None else context.partitionId()
        return Published(publish_batches(self._target, f"{self._job}/{partition}", iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Do nothing: each task has had everything confirmed."""

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Do nothing: consumers may have taken what was published."""


def writer_of(options: Mapping[str, str], schema: StructType, overwrite: bool) -> Writer:
    """Return the writer of a DataFrame with this schema. Raises OptionError with every mistake."""
    return Writer(target_of(options, schema, overwrite))

"""``df.write.format("fluxmq")``: every task publishes its partition through AMQP and waits until all of it is safe.

A task that fails is run again by Spark, and what it published before is kept once (`outgoing`). What was published stays
where the job as a whole fails: a queue has no transactions over connections.
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
    """What one task published; those that queues had already are among them, AMQP does not tell which."""

    rows: int


class Writer(DataSourceArrowWriter):
    """Publishes a DataFrame. Made on the driver, which gives the job its name, and copied to the tasks."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._job = target.producer or str(uuid.uuid4())

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Published:
        """Publish a partition. Raises PublishError, and SparkSourceError for a row that is no message."""
        context = TaskContext.get()
        partition = 0 if context is None else context.partitionId()
        return Published(publish_batches(self._target, f"{self._job}/{partition}", iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Nothing is left to do: each task has had everything confirmed."""

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Nothing can be done: consumers may have taken what was published."""


def writer_of(options: Mapping[str, str], schema: StructType, overwrite: bool) -> Writer:
    """The writer of a DataFrame with this schema. Raises OptionError with every mistake."""
    return Writer(target_of(options, schema, overwrite))

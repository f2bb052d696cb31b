"""``df.writeStream.format("fluxmq")``: tasks stage their rows, the driver publishes each
micro-batch, exactly once.

A task does not know its micro-batch, so only the commit on the driver can name rows the same when
they come again (`staging`).
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from fluxmq_spark.errors import OptionError
from fluxmq_spark.outgoing import Target, messages_of, publish_batches, target_of
from fluxmq_spark.staging import Ledger, Part, Staging

STAGING_NAME: Final = "fluxmq-staging"
"""Default staging directory in the checkpoint, without option stagingPath."""

_OTHERS: Final = ("stagingPath", "storageOptions", "checkpointLocation", "queryName")
"""Options that are not the writer's; the last two are Spark's own."""


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """Rows that one task staged."""

    part: Part


class StreamWriter(DataSourceStreamArrowWriter):
    """Publishes a stream. Spark makes one on the driver for the tasks of each micro-batch, and
    another for its commit."""

    def __init__(self, target: Target, staging: Staging) -> None:
        self._target = target
        self._staging = staging

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stage a partition. Raises SparkSourceError for an invalid row, before any of the batch is
        published."""
        context = TaskContext.get()
        partition = 0 if context is None else context.partitionId()
        return Staged(self._staging.write_part(partition, self._checked(iterator)))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Publish what the tasks staged, unless the batch was begun before. Raises PublishError."""

        def publish(producer: str, batches: Iterator[pa.RecordBatch]) -> int:
            return publish_batches(self._target, producer, batches)

        producer = self._target.producer or str(uuid.uuid4())
        Ledger(self._staging).commit(batchId, _parts(messages), producer, publish)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Remove what the tasks staged, unless a commit of it has begun."""
        Ledger(self._staging).abort(batchId, _parts(messages))

    def _checked(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows; all rows of a batch are validated before it is passed on."""
        row = 0
        for batch in batches:
            row += sum(1 for _ in messages_of([batch], self._target.routing_key, row))
            yield batch


def _parts(messages: Sequence[WriterCommitMessage | None]) -> list[Part]:
    return [each.part for each in messages if isinstance(each, Staged)]


def stream_writer_of(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> StreamWriter:
    """Return the writer of a stream with this schema. Raises OptionError."""
    target = target_of(options, schema, overwrite, others=_OTHERS)
    given = {name.lower(): value for name, value in options.items()}
    path = given.get("stagingpath", "")
    checkpoint = given.get("checkpointlocation", "")
    if not path and not checkpoint:
        raise OptionError(
            "writing to FluxMQ: option stagingPath is missing: a directory that driver and executors reach, "
            "needed where the query has no option checkpointLocation"
        )
    try:
        storage = json.loads(given.get("storageoptions", "{}"))
    except ValueError:
        storage = None
    if not isinstance(storage, dict):
        raise OptionError("writing to FluxMQ: option storageOptions is not a JSON object")
    return StreamWriter(
        target, Staging(path or f"{checkpoint.rstrip('/')}/{STAGING_NAME}", storage)
    )

"""A Spark source that reads segments message by message: what the columnar reader is measured against.

It is written as one would write it first: a batch at a time by ``fluxmq.model.batches``, a tuple for each message. Property
blocks are remembered, as publishers repeat them.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from fluxmq.model.batches import BatchMessage, columns
from fluxmq.model.properties import PropertyKind, decode
from fluxmq.model.segments import FOOTER_BYTES, PAGE_BYTES, HeaderPage
from fluxmq_spark.block_texts import name_of, text_of
from fluxmq_spark.schema import column_names, message_schema

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Said = tuple[dict[str, str], dict[str, str], str | None, str | None]


class SegmentPartition(InputPartition):
    """One sealed segment."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


class RowSource(DataSource):
    """``format("fluxmq-rows")``: the sealed segments of a queue's directory, and at most ``segments`` of them."""

    @classmethod
    def name(cls) -> str:
        """Return the name that the format has."""
        return "fluxmq-rows"

    def schema(self) -> StructType:
        """Return all columns of messages."""
        return message_schema(column_names())

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what reads them."""
        return RowReader(str(self.options["path"]), int(self.options["segments"]))


class RowReader(DataSourceReader):
    """Yields a tuple for each message."""

    def __init__(self, directory: str, segments: int) -> None:
        self._directory = directory
        self._segments = segments

    def partitions(self) -> list[InputPartition]:
        """Return a partition for each segment."""
        paths = sorted(Path(self._directory).glob("*.seg"))[: self._segments]
        return [SegmentPartition(str(path)) for path in paths]

    def read(self, partition: InputPartition) -> Iterator[tuple[object, ...]]:
        """Yield a segment's messages."""
        assert isinstance(partition, SegmentPartition)
        data = memoryview(Path(partition.path).read_bytes())
        queue = HeaderPage.decode(bytes(data[:PAGE_BYTES])).queue
        position, end = PAGE_BYTES, len(data) - FOOTER_BYTES
        while position < end:
            batch = columns(data, position)
            for offset, message in enumerate(batch.messages(), batch.header.base_offset):
                yield _row(queue, offset, message)
            position += batch.header.length


def _row(queue: str, offset: int, message: BatchMessage) -> tuple[object, ...]:
    headers, properties, publisher, exchange = _said(message.properties)
    key = message.key.decode("utf-8", "replace")
    address = f"{exchange}/{key}" if exchange else key
    payload = message.payload
    return (
        *(queue, offset, _moment(message.time_us), address, key),
        *(headers, properties, payload, publisher),
    )


def _moment(time_us: int) -> datetime:

    return EPOCH + timedelta(microseconds=time_us)


@lru_cache(maxsize=1024)
def _said(block: bytes) -> Said:
    items = decode(block)
    last = {item.kind: text_of(item) for item in items}
    others = [
        item for item in items if item.kind not in (PropertyKind.HEADER, PropertyKind.PUBLISHER)
    ]
    return (
        {name_of(item): text_of(item) for item in items if item.kind is PropertyKind.HEADER},
        {name_of(item): text_of(item) for item in others},
        last.get(PropertyKind.PUBLISHER),
        last.get(PropertyKind.EXCHANGE),
    )

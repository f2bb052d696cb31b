"""Segment files made batch by batch, and their rows as the definition of the format has them, one message at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]

from fluxmq.model.batches import BatchMessage, columns, encode
from fluxmq.model.properties import PropertyKind, decode
from fluxmq.model.segments import (
    INDEX_CHAIN_START,
    Footer,
    HeaderPage,
    chain,
    chain_start,
    index_chain,
    index_entry,
    index_name,
    index_trailer,
    segment_name,
)
from fluxmq_spark.block_texts import name_of, text_of
from fluxmq_spark.scan import SegmentRange, Selection, Statistics, scan
from fluxmq_spark.storage import LocalStorage, Storage

QUEUE = "orders"
TEXTS = pa.map_(pa.string(), pa.field("value", pa.string(), nullable=False))
SCHEMA = pa.schema(
    [
        pa.field("queue", pa.string(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("address", pa.string(), nullable=False),
        pa.field("key", pa.string(), nullable=False),
        pa.field("headers", TEXTS, nullable=False),
        pa.field("properties", TEXTS, nullable=False),
        pa.field("payload", pa.binary(), nullable=False),
        pa.field("publisher", pa.string()),
        pa.field("state", pa.string(), nullable=False),
    ]
)
ALL = tuple(SCHEMA.names[:-1])

Row = dict[str, object]


@dataclass
class SegmentOnDisk:
    """A segment that was written: its bytes, where its batches begin, and its rows by definition."""

    segment_range: SegmentRange
    data: bytes
    index: bytes
    positions: list[int]
    bases: list[int]
    rows: list[Row]

    @property
    def path(self) -> Path:
        """The segment's file."""
        return Path(self.segment_range.path)

    def batch_at(self, position: int) -> int:
        """The number of the batch in which a byte is."""
        return sum(1 for start in self.positions if start <= position) - 1

    def damage(self, changes: dict[int, int]) -> None:
        """Write the file with other bytes at some positions."""
        damaged = bytearray(self.data)
        for position, byte in changes.items():
            damaged[position] = byte
        self.path.write_bytes(damaged)


def write_segment(
    directory: Path,
    batches: Sequence[Sequence[BatchMessage]],
    *,
    base: int = 0,
    queue: str = QUEUE,
    every: int = 1,
    sealed: bool = True,
    rows: bool = True,
) -> SegmentOnDisk:
    """Write a segment of these batches, with an index entry for each `every`-th of them; `rows`: whether to tell them."""
    page = HeaderPage(queue, base, batches[0][0].time_us).encode()
    data, entries, check = bytearray(page), b"", INDEX_CHAIN_START
    so_far, offset, time = chain_start(page), base, 0
    positions: list[int] = []
    bases: list[int] = []
    found: list[Row] = []
    for number, messages in enumerate(batches):
        if number and number % every == 0:
            entry = index_entry(offset - base, len(data), time)
            entries, check = entries + entry, index_chain(check, entry)
        batch = encode(messages, offset, 1)
        so_far = chain(so_far, batch[:64])
        positions.append(len(data))
        bases.append(offset)
        found += rows_of(batch, queue) if rows else []
        data += batch
        offset += len(messages)
        time = max(time, *(message.time_us for message in messages))
    end = len(data)
    if sealed:
        footer = Footer(offset - base, offset - 1, batches[0][0].time_us, time, so_far, end)
        data += footer.encode()
        entries += index_trailer(len(entries) // 16, check, so_far)
    directory.mkdir(parents=True, exist_ok=True)
    path, index_path = directory / segment_name(base), directory / index_name(base)
    path.write_bytes(data)
    index_path.write_bytes(entries)
    segment_range = SegmentRange(
        queue, str(path), str(index_path), base, offset, -1 if sealed else end, sealed, base, offset
    )
    return SegmentOnDisk(segment_range, bytes(data), entries, positions, bases, found)


def rows_of(batch: bytes, queue: str) -> list[Row]:
    """The rows of a batch, as ``fluxmq.model`` reads its messages and blocks."""
    found = columns(batch)
    rows: list[Row] = []
    for index, message in enumerate(found.messages()):
        items = decode(message.properties)
        last = {item.kind: text_of(item) for item in items}
        exchange = last.get(PropertyKind.EXCHANGE)
        key = message.key.decode("utf-8", "replace")
        others = [
            item for item in items if item.kind not in (PropertyKind.HEADER, PropertyKind.PUBLISHER)
        ]
        rows.append(
            {
                "queue": queue,
                "offset": found.header.base_offset + index,
                "timestamp": message.time_us,
                "address": f"{exchange}/{key}" if exchange else key,
                "key": key,
                "headers": {name_of(i): text_of(i) for i in items if i.kind is PropertyKind.HEADER},
                "properties": {name_of(item): text_of(item) for item in others},
                "payload": message.payload,
                "publisher": last.get(PropertyKind.PUBLISHER),
            }
        )
    return rows


def read(
    segment: SegmentOnDisk,
    names: Sequence[str] = ALL,
    *,
    first: int | None = None,
    stop: int | None = None,
    verify: bool = True,
    fail: bool = True,
    selection: Selection | None = None,
    statistics: Statistics | None = None,
    storage: Storage | None = None,
) -> list[Row]:
    """The rows that a scan yields, every record batch of them checked."""
    segment_range = segment.segment_range
    segment_range = replace(
        segment_range,
        first=segment_range.first if first is None else first,
        stop=segment_range.stop if stop is None else stop,
    )
    return list(
        _rows(
            scan(
                storage or LocalStorage(),
                segment_range,
                names,
                SCHEMA,
                verify=verify,
                fail_on_data_loss=fail,
                statistics=Statistics() if statistics is None else statistics,
                selection=selection,
            ),
            pa.schema([SCHEMA.field(name) for name in names]),
        )
    )


def _rows(found: Iterator[pa.RecordBatch], schema: pa.Schema) -> Iterator[Row]:
    for batch in found:
        batch.validate(full=True)
        assert batch.schema == schema
        assert 0 < batch.num_rows <= 8192
        if "timestamp" in batch.schema.names:
            # Not by Python's own, whose years are too few.
            number = batch.schema.get_field_index("timestamp")
            times = batch.column(number).cast(pa.int64())
            batch = batch.set_column(number, "timestamp", times)
        for row in batch.to_pylist():
            for name in {"headers", "properties"} & row.keys():
                assert len(dict(row[name])) == len(row[name]), "a name twice in one map"
                row[name] = dict(row[name])
            yield row


def only(rows: Sequence[Row], names: Sequence[str]) -> list[Row]:
    """Rows with only these columns, in their order."""
    return [{name: row[name] for name in names} for row in rows]

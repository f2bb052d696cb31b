"""Sizes of messages and the busiest addresses: counted in the executors, so that little comes to
the driver.

Sizes go into cells that are exact up to 128 bytes and 1/64 wide above: a percentile is at most 1.6
% too high. Counts of any number of tasks are added up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from numpy.typing import NDArray

EXACT: Final = 128
"""Sizes below have a cell each; above, every power of two has half as many."""
_HALF_BITS: Final = 6
_HALF: Final = 1 << _HALF_BITS

ADDRESSES_MAX: Final = 1 << 16
"""Addresses that a task collects before it emits its counts: there may be as many keys as
messages."""

SUMMARY: Final = pa.schema(
    [
        pa.field("queue", pa.string(), nullable=False),
        pa.field("address", pa.string()),
        pa.field("cell", pa.int32()),
        pa.field("messages", pa.int64(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("largest", pa.int64(), nullable=False),
    ]
)
"""Partial counts: of an address where `cell` is null, of a cell of sizes where `address` is
null."""

SUMMARY_DDL: Final = "queue string not null, address string, cell int, messages long not null, bytes long not null, largest long not null"


def cells_of(sizes: NDArray[numpy.int64]) -> NDArray[numpy.int32]:
    """Return the cell of each size."""
    bits = numpy.frexp(numpy.maximum(sizes, 1).astype(numpy.float64))[1] - 1
    shift = numpy.maximum(bits - _HALF_BITS, 0)
    cells: NDArray[numpy.int32] = (shift * _HALF + (sizes >> shift)).astype(numpy.int32)
    return cells


def cell_top(cell: int) -> int:
    """Return the largest size in a cell."""
    if cell < EXACT:
        return cell
    shift = cell // _HALF - 1
    return ((cell - shift * _HALF + 1) << shift) - 1


def percentile(cells: Mapping[int, int], share: float, largest: int) -> int:
    """Return the size that `share` of the messages do not exceed; the exact `largest` bounds it. 0
    for no messages."""
    wanted, seen = share * sum(cells.values()), 0
    for cell in sorted(cells):
        seen += cells[cell]
        if seen >= wanted:
            return min(cell_top(cell), largest)
    return 0


def _grouped(table: pa.Table, name: str) -> Iterator[tuple[tuple[str, Any], list[int]]]:
    """Yield messages, bytes and the largest size by queue and one more column."""
    wanted = [("size", "count"), ("size", "sum"), ("size", "max")]
    grouped = table.group_by(["queue", name], use_threads=False).aggregate(wanted)
    columns = ("queue", name, "size_count", "size_sum", "size_max")
    for queue, value, *counts in zip(
        *(grouped.column(each).to_pylist() for each in columns), strict=True
    ):
        yield (queue, value), counts


def _add(entry: list[int], added: Sequence[int]) -> None:
    entry[0] += added[0]
    entry[1] += added[1]
    entry[2] = max(entry[2], added[2])


@dataclass(slots=True)
class _Counts:
    addresses: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    cells: dict[tuple[str, int], list[int]] = field(default_factory=dict)

    def add(self, batch: pa.RecordBatch) -> None:
        sizes = pc.binary_length(batch.column("payload")).cast(pa.int64())
        cells = pa.array(cells_of(sizes.to_numpy(zero_copy_only=False)))
        table = pa.table(
            [batch.column("queue"), batch.column("address"), cells, sizes],
            names=["queue", "address", "cell", "size"],
        )
        for (queue, address), added in _grouped(table, "address"):
            _add(self.addresses.setdefault((queue, address), [0, 0, 0]), added)
        for (queue, cell), added in _grouped(table, "cell"):
            _add(self.cells.setdefault((queue, cell), [0, 0, 0]), added)

    def batch(self) -> pa.RecordBatch:
        """Return the counts, and reset them."""
        rows: list[tuple[object, ...]] = [
            (queue, address, None, *counts) for (queue, address), counts in self.addresses.items()
        ]
        rows += [(queue, None, cell, *counts) for (queue, cell), counts in self.cells.items()]
        self.addresses, self.cells = {}, {}
        columns = zip(*rows, strict=True) if rows else [()] * len(SUMMARY)
        arrays = [
            pa.array(list(each), type=f.type) for each, f in zip(columns, SUMMARY, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=SUMMARY)


def summarise(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield partial counts of messages with columns queue, address, payload; as `SUMMARY`."""
    counts = _Counts()
    for batch in batches:
        counts.add(batch)
        if len(counts.addresses) >= ADDRESSES_MAX:
            yield counts.batch()
    yield counts.batch()


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of a queue's messages, in bytes of payload."""

    queue: str
    messages: int
    bytes: int
    p50: int
    p90: int
    p99: int
    largest: int
    cells: Mapping[int, int]


def sizes_of(queue: str, rows: Sequence[tuple[int, int, int, int]]) -> Sizes:
    """Return the sizes of a queue from its cells: (cell, messages, bytes, largest)."""
    cells = {cell: messages for cell, messages, _, _ in rows}
    largest = max((each[3] for each in rows), default=0)
    p50, p90, p99 = (percentile(cells, share, largest) for share in (0.5, 0.9, 0.99))
    messages, size = sum(cells.values()), sum(each[2] for each in rows)
    return Sizes(queue, messages, size, p50, p90, p99, largest, cells)

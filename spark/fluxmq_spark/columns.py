"""Groups of batches to record batches with the requested columns only.

Between ``decode``, which knows batches, and ``blocks``, which knows property blocks: builds each
column of the record schema.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy
import pyarrow as pa  # type: ignore[import-untyped]
from numpy.typing import NDArray

from fluxmq.model.batch_format import KEYS, PROPERTIES
from fluxmq_spark.block_texts import strings
from fluxmq_spark.blocks import BlockError, BlockReader, Blocks, addresses
from fluxmq_spark.decode import Batches, Group, GroupError, Pieces
from fluxmq_spark.selection import Selection

ROWS_MAX: Final = 8192
"""Rows of a record batch: more gain nothing, and use memory that is not in the cache yet."""

WEIGHT_MAX: Final = 64 << 20
"""Bytes of a record batch when one key or block of a batch belongs to many rows (a single row may
be larger): Arrow's text columns end at 2 GiB, and executors have to hold several."""

_HEADER_ONLY: Final = frozenset(("queue", "offset", "state"))
"""Columns that need nothing after a batch's header."""

_FROM_KEYS: Final = frozenset(("key", "address"))
_FROM_BLOCKS: Final = frozenset(("address", "headers", "properties", "publisher"))

Integers = NDArray[numpy.int64]


class Columns:
    """Makes record batches of `columns`, in the order and with the types of `schema`, for one
    queue."""

    def __init__(
        self, queue: str, columns: Sequence[str], schema: pa.Schema, selection: Selection | None
    ) -> None:
        self._wanted = frozenset(columns)
        self._names = tuple(columns)
        self._schema = pa.schema([schema.field(name) for name in columns])
        self._queue = pa.repeat(pa.scalar(queue), ROWS_MAX)
        self._selection = selection
        self._reader = BlockReader(
            *(
                self._schema.field(name).type if name in columns else None
                for name in ("headers", "properties")
            )
        )
        if "state" in self._wanted and selection is None:
            raise ValueError("there is no state without a consumer group")

    def behind_headers(self, batches: Batches) -> NDArray[numpy.bool_]:
        """Return for each batch whether anything after its header is used, so that its check
        matters."""
        used = bool(self._wanted - _HEADER_ONLY - {"timestamp"})
        if used or "timestamp" not in self._wanted:
            return numpy.full(len(batches), used)
        return batches.have_times()

    def weights(self, headers: NDArray[Any], counts: Integers) -> Integers:
        """Return the bytes each batch takes in memory, where one value of the file may be repeated
        in a column."""
        total = headers["payload_bytes"].astype(numpy.int64)
        uses = ((KEYS, "key_bytes", _FROM_KEYS), (PROPERTIES, "property_bytes", _FROM_BLOCKS))
        for flag, size, users in uses:
            if self._wanted & users:
                shared = (headers["flags"] & flag) == 0
                total += headers[size] * numpy.where(shared, counts, 1)
        result: Integers = total
        return result

    def build(self, group: Group, first: int, stop: int) -> Iterator[pa.RecordBatch]:
        """Yield the group's messages of offsets from `first` to before `stop`, in as many batches
        as needed.

        Raises ``GroupError`` when a batch is invalid, before anything of the group was yielded if
        it has more than one.
        """
        first = max(0, first - group.base_offset)
        stop = min(group.rows, stop - group.base_offset)
        # A single batch may have any size; groups of more were made to fit.
        rows = ROWS_MAX
        if len(group.counts) == 1:
            weight = int(self.weights(group.headers, group.counts)[0])
            rows = min(rows, max(1, WEIGHT_MAX * group.rows // max(1, weight)))
        source = _Values(self._wanted, group)
        for begin in range(first, stop, rows):
            batch = self._rows(source, group, begin, min(begin + rows, stop))
            if batch is not None:
                yield batch

    def _rows(self, source: _Values, group: Group, first: int, stop: int) -> pa.RecordBatch | None:
        begin, end = group.base_offset + first, group.base_offset + stop
        mask = None if self._selection is None else self._selection.mask(begin, end)
        if mask is not None and not mask.any():
            return None
        known: dict[str, pa.Array] = {}
        if "queue" in self._wanted:
            known["queue"] = self._queue.slice(0, stop - first)
        if "offset" in self._wanted:
            known["offset"] = pa.array(numpy.arange(begin, end))
        if "state" in self._wanted and self._selection is not None:
            known["state"] = self._selection.states(begin, end)
        if source.times is not None:
            known["timestamp"] = pa.array(source.times[first:stop]).view(
                self._schema.field("timestamp").type
            )
        if source.payloads is not None and "payload" in self._wanted:
            known["payload"] = source.payloads.slice(first, stop - first)
        if source.keys is not None:
            known["key"] = self._keys(source.keys, first, stop)
        if source.blocks is not None:
            self._from_blocks(known, source.blocks, group, first, stop)
        arrays = [known[name] for name in self._names]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        return batch if mask is None else batch.filter(pa.array(mask))

    def _keys(self, pieces: Pieces, first: int, stop: int) -> pa.StringArray:
        values, numbers = pieces.of(first, stop)
        return _rows_of(strings(values), None if numbers is None else pa.array(numbers))

    def _from_blocks(
        self, known: dict[str, pa.Array], pieces: Pieces, group: Group, first: int, stop: int
    ) -> None:
        values, numbers = pieces.of(first, stop)
        try:
            found, codes = self._reader.read(values)
        except BlockError as error:
            row = error.block if numbers is None else int((numbers == error.block).argmax())
            what = f"a property block that cannot be read: {error}"
            raise GroupError(group.batch_of(first + row), what) from None
        if numbers is not None:
            codes = numbers if codes is None else codes[numbers]
        index = None if codes is None else pa.array(codes)
        for name in ("headers", "properties", "publisher"):
            if name in self._wanted:
                known[name] = _rows_of(_column(found, name), index)
        if "address" in self._wanted:
            known["address"] = addresses(known["key"], _rows_of(found.exchange, index))


class _Values:
    """Requested data after the headers of a group's batches; all of it is checked on creation."""

    def __init__(self, wanted: frozenset[str], group: Group) -> None:
        self.times = group.times() if "timestamp" in wanted else None
        self.payloads = group.payloads() if "payload" in wanted else None
        self.keys = group.keys() if wanted & _FROM_KEYS else None
        self.blocks = group.properties() if wanted & _FROM_BLOCKS else None


def _column(blocks: Blocks, name: str) -> pa.Array:
    column: pa.Array = getattr(blocks, name)
    return column


def _rows_of(values: pa.Array, numbers: pa.Array | None) -> pa.Array:
    return values if numbers is None else values.take(numbers)

"""Property blocks to columns: headers, other properties, publisher and exchange of many messages.

``fluxmq.model.properties`` reads one block; this reads the common forms in numpy, item by item of
all blocks together, and passes every block that is not plain to it. The result equals that of the
items from ``properties.decode``, and tests compare the two:

* ``headers``: name and value of each HEADER, as text. Of equal names the last wins.
* ``properties``: every other kind but PUBLISHER, which has a column of its own, under its name in
  lower case. Of equal kinds the last wins. EMPTY_HEADERS is there with an empty value.

A block with sections of AMQP 1.0 (kind AMQP10) is not plain: it is read as ``expanded`` says, and
what no other protocol has (subject, to) is in ``properties`` under the field's name.

``block_texts`` makes the text of values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from numpy.typing import NDArray

from fluxmq.model.amqp10_readers import SectionReader, expanded
from fluxmq.model.properties import NUMBERS, Item, PropertyError, PropertyKind, decode
from fluxmq_spark.block_texts import NAME_AT, NAME_SIZE, Source, name_of, text_of

STEPS_MAX: Final = 64
"""Items of a block that are read in numpy: the few blocks with more are faster one by one."""

PLAIN_BYTES_MAX: Final = 1 << 16
"""Length limit of a plain block. Shorter ones cannot exceed the limit of items in a block."""

MANY: Final = 64
"""Blocks that are read as they are if most differ; fewer are always deduplicated."""

UNASKED: Final = 16
"""Groups of blocks read as they are after one in which most differed: queues seldom change."""

KNOWN_MAX: Final = 1024
"""Distinct blocks that are remembered, and read again together whenever a new one comes."""

_NEAR_MAX: Final = 8
"""Headers of a block up to which equal names are found by comparing each with each."""

_SIZE_BYTES_MAX: Final = 3
"""Maximum bytes of a size in a plain block."""

_INTEGER_TAGS: Final = {
    ord(tag): (width, signed)
    for tag, width, signed in (
        ("b", 1, True),
        ("B", 1, False),
        ("s", 2, True),
        ("u", 2, False),
        ("I", 4, True),
        ("i", 4, False),
        ("l", 8, True),
        ("T", 8, False),
    )
}

Integers = NDArray[numpy.int64]
Flags = NDArray[numpy.bool_]


TEXTS: Final = pa.map_(pa.string(), pa.field("value", pa.string(), nullable=False))
"""Type of a map column, unless another one with different nullability is requested."""


class BlockError(ValueError):
    """The block of number `block` is malformed; the text says why."""

    def __init__(self, block: int, what: str) -> None:
        super().__init__(what)
        self.block = block


@dataclass(frozen=True)
class Blocks:
    """Columns by block. `headers` and `properties`: maps, if wanted; `publisher`: null if unknown.

    `exchange`: of messages that came by AMQP, else null; an empty one is the default exchange.
    """

    headers: pa.MapArray | None
    properties: pa.MapArray | None
    publisher: pa.StringArray
    exchange: pa.StringArray


# --- blocks in numpy -------------------------------------------------------------------------------------------------


@dataclass
class _Items:
    """Items of all blocks: a row each, in any order. Positions and sizes are in the source."""

    block: Integers
    ordinal: Integers
    kind: Integers
    name_at: Integers
    name_size: Integers
    at: Integers
    size: Integers

    def select(self, which: NDArray[Any]) -> _Items:
        """Return the items selected by a mask or numbers."""
        return _Items(*(getattr(self, each)[which] for each in self.__dataclass_fields__))


def decode_blocks(
    values: pa.BinaryArray,
    headers: pa.DataType | None = TEXTS,
    properties: pa.DataType | None = TEXTS,
) -> Blocks:
    """Return the columns of blocks, with maps of these types or none. Raises ``BlockError``."""
    starts, ends, data = _layout(values)
    source = Source(data)
    items, strange = _plain_items(numpy.frombuffer(data, numpy.uint8), starts, ends, source)
    if strange.any():
        items = _with_strange(items, strange, values, source)
    count = len(values)
    order, kinds = _in_order(items, count)
    is_header = kinds == PropertyKind.HEADER
    is_publisher = kinds == PropertyKind.PUBLISHER
    others = order[~is_header & ~is_publisher]
    return Blocks(
        headers and _map(items, order[is_header], count, source, headers),
        properties and _map(items, others, count, source, properties),
        _last(items, order[is_publisher], count, source),
        _last(items, order[kinds == PropertyKind.EXCHANGE], count, source),
    )


def _layout(values: pa.BinaryArray) -> tuple[Integers, Integers, memoryview]:
    """Return the blocks' starts and ends, and the bytes they are in."""
    _, offsets, data = values.buffers()
    whole = numpy.frombuffer(offsets, numpy.int32, len(values) + 1, 4 * values.offset)
    begin, end = int(whole[0]), int(whole[-1])
    ends = whole.astype(numpy.int64) - begin
    return ends[:-1], ends[1:], memoryview(b"" if data is None else data)[begin:end]


def _plain_items(
    data: NDArray[numpy.uint8], starts: Integers, ends: Integers, source: Source
) -> tuple[_Items, Flags]:
    """Return the items of plain blocks, and a mask of the blocks that are not plain."""
    strange = ends - starts > PLAIN_BYTES_MAX
    block = numpy.flatnonzero(~strange & (ends > starts))
    at, end = starts[block], ends[block]
    blocks_end = data.size
    # A size is read before it is known to be inside: pad the end.
    data = numpy.append(data, numpy.zeros(_SIZE_BYTES_MAX + 1, numpy.uint8))
    rows: list[tuple[Integers, Integers, Integers, Integers, Integers]] = []
    for step in range(STEPS_MAX):
        if not block.size:
            break
        kind = data[at].astype(numpy.int64)
        content, stop, wrong = _sizes(data, at + 1, end)
        if wrong.any():
            strange[block[wrong]] = True
            right = ~wrong
            block, kind, content = block[right], kind[right], content[right]
            stop, end = stop[right], end[right]
        rows.append((block, numpy.full(len(block), step), kind, content, stop - content))
        at, going = stop, stop < end
        if not going.all():
            block, at, end = block[going], stop[going], end[going]
    strange[block] = True
    if not rows:
        return _Items(*[numpy.empty(0, numpy.int64)] * 7), strange
    block, ordinal, kind, at, size = [numpy.concatenate(each) for each in zip(*rows, strict=True)]
    name_at, name_size = NAME_AT[kind] + blocks_end, NAME_SIZE[kind]
    items = _Items(block, ordinal, kind, name_at, name_size, at, size)
    _said(data, items, strange, source)
    return items.select(~strange[items.block]) if strange.any() else items, strange


def _sizes(
    data: NDArray[numpy.uint8], at: Integers, end: Integers
) -> tuple[Integers, Integers, Flags]:
    """Return starts and ends of the contents sized at `at`, and a mask of invalid ones."""
    # If `at` is at the end already, the bytes read are another's; that is detected below.
    low = data[at].astype(numpy.int64)
    start = at + 1
    size = low & 0x7F
    more = low >= 0x80
    wrong = numpy.zeros(len(at), bool)
    for shift in range(7, 7 * _SIZE_BYTES_MAX, 7):
        if not more.any():
            break
        # The buffer is padded for this.
        byte = data[numpy.minimum(start, data.size - 1)].astype(numpy.int64)
        size = numpy.where(more, size | (byte & 0x7F) << shift, size)
        wrong |= more & (byte == 0)
        start = start + more
        more = more & (byte >= 0x80)
    stop = start + size
    wrong |= more | (stop > end)
    return start, stop, wrong


def _said(data: NDArray[numpy.uint8], items: _Items, strange: Flags, source: Source) -> None:
    """Fill in names and texts, kind by kind; mark blocks with items that are not plain."""
    for number in numpy.flatnonzero(numpy.bincount(items.kind)).tolist():
        which = numpy.flatnonzero(items.kind == number)
        try:
            kind = PropertyKind(number)
        except ValueError:
            strange[items.block[which]] = True
            continue
        if kind is PropertyKind.AMQP10:
            strange[items.block[which]] = True
            continue
        if kind is PropertyKind.HEADER:
            _headers_said(data, items, which, strange, source)
            continue
        width = NUMBERS.get(kind, 0 if kind is PropertyKind.EMPTY_HEADERS else None)
        if width is not None:
            wrong = items.size[which] != width
            strange[items.block[which[wrong]]] = True
            which = which[~wrong]
        if width == 1:
            _put_bytes(data, items, which, _text_of_kind(kind), source)
        elif width and kind not in (PropertyKind.DEAD_FIRST_TIME, PropertyKind.DEAD_TIME):
            _put_numbers(data, items, which, width, False, source)
        elif width or kind in (PropertyKind.CORRELATION, PropertyKind.DEAD_TRANSFER):
            _put_distinct(data, items, which, _text_of_kind(kind), strange, source)


def _text_of_kind(kind: PropertyKind) -> Callable[[bytes], str]:
    width = NUMBERS.get(kind)

    def text(content: bytes) -> str:
        return text_of(Item(kind, content if width is None else int.from_bytes(content, "little")))

    return text


def _headers_said(
    data: NDArray[numpy.uint8], items: _Items, which: Integers, strange: Flags, source: Source
) -> None:
    block = items.block[which]
    stop = items.at[which] + items.size[which]
    name, tag_at, wrong = _sizes(data, items.at[which], stop)
    wrong |= tag_at >= stop
    # The position of a missing tag is never used again.
    tag = numpy.where(wrong, 0, data[numpy.where(wrong, 0, tag_at)])
    strange[block[wrong]] = True
    items.name_at[which], items.name_size[which] = name, tag_at - name
    raw_at, raw_size = items.at[which], items.size[which]
    for number in numpy.flatnonzero(numpy.bincount(tag)).tolist():
        same = numpy.flatnonzero((tag == number) & ~wrong)
        rows, at, end = which[same], tag_at[same] + 1, stop[same]
        if number == ord("S"):
            start, text_end, bad = _sizes(data, at, end)
            strange[block[same[bad | (text_end != end)]]] = True
            items.at[rows], items.size[rows] = start, end - start
        elif number in _INTEGER_TAGS:
            width, signed = _INTEGER_TAGS[number]
            good = end - at == width
            strange[block[same[~good]]] = True
            items.at[rows], items.size[rows] = at, end - at
            _put_numbers(data, items, rows[good], width, signed, source)
        elif same.size:
            # The name is part of the lookup key: `decode` reads whole items.
            items.at[rows], items.size[rows] = raw_at[same], raw_size[same]
            _put_distinct(data, items, rows, _header_text, strange, source)


def _header_text(content: bytes) -> str:
    """Return the text of a header's value, from the item's content. Raises ``PropertyError``."""
    size = len(content)
    sizes = bytearray((PropertyKind.HEADER,))
    while size >= 0x80:
        sizes.append(size & 0x7F | 0x80)
        size >>= 7
    sizes.append(size)
    return text_of(decode(bytes(sizes) + content)[0])


def _put_numbers(
    data: NDArray[numpy.uint8],
    items: _Items,
    which: Integers,
    width: int,
    signed: bool,
    source: Source,
) -> None:
    """Replace numbers of `width` bytes by their digits."""
    raw = data[items.at[which][:, None] + numpy.arange(width)]
    kind = f"<{'i' if signed else 'u'}{width}"
    numbers = pa.array(numpy.ascontiguousarray(raw).view(kind).reshape(-1))
    items.at[which], items.size[which] = source.put_array(numbers.cast(pa.string()))


def _put_bytes(
    data: NDArray[numpy.uint8],
    items: _Items,
    which: Integers,
    text: Callable[[bytes], str],
    source: Source,
) -> None:
    """Replace numbers of one byte by `text` of each that occurs."""
    numbers = data[items.at[which]]
    table = numpy.zeros((256, 2), numpy.int64)
    for number in numpy.flatnonzero(numpy.bincount(numbers)).tolist():
        table[number] = source.put(text(bytes((number,))).encode())
    items.at[which], items.size[which] = table[numbers, 0], table[numbers, 1]


def _put_distinct(
    data: NDArray[numpy.uint8],
    items: _Items,
    which: Integers,
    text: Callable[[bytes], str],
    strange: Flags,
    source: Source,
) -> None:
    """Replace contents by `text` of each distinct one; mark blocks with rejected ones."""
    if not which.size:
        return
    at, sizes = items.at[which], items.size[which]
    gaps = numpy.zeros(2 * len(at) + 2, numpy.int32)
    gaps[1:-1:2] = at
    gaps[2:-1:2] = at + sizes
    gaps[-1] = data.size
    values = pa.BinaryArray.from_buffers(
        pa.binary(), len(gaps) - 1, [None, pa.py_buffer(gaps), pa.py_buffer(data)]
    )
    found = values.take(pa.array(numpy.arange(1, 2 * len(at) + 1, 2))).dictionary_encode()
    places = []
    for content in found.dictionary.to_pylist():
        try:
            places.append(source.put(text(content).encode()))
        except PropertyError:
            places.append((-1, 0))
    codes = found.indices.to_numpy()
    table = numpy.array(places, numpy.int64)[codes]
    items.at[which], items.size[which] = table[:, 0], table[:, 1]
    strange[items.block[which[table[:, 0] < 0]]] = True


def _with_strange(items: _Items, strange: Flags, values: pa.BinaryArray, source: Source) -> _Items:
    """Add the items of blocks that are not plain, read one by one."""
    rows: list[tuple[int, int, int, int, int, int, int]] = []
    for block in numpy.flatnonzero(strange).tolist():
        try:
            found = expanded(decode(values[block].as_py()), SectionReader.TABLE)
        except PropertyError as error:
            raise BlockError(block, str(error)) from None
        for ordinal, item in enumerate(found):
            name = source.put(name_of(item).encode())
            value = source.put(text_of(item).encode())
            rows.append((block, ordinal, int(item.kind), *name, *value))
    if not rows:
        return items
    added = numpy.array(rows, numpy.int64).T
    fields = [getattr(items, each) for each in items.__dataclass_fields__]
    return _Items(*(numpy.concatenate(pair) for pair in zip(fields, added, strict=True)))


class BlockReader:
    """Reads property blocks of one group of batches after the other, with a cache.

    Most publishers send equal properties, and a queue has few: distinct blocks are read once.
    """

    def __init__(
        self, headers: pa.DataType | None = TEXTS, properties: pa.DataType | None = TEXTS
    ) -> None:
        self._types = headers, properties
        self._known = pa.array([], pa.binary())
        self._blocks: Blocks | None = None
        self._unasked = 0

    def read(self, values: pa.BinaryArray) -> tuple[Blocks, Integers | None]:
        """Return columns, and the row in them of each block; None: each its own.

        Raises ``BlockError``, with the number of the first malformed block.
        """
        if self._unasked and len(values) >= MANY:
            self._unasked -= 1
            return decode_blocks(values, *self._types), None
        codes = pc.index_in(values, self._known)
        if self._blocks is None or codes.null_count:
            new = values.filter(codes.is_null()).unique()
            if 2 * len(new) > len(values) >= MANY:
                self._unasked = UNASKED
                return decode_blocks(values, *self._types), None
            if len(self._known) + len(new) > KNOWN_MAX:
                self._known = self._known.slice(0, 0)
                new = values.unique()
            try:
                decode_blocks(new, None, None)
            except BlockError as error:
                at = pc.index(values, new[error.block]).as_py()
                raise BlockError(at, str(error)) from None
            self._known = pa.concat_arrays([self._known, new])
            self._blocks = decode_blocks(self._known, *self._types)
            codes = pc.index_in(values, self._known)
        return self._blocks, codes.to_numpy().astype(numpy.int64)


# --- from items to columns -------------------------------------------------------------------------------------------


def _in_order(items: _Items, blocks: int) -> tuple[Integers, Integers]:
    """Return the items' numbers block by block, in their order there, and their kinds."""
    counts = numpy.bincount(items.block, minlength=blocks)
    place = (numpy.cumsum(counts) - counts)[items.block] + items.ordinal
    order = numpy.empty(len(place), numpy.int64)
    order[place] = numpy.arange(len(place))
    return order, items.kind[order]


def _map(
    items: _Items, which: Integers, blocks: int, source: Source, kind: pa.DataType
) -> pa.MapArray:
    """Return the map of some items of each block, of equal names the last one."""
    block = items.block[which]
    names = source.texts(items.name_at[which], items.name_size[which])
    repeated = _repeated(block, names)
    if repeated.any():
        kept = ~repeated
        which, block, names = which[kept], block[kept], names.filter(pa.array(kept))
    values = source.texts(items.at[which], items.size[which])
    offsets = numpy.zeros(blocks + 1, numpy.int32)
    numpy.cumsum(numpy.bincount(block, minlength=blocks), out=offsets[1:])
    return pa.MapArray.from_arrays(pa.array(offsets), names, values, kind)


def _repeated(block: Integers, names: pa.StringArray) -> Flags:
    """Return for each item whether a later one of its block has its name."""
    repeated = numpy.zeros(len(block), bool)
    if not (block[1:] == block[:-1]).any():
        return repeated
    code = names.dictionary_encode().indices.to_numpy().astype(numpy.int64)
    most = int(numpy.bincount(block).max())
    if most <= _NEAR_MAX:
        for distance in range(1, most):
            same = (block[distance:] == block[:-distance]) & (code[distance:] == code[:-distance])
            repeated[:-distance] |= same
        return repeated
    both = block * (int(code.max()) + 1) + code
    _, last = numpy.unique(both[::-1], return_index=True)
    repeated[:] = True
    repeated[len(both) - 1 - last] = False
    return repeated


def _last(items: _Items, which: Integers, blocks: int, source: Source) -> pa.StringArray:
    """Return the value of the last of some items of each block, null if there is none."""
    if not which.size:
        return pa.nulls(blocks, pa.string())
    number = numpy.full(blocks, -1, numpy.int64)
    # For equal positions the last one's value stays.
    number[items.block[which]] = numpy.arange(len(which))
    texts = source.texts(items.at[which], items.size[which])
    return texts.take(pa.array(number, mask=number < 0))


def addresses(keys: pa.StringArray, exchanges: pa.StringArray) -> pa.StringArray:
    """Return ``exchange/key`` if there is a named exchange, else the key."""
    if exchanges.null_count == len(exchanges):
        return keys
    named = pc.not_equal(exchanges, "")
    joined = pc.binary_join_element_wise(exchanges, keys, "/")
    # A missing exchange is neither named nor unnamed.
    return pc.if_else(pc.fill_null(named, False), joined, keys)

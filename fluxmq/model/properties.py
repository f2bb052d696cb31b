"""The canonical property block: a message's metadata besides its key and payload, as bytes.

One form for all protocols, so that a queue stores a message without knowing its future readers.
Items keep the publisher's order; ``docs/message-properties.md`` maps each protocol's properties,
and the protocols' packages convert them. Knows nothing of batches or wire formats.

A block is items back to back, an empty one has no bytes::

    item    kind u8 | size | content of that many bytes
    size    1 to 5 bytes of seven bits, least significant first, high bit set on all but the last;
            shortest form
    content of most kinds: text as received, or an unsigned number of the kind's width, little-endian
            of HEADER: size | name | value
    value   tag u8 | content by tag

    tag (AMQP 0.9.1 field types, RabbitMQ's letters)                       content
    't' boolean       one byte, 0 or 1        'f' single, 'd' double         4, 8 bytes IEEE 754
    'b' 's' 'I' 'l'   signed, 1 2 4 8 bytes   'D' decimal                    scale u8, unscaled i32
    'B' 'u' 'i'       unsigned, 1 2 4 bytes   'T' timestamp                  u64 seconds
    'V' void          nothing                 'S' text, 'x' bytes            size | bytes
    'F' table         size | (size | name | value) ...
    'A' array         size | value ...

Only the order of items is free, so that decoding and encoding a block gives the same bytes.
A user property of MQTT 5 is a HEADER of tag 'S'. AMQP10 holds sections of AMQP 1.0 as they came;
``amqp10_sections`` reads them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from typing import Final, NamedTuple

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

BLOCK_BYTES_MAX: Final = (256 + 1) << 20
"""Bytes of a block: what the largest MQTT packet can carry (256 MiB) and what its user properties
grow by."""

ITEMS_MAX: Final = 1 << 17
"""Items of a block, those inside tables and arrays included: twice the user properties that
settings allow."""

DEPTH_MAX: Final = 16
"""Tables and arrays inside each other: real headers have two or three, and reading is recursive."""

_SIZE_BYTES_MAX: Final = 5


class PropertyError(ValueError):
    """The bytes are not a property block, or the items cannot form one; the text says why."""


class PropertyKind(IntEnum):
    """Kinds of item. A number never changes its meaning; new kinds get new numbers."""

    PAYLOAD_FORMAT = 1
    CONTENT_TYPE = 2
    CONTENT_ENCODING = 3
    REPLY_TO = 4
    CORRELATION = 5
    HEADER = 6
    EMPTY_HEADERS = 7
    DELIVERY_MODE = 8
    PRIORITY = 9
    EXPIRATION = 10
    MESSAGE_ID = 11
    TIMESTAMP = 12
    TYPE = 13
    USER_ID = 14
    APP_ID = 15
    CLUSTER_ID = 16
    PUBLISHER = 17
    PROTOCOL = 18
    EXCHANGE = 19
    AMQP10 = 20
    DEAD_REASON = 32
    DEAD_QUEUE = 33
    DEAD_OFFSET = 34
    DEAD_KEY = 35
    DEAD_GROUP = 36
    DEAD_ATTEMPTS = 37
    DEAD_FIRST_TIME = 38
    DEAD_TIME = 39
    DEAD_TRANSFER = 40


NUMBERS: Final[dict[PropertyKind, int]] = {
    PropertyKind.PAYLOAD_FORMAT: 1,
    PropertyKind.DELIVERY_MODE: 1,
    PropertyKind.PRIORITY: 1,
    PropertyKind.TIMESTAMP: 8,
    PropertyKind.PROTOCOL: 1,
    PropertyKind.DEAD_OFFSET: 8,
    PropertyKind.DEAD_ATTEMPTS: 4,
    PropertyKind.DEAD_FIRST_TIME: 8,
    PropertyKind.DEAD_TIME: 8,
}
"""Kinds that are unsigned numbers, with their width in bytes."""

_KINDS: Final = {int(kind): kind for kind in PropertyKind}


class Timestamp(int):
    """A moment as a header value or property, in seconds since the epoch (AMQP 0.9.1 section
    4.2.5.4)."""

    __slots__ = ()


class Value(NamedTuple):
    """A typed header value.

    By `tag`: a bool for 't', an int for integers and timestamps, a float for 'f' and 'd' (a NaN
    stays one, its bits may not), (scale, unscaled) for 'D', None for 'V', bytes for 'S' and 'x', a
    tuple of values for 'A', a tuple of (name, value) for 'F'.
    """

    tag: str
    content: object


class Item(NamedTuple):
    """One item. `value`: an int for kinds in `NUMBERS`, None for EMPTY_HEADERS, a `Value` for
    HEADER, else bytes.

    `name`: of a HEADER.
    """

    kind: PropertyKind
    value: int | bytes | Value | None
    name: bytes = b""


def text(content: bytes) -> Value:
    """Return a header value of text."""
    return Value("S", content)


_FIXED: Final[dict[str, struct.Struct]] = {
    "b": struct.Struct("<b"),
    "B": struct.Struct("<B"),
    "s": struct.Struct("<h"),
    "u": struct.Struct("<H"),
    "I": struct.Struct("<i"),
    "i": struct.Struct("<I"),
    "l": struct.Struct("<q"),
    "f": struct.Struct("<f"),
    "d": struct.Struct("<d"),
    "T": struct.Struct("<Q"),
}
_DECIMAL: Final = struct.Struct("<Bi")


# --- writing ---


def encode(items: Iterable[Item]) -> bytes:
    """Encode items as a block. Raises `PropertyError` for a value that its kind or tag cannot
    hold."""
    out = bytearray()
    budget = _ItemBudget()
    for kind, value, name in items:
        budget.spend()
        content = _content(kind, value, name, budget)
        out.append(kind)
        _put_sized(out, content)
    if len(out) > BLOCK_BYTES_MAX:
        raise PropertyError("more bytes than a block takes")
    return bytes(out)


def _content(
    kind: PropertyKind, value: int | bytes | Value | None, name: bytes, budget: _ItemBudget
) -> bytes | bytearray:
    width = NUMBERS.get(kind)
    if width is not None:
        if not isinstance(value, int) or not 0 <= value < 1 << (8 * width):
            raise PropertyError(f"{kind.name} is a number of {width} bytes")
        return value.to_bytes(width, "little")
    if kind is PropertyKind.HEADER:
        if not isinstance(value, Value):
            raise PropertyError("a header has a typed value")
        out = bytearray()
        _put_sized(out, name)
        _put_value(out, value, 0, budget)
        return out
    if kind is PropertyKind.EMPTY_HEADERS:
        if value is not None:
            raise PropertyError("EMPTY_HEADERS has no value")
        return b""
    if not isinstance(value, bytes):
        raise PropertyError(f"{kind.name} is bytes")
    return value


def moment_of(time_us: int) -> bytes:
    """Return RFC 3339 of microseconds since the epoch, or their digits when no calendar date
    fits."""
    try:
        moment = _EPOCH + timedelta(microseconds=time_us)
    except OverflowError:
        return b"%d" % time_us
    return moment.isoformat().replace("+00:00", "Z").encode()


class _ItemBudget:
    """Counts items, nested ones too."""

    def __init__(self) -> None:
        self.left = ITEMS_MAX

    def spend(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise PropertyError("more items than a block takes")


def _put_sized(out: bytearray, content: bytes | bytearray) -> None:
    size = len(content)
    if size > BLOCK_BYTES_MAX:
        raise PropertyError("more bytes than a block takes")
    while size >= 0x80:
        out.append(size & 0x7F | 0x80)
        size >>= 7
    out.append(size)
    out += content


def _put_value(out: bytearray, value: Value, depth: int, budget: _ItemBudget) -> None:
    tag, content = value
    budget.spend()
    out += tag.encode("ascii", "replace")
    fixed = _FIXED.get(tag)
    try:
        if fixed is not None:
            out += fixed.pack(content)
        elif tag in ("S", "x") and isinstance(content, bytes):
            _put_sized(out, content)
        elif tag == "t" and isinstance(content, bool):
            out.append(content)
        elif tag == "D" and isinstance(content, tuple):
            out += _DECIMAL.pack(*content)
        elif tag in ("A", "F") and isinstance(content, tuple):
            if depth == DEPTH_MAX:
                raise PropertyError("tables and arrays too deep inside each other")
            inner = bytearray()
            for each in content:
                if tag == "F":
                    name, each_value = each
                    _put_sized(inner, name)
                else:
                    each_value = each
                _put_value(inner, each_value, depth + 1, budget)
            _put_sized(out, inner)
        elif tag != "V" or content is not None:
            raise PropertyError(f"a value that tag {tag!r} does not have")
    except (struct.error, OverflowError) as error:
        raise PropertyError(f"a value that tag {tag!r} cannot hold: {error}") from None


# --- reading ---


def decode(block: bytes) -> list[Item]:
    """Return the items of a block, in order. Raises only `PropertyError`, for invalid bytes."""
    if len(block) > BLOCK_BYTES_MAX:
        raise PropertyError("more bytes than a block takes")
    items: list[Item] = []
    budget = _ItemBudget()
    at, end = 0, len(block)
    while at < end:
        budget.spend()
        kind = _KINDS.get(block[at])
        if kind is None:
            raise PropertyError(f"an item of kind {block[at]}, which is not known")
        start, stop = _sized(block, at + 1, end)
        items.append(_item(block, kind, start, stop, budget))
        at = stop
    return items


def _item(block: bytes, kind: PropertyKind, start: int, stop: int, budget: _ItemBudget) -> Item:
    width = NUMBERS.get(kind)
    if width is not None:
        if stop - start != width:
            raise PropertyError(f"{kind.name} of another width")
        return Item(kind, int.from_bytes(block[start:stop], "little"))
    if kind is PropertyKind.HEADER:
        name_at, name_end = _sized(block, start, stop)
        value, at = _value(block, name_end, stop, 0, budget)
        if at != stop:
            raise PropertyError("bytes behind a header's value")
        return Item(kind, value, block[name_at:name_end])
    if kind is PropertyKind.EMPTY_HEADERS:
        if start != stop:
            raise PropertyError("EMPTY_HEADERS with a value")
        return Item(kind, None)
    return Item(kind, block[start:stop])


def _sized(block: bytes, at: int, end: int) -> tuple[int, int]:
    """Return the bounds of the content whose size is at `at`."""
    size = 0
    for shift in range(0, 7 * _SIZE_BYTES_MAX, 7):
        if at >= end:
            raise PropertyError("the end inside a size")
        byte = block[at]
        at += 1
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            if byte == 0 and shift:
                raise PropertyError("a size longer than needed")
            if size > end - at:
                raise PropertyError("a size that points past the end")
            return at, at + size
    raise PropertyError("a size of too many bytes")


def _value(block: bytes, at: int, end: int, depth: int, budget: _ItemBudget) -> tuple[Value, int]:
    """Return a value and where it ends."""
    budget.spend()
    if at >= end:
        raise PropertyError("the end where a value was due")
    tag = chr(block[at])
    at += 1
    fixed = _FIXED.get(tag) or (_DECIMAL if tag == "D" else None)
    if fixed is not None:
        if fixed.size > end - at:
            raise PropertyError("the end inside a value")
        numbers = fixed.unpack_from(block, at)
        return Value(tag, numbers if tag == "D" else numbers[0]), at + fixed.size
    if tag == "V":
        return Value(tag, None), at
    if tag == "t":
        if at >= end or block[at] > 1:
            raise PropertyError("a boolean that is neither 0 nor 1")
        return Value(tag, block[at] == 1), at + 1
    if tag not in ("S", "x", "A", "F"):
        raise PropertyError(f"a value of tag {tag!r}, which is not known")
    start, stop = _sized(block, at, end)
    if tag in ("S", "x"):
        return Value(tag, block[start:stop]), stop
    if depth == DEPTH_MAX:
        raise PropertyError("tables and arrays too deep inside each other")
    return Value(tag, tuple(_inner(block, tag, start, stop, depth + 1, budget))), stop


def _inner(
    block: bytes, tag: str, at: int, end: int, depth: int, budget: _ItemBudget
) -> Sequence[object]:
    """Return the content of a table or an array."""
    found: list[object] = []
    while at < end:
        if tag == "F":
            name_at, at = _sized(block, at, end)
            name = block[name_at:at]
            value, at = _value(block, at, end, depth, budget)
            found.append((name, value))
        else:
            value, at = _value(block, at, end, depth, budget)
            found.append(value)
    return found

"""Values of AMQP 1.0 inside a message, as bytes: queues keep the sections of a message as they came.

Reads values with their types, and finds where one ends without reading it. Knows nothing of frames,
performatives or the meaning of a section; `fluxmq.protocols.amqp10.codec` encodes and decodes those.
Bytes come from clients and from files: every length is checked before use, and nesting and the
number of values are limited, since an array of nulls takes no bytes for each.

Source: AMQP 1.0 part 1 (types), sections 1.2 and 1.6.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

VALUES_MAX: Final = 1 << 15
"""Values of one section, nested ones included: as many as headers of AMQP 0.9.1 take."""

NESTING_MAX: Final = 16
"""Lists, maps, arrays and described values inside each other, as in a property block."""

MAP: Final = "map"
SYMBOL: Final = "symbol"
STRING: Final = "string"
BINARY: Final = "binary"


class AmqpValueError(ValueError):
    """The bytes are not a value of AMQP 1.0, or a value has no encoding; the text says why."""


class Typed(NamedTuple):
    """A value with its type's name in the standard.

    `content`: None for null; a bool; an int for integers, char and timestamp (milliseconds); a float
    for float and double; bytes for binary, string and symbol (their text), uuid and the decimals; a
    tuple of values for list and array; a tuple of (key, value) for map; (descriptor, value) for
    ``described``.
    """

    type: str
    content: object


NULL: Final = Typed("null", None)
TRUE: Final = Typed("boolean", True)
FALSE: Final = Typed("boolean", False)

_FIXED: Final[dict[int, tuple[str, struct.Struct]]] = {
    0x50: ("ubyte", struct.Struct(">B")),
    0x51: ("byte", struct.Struct(">b")),
    0x52: ("uint", struct.Struct(">B")),
    0x53: ("ulong", struct.Struct(">B")),
    0x54: ("int", struct.Struct(">b")),
    0x55: ("long", struct.Struct(">b")),
    0x60: ("ushort", struct.Struct(">H")),
    0x61: ("short", struct.Struct(">h")),
    0x70: ("uint", struct.Struct(">I")),
    0x71: ("int", struct.Struct(">i")),
    0x72: ("float", struct.Struct(">f")),
    0x73: ("char", struct.Struct(">I")),
    0x80: ("ulong", struct.Struct(">Q")),
    0x81: ("long", struct.Struct(">q")),
    0x82: ("double", struct.Struct(">d")),
    0x83: ("timestamp", struct.Struct(">q")),
}
_EMPTY: Final = {
    0x40: NULL,
    0x41: TRUE,
    0x42: FALSE,
    0x43: Typed("uint", 0),
    0x44: Typed("ulong", 0),
    0x45: Typed("list", ()),
}
_BOOLEAN: Final = 0x56
_RAW: Final = {0x74: "decimal32", 0x84: "decimal64", 0x94: "decimal128", 0x98: "uuid"}
_BYTES: Final = {
    0xA0: BINARY,
    0xA1: STRING,
    0xA3: SYMBOL,
    0xB0: BINARY,
    0xB1: STRING,
    0xB3: SYMBOL,
}
_COMPOUND: Final = {
    0xC0: "list",
    0xC1: MAP,
    0xD0: "list",
    0xD1: MAP,
    0xE0: "array",
    0xF0: "array",
}
_WIDTHS: Final = {0x4: 0, 0x5: 1, 0x6: 2, 0x7: 4, 0x8: 8, 0x9: 16}
"""Bytes of a value by the upper half of its constructor."""
_KNOWN: Final = frozenset((_BOOLEAN, *_FIXED, *_EMPTY, *_RAW, *_BYTES, *_COMPOUND))
_LENGTH: Final = struct.Struct(">I")
_CHARACTER_MAX: Final = 0x10FFFF


# --- finding the end ---


def end_of(data: bytes, at: int, end: int) -> int:
    """Return where the value at `at` ends, before or at `end`, reading only its outer form. Raises
    `AmqpValueError`."""
    for _ in range(NESTING_MAX + 1):
        code = _code(data, at, end)
        if code:
            return _content(data, code, at + 1, end)[1]
        descriptor = _code(data, at + 1, end)
        if not descriptor:
            raise AmqpValueError("a descriptor that is described")
        at = _content(data, descriptor, at + 2, end)[1]
    raise AmqpValueError("values too deep inside each other")


def _code(data: bytes, at: int, end: int) -> int:
    if at >= end:
        raise AmqpValueError("the end where a value was due")
    return data[at]


def _content(data: bytes, code: int, at: int, end: int) -> tuple[int, int]:
    """Return start and end of a value's content, behind its constructor and size."""
    if code not in _KNOWN:
        raise AmqpValueError(f"a constructor {code:#04x}, which is not known")
    width = _WIDTHS.get(code >> 4)
    if width is None:
        if code >> 4 & 1:
            if at + 4 > end:
                raise AmqpValueError("the end inside a size")
            width = _LENGTH.unpack_from(data, at)[0]
            at += 4
        else:
            if at >= end:
                raise AmqpValueError("the end inside a size")
            width = data[at]
            at += 1
    stop: int = at + width
    if stop > end:
        raise AmqpValueError("a size that points past the end")
    return at, stop


# --- reading ---


class _ValueCount:
    """Counts values, nested ones too."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = VALUES_MAX

    def take(self, count: int) -> None:
        self.left -= count
        if self.left < 0:
            raise AmqpValueError("more values than a section takes")


def read_value(data: bytes, at: int, end: int) -> tuple[Typed, int]:
    """Return the value at `at`, which ends before or at `end`, and its end. Raises
    `AmqpValueError`."""
    return _read(data, at, end, 0, _ValueCount())


def _read(data: bytes, at: int, end: int, depth: int, count: _ValueCount) -> tuple[Typed, int]:
    count.take(1)
    if at >= end:
        raise AmqpValueError("the end where a value was due")
    code = data[at]
    if code:
        return _read_content(data, code, at + 1, end, depth, count)
    if depth == NESTING_MAX:
        raise AmqpValueError("values too deep inside each other")
    descriptor, at = _read(data, at + 1, end, depth + 1, count)
    value, at = _read(data, at, end, depth + 1, count)
    return Typed("described", (descriptor, value)), at


def _read_content(
    data: bytes, code: int, at: int, end: int, depth: int, count: _ValueCount
) -> tuple[Typed, int]:
    start, stop = _content(data, code, at, end)
    fixed = _FIXED.get(code)
    if fixed is not None:
        number = fixed[1].unpack_from(data, start)[0]
        if code == 0x73 and (number > _CHARACTER_MAX or 0xD800 <= number < 0xE000):
            raise AmqpValueError("a number that is no character")
        return Typed(fixed[0], number), stop
    kind = _BYTES.get(code) or _RAW.get(code)
    if kind is not None:
        content = data[start:stop]
        if kind is STRING and not _is_utf8(content):
            raise AmqpValueError("a string that is not UTF-8")
        if kind is SYMBOL and not content.isascii():
            raise AmqpValueError("a symbol that is not ASCII")
        return Typed(kind, content), stop
    if code == _BOOLEAN:
        if data[start] > 1:
            raise AmqpValueError("a boolean that is neither 0 nor 1")
        return (TRUE if data[start] else FALSE), stop
    if code in _EMPTY:
        return _EMPTY[code], stop
    return _read_compound(data, code, start, stop, depth, count), stop


def _read_compound(
    data: bytes, code: int, at: int, end: int, depth: int, count: _ValueCount
) -> Typed:
    if depth == NESTING_MAX:
        raise AmqpValueError("values too deep inside each other")
    wide = code >> 4 & 1
    if at + (4 if wide else 1) > end:
        raise AmqpValueError("the end inside a count")
    number = _LENGTH.unpack_from(data, at)[0] if wide else data[at]
    at += 4 if wide else 1
    kind = _COMPOUND[code]
    values: list[Typed] = []
    if kind == "array":
        count.take(number)
        values, at = _read_array(data, at, end, number, depth + 1, count)
    else:
        for _ in range(number):
            value, at = _read(data, at, end, depth + 1, count)
            values.append(value)
    if at != end:
        raise AmqpValueError("a size that differs from its values'")
    if kind != MAP:
        return Typed(kind, tuple(values))
    if number % 2:
        raise AmqpValueError("a map with a key and no value")
    return Typed(MAP, tuple(zip(values[::2], values[1::2], strict=True)))


def _read_array(
    data: bytes, at: int, end: int, number: int, depth: int, count: _ValueCount
) -> tuple[list[Typed], int]:
    """Return an array's elements, behind their common constructor, and their end."""
    descriptors: list[Typed] = []
    while at < end and not data[at]:
        if depth + len(descriptors) >= NESTING_MAX:
            raise AmqpValueError("values too deep inside each other")
        descriptor, at = _read(data, at + 1, end, depth, count)
        descriptors.append(descriptor)
    if at >= end:
        raise AmqpValueError("the end where a constructor was due")
    code = data[at]
    at += 1
    values = []
    for _ in range(number):
        value, at = _read_content(data, code, at, end, depth, count)
        for descriptor in reversed(descriptors):
            value = Typed("described", (descriptor, value))
        values.append(value)
    return values, at


def _is_utf8(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


# --- maps ---


def map_of(content: bytes, count: int) -> bytes:
    """Return a map of encoded keys and values: `count` of them together."""
    if len(content) < 0xFF and count <= 0xFF:
        return bytes((0xC1, len(content) + 1, count)) + content
    return b"\xd1" + struct.pack(">II", len(content) + 4, count) + content


def map_entries(data: bytes, at: int, end: int) -> tuple[bytes, int]:
    """Return a map's encoded keys and values, and how many these are, without reading them. Raises
    `AmqpValueError` unless it is a map that ends at `end`."""
    code = data[at] if at < end else 0
    if code not in (0xC1, 0xD1):
        raise AmqpValueError("a value that is no map")
    start, stop = _content(data, code, at + 1, end)
    width = 4 if code == 0xD1 else 1
    if stop != end or start + width > stop:
        raise AmqpValueError("a map of another size")
    return data[start + width : stop], int.from_bytes(data[start : start + width], "big")

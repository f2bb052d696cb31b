"""Encoding and decoding of AMQP 1.0's types.

Values are encoded in the shortest form, apart from those of arrays, which share one constructor.
Decoding accepts all forms. It is bounded: nesting by `DEPTH_MAX`, values without bytes by
`EMPTY_ITEMS_MAX`, everything else by the bytes given.

Longer than 500 lines because it reads and writes each of the standard's types.

Source: OASIS AMQP 1.0 part 1, sections 1.2 (encodings) and 1.6 (primitive types).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

from fluxmq.protocols.amqp10.types import (
    Array,
    Byte,
    Char,
    DecimalBits,
    Described,
    Float,
    Int,
    Milliseconds,
    Short,
    Symbol,
    UByte,
    UInt,
    ULong,
    UShort,
    Uuid,
)

DEPTH_MAX: Final = 32
"""Lists, maps, arrays and descriptions inside each other: real ones have five or six, and decoding
is recursive."""
EMPTY_ITEMS_MAX: Final = 256
"""Values without bytes, such as null, in all arrays of one value: nothing else bounds their number,
and arrays of them inside a list would turn a frame into gigabytes."""

_I8: Final = struct.Struct(">b")
_U16: Final = struct.Struct(">H")
_I16: Final = struct.Struct(">h")
_U32: Final = struct.Struct(">I")
_I32: Final = struct.Struct(">i")
_U64: Final = struct.Struct(">Q")
_I64: Final = struct.Struct(">q")
_F32: Final = struct.Struct(">f")
_F64: Final = struct.Struct(">d")


class MalformedError(ValueError):
    """The bytes are no value of AMQP 1.0, or no value of the type that was due; the text says why.

    The standard's amqp:decode-error.
    """


# --- decoding ---


def _char(raw: bytes) -> Char:
    number = _U32.unpack(raw)[0]
    if number > 0x10FFFF or 0xD800 <= number <= 0xDFFF:
        raise MalformedError(f"a char of {number:#x}, which is no character")
    return Char(chr(number))


def _boolean(raw: bytes) -> bool:
    if raw[0] > 1:
        raise MalformedError(f"a boolean of {raw[0]}")
    return raw[0] == 1


def _string(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise MalformedError("a string that is not UTF-8") from None


def _symbol(raw: bytes) -> Symbol:
    try:
        return Symbol(raw.decode("ascii"))
    except UnicodeDecodeError:
        raise MalformedError("a symbol that is not ASCII") from None


_FIXED: Final[dict[int, tuple[int, Callable[[bytes], object]]]] = {
    0x40: (0, lambda raw: None),
    0x41: (0, lambda raw: True),
    0x42: (0, lambda raw: False),
    0x43: (0, lambda raw: UInt(0)),
    0x44: (0, lambda raw: ULong(0)),
    0x45: (0, lambda raw: []),
    0x50: (1, lambda raw: UByte(raw[0])),
    0x51: (1, lambda raw: Byte(_I8.unpack(raw)[0])),
    0x52: (1, lambda raw: UInt(raw[0])),
    0x53: (1, lambda raw: ULong(raw[0])),
    0x54: (1, lambda raw: Int(_I8.unpack(raw)[0])),
    0x55: (1, lambda raw: _I8.unpack(raw)[0]),
    0x56: (1, _boolean),
    0x60: (2, lambda raw: UShort(_U16.unpack(raw)[0])),
    0x61: (2, lambda raw: Short(_I16.unpack(raw)[0])),
    0x70: (4, lambda raw: UInt(_U32.unpack(raw)[0])),
    0x71: (4, lambda raw: Int(_I32.unpack(raw)[0])),
    0x72: (4, lambda raw: Float(_F32.unpack(raw)[0])),
    0x73: (4, _char),
    0x74: (4, DecimalBits),
    0x80: (8, lambda raw: ULong(_U64.unpack(raw)[0])),
    0x81: (8, lambda raw: _I64.unpack(raw)[0]),
    0x82: (8, lambda raw: _F64.unpack(raw)[0]),
    0x83: (8, lambda raw: Milliseconds(_I64.unpack(raw)[0])),
    0x84: (8, DecimalBits),
    0x94: (16, DecimalBits),
    0x98: (16, Uuid),
}
"""Types of a fixed width: the width and how to read them."""
_VARIABLE: Final[dict[int, Callable[[bytes], object]]] = {
    0xA0: bytes,
    0xA1: _string,
    0xA3: _symbol,
    0xB0: bytes,
    0xB1: _string,
    0xB3: _symbol,
}
_COMPOUND: Final = frozenset((0xC0, 0xC1, 0xD0, 0xD1, 0xE0, 0xF0))
_WIDEST: Final = {
    0x41: 0x56,
    0x42: 0x56,
    0x43: 0x70,
    0x44: 0x80,
    0x45: 0xD0,
    0x52: 0x70,
    0x53: 0x80,
    0x54: 0x71,
    0x55: 0x81,
    0xA0: 0xB0,
    0xA1: 0xB1,
    0xA3: 0xB3,
    0xC0: 0xD0,
    0xC1: 0xD1,
    0xE0: 0xF0,
}
"""Constructors that have a wider form of the same type, which arrays are encoded with."""


def decode(data: bytes, at: int = 0, end: int = -1) -> tuple[Any, int]:
    """Return the value that begins at ``at``, and where it ends.

    Raises `MalformedError`, also for a value that does not end within ``end`` (-1: all of the
    data).
    """
    return _value(data, at, len(data) if end < 0 else end, 0, [EMPTY_ITEMS_MAX])


def decode_whole(data: bytes) -> Any:
    """Return the one value that is all of the data. Raises `MalformedError`."""
    value, at = decode(data)
    if at != len(data):
        raise MalformedError("bytes behind a value")
    return value


def skip(data: bytes, at: int, end: int) -> int:
    """Return where the value that begins at ``at`` ends, without decoding it.

    Raises `MalformedError` if that is beyond ``end``, or for an unknown constructor.
    """
    while at < end and data[at] == 0:
        if at + 1 < end and data[at + 1] == 0:
            raise MalformedError("a described value as descriptor")
        at = skip(data, at + 1, end)
    if at >= end:
        raise MalformedError("the end where a value was due")
    code = data[at]
    at += 1
    fixed = _FIXED.get(code)
    if fixed is not None:
        return _due(at, end, at + fixed[0])
    return _due(at, end, _sized(data, code, at, end)[1])


def _due(at: int, end: int, stop: int) -> int:
    if stop > end:
        raise MalformedError("the end inside a value")
    return stop


def _sized(data: bytes, code: int, at: int, end: int) -> tuple[int, int]:
    """Return the bounds of the content of a variable, compound or array type."""
    kind = code >> 4
    if kind in (0xA, 0xC, 0xE):
        if at >= end:
            raise MalformedError("the end inside a value")
        start = at + 1
        stop = start + data[at]
    elif kind in (0xB, 0xD, 0xF):
        if at + 4 > end:
            raise MalformedError("the end inside a value")
        start = at + 4
        stop = start + _U32.unpack_from(data, at)[0]
    else:
        raise MalformedError(f"the unknown constructor {code:#04x}")
    return start, _due(at, end, stop)


def _value(data: bytes, at: int, end: int, depth: int, empty: list[int]) -> tuple[Any, int]:
    """Return a value and where it ends. ``empty``: how many values without bytes arrays may have
    yet."""
    if at >= end:
        raise MalformedError("the end where a value was due")
    code = data[at]
    if code:
        return _content(data, code, at + 1, end, depth, empty)
    if depth >= DEPTH_MAX:
        raise MalformedError("values too deep inside each other")
    descriptor, at = _value(data, at + 1, end, depth + 1, empty)
    value, at = _value(data, at, end, depth + 1, empty)
    return Described(descriptor, value), at


def _content(
    data: bytes, code: int, at: int, end: int, depth: int, empty: list[int]
) -> tuple[Any, int]:
    """Return a value whose constructor was read."""
    fixed = _FIXED.get(code)
    if fixed is not None:
        stop = at + fixed[0]
        if stop > end:
            raise MalformedError("the end inside a value")
        return fixed[1](data[at:stop]), stop
    start, stop = _sized(data, code, at, end)
    read = _VARIABLE.get(code)
    if read is not None:
        return read(data[start:stop]), stop
    if depth >= DEPTH_MAX:
        raise MalformedError("values too deep inside each other")
    width = 1 if code in (0xC0, 0xC1, 0xE0) else 4
    if start + width > stop:
        raise MalformedError("the end inside a value")
    count = int.from_bytes(data[start : start + width], "big")
    start += width
    if code in (0xC0, 0xD0):
        return _list(data, count, start, stop, depth, empty), stop
    if code in (0xC1, 0xD1):
        return _map(data, count, start, stop, depth, empty), stop
    if code in (0xE0, 0xF0):
        return _array(data, count, start, stop, depth, empty), stop
    raise MalformedError(f"the unknown constructor {code:#04x}")


def _list(data: bytes, count: int, at: int, end: int, depth: int, empty: list[int]) -> list[object]:
    if count > end - at:
        raise MalformedError("a list of more values than bytes")
    items = []
    for _ in range(count):
        value, at = _value(data, at, end, depth + 1, empty)
        items.append(value)
    if at != end:
        raise MalformedError("bytes behind the last value of a list")
    return items


def _map(
    data: bytes, count: int, at: int, end: int, depth: int, empty: list[int]
) -> dict[object, object]:
    if count & 1:
        raise MalformedError("a map of an odd number of values")
    if count > end - at:
        raise MalformedError("a map of more values than bytes")
    found: dict[object, object] = {}
    for _ in range(count >> 1):
        key, at = _value(data, at, end, depth + 1, empty)
        value, at = _value(data, at, end, depth + 1, empty)
        if isinstance(key, (list, dict)):
            raise MalformedError("a list or map as key of a map")
        if key in found:
            raise MalformedError("a key that a map has twice")
        found[key] = value
    if at != end:
        raise MalformedError("bytes behind the last value of a map")
    return found


def _array(data: bytes, count: int, at: int, end: int, depth: int, empty: list[int]) -> Array:
    descriptor = None
    if at < end and data[at] == 0:
        descriptor, at = _value(data, at + 1, end, depth + 1, empty)
    if at >= end:
        raise MalformedError("an array without constructor")
    code = data[at]
    at += 1
    fixed = _FIXED.get(code)
    if fixed is None and code not in _VARIABLE and code not in _COMPOUND:
        raise MalformedError(f"the unknown constructor {code:#04x}")
    if fixed is not None and fixed[0] == 0:
        empty[0] -= count
        if empty[0] < 0:
            raise MalformedError("arrays of more values without bytes than a value takes")
    elif count > end - at:
        raise MalformedError("an array of more values than bytes")
    items = []
    for _ in range(count):
        value, at = _content(data, code, at, end, depth + 1, empty)
        items.append(value)
    if at != end:
        raise MalformedError("bytes behind the last value of an array")
    return Array(_WIDEST.get(code, code), items, descriptor)


# --- encoding ---


def encode(value: object) -> bytes:
    """Return a value's encoding. Raises `ValueError` for one that its type cannot hold, or that is
    of no type of AMQP 1.0."""
    out = bytearray()
    put(out, value)
    return bytes(out)


def put(out: bytearray, value: object) -> None:
    """Append a value's encoding; errors as in `encode`."""
    kind = type(value)
    write = _WRITERS.get(kind)
    if write is None:
        raise ValueError(f"{kind.__name__} is no type of AMQP 1.0")
    try:
        write(out, value)
    except (struct.error, OverflowError) as error:
        raise ValueError(f"{value!r} is no {kind.__name__}: {error}") from None


def _put_null(out: bytearray, value: Any) -> None:
    out.append(0x40)


def _put_bool(out: bytearray, value: Any) -> None:
    out.append(0x41 if value else 0x42)


def _put_uint(out: bytearray, value: Any) -> None:
    if value == 0:
        out.append(0x43)
    elif 0 < value < 256:
        out += bytes((0x52, value))
    else:
        out.append(0x70)
        out += _U32.pack(value)


def _put_ulong(out: bytearray, value: Any) -> None:
    if value == 0:
        out.append(0x44)
    elif 0 < value < 256:
        out += bytes((0x53, value))
    else:
        out.append(0x80)
        out += _U64.pack(value)


def _put_int(out: bytearray, value: Any) -> None:
    if -128 <= value < 128:
        out.append(0x54)
        out += _I8.pack(value)
    else:
        out.append(0x71)
        out += _I32.pack(value)


def _put_long(out: bytearray, value: Any) -> None:
    if -128 <= value < 128:
        out.append(0x55)
        out += _I8.pack(value)
    else:
        out.append(0x81)
        out += _I64.pack(value)


def _fixed(code: int, packing: struct.Struct) -> Callable[[bytearray, Any], None]:
    def write(out: bytearray, value: Any) -> None:
        packed = packing.pack(value)
        out.append(code)
        out += packed

    return write


def _put_char(out: bytearray, value: Any) -> None:
    if len(value) != 1:
        raise ValueError("a char is one character")
    out.append(0x73)
    out += _U32.pack(ord(value))


def _put_decimal(out: bytearray, value: Any) -> None:
    code = {4: 0x74, 8: 0x84, 16: 0x94}.get(len(value))
    if code is None:
        raise ValueError("a decimal has 4, 8 or 16 bytes")
    out.append(code)
    out += value


def _put_uuid(out: bytearray, value: Any) -> None:
    if len(value) != 16:
        raise ValueError("a uuid has 16 bytes")
    out.append(0x98)
    out += value


def _put_variable(out: bytearray, code: int, raw: bytes) -> None:
    """Append binary, string or symbol; ``code``: the short constructor."""
    if len(raw) < 256:
        out += bytes((code, len(raw)))
    else:
        out.append(code + 0x10)
        out += _U32.pack(len(raw))
    out += raw


def _put_binary(out: bytearray, value: Any) -> None:
    _put_variable(out, 0xA0, bytes(value))


def _put_string(out: bytearray, value: Any) -> None:
    _put_variable(out, 0xA1, value.encode())


def _put_symbol(out: bytearray, value: Any) -> None:
    _put_variable(out, 0xA3, value.encode("ascii"))


def _put_compound(out: bytearray, code: int, count: int, inner: bytearray) -> None:
    """Append a list or map; ``code``: the short constructor."""
    if count < 256 and len(inner) < 255:
        out += bytes((code, len(inner) + 1, count))
    else:
        out.append(code + 0x10)
        out += _U32.pack(len(inner) + 4)
        out += _U32.pack(count)
    out += inner


def _put_list(out: bytearray, value: Any) -> None:
    if not value:
        out.append(0x45)
        return
    inner = bytearray()
    for each in value:
        put(inner, each)
    _put_compound(out, 0xC0, len(value), inner)


def _put_map(out: bytearray, value: Any) -> None:
    inner = bytearray()
    for key, each in value.items():
        put(inner, key)
        put(inner, each)
    _put_compound(out, 0xC1, 2 * len(value), inner)


def _put_described(out: bytearray, value: Any) -> None:
    out.append(0)
    put(out, value.descriptor)
    put(out, value.value)


_WIDE: Final[dict[int, struct.Struct]] = {
    0x50: struct.Struct(">B"),
    0x51: _I8,
    0x56: struct.Struct(">?"),
    0x60: _U16,
    0x61: _I16,
    0x70: _U32,
    0x71: _I32,
    0x72: _F32,
    0x80: _U64,
    0x81: _I64,
    0x82: _F64,
    0x83: _I64,
}


def _put_array(out: bytearray, value: Any) -> None:
    inner = bytearray()
    if value.descriptor is not None:
        inner.append(0)
        put(inner, value.descriptor)
    inner.append(value.code)
    for each in value.items:
        _put_item(inner, value.code, each)
    if len(value.items) < 256 and len(inner) < 255:
        out += bytes((0xE0, len(inner) + 1, len(value.items)))
    else:
        out.append(0xF0)
        out += _U32.pack(len(inner) + 4)
        out += _U32.pack(len(value.items))
    out += inner


def _put_item(out: bytearray, code: int, value: Any) -> None:
    """Append a value of an array, whose constructor is ``code``."""
    packing = _WIDE.get(code)
    if packing is not None:
        out += packing.pack(value)
    elif code in (0xB0, 0xB1, 0xB3):
        raw = value if code == 0xB0 else value.encode()
        out += _U32.pack(len(raw)) + raw
    elif code in (0xD0, 0xD1, 0xF0):
        out += _wide_compound(code, value)
    elif code != 0x40:  # what is left is char, decimals and uuid, which have one form
        one = encode(value)
        if one[0] != code:
            raise ValueError(f"{value!r} in an array of type {code:#04x}")
        out += one[1:]


def _wide_compound(code: int, value: Any) -> bytes:
    """Return a list, map or array without its constructor, with sizes of four bytes."""
    one = encode(value)
    if one[0] == 0x45:
        return b"\0\0\0\4\0\0\0\0"
    if one[0] == code:
        return one[1:]
    if one[0] + 0x10 != code:
        raise ValueError(f"{value!r} in an array of type {code:#04x}")
    return _U32.pack(one[1] + 3) + _U32.pack(one[2]) + one[3:]


_WRITERS: Final[dict[type, Callable[[bytearray, Any], None]]] = {
    type(None): _put_null,
    bool: _put_bool,
    UByte: _fixed(0x50, struct.Struct(">B")),
    UShort: _fixed(0x60, _U16),
    UInt: _put_uint,
    ULong: _put_ulong,
    Byte: _fixed(0x51, _I8),
    Short: _fixed(0x61, _I16),
    Int: _put_int,
    int: _put_long,
    Float: _fixed(0x72, _F32),
    float: _fixed(0x82, _F64),
    DecimalBits: _put_decimal,
    Char: _put_char,
    Milliseconds: _fixed(0x83, _I64),
    Uuid: _put_uuid,
    bytes: _put_binary,
    bytearray: _put_binary,
    str: _put_string,
    Symbol: _put_symbol,
    list: _put_list,
    tuple: _put_list,
    dict: _put_map,
    Described: _put_described,
    Array: _put_array,
}

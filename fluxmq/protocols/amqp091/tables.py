"""Field tables of AMQP 0.9.1: names to values, as RabbitMQ reads and writes them.

Two readings of the same bytes. `decode_table` returns plain Python, to inspect arguments and
headers; `read_values` returns names and typed values unchanged, including duplicate names, to write
them again.

====  =========================  ===========================================
 tag  on the wire                 plain
====  =========================  ===========================================
 t    boolean, any octet but 0    bool
 b B  octet, signed, unsigned     int
 s u  16 bits                     int
 I i  32 bits                     int; written for one that fits ``I``
 l L  64 bits, both signed        int; written for the others
 f d  IEEE 754, single, double    float, written as ``d``
 D    decimal: scale, 32 bits     Decimal
 T    64 bits, seconds            Timestamp
 S    long string                 str; bytes if it is not UTF-8
 x    byte array                  bytes
 V    nothing                     None
 A F  array, table                list, dict
====  =========================  ===========================================

RabbitMQ's letters are not the specification's (its errata); the difference is in ``s``, ``l`` and
``L``.

Source: AMQP 0-9-1 section 4.2.5.5, https://www.rabbitmq.com/amqp-0-9-1-errata.html section 3.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Final

from fluxmq.model.properties import DEPTH_MAX, Timestamp, Value

Table = dict[str, object]
"""Names to plain values."""

ENTRIES_MAX: Final = 1 << 15
"""Maximum values in a table, nested ones included: that many leave room in a property block."""

TABLE_DEPTH_MAX: Final = DEPTH_MAX
"""Maximum nesting of tables and arrays: that of the property block."""

_LENGTH: Final = struct.Struct(">I")
_FIXED: Final[dict[int, tuple[str, struct.Struct]]] = {
    ord(letter): (letter if letter != "L" else "l", struct.Struct(layout))
    for letter, layout in (
        ("b", ">b"),
        ("B", ">B"),
        ("s", ">h"),
        ("u", ">H"),
        ("I", ">i"),
        ("i", ">I"),
        ("l", ">q"),
        ("L", ">q"),
        ("f", ">f"),
        ("d", ">d"),
        ("T", ">Q"),
    )
}
_DECIMAL: Final = struct.Struct(">Bi")
_SCALE_MAX: Final = 255
_VOID: Final = Value("V", None)
_TRUE: Final = Value("t", True)
_FALSE: Final = Value("t", False)


class FieldTableError(ValueError):
    """The bytes are not a field table, or the values do not fit into one; the text says why."""


# --- plain Python ---


def decode_table(raw: bytes) -> Table:
    """Decode a table with its length. Raises `FieldTableError`."""
    if len(raw) < _LENGTH.size or _LENGTH.unpack_from(raw)[0] != len(raw) - _LENGTH.size:
        raise FieldTableError("a length that is not the table's")
    return decode_entries(raw[_LENGTH.size :])


def decode_entries(raw: bytes, *, lenient: bool = False) -> Table:
    """Decode a table without its length. The last value of a duplicate name counts.

    `lenient` accepts names that are not UTF-8, with surrogate escapes, instead of raising
    `FieldTableError`.
    """
    return _plain_table(read_values(raw), "surrogateescape" if lenient else "strict")


def encode_table(table: Mapping[str, object]) -> bytes:
    """Encode a table with its length. A `Value` among the values keeps its type.

    Raises `FieldTableError` for names longer than 255 bytes and for values that no field type
    holds.
    """
    raw = write_values([(_name(name), typed(value)) for name, value in table.items()])
    return _LENGTH.pack(len(raw)) + raw


def plain(value: Value, errors: str = "strict") -> object:
    """Return a typed value as plain Python. `errors` is for nested names. Raises `FieldTableError`
    for names not UTF-8."""
    tag, content = value
    if isinstance(content, bytes):
        if tag == "x":
            return content
        try:
            return content.decode()
        except UnicodeDecodeError:
            return content
    if isinstance(content, tuple):
        if tag == "A":
            return [plain(each, errors) for each in content]
        if tag == "F":
            return _plain_table(content, errors)
        scale, unscaled = content
        return Decimal(unscaled).scaleb(-scale)
    return Timestamp(content) if tag == "T" and isinstance(content, int) else content


def _plain_table(entries: Iterable[tuple[bytes, Value]], errors: str) -> Table:
    try:
        return {name.decode("utf-8", errors): plain(value, errors) for name, value in entries}
    except UnicodeDecodeError:
        raise FieldTableError("a name that is not UTF-8") from None


def typed(value: object, *, integers: str = "", depth: int = 0) -> Value:  # noqa: C901  # one case per type
    """Return a plain value with the type it is written as; a `Value` is returned unchanged.

    `integers`: the tag of all integers instead of the shortest of ``I`` and ``l``. Raises
    `FieldTableError` for values that no type holds.
    """
    match value:
        case Value():
            return value
        case None:
            return _VOID
        case bool():
            return Value("t", value)
        case Timestamp():
            return Value("T", int(value))
        case int():
            return Value(integers or ("I" if -(1 << 31) <= value < 1 << 31 else "l"), int(value))
        case float():
            return Value("d", value)
        case str():
            return Value("S", _utf8(value))
        case bytes():
            return Value("x", value)
        case Decimal():
            return Value("D", _decimal(value))
    if depth > TABLE_DEPTH_MAX:
        raise FieldTableError("tables and arrays too deep inside each other")
    if isinstance(value, Mapping):
        inner = [
            (_name(name), typed(each, integers=integers, depth=depth + 1))
            for name, each in value.items()
        ]
        return Value("F", tuple(inner))
    if isinstance(value, Sequence):
        items = [typed(each, integers=integers, depth=depth + 1) for each in value]
        return Value("A", tuple(items))
    raise FieldTableError(f"a value of type {type(value).__name__}, which no field has")


def _utf8(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise FieldTableError("text that UTF-8 cannot say") from None


def _name(name: str) -> bytes:
    raw = _utf8(name)
    if len(raw) > 255:
        raise FieldTableError("a name of more than 255 bytes")
    return raw


def _decimal(value: Decimal) -> tuple[int, int]:
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int) or exponent < -_SCALE_MAX or exponent > len("4294967296"):
        raise FieldTableError("a decimal that 32 bits cannot hold")
    unscaled = int("".join(map(str, digits)) or "0") * 10 ** max(exponent, 0) * (-1) ** sign
    return max(-exponent, 0), unscaled


# --- reading ---


class _ValueBudget:
    """Counts values, nested ones too."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = ENTRIES_MAX

    def spend(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise FieldTableError("more values than a table takes")


def read_values(raw: bytes) -> tuple[tuple[bytes, Value], ...]:
    """Decode names and typed values of a table without its length, in order. Raises
    `FieldTableError`."""
    return _read_table(raw, 0, len(raw), 0, _ValueBudget())


def _read_table(
    raw: bytes, at: int, end: int, depth: int, budget: _ValueBudget
) -> tuple[tuple[bytes, Value], ...]:
    entries: list[tuple[bytes, Value]] = []
    while at < end:
        start = at + 1
        at = start + raw[at]
        if at >= end:
            raise FieldTableError("the end inside a name")
        name = raw[start:at]
        value, at = _read_value(raw, at, end, depth, budget)
        entries.append((name, value))
    return tuple(entries)


def _read_array(
    raw: bytes, at: int, end: int, depth: int, budget: _ValueBudget
) -> tuple[Value, ...]:
    values: list[Value] = []
    while at < end:
        value, at = _read_value(raw, at, end, depth, budget)
        values.append(value)
    return tuple(values)


def _read_value(
    raw: bytes, at: int, end: int, depth: int, budget: _ValueBudget
) -> tuple[Value, int]:
    """Return the value whose tag is at `at`, before `end`, and its end."""
    budget.spend()
    letter = raw[at]
    at += 1
    if letter in b"SxFA":
        return _read_sized(raw, letter, at, end, depth, budget)
    fixed = _FIXED.get(letter)
    if fixed is not None:
        tag, layout = fixed
        stop = at + layout.size
        if stop > end:
            raise FieldTableError("the end inside a value")
        return Value(tag, layout.unpack_from(raw, at)[0]), stop
    if letter == ord("t"):
        if at >= end:
            raise FieldTableError("the end inside a value")
        return _TRUE if raw[at] else _FALSE, at + 1
    if letter == ord("V"):
        return _VOID, at
    if letter == ord("D"):
        stop = at + _DECIMAL.size
        if stop > end:
            raise FieldTableError("the end inside a value")
        return Value("D", _DECIMAL.unpack_from(raw, at)), stop
    raise FieldTableError(f"a value of type {letter}, which is not known")


def _read_sized(
    raw: bytes, letter: int, at: int, end: int, depth: int, budget: _ValueBudget
) -> tuple[Value, int]:
    start = at + _LENGTH.size
    if start > end:
        raise FieldTableError("the end inside a length")
    stop = start + _LENGTH.unpack_from(raw, at)[0]
    if stop > end:
        raise FieldTableError("a length that points past the end")
    if letter == ord("S"):
        return Value("S", raw[start:stop]), stop
    if letter == ord("x"):
        return Value("x", raw[start:stop]), stop
    if depth == TABLE_DEPTH_MAX:
        raise FieldTableError("tables and arrays too deep inside each other")
    if letter == ord("F"):
        return Value("F", _read_table(raw, start, stop, depth + 1, budget)), stop
    return Value("A", _read_array(raw, start, stop, depth + 1, budget)), stop


# --- writing ---


def write_values(entries: Iterable[tuple[bytes, Value]]) -> bytes:
    """Encode a table without its length. Raises `FieldTableError` for unsuitable values and long
    names."""
    out = bytearray()
    _put_table(out, entries, 0)
    return bytes(out)


def _put_table(out: bytearray, entries: Iterable[tuple[bytes, Value]], depth: int) -> None:
    for name, value in entries:
        if len(name) > 255:
            raise FieldTableError("a name of more than 255 bytes")
        out.append(len(name))
        out += name
        _put_value(out, value, depth)


def _put_value(out: bytearray, value: Value, depth: int) -> None:
    tag, content = value
    out += tag.encode()
    fixed = _FIXED.get(ord(tag))
    try:
        if fixed is not None:
            out += fixed[1].pack(content)
        elif isinstance(content, bytes):
            out += _LENGTH.pack(len(content))
            out += content
        elif tag == "D" and isinstance(content, tuple):
            out += _DECIMAL.pack(*content)
        elif isinstance(content, tuple):
            _put_nested(out, tag, content, depth)
        elif tag == "t":
            out.append(1 if content else 0)
    except (struct.error, OverflowError) as error:
        raise FieldTableError(f"a value that type {tag!r} cannot hold: {error}") from None


def _put_nested(out: bytearray, tag: str, content: tuple[object, ...], depth: int) -> None:
    if depth == TABLE_DEPTH_MAX:
        raise FieldTableError("tables and arrays too deep inside each other")
    start = len(out)
    out += b"\0\0\0\0"
    if tag == "F":
        _put_table(out, content, depth + 1)  # type: ignore[arg-type]  # pairs, by the tag
    else:
        for each in content:
            _put_value(out, each, depth + 1)  # type: ignore[arg-type]  # values, by the tag
    _LENGTH.pack_into(out, start, len(out) - start - _LENGTH.size)

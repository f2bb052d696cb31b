"""Protobuf's encoding of the four messages between nodes
(``proto/fluxmq/cluster/v1/cluster.proto``).

As in proto3, fields with their default value are not sent, and unknown ones are skipped. Source:
https://protobuf.dev/programming-guides/encoding. Messages of this size do not pay for the library,
each release of which refuses the code generated for a later one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

VARINT: Final = 0
FIXED64: Final = 1
BYTES: Final = 2
GROUP: Final = 3
GROUP_END: Final = 4
FIXED32: Final = 5
"""Wire types: how a field's value is delimited."""

NUMBER_MAX: Final = (1 << 29) - 1
KEY_BYTES_MAX: Final = 5
"""Highest number of a field, and the bytes that it takes with the wire type."""
_WORD: Final = (1 << 64) - 1


def varint(value: int) -> bytes:
    """Encode an integer; a negative one as the 64 bits of its two's complement."""
    value &= _WORD
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def number_field(number: int, value: int) -> bytes:
    """Encode a field with an integer or a truth value."""
    return varint(number << 3 | VARINT) + varint(value) if value else b""


def bytes_field(number: int, value: bytes) -> bytes:
    """Encode a field with bytes, or text as UTF-8."""
    return element(number, value) if value else b""


def element(number: int, value: bytes) -> bytes:
    """Encode one of a repeated field's values, which is sent even when it is empty."""
    return varint(number << 3 | BYTES) + varint(len(value)) + value


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the number and value of each field in order; an integer is the 64 bits as sent.

    Fields of other wire types are skipped, and groups with all they hold. Raises ValueError.
    """
    at, size = 0, len(data)
    groups: list[int] = []
    while at < size:
        begin = at
        key, at = _varint(data, at)
        number, kind = key >> 3, key & 7
        if number > NUMBER_MAX or at - begin > KEY_BYTES_MAX or (not number and not groups):
            raise ValueError("a field has a number that none has")
        value: int | bytes | None = None
        if kind == VARINT:
            value, at = _varint(data, at)
        elif kind == BYTES:
            length, at = _varint(data, at)
            value = data[at : at + length]
            at += length
        elif kind in (FIXED64, FIXED32):
            at += 8 if kind == FIXED64 else 4
        elif kind == GROUP:
            groups.append(number)
        elif kind != GROUP_END or not groups or groups.pop() != number:
            raise ValueError("a field is of an unknown type, or ends a group that did not begin")
        if at > size:
            raise ValueError("a field is cut off")
        if value is not None and not groups:
            yield number, value
    if groups:
        raise ValueError("a group does not end")


def number_of(data: bytes, number: int) -> int:
    """Return the last integer of a field, 0 when there is none. Raises ValueError."""
    found = 0
    for each, value in fields(data):
        if each == number and isinstance(value, int):
            found = value
    return found


def bytes_of(data: bytes, number: int) -> bytes:
    """Return the last bytes of a field, empty when there are none. Raises ValueError."""
    found = b""
    for each, value in fields(data):
        if each == number and isinstance(value, bytes):
            found = value
    return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the integer at a position, and the position behind it."""
    if at < len(data) and data[at] < 0x80:  # as nearly always
        return data[at], at + 1
    value = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _WORD, at
        shift += 7
    raise ValueError("a number is cut off, or has more than 64 bits")

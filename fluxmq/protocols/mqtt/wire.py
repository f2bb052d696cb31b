"""The data types of MQTT (MQTT 5 section 1.5): integers, strings, binary data, variable integers.

`Reader` walks over one packet's body and never past its end; every shortage is a malformed packet.
The `write_*` functions mirror it and raise `ValueError`: a value that does not fit is a fault of
this broker, not of the peer.
"""

from __future__ import annotations

from typing import Final

from fluxmq.protocols.mqtt.reasons import malformed

FIELD_BYTES_MAX: Final = 65_535
"""Longest string or binary field: its length is a two byte integer (section 1.5.4)."""

VARIABLE_INTEGER_MAX: Final = 268_435_455
"""Largest variable byte integer, and thereby the longest packet body (section 1.5.5)."""

VARIABLE_INTEGER_BYTES_MAX: Final = 4


class Reader:
    """A cursor over `data` from `position` to `end`; each method takes one field and moves on.

    All methods raise `ProtocolError` (malformed) when the field does not fit or is ill-formed.
    """

    __slots__ = ("data", "end", "position")

    def __init__(self, data: bytes, position: int, end: int) -> None:
        self.data = data
        self.position = position
        self.end = end

    @property
    def remaining(self) -> int:
        """Number of bytes not yet read."""
        return self.end - self.position

    def byte(self) -> int:
        """Read one byte."""
        position = self.position
        if position >= self.end:
            raise malformed("packet ends where a byte was expected")
        self.position = position + 1
        return self.data[position]

    def two_byte_integer(self) -> int:
        """Read two bytes, big-endian (section 1.5.2)."""
        return int.from_bytes(self._take(2), "big")

    def four_byte_integer(self) -> int:
        """Read four bytes, big-endian (section 1.5.3)."""
        return int.from_bytes(self._take(4), "big")

    def variable_integer(self) -> int:
        """Read one to four bytes of seven bits each, in the shortest form [MQTT-1.5.5-1]."""
        found = decode_length(self.data, self.position, end=self.end)
        if found is None:
            raise malformed("packet ends inside a variable byte integer")
        value, self.position = found
        return value

    def binary(self) -> bytes:
        """Read two bytes of length, then as many bytes (section 1.5.6)."""
        return self._take(self.two_byte_integer())

    def string(self) -> str:
        """Read a UTF-8 string (section 1.5.4)."""
        return decode_utf8(self.binary())

    def string_pair(self) -> tuple[str, str]:
        """Read two UTF-8 strings, name and value (section 1.5.7)."""
        return self.string(), self.string()

    def rest(self) -> bytes:
        """Read all remaining bytes."""
        return self._take(self.end - self.position)

    def part(self, length: int) -> Reader:
        """Return a reader over the next `length` bytes; this one moves past them."""
        start = self.position
        if length > self.end - start:
            raise malformed("a length points past the end of the packet")
        self.position = start + length
        return Reader(self.data, start, start + length)

    def finish(self) -> None:
        """Raise `ProtocolError` unless everything was read."""
        if self.position != self.end:
            raise malformed("bytes after the last field of the packet")

    def _take(self, length: int) -> bytes:
        start = self.position
        stop = start + length
        if stop > self.end:
            raise malformed("packet ends inside a field")
        self.position = stop
        return self.data[start:stop]


def decode_utf8(raw: bytes) -> str:
    """Decode a UTF-8 string field.

    Raises `ProtocolError` (malformed) for ill-formed UTF-8 including surrogates [MQTT-1.5.4-1] and
    for U+0000 [MQTT-1.5.4-2]. A leading U+FEFF stays [MQTT-1.5.4-3].
    """
    if 0 in raw:
        raise malformed("string contains U+0000")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        # The decoder's own error would carry the whole field into tracebacks.
        raise malformed("string is not well-formed UTF-8") from None


def decode_length(
    buffer: bytes | bytearray | memoryview,
    position: int,
    *,
    end: int | None = None,
    minimal: bool = True,
) -> tuple[int, int] | None:
    """Decode a variable byte integer (Remaining Length, section 1.5.5) at `position`.

    Returns (value, position after it), or None when `buffer` ends first. `minimal` refuses padded
    forms [MQTT-1.5.5-1]; MQTT 3.1.1 has no such statement. Raises `ProtocolError` (malformed) for a
    fifth byte or a padded form.
    """
    stop = len(buffer) if end is None else end
    value = 0
    shift = 0
    while position < stop:
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if minimal and byte == 0 and shift:
                raise malformed("variable byte integer is longer than needed")
            return value, position
        shift += 7
        if shift == 7 * VARIABLE_INTEGER_BYTES_MAX:
            raise malformed("variable byte integer has more than four bytes")
    return None


def write_variable_integer(value: int) -> bytes:
    """Encode a variable byte integer in its shortest form (section 1.5.5)."""
    if value < 0x80:
        if value < 0:
            raise ValueError("a variable byte integer is never negative")
        return bytes((value,))
    if value > VARIABLE_INTEGER_MAX:
        raise ValueError("value exceeds a variable byte integer")
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def write_two_byte_integer(value: int) -> bytes:
    """Encode two bytes, big-endian. Raises `ValueError` outside 0 to 65 535."""
    if not 0 <= value <= 0xFFFF:
        raise ValueError("value exceeds a two byte integer")
    return value.to_bytes(2, "big")


def write_four_byte_integer(value: int) -> bytes:
    """Encode four bytes, big-endian. Raises `ValueError` outside 0 to 4 294 967 295."""
    if not 0 <= value <= 0xFFFF_FFFF:
        raise ValueError("value exceeds a four byte integer")
    return value.to_bytes(4, "big")


def write_binary(value: bytes) -> bytes:
    """Encode length and bytes. Raises `ValueError` above 65 535 bytes."""
    if len(value) > FIELD_BYTES_MAX:
        raise ValueError("field exceeds 65 535 bytes")
    return len(value).to_bytes(2, "big") + value


def write_string(value: str) -> bytes:
    """Encode length and UTF-8 bytes. Raises `ValueError` for U+0000, surrogates or over-long
    text."""
    if "\0" in value:
        raise ValueError("string contains U+0000")
    return write_binary(value.encode("utf-8"))


def write_string_pair(value: tuple[str, str]) -> bytes:
    """Encode two strings, name and value."""
    return write_string(value[0]) + write_string(value[1])

"""Protocol detection from the first bytes of a connection.

Used by the acceptor to decide whether and to which shard a connection goes. It recognises, it does
not validate: a malformed MQTT CONNECT that can be framed is passed on, because only the shard can
answer it as the standard demands. Nothing here looks further than the limit, and the work is linear
in the bytes (constant for MQTT and TLS), also when they arrive one by one.

Recognised: MQTT CONNECT (3.1.1 section 3.1, 5.0 section 3.1), TLS ClientHello (RFC 8446 section
4.1.2, SNI: RFC 6066 section 3), HTTP/1.1 GET (RFC 6455 section 4.1), AMQP protocol headers (0-9-1
section 4.2.2; 1.0 part 2.2).
"""

from __future__ import annotations

import enum
import zlib
from dataclasses import dataclass
from typing import Final, Literal

CONNECT_BYTES_MAX = 8 * 1024
"""Default bound on the first bytes, which are read before authentication."""

_CONNECT = 0x10
_LENGTH_BYTES_MAX = 4  # MQTT 5 section 1.5.5, 3.1.1 section 2.2.3
_PROTOCOL_NAMES = (
    b"\x00\x04MQTT",
    b"\x00\x06MQIsdp",
)  # the latter is MQTT 3.1: the shard refuses it politely
_LEVELS_WITHOUT_PROPERTIES = (3, 4)
_LEVEL_WITH_PROPERTIES = 5

_TLS_HANDSHAKE = 0x16
_TLS_CLIENT_HELLO = 0x01
_TLS_RECORD_HEADER = 5
_TLS_SERVER_NAME = 0
_HTTP_GET = b"GET "
_AMQP_HEADERS = {
    b"AMQP\x00\x00\x09\x01": "0-9-1",
    b"AMQP\x00\x01\x00\x00": "1.0",
    b"AMQP\x02\x01\x00\x00": "1.0-tls",
    b"AMQP\x03\x01\x00\x00": "1.0-sasl",
}


class WireProtocol(enum.Enum):
    """A protocol recognisable by its first bytes."""

    MQTT = "mqtt"
    TLS = "tls"
    HTTP = "http"
    AMQP091 = "amqp091"
    AMQP10 = "amqp10"


class SniffRefusal(enum.Enum):
    """Reason for rejecting the first bytes. The values are labels of a metric."""

    UNKNOWN_PROTOCOL = "unknown_protocol"
    MALFORMED = "malformed"
    TOO_LARGE = "too_large"
    AMQP_VERSION = "amqp_version"


class NeedMore(enum.Enum):
    """Type of NEED_MORE, so that a type checker can narrow it."""

    NEED_MORE = "need_more"


NEED_MORE: Final = NeedMore.NEED_MORE
"""Result for a valid beginning that does not yet determine the protocol or the shard."""


@dataclass(slots=True)
class Sniffed:
    """Information in the first bytes.

    ``client_id``: MQTT only; None when it cannot be read, empty when the client left it empty.
    ``level``: the MQTT protocol level (4 is 3.1.1, 5 is 5.0). ``oversized``: the CONNECT announces
    more bytes than the limit; it is not complete here. ``server_name``: TLS only; the SNI host
    name, if it is among the bytes.
    """

    wire: WireProtocol
    client_id: bytes | None = None
    level: int = 0
    oversized: bool = False
    server_name: bytes | None = None


def sniff(
    data: bytes | bytearray, limit: int = CONNECT_BYTES_MAX, seen: int = 0
) -> Sniffed | SniffRefusal | Literal[NeedMore.NEED_MORE]:
    """Detect the protocol.

    ``data`` is everything received so far; ``limit`` bounds it, in bytes; ``seen`` is the number of
    bytes examined by an earlier call, which keeps repeated calls linear. NEED_MORE is never the
    answer once ``limit`` bytes are there.
    """
    if not data:
        return NEED_MORE
    first = data[0]
    if first == _CONNECT:
        return _mqtt(data, limit)
    if first == _TLS_HANDSHAKE:
        return _tls(data)
    if first == _HTTP_GET[0]:
        return _http(data, limit, seen)
    if first == 0x41:  # "A"
        return _amqp(data)
    if first >> 4 == _CONNECT >> 4:  # a CONNECT with reserved flags set, MQTT section 2.1.3
        return SniffRefusal.MALFORMED
    return SniffRefusal.UNKNOWN_PROTOCOL


def shard_of(client_id: bytes, workers: int) -> int | None:
    """Return the shard of an MQTT client's session; None (any) for an empty client id.

    Stable over restarts, versions and machines, unlike ``hash``. Clients can compute it: that only
    lets them choose their neighbours, which a shard must bear anyway.
    """
    if not client_id:
        return None
    return zlib.crc32(client_id) % workers


def _variable_integer(data: bytes | bytearray, offset: int) -> tuple[int, int] | None:
    """Read a variable byte integer: its value and the offset after it; None when it is not
    complete.

    Raises ValueError when it is longer than four bytes.
    """
    value = 0
    for position in range(_LENGTH_BYTES_MAX):
        if offset + position >= len(data):
            return None
        byte = data[offset + position]
        value |= (byte & 0x7F) << (7 * position)
        if byte < 0x80:
            return value, offset + position + 1
    raise ValueError("variable byte integer longer than four bytes")


def _mqtt(
    data: bytes | bytearray, limit: int
) -> Sniffed | SniffRefusal | Literal[NeedMore.NEED_MORE]:
    """Examine an MQTT CONNECT: wait until it is complete, or too large to wait for and its client
    id is known or unobtainable."""
    try:
        remaining = _variable_integer(data, 1)
    except ValueError:
        return SniffRefusal.MALFORMED
    if remaining is None:
        return NEED_MORE
    length, start = remaining
    end = start + length
    oversized = end > limit
    if not oversized and len(data) < end:
        # All that is known yet is whether it can be MQTT at all: do not hold a stranger's
        # connection.
        return _known_name(data[start : start + 8])
    verdict = _connect(data, start, min(end, len(data)))
    if verdict is NEED_MORE:
        if not oversized:  # complete, and shorter than its fields announce: the shard answers that
            return Sniffed(WireProtocol.MQTT)
        # Its client id is beyond the limit; any shard can look for it.
        return Sniffed(WireProtocol.MQTT, oversized=True) if len(data) >= limit else NEED_MORE
    if isinstance(verdict, Sniffed):
        verdict.oversized = oversized
    return verdict


def _known_name(beginning: bytes | bytearray) -> SniffRefusal | Literal[NeedMore.NEED_MORE]:
    """Return whether the beginning of a variable header may still become a known protocol name."""
    if any(name.startswith(beginning[: len(name)]) for name in _PROTOCOL_NAMES):
        return NEED_MORE
    return SniffRefusal.UNKNOWN_PROTOCOL


def _connect(
    data: bytes | bytearray, start: int, end: int
) -> Sniffed | SniffRefusal | Literal[NeedMore.NEED_MORE]:
    """Find the client id in ``data[start:end]``, an available part of variable header and
    payload."""
    name_length = 0
    for name in _PROTOCOL_NAMES:
        if data.startswith(name, start, end):
            name_length = len(name)
            break
    if not name_length:
        return _known_name(data[start : min(end, start + 8)])
    offset = start + name_length
    if offset >= end:
        return NEED_MORE
    level = data[offset]
    offset += 4  # level, connect flags, keep alive
    if level == _LEVEL_WITH_PROPERTIES:
        try:
            properties = _variable_integer(data, offset)
        except ValueError:
            return Sniffed(WireProtocol.MQTT, level=level)
        if properties is None:
            return NEED_MORE
        offset = properties[1] + properties[0]
    elif level not in _LEVELS_WITHOUT_PROPERTIES:
        # The format after an unknown level is unknown; the shard answers "unacceptable protocol
        # version".
        return Sniffed(WireProtocol.MQTT, level=level)
    if offset + 2 > end:
        return NEED_MORE
    length = data[offset] << 8 | data[offset + 1]
    offset += 2
    if offset + length > end:
        return NEED_MORE
    return Sniffed(WireProtocol.MQTT, client_id=bytes(data[offset : offset + length]), level=level)


def _http(
    data: bytes | bytearray, limit: int, seen: int
) -> Sniffed | SniffRefusal | Literal[NeedMore.NEED_MORE]:
    """Examine an HTTP GET: wait for the end of its header."""
    if not data.startswith(_HTTP_GET[: len(data)]):
        return SniffRefusal.UNKNOWN_PROTOCOL
    if data.find(b"\r\n\r\n", max(0, seen - 3)) >= 0:
        return Sniffed(WireProtocol.HTTP)
    return SniffRefusal.TOO_LARGE if len(data) >= limit else NEED_MORE


def _amqp(data: bytes | bytearray) -> Sniffed | SniffRefusal | Literal[NeedMore.NEED_MORE]:
    """Examine an AMQP protocol header: eight bytes."""
    header = bytes(data[:8])
    version = _AMQP_HEADERS.get(header)
    if version is not None:
        return Sniffed(WireProtocol.AMQP091 if version == "0-9-1" else WireProtocol.AMQP10)
    if not header.startswith(b"AMQP"[: len(header)]):
        return SniffRefusal.UNKNOWN_PROTOCOL
    return SniffRefusal.AMQP_VERSION if len(header) == 8 else NEED_MORE


def _tls(data: bytes | bytearray) -> Sniffed | SniffRefusal | Literal[NeedMore.NEED_MORE]:
    """Examine a TLS ClientHello: six bytes decide; the server name is a bonus."""
    if len(data) > 1 and data[1] != 0x03:
        return SniffRefusal.UNKNOWN_PROTOCOL
    if len(data) <= _TLS_RECORD_HEADER:
        return NEED_MORE
    if data[_TLS_RECORD_HEADER] != _TLS_CLIENT_HELLO:
        return SniffRefusal.UNKNOWN_PROTOCOL
    return Sniffed(WireProtocol.TLS, server_name=_server_name(bytes(data[:CONNECT_BYTES_MAX])))


def _server_name(data: bytes) -> bytes | None:
    """Return the SNI host name of a ClientHello whose record starts at 0; None when absent,
    truncated or odd."""
    record_end = _TLS_RECORD_HEADER + int.from_bytes(data[3:5])
    data = data[:record_end]
    offset = _TLS_RECORD_HEADER + 4 + 2 + 32  # handshake header, legacy version, random
    try:
        offset += 1 + data[offset]  # legacy session id
        offset += 2 + (data[offset] << 8 | data[offset + 1])  # cipher suites
        offset += 1 + data[offset]  # compression methods
        end = offset + 2 + (data[offset] << 8 | data[offset + 1])
        offset += 2
        while offset + 4 <= min(end, len(data)):
            kind = data[offset] << 8 | data[offset + 1]
            length = data[offset + 2] << 8 | data[offset + 3]
            offset += 4
            if kind == _TLS_SERVER_NAME:
                # u16 list length, u8 name type (0: host name), u16 length, name
                name_length = data[offset + 3] << 8 | data[offset + 4]
                name = data[offset + 5 : offset + 5 + name_length]
                return name if data[offset + 2] == 0 and len(name) == name_length else None
            offset += length
    except IndexError:
        return None
    return None

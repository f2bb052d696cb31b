"""Reads the packets a server sends, with every check that the standard lets a receiver make.

Responsible for turning bytes into `Packet`s and for raising `NonconformingError` wherever the server broke a
rule that can be seen in one packet: reserved bits, property tables, reason codes, UTF-8, shortest
integers. It knows nothing of conversations; `client` does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.conformance import wire

# What a server may put into each packet it sends (table 2-4, and section 3.14.2.2.2: never a
# Session Expiry Interval in a DISCONNECT from a server).
_ANSWER = {wire.REASON_STRING, wire.USER_PROPERTY}
SERVER_PROPERTIES: dict[int, set[int]] = {
    wire.CONNACK: {
        wire.SESSION_EXPIRY_INTERVAL, wire.RECEIVE_MAXIMUM, wire.MAXIMUM_QOS, wire.RETAIN_AVAILABLE,
        wire.MAXIMUM_PACKET_SIZE, wire.ASSIGNED_CLIENT_IDENTIFIER, wire.TOPIC_ALIAS_MAXIMUM,
        wire.WILDCARD_SUBSCRIPTION_AVAILABLE, wire.SUBSCRIPTION_IDENTIFIER_AVAILABLE,
        wire.SHARED_SUBSCRIPTION_AVAILABLE, wire.SERVER_KEEP_ALIVE, wire.RESPONSE_INFORMATION,
        wire.SERVER_REFERENCE, wire.AUTHENTICATION_METHOD, wire.AUTHENTICATION_DATA,
    } | _ANSWER,
    wire.PUBLISH: {
        wire.PAYLOAD_FORMAT_INDICATOR, wire.MESSAGE_EXPIRY_INTERVAL, wire.TOPIC_ALIAS, wire.RESPONSE_TOPIC,
        wire.CORRELATION_DATA, wire.USER_PROPERTY, wire.SUBSCRIPTION_IDENTIFIER, wire.CONTENT_TYPE,
    },
    wire.PUBACK: _ANSWER, wire.PUBREC: _ANSWER, wire.PUBREL: _ANSWER, wire.PUBCOMP: _ANSWER,
    wire.SUBACK: _ANSWER, wire.UNSUBACK: _ANSWER,
    wire.DISCONNECT: {wire.SERVER_REFERENCE} | _ANSWER,
    wire.AUTH: {wire.AUTHENTICATION_METHOD, wire.AUTHENTICATION_DATA} | _ANSWER,
}  # fmt: skip
REPEATABLE = {wire.USER_PROPERTY, wire.SUBSCRIPTION_IDENTIFIER}

# Reason codes a server may send, by packet (table 2-6 and the tables of chapter 3).
SERVER_REASONS: dict[int, set[int]] = {
    wire.CONNACK: {0x00, *range(0x80, 0x8B), 0x8C, 0x90, 0x95, 0x97, 0x99, *range(0x9A, 0x9E), 0x9F},
    wire.PUBACK: {0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99},
    wire.PUBREC: {0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99},
    wire.PUBREL: {0x00, 0x92},
    wire.PUBCOMP: {0x00, 0x92},
    wire.SUBACK: {0x00, 0x01, 0x02, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2},
    wire.UNSUBACK: {0x00, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91},
    wire.DISCONNECT: {
        0x00, 0x80, 0x81, 0x82, 0x83, 0x87, 0x89, *range(0x8B, 0x91), *range(0x93, 0xA3),
    },
    wire.AUTH: {0x00, 0x18},
}  # fmt: skip


class NonconformingError(AssertionError):
    """The server broke the standard: the message says which rule."""


@dataclass
class Packet:
    """One packet as received; fields that a packet has not are left at their defaults."""

    kind: int
    flags: int
    size: int
    packet_id: int = 0
    topic: str = ""
    payload: bytes = b""
    qos: int = 0
    retain: bool = False
    dup: bool = False
    session_present: bool = False
    reason: int = 0
    reasons: list[int] = field(default_factory=list)
    properties: list[tuple[int, Any]] = field(default_factory=list)

    def property(self, identifier: int, default: Any = None) -> Any:
        """The value of a property that comes at most once."""
        return next((value for key, value in self.properties if key == identifier), default)

    def all(self, identifier: int) -> list[Any]:
        """The values of a property that may be repeated, in order."""
        return [value for key, value in self.properties if key == identifier]

    def __repr__(self) -> str:
        shown = [f"id={self.packet_id}"] if self.packet_id else []
        if self.kind == wire.PUBLISH:
            shown += [f"{self.topic!r}", f"qos={self.qos}", f"{self.payload[:40]!r}"]
            shown += [name for name in ("retain", "dup") if getattr(self, name)]
        if self.reason:
            shown.append(f"reason=0x{self.reason:02X}")
        if self.reasons:
            shown.append(f"reasons={[hex(reason) for reason in self.reasons]}")
        if self.properties:
            shown.append(f"properties={self.properties}")
        return f"<{wire.NAMES[self.kind]} {' '.join(shown)}>"


class Reader:
    """Takes values off the front of a packet's body; NonconformingError when they are not there."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def left(self) -> int:
        """Bytes not taken yet."""
        return len(self.data) - self.at

    def take(self, count: int) -> bytes:
        """The next `count` bytes."""
        if self.left() < count:
            raise NonconformingError(
                f"packet ends {count - self.left()} bytes early: {self.data.hex()}"
            )
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self, size: int) -> int:
        """A fixed-size integer."""
        return int.from_bytes(self.take(size), "big")

    def variable(self) -> int:
        """A Variable Byte Integer; longer than needed is an error (MQTT-1.5.5-1)."""
        total = 0
        for position in range(4):
            byte = self.number(1)
            total |= (byte & 0x7F) << 7 * position
            if byte < 0x80:
                if position and not byte:
                    raise NonconformingError(
                        "variable byte integer longer than needed [MQTT-1.5.5-1]"
                    )
                return total
        raise NonconformingError("variable byte integer of more than four bytes")

    def string(self) -> str:
        """A UTF-8 Encoded String, checked against MQTT-1.5.4-1 and -2."""
        data = self.take(self.number(2))
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            raise NonconformingError(
                f"ill-formed UTF-8 from the server [MQTT-1.5.4-1]: {data!r}"
            ) from error
        if "\0" in text:
            raise NonconformingError("U+0000 from the server [MQTT-1.5.4-2]")
        return text

    def properties(self, kind: int) -> list[tuple[int, Any]]:
        """The properties of a packet from a server, checked against table 2-4."""
        length = self.variable()
        part = Reader(self.take(length))
        found: list[tuple[int, Any]] = []
        while part.left():
            identifier = part.variable()
            if identifier not in SERVER_PROPERTIES[kind]:
                raise NonconformingError(
                    f"property 0x{identifier:02X} in a {wire.NAMES[kind]} from a server"
                )
            if identifier not in REPEATABLE and any(key == identifier for key, _ in found):
                raise NonconformingError(
                    f"property 0x{identifier:02X} twice in a {wire.NAMES[kind]}"
                )
            found.append((identifier, part.property(identifier)))
        return found

    def property(self, identifier: int) -> Any:
        """One property's value by its form."""
        match wire.FORMS[identifier]:
            case "byte":
                return self.number(1)
            case "two":
                return self.number(2)
            case "four":
                return self.number(4)
            case "variable":
                return self.variable()
            case "binary":
                return self.take(self.number(2))
            case "pair":
                return self.string(), self.string()
        return self.string()


def decode(version: int, first_byte: int, body: bytes, size: int) -> Packet:
    """One packet from a server; raises NonconformingError where it breaks the standard."""
    kind, flags = first_byte >> 4, first_byte & 15
    packet = Packet(kind, flags, size)
    if kind != wire.PUBLISH and flags != wire.FLAGS.get(kind, 0):
        raise NonconformingError(f"flags {flags:04b} in a {wire.NAMES[kind]} [MQTT-2.1.3-1]")
    read = Reader(body)
    if kind == wire.CONNACK:
        _decode_connack(version, packet, read)
    elif kind == wire.PUBLISH:
        _decode_publish(version, packet, read)
    elif kind in (wire.PUBACK, wire.PUBREC, wire.PUBREL, wire.PUBCOMP):
        packet.packet_id = _packet_id(read)
        if version == wire.V5 and read.left():
            _reason(packet, read)
            packet.properties = read.properties(kind) if read.left() else []
    elif kind in (wire.SUBACK, wire.UNSUBACK):
        packet.packet_id = _packet_id(read)
        if version == wire.V5:
            packet.properties = read.properties(kind)
        packet.reasons = list(read.take(read.left()))
        allowed = SERVER_REASONS[kind] if version == wire.V5 else {0, 1, 2, 0x80}
        if not set(packet.reasons) <= allowed:
            raise NonconformingError(f"reason codes in {packet} [MQTT-3.9.3-2]")
    elif kind in (wire.DISCONNECT, wire.AUTH) and version == wire.V5:
        if read.left():
            _reason(packet, read)
            packet.properties = read.properties(kind) if read.left() else []
    elif kind != wire.PINGRESP:
        raise NonconformingError(f"a server sent {wire.NAMES[kind]} in version {version}")
    if read.left():
        raise NonconformingError(f"{read.left()} bytes too many in {packet}")
    return packet


def _packet_id(read: Reader) -> int:
    packet_id = read.number(2)
    if not packet_id:
        raise NonconformingError("packet identifier 0 from the server [MQTT-2.2.1-4]")
    return packet_id


def _reason(packet: Packet, read: Reader) -> None:
    packet.reason = read.number(1)
    if packet.reason not in SERVER_REASONS[packet.kind]:
        raise NonconformingError(
            f"reason code 0x{packet.reason:02X} in a {wire.NAMES[packet.kind]}"
        )


def _decode_connack(version: int, packet: Packet, read: Reader) -> None:
    flags = read.number(1)
    if flags & ~1:
        raise NonconformingError(f"connect acknowledge flags {flags:08b} [MQTT-3.2.2-1]")
    packet.session_present = bool(flags)
    if version == wire.V5:
        _reason(packet, read)
        packet.properties = read.properties(wire.CONNACK)
    else:
        packet.reason = read.number(1)
        if packet.reason > 5:
            raise NonconformingError(f"connect return code {packet.reason} (3.1.1 table 3.1)")
    if packet.reason and packet.session_present:
        raise NonconformingError("Session Present with a refusal [MQTT-3.2.2-6]")


def _decode_publish(version: int, packet: Packet, read: Reader) -> None:
    packet.dup, packet.retain = bool(packet.flags & 8), bool(packet.flags & 1)
    packet.qos = packet.flags >> 1 & 3
    if packet.qos == 3:
        raise NonconformingError("both QoS bits set [MQTT-3.3.1-4]")
    if packet.dup and not packet.qos:
        raise NonconformingError("DUP with QoS 0 [MQTT-3.3.1-2]")
    packet.topic = read.string()
    if "+" in packet.topic or "#" in packet.topic:
        raise NonconformingError(f"wildcard in topic name {packet.topic!r} [MQTT-3.3.2-2]")
    if packet.qos:
        packet.packet_id = _packet_id(read)
    if version == wire.V5:
        packet.properties = read.properties(wire.PUBLISH)
    packet.payload = read.take(read.left())

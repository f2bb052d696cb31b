"""MQTT 3.1.1 and 5.0 on the wire, written from the standard for the tests alone.

Responsible for building packets (right ones, and through `frame` any bytes whatever). It shares
nothing with the broker's own codec, so that a mistake made there is not repeated here. It knows no
sockets; `received` reads what comes back.

`version` is the protocol level byte: 4 for 3.1.1, 5 for 5.0. Section numbers are those of MQTT 5.0
unless 3.1.1 is named.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

V4 = 4
V5 = 5

CONNECT, CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP = range(1, 8)
SUBSCRIBE, SUBACK, UNSUBSCRIBE, UNSUBACK, PINGREQ, PINGRESP, DISCONNECT, AUTH = range(8, 16)

NAMES = [
    "reserved",
    "CONNECT",
    "CONNACK",
    "PUBLISH",
    "PUBACK",
    "PUBREC",
    "PUBREL",
    "PUBCOMP",
    "SUBSCRIBE",
    "SUBACK",
    "UNSUBSCRIBE",
    "UNSUBACK",
    "PINGREQ",
    "PINGRESP",
    "DISCONNECT",
    "AUTH",
]

# Fixed header flags that are not free to choose (table 2-2).
FLAGS = {PUBREL: 0x02, SUBSCRIBE: 0x02, UNSUBSCRIBE: 0x02}

PAYLOAD_FORMAT_INDICATOR = 0x01
MESSAGE_EXPIRY_INTERVAL = 0x02
CONTENT_TYPE = 0x03
RESPONSE_TOPIC = 0x08
CORRELATION_DATA = 0x09
SUBSCRIPTION_IDENTIFIER = 0x0B
SESSION_EXPIRY_INTERVAL = 0x11
ASSIGNED_CLIENT_IDENTIFIER = 0x12
SERVER_KEEP_ALIVE = 0x13
AUTHENTICATION_METHOD = 0x15
AUTHENTICATION_DATA = 0x16
REQUEST_PROBLEM_INFORMATION = 0x17
WILL_DELAY_INTERVAL = 0x18
REQUEST_RESPONSE_INFORMATION = 0x19
RESPONSE_INFORMATION = 0x1A
SERVER_REFERENCE = 0x1C
REASON_STRING = 0x1F
RECEIVE_MAXIMUM = 0x21
TOPIC_ALIAS_MAXIMUM = 0x22
TOPIC_ALIAS = 0x23
MAXIMUM_QOS = 0x24
RETAIN_AVAILABLE = 0x25
USER_PROPERTY = 0x26
MAXIMUM_PACKET_SIZE = 0x27
WILDCARD_SUBSCRIPTION_AVAILABLE = 0x28
SUBSCRIPTION_IDENTIFIER_AVAILABLE = 0x29
SHARED_SUBSCRIPTION_AVAILABLE = 0x2A

# Table 2-4: the form of each property's value.
FORMS = {
    PAYLOAD_FORMAT_INDICATOR: "byte",
    MESSAGE_EXPIRY_INTERVAL: "four",
    CONTENT_TYPE: "string",
    RESPONSE_TOPIC: "string",
    CORRELATION_DATA: "binary",
    SUBSCRIPTION_IDENTIFIER: "variable",
    SESSION_EXPIRY_INTERVAL: "four",
    ASSIGNED_CLIENT_IDENTIFIER: "string",
    SERVER_KEEP_ALIVE: "two",
    AUTHENTICATION_METHOD: "string",
    AUTHENTICATION_DATA: "binary",
    REQUEST_PROBLEM_INFORMATION: "byte",
    WILL_DELAY_INTERVAL: "four",
    REQUEST_RESPONSE_INFORMATION: "byte",
    RESPONSE_INFORMATION: "string",
    SERVER_REFERENCE: "string",
    REASON_STRING: "string",
    RECEIVE_MAXIMUM: "two",
    TOPIC_ALIAS_MAXIMUM: "two",
    TOPIC_ALIAS: "two",
    MAXIMUM_QOS: "byte",
    RETAIN_AVAILABLE: "byte",
    USER_PROPERTY: "pair",
    MAXIMUM_PACKET_SIZE: "four",
    WILDCARD_SUBSCRIPTION_AVAILABLE: "byte",
    SUBSCRIPTION_IDENTIFIER_AVAILABLE: "byte",
    SHARED_SUBSCRIPTION_AVAILABLE: "byte",
}

Properties = Sequence[tuple[int, Any]]


class Filter(NamedTuple):
    """One entry of a SUBSCRIBE: a filter and its options byte (QoS alone in 3.1.1)."""

    filter: str | bytes
    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0

    @property
    def options(self) -> int:
        """The subscription options byte, section 3.8.3.1."""
        return (
            self.qos
            | self.no_local << 2
            | self.retain_as_published << 3
            | self.retain_handling << 4
        )


@dataclass(frozen=True)
class Will:
    """The will of a CONNECT."""

    topic: str | bytes
    payload: bytes = b""
    qos: int = 0
    retain: bool = False
    properties: Properties = ()


def two(number: int) -> bytes:
    """A Two Byte Integer (1.5.2)."""
    return number.to_bytes(2, "big")


def four(number: int) -> bytes:
    """A Four Byte Integer (1.5.3)."""
    return number.to_bytes(4, "big")


def variable(number: int) -> bytes:
    """A Variable Byte Integer in as few bytes as possible (1.5.5)."""
    out = bytearray()
    while True:
        number, low = divmod(number, 128)
        out.append(low | (0x80 if number else 0))
        if not number:
            return bytes(out)


def binary(data: bytes) -> bytes:
    """Binary Data: a length of two bytes, then the bytes (1.5.6)."""
    return two(len(data)) + data


def string(text: str | bytes) -> bytes:
    """A UTF-8 Encoded String; bytes pass as they are, so that ill-formed ones can be sent."""
    return binary(text.encode() if isinstance(text, str) else text)


def properties(entries: Properties) -> bytes:
    """Property Length and properties, in the order given (2.2.2)."""
    body = b"".join(
        bytes([identifier]) + _value(identifier, value) for identifier, value in entries
    )
    return variable(len(body)) + body


def _value(identifier: int, value: Any) -> bytes:
    match FORMS[identifier]:
        case "byte":
            return bytes([value])
        case "two":
            return two(value)
        case "four":
            return four(value)
        case "variable":
            return variable(value)
        case "binary":
            return binary(value)
        case "pair":
            return string(value[0]) + string(value[1])
    return string(value)


def frame(first_byte: int, body: bytes = b"") -> bytes:
    """A whole packet from its first byte and what follows the Remaining Length."""
    return bytes([first_byte]) + variable(len(body)) + body


def connect(  # every field of the packet
    version: int,
    client_id: str | bytes = "",
    *,
    clean: bool = True,
    keep_alive: int = 60,
    will: Will | None = None,
    username: str | bytes | None = None,
    password: bytes | None = None,
    props: Properties = (),
    protocol: bytes = b"MQTT",
    level: int | None = None,
    flags: int | None = None,
) -> bytes:
    """A CONNECT; `protocol`, `level` and `flags` replace what would be right."""
    bits = clean << 1
    payload = string(client_id)
    if will is not None:
        bits |= 0x04 | will.qos << 3 | will.retain << 5
        payload += properties(will.properties) if version == V5 else b""
        payload += string(will.topic) + binary(will.payload)
    if username is not None:
        bits |= 0x80
        payload += string(username)
    if password is not None:
        bits |= 0x40
        payload += binary(password)
    head = string(protocol) + bytes([version if level is None else level])
    head += bytes([bits if flags is None else flags]) + two(keep_alive)
    if version == V5:
        head += properties(props)
    return frame(CONNECT << 4, head + payload)


def publish(
    version: int,
    topic: str | bytes,
    payload: bytes = b"",
    *,
    qos: int = 0,
    packet_id: int = 0,
    retain: bool = False,
    dup: bool = False,
    props: Properties = (),
) -> bytes:
    """A PUBLISH; a packet identifier is written when `qos` is not 0."""
    body = string(topic) + (two(packet_id) if qos else b"")
    if version == V5:
        body += properties(props)
    return frame(PUBLISH << 4 | dup << 3 | qos << 1 | retain, body + payload)


def acknowledge(
    kind: int, packet_id: int, reason: int | None = None, props: Properties | None = None
) -> bytes:
    """PUBACK, PUBREC, PUBREL or PUBCOMP; reason and properties are left out unless given."""
    body = two(packet_id)
    if reason is not None:
        body += bytes([reason])
    if props is not None:
        body += properties(props)
    return frame(kind << 4 | FLAGS.get(kind, 0), body)


def subscribe(
    version: int, packet_id: int, filters: Iterable[Filter], props: Properties = ()
) -> bytes:
    """A SUBSCRIBE."""
    body = two(packet_id) + (properties(props) if version == V5 else b"")
    body += b"".join(string(entry.filter) + bytes([entry.options]) for entry in filters)
    return frame(SUBSCRIBE << 4 | 2, body)


def unsubscribe(
    version: int, packet_id: int, filters: Iterable[str | bytes], props: Properties = ()
) -> bytes:
    """An UNSUBSCRIBE."""
    body = two(packet_id) + (properties(props) if version == V5 else b"")
    return frame(UNSUBSCRIBE << 4 | 2, body + b"".join(string(entry) for entry in filters))


def pingreq() -> bytes:
    """A PINGREQ."""
    return frame(PINGREQ << 4)


def disconnect(reason: int | None = None, props: Properties | None = None) -> bytes:
    """A DISCONNECT; reason and properties (5.0 only) are left out unless given."""
    body = b"" if reason is None else bytes([reason])
    return frame(DISCONNECT << 4, body + (b"" if props is None else properties(props)))


def auth(reason: int, props: Properties = ()) -> bytes:
    """An AUTH (5.0 only)."""
    return frame(AUTH << 4, bytes([reason]) + properties(props))

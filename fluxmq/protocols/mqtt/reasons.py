"""Reason codes: causes of failures, in the numbers of MQTT 5 section 2.4.

Sessions of both versions use MQTT 5 reason codes, into which they translate the engine's outcomes;
MQTT 3.1.1 is served by translation at the edge: five CONNACK return codes, the SUBACK failure 0x80,
and otherwise a closed connection.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from fluxmq.protocols.mqtt.packet_types import PacketType, Sender


class Reason(IntEnum):
    """A reason code (MQTT 5 section 2.4). Values below 0x80 are successes."""

    SUCCESS = 0x00
    NORMAL_DISCONNECTION = 0x00
    GRANTED_QOS_0 = 0x00
    GRANTED_QOS_1 = 0x01
    GRANTED_QOS_2 = 0x02
    DISCONNECT_WITH_WILL = 0x04
    NO_MATCHING_SUBSCRIBERS = 0x10
    NO_SUBSCRIPTION_EXISTED = 0x11
    CONTINUE_AUTHENTICATION = 0x18
    RE_AUTHENTICATE = 0x19
    UNSPECIFIED_ERROR = 0x80
    MALFORMED_PACKET = 0x81
    PROTOCOL_ERROR = 0x82
    IMPLEMENTATION_SPECIFIC_ERROR = 0x83
    UNSUPPORTED_PROTOCOL_VERSION = 0x84
    CLIENT_IDENTIFIER_NOT_VALID = 0x85
    BAD_USER_NAME_OR_PASSWORD = 0x86
    NOT_AUTHORIZED = 0x87
    SERVER_UNAVAILABLE = 0x88
    SERVER_BUSY = 0x89
    BANNED = 0x8A
    SERVER_SHUTTING_DOWN = 0x8B
    BAD_AUTHENTICATION_METHOD = 0x8C
    KEEP_ALIVE_TIMEOUT = 0x8D
    SESSION_TAKEN_OVER = 0x8E
    TOPIC_FILTER_INVALID = 0x8F
    TOPIC_NAME_INVALID = 0x90
    PACKET_IDENTIFIER_IN_USE = 0x91
    PACKET_IDENTIFIER_NOT_FOUND = 0x92
    RECEIVE_MAXIMUM_EXCEEDED = 0x93
    TOPIC_ALIAS_INVALID = 0x94
    PACKET_TOO_LARGE = 0x95
    MESSAGE_RATE_TOO_HIGH = 0x96
    QUOTA_EXCEEDED = 0x97
    ADMINISTRATIVE_ACTION = 0x98
    PAYLOAD_FORMAT_INVALID = 0x99
    RETAIN_NOT_SUPPORTED = 0x9A
    QOS_NOT_SUPPORTED = 0x9B
    USE_ANOTHER_SERVER = 0x9C
    SERVER_MOVED = 0x9D
    SHARED_SUBSCRIPTIONS_NOT_SUPPORTED = 0x9E
    CONNECTION_RATE_EXCEEDED = 0x9F
    MAXIMUM_CONNECT_TIME = 0xA0
    SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED = 0xA1
    WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED = 0xA2


class ProtocolError(Exception):
    """The peer broke the protocol.

    `reason` is the MQTT 5 reason code to answer with, `text` says what was wrong (never quoting the
    peer's bytes). `version` is set for errors in CONNECT only: the version in which a CONNACK may
    answer (4 or 5), 0 when none may be sent.
    """

    def __init__(self, reason: int, text: str, version: int = 0) -> None:
        super().__init__(reason, text)
        self.reason = int(reason)
        self.text = text
        self.version = version

    def __str__(self) -> str:
        return f"0x{self.reason:02X} {self.text}"


def malformed(text: str) -> ProtocolError:
    """Return the error for an unparsable packet (MQTT 5 section 1.2, Malformed Packet)."""
    return ProtocolError(Reason.MALFORMED_PACKET, text)


def protocol_error(text: str) -> ProtocolError:
    """Return the error for a parsable packet with forbidden content (section 1.2, Protocol
    Error)."""
    return ProtocolError(Reason.PROTOCOL_ERROR, text)


_PUBLISH_ANSWERS: Final = frozenset({0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99})
_RELEASE_ANSWERS: Final = frozenset({0x00, 0x92})
_DISCONNECT_BOTH: Final = frozenset(
    {0x00, 0x80, 0x81, 0x82, 0x83, 0x90, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99}
)

_ALLOWED: Final[dict[PacketType, frozenset[int]]] = {
    PacketType.CONNACK: frozenset({0x00, *range(0x80, 0x8B), 0x8C, 0x90, 0x95, 0x97})
    | frozenset({0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9F}),
    PacketType.PUBACK: _PUBLISH_ANSWERS,
    PacketType.PUBREC: _PUBLISH_ANSWERS,
    PacketType.PUBREL: _RELEASE_ANSWERS,
    PacketType.PUBCOMP: _RELEASE_ANSWERS,
    PacketType.SUBACK: frozenset({0x00, 0x01, 0x02, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97})
    | frozenset({0x9E, 0xA1, 0xA2}),
    PacketType.UNSUBACK: frozenset({0x00, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91}),
}

_ALLOWED_BY_SENDER: Final[dict[tuple[PacketType, Sender], frozenset[int]]] = {
    (PacketType.DISCONNECT, Sender.CLIENT): _DISCONNECT_BOTH | {0x04},
    (PacketType.DISCONNECT, Sender.SERVER): _DISCONNECT_BOTH
    | {0x87, 0x89, 0x8B, 0x8C, 0x8D, 0x8E, 0x8F, *range(0x9A, 0xA3)},
    (PacketType.AUTH, Sender.CLIENT): frozenset({0x18, 0x19}),
    (PacketType.AUTH, Sender.SERVER): frozenset({0x00, 0x18}),
}


def allowed(kind: PacketType, sender: Sender) -> frozenset[int]:
    """Return the reason codes that `sender` may put into a packet of this kind (MQTT 5 chapter 3).

    Empty for packets without a reason code.
    """
    found = _ALLOWED.get(kind)
    if found is None:
        found = _ALLOWED_BY_SENDER.get((kind, sender), frozenset())
    return found


_RETURN_CODES: Final[dict[int, int]] = {
    Reason.SUCCESS: 0,
    Reason.UNSUPPORTED_PROTOCOL_VERSION: 1,
    Reason.CLIENT_IDENTIFIER_NOT_VALID: 2,
    Reason.SERVER_UNAVAILABLE: 3,
    Reason.SERVER_BUSY: 3,
    Reason.SERVER_SHUTTING_DOWN: 3,
    Reason.QUOTA_EXCEEDED: 3,
    Reason.CONNECTION_RATE_EXCEEDED: 3,
    Reason.USE_ANOTHER_SERVER: 3,
    Reason.SERVER_MOVED: 3,
    Reason.BAD_USER_NAME_OR_PASSWORD: 4,
    Reason.NOT_AUTHORIZED: 5,
    Reason.BANNED: 5,
    Reason.BAD_AUTHENTICATION_METHOD: 5,
}

_FROM_RETURN_CODE: Final[dict[int, Reason]] = {
    0: Reason.SUCCESS,
    1: Reason.UNSUPPORTED_PROTOCOL_VERSION,
    2: Reason.CLIENT_IDENTIFIER_NOT_VALID,
    3: Reason.SERVER_UNAVAILABLE,
    4: Reason.BAD_USER_NAME_OR_PASSWORD,
    5: Reason.NOT_AUTHORIZED,
}


def connack_return_code(reason: int) -> int | None:
    """Return the MQTT 3.1.1 CONNACK return code (table 3.1) for `reason`.

    None when no return code applies: the connection is then closed without a CONNACK [MQTT-3.2.2-6
    of 3.1.1].
    """
    return _RETURN_CODES.get(reason)


def reason_of_return_code(code: int) -> Reason:
    """Return the reason code for an MQTT 3.1.1 CONNACK return code.

    Raises `ProtocolError` for a reserved return code (6 to 255).
    """
    reason = _FROM_RETURN_CODE.get(code)
    if reason is None:
        raise protocol_error("CONNACK carries a reserved return code")
    return reason

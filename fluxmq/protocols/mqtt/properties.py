"""The property table of MQTT 5 (section 2.2.2), and decoding and encoding by it.

One row per property: identifier, attribute, data type, the packets that may carry it and its valid
values. Decoding and encoding walk the table; a violation is answered with the code of the statement
it breaks, 0x81 if the bytes make no sense in this packet and 0x82 if they do but are forbidden.

A PUBLISH in transit keeps its properties as bytes: `parse_publish_properties` checks them once and
yields those that must be passed on unaltered and in order ([MQTT-3.3.2-4], [MQTT-3.3.2-15] to
[MQTT-3.3.2-20]), `properties_with` puts those bytes after the outgoing packet's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, NamedTuple

from fluxmq.protocols.mqtt import wire
from fluxmq.protocols.mqtt.packet_types import PacketType
from fluxmq.protocols.mqtt.reasons import ProtocolError, Reason, malformed, protocol_error
from fluxmq.protocols.mqtt.topics import validate_topic

USER_PROPERTIES_MAX: Final = 128
"""Default bound on user properties in one packet: they are kept and copied for every receiver."""


@dataclass(slots=True)
class Properties:
    """The properties of one packet or will; None means absent. Integers and flags as on the wire.

    Times are seconds. `subscription_identifiers` and `user_properties` keep their order.
    """

    payload_format_indicator: int | None = None
    message_expiry_interval: int | None = None
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None
    subscription_identifiers: list[int] = field(default_factory=list)
    session_expiry_interval: int | None = None
    assigned_client_identifier: str | None = None
    server_keep_alive: int | None = None
    authentication_method: str | None = None
    authentication_data: bytes | None = None
    request_problem_information: int | None = None
    will_delay_interval: int | None = None
    request_response_information: int | None = None
    response_information: str | None = None
    server_reference: str | None = None
    reason_string: str | None = None
    receive_maximum: int | None = None
    topic_alias_maximum: int | None = None
    topic_alias: int | None = None
    maximum_qos: int | None = None
    retain_available: int | None = None
    user_properties: list[tuple[str, str]] = field(default_factory=list)
    maximum_packet_size: int | None = None
    wildcard_subscription_available: int | None = None
    subscription_identifiers_available: int | None = None
    shared_subscription_available: int | None = None


class DataType(Enum):
    """Encoding of a property's value: (method of `wire.Reader`, writer)."""

    BYTE = ("byte", lambda value: bytes((value,)))
    TWO_BYTES = ("two_byte_integer", wire.write_two_byte_integer)
    FOUR_BYTES = ("four_byte_integer", wire.write_four_byte_integer)
    VARIABLE = ("variable_integer", wire.write_variable_integer)
    STRING = ("string", wire.write_string)
    BINARY = ("binary", wire.write_binary)
    PAIR = ("string_pair", wire.write_string_pair)

    def __init__(self, method: str, write: Callable[[Any], bytes]) -> None:
        self.method = method
        self.write = write


class PropertyRule(NamedTuple):
    """One row of the property table (MQTT 5 table 2-4).

    `check` raises `ProtocolError` for a forbidden value.
    """

    identifier: int
    attribute: str
    data_type: DataType
    packets: frozenset[PacketType]
    check: Callable[[Any], None] | None = None

    def may_repeat(self, packet: PacketType) -> bool:
        """Return whether the property may occur more than once in this packet."""
        return self.identifier == _USER_PROPERTY or (
            self.identifier == _SUBSCRIPTION_IDENTIFIER and packet is PacketType.PUBLISH
        )


def _flag(value: int) -> None:
    if value > 1:
        raise protocol_error("property must be 0 or 1")


def _not_zero(value: int) -> None:
    if value == 0:
        raise protocol_error("property must not be 0")


def _alias(value: int) -> None:
    if value == 0:
        raise ProtocolError(Reason.TOPIC_ALIAS_INVALID, "topic alias must not be 0")


def _response_topic(value: str) -> None:
    """Check [MQTT-3.3.2-14] no wildcards, [MQTT-4.7.3-1] at least one character."""
    try:
        validate_topic(value.encode("utf-8"))
    except ProtocolError as error:
        raise protocol_error("response topic: " + error.text) from None


_MESSAGE_EXPIRY: Final = 0x02
_TOPIC_ALIAS: Final = 0x23
_USER_PROPERTY: Final = 0x26
_SUBSCRIPTION_IDENTIFIER: Final = 0x0B

_P = PacketType
_MESSAGE: Final = frozenset({_P.PUBLISH, _P.WILL})
_CONNECTING: Final = frozenset({_P.CONNECT, _P.CONNACK})
_CONNACK: Final = frozenset({_P.CONNACK})
_AUTHENTICATING: Final = frozenset({_P.CONNECT, _P.CONNACK, _P.AUTH})
_ANSWERS: Final = frozenset({_P.CONNACK, _P.PUBACK, _P.PUBREC, _P.PUBREL, _P.PUBCOMP}) | {
    _P.SUBACK,
    _P.UNSUBACK,
    _P.DISCONNECT,
    _P.AUTH,
}
_ALL: Final = frozenset(_P) - {_P.PINGREQ, _P.PINGRESP}

_T = DataType
RULES: Final[tuple[PropertyRule, ...]] = (
    PropertyRule(0x01, "payload_format_indicator", _T.BYTE, _MESSAGE, _flag),
    PropertyRule(0x02, "message_expiry_interval", _T.FOUR_BYTES, _MESSAGE),
    PropertyRule(0x03, "content_type", _T.STRING, _MESSAGE),
    PropertyRule(0x08, "response_topic", _T.STRING, _MESSAGE, _response_topic),
    PropertyRule(0x09, "correlation_data", _T.BINARY, _MESSAGE),
    PropertyRule(
        0x0B,
        "subscription_identifiers",
        _T.VARIABLE,
        frozenset({_P.PUBLISH, _P.SUBSCRIBE}),
        _not_zero,
    ),
    PropertyRule(0x11, "session_expiry_interval", _T.FOUR_BYTES, _CONNECTING | {_P.DISCONNECT}),
    PropertyRule(0x12, "assigned_client_identifier", _T.STRING, _CONNACK),
    PropertyRule(0x13, "server_keep_alive", _T.TWO_BYTES, _CONNACK),
    PropertyRule(0x15, "authentication_method", _T.STRING, _AUTHENTICATING),
    PropertyRule(0x16, "authentication_data", _T.BINARY, _AUTHENTICATING),
    PropertyRule(0x17, "request_problem_information", _T.BYTE, frozenset({_P.CONNECT}), _flag),
    PropertyRule(0x18, "will_delay_interval", _T.FOUR_BYTES, frozenset({_P.WILL})),
    PropertyRule(0x19, "request_response_information", _T.BYTE, frozenset({_P.CONNECT}), _flag),
    PropertyRule(0x1A, "response_information", _T.STRING, _CONNACK),
    PropertyRule(0x1C, "server_reference", _T.STRING, frozenset({_P.CONNACK, _P.DISCONNECT})),
    PropertyRule(0x1F, "reason_string", _T.STRING, _ANSWERS),
    PropertyRule(0x21, "receive_maximum", _T.TWO_BYTES, _CONNECTING, _not_zero),
    PropertyRule(0x22, "topic_alias_maximum", _T.TWO_BYTES, _CONNECTING),
    PropertyRule(0x23, "topic_alias", _T.TWO_BYTES, frozenset({_P.PUBLISH}), _alias),
    PropertyRule(0x24, "maximum_qos", _T.BYTE, _CONNACK, _flag),
    PropertyRule(0x25, "retain_available", _T.BYTE, _CONNACK, _flag),
    PropertyRule(0x26, "user_properties", _T.PAIR, _ALL),
    PropertyRule(0x27, "maximum_packet_size", _T.FOUR_BYTES, _CONNECTING, _not_zero),
    PropertyRule(0x28, "wildcard_subscription_available", _T.BYTE, _CONNACK, _flag),
    PropertyRule(0x29, "subscription_identifiers_available", _T.BYTE, _CONNACK, _flag),
    PropertyRule(0x2A, "shared_subscription_available", _T.BYTE, _CONNACK, _flag),
)

_BY_IDENTIFIER: Final = {rule.identifier: rule for rule in RULES}


def decode_properties(
    reader: wire.Reader, packet: PacketType, max_user_properties: int = USER_PROPERTIES_MAX
) -> Properties:
    """Decode a property block of `packet`, length included.

    Raises `ProtocolError`: malformed for a property unknown or out of place [2.2.2.2] or an
    ill-formed value; protocol error for a repeated property or a forbidden value; topic alias
    invalid for alias 0; quota exceeded for more than `max_user_properties`.
    """
    properties = Properties()
    block = reader.part(reader.variable_integer())
    seen = 0
    while block.remaining:
        identifier = block.variable_integer()
        rule = _BY_IDENTIFIER.get(identifier)
        if rule is None or packet not in rule.packets:
            raise malformed("property is unknown or not allowed in this packet")
        value = getattr(block, rule.data_type.method)()
        if rule.check is not None:
            rule.check(value)
        if identifier == _USER_PROPERTY:
            properties.user_properties.append(value)
            if len(properties.user_properties) > max_user_properties:
                raise _too_many_user_properties()
            continue
        if seen >> identifier & 1 and not rule.may_repeat(packet):
            raise protocol_error("duplicate property")
        seen |= 1 << identifier
        if identifier == _SUBSCRIPTION_IDENTIFIER:
            properties.subscription_identifiers.append(value)
        else:
            setattr(properties, rule.attribute, value)
    if properties.authentication_data is not None and properties.authentication_method is None:
        raise protocol_error("authentication data without authentication method")
    return properties


def encode_properties(properties: Properties, packet: PacketType) -> bytes:
    """Encode a property block, length included, in the table's order.

    Raises `ValueError` for a property that this packet may not carry, or a value that does not fit.
    """
    out: list[bytes] = []
    for rule in RULES:
        value = getattr(properties, rule.attribute)
        if value is None or value == []:
            continue
        if packet not in rule.packets:
            raise ValueError(f"{packet.name} may not carry {rule.attribute}")
        identifier = bytes((rule.identifier,))
        write = rule.data_type.write
        values = value if isinstance(value, list) else (value,)
        if len(values) > 1 and not rule.may_repeat(packet):
            raise ValueError(f"{packet.name} may carry one of {rule.attribute}")
        for each in values:
            out += (identifier, write(each))
    block = b"".join(out)
    return wire.write_variable_integer(len(block)) + block


@dataclass(slots=True)
class PublishProperties:
    """Properties of a client's PUBLISH for the broker itself, and the bytes to pass on.

    `message_expiry` is in seconds. `forward` holds the other properties as received.
    """

    topic_alias: int | None
    message_expiry: int | None
    forward: bytes


def parse_publish_properties(raw: bytes, max_user_properties: int) -> PublishProperties:
    """Check the properties of a PUBLISH from a client; `raw` is the block after its length.

    Raises `ProtocolError` as `decode_properties` does, and protocol error for a subscription
    identifier, which only a server may send [MQTT-3.3.4-6].
    """
    topic_alias: int | None = None
    message_expiry: int | None = None
    user_properties = 0
    seen = 0
    kept: list[bytes] = []
    kept_until = 0  # everything of raw before it is in `kept` or dropped
    position = 0
    end = len(raw)
    while position < end:
        start = position
        identifier = raw[position]
        position += 1
        if identifier == _USER_PROPERTY:
            position = _skip_text(raw, _skip_text(raw, position, end), end)
            user_properties += 1
            if user_properties > max_user_properties:
                raise _too_many_user_properties()
            continue
        if identifier > _TOPIC_ALIAS:
            raise malformed("property is unknown or not allowed in this packet")
        if seen >> identifier & 1:
            raise protocol_error("duplicate property")
        seen |= 1 << identifier
        if identifier in (_MESSAGE_EXPIRY, _TOPIC_ALIAS):
            width = 4 if identifier == _MESSAGE_EXPIRY else 2
            if end - position < width:
                raise malformed("packet ends inside a field")
            number = int.from_bytes(raw[position : position + width], "big")
            position += width
            if identifier == _MESSAGE_EXPIRY:
                message_expiry = number
            else:
                _alias(number)
                topic_alias = number
            kept.append(raw[kept_until:start])
            kept_until = position
        else:
            position = _skip_forwarded(raw, identifier, position, end)
    if not kept_until:
        return PublishProperties(None, None, raw)
    kept.append(raw[kept_until:])
    return PublishProperties(topic_alias, message_expiry, b"".join(kept))


def _skip_forwarded(raw: bytes, identifier: int, position: int, end: int) -> int:
    """Check one property that is passed on unchanged; return the position after its value."""
    if identifier == 0x01:
        if position == end:
            raise malformed("packet ends where a byte was expected")
        _flag(raw[position])
        return position + 1
    if identifier == 0x03:
        return _skip_text(raw, position, end)
    if identifier == 0x08:
        stop = _skip_text(raw, position, end)
        _response_topic(raw[position + 2 : stop].decode("utf-8"))
        return stop
    if identifier == 0x09:
        return _field_end(raw, position, end)
    if identifier == _SUBSCRIPTION_IDENTIFIER:
        raise protocol_error("a client may not send a subscription identifier in PUBLISH")
    raise malformed("property is unknown or not allowed in this packet")


def _field_end(raw: bytes, position: int, end: int) -> int:
    if end - position < 2:
        raise malformed("packet ends inside a field")
    stop = position + 2 + (raw[position] << 8 | raw[position + 1])
    if stop > end:
        raise malformed("packet ends inside a field")
    return stop


def _skip_text(raw: bytes, position: int, end: int) -> int:
    stop = _field_end(raw, position, end)
    wire.decode_utf8(raw[position + 2 : stop])
    return stop


def _too_many_user_properties() -> ProtocolError:
    return ProtocolError(Reason.QUOTA_EXCEEDED, "more user properties than this server accepts")


def properties_with(
    forward: bytes,
    expiry: int | None = None,
    topic_alias: int | None = None,
    subscription_ids: Sequence[int] = (),
) -> bytes:
    """Encode the property block of an outgoing PUBLISH, length included.

    `forward` comes from `parse_publish_properties`; `expiry` is the message's remaining lifetime,
    in seconds [MQTT-3.3.2-6]; `subscription_ids` are those of the matching subscriptions
    [MQTT-3.3.4-3]. Raises `ValueError` for a number that does not fit.
    """
    if expiry is None and topic_alias is None and not subscription_ids:
        return wire.write_variable_integer(len(forward)) + forward
    parts: list[bytes] = []
    if topic_alias is not None:
        parts += (b"\x23", wire.write_two_byte_integer(topic_alias))
    if expiry is not None:
        parts += (b"\x02", wire.write_four_byte_integer(expiry))
    for identifier in subscription_ids:
        parts += (b"\x0b", wire.write_variable_integer(identifier))
    parts.append(forward)
    block = b"".join(parts)
    return wire.write_variable_integer(len(block)) + block

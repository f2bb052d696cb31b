"""Control packets to bytes and back (MQTT 5 chapters 2 and 3, and 3.1.1 where it differs).

`decode` takes one whole packet: its first byte and the body after the Remaining Length. It makes
all checks that the packet alone and its sender allow; those that depend on earlier packets are the
session's. `encode` writes the shortest form of a packet. Runs of PUBLISH and PUBACK take a compiled
path elsewhere; this module reads and writes every packet and is the reference for that path.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from fluxmq.protocols.mqtt import wire
from fluxmq.protocols.mqtt.connect import (
    decode_connack,
    decode_connect,
    encode_connack,
    encode_connect,
)
from fluxmq.protocols.mqtt.packet_types import (
    RESERVED_FLAGS,
    SENT_BY,
    SINCE_VERSION_5,
    VERSION_5,
    PacketType,
    Sender,
)
from fluxmq.protocols.mqtt.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
)
from fluxmq.protocols.mqtt.properties import (
    USER_PROPERTIES_MAX,
    Properties,
    decode_properties,
    encode_properties,
)
from fluxmq.protocols.mqtt.reasons import (
    ProtocolError,
    Reason,
    allowed,
    malformed,
    protocol_error,
)
from fluxmq.protocols.mqtt.topics import LEVELS_MAX, validate_filter, validate_topic
from fluxmq.protocols.mqtt.wire import decode_length, write_variable_integer

__all__ = ["DEFAULT_LIMITS", "Limits", "decode", "decode_length", "encode"]


@dataclass(slots=True, frozen=True)
class Limits:
    """Limits of one packet. Each is enforced with a reason code of its own.

    `control_characters`: whether topics of PUBLISH and will may hold some; 0x81 otherwise.
    `max_user_properties`: kept and copied per receiver; 0x97 beyond. `max_topic_bytes` and
    `max_topic_levels`: for topics of PUBLISH and will; 0x90 beyond. `max_filters`: filters in one
    SUBSCRIBE or UNSUBSCRIBE, since a packet of the largest size could name 200 000 and hold up the
    shard; 0x97 beyond. Limits on the filters themselves are the session's, which answers them
    filter by filter.
    """

    max_user_properties: int = USER_PROPERTIES_MAX
    max_topic_bytes: int = wire.FIELD_BYTES_MAX
    max_topic_levels: int = LEVELS_MAX
    max_filters: int = 4096
    control_characters: bool = True


DEFAULT_LIMITS: Final = Limits()


@dataclass(slots=True)
class _Context:
    """Context of decoding a body."""

    kind: PacketType
    flags: int
    version: int
    sender: Sender
    limits: Limits


def decode(
    first_byte: int,
    body: bytes | bytearray | memoryview,
    version: int,
    *,
    sender: Sender = Sender.CLIENT,
    limits: Limits = DEFAULT_LIMITS,
) -> Packet:
    """Decode one control packet as `sender` may write it.

    `version` is 4 (3.1.1) or 5; CONNECT names its own. Raises `ProtocolError`.
    """
    kind = PacketType(first_byte >> 4)
    if kind not in SENT_BY[sender]:
        if kind is PacketType.WILL:
            raise malformed("packet type 0 is reserved")
        raise protocol_error(f"a {sender.value} may not send {kind.name}")
    if version != VERSION_5 and (sender, kind) in SINCE_VERSION_5:
        raise malformed(f"MQTT 3.1.1 does not know {kind.name} from a {sender.value}")
    flags = first_byte & 0x0F
    if kind is not PacketType.PUBLISH and flags != RESERVED_FLAGS[kind]:
        raise malformed("reserved flags of the fixed header are wrong")  # [MQTT-2.1.3-1]
    raw = body if isinstance(body, bytes) else bytes(body)
    return _DECODERS[kind](raw, _Context(kind, flags, version, sender, limits))


def encode(packet: Packet, version: int) -> bytes:
    """Encode one control packet, fixed header included; CONNECT in its own version.

    Raises `ValueError` for values that do not fit or that the packet may not carry.
    """
    kind, write = _ENCODERS[type(packet)]
    flags, body = write(packet, version)
    return bytes((kind << 4 | flags,)) + write_variable_integer(len(body)) + body


def _packet_id(reader: wire.Reader) -> int:
    packet_id = reader.two_byte_integer()
    if packet_id == 0:
        raise protocol_error("packet identifier is 0")  # [MQTT-2.2.1-3], [MQTT-2.2.1-4]
    return packet_id


def _write_packet_id(packet_id: int) -> bytes:
    if packet_id == 0:
        raise ValueError("packet identifier is 0")
    return wire.write_two_byte_integer(packet_id)


def _properties(reader: wire.Reader, context: _Context) -> Properties:
    if context.version != VERSION_5:
        return Properties()
    return decode_properties(reader, context.kind, context.limits.max_user_properties)


def _decode_connect(body: bytes, context: _Context) -> Connect:
    limits = context.limits
    return decode_connect(
        body,
        limits.max_user_properties,
        limits.max_topic_bytes,
        limits.max_topic_levels,
        limits.control_characters,
    )


def _decode_connack(body: bytes, context: _Context) -> Connack:
    packet = decode_connack(body, context.version, context.limits.max_user_properties)
    if context.version == VERSION_5:
        _check_reason(packet.reason, context)
    return packet


def _decode_publish(body: bytes, context: _Context) -> Publish:
    qos = context.flags >> 1 & 3
    dup = bool(context.flags & 8)
    if qos == 3:
        raise malformed("QoS is 3")  # [MQTT-3.3.1-4]
    if dup and qos == 0:
        raise malformed("DUP is set with QoS 0")  # [MQTT-3.3.1-2]
    reader = wire.Reader(body, 0, len(body))
    topic = reader.binary()
    packet_id = _packet_id(reader) if qos else 0
    properties = _properties(reader, context)
    if topic or context.version != VERSION_5:
        limits = context.limits
        validate_topic(
            topic, limits.max_topic_bytes, limits.max_topic_levels, limits.control_characters
        )
    elif properties.topic_alias is None:
        raise protocol_error("empty topic name without a topic alias")
    if properties.subscription_identifiers and context.sender is Sender.CLIENT:
        # [MQTT-3.3.4-6]
        raise protocol_error("a client may not send a subscription identifier in PUBLISH")
    return Publish(
        topic=topic,
        payload=reader.rest(),
        qos=qos,
        retain=bool(context.flags & 1),
        dup=dup,
        packet_id=packet_id,
        properties=properties,
    )


def _encode_publish(packet: Publish, version: int) -> tuple[int, bytes]:
    if packet.qos not in (0, 1, 2) or (packet.dup and packet.qos == 0):
        raise ValueError("QoS is not 0, 1 or 2, or DUP is set with QoS 0")
    parts = [wire.write_binary(packet.topic)]
    if packet.qos:
        parts.append(_write_packet_id(packet.packet_id))
    if version == VERSION_5:
        parts.append(encode_properties(packet.properties, PacketType.PUBLISH))
    parts.append(packet.payload)
    return packet.dup << 3 | packet.qos << 1 | packet.retain, b"".join(parts)


_Acknowledgement = TypeVar("_Acknowledgement", Puback, Pubrec, Pubrel, Pubcomp)


def _acknowledgement_decoder(
    make: Callable[[int, int, Properties], _Acknowledgement],
) -> Callable[[bytes, _Context], _Acknowledgement]:
    """Return the decoder of the four packets of sections 3.4 to 3.7, which have one form."""

    def decode_acknowledgement(body: bytes, context: _Context) -> _Acknowledgement:
        reader = wire.Reader(body, 0, len(body))
        packet_id = _packet_id(reader)
        reason, properties = _optional_reason(reader, context)
        return make(packet_id, reason, properties)

    return decode_acknowledgement


def _optional_reason(reader: wire.Reader, context: _Context) -> tuple[int, Properties]:
    """Read the tail of a packet that may end before its reason code or before its properties."""
    if context.version != VERSION_5 or not reader.remaining:
        reader.finish()
        return 0, Properties()
    reason = reader.byte()
    _check_reason(reason, context)
    properties = _properties(reader, context) if reader.remaining else Properties()
    reader.finish()
    return reason, properties


def _check_reason(reason: int, context: _Context) -> None:
    if reason not in allowed(context.kind, context.sender):
        raise protocol_error(f"{context.kind.name} carries a reason code it may not")


def _write_optional_reason(
    reason: int, properties: Properties, kind: PacketType, version: int
) -> bytes:
    if version != VERSION_5:
        return b""
    block = encode_properties(properties, kind)
    if block == b"\0":
        return bytes((reason,)) if reason else b""
    return bytes((reason,)) + block


def _acknowledgement_encoder(
    kind: PacketType,
) -> Callable[[_Acknowledgement, int], tuple[int, bytes]]:
    def encode_acknowledgement(packet: _Acknowledgement, version: int) -> tuple[int, bytes]:
        tail = _write_optional_reason(packet.reason, packet.properties, kind, version)
        return RESERVED_FLAGS[kind], _write_packet_id(packet.packet_id) + tail

    return encode_acknowledgement


def _decode_subscribe(body: bytes, context: _Context) -> Subscribe:
    reader = wire.Reader(body, 0, len(body))
    packet_id = _packet_id(reader)
    properties = _properties(reader, context)
    subscriptions: list[Subscription] = []
    while reader.remaining:
        topic_filter = reader.binary()
        shared = validate_filter(topic_filter).group is not None
        subscriptions.append(_subscription(topic_filter, reader.byte(), shared, context.version))
        if len(subscriptions) > context.limits.max_filters:
            raise _too_many_filters()
    if not subscriptions:
        raise protocol_error("SUBSCRIBE without a topic filter")  # [MQTT-3.8.3-2]
    return Subscribe(packet_id, subscriptions, properties)


def _subscription(topic_filter: bytes, options: int, shared: bool, version: int) -> Subscription:
    """Decode subscription options (3.8.3.1); 3.1.1 has the QoS and reserves the rest."""
    if options & (0xC0 if version == VERSION_5 else 0xFC):
        raise malformed("reserved subscription options are set")  # [MQTT-3.8.3-5]
    qos = options & 3
    if qos == 3:
        raise protocol_error("maximum QoS of a subscription is 3")
    no_local = bool(options & 4)
    if no_local and shared:
        raise protocol_error("no local on a shared subscription")  # [MQTT-3.8.3-4]
    retain_handling = options >> 4 & 3
    if retain_handling == 3:
        raise protocol_error("retain handling is 3")
    return Subscription(topic_filter, qos, no_local, bool(options & 8), retain_handling)


def _encode_subscribe(packet: Subscribe, version: int) -> tuple[int, bytes]:
    if not packet.subscriptions:
        raise ValueError("SUBSCRIBE needs a topic filter")
    parts = [_write_packet_id(packet.packet_id)]
    if version == VERSION_5:
        parts.append(encode_properties(packet.properties, PacketType.SUBSCRIBE))
    for each in packet.subscriptions:
        if each.qos not in (0, 1, 2) or each.retain_handling not in (0, 1, 2):
            raise ValueError("QoS and retain handling are 0, 1 or 2")
        options = each.qos
        if version == VERSION_5:
            options |= each.no_local << 2 | each.retain_as_published << 3
            options |= each.retain_handling << 4
        parts += (wire.write_binary(each.filter), bytes((options,)))
    return RESERVED_FLAGS[PacketType.SUBSCRIBE], b"".join(parts)


def _too_many_filters() -> ProtocolError:
    return ProtocolError(Reason.QUOTA_EXCEEDED, "more topic filters than one packet may name")


def _decode_suback(body: bytes, context: _Context) -> Suback:
    reader = wire.Reader(body, 0, len(body))
    packet_id = _packet_id(reader)
    properties = _properties(reader, context)
    reasons = list(reader.rest())
    if not reasons:
        raise protocol_error("SUBACK without a reason code")
    permitted = (
        allowed(PacketType.SUBACK, Sender.SERVER)
        if context.version == VERSION_5
        else frozenset({0, 1, 2, 0x80})
    )
    if not permitted.issuperset(reasons):
        raise protocol_error("SUBACK carries a reason code it may not")
    return Suback(packet_id, reasons, properties)


def _encode_suback(packet: Suback, version: int) -> tuple[int, bytes]:
    head = _write_packet_id(packet.packet_id)
    if version == VERSION_5:
        head += encode_properties(packet.properties, PacketType.SUBACK)
        return 0, head + bytes(packet.reasons)
    return 0, head + bytes(min(reason, 0x80) for reason in packet.reasons)


def _decode_unsubscribe(body: bytes, context: _Context) -> Unsubscribe:
    reader = wire.Reader(body, 0, len(body))
    packet_id = _packet_id(reader)
    properties = _properties(reader, context)
    filters: list[bytes] = []
    while reader.remaining:
        topic_filter = reader.binary()
        validate_filter(topic_filter)
        filters.append(topic_filter)
        if len(filters) > context.limits.max_filters:
            raise _too_many_filters()
    if not filters:
        raise protocol_error("UNSUBSCRIBE without a topic filter")  # [MQTT-3.10.3-2]
    return Unsubscribe(packet_id, filters, properties)


def _encode_unsubscribe(packet: Unsubscribe, version: int) -> tuple[int, bytes]:
    if not packet.filters:
        raise ValueError("UNSUBSCRIBE needs a topic filter")
    parts = [_write_packet_id(packet.packet_id)]
    if version == VERSION_5:
        parts.append(encode_properties(packet.properties, PacketType.UNSUBSCRIBE))
    parts += (wire.write_binary(each) for each in packet.filters)
    return RESERVED_FLAGS[PacketType.UNSUBSCRIBE], b"".join(parts)


def _decode_unsuback(body: bytes, context: _Context) -> Unsuback:
    reader = wire.Reader(body, 0, len(body))
    packet_id = _packet_id(reader)
    if context.version != VERSION_5:
        reader.finish()
        return Unsuback(packet_id)
    properties = _properties(reader, context)
    reasons = list(reader.rest())
    if not reasons:
        raise protocol_error("UNSUBACK without a reason code")
    if not allowed(PacketType.UNSUBACK, Sender.SERVER).issuperset(reasons):
        raise protocol_error("UNSUBACK carries a reason code it may not")
    return Unsuback(packet_id, reasons, properties)


def _encode_unsuback(packet: Unsuback, version: int) -> tuple[int, bytes]:
    head = _write_packet_id(packet.packet_id)
    if version != VERSION_5:
        return 0, head
    properties = encode_properties(packet.properties, PacketType.UNSUBACK)
    return 0, head + properties + bytes(packet.reasons)


def _decode_pingreq(body: bytes, _context: _Context) -> Pingreq:
    wire.Reader(body, 0, len(body)).finish()
    return Pingreq()


def _decode_pingresp(body: bytes, _context: _Context) -> Pingresp:
    wire.Reader(body, 0, len(body)).finish()
    return Pingresp()


def _encode_empty(_packet: Pingreq | Pingresp, _version: int) -> tuple[int, bytes]:
    return 0, b""


def _decode_disconnect(body: bytes, context: _Context) -> Disconnect:
    reason, properties = _optional_reason(wire.Reader(body, 0, len(body)), context)
    if properties.session_expiry_interval is not None and context.sender is Sender.SERVER:
        # [MQTT-3.14.2-2]
        raise protocol_error("a server may not send a session expiry interval in DISCONNECT")
    return Disconnect(reason, properties)


def _encode_disconnect(packet: Disconnect, version: int) -> tuple[int, bytes]:
    return 0, _write_optional_reason(
        packet.reason, packet.properties, PacketType.DISCONNECT, version
    )


def _decode_auth(body: bytes, context: _Context) -> Auth:
    """Decode AUTH (section 3.15). An empty body means success without properties (3.15.2.1)."""
    if not body:
        _check_reason(0, context)
        return Auth()
    reader = wire.Reader(body, 0, len(body))
    reason = reader.byte()
    _check_reason(reason, context)
    properties = _properties(reader, context)
    reader.finish()
    if properties.authentication_method is None:
        raise protocol_error("AUTH without an authentication method")
    return Auth(reason, properties)


def _encode_auth(packet: Auth, version: int) -> tuple[int, bytes]:
    if version != VERSION_5:
        raise ValueError("MQTT 3.1.1 does not know AUTH")
    if packet.properties.authentication_method is None and packet != Auth():
        raise ValueError("AUTH needs an authentication method")
    return 0, _write_optional_reason(packet.reason, packet.properties, PacketType.AUTH, version)


_DECODERS: Final[dict[PacketType, Callable[[bytes, _Context], Packet]]] = {
    PacketType.CONNECT: _decode_connect,
    PacketType.CONNACK: _decode_connack,
    PacketType.PUBLISH: _decode_publish,
    PacketType.PUBACK: _acknowledgement_decoder(Puback),
    PacketType.PUBREC: _acknowledgement_decoder(Pubrec),
    PacketType.PUBREL: _acknowledgement_decoder(Pubrel),
    PacketType.PUBCOMP: _acknowledgement_decoder(Pubcomp),
    PacketType.SUBSCRIBE: _decode_subscribe,
    PacketType.SUBACK: _decode_suback,
    PacketType.UNSUBSCRIBE: _decode_unsubscribe,
    PacketType.UNSUBACK: _decode_unsuback,
    PacketType.PINGREQ: _decode_pingreq,
    PacketType.PINGRESP: _decode_pingresp,
    PacketType.DISCONNECT: _decode_disconnect,
    PacketType.AUTH: _decode_auth,
}

_Encoder = Callable[..., tuple[int, bytes]]

_ENCODERS: Final[dict[type, tuple[PacketType, _Encoder]]] = {
    Connect: (PacketType.CONNECT, lambda packet, _version: (0, encode_connect(packet))),
    Connack: (PacketType.CONNACK, lambda packet, version: (0, encode_connack(packet, version))),
    Publish: (PacketType.PUBLISH, _encode_publish),
    Puback: (PacketType.PUBACK, _acknowledgement_encoder(PacketType.PUBACK)),
    Pubrec: (PacketType.PUBREC, _acknowledgement_encoder(PacketType.PUBREC)),
    Pubrel: (PacketType.PUBREL, _acknowledgement_encoder(PacketType.PUBREL)),
    Pubcomp: (PacketType.PUBCOMP, _acknowledgement_encoder(PacketType.PUBCOMP)),
    Subscribe: (PacketType.SUBSCRIBE, _encode_subscribe),
    Suback: (PacketType.SUBACK, _encode_suback),
    Unsubscribe: (PacketType.UNSUBSCRIBE, _encode_unsubscribe),
    Unsuback: (PacketType.UNSUBACK, _encode_unsuback),
    Pingreq: (PacketType.PINGREQ, _encode_empty),
    Pingresp: (PacketType.PINGRESP, _encode_empty),
    Disconnect: (PacketType.DISCONNECT, _encode_disconnect),
    Auth: (PacketType.AUTH, _encode_auth),
}

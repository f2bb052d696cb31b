"""A message's properties between MQTT 5 and the canonical block that queues keep.

`to_block` takes a publisher's forwarded properties (`forward`, see
`properties.parse_publish_properties`) and `from_block` returns those of a subscriber's PUBLISH;
properties that came by MQTT keep their bytes and order. Those that came by another protocol and
have no place in MQTT become user properties; the table is in ``docs/message-properties.md``.
Message Expiry Interval, Topic Alias and Subscription Identifiers are in neither form: they belong
to one packet.

Source: MQTT 5.0 section 3.3.2.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Final

from fluxmq.model.amqp10_readers import SectionReader, expanded
from fluxmq.model.properties import Item, PropertyKind, Value, decode, encode, moment_of, text
from fluxmq.protocols.mqtt import wire
from fluxmq.protocols.mqtt.reasons import ProtocolError, malformed
from fluxmq.protocols.mqtt.topics import validate_topic

RESERVED_NAMES: Final = frozenset(
    {
        b"message-id",
        b"group-id",
        b"queue",
        b"offset",
        b"x-source-topic",
        b"x-delivery-count",
        b"client_id",
        b"external_id",
        b"protocol",
        b"x-stream-offset",
        b"x-stream-timestamp",
        b"x-work-committed-offset",
        b"x-work-acked",
        b"x-work-group",
    }
)
"""User properties that queues add to deliveries; a publisher's own of these names are omitted."""

RESERVED_PREFIX: Final = b"_dlq_"
"""Prefix of the same for dead letters."""

_USER_PROPERTY: Final = 0x26
_MQTT_KINDS: Final = {
    0x01: PropertyKind.PAYLOAD_FORMAT,
    0x03: PropertyKind.CONTENT_TYPE,
    0x08: PropertyKind.REPLY_TO,
    0x09: PropertyKind.CORRELATION,
}
_PLAIN_NAMES: Final = {
    PropertyKind.CONTENT_TYPE: b"content-type",
    PropertyKind.CONTENT_ENCODING: b"content-encoding",
    PropertyKind.REPLY_TO: b"reply-to",
    PropertyKind.DELIVERY_MODE: b"amqp-delivery-mode",
    PropertyKind.PRIORITY: b"amqp-priority",
    PropertyKind.EXPIRATION: b"amqp-expiration",
    PropertyKind.MESSAGE_ID: b"amqp-message-id",
    PropertyKind.TIMESTAMP: b"amqp-timestamp",
    PropertyKind.TYPE: b"amqp-type",
    PropertyKind.USER_ID: b"amqp-user-id",
    PropertyKind.APP_ID: b"amqp-app-id",
    PropertyKind.CLUSTER_ID: b"amqp-cluster-id",
    PropertyKind.PUBLISHER: b"client_id",
    PropertyKind.EXCHANGE: b"amqp-exchange",
    PropertyKind.DEAD_REASON: b"_dlq_reason",
    PropertyKind.DEAD_QUEUE: b"_dlq_original_queue",
    PropertyKind.DEAD_KEY: b"_dlq_original_topic",
    PropertyKind.DEAD_GROUP: b"_dlq_group",
    PropertyKind.DEAD_ATTEMPTS: b"_dlq_delivery_count",
}
"""Kinds that become user properties, with their text or digits."""
_TIME_NAMES: Final = {
    PropertyKind.DEAD_FIRST_TIME: b"_dlq_first_delivered_at",
    PropertyKind.DEAD_TIME: b"_dlq_moved_at",
}
_PROTOCOL_NAMES: Final = {1: b"mqtt", 2: b"amqp", 3: b"amqp1"}


def to_block(forward: bytes) -> bytes:
    """Return the canonical block of encoded properties without length.

    Raises `ProtocolError` (malformed) for properties that `parse_publish_properties` would reject.
    """
    return encode(to_items(forward)) if forward else b""


def to_items(forward: bytes) -> list[Item]:
    """Return the block's items before encoding, for callers that add some."""
    items: list[Item] = []
    reader = wire.Reader(forward, 0, len(forward))
    while reader.remaining:
        identifier = reader.byte()
        if identifier == _USER_PROPERTY:
            name = reader.binary()
            items.append(Item(PropertyKind.HEADER, text(reader.binary()), name))
            continue
        kind = _MQTT_KINDS.get(identifier)
        if kind is None:
            raise malformed("property is not one to be passed on")
        items.append(
            Item(kind, reader.byte() if kind is PropertyKind.PAYLOAD_FORMAT else reader.binary())
        )
    return items


def from_block(block: bytes, *, reserved: bool = False) -> bytes:
    """Return encoded properties for a PUBLISH, without length.

    `reserved` omits a publisher's user properties that are named like those of queue deliveries.
    Values that no property can hold (text that is not UTF-8 or too long, tables, arrays, bytes) are
    omitted. Raises `PropertyError` for a malformed block.
    """
    return from_items(decode(block), reserved=reserved) if block else b""


def from_items(items: Sequence[Item], *, reserved: bool = False) -> bytes:
    """Return the same from items."""
    out: list[bytes] = []
    seen = 0
    queue = b""
    for kind, value, name in expanded(items, SectionReader.MQTT):
        if kind is PropertyKind.HEADER:
            if reserved and (name in RESERVED_NAMES or name.startswith(RESERVED_PREFIX)):
                continue
            assert isinstance(value, Value), "a header has a typed value"
            said = _said(value)
            if said is not None and _is_text(name) and _is_text(said):
                out.append(user_property(name, said))
        elif not seen >> kind & 1:
            # MQTT's properties occur once, whatever a block says.
            seen |= 1 << kind
            queue = value if kind is PropertyKind.DEAD_QUEUE and isinstance(value, bytes) else queue
            out.append(_property(kind, value, queue))
    return b"".join(out)


def user_property(name: bytes, value: bytes) -> bytes:
    """Encode one User Property. Raises `ValueError` for more than 65 535 bytes."""
    return b"\x26" + wire.write_binary(name) + wire.write_binary(value)


def user_properties(pairs: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Encode User Properties, in order."""
    return b"".join([user_property(name, value) for name, value in pairs])


def _property(kind: PropertyKind, value: int | bytes | Value | None, queue: bytes) -> bytes:
    """Encode an item other than a header; return nothing if MQTT cannot express it."""
    if kind is PropertyKind.PAYLOAD_FORMAT:
        return b"\x01" + bytes((value,)) if isinstance(value, int) and value < 2 else b""
    if isinstance(value, bytes):
        if kind is PropertyKind.CORRELATION:
            fits = len(value) <= wire.FIELD_BYTES_MAX
            return b"\x09" + wire.write_binary(value) if fits else b""
        if kind is PropertyKind.DEAD_TRANSFER:
            return user_property(b"_dlq_transfer_id", value.hex().encode())
        if not _is_text(value):
            return b""
        if kind is PropertyKind.CONTENT_TYPE:
            return b"\x03" + wire.write_binary(value)
        if kind is PropertyKind.REPLY_TO and _is_topic(value):
            return b"\x08" + wire.write_binary(value)
        return user_property(_PLAIN_NAMES[kind], value)
    if not isinstance(value, int):
        return b""  # marks an empty table of headers
    if kind is PropertyKind.PROTOCOL:
        return user_property(b"protocol", _PROTOCOL_NAMES.get(value, b"%d" % value))
    if kind is PropertyKind.DEAD_OFFSET:
        identity = b"%s:%d" % (queue, value)
        return user_property(b"_dlq_original_id", identity) if _is_text(identity) else b""
    if kind in _TIME_NAMES:
        return user_property(_TIME_NAMES[kind], moment_of(value))
    return user_property(_PLAIN_NAMES[kind], b"%d" % value)


def _said(value: Value) -> bytes | None:
    """Return a header's value as text; None if it has none."""
    tag, content = value
    if isinstance(content, bytes):
        return content if tag == "S" else None
    if isinstance(content, bool):
        return b"true" if content else b"false"
    if isinstance(content, int):
        return b"%d" % content
    if isinstance(content, float):
        return repr(content).encode()
    if tag == "D" and isinstance(content, tuple):
        scale, unscaled = content
        return str(Decimal(unscaled).scaleb(-scale)).encode()
    return b"" if tag == "V" else None


def _is_text(value: bytes) -> bool:
    if len(value) > wire.FIELD_BYTES_MAX:
        return False
    try:
        wire.decode_utf8(value)
    except ProtocolError:
        return False
    return True


def _is_topic(value: bytes) -> bool:
    try:
        validate_topic(value)
    except ProtocolError:
        return False
    return True

"""A message's properties between AMQP 0.9.1 and the canonical block that queues keep, and its
address.

`to_block` takes the encoded properties of a content header; `from_block` returns those of a
delivery's. Properties that came by AMQP keep their bytes: order and types of headers, duplicate
names and text that is not UTF-8 included, but not a table's irregular forms (a boolean of 7, a long
of letter ``L``). Those that came by MQTT or AMQP 1.0 become properties and headers; the table is in
``docs/message-properties.md``. The broker's own headers replace a publisher's of the same name.

MQTT topics and the routing keys of ``amq.topic`` are one space: ``/`` and ``.`` change places, in
filters ``+`` and ``*`` too.

Source: AMQP 0-9-1 section 1.4.6.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from fluxmq.model.amqp10_readers import SectionReader, expanded
from fluxmq.model.properties import (
    NUMBERS,
    Item,
    PropertyKind,
    Value,
    decode,
    encode,
    moment_of,
    text,
)
from fluxmq.protocols.amqp091.constants import SHORT_STRING_BYTES_MAX
from fluxmq.protocols.amqp091.content import (
    HEADERS,
    BasicProperties,
    malformed,
    read_fields,
    write_fields,
)
from fluxmq.protocols.amqp091.tables import (
    FieldTableError,
    Table,
    plain,
    read_values,
    typed,
    write_values,
)

TOPIC_EXCHANGE: Final = b"amq.topic"
"""Exchange that MQTT publishes to."""

QUEUE_PREFIXES: Final = (b"$queue/", b"$dlq/")
"""Prefixes of topics that address queues; the default exchange takes them as they are."""

STREAM_OFFSET: Final = "x-stream-offset"
"""Header with a message's offset in its stream."""

_AMQP: Final = 2
_FIELD_KINDS: Final = (
    PropertyKind.CONTENT_TYPE,
    PropertyKind.CONTENT_ENCODING,
    PropertyKind.HEADER,
    PropertyKind.DELIVERY_MODE,
    PropertyKind.PRIORITY,
    PropertyKind.CORRELATION,
    PropertyKind.REPLY_TO,
    PropertyKind.EXPIRATION,
    PropertyKind.MESSAGE_ID,
    PropertyKind.TIMESTAMP,
    PropertyKind.TYPE,
    PropertyKind.USER_ID,
    PropertyKind.APP_ID,
    PropertyKind.CLUSTER_ID,
)
"""Kinds of `BasicProperties`' fields, in their order."""
_FIELDS: Final = {kind: index for index, kind in enumerate(_FIELD_KINDS)}
_OVERLONG_NAMES: Final = {
    PropertyKind.CONTENT_TYPE: b"content-type",
    PropertyKind.REPLY_TO: b"reply-to",
    PropertyKind.CORRELATION: b"x-correlation-id",
}
"""Headers for MQTT properties that may exceed a short string."""
_DEAD_NAMES: Final = {
    PropertyKind.DEAD_REASON: b"_dlq_reason",
    PropertyKind.DEAD_QUEUE: b"_dlq_original_queue",
    PropertyKind.DEAD_OFFSET: b"_dlq_original_id",
    PropertyKind.DEAD_KEY: b"_dlq_original_topic",
    PropertyKind.DEAD_GROUP: b"_dlq_group",
    PropertyKind.DEAD_ATTEMPTS: b"_dlq_delivery_count",
    PropertyKind.DEAD_FIRST_TIME: b"_dlq_first_delivered_at",
    PropertyKind.DEAD_TIME: b"_dlq_moved_at",
    PropertyKind.DEAD_TRANSFER: b"_dlq_transfer_id",
}
_PROTOCOL_NAMES: Final = {1: b"mqtt", 2: b"amqp", 3: b"amqp1"}
_CAME_BY_AMQP: Final = Item(PropertyKind.PROTOCOL, _AMQP)
_CAME_BY_AMQP_1_0: Final = Item(PropertyKind.PROTOCOL, 3)
_NOTHING: Final[Mapping[str, object]] = MappingProxyType({})
_TOPIC: Final = bytes.maketrans(b"/.", b"./")
_AMQP_FIRST: Final = encode([Item(PropertyKind.PROTOCOL, _AMQP)]) + bytes((PropertyKind.EXCHANGE,))
"""First bytes of blocks that came by AMQP, so that their address is read without the rest."""


# --- from a publisher ---


def to_block(properties: bytes, exchange: str, user: str, *, drop: Collection[str] = ()) -> bytes:
    """Return the canonical block of a message published to `exchange` by `user`.

    `drop`: names of headers to omit (BCC). Raises `HardError` (502) for malformed properties.
    """
    items = [
        Item(PropertyKind.PROTOCOL, _AMQP),
        Item(PropertyKind.EXCHANGE, exchange.encode()),
        Item(PropertyKind.PUBLISHER, user.encode()),
    ]
    for index, content in enumerate(read_fields(properties)):
        if content is None:
            continue
        kind = _FIELD_KINDS[index]
        if index == HEADERS:
            items += _headers(content, {name.encode() for name in drop})
        else:
            items.append(Item(kind, int.from_bytes(content, "big") if kind in NUMBERS else content))
    return encode(items)


def _headers(content: bytes, drop: set[bytes]) -> list[Item]:
    try:
        entries = read_values(content)
    except FieldTableError as error:
        raise malformed(f"headers: {error}") from None
    items = [Item(PropertyKind.HEADER, value, name) for name, value in entries if name not in drop]
    return items or [Item(PropertyKind.EMPTY_HEADERS, None)]


# --- to a consumer ---


def from_block(block: bytes, *, extra: Mapping[str, object] = _NOTHING) -> bytes:
    """Return the encoded properties for a delivery, to follow the body size.

    `extra`: headers that the broker adds, after the others; integers as 64 bits, as RabbitMQ's
    clients expect of ``x-delivery-count`` and the like. Raises `PropertyError` for a malformed
    block, `FieldTableError` for values that no header holds.
    """
    return write_fields(_fields(decode(block), _typed(extra)))


def stream_properties(block: bytes, *, extra: Mapping[str, object] = _NOTHING) -> tuple[bytes, int]:
    """Return the same with ``x-stream-offset`` as the last header, and the position of its eight
    bytes, which are 0."""
    fields = _fields(decode(block), _typed({**extra, STREAM_OFFSET: 0}))
    before = write_fields(fields[: HEADERS + 1])
    return write_fields(fields), len(before) - 8


def block_headers(block: bytes) -> Table:
    """Return the publisher's headers as plain values, for headers exchanges: of AMQP 1.0, those
    that its sections become. Raises `PropertyError`."""
    return {
        name.decode("utf-8", "surrogateescape"): plain(value, "surrogateescape")
        for kind, value, name in expanded(decode(block), SectionReader.AMQP_0_9_1)
        if kind is PropertyKind.HEADER and isinstance(value, Value)
    }


def _typed(headers: Mapping[str, object]) -> dict[bytes, Value]:
    return {name.encode(): typed(value, integers="l") for name, value in headers.items()}


def _fields(items: Sequence[Item], extra: Mapping[bytes, Value]) -> list[bytes | None]:
    """Return the contents of the properties, in the order of `BasicProperties`."""
    fields: list[bytes | None] = [None] * len(BasicProperties._fields)
    headers: list[tuple[bytes, Value]] = []
    others: list[Item] = []
    amqp = _CAME_BY_AMQP in items
    said = {} if amqp else _overlong(items)
    if _CAME_BY_AMQP_1_0 in items:
        amqp = True
        items = expanded(items, SectionReader.AMQP_0_9_1)
        said = _overlong(items)
    for item in items:
        kind, value, name = item
        if kind is PropertyKind.HEADER and isinstance(value, Value):
            headers.append((name, value))
            continue
        index = _FIELDS.get(kind)
        if index is None:
            others.append(item)
        elif fields[index] is not None:
            continue
        elif isinstance(value, int):
            fields[index] = value.to_bytes(NUMBERS[kind], "big")
        elif isinstance(value, bytes) and _OVERLONG_NAMES.get(kind) not in said:
            fields[index] = value[:SHORT_STRING_BYTES_MAX]
    said |= _said(others, amqp=amqp)
    said.update(extra)
    if said:
        headers = [each for each in headers if each[0] not in said]
    raw = _written(headers) + write_values(said.items())
    if raw or any(item.kind is PropertyKind.EMPTY_HEADERS for item in others):
        fields[HEADERS] = raw
    return fields


def _written(headers: list[tuple[bytes, Value]]) -> bytes:
    """Return a publisher's headers, without other protocols' names that are too long for AMQP."""
    try:
        return write_values(headers)
    except FieldTableError:
        return b"".join([_written([each]) for each in headers]) if len(headers) > 1 else b""


def _overlong(items: Iterable[Item]) -> dict[bytes, Value]:
    """Return headers for MQTT properties that fit no short string."""
    found: dict[bytes, Value] = {}
    for kind, value, _ in items:
        name = _OVERLONG_NAMES.get(kind)
        if name is None or not isinstance(value, bytes):
            continue
        if kind is PropertyKind.CORRELATION:
            if len(value) > SHORT_STRING_BYTES_MAX or not _is_text(value):
                found[name] = Value("x", value)
        elif len(value) > SHORT_STRING_BYTES_MAX:
            found[name] = text(value)
    return found


def _said(items: Iterable[Item], *, amqp: bool) -> dict[bytes, Value]:
    """Return the broker's headers: about dead letters, and the publisher if another protocol's."""
    found: dict[bytes, Value] = {}
    queue = b""
    for kind, value, _ in items:
        name = _DEAD_NAMES.get(kind)
        if kind is PropertyKind.DEAD_QUEUE and isinstance(value, bytes):
            queue = value
        if name is not None:
            found[name] = _dead(kind, value, queue)
        elif kind is PropertyKind.PAYLOAD_FORMAT and isinstance(value, int):
            found[b"mqtt-payload-format"] = Value("I", value)
        elif amqp:
            continue
        elif kind is PropertyKind.PUBLISHER and isinstance(value, bytes):
            found[b"client_id"] = text(value)
        elif kind is PropertyKind.PROTOCOL and isinstance(value, int):
            found[b"protocol"] = text(_PROTOCOL_NAMES.get(value, b"%d" % value))
    return found


def _dead(kind: PropertyKind, value: object, queue: bytes) -> Value:
    """Return the value of a dead letter's item, in the same words as for MQTT."""
    if isinstance(value, int):
        if kind is PropertyKind.DEAD_OFFSET:
            return text(b"%s:%d" % (queue, value))
        return Value("l", value) if kind is PropertyKind.DEAD_ATTEMPTS else text(moment_of(value))
    assert isinstance(value, bytes), "what is no number is bytes"
    return text(value.hex().encode() if kind is PropertyKind.DEAD_TRANSFER else value)


def _is_text(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


# --- addresses ---


def address_of(block: bytes, key: bytes) -> tuple[bytes, bytes]:
    """Return exchange and routing key for a delivery; `key` is the one the queue keeps.

    Messages that came by MQTT were published to ``amq.topic``, or to the default exchange if the
    topic addresses a queue. A topic too long for a routing key is truncated at a character
    boundary. Raises `PropertyError` for a malformed block.
    """
    at = len(_AMQP_FIRST)
    if block.startswith(_AMQP_FIRST) and block[at] < 0x80:
        return block[at + 1 : at + 1 + block[at]], _cut(key)
    for kind, value, _ in decode(block):
        if kind is PropertyKind.EXCHANGE and isinstance(value, bytes):
            return value, _cut(key)
    if key.startswith(QUEUE_PREFIXES):
        return b"", _cut(key)
    return TOPIC_EXCHANGE, _cut(topic_to_routing_key(key))


def _cut(key: bytes) -> bytes:
    if len(key) <= SHORT_STRING_BYTES_MAX:
        return key
    return key[:SHORT_STRING_BYTES_MAX].decode("utf-8", "ignore").encode()


def topic_to_routing_key(topic: bytes) -> bytes:
    """Return the routing key of an MQTT topic name: ``a/b.c`` is ``a.b/c``."""
    return topic.translate(_TOPIC)


def routing_key_to_topic(routing_key: bytes) -> bytes:
    """Return the MQTT topic name of a routing key, without checking it (not empty, no wildcard)."""
    return routing_key.translate(_TOPIC)

"""A message between a transfer of AMQP 1.0 and what a queue keeps of it: a property block, a payload
and columns.

A publish: ``from_sections(bytes of the transfer)`` checks the sections and returns an
`AmqpMessage`: ``payload`` is the payload column; ``columns`` says what the broker acts on (its
``expiry_us(now_us)`` and ``delay_us(now_us)`` are the batch's columns; ``to``, ``subject``,
``copies`` and `routing_headers` are for routing); ``block(exchange, user)`` is the property block,
once the address is known. Messages of one sender mostly have equal sections before the payload.

A delivery: see `message_template`. Knows nothing of links, queues and permissions.

Source: AMQP 1.0 part 3 (messaging), section 3.2.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from fluxmq.model.amqp10_readers import header_value, urn_of
from fluxmq.model.amqp10_sections import (
    APPLICATION_PROPERTIES,
    BROKERS_ANNOTATIONS,
    BROKERS_PREFIX,
    DATA,
    FOOTER,
    HEADER,
    MESSAGE_ANNOTATIONS,
    NOTHING,
    PROPERTIES,
    SEQUENCE,
    VALUE,
    WIDE_CONTENT,
    Body,
    MessageSection,
    PropertyField,
    annotations_without,
    pairs_in,
    properties_in,
    read_fields,
    scan,
)
from fluxmq.model.amqp10_values import (
    STRING,
    SYMBOL,
    AmqpValueError,
    Typed,
    read_value,
)
from fluxmq.model.properties import (
    Item,
    PropertyKind,
    Timestamp,
    Value,
    encode,
)
from fluxmq.protocols.amqp10 import foreign_messages

TTL_MS_MAX: Final = 10**15
"""Longest life of a message: times in microseconds stay far within 64 bits."""
TIME_MS_MAX: Final = (1 << 62) // 1000
"""Latest moment that a column holds."""
DELAY_MS_MAX: Final = 366 * 86_400_000
"""Longest delay of a message, a year: a longer one is a confusion of units."""
COPIES_MAX: Final = 1024
"""Maximum routing keys that ``x-cc`` adds to a message."""

AMQP10: Final = 3
"""Number of the protocol in a block."""

_FORMS: Final = {
    b"\0\x53": 0x00,
    b"\0\x80": 0x10,
    b"\0\xa3": 0x20,
    b"\0\xb3": 0x30,
}
"""Forms of the body's descriptor by its first two bytes."""


class AnnotationError(AmqpValueError):
    """An annotation that the broker acts on has no such value (the standard's amqp:invalid-field)."""


class MessageColumns(NamedTuple):
    """What the broker acts on. None: the sender did not say.

    ``ttl_ms``, ``expires_at_ms``: of the header, and ``absolute-expiry-time``; the former wins.
    ``deliver_at_ms``, ``delay_ms``: annotations ``x-opt-delivery-time`` and
    ``x-opt-delivery-delay``. ``copies``: routing keys of ``x-cc``. ``filter_value``: of a stream,
    ``x-stream-filter-value``. ``identity``: ``x-deduplication-id``, by which a queue keeps a message
    once.
    """

    durable: bool | None = None
    priority: int | None = None
    ttl_ms: int | None = None
    expires_at_ms: int | None = None
    deliver_at_ms: int | None = None
    delay_ms: int | None = None
    to: bytes | None = None
    subject: bytes | None = None
    user_id: bytes | None = None
    group_id: bytes | None = None
    filter_value: bytes | None = None
    identity: bytes | None = None
    copies: tuple[bytes, ...] = ()

    def expiry_us(self, now_us: int) -> int:
        """Return the column EXPIRY of a message that arrives now; 0 for never."""
        if self.ttl_ms is not None:
            return now_us + max(min(self.ttl_ms, TTL_MS_MAX) * 1000, 1)
        if self.expires_at_ms is not None:
            return max(min(self.expires_at_ms, TIME_MS_MAX) * 1000, 1)
        return 0

    def delay_us(self, now_us: int) -> int:
        """Return the column DELAY of a message that arrives now; 0 for at once."""
        wait_us = 0
        if self.deliver_at_ms is not None:
            wait_us = self.deliver_at_ms * 1000 - now_us
        elif self.delay_ms is not None:
            wait_us = self.delay_ms * 1000
        return now_us + min(wait_us, DELAY_MS_MAX * 1000) if wait_us > 0 else 0


class AmqpMessage(NamedTuple):
    """A message as received. ``content``: of the block's item AMQP10."""

    content: bytes
    payload: bytes
    columns: MessageColumns

    def block(self, exchange: str, user: str) -> bytes:
        """Return the property block of the message, published to `exchange` by `user`."""
        durable, priority, ttl_ms = self.columns[:3]
        items = [
            Item(PropertyKind.PROTOCOL, AMQP10),
            Item(PropertyKind.EXCHANGE, exchange.encode()),
            Item(PropertyKind.PUBLISHER, user.encode()),
        ]
        if durable is not None:
            items.append(Item(PropertyKind.DELIVERY_MODE, 2 if durable else 1))
        if priority is not None:
            items.append(Item(PropertyKind.PRIORITY, priority))
        if ttl_ms is not None:
            items.append(Item(PropertyKind.EXPIRATION, b"%d" % ttl_ms))
        items.append(Item(PropertyKind.AMQP10, self.content))
        return encode(items)


def from_sections(data: bytes) -> AmqpMessage:
    """Return the message that the bytes of a transfer are.

    Raises `AmqpValueError` (the standard's amqp:decode-error) for anything but sections in order,
    with a body, and `AnnotationError` (amqp:invalid-field).
    """
    sections = scan(data, 0, len(data))
    body = [section for section in sections if DATA <= section.code <= VALUE]
    if not body:
        raise AmqpValueError("a message without a body")
    form, payload = _body(data, body)
    kept = [bytes((form,))]
    header: tuple[Typed, ...] = ()
    properties: tuple[Typed, ...] = properties_in(Typed("list", ()))
    annotations: tuple[tuple[Typed, Typed], ...] = ()
    for section in sections:
        code = section.code
        if DATA <= code <= VALUE:
            continue
        value, _ = read_value(data, section.value, section.end)
        if code == HEADER:
            header = _header(value)
            continue
        if code == PROPERTIES:
            properties = properties_in(value)
            _check_properties(properties)
        elif value.type == "null":
            continue
        else:
            pairs = pairs_in(value)
            if code == MESSAGE_ANNOTATIONS:
                annotations = pairs
                if any(_is_brokers(key) for key, _ in pairs):
                    kept.append(
                        annotations_without(data, section, BROKERS_ANNOTATIONS, BROKERS_PREFIX)
                    )
                    continue
            elif code == APPLICATION_PROPERTIES:
                _check_application(pairs)
        if code in (MESSAGE_ANNOTATIONS, PROPERTIES, APPLICATION_PROPERTIES, FOOTER):
            kept.append(data[section.start : section.end])
    return AmqpMessage(b"".join(kept), payload, _columns(header, properties, annotations))


def _is_brokers(key: Typed) -> bool:
    name = key.content
    return isinstance(name, bytes) and (
        name in BROKERS_ANNOTATIONS or name.startswith(BROKERS_PREFIX)
    )


def _body(data: bytes, body: list[MessageSection]) -> tuple[int, bytes]:
    """Return form and payload of a body."""
    code, start, value, end = body[0]
    constructor = data[value]
    if code == DATA:
        for section in body:
            if data[section.value] not in (0xA0, 0xB0):
                raise AmqpValueError("a data section that is not binary")
    elif code == SEQUENCE:
        for section in body:
            if data[section.value] not in (0x45, 0xC0, 0xD0):
                raise AmqpValueError("an amqp-sequence section that is no list")
    one = code == DATA and len(body) == 1
    if one or (code == VALUE and constructor in (0xA1, 0xB1)):
        wide = constructor & 0x10
        form = _FORMS[data[start : start + 2]] | (Body.DATA if one else Body.TEXT)
        payload = data[value + (5 if wide else 2) : end]
        if not one and not foreign_messages.is_text(payload):
            raise AmqpValueError("a string that is not UTF-8")
        if wide and len(payload) <= 0xFF:
            form |= WIDE_CONTENT
        return form, payload
    kinds = {DATA: Body.SEVERAL, SEQUENCE: Body.SEQUENCES, VALUE: Body.VALUE}
    return kinds[code], data[start : body[-1].end]


_HEADER_TYPES: Final = ("boolean", "ubyte", "uint", "boolean", "uint")


def _header(value: Typed) -> tuple[Typed, ...]:
    """Return a header's fields (3.2.1)."""
    fields = value.content
    if value.type != "list" or not isinstance(fields, tuple) or len(fields) > len(_HEADER_TYPES):
        raise AmqpValueError("a header of another form")
    for field, kind in zip(fields, _HEADER_TYPES, strict=False):
        if field.type not in (kind, "null"):
            raise AmqpValueError(f"a header with {field.type} instead of {kind}")
    return fields


_ID_TYPES: Final = frozenset(("ulong", "uuid", "binary", "string", "null"))
_PROPERTY_TYPES: Final = (
    *(_ID_TYPES, ("binary",), ("string",), ("string",), ("string",), _ID_TYPES, ("symbol",)),
    *(("symbol",), ("timestamp",), ("timestamp",), ("string",), ("uint",), ("string",)),
)
"""Types of the fields of the properties section (3.2.4)."""


def _check_properties(fields: tuple[Typed, ...]) -> None:
    for field, kinds in zip(fields, _PROPERTY_TYPES, strict=True):
        if field.type not in kinds and field.type != "null":
            raise AmqpValueError(f"a property of type {field.type} instead of {' or '.join(kinds)}")


def _check_application(pairs: tuple[tuple[Typed, Typed], ...]) -> None:
    """Raise unless keys are strings and values simple (3.2.5)."""
    for key, value in pairs:
        if key.type != STRING:
            raise AmqpValueError("an application property whose name is no string")
        if isinstance(value.content, tuple):
            raise AmqpValueError(f"an application property of type {value.type}")


def _columns(
    header: tuple[Typed, ...],
    properties: tuple[Typed, ...],
    annotations: tuple[tuple[Typed, Typed], ...],
) -> MessageColumns:
    durable, priority, ttl = (
        header[index].content if index < len(header) else None for index in range(3)
    )
    said = {
        key.content: value
        for key, value in annotations
        if key.type == SYMBOL and isinstance(key.content, bytes)
    }
    field = PropertyField
    return MessageColumns(
        durable=durable if isinstance(durable, bool) else None,
        priority=_number(priority),
        ttl_ms=_number(ttl),
        expires_at_ms=_number(properties[field.ABSOLUTE_EXPIRY_TIME].content),
        deliver_at_ms=_number(said.get(b"x-opt-delivery-time", NOTHING).content),
        delay_ms=_number(said.get(b"x-opt-delivery-delay", NOTHING).content),
        to=_bytes(properties[field.TO].content),
        subject=_bytes(properties[field.SUBJECT].content),
        user_id=_bytes(properties[field.USER_ID].content),
        group_id=_bytes(properties[field.GROUP_ID].content),
        filter_value=_bytes(said.get(b"x-stream-filter-value", NOTHING).content),
        identity=_bytes(said.get(b"x-deduplication-id", NOTHING).content),
        copies=_copies(said.get(b"x-cc", NOTHING)),
    )


def _number(content: object) -> int | None:
    return content if isinstance(content, int) and not isinstance(content, bool) else None


def _bytes(content: object) -> bytes | None:
    return content if isinstance(content, bytes) else None


def _copies(value: Typed) -> tuple[bytes, ...]:
    if value.type == "null":
        return ()
    listed = value.content
    if value.type not in ("list", "array") or not isinstance(listed, tuple):
        raise AnnotationError("an annotation x-cc that is no list")
    if len(listed) > COPIES_MAX:
        raise AnnotationError(f"an annotation x-cc of more than {COPIES_MAX} routing keys")
    keys = tuple(each.content for each in listed if each.type == STRING)
    return tuple(key for key in keys if isinstance(key, bytes))


def routing_headers(content: bytes) -> dict[str, object]:
    """Return what a headers exchange matches: application properties, and annotations that begin
    with ``x-``, as plain values; texts as str. Raises `PropertyError`."""
    fields = read_fields(content)
    found: dict[str, object] = {}
    for key, value in fields.annotations:
        name = key.content if key.type == SYMBOL else None
        if isinstance(name, bytes) and name.startswith(b"x-"):
            found[name.decode()] = _plain(header_value(value))
    for key, value in fields.application:
        name = key.content if key.type == STRING else None
        if isinstance(name, bytes):
            found[name.decode()] = _plain(header_value(value))
    return found


def _plain(value: Value) -> object:
    tag, content = value
    if tag == "S" and isinstance(content, bytes):
        return content.decode("utf-8", "surrogateescape")
    if tag == "T" and isinstance(content, int):
        return Timestamp(content)
    if tag == "A" and isinstance(content, tuple):
        return [_plain(each) for each in content]
    if tag == "F" and isinstance(content, tuple):
        return {name.decode("utf-8", "surrogateescape"): _plain(each) for name, each in content}
    return content


def hashed_properties(content: bytes) -> dict[str, object]:
    """Return the properties that an exchange may hash, under the names of AMQP 0.9.1."""
    properties = read_fields(content).properties
    found: dict[str, object] = {}
    for name, index in (
        ("correlation_id", PropertyField.CORRELATION_ID),
        ("message_id", PropertyField.MESSAGE_ID),
    ):
        kind, said = properties[index]
        if isinstance(said, bytes):
            shown = urn_of(said) if kind == "uuid" else said
            found[name] = shown.decode("utf-8", "surrogateescape")
        elif isinstance(said, int):
            found[name] = str(said)
    created = properties[PropertyField.CREATION_TIME].content
    if isinstance(created, int):
        found["timestamp"] = Timestamp(max(created, 0) // 1000)
    return found

"""Deliveries of AMQP 1.0: what a transfer carries of a stored message, whichever protocol it came by.

``sections_of(block, key, payload, ...)`` makes one. For many messages with equal block and key, make
``template_of(block, key, annotations)`` once, and ``template.message(payload, ...)`` of each;
``template.delivery(...)`` encodes those of a batch at once.

Sections of a message that came by AMQP 1.0 leave byte for byte as they came, but the header, which
is the broker's to change, and annotations, to which the broker adds (`annotations`: names with
values of the types in `fluxmq.protocols.amqp10.types`). Those that came by another protocol are
converted as ``docs/message-properties.md`` says. Knows nothing of links and queues.

Source: AMQP 1.0 part 3 (messaging), section 3.2.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from fluxmq.model.amqp10_sections import (
    BODY_MASK,
    DATA,
    FOOTER,
    MESSAGE_ANNOTATIONS,
    NAMES,
    VALUE,
    WIDE_CONTENT,
    Body,
    annotations_without,
    scan,
    sections_of_block,
)
from fluxmq.model.amqp10_values import (
    AmqpValueError,
    map_entries,
    map_of,
)
from fluxmq.model.properties import Item, PropertyKind, decode, encode
from fluxmq.protocols.amqp10 import codec, foreign_messages
from fluxmq.protocols.amqp10.delivery import DeliveryTemplate
from fluxmq.protocols.amqp10.types import UByte, UInt

NUMBER_BYTES: Final = 8
"""Bytes of a number that ends the annotations: a ulong with its constructor before it."""
_LENGTH: Final = struct.Struct(">I")
_NOTHING: Final[Mapping[str, object]] = MappingProxyType({})


class MessageTemplate:
    """Messages with equal properties, as a transfer carries them."""

    __slots__ = ("_after", "_annotations", "_body", "_durable", "_lead", "_priority", "_tail")

    def __init__(
        self,
        durable: bool,
        priority: int | None,
        annotations: bytes,
        tail: bytes,
        body: int,
        after: bytes,
        lead: bytes = b"",
    ) -> None:
        self._durable = durable
        self._priority = priority
        self._annotations = annotations
        self._tail = tail
        self._body = body
        self._after = after
        self._lead = lead

    def message(
        self,
        payload: bytes,
        *,
        ttl_ms: int | None = None,
        delivery_count: int = 0,
        first_acquirer: bool = True,
        number: int | None = None,
    ) -> bytes:
        """Return all sections of one message.

        `ttl_ms`: what remains of its life. `delivery_count`: failed deliveries before this one.
        `number`: takes the place of the last eight bytes of the annotations.
        """
        annotations = self._annotations
        if number is not None:
            annotations = annotations[:-NUMBER_BYTES] + number.to_bytes(NUMBER_BYTES, "big")
        return b"".join(
            (
                self._header(ttl_ms, delivery_count, first_acquirer),
                annotations,
                self._tail,
                body_section(self._body, payload),
                self._after,
            )
        )

    def delivery(
        self,
        block: bytes,
        key: bytes,
        *,
        ttl_ms: int | None = None,
        delivery_count: int = 0,
        first_acquirer: bool = True,
        numbered: bool = False,
    ) -> DeliveryTemplate | None:
        """Return the template of transfers of these messages, whose block and key are given; None if
        the section of the body depends on the payload.

        `numbered`: the last eight bytes of the annotations are each message's offset.
        """
        body = self._body & BODY_MASK
        if body in (foreign_messages.TEXT_IF_UTF8, foreign_messages.SECTIONS_IF_VALID):
            return None
        front = self._header(ttl_ms, delivery_count, first_acquirer) + self._annotations
        number_at = len(front) - NUMBER_BYTES if numbered else -1
        section = b"" if body >= Body.SEVERAL else _section_start(self._body)
        tail, head = self._tail, b""
        if self._lead:
            item = encode([Item(PropertyKind.AMQP10, self._lead + tail)])
            head = block[: len(block) - len(item) + 1]
        else:
            front, tail = front + tail, b""
        made = DeliveryTemplate(block, key, front, tail, head, self._lead, section, self._after)
        made.wide = self._body & WIDE_CONTENT != 0
        made.offset_at = number_at
        return made

    def _header(self, ttl_ms: int | None, delivery_count: int, first_acquirer: bool) -> bytes:
        """Return the header section."""
        fields = [
            b"\x41" if self._durable else b"\x42",
            b"\x40" if self._priority is None else codec.encode(UByte(self._priority)),
            b"\x40" if ttl_ms is None else codec.encode(UInt(min(max(ttl_ms, 0), 0xFFFF_FFFF))),
            b"\x41" if first_acquirer else b"\x42",
            codec.encode(UInt(min(delivery_count, 0xFFFF_FFFF))),
        ]
        header = b"".join(fields)
        return b"\0\x53\x70\xc0" + bytes((len(header) + 1, len(fields))) + header


def sections_of(
    block: bytes,
    key: bytes,
    payload: bytes,
    *,
    annotations: Mapping[str, object] = _NOTHING,
    ttl_ms: int | None = None,
    delivery_count: int = 0,
    first_acquirer: bool = True,
) -> bytes:
    """Return what a transfer of a stored message carries; see `template_of` and
    `MessageTemplate.message`."""
    return template_of(block, key, annotations).message(
        payload, ttl_ms=ttl_ms, delivery_count=delivery_count, first_acquirer=first_acquirer
    )


def template_of(
    block: bytes, key: bytes, annotations: Mapping[str, object] = _NOTHING
) -> MessageTemplate:
    """Return the template of messages with this property block, stored under `key`.

    `annotations`: the broker's, besides ``x-exchange`` and ``x-routing-key``. Raises
    `PropertyError` for a malformed block, `ValueError` for annotations that have no encoding.
    """
    items = decode(block)
    content = sections_of_block(items)
    exchange, routing_key = foreign_messages.address_of(items, key)
    added = {
        "x-exchange": foreign_messages.texts(exchange),
        "x-routing-key": foreign_messages.texts(routing_key),
        **foreign_messages.dead_letter_annotations(items),
        **annotations,
    }
    ours = b"".join([foreign_messages.entry(name, value) for name, value in added.items()])
    priority = next((value for kind, value, _ in items if kind is PropertyKind.PRIORITY), None)
    durable = foreign_messages.is_durable(items)
    lead = b""
    if content is None:
        made = foreign_messages.converted(items)
        entries, count = made.annotations, made.annotation_count
        between, form, after = made.bare, made.form, b""
    else:
        newer = foreign_messages.header_annotations(items)
        entries, count, between, after = _kept(content, frozenset(newer))
        for name, encoded in newer.items():
            ours += foreign_messages.symbol(name) + encoded
            count += 2
        form = content[0]
        if content.endswith(between) and items[-1].kind is PropertyKind.AMQP10 and not after:
            lead = content[: len(content) - len(between)]
    count += 2 * len(added)
    return MessageTemplate(
        durable,
        priority if isinstance(priority, int) else None,
        b"\0\x53\x72" + map_of(entries + ours, count),
        between,
        form,
        after,
        lead,
    )


def _kept(content: bytes, newer: frozenset[bytes]) -> tuple[bytes, int, bytes, bytes]:
    """Return entries of the annotations and their number, the sections between them and the body,
    and those behind it, of an item AMQP10."""
    entries, count, between, after = b"", 0, [], b""
    try:
        for section in scan(content, 1, len(content)):
            raw = content[section.start : section.end]
            if section.code == MESSAGE_ANNOTATIONS:
                raw = annotations_without(content, section, newer)
                if raw:
                    value = section.value - section.start
                    entries, count = map_entries(raw, value, len(raw))
            elif section.code == FOOTER:
                after = raw
            else:
                between.append(raw)
    except AmqpValueError as error:
        raise foreign_messages.malformed(error) from None
    return entries, count, b"".join(between), after


def body_section(form: int, payload: bytes) -> bytes:
    """Return the section or sections of a body, of a `form` as in `fluxmq.model.amqp10_sections`."""
    body = form & BODY_MASK
    if body == foreign_messages.TEXT_IF_UTF8:
        body = Body.TEXT if foreign_messages.is_text(payload) else Body.DATA
    elif body == foreign_messages.SECTIONS_IF_VALID:
        if foreign_messages.is_body(payload):
            return payload
        body = Body.DATA
    if body >= Body.SEVERAL:
        return payload
    size = len(payload)
    start = _section_start(form & ~BODY_MASK | body)
    if size > 0xFF or form & WIDE_CONTENT:
        return start[:-1] + bytes((start[-1] | 0x10,)) + _LENGTH.pack(size) + payload
    return start + bytes((size,)) + payload


def _section_start(form: int) -> bytes:
    """Return descriptor and short constructor of a body of one section, data or text."""
    is_data = form & BODY_MASK == Body.DATA
    descriptor = _DESCRIPTORS[form >> 4 & 3](DATA if is_data else VALUE)
    return descriptor + (b"\xa0" if is_data else b"\xa1")


def _ulong(code: int) -> bytes:
    return b"\0\x80" + code.to_bytes(8, "big")


def _short_symbol(code: int) -> bytes:
    name = NAMES[code]
    return b"\0\xa3" + bytes((len(name),)) + name


def _long_symbol(code: int) -> bytes:
    name = NAMES[code]
    return b"\0\xb3" + _LENGTH.pack(len(name)) + name


def _smallulong(code: int) -> bytes:
    return b"\0\x53" + bytes((code,))


_DESCRIPTORS: Final = (_smallulong, _ulong, _short_symbol, _long_symbol)

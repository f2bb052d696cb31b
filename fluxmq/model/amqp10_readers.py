"""Messages of AMQP 1.0 for readers of other protocols: the items that kept sections say.

`expanded` replaces the item AMQP10 of a block by items of the canonical block, which AMQP 0.9.1,
MQTT and tables read as any others. Also converts values and reply addresses. The table is in
``docs/message-properties.md``.

Source: AMQP 1.0 part 3 (messaging), sections 3.2.4 and 3.2.5; RabbitMQ's conversions.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Final

from fluxmq.model.amqp10_sections import (
    BODY_MASK,
    NOTHING,
    Body,
    Fields,
    PropertyField,
    pairs_in,
    read_fields,
    sections_of_block,
)
from fluxmq.model.amqp10_values import BINARY, MAP, STRING, SYMBOL, Typed
from fluxmq.model.properties import Item, PropertyError, PropertyKind, Value, text

SHORT_BYTES_MAX: Final = 255
"""Bytes of a short string of AMQP 0.9.1."""

TYPE_OF_ENCODED: Final = b"amqp-1.0"
"""AMQP 0.9.1's type of a message whose body is an encoded section of AMQP 1.0, as RabbitMQ's."""
CONTENT_TYPE_OF_ENCODED: Final = b"message/vnd.rabbitmq.amqp"
"""MQTT's Content Type of the same."""


class SectionReader(Enum):
    """For whom sections are expanded: they differ in what they can hold."""

    MQTT = "mqtt"
    AMQP_0_9_1 = "amqp"
    TABLE = "table"
    """Columns of a table, which may have names of its own for what no other protocol has."""


def expanded(items: Sequence[Item], reader: SectionReader) -> Sequence[Item]:
    """Return a block's items with those that its sections say in the place of AMQP10.

    The table is in ``docs/message-properties.md``. Items of the broker's own that the sections say
    as well win, since they are newer. For a `SectionReader.TABLE`, what no other protocol has is an item of
    kind AMQP10 with the field's name and its text, and invalid sections raise `PropertyError`; for
    consumers they say nothing, since the payload may be of use.
    """
    content = sections_of_block(items)
    if content is None:
        return items
    try:
        said = _Expansion(read_fields(content), reader).items
    except PropertyError:
        if reader is SectionReader.TABLE:
            raise
        said = []
    newer = {name for kind, _, name in items if kind is PropertyKind.HEADER}
    out: list[Item] = []
    for item in items:
        if item.kind is PropertyKind.AMQP10:
            out += [each for each in said if not each.name or each.name not in newer]
            said = []
        else:
            out.append(item)
    return out


_TEXT_KINDS: Final = (
    (PropertyField.CONTENT_TYPE, PropertyKind.CONTENT_TYPE),
    (PropertyField.CONTENT_ENCODING, PropertyKind.CONTENT_ENCODING),
    (PropertyField.USER_ID, PropertyKind.USER_ID),
    (PropertyField.GROUP_ID, PropertyKind.APP_ID),
)
_ONLY_HERE: Final = (
    PropertyField.TO,
    PropertyField.SUBJECT,
    PropertyField.ABSOLUTE_EXPIRY_TIME,
    PropertyField.GROUP_SEQUENCE,
    PropertyField.REPLY_TO_GROUP_ID,
)
_INTERNAL: Final = frozenset((b"x-routing-key", b"x-exchange", b"x-death"))
_INTERNAL_PREFIX: Final = b"x-basic-"


class _Expansion:
    """Makes the items of one message's sections."""

    def __init__(self, fields: Fields, reader: SectionReader) -> None:
        self._reader = reader
        self.items: list[Item] = []
        self._put_properties(fields)
        for key, value in fields.annotations:
            self._put_annotation(key, value)
        for key, value in fields.application:
            if key.type == STRING and isinstance(key.content, bytes):
                self._put_header(key.content, value)

    def _put_properties(self, fields: Fields) -> None:
        reader = self._reader
        body = fields.form & BODY_MASK
        encoded = body >= Body.SEVERAL
        named = reader is not SectionReader.MQTT or not encoded
        if reader is SectionReader.MQTT and encoded:
            self._put(PropertyKind.CONTENT_TYPE, CONTENT_TYPE_OF_ENCODED)
        if reader is not SectionReader.AMQP_0_9_1 and body == Body.TEXT:
            self.items.append(Item(PropertyKind.PAYLOAD_FORMAT, 1))
        for index, kind in _TEXT_KINDS:
            if named or kind is not PropertyKind.CONTENT_TYPE:
                self._put_text(kind, fields.properties[index])
        self._put_id(
            PropertyKind.MESSAGE_ID, fields.properties[PropertyField.MESSAGE_ID], b"x-message-id"
        )
        self._put_id(
            PropertyKind.CORRELATION,
            fields.properties[PropertyField.CORRELATION_ID],
            b"x-correlation-id",
        )
        self._put_reply_to(fields.properties[PropertyField.REPLY_TO])
        created = fields.properties[PropertyField.CREATION_TIME].content
        if isinstance(created, int):
            self.items.append(Item(PropertyKind.TIMESTAMP, max(created, 0) // 1000))
        if encoded and reader is not SectionReader.MQTT:
            self._put(PropertyKind.TYPE, TYPE_OF_ENCODED)
        if reader is SectionReader.TABLE:
            for index in _ONLY_HERE:
                shown = _shown(fields.properties[index])
                if shown is not None:
                    self._put(PropertyKind.AMQP10, shown, index.name.lower().encode())

    def _put(self, kind: PropertyKind, value: bytes, name: bytes = b"") -> None:
        self.items.append(Item(kind, value, name))

    def _put_header(self, name: bytes, value: Typed) -> None:
        self.items.append(Item(PropertyKind.HEADER, header_value(value), name))

    def _put_text(self, kind: PropertyKind, value: Typed) -> None:
        if isinstance(value.content, bytes):
            self._put(kind, value.content)

    def _put_id(self, kind: PropertyKind, value: Typed, header: bytes) -> None:
        """Put a message id (3.2.11 to 3.2.14): AMQP 0.9.1 has only short strings for them."""
        content = _shown(value)
        if content is None:
            return
        if self._reader is SectionReader.AMQP_0_9_1 and (
            value.type == BINARY or len(content) > SHORT_BYTES_MAX
        ):
            self._put_header(header, value)
        else:
            self._put(kind, content)

    def _put_reply_to(self, value: Typed) -> None:
        address = value.content
        if not isinstance(address, bytes):
            return
        if self._reader is SectionReader.MQTT:
            topic = topic_of_address(address)
            if topic is None:
                self._put_header(b"reply-to", value)
            else:
                self._put(PropertyKind.REPLY_TO, topic)
        elif self._reader is SectionReader.AMQP_0_9_1:
            queue = queue_of_address(address)
            self._put(PropertyKind.REPLY_TO, address if queue is None else queue)
        else:
            self._put(PropertyKind.REPLY_TO, address)

    def _put_annotation(self, key: Typed, value: Typed) -> None:
        name = key.content
        if key.type != SYMBOL or not isinstance(name, bytes) or not name.startswith(b"x-"):
            return
        if name == b"x-cc":
            self._put_header(b"CC", value)
        elif name == b"x-opt-deaths":
            deaths = _x_deaths(value)
            if deaths:
                self.items.append(Item(PropertyKind.HEADER, Value("A", deaths), b"x-death"))
        elif name == b"x-basic-type":
            self._put_text(PropertyKind.TYPE, value)
        elif name not in _INTERNAL and not name.startswith(_INTERNAL_PREFIX):
            self._put_header(name, value)


def _shown(value: Typed) -> bytes | None:
    """Return a field of the properties as text or bytes, None for null."""
    content = value.content
    if value.type == "uuid" and isinstance(content, bytes):
        return urn_of(content)
    if isinstance(content, bytes):
        return content
    return b"%d" % content if isinstance(content, int) else None


def _x_deaths(value: Typed) -> tuple[Value, ...]:
    """Return ``x-opt-deaths`` as the tables of AMQP 0.9.1's ``x-death``; none if it is malformed."""
    deaths = []
    for death in value.content if isinstance(value.content, tuple) else ():
        if not isinstance(death, Typed) or death.type != MAP:
            return ()
        said = {key.content: each for key, each in pairs_in(death)}
        count, moment, keys = (
            said.get(name, NOTHING).content for name in (b"count", b"first-time", b"routing-keys")
        )
        seconds = max(moment, 0) // 1000 if isinstance(moment, int) else 0
        listed = tuple(map(_text_or_empty, keys)) if isinstance(keys, tuple) else ()
        table = [
            (b"count", Value("l", count if isinstance(count, int) and count < 1 << 63 else 1)),
            (b"reason", _text_or_empty(said.get(b"reason", NOTHING))),
            (b"queue", _text_or_empty(said.get(b"queue", NOTHING))),
            (b"time", Value("T", seconds)),
            (b"exchange", _text_or_empty(said.get(b"exchange", NOTHING))),
            (b"routing-keys", Value("A", listed)),
        ]
        ttl = said.get(b"ttl", NOTHING).content
        if isinstance(ttl, int):
            table.append((b"original-expiration", text(b"%d" % ttl)))
        deaths.append(Value("F", tuple(table)))
    return tuple(deaths)


def _text_or_empty(value: Typed) -> Value:
    return text(value.content if isinstance(value.content, bytes) else b"")


_TAGS: Final = {
    "byte": "b",
    "ubyte": "B",
    "short": "s",
    "ushort": "u",
    "int": "I",
    "uint": "i",
    "long": "l",
    "float": "f",
    "double": "d",
    "boolean": "t",
    "null": "V",
    STRING: "S",
    SYMBOL: "S",
    BINARY: "x",
    "decimal32": "x",
    "decimal64": "x",
    "decimal128": "x",
}
_SIGNED_MAX: Final = (1 << 63) - 1


def header_value(value: Typed) -> Value:
    """Return a value as a header's: numbers keep their width, an unsigned one of 64 bits above the
    signed ones is text; timestamps become seconds; a uuid is its URN, a character text, and a
    described value is what it describes."""
    kind, content = value
    tag = _TAGS.get(kind)
    if tag is not None:
        return Value(tag, content)
    if isinstance(content, tuple):
        if kind == MAP:
            return Value("F", tuple((_key(key), header_value(each)) for key, each in content))
        if kind == "described":
            return header_value(content[1])
        return Value("A", tuple(header_value(each) for each in content))
    if isinstance(content, bytes):
        return text(urn_of(content))
    assert isinstance(content, int), "what is left is a number"
    if kind == "char":
        return text(chr(content).encode())
    if kind == "timestamp":
        return Value("T", max(content, 0) // 1000)
    return Value("l", content) if content <= _SIGNED_MAX else text(b"%d" % content)


def _key(key: Typed) -> bytes:
    shown = _shown(key)
    return b"" if shown is None else shown


URN: Final = b"urn:uuid:"


def urn_of(uuid: bytes) -> bytes:
    """Return a UUID's 16 bytes as its URN (RFC 9562 section 4)."""
    digits = uuid.hex()
    parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
    return URN + "-".join(parts).encode()


# --- reply addresses ---


QUEUES: Final = b"/queues/"
EXCHANGES: Final = b"/exchanges/"
TOPICS: Final = b"/exchanges/amq.topic/"
_HEX: Final = b"0123456789abcdefABCDEF"
_TOPIC: Final = bytes.maketrans(b"/.", b"./")
_DEAD_LETTERS: Final = b"$dlq/"
_NOT_IN_NAMES: Final = frozenset(b"/+#")


def unquoted(quoted: bytes) -> bytes | None:
    """Return percent-encoded text decoded; None for a malformed escape, a slash, or what is not
    UTF-8 (RFC 3986 section 2.1)."""
    if b"/" in quoted:
        return None
    first, *escaped = quoted.split(b"%")
    out = [first]
    for part in escaped:
        if len(part) < 2 or part[0] not in _HEX or part[1] not in _HEX:
            return None
        out += (bytes((int(part[:2], 16),)), part[2:])
    found = b"".join(out)
    try:
        found.decode()
    except UnicodeDecodeError:
        return None
    return found


def queue_of_address(address: bytes) -> bytes | None:
    """Return the queue that an address ``/queues/:queue`` names, None for another address."""
    if not address.startswith(QUEUES):
        return None
    return unquoted(address[len(QUEUES) :]) or None


def topic_of_address(address: bytes) -> bytes | None:
    """Return the topic of MQTT for an address: of a queue that topics can name, or of
    ``amq.topic``; else None."""
    queue = queue_of_address(address)
    if queue is not None:
        topic = queue if queue.startswith(_DEAD_LETTERS) else b"$queue/" + queue
        name = queue.removeprefix(_DEAD_LETTERS)
        return topic if name and name[:1] != b"$" and not _NOT_IN_NAMES & set(name) else None
    if not address.startswith(TOPICS):
        return None
    key = unquoted(address[len(TOPICS) :])
    return key.translate(_TOPIC) if key else None

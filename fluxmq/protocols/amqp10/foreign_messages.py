"""Messages that came by MQTT or AMQP 0.9.1, as sections of AMQP 1.0.

Converts the items of a property block; the table is in ``docs/message-properties.md``. Also names
what the broker says about a message of any protocol: address, durability, dead letters.

Source: AMQP 1.0 part 3, section 3.2; RabbitMQ's conversions between its protocols.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from fluxmq.model.amqp10_readers import QUEUES, TOPICS, TYPE_OF_ENCODED, URN
from fluxmq.model.amqp10_sections import DATA, FIELDS_MAX, FOOTER, Body, PropertyField, scan
from fluxmq.model.amqp10_values import AmqpValueError, map_of
from fluxmq.model.properties import Item, PropertyError, PropertyKind, Value
from fluxmq.protocols.amqp10 import codec
from fluxmq.protocols.amqp10.types import (
    Array,
    Byte,
    Float,
    Int,
    Milliseconds,
    Short,
    Symbol,
    UByte,
    UInt,
    ULong,
    UShort,
)

TEXT_IF_UTF8: Final = 8
"""Form of messages whose publisher says by MQTT that they are text: an amqp-value if they are."""
SECTIONS_IF_VALID: Final = 9
"""Form of messages whose publisher says by AMQP 0.9.1 that they are sections of AMQP 1.0."""

_MQTT: Final = 1
_AMQP_0_9_1: Final = 2
_PROTOCOL_NAMES: Final = {1: "mqtt", 2: "amqp", 3: "amqp1"}
_TOPIC: Final = bytes.maketrans(b"/.", b"./")
_QUEUE_PREFIXES: Final = (b"$queue/", b"$dlq/")
_MAP_CODE: Final = 0xD1
_STRING_CODE: Final = 0xB1
_MILLISECONDS_MAX: Final = (1 << 63) - 1
_ULONG_MAX: Final = (1 << 64) - 1
_UINT_MAX: Final = (1 << 32) - 1


class ForeignSections(NamedTuple):
    """Sections of a message. ``annotations``: encoded keys and values, and their number; ``bare``:
    properties and application properties; ``form``: of the body."""

    annotations: bytes
    annotation_count: int
    bare: bytes
    form: int


def malformed(error: AmqpValueError) -> PropertyError:
    """Return the error for a block whose sections cannot be read."""
    return PropertyError(f"AMQP10: {error}")


def is_text(raw: bytes) -> bool:
    """Return whether bytes are UTF-8."""
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def is_body(payload: bytes) -> bool:
    """Return whether a payload is a body of encoded sections, with or without a footer."""
    try:
        sections = scan(payload, 0, len(payload))
    except AmqpValueError:
        return False
    return any(section.code != FOOTER for section in sections) and all(
        section.code >= DATA for section in sections
    )


def texts(raw: bytes) -> str:
    """Return a name as a string; invalid UTF-8 is replaced."""
    return raw.decode("utf-8", "replace")


def entry(name: str, value: object) -> bytes:
    """Return key and value of an annotation. Raises `ValueError` if it has no encoding."""
    return codec.encode(Symbol(name)) + codec.encode(value)


# --- what the broker says ---


def address_of(items: Iterable[Item], key: bytes) -> tuple[bytes, bytes]:
    """Return exchange and routing key of a message; `key` is the one its queue keeps.

    Messages that came by MQTT were published to ``amq.topic``, or to the default exchange if the
    topic addresses a queue.
    """
    for kind, value, _ in items:
        if kind is PropertyKind.EXCHANGE and isinstance(value, bytes):
            return value, key
    if key.startswith(_QUEUE_PREFIXES):
        return b"", key
    return b"amq.topic", key.translate(_TOPIC)


def is_durable(items: Iterable[Item]) -> bool:
    """Return whether a message is durable: as its publisher said, and by MQTT always."""
    protocol = 0
    for kind, value, _ in items:
        if kind is PropertyKind.DELIVERY_MODE:
            return value == 2
        if kind is PropertyKind.PROTOCOL and isinstance(value, int):
            protocol = value
    return protocol <= _MQTT


_DEAD_NAMES: Final = {
    PropertyKind.DEAD_REASON: "x-opt-dlq-reason",
    PropertyKind.DEAD_QUEUE: "x-opt-dlq-original-queue",
    PropertyKind.DEAD_OFFSET: "x-opt-dlq-original-offset",
    PropertyKind.DEAD_KEY: "x-opt-dlq-original-topic",
    PropertyKind.DEAD_GROUP: "x-opt-dlq-group",
    PropertyKind.DEAD_ATTEMPTS: "x-opt-dlq-delivery-count",
    PropertyKind.DEAD_FIRST_TIME: "x-opt-dlq-first-delivered-at",
    PropertyKind.DEAD_TIME: "x-opt-dlq-moved-at",
    PropertyKind.DEAD_TRANSFER: "x-opt-dlq-transfer-id",
}


def dead_letter_annotations(items: Iterable[Item]) -> dict[str, object]:
    """Return annotations for a dead letter's items: texts, unsigned numbers, timestamps, bytes."""
    found: dict[str, object] = {}
    for kind, value, _ in items:
        name = _DEAD_NAMES.get(kind)
        if name is None:
            continue
        if kind in (PropertyKind.DEAD_FIRST_TIME, PropertyKind.DEAD_TIME):
            found[name] = _moment(value, 1000)
        elif isinstance(value, int):
            found[name] = ULong(value)
        elif isinstance(value, bytes):
            found[name] = value if kind is PropertyKind.DEAD_TRANSFER else texts(value)
    return found


def _moment(value: object, divisor: int = 1, factor: int = 1) -> Milliseconds:
    number = value if isinstance(value, int) else 0
    return Milliseconds(min(number * factor // divisor, _MILLISECONDS_MAX))


def header_annotations(items: Iterable[Item]) -> dict[bytes, bytes]:
    """Return annotations for the headers that begin with ``x-``, encoded, by name: those that the
    broker has added to a message of AMQP 1.0, or a publisher by another protocol."""
    found: dict[bytes, bytes] = {}
    for kind, value, name in items:
        if kind is PropertyKind.HEADER and isinstance(value, Value):
            annotation = _annotation(name, value)
            if annotation is not None:
                found.setdefault(*annotation)
    return found


def _annotation(name: bytes, value: Value) -> tuple[bytes, bytes] | None:
    if name == b"CC":
        return (b"x-cc", codec.encode(amqp_value(value))) if value.tag == "A" else None
    if name == b"x-death":
        return b"x-opt-deaths", codec.encode(_deaths(value))
    if not name.startswith(b"x-") or not name.isascii():
        return None
    return name, codec.encode(amqp_value(value))


def _deaths(value: Value) -> Array:
    """Return ``x-death`` in RabbitMQ's form for AMQP 1.0: an array of maps."""
    found: list[object] = []
    for death in value.content if isinstance(value.content, tuple) else ():
        if not isinstance(death, Value) or not isinstance(death.content, tuple):
            continue
        said = dict(death.content)
        count, moment = (_content(said.get(name)) for name in (b"count", b"time"))
        keys = _content(said.get(b"routing-keys"))
        time = _moment(moment, factor=1000)
        table: dict[object, object] = {}
        expiration = _content(said.get(b"original-expiration"))
        if isinstance(expiration, bytes) and expiration.isdigit():
            table[Symbol("ttl")] = UInt(min(int(expiration[:10]), _UINT_MAX))
        table |= {
            Symbol("queue"): _text(said.get(b"queue")),
            Symbol("reason"): Symbol(
                _text(said.get(b"reason")).encode("ascii", "replace").decode()
            ),
            Symbol("count"): ULong(max(count, 0) if isinstance(count, int) else 1),
            Symbol("first-time"): time,
            Symbol("last-time"): time,
            Symbol("exchange"): _text(said.get(b"exchange")),
            Symbol("routing-keys"): Array(
                _STRING_CODE, [_text(each) for each in (keys if isinstance(keys, tuple) else ())]
            ),
        }
        found.append(table)
    return Array(_MAP_CODE, found)


def _content(value: object) -> object:
    return value.content if isinstance(value, Value) else None


def _text(value: object) -> str:
    content = _content(value)
    return texts(content) if isinstance(content, bytes) else ""


# --- properties ---


def converted(items: Sequence[Item]) -> ForeignSections:
    """Return the sections of a message that came by another protocol."""
    protocol = next((value for kind, value, _ in items if kind is PropertyKind.PROTOCOL), 0)
    first: dict[PropertyKind, int | bytes | Value | None] = {}
    for kind, value, _ in items:
        first.setdefault(kind, value)
    headers = _first_headers(items)
    fields = _properties(first, headers, protocol == _AMQP_0_9_1)
    annotations = header_annotations(
        Item(PropertyKind.HEADER, value, name) for name, value in headers.items()
    )
    form: int = Body.DATA
    said = first.get(PropertyKind.TYPE)
    if said == TYPE_OF_ENCODED:
        form = SECTIONS_IF_VALID
    elif isinstance(said, bytes):
        annotations.setdefault(b"x-basic-type", codec.encode(_string_or_bytes(said)))
    if first.get(PropertyKind.PAYLOAD_FORMAT) == 1:
        form = TEXT_IF_UTF8
    application = _application(first, headers, protocol)
    parts = []
    if fields:
        parts.append(_list_section(fields))
    if application:
        encoded = b"".join(application)
        parts.append(b"\0\x53\x74" + map_of(encoded, 2 * len(application)))
    entries = b"".join(symbol(name) + value for name, value in annotations.items())
    return ForeignSections(entries, 2 * len(annotations), b"".join(parts), form)


def symbol(name: bytes) -> bytes:
    """Return an encoded symbol."""
    return codec.encode(Symbol(name.decode("ascii")))


def _list_section(fields: list[bytes]) -> bytes:
    content = b"".join(fields)
    size = len(content)
    if size < 0xFF:
        return b"\0\x53\x73\xc0" + bytes((size + 1, len(fields))) + content
    return b"".join(
        (b"\0\x53\x73\xd0", (size + 4).to_bytes(4, "big"), len(fields).to_bytes(4, "big"), content)
    )


def _first_headers(items: Iterable[Item]) -> dict[bytes, Value]:
    """Return headers by name: maps have each key once, and the first one counts."""
    found: dict[bytes, Value] = {}
    for kind, value, name in items:
        if kind is PropertyKind.HEADER and isinstance(value, Value):
            found.setdefault(name, value)
    return found


def _properties(
    first: dict[PropertyKind, int | bytes | Value | None],
    headers: dict[bytes, Value],
    is_amqp: bool,
) -> list[bytes]:
    """Return the encoded fields of the properties section, none if all are null."""
    fields: dict[int, object] = {}
    ids = (
        (PropertyField.MESSAGE_ID, PropertyKind.MESSAGE_ID, b"x-message-id"),
        (PropertyField.CORRELATION_ID, PropertyKind.CORRELATION, b"x-correlation-id"),
    )
    encoded: dict[int, bytes] = {}
    for index, kind, header in ids:
        said = first.get(kind)
        if isinstance(said, bytes):
            encoded[index] = _message_id(said)
        elif header in headers and isinstance(headers[header].content, bytes):
            encoded[index] = codec.encode(amqp_value(headers.pop(header)))
    for index, kind in (
        (PropertyField.CONTENT_TYPE, PropertyKind.CONTENT_TYPE),
        (PropertyField.CONTENT_ENCODING, PropertyKind.CONTENT_ENCODING),
    ):
        said = first.get(kind)
        if isinstance(said, bytes) and said.isascii():
            fields[index] = Symbol(said.decode())
    user, group, created, reply_to = (
        first.get(kind)
        for kind in (
            *(PropertyKind.USER_ID, PropertyKind.APP_ID),
            *(PropertyKind.TIMESTAMP, PropertyKind.REPLY_TO),
        )
    )
    if isinstance(user, bytes):
        fields[PropertyField.USER_ID] = user
    if isinstance(group, bytes) and is_text(group):
        fields[PropertyField.GROUP_ID] = group.decode()
    if isinstance(created, int):
        fields[PropertyField.CREATION_TIME] = _moment(created, factor=1000)
    if isinstance(reply_to, bytes):
        fields[PropertyField.REPLY_TO] = _reply_address(reply_to, is_amqp)
    encoded |= {index: codec.encode(value) for index, value in fields.items()}
    if not encoded:
        return []
    return [encoded.get(index, b"\x40") for index in range(min(FIELDS_MAX, max(encoded) + 1))]


def _message_id(said: bytes) -> bytes:
    """Return a message id of text: the URN of a UUID as such, decimal digits as ulong."""
    if said.startswith(URN):
        digits = said[len(URN) :]
        parts = digits.split(b"-")
        if [len(part) for part in parts] == [8, 4, 4, 4, 12]:
            try:
                return b"\x98" + bytes.fromhex(b"".join(parts).decode())
            except ValueError:
                pass  # text that only looks like one
    if said.isdigit() and (said == b"0" or said[0] != 0x30) and len(said) <= 20:
        number = int(said)
        if number <= _ULONG_MAX:
            return codec.encode(ULong(number))
    return codec.encode(_string_or_bytes(said))


def _string_or_bytes(said: bytes) -> object:
    return said.decode() if is_text(said) else said


def _reply_address(reply_to: bytes, is_amqp: bool) -> str:
    """Return the address of a queue (AMQP 0.9.1), or of a topic (MQTT), which may be a queue's."""
    if is_amqp:
        return QUEUES.decode() + quote(reply_to, safe="")
    queue, slash, key = reply_to.removeprefix(_QUEUE_PREFIXES[0]).partition(b"/")
    if reply_to.startswith(_QUEUE_PREFIXES[0]) and queue and not slash and not key:
        return QUEUES.decode() + quote(queue, safe="")
    return TOPICS.decode() + quote(reply_to.translate(_TOPIC), safe="")


def _application(
    first: dict[PropertyKind, int | bytes | Value | None],
    headers: dict[bytes, Value],
    protocol: object,
) -> list[bytes]:
    """Return encoded entries: headers without ``x-`` that the map may have, and the publisher of a
    message that came by MQTT."""
    said: dict[bytes, object] = {
        name: amqp_value(value)
        for name, value in headers.items()
        if not name.startswith(b"x-") and is_text(name) and value.tag not in ("A", "F")
    }
    publisher = first.get(PropertyKind.PUBLISHER)
    if protocol == _MQTT:
        if isinstance(publisher, bytes):
            said[b"client_id"] = texts(publisher)
        said[b"protocol"] = _PROTOCOL_NAMES[_MQTT]
    return [codec.encode(name.decode()) + codec.encode(value) for name, value in said.items()]


# --- values ---

_PLAIN: Final[dict[str, Callable[[Any], object]]] = {
    "b": Byte,
    "B": UByte,
    "s": Short,
    "u": UShort,
    "I": Int,
    "i": UInt,
    "l": int,
    "f": Float,
    "d": float,
    "t": bool,
}


def amqp_value(value: Value) -> object:
    """Return a header's value as `fluxmq.protocols.amqp10.codec` encodes it.

    Texts that are not UTF-8 are binary, decimals are text, timestamps have milliseconds, arrays are
    lists, and tables are maps with symbols as keys.
    """
    tag, content = value
    plain = _PLAIN.get(tag)
    if plain is not None:
        return plain(content)
    if isinstance(content, bytes):
        return _string_or_bytes(content) if tag == "S" else content
    if tag == "T":
        return _moment(content, factor=1000)
    if not isinstance(content, tuple):
        return None
    if tag == "D":
        scale, unscaled = content
        return str(Decimal(unscaled).scaleb(-scale))
    if tag == "A":
        return [amqp_value(each) for each in content]
    return {_map_key(name): amqp_value(each) for name, each in content}


def _map_key(name: bytes) -> str:
    return Symbol(name.decode()) if name.isascii() else texts(name)

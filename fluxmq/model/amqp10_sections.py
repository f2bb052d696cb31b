"""A message that came by AMQP 1.0, as queues keep it: the item AMQP10 of a property block.

The sections around the body stay byte for byte as they came. What other protocols and the broker
understand is in items of its own beside them (durable, priority, ttl), or is made from the sections
when a reader of another protocol asks: `expanded` returns a block's items with those that the
sections say, in the form of the canonical block.

    AMQP10   form u8 | message-annotations | properties | application-properties | footer
             each section with its descriptor, as sent; annotations of the broker's own are left out
    form     bits 0 to 3: the body, see `Body`
             bits 4, 5: form of the descriptor of the body's section: smallulong, ulong, sym8, sym32
             bit 6: the length of the content has four bytes although one is enough

The payload is the content of the one data section, or the text of an amqp-value that is a string;
any other body is kept encoded. Both have the form, so that a message leaves as it came.

Source: AMQP 1.0 part 3 (messaging), section 3.2.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Final, NamedTuple

from fluxmq.model.amqp10_values import (
    MAP,
    SYMBOL,
    AmqpValueError,
    Typed,
    end_of,
    map_entries,
    map_of,
    read_value,
)
from fluxmq.model.properties import Item, PropertyError, PropertyKind

HEADER: Final = 0x70
DELIVERY_ANNOTATIONS: Final = 0x71
MESSAGE_ANNOTATIONS: Final = 0x72
PROPERTIES: Final = 0x73
APPLICATION_PROPERTIES: Final = 0x74
DATA: Final = 0x75
SEQUENCE: Final = 0x76
VALUE: Final = 0x77
FOOTER: Final = 0x78

SECTIONS_MAX: Final = 1024
"""Sections of a message: a body may have many, and real ones have one."""

NAMES: Final = {
    HEADER: b"amqp:header:list",
    DELIVERY_ANNOTATIONS: b"amqp:delivery-annotations:map",
    MESSAGE_ANNOTATIONS: b"amqp:message-annotations:map",
    PROPERTIES: b"amqp:properties:list",
    APPLICATION_PROPERTIES: b"amqp:application-properties:map",
    DATA: b"amqp:data:binary",
    SEQUENCE: b"amqp:amqp-sequence:list",
    VALUE: b"amqp:amqp-value:*",
    FOOTER: b"amqp:footer:map",
}
"""Descriptors of sections as symbols, by their number."""
_CODES: Final = {name: code for code, name in NAMES.items()}

WIDE_CONTENT: Final = 0x40
"""Bit of a form: the length of the content has four bytes although one is enough."""
BODY_MASK: Final = 0x0F

BROKERS_ANNOTATIONS: Final = frozenset(
    (
        b"x-exchange",
        b"x-routing-key",
        b"x-delivery-count",
        b"x-acquired-count",
        b"x-stream-offset",
    )
)
"""Annotations that a delivery gets from the broker; a publisher's own of these names are dropped."""
BROKERS_PREFIX: Final = b"x-opt-dlq-"
"""Prefix of the same for dead letters."""


class PropertyField(IntEnum):
    """Fields of the properties section, in their order (3.2.4)."""

    MESSAGE_ID = 0
    USER_ID = 1
    TO = 2
    SUBJECT = 3
    REPLY_TO = 4
    CORRELATION_ID = 5
    CONTENT_TYPE = 6
    CONTENT_ENCODING = 7
    ABSOLUTE_EXPIRY_TIME = 8
    CREATION_TIME = 9
    GROUP_ID = 10
    GROUP_SEQUENCE = 11
    REPLY_TO_GROUP_ID = 12


FIELDS_MAX: Final = len(PropertyField)


class Body(IntEnum):
    """What the payload is: the content of one data section, the text of an amqp-value that is a
    string, or encoded sections: several of data, sequences, or another amqp-value."""

    DATA = 0
    TEXT = 1
    SEVERAL = 5
    SEQUENCES = 6
    VALUE = 7


class MessageSection(NamedTuple):
    """A section's place in a message: its descriptor is at `start`, its value at `value`."""

    code: int
    start: int
    value: int
    end: int


class Fields(NamedTuple):
    """What the kept sections of a message say; properties by `PropertyField`, null if not there."""

    form: int
    annotations: tuple[tuple[Typed, Typed], ...]
    properties: tuple[Typed, ...]
    application: tuple[tuple[Typed, Typed], ...]


NOTHING: Final = Typed("null", None)


def scan(data: bytes, at: int, end: int) -> list[MessageSection]:
    """Return the sections of a message or a part of one, in the standard's order.

    Raises `AmqpValueError` for bytes that are no sections, and for sections twice or out of order.
    """
    found: list[MessageSection] = []
    before = 0
    while at < end:
        if len(found) == SECTIONS_MAX:
            raise AmqpValueError("more sections than a message takes")
        code, value = _descriptor(data, at, end)
        if code < before or (code == before and code not in (DATA, SEQUENCE)):
            raise AmqpValueError("sections twice or out of order")
        if DATA <= before <= VALUE and code != before and code != FOOTER:
            raise AmqpValueError("a body of different sections")
        before = code
        stop = end_of(data, value, end)
        found.append(MessageSection(code, at, value, stop))
        at = stop
    return found


def _descriptor(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Return a section's number and where its value begins."""
    if data.startswith(b"\0\x53", at) and at + 2 < end:
        code, stop = data[at + 2], at + 3
    else:
        if data[at]:
            raise AmqpValueError("a value that is no section")
        stop = end_of(data, at + 1, end)
        descriptor, stop = read_value(data, at + 1, stop)
        said = descriptor.content
        if isinstance(said, bytes) and descriptor.type == SYMBOL:
            code = _CODES.get(said, 0)
        else:
            code = said if isinstance(said, int) and descriptor.type == "ulong" else 0
    if not HEADER <= code <= FOOTER:
        raise AmqpValueError("a section that is not known")
    return code, stop


def read_fields(content: bytes) -> Fields:
    """Return what an item AMQP10 says. Raises `PropertyError` for invalid sections."""
    if not content:
        raise PropertyError("AMQP10 without a form")
    annotations: tuple[tuple[Typed, Typed], ...] = ()
    application: tuple[tuple[Typed, Typed], ...] = ()
    properties: tuple[Typed, ...] = (NOTHING,) * FIELDS_MAX
    try:
        for section in scan(content, 1, len(content)):
            if section.code == FOOTER:
                continue
            value, _ = read_value(content, section.value, section.end)
            if section.code == PROPERTIES:
                properties = properties_in(value)
            elif section.code == MESSAGE_ANNOTATIONS:
                annotations = pairs_in(value)
            elif section.code == APPLICATION_PROPERTIES:
                application = pairs_in(value)
    except AmqpValueError as error:
        raise PropertyError(f"AMQP10: {error}") from None
    return Fields(content[0], annotations, properties, application)


def properties_in(value: Typed) -> tuple[Typed, ...]:
    """Return the fields of a properties section, those not sent as null. Raises `AmqpValueError`."""
    fields = value.content
    if value.type != "list" or not isinstance(fields, tuple) or len(fields) > FIELDS_MAX:
        raise AmqpValueError("properties of another form")
    return (*fields, *(NOTHING,) * (FIELDS_MAX - len(fields)))


def pairs_in(value: Typed) -> tuple[tuple[Typed, Typed], ...]:
    """Return keys and values of a section that is a map; none for null. Raises `AmqpValueError`."""
    if value.type == "null":
        return ()
    if value.type != MAP or not isinstance(value.content, tuple):
        raise AmqpValueError("a section that is no map")
    return value.content


def without_annotations(content: bytes, names: Iterable[bytes]) -> bytes:
    """Return an item AMQP10 without some annotations. Raises `PropertyError`."""
    left = frozenset(names)
    try:
        for section in scan(content, 1, len(content)):
            if section.code == MESSAGE_ANNOTATIONS:
                rest = annotations_without(content, section, left)
                return content[: section.start] + rest + content[section.end :]
    except AmqpValueError as error:
        raise PropertyError(f"AMQP10: {error}") from None
    return content


def annotations_without(
    data: bytes, section: MessageSection, names: frozenset[bytes], prefix: bytes = b""
) -> bytes:
    """Return an annotations section without keys of these names, or with this prefix; empty if none
    is left. The bytes are the same if none is dropped. Raises `AmqpValueError`."""
    entries, count = map_entries(data, section.value, section.end)
    kept: list[bytes] = []
    at = 0
    for _ in range(count // 2):
        key, value_at = read_value(entries, at, len(entries))
        stop = end_of(entries, value_at, len(entries))
        name = key.content
        if not (
            isinstance(name, bytes)
            and (name in names or (prefix != b"" and name.startswith(prefix)))
        ):
            kept.append(entries[at:stop])
        at = stop
    if at != len(entries) or count % 2:
        raise AmqpValueError("a map of another size")
    if 2 * len(kept) == count:
        return data[section.start : section.end]
    if not kept:
        return b""
    return data[section.start : section.value] + map_of(b"".join(kept), 2 * len(kept))


def sections_of_block(items: Iterable[Item]) -> bytes | None:
    """Return the content of the item AMQP10, None without one."""
    for kind, value, _ in items:
        if kind is PropertyKind.AMQP10 and isinstance(value, bytes):
            return value
    return None

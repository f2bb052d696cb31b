"""Filters of a source: which messages of a queue a receiver wants, from ``attach`` to a predicate.

``read_filters`` takes the filter-set of a source and returns `SourceFilters`: where a stream begins,
and a `MessageFilter` that says of a stored message whether it matches. A filter of a kind that is
not known is not in ``effective``, which the answer to the attach names; a known one with an invalid
value is an error. Messages that came by another protocol are matched as they would be delivered by
AMQP 1.0.

============================================  =====================================================
``rabbitmq:stream-offset-spec``               start of a stream: as ``x-stream-offset`` of AMQP 0.9.1
``rabbitmq:stream-filter``                    a value or a list of them, of ``x-stream-filter-value``
``rabbitmq:stream-match-unfiltered``          whether messages without that annotation match too
``amqp:properties-filter`` (0x173)            fields of the properties section, by name
``amqp:application-properties-filter`` (0x174)  application properties, by name
``amqp:sql-filter`` (0x120)                   a selector with the names of sections
``apache.org:selector-filter:string``         a selector with the names of JMS
============================================  =====================================================

Source: AMQP 1.0 part 3 section 3.5.8; OASIS AMQP Filter Expressions 1.0 section 4; RabbitMQ's
documentation of streams over AMQP 1.0; Apache's registered filters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from fluxmq.model.amqp10_readers import urn_of
from fluxmq.model.amqp10_sections import (
    MESSAGE_ANNOTATIONS,
    Fields,
    PropertyField,
    read_fields,
    sections_of_block,
)
from fluxmq.model.amqp10_values import STRING, SYMBOL, Typed, map_of
from fluxmq.model.properties import Item, PropertyError, PropertyKind, Timestamp, decode
from fluxmq.protocols.amqp10 import foreign_messages
from fluxmq.protocols.amqp10.conditions import INVALID_FIELD
from fluxmq.protocols.amqp10.selector_terms import Scalar, equal
from fluxmq.protocols.amqp10.selectors import Names, Selector, SelectorError, compile_selector
from fluxmq.protocols.amqp10.types import Array, Described, Milliseconds, Symbol, UInt, ULong, Uuid

FILTERS_MAX: Final = 16
"""Filters of a source, and fields of one filter, as in RabbitMQ: each is looked at for every
message."""
VALUES_MAX: Final = 128
"""Values of ``rabbitmq:stream-filter``."""
BLOCKS_MAX: Final = 1024
"""Property blocks whose answer is cached; senders use few, or all of them are new."""
BLOCK_BYTES_MAX: Final = 2048
"""Bytes of a block whose answer is cached."""

PRIORITY_DEFAULT: Final = 4
"""Priority of a message whose header does not name one (AMQP 1.0 part 3, section 3.2.1)."""


class FilterError(ValueError):
    """A filter's value is invalid; the text says why. ``condition``: the standard's symbol."""

    condition: Final[Symbol] = INVALID_FIELD


@dataclass(frozen=True)
class SourceFilters:
    """The filters of a source.

    ``offset``: start of a stream as AMQP 0.9.1's ``x-stream-offset`` has it: text, an int, or a
    `Timestamp`; None without. ``messages``: None when every message matches. ``effective``: filters
    in place, for the answer.
    """

    offset: str | int | Timestamp | None = None
    messages: MessageFilter | None = None
    effective: dict[object, object] = field(default_factory=dict)


def read_filters(filter_set: Mapping[object, object] | None) -> SourceFilters:
    """Return the filters of a source as ``attach`` has them, decoded. Raises `FilterError`."""
    if not filter_set:
        return SourceFilters()
    if len(filter_set) > FILTERS_MAX:
        raise FilterError(f"more than {FILTERS_MAX} filters")
    reader = _FilterReader()
    for name, value in filter_set.items():
        if reader.take(name, value):
            reader.effective[name] = value
    return reader.filters()


_CODES: Final = {
    0x120: "amqp:sql-filter",
    0x173: "amqp:properties-filter",
    0x174: "amqp:application-properties-filter",
    0x468C_0000_0004: "apache.org:selector-filter:string",
}
"""Descriptors of filters by their number."""
_STREAM_PREFIX: Final = "rabbitmq:stream-"

Predicate = Callable[["StoredMessage", int], bool]
"""Whether a message matches, at a time in milliseconds."""


class _FilterReader:
    """Gathers the filters of one source."""

    def __init__(self) -> None:
        self.effective: dict[object, object] = {}
        self._offset: str | int | Timestamp | None = None
        self._values: frozenset[str] = frozenset()
        self._unfiltered = False
        self._uses_clock = False
        self._predicates: dict[str, Predicate] = {}
        self._readers: dict[str, Callable[[object], None]] = {
            "rabbitmq:stream-offset-spec": self._take_offset,
            "rabbitmq:stream-filter": self._take_values,
            "rabbitmq:stream-match-unfiltered": self._take_unfiltered,
            "amqp:properties-filter": self._take_properties,
            "amqp:application-properties-filter": self._take_application,
            "amqp:sql-filter": self._take_sql,
            "apache.org:selector-filter:string": self._take_jms,
        }

    def take(self, name: object, value: object) -> bool:
        """Take one filter; return whether it is in place. Raises `FilterError`."""
        if isinstance(value, Described):
            descriptor, value = value.descriptor, value.value
        elif isinstance(name, str) and name.startswith(_STREAM_PREFIX):
            descriptor = name  # older clients of RabbitMQ do not describe these
        else:
            return False
        kind = _CODES.get(descriptor) if isinstance(descriptor, int) else descriptor
        reader = self._readers.get(kind) if isinstance(kind, str) else None
        if reader is None:
            return False
        reader(value)
        return True

    def filters(self) -> SourceFilters:
        """Return what was gathered."""
        predicates = list(self._predicates.values())
        if self._values:
            predicates.append(self._has_value)
        messages = MessageFilter(predicates, self._uses_clock) if predicates else None
        return SourceFilters(self._offset, messages, self.effective)

    def _put(self, kind: str, predicate: Predicate) -> None:
        if kind in self._predicates:
            raise FilterError(f"two filters {kind}")
        self._predicates[kind] = predicate

    def _take_offset(self, value: object) -> None:
        if isinstance(value, Milliseconds):
            self._offset = Timestamp(max(value, 0) // 1000)
        elif isinstance(value, str):
            self._offset = str(value)
        elif isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            self._offset = int(value)
        else:
            raise FilterError("rabbitmq:stream-offset-spec: text, an offset or a timestamp is due")

    def _take_values(self, value: object) -> None:
        listed = value.items if isinstance(value, Array) else value
        values = listed if isinstance(listed, list) else [listed]
        if not 0 < len(values) <= VALUES_MAX or not all(isinstance(each, str) for each in values):
            raise FilterError(f"rabbitmq:stream-filter: one to {VALUES_MAX} texts are due")
        self._values = frozenset(map(str, values))

    def _take_unfiltered(self, value: object) -> None:
        if not isinstance(value, bool):
            raise FilterError("rabbitmq:stream-match-unfiltered: a boolean is due")
        self._unfiltered = value

    def _has_value(self, message: StoredMessage, _now_ms: int) -> bool:
        value = message.filter_value
        return self._unfiltered if value is None else value in self._values

    def _take_properties(self, value: object) -> None:
        expected = []
        for name, reference in _entries("amqp:properties-filter", value):
            found = _PROPERTY_TYPES.get(name) if isinstance(name, Symbol) else None
            if found is None or not isinstance(name, str):
                raise FilterError(f"amqp:properties-filter: no field {name!r}")
            if reference is not None and type(reference) not in found:
                raise FilterError(f"amqp:properties-filter: a {name} of another type")
            expected.append((f"p.{name.replace('-', '_')}", _reference(reference)))
        self._put("amqp:properties-filter", _fields_match(expected))

    def _take_application(self, value: object) -> None:
        expected = []
        for name, reference in _entries("amqp:application-properties-filter", value):
            if type(name) is not str:
                raise FilterError("amqp:application-properties-filter: names are strings")
            expected.append((f"a.{name}", _reference(reference)))
        self._put("amqp:application-properties-filter", _fields_match(expected))

    def _take_sql(self, value: object) -> None:
        self._take_selector("amqp:sql-filter", value, sql_name)

    def _take_jms(self, value: object) -> None:
        self._take_selector("apache.org:selector-filter:string", value, jms_name)

    def _take_selector(self, kind: str, value: object, names: Names) -> None:
        if not isinstance(value, str):
            raise FilterError(f"{kind}: a string is due")
        try:
            selector = compile_selector(str(value), names)
        except SelectorError as error:
            raise FilterError(f"{kind}: {error}") from None
        self._uses_clock |= selector.uses_clock
        self._put(kind, _selected(selector))


def _entries(kind: str, value: object) -> list[tuple[object, object]]:
    if not isinstance(value, dict) or not 0 < len(value) <= FILTERS_MAX:
        raise FilterError(f"{kind}: a map of one to {FILTERS_MAX} entries is due")
    return list(value.items())


def _selected(selector: Selector) -> Predicate:
    return lambda message, now_ms: selector.matches(message.values, now_ms)


# --- property filters ---

_IDS: Final = frozenset((ULong, Uuid, bytes, str))
_PROPERTY_TYPES: Final[dict[str, frozenset[type]]] = {
    "message-id": _IDS,
    "user-id": frozenset((bytes,)),
    "to": frozenset((str,)),
    "subject": frozenset((str,)),
    "reply-to": frozenset((str,)),
    "correlation-id": _IDS,
    "content-type": frozenset((Symbol,)),
    "content-encoding": frozenset((Symbol,)),
    "absolute-expiry-time": frozenset((Milliseconds,)),
    "creation-time": frozenset((Milliseconds,)),
    "group-id": frozenset((str,)),
    "group-sequence": frozenset((UInt,)),
    "reply-to-group-id": frozenset((str,)),
}

Match = Callable[[Scalar], bool]


def _reference(value: object) -> Match | None:
    """Return whether a field matches a reference value; None if every message does (4.1.1)."""
    if value is None:
        return None
    if type(value) is str:
        return _text_reference(value)
    plain = _plain(value)
    if plain is None:
        raise FilterError(f"a filter on a value of type {type(value).__name__}")
    return lambda found: equal(found, plain)


def _text_reference(value: str) -> Match:
    wanted = value[3:]
    if value.startswith("&p:"):
        return lambda found: isinstance(found, str) and found.startswith(wanted)
    if value.startswith("&s:"):
        return lambda found: isinstance(found, str) and found.endswith(wanted)
    if value.startswith("&") and not value.startswith("&&"):
        raise FilterError(f"a reference {value[:20]!r}: &p:, &s: and && are known")
    whole = value[1:] if value.startswith("&&") else value
    return lambda found: found == whole


def _plain(value: object) -> Scalar:
    if isinstance(value, bool):
        return value
    if isinstance(value, bytes):
        return bytes(value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, float):
        return float(value)
    return int(value) if isinstance(value, int) else None


def _fields_match(expected: list[tuple[str, Match | None]]) -> Predicate:
    def evaluate(message: StoredMessage, _now_ms: int) -> bool:
        values = message.values
        return all(
            match is None or (name in values and match(values[name])) for name, match in expected
        )

    return evaluate


# --- names in selectors ---

_SECTIONS: Final = {
    "header": "h.",
    "h": "h.",
    "properties": "p.",
    "p": "p.",
    "application_properties": "a.",
    "application-properties": "a.",
    "a": "a.",
}
_PROPERTY_NAMES: Final = frozenset(each.name.lower() for each in PropertyField)
_HEADER_NAMES: Final = frozenset(("durable", "priority"))


def sql_name(name: str) -> str:
    """Return the key in `StoredMessage.values` of a name in ``amqp:sql-filter``: ``section.field``, or an
    application property (6.4.4.4). Raises `SelectorError`."""
    section, dot, rest = name.partition(".")
    if not dot:
        return f"a.{name}"
    prefix = _SECTIONS.get(section)
    known = {"h.": _HEADER_NAMES, "p.": _PROPERTY_NAMES}.get(prefix or "")
    rest_name = rest.replace("-", "_") if known is not None else rest
    if prefix is None or not rest or (known is not None and rest_name not in known):
        raise SelectorError(f"no field {name!r}")
    return prefix + rest_name


_JMS_NAMES: Final = {
    "JMSDeliveryMode": "j.delivery_mode",
    "JMSPriority": "h.priority",
    "JMSMessageID": "j.message_id",
    "JMSTimestamp": "p.creation_time",
    "JMSCorrelationID": "j.correlation_id",
    "JMSType": "p.subject",
    "JMSXGroupID": "p.group_id",
    "JMSXGroupSeq": "p.group_sequence",
    "JMSXUserID": "j.user_id",
}
_AMQP_PREFIX: Final = "amqp."


def jms_name(name: str) -> str:
    """Return the key of a name in a selector of JMS: a header, ``amqp.field``, or an application
    property."""
    if name.startswith("JMS"):
        return _JMS_NAMES.get(name, f"a.{name}")
    if name.startswith(_AMQP_PREFIX):
        rest = name[len(_AMQP_PREFIX) :].replace("-", "_")
        if rest in _HEADER_NAMES:
            return f"h.{rest}"
        if rest in _PROPERTY_NAMES:
            return f"p.{rest}"
    return f"a.{name}"


# --- messages ---


class StoredMessage:
    """Values of a stored message: ``h.`` and a field of the header, ``p.`` of the properties, ``a.``
    and the name of an application property, ``j.`` and what JMS has in another form.

    ``filter_value``: annotation ``x-stream-filter-value``.
    """

    __slots__ = ("filter_value", "values")

    def __init__(self, block: bytes) -> None:
        """Read a property block. Raises `PropertyError`."""
        items = decode(block)
        fields = _fields_of(items)
        self.filter_value: str | None = None
        for key, value in fields.annotations:
            if key.content == b"x-stream-filter-value" and isinstance(value.content, bytes):
                self.filter_value = value.content.decode("utf-8", "replace")
        priority = next((value for kind, value, _ in items if kind is PropertyKind.PRIORITY), None)
        durable = foreign_messages.is_durable(items)
        values: dict[str, Scalar] = {
            "h.durable": durable,
            "h.priority": priority if isinstance(priority, int) else PRIORITY_DEFAULT,
            "j.delivery_mode": "PERSISTENT" if durable else "NON_PERSISTENT",
        }
        for index in PropertyField:
            said = _scalar(fields.properties[index])
            if said is not None:
                values[f"p.{index.name.lower()}"] = said
        for name, index in _JMS_IDS.items():
            jms_id = _jms_id(fields.properties[index], with_prefix=name == "j.message_id")
            if jms_id is not None:
                values[name] = jms_id
        user = fields.properties[PropertyField.USER_ID].content
        if isinstance(user, bytes):
            values["j.user_id"] = user.decode("utf-8", "replace")
        for key, value in fields.application:
            if key.type == STRING and isinstance(key.content, bytes):
                values[f"a.{key.content.decode()}"] = _scalar(value)
        self.values = values


_JMS_IDS: Final = {
    "j.message_id": PropertyField.MESSAGE_ID,
    "j.correlation_id": PropertyField.CORRELATION_ID,
}


def _fields_of(items: list[Item]) -> Fields:
    content = sections_of_block(items)
    if content is None:
        made = foreign_messages.converted(items)
        content = (
            b"\0\0\x53"
            + bytes((MESSAGE_ANNOTATIONS,))
            + map_of(made.annotations, made.annotation_count)
            + made.bare
        )
    return read_fields(content)


def _scalar(value: Typed) -> Scalar:
    kind, content = value
    if kind in (STRING, SYMBOL) and isinstance(content, bytes):
        return content.decode()
    if kind == "char" and isinstance(content, int):
        return chr(content)
    return content if isinstance(content, bool | int | float | bytes) else None


def _jms_id(value: Typed, *, with_prefix: bool) -> str | None:
    """Return a message id as clients of JMS show it: a string, or the type and its text."""
    kind, content = value
    if isinstance(content, int):
        return f"ID:AMQP_ULONG:{content}"
    if not isinstance(content, bytes):
        return None
    if kind == "uuid":
        return "ID:AMQP_UUID:" + urn_of(content)[-36:].decode()
    if kind != STRING:
        return "ID:AMQP_BINARY:" + content.hex().upper()
    text = content.decode()
    return text if text.startswith("ID:") or not with_prefix else f"ID:AMQP_NO_PREFIX:{text}"


class MessageFilter:
    """Whether messages match all filters of a source; remembers the answer for equal blocks."""

    __slots__ = ("_known", "_predicates", "_uses_clock")

    def __init__(self, predicates: list[Predicate], uses_clock: bool) -> None:
        self._predicates = predicates
        self._uses_clock = uses_clock
        self._known: dict[bytes, bool] = {}

    def matches(self, block: bytes, now_ms: int) -> bool:
        """Return whether a message with this property block matches; one whose block cannot be read
        does not."""
        found = self._known.get(block)
        if found is not None:
            return found
        try:
            message = StoredMessage(block)
        except PropertyError:
            return False
        found = all(predicate(message, now_ms) for predicate in self._predicates)
        if not self._uses_clock and len(block) <= BLOCK_BYTES_MAX:
            if len(self._known) >= BLOCKS_MAX:
                self._known.clear()
            self._known[block] = found
        return found

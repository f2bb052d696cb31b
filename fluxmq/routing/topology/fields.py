"""Valid fields of records and changes, by name, with conversion to and from plain values for
msgpack.

A field means the same in every record, so one table checks them all. Data from disk or from another
process is trusted only after this.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from typing import Any, Final, NamedTuple, TypeVar

import msgpack  # type: ignore[import-untyped]

from fluxmq.routing.topology.names import NAME_BYTES_MAX
from fluxmq.routing.topology.values import TABLE_BYTES_MAX, pack_value, unpack_value

R = TypeVar("R")

DESCRIPTION_BYTES_MAX: Final = 4096
"""Maximum bytes of texts that people write: a vhost's description, a policy's pattern."""
JSON_BYTES_MAX: Final = 64 << 10
"""Maximum bytes of a global parameter's value: every shard holds it, and etcd."""
TAGS_MAX: Final = 100
"""Maximum tags of a vhost: they are labels."""
PRIORITY_MAX: Final = (1 << 31) - 1
"""Bound of a policy's priority, above and below zero, as in RabbitMQ's tools."""


def _text(bytes_max: int, *, empty: bool = True) -> Callable[[Any], Any]:
    def check(value: Any) -> str:
        if not isinstance(value, str) or len(value.encode()) > bytes_max or not (value or empty):
            raise ValueError("not a text of the right length")
        return value

    return check


def _one_of(*choices: str) -> Callable[[Any], Any]:
    def check(value: Any) -> str:
        if value not in choices:
            raise ValueError("none of " + ", ".join(choices))
        return str(value)

    return check


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("not a truth value")  # noqa: TRY004 - whoever catches it wants one kind
    return value


def _optional_text(value: Any) -> str | None:
    return None if value is None else str(_name(value))


def _table(value: Any) -> dict[str, Any]:
    if value == {}:
        return {}
    table = unpack_value(value) if isinstance(value, dict) else None
    if not isinstance(table, dict) or len(msgpack.packb(value)) > TABLE_BYTES_MAX:
        raise ValueError("not a table, or too large")
    return table


def _tags(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or len(value) > TAGS_MAX:
        raise ValueError("not a list of tags")
    return tuple(_name(tag) for tag in value)


def _json(value: Any) -> str:
    if not isinstance(value, str) or len(value.encode()) > JSON_BYTES_MAX:
        raise ValueError("not JSON, or too large")
    json.loads(value, parse_constant=_no_constant)
    return value


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _priority(value: Any) -> int:
    if type(value) is not int or abs(value) > PRIORITY_MAX:
        raise ValueError("not a priority")
    return value


_name = _text(NAME_BYTES_MAX)
_CHECKS: Final[dict[str, Callable[[Any], Any]]] = {
    "vhost": _text(NAME_BYTES_MAX, empty=False),
    "user": _text(NAME_BYTES_MAX, empty=False),
    **dict.fromkeys(
        (
            "name",
            "source",
            "destination",
            "routing_key",
            "owner",
            "group",
            "moving_to",
            "migration",
        ),
        _name,
    ),
    "asker": _optional_text,
    "type": _text(NAME_BYTES_MAX, empty=False),
    "default_queue_type": _one_of("classic", "quorum", "stream"),
    "becomes": _one_of("", "quorum"),
    "destination_kind": _one_of("queue", "exchange"),
    "origin": _one_of("client", "settings"),
    **dict.fromkeys(
        (
            "durable",
            "auto_delete",
            "internal",
            "exclusive",
            "if_unused",
            "operator",
            "by_broker",
        ),
        _flag,
    ),
    **dict.fromkeys(("arguments", "definition", "limits"), _table),
    **dict.fromkeys(("description", "pattern"), _text(DESCRIPTION_BYTES_MAX)),
    "value": _json,
    "apply_to": _text(NAME_BYTES_MAX, empty=False),
    "priority": _priority,
    "tags": _tags,
}
_RARE: Final = frozenset({"becomes"})
"""Fields that are not packed when empty, since earlier versions do not know them."""


class _Field(NamedTuple):
    name: str
    check: Callable[[Any], Any]
    required: bool


_known_fields: dict[type[Any], tuple[_Field, ...]] = {}
"""Cache by kind of record or change, of which there are few; used for every row."""


def _fields_of(kind: type[Any]) -> tuple[_Field, ...]:
    known = _known_fields.get(kind)
    if known is None:
        known = _known_fields[kind] = tuple(
            _Field(
                field.name,
                _CHECKS[field.name],
                field.default is MISSING and field.default_factory is MISSING,
            )
            for field in fields(kind)
        )
    return known


def pack_fields(record: Any) -> dict[str, Any]:
    """Return a record's fields as plain values, in order. Raises `ValueError` for arguments that
    are not plain."""
    packed: dict[str, Any] = {}
    for field in _fields_of(type(record)):
        value = getattr(record, field.name)
        if not value and field.name in _RARE:
            continue
        if isinstance(value, Mapping):
            value = pack_value(value) if value else {}
        packed[field.name] = list(value) if isinstance(value, tuple) else value
    return packed


def unpack_fields(kind: type[R], packed: Any) -> R:
    """Decode a record of this kind from `pack_fields`; fields with a default may be missing.

    Raises `ValueError` for anything else.
    """
    if not isinstance(packed, dict):
        raise ValueError(f"a {kind.__name__} is not a map")  # noqa: TRY004 - whoever catches it wants one kind
    values: dict[str, Any] = {}
    for name, check, required in _fields_of(kind):
        if name in packed:
            try:
                values[name] = check(packed[name])
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{name} of a {kind.__name__}: {error}") from None
        elif required:
            raise ValueError(f"a {kind.__name__} without {name}")
    if len(packed) > len(values):
        raise ValueError(f"a {kind.__name__} with {len(packed) - len(values)} fields too many")
    return kind(**values)

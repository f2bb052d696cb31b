"""Values of arguments and headers: a field table's plain ones, their type names, and canonical
bytes.

A value is a bool, int, float, Decimal, str (text), bytes (a long string that is not UTF-8),
`Timestamp`, None, a list or a dict with text keys (AMQP 0.9.1 section 4.2.5, with RabbitMQ's
types). For msgpack, types that it lacks become a list with a mark in front, and so does every list.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, Final, TypeAlias

import msgpack  # type: ignore[import-untyped]

from fluxmq.model.properties import Timestamp

Table: TypeAlias = "Mapping[str, Any]"

DEPTH_MAX: Final = 64
"""Maximum nesting of lists and dicts: more than a client writes, far below the recursion limit."""
TABLE_BYTES_MAX: Final = 128 << 10
"""Maximum bytes of one packed table of arguments: the size of a frame of 128 KiB."""
INTEGER_MIN: Final = -(1 << 63)
INTEGER_MAX: Final = (1 << 64) - 1
_LIST, _DECIMAL, _TIMESTAMP = "l", "d", "t"


def pack_value(value: Any, depth: int = DEPTH_MAX) -> Any:
    """Return a value as msgpack can write it. Raises `ValueError` for one that is not plain."""
    if depth == 0:
        raise ValueError("arguments are nested too deeply")
    if value is None or isinstance(value, bool | float | bytes):
        return value
    if isinstance(value, Timestamp):
        return [_TIMESTAMP, int(value)]
    if isinstance(value, int):
        if not INTEGER_MIN <= value <= INTEGER_MAX:
            raise ValueError("a number in arguments has more than 64 bits")
        return int(value)
    if isinstance(value, str):
        value.encode()  # UnicodeEncodeError is a ValueError
        return str(value)
    if isinstance(value, Decimal):
        return [_DECIMAL, str(value)]
    if isinstance(value, list | tuple):
        return [_LIST, *(pack_value(item, depth - 1) for item in value)]
    if isinstance(value, Mapping):
        return {key: pack_value(value[key], depth - 1) for key in sorted(map(_key, value))}
    raise ValueError(f"a value of type {type(value).__name__} in arguments")


def unpack_value(packed: Any, depth: int = DEPTH_MAX) -> Any:
    """Decode a packed value. Raises `ValueError` for anything else."""
    if depth == 0:
        raise ValueError("arguments are nested too deeply")
    if packed is None or isinstance(packed, bool | int | float | str | bytes):
        return packed
    if isinstance(packed, dict):
        return {_key(key): unpack_value(item, depth - 1) for key, item in packed.items()}
    if not isinstance(packed, list | tuple) or not packed:
        raise ValueError("a value in arguments is of no known type")
    mark, rest = packed[0], packed[1:]
    if mark == _LIST:
        return [unpack_value(item, depth - 1) for item in rest]
    if mark == _TIMESTAMP and len(rest) == 1 and type(rest[0]) is int:
        return Timestamp(rest[0])
    if mark == _DECIMAL and len(rest) == 1 and isinstance(rest[0], str):
        try:
            return Decimal(rest[0])
        except InvalidOperation:
            raise ValueError("a decimal in arguments is none") from None
    raise ValueError("a value in arguments is of no known type")


def canonical(table: Table) -> bytes:
    """Return equal bytes for equal tables, whatever their order; empty for an empty one. Raises
    `ValueError`."""
    if not table:
        return b""
    packed: bytes = msgpack.packb(pack_value(table))
    return packed


def _key(key: Any) -> str:
    if not isinstance(key, str):
        raise ValueError("a key in arguments is not text")  # noqa: TRY004 - one kind of error
    key.encode()
    return key


def type_name(value: Any) -> str:
    """Return the name of a value's type in RabbitMQ's texts."""
    if value is None:
        return "void"
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, Timestamp):
        return "timestamp"
    if isinstance(value, int):
        return "signedint" if -(1 << 31) <= value < 1 << 31 else "long"
    for kind, name in _TYPE_NAMES:
        if isinstance(value, kind):
            return name
    return "longstr"


_TYPE_NAMES: Final[tuple[tuple[type, str], ...]] = (
    (float, "double"),
    (Decimal, "decimal"),
    (list, "array"),
    (dict, "table"),
)


def same(one: Any, other: Any) -> bool:
    """Return whether two values are of one type and equal: ``True`` is not 1, 1 is not 1.0."""
    if isinstance(one, list | dict) and isinstance(other, list | dict):
        return canonical({"": one}) == canonical({"": other})
    return type(one) is type(other) and one == other


def shown(value: Any) -> str:
    """Return a value for a text, as RabbitMQ writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return str(value)


def described(value: Any, missing: bool) -> str:
    """Return a value with its type for a text; ``none`` for a missing one."""
    return "none" if missing else f"the value '{shown(value)}' of type '{type_name(value)}'"

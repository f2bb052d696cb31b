"""Bodies and names of management over AMQP 1.0: maps to arguments of AMQP 0.9.1, records to maps,
and checks that RabbitMQ makes before those of AMQP 0.9.1.

Source: RabbitMQ 4.3's behaviour and its clients.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final
from urllib.parse import quote

from xxhash import xxh3_64_intdigest

from fluxmq.model.properties import Timestamp
from fluxmq.protocols.amqp10.http_requests import StatusError
from fluxmq.protocols.amqp10.types import Array, Milliseconds
from fluxmq.routing.topology.names import is_reserved
from fluxmq.routing.topology.records import Binding
from fluxmq.routing.topology.values import canonical

DEPTH_MAX: Final = 16
"""Maps and lists inside each other in a request's arguments."""


def entries_of(
    body: object, what: str, flags: tuple[str, ...], texts: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Return the entries of a body: booleans, texts, and ``arguments``. Raises `StatusError` 400
    for any other."""
    if not isinstance(body, dict):
        raise StatusError(400, "the body is no map")
    found: dict[str, Any] = {}
    for name, value in body.items():
        if name in flags and isinstance(value, bool):
            found[name] = value
        elif name in texts and isinstance(value, str):
            found[name] = str(value)
        elif name == "arguments" and isinstance(value, dict):
            found[name] = _table(value, DEPTH_MAX)
        else:
            raise StatusError(400, f"bad {what} {name!r}")
    return found


def _table(value: dict[object, object], depth: int) -> dict[str, Any]:
    """Return a map as a table of AMQP 0.9.1."""
    found: dict[str, Any] = {}
    for name, each in value.items():
        if not isinstance(name, str):
            raise StatusError(400, f"unsupported argument {name!r}")
        found[str(name)] = _argument(name, each, depth - 1)
    return found


def _argument(name: object, value: object, depth: int) -> Any:
    """Return a value as `fluxmq.routing.topology.values` has it."""
    if depth == 0:
        raise StatusError(400, f"argument {name!r} is nested too deeply")
    match value:
        case None | bool():
            return value
        case Milliseconds():
            return Timestamp(max(value, 0) // 1000)
        case int():
            return int(value)
        case float():
            return float(value)
        case str():
            return str(value)
        case bytes() if type(value) is bytes:
            return value
        case list():
            return [_argument(name, each, depth - 1) for each in value]
        case Array():
            return [_argument(name, each, depth - 1) for each in value.items]
        case dict():
            return _table(value, depth)
    raise StatusError(400, f"unsupported argument {name!r}")


def map_of_table(table: Mapping[str, Any]) -> dict[object, object]:
    """Return a table of arguments as a map."""
    return {name: _amqp_value(value) for name, value in table.items()}


def _amqp_value(value: Any) -> object:
    if isinstance(value, Timestamp):
        return Milliseconds(value * 1000)
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, list | tuple):
        return [_amqp_value(each) for each in value]
    if isinstance(value, Mapping):
        return map_of_table(value)
    found: object = value
    return found


def binding_map(binding: Binding) -> dict[object, object]:
    """Return a binding as clients get it; ``location`` is the path that removes it."""
    kind = binding.destination_kind
    location = (
        f"/bindings/src={_quoted(binding.source)};dst{kind[0]}={_quoted(binding.destination)};"
        f"key={_quoted(binding.routing_key)};args={arguments_hash(binding.arguments)}"
    )
    return {
        "source": binding.source,
        f"destination_{kind}": binding.destination,
        "binding_key": binding.routing_key,
        "arguments": map_of_table(binding.arguments),
        "location": location,
    }


def _quoted(name: str) -> str:
    return quote(name, safe="")


def arguments_hash(arguments: Mapping[str, Any]) -> str:
    """Return what tells bindings with other arguments apart in a path; clients take it as it is."""
    if not arguments:
        return ""
    digest = xxh3_64_intdigest(canonical(arguments)).to_bytes(8, "big")
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def check_name(name: str) -> None:
    """Raise `StatusError` 400 for line ends in a name."""
    if "\n" in name or "\r" in name:
        text = f"Bad name '{name}': line feed and carriage return characters not allowed"
        raise StatusError(400, text)


def check_default_exchange(exchange: str) -> None:
    """Raise `StatusError` 403 for the default exchange."""
    if not exchange:
        raise StatusError(403, "operation not permitted on the default exchange")


def check_reserved(kind: str, name: str, vhost: str) -> None:
    """Raise `StatusError` 403 for a name that is reserved to the broker."""
    if is_reserved(name):
        raise StatusError(
            403, f"{kind} '{name}' in vhost '{vhost}' starts with reserved prefix 'amq.'"
        )


def not_empty(queue: str) -> str:
    """Return a name. Raises `StatusError` 400 for an empty one."""
    if not queue:
        raise StatusError(400, "an empty name")
    return queue

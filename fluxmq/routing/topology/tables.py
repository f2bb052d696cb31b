"""The bindings of one source exchange, indexed by its type.

Results do not depend on the order in which bindings were added, so that all copies agree.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol, TypeAlias

import xxhash

from fluxmq.routing.topology.arguments import (
    CONSISTENT_HASH,
    DIRECT,
    FANOUT,
    HEADERS,
    TOPIC,
    table_type,
)
from fluxmq.routing.topology.records import Binding, Exchange, Key
from fluxmq.routing.topology.topic_trie import TopicTrie
from fluxmq.routing.topology.values import same, shown

Destination: TypeAlias = "tuple[str, str]"
"""Kind (queue or exchange) and name."""
Headers: TypeAlias = "Mapping[str, Any] | None"
_NOWHERE: Final[dict[Destination, int]] = {}
_HASH_BITS: Final = 64


class BindingTable(Protocol):
    """Bindings with one source."""

    by_key: bool
    """True when the routing key alone decides, so that results may be cached."""

    def add(self, binding: Binding) -> None:
        """Add a binding that is not there yet."""

    def remove(self, binding: Binding) -> None:
        """Remove a binding that is there."""

    def find(self, key: str, headers: Headers, properties: Headers) -> Iterable[Destination]:
        """Return the targets of a message, each once."""


def table_for(exchange: Exchange) -> BindingTable:
    """Return an empty table for an exchange of a known type."""
    kind = table_type(exchange)
    if kind == CONSISTENT_HASH:
        return _HashTable(exchange)
    return _TABLES[kind]()


class _DirectTable:
    """Matches the routing key to the binding's."""

    __slots__ = ("_found",)
    by_key = True

    def __init__(self) -> None:
        self._found: dict[str, dict[Destination, int]] = {}

    def add(self, binding: Binding) -> None:
        _count(self._found.setdefault(binding.routing_key, {}), binding)

    def remove(self, binding: Binding) -> None:
        found = self._found[binding.routing_key]
        _uncount(found, binding)
        if not found:
            del self._found[binding.routing_key]

    def find(self, key: str, headers: Headers, properties: Headers) -> Iterable[Destination]:
        return self._found.get(key, _NOWHERE)


class _FanoutTable:
    """Matches everything."""

    __slots__ = ("_found",)
    by_key = True

    def __init__(self) -> None:
        self._found: dict[Destination, int] = {}

    def add(self, binding: Binding) -> None:
        _count(self._found, binding)

    def remove(self, binding: Binding) -> None:
        _uncount(self._found, binding)

    def find(self, key: str, headers: Headers, properties: Headers) -> Iterable[Destination]:
        return self._found


class _TopicTable:
    """Matches the routing key to the binding's pattern."""

    __slots__ = ("_trie",)
    by_key = True

    def __init__(self) -> None:
        self._trie: TopicTrie[Destination] = TopicTrie()

    def add(self, binding: Binding) -> None:
        self._trie.add(binding.routing_key, _destination(binding))

    def remove(self, binding: Binding) -> None:
        self._trie.remove(binding.routing_key, _destination(binding))

    def find(self, key: str, headers: Headers, properties: Headers) -> Iterable[Destination]:
        return self._trie.find(key)


class _HeadersTable:
    """Matches the headers to the binding's arguments: all of them or any (``x-match``).

    A value of None only requires the header's presence. Arguments that begin with ``x-`` count with
    ``-with-x`` only, ``x-match`` itself never.
    """

    __slots__ = ("_bindings",)
    by_key = False

    def __init__(self) -> None:
        self._bindings: dict[Key, tuple[Destination, bool, tuple[tuple[str, Any], ...]]] = {}

    def add(self, binding: Binding) -> None:
        match = binding.arguments.get("x-match", "all")
        wanted = tuple(
            (key, value)
            for key, value in binding.arguments.items()
            if key != "x-match" and (match.endswith("-with-x") or not key.startswith("x-"))
        )
        self._bindings[binding.key] = (_destination(binding), match.startswith("all"), wanted)

    def remove(self, binding: Binding) -> None:
        del self._bindings[binding.key]

    def find(self, key: str, headers: Headers, properties: Headers) -> Iterable[Destination]:
        given = headers or {}
        found: dict[Destination, int] = {}
        for destination, every, wanted in self._bindings.values():
            matches = every
            for name, value in wanted:
                matches = name in given and (value is None or _alike(value, given[name]))
                if matches is not every:
                    break
            if matches:
                found[destination] = 1
        return found


class _HashTable:
    """Selects one target by the hash of the routing key, a header or a property; weights are
    binding keys.

    Rendezvous hashing: each destination draws a number from its name and the value, the highest
    wins. A destination that comes or goes moves only its own share. One that is bound more than
    once has its greatest weight.
    """

    __slots__ = ("_header", "_property", "_seeds", "_weights", "by_key")

    def __init__(self, exchange: Exchange) -> None:
        self._header: str | None = exchange.arguments.get("hash-header")
        self._property: str | None = exchange.arguments.get("hash-property")
        self.by_key = self._header is None is self._property
        self._weights: dict[Destination, dict[Key, int]] = {}
        self._seeds: dict[Destination, int] = {}

    def add(self, binding: Binding) -> None:
        destination = _destination(binding)
        self._weights.setdefault(destination, {})[binding.key] = int(binding.routing_key)
        self._seeds[destination] = xxhash.xxh3_64_intdigest("\x1f".join(destination).encode())

    def remove(self, binding: Binding) -> None:
        destination = _destination(binding)
        del self._weights[destination][binding.key]
        if not self._weights[destination]:
            del self._weights[destination]
            del self._seeds[destination]

    def find(self, key: str, headers: Headers, properties: Headers) -> Iterable[Destination]:
        if not self._weights:
            return ()
        value = self._value(key, headers, properties)
        best: tuple[float, Destination] | None = None
        for destination, weights in self._weights.items():
            drawn = xxhash.xxh3_64_intdigest(value, self._seeds[destination])
            # -log of a number between 0 and 1, divided by the weight: an exponential race. The
            # least wins.
            time = -math.log((drawn + 1) / (1 << _HASH_BITS)) / max(weights.values())
            if best is None or (time, destination) < best:
                best = (time, destination)
        return () if best is None else (best[1],)

    def _value(self, key: str, headers: Headers, properties: Headers) -> bytes:
        """Return the value to hash; messages without the header or property share one."""
        if self._header is not None:
            value = (headers or {}).get(self._header)
        elif self._property is not None:
            value = (properties or {}).get(self._property)
        else:
            value = key
        if value is None:
            return b""
        return (
            value if isinstance(value, bytes) else shown(value).encode("utf-8", "surrogateescape")
        )


_TABLES: Final[dict[str, type[_DirectTable | _FanoutTable | _TopicTable | _HeadersTable]]] = {
    DIRECT: _DirectTable,
    FANOUT: _FanoutTable,
    TOPIC: _TopicTable,
    HEADERS: _HeadersTable,
}


def _destination(binding: Binding) -> Destination:
    return (binding.destination_kind, binding.destination)


def _count(found: dict[Destination, int], binding: Binding) -> None:
    destination = _destination(binding)
    found[destination] = found.get(destination, 0) + 1


def _uncount(found: dict[Destination, int], binding: Binding) -> None:
    destination = _destination(binding)
    left = found[destination] - 1
    if left:
        found[destination] = left
    else:
        del found[destination]


def _alike(one: Any, other: Any) -> bool:
    """Return whether a header equals a binding's value: numbers compare as numbers, as in
    RabbitMQ."""
    if type(one) in (int, float) and type(other) in (int, float):
        return bool(one == other)
    return same(one, other)

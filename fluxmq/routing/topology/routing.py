"""Routing from exchange and routing key to queues: through exchanges, alternates and delays, each
queue once.

An exchange that finds no receiver itself passes the message to its alternate, RabbitMQ's rule: one
that leads to another exchange has found a receiver, whatever happens to the message there. No
exchange is visited twice, so cycles end. Routes that depend on the routing key alone are cached
until a change could affect them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from fluxmq.routing.queue_addresses import (
    DEAD_LETTER_PREFIX,
    QUEUE_PREFIX,
    MalformedAddressError,
    parse_publish,
)
from fluxmq.routing.topology.arguments import ALTERNATE_KEY, DELAYED
from fluxmq.routing.topology.policies import applying
from fluxmq.routing.topology.records import QUEUE, Binding, Exchange, QueueRecord
from fluxmq.routing.topology.store import Routed, Space
from fluxmq.routing.topology.topic_trie import ANY, ONE, words_of
from fluxmq.routing.topology.topology import Topology

Headers: TypeAlias = "Mapping[str, Any] | None"

ROUTES_MAX: Final = 65_536
"""Maximum routes cached per vhost; beyond it the cache is cleared. Some hundred bytes each, without
the queues."""
DELAY_MAX: Final = (1 << 32) - 1
"""Longest x-delay in milliseconds, that of RabbitMQ's plugin; longer ones are clamped."""
TOPIC_EXCHANGE: Final = "amq.topic"
"""Exchange whose routing keys are MQTT's topics."""
_PREFIXES: Final = (QUEUE_PREFIX.decode(), DEAD_LETTER_PREFIX.decode())


NOWHERE: Final = Routed(())


def route(
    topology: Topology,
    vhost: str,
    exchange: str,
    routing_key: str,
    headers: Headers = None,
    properties: Headers = None,
) -> Routed:
    """Return the targets of a message published to an exchange; none when there is no such
    exchange.

    Keys that were not UTF-8 have surrogates, as ``surrogateescape`` makes them. ``properties``:
    ``correlation_id``, ``message_id`` and ``timestamp``, for exchanges that hash one of them.
    """
    space = topology.space(vhost)
    if space is None:
        return NOWHERE
    routed = space.routes.get((exchange, routing_key))
    if routed is not None:
        return routed
    if not exchange:
        queue = default_queue(space, routing_key)
        return NOWHERE if queue is None else Routed((queue,))
    found = space.exchanges.get(exchange)
    if found is None:
        return NOWHERE
    walk = _Walk(space, routing_key, headers, properties)
    routed = walk.go(found)
    if walk.by_key:
        if len(space.routes) >= ROUTES_MAX:
            space.routes.clear()
        space.routes[exchange, routing_key] = routed
    return routed


def goes_by_key(topology: Topology, vhost: str, exchange: str, routing_key: str) -> bool:
    """Return whether messages with this key have the same targets whatever their headers and
    properties."""
    if not exchange:
        return True
    route(topology, vhost, exchange, routing_key)
    space = topology.space(vhost)
    return space is not None and (exchange, routing_key) in space.routes


def default_queue(space: Space, routing_key: str) -> QueueRecord | None:
    """Return the default exchange's target: by its name, or by its address
    ``$queue/<name>[/<key>]``."""
    queue = space.queues.get(routing_key)
    if queue is None and routing_key.startswith(_PREFIXES):
        try:
            address = parse_publish(routing_key.encode("utf-8", "surrogateescape"))
        except MalformedAddressError:
            return None
        if address is not None and not address.verb:
            return space.queues.get(address.queue.decode("utf-8", "surrogateescape"))
    return queue


def delay_of(headers: Headers) -> int:
    """Return the milliseconds that a message waits at a delayed exchange (header ``x-delay``); 0
    for none."""
    delay = (headers or {}).get("x-delay")
    if isinstance(delay, bool) or not isinstance(delay, int):
        return 0
    return min(max(delay, 0), DELAY_MAX)


class _Walk:
    """One message on its way through the exchanges."""

    __slots__ = ("_headers", "_key", "_properties", "_space", "by_key")

    def __init__(self, space: Space, key: str, headers: Headers, properties: Headers) -> None:
        self._space = space
        self._key = key
        self._headers = headers
        self._properties = properties
        self.by_key = True

    def go(self, exchange: Exchange) -> Routed:
        """Return all queues that are reached from here."""
        space = self._space
        at_once: dict[str, None] = {}
        later: dict[str, None] = {}
        seen = {exchange.name}
        waiting, behind = [exchange], list[Exchange]()
        delay = 0
        while waiting or behind:
            # Immediate routes first: an exchange, or a queue, reached that way is not delayed.
            delayed = not waiting
            current = (waiting or behind).pop()
            if current.type == DELAYED:
                self.by_key = False
                delay = delay_of(self._headers)
                delayed = delayed or delay > 0
            for kind, name in self._from(current):
                if kind == QUEUE:
                    (later if delayed else at_once)[name] = None
                elif name not in seen:
                    seen.add(name)
                    (behind if delayed else waiting).append(space.exchanges[name])
        return Routed(
            _queues(space, at_once),
            _queues(space, (name for name in later if name not in at_once)),
            delay if later.keys() - at_once.keys() else 0,
        )

    def _from(self, exchange: Exchange) -> Iterable[tuple[str, str]]:
        """Return one exchange's targets, its alternate if there are no others."""
        table = self._space.tables[exchange.name]
        self.by_key = self.by_key and table.by_key
        found = table.find(self._key, self._headers, self._properties)
        if found:
            return found
        alternate = alternate_of(self._space, exchange)
        # The default exchange counts as missing here, as in RabbitMQ: it has no bindings to look
        # up.
        return (
            (("exchange", alternate),) if alternate in self._space.exchanges and alternate else ()
        )


def alternate_of(space: Space, exchange: Exchange) -> str:
    """Return the alternate exchange, from the argument or else the policy; empty for none."""
    known = space.alternates.get(exchange.name)
    if known is None:
        known = exchange.arguments.get(ALTERNATE_KEY)
        if known is None:
            policy = applying(space.policies.values(), exchange, operator=False)
            known = policy.definition.get(ALTERNATE_KEY, "") if policy is not None else ""
        space.alternates[exchange.name] = known
    return known


def _queues(space: Space, names: Iterable[str]) -> tuple[QueueRecord, ...]:
    return tuple(space.queues[name] for name in sorted(names))


class TopicInterest(NamedTuple):
    """A binding of ``amq.topic`` as an MQTT filter.

    ``exact``: the filter matches exactly the topics whose routing key the binding's key matches;
    else it matches more, and the route decides. For bindings topics that begin with ``$`` are like
    any others, for filters they are not.
    """

    filter: str
    exact: bool
    binding: Binding


def topic_filters(topology: Topology, vhost: str) -> list[TopicInterest]:
    """Return the MQTT filters for the bindings of ``amq.topic`` (``.`` is ``/``, ``*`` is
    ``+``)."""
    return [
        TopicInterest(*_as_filter(binding.routing_key), binding)
        for binding in topology.bindings_from(vhost, TOPIC_EXCHANGE)
        if binding.routing_key  # no topic is empty
    ]


def _as_filter(key: str) -> tuple[str, bool]:
    """Return the narrowest filter that covers a binding key, and whether it is equally wide."""
    levels: list[str] = []
    exact = True
    words = words_of(key)
    for place, word in enumerate(words):
        if word == ANY:
            # In a filter, # is only allowed at the end.
            return "/".join([*levels, ANY]), exact and place == len(words) - 1
        if word == ONE:
            levels.append("+")
        elif "+" in word or ANY in word:
            exact = False  # a word of AMQP's, no level of MQTT's
            levels.append("+")
        else:
            levels.append(word.replace("/", "."))
    return "/".join(levels), exact

"""Effects of an AMQP publish: queues by exchanges and bindings, and MQTT subscribers for topics.

A run is encoded into batches once, whatever the number of queues. ``amq.topic`` of the default
vhost and the topics of MQTT are one space: a run published there reaches the subscribers and
capturing queues of the topic as well, and MQTT publishes reach the queues bound to that exchange
(`MqttBindings`). Topics that begin with ``$`` are not part of that space: write permission on the
exchange is no permission for ``$queue/...`` and ``$dlq/...``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from fluxmq.engine.clients import QueueClients
from fluxmq.engine.ports import AppendCallback, GroupTarget
from fluxmq.engine.queue_targets import QueueTarget
from fluxmq.model.batch_format import parse
from fluxmq.model.trace_context import TRACEPARENT
from fluxmq.net.reactor import WATCH_SPANS, Reactor
from fluxmq.net.route import Route
from fluxmq.protocols.amqp091.message_properties import routing_key_to_topic, topic_to_routing_key
from fluxmq.protocols.amqp091.run import AmqpPublishRun, build_amqp_batches
from fluxmq.protocols.mqtt.batch_delivery import delivery_runs
from fluxmq.protocols.mqtt.message_properties import from_block
from fluxmq.protocols.mqtt.pending_acks import PendingAck
from fluxmq.routing.topology.effective import effective
from fluxmq.routing.topology.names import DEFAULT_VHOST
from fluxmq.routing.topology.records import Exchange, QueueRecord
from fluxmq.routing.topology.routing import route
from fluxmq.routing.topology.store import Routed
from fluxmq.routing.topology.topology import Topology
from fluxmq.sessions.amqp091.ports import PendingConfirm, Routing

TOPIC_EXCHANGE = "amq.topic"
"""The exchange whose routing keys are MQTT's topics."""
QUEUE_PREFIX = "$queue/"
"""Prefix of routing keys of the default exchange that are addresses, as in MQTT."""
BROKERS_OWN = b"$"
"""Prefix of topics that address queues or belong to the broker: only bindings of the exchange lead
from one space to the other.
"""
MQTT_5 = 5
DEDUPLICATION_KEY = "x-deduplication-header"
"""Argument of a queue that keeps each value of a header once."""


ExchangeName = tuple[str, str]
"""A virtual host, and an exchange in it."""
Place = tuple[str, str]
"""A queue's replication group and its internal name."""


class Way(NamedTuple):
    """Terms for a queue: delay in milliseconds, and the header that identifies duplicates."""

    delay_ms: int
    deduplicates: str


COUNTED_EXCHANGES_MAX = 4096
"""Exchanges whose messages are counted; with one more, all counts begin anew. Clients may make any
number of exchanges, one after the other."""
AT_ONCE = Way(0, "")
_UNNAMED = (0, 0)
"""Producer and sequence of a message without deduplication."""


class Publishing:
    """Publishes of one shard's AMQP clients."""

    def __init__(
        self,
        topology: Callable[[], Topology],
        client_of: Callable[[str], GroupTarget],
        clients: QueueClients,
        reactor: Reactor,
        mqtt_route: Callable[[bytes], Route | None],
        clock: Callable[[], int],
    ) -> None:
        self._topology = topology
        self._client_of = client_of
        self._clients = clients
        self._reactor = reactor
        self._mqtt_route = mqtt_route
        self._clock = clock
        self.traffic: dict[ExchangeName, list[int]] = {}
        """Messages that clients have published to an exchange, and copies of them that it has
        routed, by virtual host and name."""

    def publish(
        self, run: AmqpPublishRun, routing: Routing, confirmation: PendingConfirm | None
    ) -> int:
        """Route and store a run; return the number of receivers. See `AmqpBrokerPort.publish`."""
        topology = self._topology()
        exchange = routing.exchange
        found: dict[Place, Way] = {}
        topics: list[bytes] = []
        first = exchange.vhost == DEFAULT_VHOST
        for key in routing.keys:
            routed = self._routed(topology, routing, key)
            for queue in routed.delayed:
                way = Way(routed.delayed_ms, _deduplicates(queue))
                found.setdefault(self._place(queue), way)
            for queue in routed.queues:
                found[self._place(queue)] = Way(0, _deduplicates(queue))
            if not first:
                continue
            if exchange.name == TOPIC_EXCHANGE:
                topics += _topic_of(key)
            elif not exchange.name and not routed.queues and key.startswith(QUEUE_PREFIX):
                for target in self._clients.targets(key.encode()) or ():
                    named = topology.queue(DEFAULT_VHOST, target.info.name)
                    way = AT_ONCE if named is None else Way(0, _deduplicates(named))
                    found[target.info.group, target.info.name] = way
        routes = {topic: each for topic in topics if (each := self._route_of(topic)) is not None}
        receivers = 0
        for each in routes.values():
            receivers += len(each.targets) + len(each.links) + len(each.groups)
            for target in each.queues:
                found.setdefault((target.info.group, target.info.name), AT_ONCE)
        if found:
            self._store(run, routing, found, confirmation)
        if receivers:
            self._to_subscribers(run, routing, routes, confirmation)
        receivers += len(found)
        self._count(exchange, run.count, receivers)
        return receivers

    def _count(self, exchange: Exchange, messages: int, receivers: int) -> None:
        name = exchange.vhost, exchange.name
        counts = self.traffic.get(name)
        if counts is None:
            if len(self.traffic) >= COUNTED_EXCHANGES_MAX:
                self.traffic.clear()
            counts = self.traffic[name] = [0, 0]
        counts[0] += messages
        counts[1] += messages * receivers

    def may_refuse(self, routing: Routing) -> bool:
        """Return whether a queue that it reaches may reject some messages of a run."""
        topology = self._topology()
        return any(
            effective(topology, queue).get("overflow", "").startswith("reject")
            for key in routing.keys
            for found in (self._routed(topology, routing, key),)
            for queue in (*found.queues, *found.delayed)
        )

    def _routed(self, topology: Topology, routing: Routing, key: str) -> Routed:
        exchange = routing.exchange
        headers, properties = routing.headers, routing.properties
        return route(topology, exchange.vhost, exchange.name, key, headers, properties)

    def _place(self, queue: QueueRecord) -> Place:
        name = queue.internal_name
        return self._clients.names.group_of(name, queue.group), name

    def _route_of(self, topic: bytes) -> Route | None:
        """Return a topic's route, from the routes of MQTT's publishers."""
        known = self._reactor.routes.get(topic)
        return known if known is not None else self._mqtt_route(topic)

    def _store(
        self,
        run: AmqpPublishRun,
        routing: Routing,
        found: Mapping[Place, Way],
        confirmation: PendingConfirm | None,
    ) -> None:
        """Append a run to queues; batches are built once for all queues with the same terms."""
        now = self._clock()
        key, expiry_ms = routing.keys[0].encode(), routing.expiry_ms
        expiry = now + max(expiry_ms * 1000, 1) if expiry_ms is not None else 0
        built: dict[tuple[int, int, int], list[bytes]] = {}
        given = routing.identity or _UNNAMED
        room = True
        tracing = self._reactor.watching & WATCH_SPANS != 0 and TRACEPARENT in routing.block
        for (group, name), way in found.items():
            value = (routing.headers or {}).get(way.deduplicates) if way.deduplicates else None
            named = given if value is None else value_identity(way.deduplicates, value)
            producer, sequence = named
            batches = built.get((way.delay_ms, producer, sequence))
            if batches is None:
                delay = now + way.delay_ms * 1000 if way.delay_ms else 0
                delay = max(delay, routing.delay_us)
                # All messages of a run have the same headers: the others are duplicates of the
                # first.
                source = run.single(0) if producer and run.count > 1 else run
                batches = built[way.delay_ms, producer, sequence] = build_amqp_batches(
                    source,
                    key,
                    routing.block,
                    now,
                    expiry,
                    delay,
                    producer,
                    sequence,
                    routing.attributes,
                )
            client = self._client_of(group)
            for batch in batches:
                done: AppendCallback | None = None
                if confirmation is not None:
                    confirmation.hold()
                    done = confirmation.done
                if tracing:
                    done = self._reactor.host.spans.appended(name, routing.block, batch, done)
                room &= client.append(name, batch, done)
        if not room:
            self._reactor.link_full = True

    def _to_subscribers(
        self,
        run: AmqpPublishRun,
        routing: Routing,
        routes: Mapping[bytes, Route],
        confirmation: PendingConfirm | None,
    ) -> None:
        """Deliver a run to MQTT subscribers, here and on other shards."""
        if run.blocks is not None and run.count > 1:
            for index in range(run.count):
                self._to_subscribers(run.single(index), routing, routes, confirmation)
            return
        reactor = self._reactor
        qos = 1 if confirmation is not None else 0
        expiry_ms = routing.expiry_ms
        properties = from_block(run.block(0, routing.block), reserved=False)
        for data in build_amqp_batches(run, b"", b"", self._clock()):
            batch = parse(data)
            for topic, each in routes.items():
                reactor.pending_ack = None
                for made in delivery_runs(
                    batch, 0, batch.count, MQTT_5, topic, properties, None, qos
                ):
                    if expiry_ms is not None:  # 0 means for present subscribers only
                        made.deadline = reactor.tally.now + max(expiry_ms, 1) / 1000
                    reactor.deliver(made, each)
                    for link in each.links:
                        link.send_run(made)
                    for group in each.groups:
                        group.offer(made)
                pending_ack = _taken(reactor)
                if pending_ack is not None and pending_ack.waiting and confirmation is not None:
                    confirmation.hold()
                    pending_ack.notify = confirmation.done


def _topic_of(key: str) -> list[bytes]:
    """Return the topic for a routing key of ``amq.topic``; none if it would begin with ``$``."""
    topic = routing_key_to_topic(key.encode())
    return [] if topic.startswith(BROKERS_OWN) else [topic]


class MqttBindings:
    """Queues that MQTT publishes reach by bindings."""

    def __init__(
        self, topology: Callable[[], Topology], target: Callable[[str], QueueTarget]
    ) -> None:
        self._topology = topology
        self._target = target

    def targets(self, topic: bytes) -> list[QueueTarget]:
        """Return the queues bound to ``amq.topic`` for a topic; none for ``$...``."""
        if topic.startswith(BROKERS_OWN):
            return []
        try:
            key = topic_to_routing_key(topic).decode()
        except UnicodeDecodeError:
            return []
        routed = route(self._topology(), DEFAULT_VHOST, TOPIC_EXCHANGE, key, None)
        return [self._target(queue.internal_name) for queue in (*routed.queues, *routed.delayed)]


def _taken(reactor: Reactor) -> PendingAck | None:
    """Take the pending ack left by the receivers of the last run, if any."""
    pending_ack = reactor.pending_ack
    reactor.pending_ack = None
    return pending_ack


def value_identity(header: str, value: object) -> tuple[int, int]:
    """Return producer and sequence for a header's value, for queues that keep each value once.

    Each value is a producer of its own: a queue forgets the producer unused for longest, but the
    lowest sequence of one producer.
    """
    text = value if isinstance(value, bytes) else str(value).encode()
    named = header.encode() + b"\0" + text
    return xxh3_64_intdigest(named) | 1, xxh3_64_intdigest(named, 1) >> 1


def _deduplicates(queue: QueueRecord) -> str:
    """Return the header by which a queue deduplicates, empty for none."""
    header = queue.arguments.get(DEDUPLICATION_KEY)
    return header if isinstance(header, str) else ""

"""Messages that the broker itself publishes: copies for the firehose, and events.

They are published at most once, without confirms, to exchanges that clients cannot publish to.
Messages that arise while queues deliver wait for the end of the tick, in a bounded buffer; beyond it
they are dropped and counted, as are messages to queues without room.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from fluxmq.metrics.registry import Sample
from fluxmq.net.reactor import Reactor
from fluxmq.protocols.amqp091.content import BasicProperties, encode_properties
from fluxmq.protocols.amqp091.message_properties import to_block
from fluxmq.protocols.amqp091.run import AmqpPublishRun
from fluxmq.routing.topology.names import EVENT_EXCHANGE, TRACE_EXCHANGE
from fluxmq.routing.topology.topology import Topology
from fluxmq.sessions.amqp091.ports import Routing
from fluxmq.shards.amqp.publishing import Publishing

EXCHANGES = (TRACE_EXCHANGE, EVENT_EXCHANGE)
PENDING_MAX = 10_000
PENDING_BYTES_MAX = 16 << 20
"""Messages, and bytes of their payloads and properties, that wait for the end of a tick."""
FULL_SECONDS = 1.0
"""Time for which messages are dropped after one for which a queue had no room."""
KEY_BYTES_MAX = 255
"""Bytes of a routing key; longer ones are cut, as the name in it may be as long itself."""


class _OwnMessage(NamedTuple):
    vhost: str
    exchange: str
    key: str
    properties: bytes
    payload: bytes


class BrokerMessages:
    """Publishes one shard's own messages. Of no effect until it is `joined`."""

    def __init__(self) -> None:
        self.topology = Topology()
        self.sent: Counter[str] = Counter()
        self.dropped: Counter[str] = Counter()
        self._publishing: Publishing | None = None
        self._reactor: Reactor | None = None
        self._full_until = 0.0
        self._wake: Callable[[], None] = _nothing
        self._waiting: deque[_OwnMessage] = deque()
        self._bytes = 0

    def join(
        self,
        topology: Topology,
        publishing: Publishing,
        reactor: Reactor,
        wake: Callable[[], None],
    ) -> None:
        """Publish through these parts of the shard; ``wake`` has `flush` called before the tick
        ends, or in the next one."""
        self.topology = topology
        self._publishing = publishing
        self._reactor = reactor
        self._wake = wake

    def leads_somewhere(self, vhost: str, exchange: str) -> bool:
        """Return whether the exchange exists and has bindings."""
        space = self.topology.space(vhost)
        return space is not None and bool(space.from_source.get(exchange))

    def send(
        self, vhost: str, exchange: str, key: str, properties: bytes, run: AmqpPublishRun
    ) -> None:
        """Publish a run's payloads with these key and properties at once."""
        found, reactor = self.topology.exchange(vhost, exchange), self._reactor
        if found is None or self._publishing is None or reactor is None:
            return
        if reactor.tally.now < self._full_until:
            self.dropped[exchange] += run.count
            return
        full_before = reactor.link_full
        block = to_block(properties, exchange, "")
        routing = Routing(found, block, (cut(key),))
        self._publishing.publish(run, routing, None)
        self.sent[exchange] += run.count
        if reactor.link_full and not full_before:
            # A queue has no room: that is no reason to stop the client that is reported on.
            reactor.link_full = False
            self._full_until = reactor.tally.now + FULL_SECONDS

    def later(self, vhost: str, exchange: str, key: str, properties: bytes, payload: bytes) -> None:
        """Publish a message before the tick ends, or in the next one."""
        size = len(properties) + len(payload)
        if len(self._waiting) >= PENDING_MAX or self._bytes + size > PENDING_BYTES_MAX:
            self.dropped[exchange] += 1
            return
        if not self._waiting:
            self._wake()
        self._bytes += size
        self._waiting.append(_OwnMessage(vhost, exchange, key, properties, payload))

    def samples(self) -> Iterator[Sample]:
        """Yield this shard's metrics."""
        for exchange in EXCHANGES:
            labels = {"exchange": exchange}
            yield "fluxmq_broker_messages_total", labels, self.sent[exchange]
            yield "fluxmq_broker_messages_dropped_total", labels, self.dropped[exchange]

    def flush(self) -> None:
        """Publish what waits."""
        while self._waiting:
            each = self._waiting.popleft()
            self._bytes -= len(each.properties) + len(each.payload)
            run = one_message(each.exchange, each.key, each.properties, each.payload)
            self.send(each.vhost, each.exchange, each.key, each.properties, run)


def one_message(exchange: str, key: str, properties: bytes, payload: bytes) -> AmqpPublishRun:
    """Return a run of one message."""
    name, routing_key = exchange.encode(), cut(key).encode()
    return AmqpPublishRun.of(0, name, routing_key, False, False, properties, payload)


def cut(key: str) -> str:
    """Return a routing key that is not too long."""
    raw = key.encode()
    return key if len(raw) <= KEY_BYTES_MAX else raw[:KEY_BYTES_MAX].decode("utf-8", "ignore")


def with_headers(headers: Mapping[str, object]) -> bytes:
    """Return encoded properties of a message that has headers only."""
    return encode_properties(BasicProperties(headers=dict(headers)))


def _nothing() -> None:
    """Do nothing."""

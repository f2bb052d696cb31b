"""The firehose: copies of publishes and deliveries in traced virtual hosts, to
``amq.rabbitmq.trace``.

Traced are publishes of clients, over AMQP and MQTT, and deliveries to AMQP clients; copies are not.
A copy has the original's payload, and headers about it. The traced virtual hosts are the state
of the node: its control process tells them, and a restart forgets them. While none is traced, one flag
is looked at per run of publishes and per batch of deliveries.

Source: RabbitMQ's firehose (rabbit_trace).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fluxmq.model.batch_format import Batch
from fluxmq.model.properties import PropertyError
from fluxmq.net.reactor import WATCH_RUNS, Reactor
from fluxmq.protocols.amqp091.content import NO_PROPERTIES, decode_properties
from fluxmq.protocols.amqp091.errors import AmqpError
from fluxmq.protocols.amqp091.message_properties import from_block, topic_to_routing_key
from fluxmq.protocols.amqp091.run import AmqpPublishRun
from fluxmq.protocols.amqp091.tables import FieldTableError
from fluxmq.protocols.mqtt import message_properties as mqtt_properties
from fluxmq.protocols.mqtt.reasons import ProtocolError
from fluxmq.protocols.mqtt.run import PublishRun
from fluxmq.routing.topology.names import DEFAULT_VHOST, TRACE_EXCHANGE
from fluxmq.routing.topology.routing import TOPIC_EXCHANGE, route
from fluxmq.sessions.amqp091.channel import Channel
from fluxmq.sessions.amqp091.connection_info import ConnectionInfo
from fluxmq.sessions.amqp091.deliveries import make_head, same_until
from fluxmq.sessions.amqp091.delivery_tap import DeliveryHead
from fluxmq.sessions.amqp091.ports import Routing
from fluxmq.sessions.amqp091.takers import Taker
from fluxmq.sessions.mqtt.session import MqttClient
from fluxmq.shards.amqp.broker_messages import (
    BrokerMessages,
    one_message,
    with_headers,
)

_TRACE = TRACE_EXCHANGE.encode()
CONNECTION_ITSELF = 0
"""Channel number of what has no channel, such as an MQTT publish."""


class Firehose:
    """Copies of one shard's messages. ``on``: some virtual host is traced. ``node`` is its name in
    the copies."""

    def __init__(self, messages: BrokerMessages, node: str) -> None:
        self.on = False
        self.vhosts: frozenset[str] = frozenset()
        self._messages = messages
        self._node = node

    def set(self, vhosts: Iterable[str], reactor: Reactor) -> None:
        """Trace exactly these virtual hosts."""
        self.vhosts = frozenset(vhosts)
        self.on = bool(self.vhosts)
        others = reactor.watching & ~WATCH_RUNS
        traced = DEFAULT_VHOST in self.vhosts  # MQTT's only one
        reactor.watching = others | WATCH_RUNS if traced else others

    def _wanted(self, vhost: str) -> bool:
        return vhost in self.vhosts and self._messages.leads_somewhere(vhost, TRACE_EXCHANGE)

    def published(self, info: ConnectionInfo, run: AmqpPublishRun, routing: Routing) -> None:
        """Copy a run that an AMQP client publishes."""
        vhost, exchange = info.vhost, routing.exchange.name
        if not self._wanted(vhost):
            return
        headers = {
            **self._about(exchange, routing.keys, run.properties),
            **_client(vhost, info.name, run.channel, info.user),
            "routed_queues": self._routed(routing),
        }
        self._publish(vhost, exchange, headers, run)

    def _routed(self, routing: Routing) -> list[str]:
        """Return the names of the queues that a run is routed to."""
        topology, exchange = self._messages.topology, routing.exchange
        names: dict[str, None] = {}
        for key in routing.keys:
            found = route(
                *(topology, exchange.vhost, exchange.name, key),
                *(routing.headers, routing.properties),
            )
            names.update((queue.name, None) for queue in (*found.queues, *found.delayed))
        return list(names)

    def published_by_mqtt(self, client: MqttClient, run: PublishRun) -> None:
        """Copy a run that an MQTT client publishes."""
        if not self._wanted(DEFAULT_VHOST):
            return
        key = topic_to_routing_key(run.topic).decode("utf-8", "replace")
        found = route(self._messages.topology, DEFAULT_VHOST, TOPIC_EXCHANGE, key)
        try:
            block = mqtt_properties.to_block(run.properties)
            properties = from_block(block)
        except (ProtocolError, PropertyError, FieldTableError):
            properties = NO_PROPERTIES
        headers = {
            **self._about(TOPIC_EXCHANGE, (key,), properties),
            **_client(DEFAULT_VHOST, client.peer, CONNECTION_ITSELF, client.username),
            "routed_queues": [queue.name for queue in found.queues],
        }
        for payload in run.payloads():
            message = one_message(TRACE_EXCHANGE, "", NO_PROPERTIES, payload)
            self._publish(DEFAULT_VHOST, TOPIC_EXCHANGE, headers, message)

    def _publish(
        self, vhost: str, exchange: str, headers: Mapping[str, object], run: AmqpPublishRun
    ) -> None:
        key = f"publish.{exchange}"
        self._messages.send(vhost, TRACE_EXCHANGE, key, with_headers(headers), run)

    def delivered(
        self,
        channel: Channel,
        taker: Taker,
        batch: Batch,
        first: int,
        count: int,
        redelivered: bool,
        head: DeliveryHead,
    ) -> None:
        """Copy messages of a batch that are delivered to a channel."""
        info, queue = channel.client.info, taker.queue.name
        if head.exchange == _TRACE or not self._wanted(info.vhost):
            return
        properties = self._properties_of(info, channel.number, redelivered, head)
        for index in range(first, first + count):
            self._copy(info.vhost, queue, properties, batch.payload(index))

    def delivered_over_link(
        self,
        info: ConnectionInfo,
        session: int,
        queue: str,
        batch: Batch,
        span: tuple[int, int],
        redelivered: bool,
    ) -> None:
        """Copy messages of a batch that are delivered over a link: first index and count."""
        if not self._wanted(info.vhost):
            return
        index, end = span[0], span[0] + span[1]
        while index < end:
            same = same_until(batch, index, end)
            head = make_head(batch.properties(index), batch.key(index), -1, False)
            if head.exchange != _TRACE:
                properties = self._properties_of(info, session, redelivered, head)
                for each in range(index, same):
                    self._copy(info.vhost, queue, properties, batch.payload(each))
            index = same

    def _properties_of(
        self, info: ConnectionInfo, channel: int, redelivered: bool, head: DeliveryHead
    ) -> bytes:
        """Return the properties of copies of deliveries with this head."""
        exchange, key = (
            each.decode("utf-8", "replace") for each in (head.exchange, head.routing_key)
        )
        return with_headers(
            {
                **self._about(exchange, (key,), head.properties),
                "redelivered": int(redelivered),
                **_client(info.vhost, info.name, channel, info.user),
            }
        )

    def _copy(self, vhost: str, queue: str, properties: bytes, payload: bytes) -> None:
        self._messages.later(vhost, TRACE_EXCHANGE, f"deliver.{queue}", properties, payload)

    def _about(self, exchange: str, keys: Sequence[str], properties: bytes) -> dict[str, object]:
        """Return the headers about a message."""
        return {
            "exchange_name": exchange,
            "routing_keys": list(keys),
            "properties": properties_table(properties),
            "node": self._node,
        }


def _client(vhost: str, connection: str, channel: int, user: str) -> dict[str, object]:
    """Return the headers about a publisher or consumer."""
    return {"vhost": vhost, "connection": connection, "channel": channel, "user": user}


def properties_table(raw: bytes) -> dict[str, object]:
    """Return a message's properties by name; empty if they cannot be written as a table."""
    try:
        found = decode_properties(raw)._asdict()
        table = {name: value for name, value in found.items() if value is not None}
        if "timestamp" in table:
            table["timestamp"] = int(table["timestamp"])
        with_headers(table)
    except (AmqpError, ValueError):
        return {}
    return table

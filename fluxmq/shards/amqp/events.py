"""Events, published to ``amq.rabbitmq.event`` of the default virtual host while a queue is bound to it.

Each shard tells what happens to its own clients. Changes that every shard of every node learns of are
told once: an alarm of a node by the node's first shard, a change of the topology or of users by that of the node
with the lowest name among those that are connected. Events are published at most once; some may be
missed while that shard restarts. Without a binding, an event costs two look-ups.

Source: RabbitMQ's rabbitmq_event_exchange.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from fluxmq.auth.logins import AuthResult, LoginOutcome
from fluxmq.auth.user_events import user_events
from fluxmq.auth.users import User
from fluxmq.ipc.handoff import LISTENERS
from fluxmq.ipc.traffic_messages import ChurnNumbers
from fluxmq.model.properties import Timestamp
from fluxmq.protocols.amqp091.content import BasicProperties, encode_properties
from fluxmq.routing.topology.events import topology_events
from fluxmq.routing.topology.names import DEFAULT_VHOST, EVENT_EXCHANGE
from fluxmq.routing.topology.records import QUEUE
from fluxmq.routing.topology.topology import Delta, Topology
from fluxmq.sessions.amqp091.connection_info import ConnectionInfo
from fluxmq.sessions.mqtt.session import MqttClient
from fluxmq.shards.amqp.broker_messages import BrokerMessages

PERSISTENT = 2
AGAIN_SECONDS = 5.0
"""Time until the exchange is declared again, as while a cluster has no leader."""
TLS_LISTENERS = frozenset(number for number, name in enumerate(LISTENERS) if name.endswith("tls"))
MQTT = {4: "MQTT 3.1.1", 5: "MQTT 5.0"}
DECIDED = {
    LoginOutcome.ACCEPTED: "success",
    LoginOutcome.WRONG: "failure",
    LoginOutcome.DENIED: "failure",
}
"""Outcomes of logins that are events; the others ask the client to try again."""


class ChurnCounts:
    """Number of events since the shard's start, whether anybody listens or not. Queues are counted by
    one shard for the whole cluster."""

    def __init__(self) -> None:
        self.connections_created = 0
        self.connections_closed = 0
        self.channels_created = 0
        self.channels_closed = 0
        self.queues_created = 0
        self.queues_deleted = 0

    def numbers(self, declared: int) -> ChurnNumbers:
        """Return the numbers for a report; ``declared``: queue.declare methods."""
        return ChurnNumbers(
            connection_created=self.connections_created,
            connection_closed=self.connections_closed,
            channel_created=self.channels_created,
            channel_closed=self.channels_closed,
            queue_declared=declared,
            queue_created=self.queues_created,
            queue_deleted=self.queues_deleted,
        )

    def topology_changes(self, topology: Topology, delta: Delta) -> None:
        """Count the queues that a change, which is yet to be made, creates and deletes."""
        for kind, key, row in delta.rows:
            if kind == QUEUE:
                known = topology.queue(str(key[0]), str(key[1])) is not None
                self.queues_created += row is not None and not known
                self.queues_deleted += row is None and known


class BrokerEvents:
    """Events of one shard, among its other ``messages``. ``connected`` returns the names of the nodes that it is connected with."""

    def __init__(
        self,
        messages: BrokerMessages,
        shard: int,
        node: str,
        now_us: Callable[[], int],
    ) -> None:
        self.enabled = False
        self.churn = ChurnCounts()
        self.connected: Callable[[], Sequence[str]] = tuple
        self.messages = messages
        self._first = shard == 0
        self._node = node
        self._now_us = now_us
        self._alarms: tuple[str, ...] = ()
        self._again_at = 0.0

    @property
    def wanted(self) -> bool:
        """Return whether events would reach a queue."""
        return self.enabled and self.messages.leads_somewhere(DEFAULT_VHOST, EVENT_EXCHANGE)

    def lacks_exchange(self, now: float) -> bool:
        """Return whether this shard has to create the exchange; at most once in `AGAIN_SECONDS`."""
        exchange = self.messages.topology.exchange(DEFAULT_VHOST, EVENT_EXCHANGE)
        if not self.enabled or not self._first or exchange is not None or now < self._again_at:
            return False
        self._again_at = now + AGAIN_SECONDS
        return True

    def _speaks(self) -> bool:
        """Return whether this shard tells what all shards of all nodes learn."""
        return self._first and all(self._node < each for each in self.connected())

    def emit(self, key: str, headers: Mapping[str, Any]) -> None:
        """Publish an event, for which the caller has looked at `wanted`."""
        now_ms = self._now_us() // 1000
        properties = BasicProperties(
            headers={**headers, "timestamp_in_ms": now_ms},
            delivery_mode=PERSISTENT,
            timestamp=Timestamp(now_ms // 1000),
        )
        try:
            encoded = encode_properties(properties)
        except ValueError:
            return  # a client's property that no header can hold
        self.messages.later(DEFAULT_VHOST, EVENT_EXCHANGE, key, encoded, b"")

    # Changes that every shard learns of

    def topology_changes(self, delta: Delta) -> None:
        """Tell a change that the topology has not taken yet."""
        if not self._speaks():
            return
        self.churn.topology_changes(self.messages.topology, delta)
        if self.wanted:
            try:
                events = list(topology_events(self.messages.topology, delta.rows))
            except ValueError:
                return  # it will be refused
            for key, headers in events:
                self.emit(key, headers)

    def users_changed(self, before: Iterable[User], after: Iterable[User]) -> None:
        """Tell a change of users or permissions."""
        if self.wanted and self._speaks():
            for key, headers in user_events(before, after):
                self.emit(key, headers)

    def alarms_changed(self, raised: tuple[str, ...]) -> None:
        """Tell a change of the node's alarms."""
        before, self._alarms = self._alarms, raised
        if not self._first or not self.wanted:
            return
        for kind in raised:
            if kind not in before:
                self.emit("alarm.set", {"source": kind, "node": self._node})
        for kind in before:
            if kind not in raised:
                self.emit("alarm.cleared", {"source": kind, "node": self._node})

    # AMQP clients

    def connection_created(self, info: ConnectionInfo) -> None:
        """Tell a connection that is open."""
        self.churn.connections_created += 1
        if self.wanted:
            about = {
                **_amqp(info),
                "type": "network",
                "pid": info.owner,
                "name": info.name,
                "user": info.user,
                "vhost": info.vhost,
                "timeout": info.heartbeat,
                "channel_max": info.channel_max,
                "client_properties": dict(info.properties),
                "connected_at": info.connected_at,
                "node": self._node,
            }
            self.emit("connection.created", about)

    def connection_closed(self, info: ConnectionInfo) -> None:
        """Tell the end of a connection."""
        self.churn.connections_closed += 1
        if self.wanted:
            about = {
                "name": info.name,
                "pid": info.owner,
                "node": self._node,
                "client_properties": dict(info.properties),
            }
            self.emit("connection.closed", about)

    def login(self, info: ConnectionInfo, user: str, result: AuthResult) -> None:
        """Tell a login that was accepted or refused."""
        if result.outcome in DECIDED and self.wanted:
            about = {
                **_amqp(info),
                "connection_type": "network",
                "name": user,
                "connection_name": info.name,
            }
            self.emit(f"user.authentication.{DECIDED[result.outcome]}", about)

    def channel_created(self, info: ConnectionInfo, number: int) -> None:
        """Tell a channel that is open."""
        self.churn.channels_created += info.is_client
        if self.wanted:
            about = {
                "pid": _channel(info, number),
                "name": f"{info.name} ({number})",
                "connection": info.owner,
                "number": number,
                "user": info.user,
                "vhost": info.vhost,
            }
            self.emit("channel.created", about)

    def channel_closed(self, info: ConnectionInfo, number: int) -> None:
        """Tell the end of a channel."""
        self.churn.channels_closed += info.is_client
        if self.wanted:
            self.emit("channel.closed", {"pid": _channel(info, number)})

    def consumer_created(
        self, info: ConnectionInfo, number: int, queue: str, tag: str, about: Mapping[str, Any]
    ) -> None:
        """Tell a consumer; ``about`` has what its deletion does not repeat."""
        if self.wanted:
            self.emit("consumer.created", {**_consumer(info, number, queue, tag), **about})

    def consumer_deleted(self, info: ConnectionInfo, number: int, queue: str, tag: str) -> None:
        """Tell the end of a consumer."""
        if self.wanted:
            self.emit("consumer.deleted", _consumer(info, number, queue, tag))

    # MQTT clients

    def mqtt_login(self, client: MqttClient, user: str, result: AuthResult) -> None:
        """Tell an MQTT client's login that was accepted or refused; not one without a user."""
        if user and result.outcome in DECIDED and self.wanted:
            about = {
                **_mqtt(client),
                "connection_type": "network",
                "name": user,
                "connection_name": client.peer,
            }
            self.emit(f"user.authentication.{DECIDED[result.outcome]}", about)

    def mqtt_connected(self, client: MqttClient) -> None:
        """Tell an MQTT connection that is open."""
        self.churn.connections_created += client.session is not None
        if self.wanted and client.session is not None:
            about = {
                **_mqtt(client),
                **self._mqtt_name(client),
                "type": "network",
                "user": client.username,
                "vhost": DEFAULT_VHOST,
                "timeout": client.keep_alive,
                "client_properties": {"client_id": client.session.client_id},
                "connected_at": client.connected_at,
            }
            self.emit("connection.created", about)

    def mqtt_disconnected(self, client: MqttClient) -> None:
        """Tell the end of an MQTT connection."""
        self.churn.connections_closed += client.session is not None
        if self.wanted and client.session is not None:
            properties = {"client_id": client.session.client_id}
            about = {**self._mqtt_name(client), "client_properties": properties}
            self.emit("connection.closed", about)

    def _mqtt_name(self, client: MqttClient) -> dict[str, Any]:
        assert client.session is not None
        return {"name": client.peer, "pid": client.session.client_id, "node": self._node}


def _amqp(info: ConnectionInfo) -> dict[str, Any]:
    host, port = _split(info.local)
    peer_host, peer_port = _split(info.peer)
    return {
        "host": host,
        "port": port,
        "peer_host": peer_host,
        "peer_port": peer_port,
        "protocol": info.protocol,
        "auth_mechanism": info.mechanism,
        "ssl": info.listener in TLS_LISTENERS,
        "peer_cert_subject": info.certificate_name,
    }


def _mqtt(client: MqttClient) -> dict[str, Any]:
    peer_host, peer_port = _split(client.peer)
    return {
        "peer_host": peer_host,
        "peer_port": peer_port,
        "protocol": MQTT.get(client.connection.version, "MQTT"),
        "ssl": client.listener in TLS_LISTENERS,
        "peer_cert_subject": client.certificate_name,
    }


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port) if port.isdecimal() else 0


def _channel(info: ConnectionInfo, number: int) -> str:
    return f"<{info.owner}.{number}>"  # as channels are listed


def _consumer(info: ConnectionInfo, number: int, queue: str, tag: str) -> dict[str, Any]:
    return {
        "consumer_tag": tag,
        "channel": _channel(info, number),
        "queue": queue,
        "vhost": info.vhost,
    }

"""Builds AMQP's part of a shard and joins it to the rest: the one place that knows all of it."""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Callable, Mapping, Sequence

from fluxmq.engine.traffic_reports import TrafficReports
from fluxmq.engine.wiring import Queues, microseconds_now
from fluxmq.ipc.conversation import Answered, RequestHandler
from fluxmq.ipc.messages import Body
from fluxmq.ipc.row_messages import handlers_of
from fluxmq.ipc.topology_client import TopologyClient
from fluxmq.ipc.topology_messages import connection_id
from fluxmq.ipc.trace_messages import TRACED, TracedVhosts
from fluxmq.ipc.traffic_messages import ChurnNumbers
from fluxmq.protocols.amqp091.methods import QueueDeclare
from fluxmq.protocols.connection import Connection
from fluxmq.routing.topology.changes import AddEventExchange, DropGroup
from fluxmq.routing.topology.routing import route
from fluxmq.routing.topology.topology import Delta
from fluxmq.sessions.amqp091.client import AmqpClient
from fluxmq.sessions.amqp091.connection_info import ConnectionInfo
from fluxmq.sessions.amqp091.handler import AmqpSession
from fluxmq.sessions.amqp10.client import Amqp10Client
from fluxmq.sessions.amqp10.handler import Amqp10Connection
from fluxmq.settings.clustering import EPHEMERAL
from fluxmq.settings.schema import Settings
from fluxmq.shards.alarms import reason_of
from fluxmq.shards.amqp.admin_queries import AdminQueries
from fluxmq.shards.amqp.broker import AmqpBroker
from fluxmq.shards.amqp.broker_messages import BrokerMessages
from fluxmq.shards.amqp.declared import DeclaredQueues
from fluxmq.shards.amqp.management_calls import ManagementCalls
from fluxmq.shards.amqp.migrations import QueueMigrations
from fluxmq.shards.amqp.publishing import MqttBindings, Publishing
from fluxmq.shards.amqp.queue_backups import QueueBackups
from fluxmq.shards.amqp.queue_columns import QueueColumnReader
from fluxmq.shards.amqp.replies import Replies
from fluxmq.shards.amqp.sync_limits import SyncLimits
from fluxmq.shards.broker import ShardBroker
from fluxmq.shards.mqtt_queries import MqttQueries
from fluxmq.shards.shared_counts import SharedCounts

WIRE = 1
"""The reactor's protocol number of AMQP 0.9.1."""


class Amqp:
    """Everything about AMQP on one shard."""

    def __init__(
        self,
        settings: Settings,
        broker: ShardBroker,
        queues: Queues,
        replies: Replies,
        vhost_connections: SharedCounts,
        call_later: Callable[[float, Callable[[], None]], None],
        clock: Callable[[], int] = microseconds_now,
        workers: int = 1,
    ) -> None:
        self._broker = broker
        self._queues = queues
        self._reactor = broker.reactor
        self._numbers = itertools.count(1)
        cluster = settings.cluster
        self._node = cluster.node_id if cluster.enabled and cluster.raft.enabled else ""
        self.topology = TopologyClient(
            lambda: self._reactor.tally.now,
            self._changed,
            first=[DropGroup(queues.names.shared_name(f"{EPHEMERAL}-{queues.service.shard}"))],
        )
        broker.user_limits.topology = broker.rates.topology = self.topology.topology
        self.vhost_connections = vhost_connections
        self.replies = replies
        publishing = Publishing(
            lambda: self.topology.topology,
            queues.client,
            queues.clients,
            self._reactor,
            broker.route,
            clock,
        )
        self.broker = AmqpBroker(
            *(settings, broker, queues, self.topology, publishing, replies),
            vhost_connections,
            call_later,
            clock,
        )
        self.handler = self.broker.handler
        broker.alarms.on_change += (self._alarms_changed, broker.events.alarms_changed)
        broker.alarms.on_relief += (self.handler.give_up, self.broker.handler.amqp10.give_up)
        self.traffic = TrafficReports(
            queues, self._reactor.tally, publishing.traffic, self._churned
        )
        self.declared = DeclaredQueues(
            queues,
            lambda: self.topology.topology,
            self.topology.change,
            self._routes_changed,
            settings.amqp.consumer_timeout,
            lambda: self.topology.known,
            lambda: self._reactor.tally.now,
        )
        self.migrations = self._make_migrations(SyncLimits.of(settings, workers))
        self.migrations.call_later = call_later
        self.queries = self._make_queries(broker)
        self.management_calls = ManagementCalls(
            *(queues.service.shard, self._node, self.broker),
            broker.authentication.backends.decisions,
            *(self._reactor.tally, call_later),
        )
        bindings = MqttBindings(lambda: self.topology.topology, queues.clients.target)
        queues.clients.bound = bindings.targets
        self._join_messages(settings, publishing)
        queues.service.dead_letters.route = self._dead_letter_route

    def _churned(self) -> ChurnNumbers:
        """Return the connections, channels and queues that have come and gone."""
        declared = self.broker.counted.methods[QueueDeclare.__name__]
        return self._broker.events.churn.numbers(declared)

    def _make_queries(self, broker: ShardBroker) -> AdminQueries:
        return AdminQueries(
            self.broker,
            self._queues,
            self.migrations.progress,
            broker.takeover.close_session,
            MqttQueries(broker, self._queues),
        )

    def _make_migrations(self, limits: SyncLimits) -> QueueMigrations:
        return QueueMigrations(
            lambda: self.topology.topology,
            self.topology.change,
            self.declared.led,
            self._queues.elsewhere.mover,
            self.declared.declare,
            self._queues.names.own_name,
            lambda: self._reactor.tally.now,
            limits,
        )

    @property
    def messages(self) -> BrokerMessages:
        """The broker's own messages."""
        return self._broker.events.messages

    def _join_messages(self, settings: Settings, publishing: Publishing) -> None:
        """Publish the broker's own messages from now on."""
        topology, wake = self.topology.topology, self._queues.service.wake
        self.messages.join(topology, publishing, self._reactor, wake)
        self.topology.before = self._broker.events.topology_changes
        self._broker.events.enabled = settings.amqp.event_exchange
        self._queues.flush_others = self._flush

    @property
    def commands(self) -> dict[str, RequestHandler]:
        """The handlers of control's orders by kind."""
        return {
            **self.topology.commands,
            **handlers_of(self.queries),
            **self.queries.mqtt.commands,
            **QueueColumnReader(self._queues, self.queries.figures_of).commands,
            **self.traffic.commands(),
            **self.management_calls.commands,
            **QueueBackups(
                self._queues, lambda: self.topology.topology, self.broker.now_us
            ).commands,
            TRACED: self._traced,
        }

    def _traced(self, body: Body, answered: Answered) -> None:
        """Trace the virtual hosts that control names."""
        self._broker.firehose.set(TracedVhosts.from_body(body).vhosts, self._reactor)
        answered(body)

    def _flush(self) -> None:
        """Finish a tick's work before groups do theirs."""
        self.broker.flush_marked()
        self.messages.flush()

    @property
    def known(self) -> bool:
        """True once this shard knows the topology."""
        return self.topology.known

    def adopt(self, connection: Connection, peer: str, seconds: float) -> None:
        """Make a new connection an AMQP one, which has to be open within ``seconds``."""
        sock = socket.socket(fileno=connection.fd)
        try:
            host, port = sock.getsockname()[:2]
        finally:
            sock.detach()
        local = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        owner = connection_id(
            self._queues.service.shard, os.getpid(), next(self._numbers), self._node
        )
        info = ConnectionInfo(peer, local, connection.listener, owner)
        info.connected_at = self.broker.now_us() // 1000
        session = AmqpSession(self.handler, connection, info)
        connection.handler = self.handler
        connection.identity = session
        connection.wire = WIRE
        session.client.deadline = self._reactor.tally.now + seconds
        session.client.reschedule()

    def _changed(self, delta: Delta) -> None:
        """Follow a change of the topology."""
        self._broker.user_limits.changed(delta)
        self._broker.rates.changed(delta)
        self.declared.changed(delta.rows)
        self.migrations.changed(delta.rows)
        topology = self.topology.topology
        for client in self._clients():
            info = client.info
            if info.counted and topology.vhost(info.vhost) is None:
                client.disconnect(f"vhost '{info.vhost}' is down")
        self._broker.schedule()

    def _routes_changed(self) -> None:
        self._reactor.routes.clear()

    def _clients(self) -> list[AmqpClient | Amqp10Client]:
        """Return the clients of both versions."""
        return [*self.handler.clients, *self.broker.handler.amqp10.clients]

    def users_changed(self) -> None:
        """Disconnect clients whose user no longer has access, or whose login backend is no longer
        asked."""
        for client in self._clients():
            info = client.info
            if not info.user:
                continue
            login = client.access.login
            if login is not None:
                if login.backend not in self._broker.authentication.settings.backends:
                    client.disconnect(f"auth.{login.backend} is no login backend any more")
            elif self._broker.authentication.user(info.user) is None:
                client.disconnect(f"user '{info.user}' is deleted or disabled")
            elif info.counted and self.broker.permissions(info.user, info.vhost) is None:
                client.disconnect(f"access to vhost '{info.vhost}' of user '{info.user}' ended")

    def _dead_letter_route(
        self, vhost: str, exchange: str, routing_key: str, headers: Mapping[str, object]
    ) -> Sequence[str] | None:
        """Return internal names of a dead letter's queues; None if the exchange does not exist."""
        topology = self.topology.topology
        if topology.exchange(vhost, exchange) is None:
            return None
        routed = route(topology, vhost, exchange, routing_key, headers)
        return [queue.internal_name for queue in (*routed.queues, *routed.delayed)]

    @property
    def next_due(self) -> float:
        """Moment at which something is due, in monotonic seconds; 0.0 while something is under way."""
        if not (self.topology.idle and self.migrations.idle):
            return 0.0
        return min(self.broker.timers.next_due, self.declared.next_due)

    def housekeeping(self) -> None:
        """Run periodic work; called every tenth of a second while something happens."""
        self.broker.run_timers()
        self.topology.tick()
        self.vhost_connections.tick()
        self._broker.user_limits.tick()
        if self.topology.known and self._broker.events.lacks_exchange(self._reactor.tally.now):
            self.topology.change([AddEventExchange()], lambda _refusal: None)
        self.declared.housekeeping()
        self.migrations.step()

    def _alarms_changed(self, raised: tuple[str, ...]) -> None:
        """Pass a change of the alarms on to the sessions."""
        if raised:
            self.handler.block(reason_of(raised))
            self.broker.handler.amqp10.block()
        else:
            self.handler.unblock()
            self.broker.handler.amqp10.unblock()

    def configure(self, settings: Settings) -> None:
        """Apply new settings."""
        self.broker.configure(settings)
        self._broker.events.enabled = settings.amqp.event_exchange

    def shut_down(self) -> None:
        """Tell every client that the node shuts down."""
        for connection in list(self._reactor.connections.values()):
            if isinstance(connection.identity, (AmqpSession, Amqp10Connection)):
                text = "broker forced connection closure with reason 'shutdown'"
                connection.identity.client.disconnect(text)

"""The broker as MQTT sessions of one shard see it: their ports, put together, and the loop's host.

Lives on the shard's loop; everything here completes within a tick.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from fluxmq.net.ports import SpanPort
from fluxmq.net.reactor import PAUSED_LINK, Reactor
from fluxmq.net.route import Route
from fluxmq.protocols.connection import Connection
from fluxmq.protocols.mqtt.run import PublishRun
from fluxmq.routing.topology.names import DEFAULT_VHOST
from fluxmq.sessions.mqtt.handler import MqttConnectionHandler
from fluxmq.sessions.mqtt.ports import SessionLimits
from fluxmq.sessions.mqtt.publishing import publish_will
from fluxmq.settings.schema import Settings
from fluxmq.shards.alarms import Alarms
from fluxmq.shards.amqp.events import BrokerEvents
from fluxmq.shards.amqp.firehose import Firehose
from fluxmq.shards.bans import CurrentBans
from fluxmq.shards.connections import ClientConnections
from fluxmq.shards.counts import MqttCounts
from fluxmq.shards.durable.sessions import DurableSessions
from fluxmq.shards.expected_sessions import ExpectedSessions
from fluxmq.shards.limits import session_limits
from fluxmq.shards.parts import Parts
from fluxmq.shards.peers import Peers, Subjects
from fluxmq.shards.publish_rates import PublishRates
from fluxmq.shards.retained import RetainedMessages
from fluxmq.shards.session_ownership import SessionOwnership
from fluxmq.shards.session_table import SessionTable
from fluxmq.shards.session_takeover import SessionTakeover
from fluxmq.shards.subscriptions import Subscriptions
from fluxmq.shards.surroundings import Surroundings
from fluxmq.shards.user_limits import UserLimitChecks
from fluxmq.shards.wills import ClusterWills, LocalWills


class ShardBroker:
    """Composes the parts behind the ports of MQTT sessions; the reactor's host."""

    def __init__(
        self,
        reactor: Reactor,
        settings: Settings,
        around: Surroundings,
        parts: Parts,
        explain: Callable[[int], str],
    ) -> None:
        """``explain`` returns the text that goes with an outcome; empty for none."""
        self.reactor = reactor
        self._schedule = around.schedule
        self._parts = parts
        self.authentication = parts.authentication
        self.queues = parts.queues.clients
        self.alarms = Alarms(reactor)
        self.counts = MqttCounts(parts.drops)
        self.handler = MqttConnectionHandler(self, explain)
        self.connections = ClientConnections(
            reactor,
            (self.alarms, parts.rates),
            self.handler,
            around.schedule,
            around.times.call_later,
        )
        ownership = SessionOwnership(around.index, around.workers, parts.switch.links)
        durable = DurableSessions(
            parts.commit_waiter,
            parts.groups,
            ownership,
            settings.session.max_inflight_messages,
            around.connected,
        )
        self.subscriptions = Subscriptions(parts.routes, parts.groups, self.queues, durable)
        self.sessions = SessionTable(reactor, self.handler, self.subscriptions, durable, ownership)
        self.peers = self._make_peers(around, ownership)
        self.sessions.expected = ExpectedSessions(
            *(self.sessions.new_delivery, parts.commit_waiter, self.subscriptions),
            *(reactor, self.peers.when_known),
        )
        self.takeover = SessionTakeover(
            ownership,
            self.sessions,
            durable,
            self.peers,
            self.handler,
            self.connections,
            self.authentication,
            around.schedule,
        )
        publish = partial(publish_will, self)
        kept = settings.cluster.enabled and settings.cluster.etcd is not None
        self.wills = (
            ClusterWills(publish, around.times.monotonic, around.schedule)
            if kept
            else LocalWills(publish)
        )
        self.configure(settings)

    def _make_peers(self, around: Surroundings, ownership: SessionOwnership) -> Peers:
        parts = self._parts
        subjects = Subjects(
            parts.routes,
            parts.groups,
            ownership,
            parts.retained,
            parts.durable_links,
            parts.queue_links,
            parts.nodes,
        )
        return Peers(
            *(parts.switch, around.epoch, self.reactor, subjects),
            around.is_alive,
            self.sessions.of_home,
            around.times.call_later,
        )

    def configure(self, settings: Settings) -> None:
        """Apply settings, at start and on change."""
        self.limits: SessionLimits = session_limits(settings, len(self.peers.links) + 1)
        self.sessions.configure(settings.session, self.limits.max_sessions)
        self.reactor.max_qos = settings.broker.max_qos
        self.rates.configure(settings.ratelimit.publish)

    # For sessions and the shard's timer

    @property
    def retained(self) -> RetainedMessages:
        """This shard's retained messages."""
        return self._parts.retained

    @property
    def bans(self) -> CurrentBans:
        """The bans in force."""
        return self.authentication.bans

    @property
    def events(self) -> BrokerEvents:
        """Events for ``amq.rabbitmq.event``."""
        return self._parts.events

    @property
    def firehose(self) -> Firehose:
        """Copies of messages in traced virtual hosts."""
        return self._parts.firehose

    @property
    def rates(self) -> PublishRates:
        """Limits on the rates of publishers."""
        return self._parts.rates

    @property
    def user_limits(self) -> UserLimitChecks:
        """Limits of users."""
        return self._parts.user_limits

    def now(self) -> float:
        """Return monotonic seconds at the start of the tick."""
        return self.reactor.tally.now

    @property
    def next_due(self) -> float:
        """Moment at which ``run_timers`` has work, in monotonic seconds; 0.0 while publishers are
        stopped: the end of an alarm is to be noticed soon."""
        if self.alarms.raised:
            return 0.0
        return min(
            self.connections.next_due,
            self.rates.next_due,
            self.authentication.backends.decisions.next_due,
            self.sessions.timers.next_due,
        )

    def run_timers(self) -> None:
        """Handle silence, expiries and wills that are due."""
        self.connections.run_timers()
        self.rates.step(self.now())
        self.authentication.backends.decisions.tick()
        if self.authentication.revision >= 0:
            # Until users are known, wills cannot be authorised.
            self.sessions.run_timers()

    # The reactor's host

    def route(self, topic: bytes) -> Route | None:
        """Return the route of a topic; None if it is not valid."""
        return self.subscriptions.routes.route(topic)

    def schedule(self) -> None:
        """Schedule a tick."""
        self._schedule()

    def finish_tick(self) -> None:
        """Finish a tick's work of queues, and of answers that wait for the disk."""
        self._parts.queues.service.finish()
        self._parts.commit_waiter.finish()
        self._parts.nodes.flush()

    def link_full(self, connection: Connection) -> None:
        """Pause a connection whose run met a full link, until there is room."""
        self.reactor.link_full = False
        if self.peers.hold(connection):
            self.reactor.pause(connection, PAUSED_LINK)
        self._parts.nodes.hold(connection)
        self._parts.queues.hold(connection)

    def hold_publisher(self, connection: Connection) -> None:
        """Stop reading a connection if it publishes: an alarm is in force."""
        self.alarms.hold_publisher(connection)

    @property
    def spans(self) -> SpanPort:
        """The recorder of spans of messages with a trace context, if the settings enable it."""
        spans = self._parts.groups.spans
        assert spans is not None, "asked only where tracing is enabled"
        return spans

    def trace(self, connection: Connection, run: PublishRun) -> None:
        """Copy a client's run for the firehose."""
        self._parts.firehose.published_by_mqtt(connection.identity, run)

    def charge(self, connection: Connection, count: int, size: int) -> None:
        """Stop reading an MQTT client that publishes faster than it may."""
        self._parts.rates.charge(connection, DEFAULT_VHOST, count, size)

    def half_close(self, connection: Connection) -> None:
        """Close a connection of which everything is written, once the client has read it."""
        self.connections.half_close(connection)

    def discard(self, connection: Connection) -> None:
        """Release the socket of a connection that is lost."""
        self.connections.discard(connection)

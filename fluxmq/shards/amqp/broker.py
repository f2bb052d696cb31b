"""The port of AMQP sessions to a shard, joined to the parts that do the work.

Lives on the shard's loop; everything here runs to completion within a tick.

Longer than 500 lines because it is the port of AMQP sessions to a shard, and each method answers
one of their requests.
"""

from __future__ import annotations

import logging
import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from fluxmq.auth.logins import AuthResult
from fluxmq.auth.permissions import Permissions
from fluxmq.auth.users import User
from fluxmq.engine.ports import GroupTarget, QueueStats, StatusCallback
from fluxmq.engine.wiring import Queues
from fluxmq.ipc.group_choice import choice_of
from fluxmq.ipc.topology_client import TopologyClient
from fluxmq.logs import RateLimited, get_logger
from fluxmq.model.outcomes import QueueOutcome
from fluxmq.model.trace_context import TRACEPARENT
from fluxmq.net.reactor import WATCH_RATES, WATCH_SPANS
from fluxmq.net.tls import TlsStream
from fluxmq.protocols.amqp091.run import AmqpPublishRun
from fluxmq.protocols.connection import WIRE_AMQP_1_0, Connection
from fluxmq.routing.topology.changes import Bind, Change, DeclareExchange, DeclareQueue, DeleteQueue
from fluxmq.routing.topology.records import QueueRecord
from fluxmq.routing.topology.refusals import NOT_FOUND, Refusal, precondition
from fluxmq.routing.topology.topology import Topology
from fluxmq.sessions.amqp091 import refusals
from fluxmq.sessions.amqp091.connection_info import ConnectionInfo
from fluxmq.sessions.amqp091.deliveries import make_head
from fluxmq.sessions.amqp091.handler import AmqpConnectionHandler, AmqpSession
from fluxmq.sessions.amqp091.ports import (
    AmqpConsumerHandle,
    AmqpConsumerPort,
    AmqpLimits,
    ChannelEventPort,
    ChannelLimitPort,
    ConsumeRequest,
    PendingConfirm,
    QueueStatus,
    Routing,
)
from fluxmq.sessions.amqp10.handler import Amqp10Connection, Amqp10ConnectionHandler
from fluxmq.sessions.amqp10.management import QueuePlaces
from fluxmq.settings.schema import Settings
from fluxmq.shards.amqp.consumer_requests import consume, status_of
from fluxmq.shards.amqp.publishing import Publishing
from fluxmq.shards.amqp.queue_places import places_of
from fluxmq.shards.amqp.replies import Replies
from fluxmq.shards.authentication import without_credentials
from fluxmq.shards.broker import ShardBroker
from fluxmq.shards.shared_counts import SharedCounts
from fluxmq.shards.timers import DueTimes

UNIQUE_BYTES = 16
"""Random bytes of a generated name: 22 characters."""
RETRY_SECONDS = 10.0
"""Time to retry an unavailable queue: more than a shard's start or a group's move takes."""
AGAIN_SECONDS = 0.05
"""Time between two such retries."""
AWAY = frozenset({QueueOutcome.UNAVAILABLE})
GROWING = (Bind, DeclareExchange, DeclareQueue)
"""Changes that make every shard hold more."""
MISSING = AWAY | {QueueOutcome.NO_QUEUE}
"""Outcomes that do not last for a queue of the topology: the group or the topology catches up."""

_log = get_logger("fluxmq.amqp")


class ShardHandler(AmqpConnectionHandler):
    """The sessions' handler, which also identifies TLS clients.

    ``amqp10``: of AMQP 1.0, which connections get whose first bytes ask for it.
    """

    amqp10: Amqp10ConnectionHandler

    def protocol_header(self, connection: Connection, header: bytes) -> None:
        """Handle the first bytes; the TLS handshake is over by now."""
        self._identify(connection)
        super().protocol_header(connection, header)

    def speaks_amqp10(self, connection: Connection) -> None:
        """Make a connection one of AMQP 1.0."""
        self._identify(connection)
        session: AmqpSession = connection.identity
        client = session.client
        connection.handler = self.amqp10
        made = Amqp10Connection(self.amqp10, connection, client.info)
        connection.identity = made
        connection.wire = WIRE_AMQP_1_0
        made.client.deadline = client.deadline
        made.client.reschedule()
        # They refer to each other, and the garbage collector does not run during traffic.
        del client.on_release

    def _identify(self, connection: Connection) -> None:
        stream = connection.stream
        if isinstance(stream, TlsStream):
            identity = stream.peer_identity()
            if identity is not None:
                connection.identity.client.info.certificate_name = identity.common_name or ""


class AmqpCounts:
    """Counts of connections opened and closed (by reason), errors (by code), methods (by name)."""

    def __init__(self) -> None:
        self.opened = 0
        self.closed: Counter[str] = Counter()
        self.errors: Counter[int] = Counter()
        self.methods: Counter[str] = Counter()


class AmqpBroker:
    """Implements the port of AMQP sessions on one shard."""

    def __init__(
        self,
        settings: Settings,
        broker: ShardBroker,
        queues: Queues,
        client: TopologyClient,
        publishing: Publishing,
        replies: Replies,
        vhost_connections: SharedCounts,
        call_later: Callable[[float, Callable[[], None]], None],
        clock: Callable[[], int],
    ) -> None:
        self.shard = queues.service.shard
        self._call_later = call_later
        self._clock = clock
        self.counted = AmqpCounts()
        self.timers: DueTimes[Connection] = DueTimes()
        self.log = RateLimited(_log, per_second=1, burst=10)
        self._broker = broker
        self.reactor = self._reactor = broker.reactor
        self._queues = queues
        self._client = client
        self.topology: Topology = client.topology
        self._publishing = publishing
        self._replies = replies
        self._marked = False
        self._vhost_connections = vhost_connections
        self.user_limits: ChannelLimitPort = broker.user_limits
        self.firehose = broker.firehose
        self.events: ChannelEventPort = broker.events
        self._known: dict[tuple[str, str], Permissions | None] = {}
        self._known_revision = (-1, -1)
        self.configure(settings)
        self.handler = ShardHandler(self)
        self.handler.heads.tap = self.firehose
        self.handler.amqp10 = Amqp10ConnectionHandler(
            self, self.handler.alarm, self.handler.drop_owner, len(self.reactor.buffer)
        )
        self.handler.amqp10.tap = self.firehose
        self.handler.amqp10.places = self._places

    def configure(self, settings: Settings) -> None:
        """Apply settings, at start and when they change."""
        amqp = settings.amqp
        self._settings = settings
        anonymous = settings.auth.anonymous
        listener = settings.server.amqp.tcp or settings.server.amqp.tls
        self.limits = AmqpLimits(
            frame_max=amqp.frame_max,
            channel_max=amqp.channel_max,
            heartbeat=int(amqp.heartbeat),
            max_message=amqp.max_message_size,
            handshake_timeout=listener.connect_timeout if listener is not None else 10.0,
            max_consumers=amqp.max_consumers_per_channel,
            max_transaction_bytes=amqp.max_transaction_bytes,
            max_incomplete_bytes=amqp.max_incomplete_bytes,
            product=amqp.product,
            product_version=amqp.product_version,
            product_version_1_0=amqp.product_version_1_0,
            version_1_addresses=amqp.version_1_addresses,
            anonymous_user=anonymous.amqp_user if anonymous.allow != "never" else "",
        )
        if settings.cluster.enabled:
            self.limits.node_name = settings.cluster.node_id

    def now(self) -> float:
        """Return the monotonic seconds at the start of this tick."""
        return self._reactor.tally.now

    def now_us(self) -> int:
        """Return microseconds since the epoch."""
        return self._clock()

    def unique(self) -> str:
        """Return a unique name."""
        return secrets.token_urlsafe(UNIQUE_BYTES)

    # Connecting

    def authenticate(
        self,
        client: ConnectionInfo,
        mechanism: str,
        user: str,
        password: bytes,
        done: Callable[[AuthResult], None],
    ) -> None:
        """Check a name and a password, or the certificate."""
        authentication = self._broker.authentication
        if mechanism in ("EXTERNAL", "ANONYMOUS"):
            if mechanism == "ANONYMOUS":
                result = without_credentials(authentication, client.peer)
            else:
                name = client.certificate_name if user in ("", client.certificate_name) else ""
                result = authentication.by_certificate(name, client.peer, user_needed=True)
            self._broker.events.login(client, user, result)
            done(result)
            return

        def verified(result: AuthResult) -> None:
            self._broker.events.login(client, user, result)
            done(result)
            self._broker.schedule()

        authentication.verify(user, password, client.peer, verified)

    def permissions(self, user: str, vhost: str) -> Permissions | None:
        """Return a user's present permissions in a vhost."""
        authentication = self._broker.authentication
        revision = (authentication.revision, self.topology.revision)
        if self._known_revision[0] != revision[0]:
            self._known.clear()
        self._known_revision = revision
        try:
            return self._known[user, vhost]
        except KeyError:
            made = self._known[user, vhost] = permissions_of(authentication.user(user), vhost)
            return made

    def enter(self, client: ConnectionInfo) -> str:
        """Count a connection into its vhost and for its user; return what refuses it, empty for
        nothing."""
        vhost = self.topology.vhost(client.vhost)
        limit = vhost.limits.get("max-connections", -1) if vhost is not None else -1
        if 0 <= limit <= self._vhost_connections.count(client.vhost):
            return refusals.vhost_full(client.user, client.vhost, int(limit))
        most = self._broker.user_limits.enter(client, client.user)
        if most is not None:
            return refusals.user_full(client.user, most)
        self._vhost_connections.enter(client.vhost)
        return ""

    # Topology

    def change(self, changes: Sequence[Change], done: Callable[[Refusal | None], None]) -> None:
        """Change the topology everywhere; a declared queue exists when ``done`` is called. Above
        the critical memory mark new declarations are refused.
        """
        if self.short_of_memory and any(isinstance(each, GROWING) for each in changes):
            self.refused_for_memory("declaration")
            done(precondition("the node is low on memory: nothing new can be declared"))
            return

        def answered(refusal: Refusal | None) -> None:
            declared = [each.queue for each in changes if isinstance(each, DeclareQueue)]
            if refusal is None and declared:
                self._when_there(declared[-1], done)
                return
            done(refusal)
            self._broker.schedule()

        self._client.change(list(changes), answered)

    def _when_there(self, wanted: QueueRecord, done: Callable[[Refusal | None], None]) -> None:
        """Wait for the group of a declared queue, which makes it where its messages are kept.

        An equal queue that existed before stays in its own group, which may differ from the
        requested one. A queue that has ended since did exist for a moment, as if it was deleted
        right after its declaration.
        """
        queue = self.topology.queue(wanted.vhost, wanted.name)
        if queue is None:
            done(None)
            self._broker.schedule()
            return

        def told(status: QueueStats) -> None:
            gone = status.outcome == QueueOutcome.NO_QUEUE and self._has_gone(queue)
            if status.outcome == QueueOutcome.OK or gone:
                done(None)
            elif status.outcome == QueueOutcome.UNAVAILABLE and queue.group != wanted.group:
                # It existed before, and its home cannot be reached: answer like a passive
                # declaration.
                home = self._unreachable_home(queue) or self.limits.node_name
                done(refusals.unavailable(queue, home))
            else:
                done(self._refusal(queue, status.outcome))

        self._ask(
            queue, lambda client, told: client.status(queue.internal_name, told), told, MISSING
        )

    def _has_gone(self, queue: QueueRecord) -> bool:
        """Return whether a queue has left the topology; one of another owner is another queue."""
        now = self.topology.queue(queue.vhost, queue.name)
        return now is None or now.owner != queue.owner

    def _ask(
        self,
        queue: QueueRecord,
        ask: Callable[[GroupTarget, StatusCallback], None],
        done: Callable[[QueueStats], None],
        schedule: frozenset[QueueOutcome],
    ) -> None:
        """Send a request to a queue's group, and retry outcomes that may improve over time.

        The group is looked up each time: meanwhile the queue may move to another group, or end and
        be declared again elsewhere.
        """
        self._ask_until(queue, ask, done, schedule, self.now() + RETRY_SECONDS)

    def _ask_until(
        self,
        queue: QueueRecord,
        ask: Callable[[GroupTarget, StatusCallback], None],
        done: Callable[[QueueStats], None],
        schedule: frozenset[QueueOutcome],
        deadline: float,
    ) -> None:
        """Make one attempt. A retry is a new call: closures naming each other would be garbage."""

        def told(status: QueueStats) -> None:
            wait = status.outcome in schedule and not self._has_gone(queue)
            if wait and self.now() < deadline and not self._unreachable_home(queue):
                self._call_later(
                    AGAIN_SECONDS, lambda: self._ask_until(queue, ask, done, schedule, deadline)
                )
                return
            done(status)
            self._broker.schedule()

        now = self.topology.queue(queue.vhost, queue.name)
        if now is not None and now.owner != queue.owner:
            told(QueueStats(QueueOutcome.NO_QUEUE))
        else:
            ask(self._client_of(now or queue), told)

    def group_for(self, queue: QueueRecord) -> str:
        """Return the replication group of a new queue. Raises `Refusal` for an unknown group."""
        queues = self._queues
        choice = choice_of(
            self._settings, self.shard, queues.names.local_groups, queues.elsewhere.cluster
        )
        return choice.of(self.topology, queue)

    def _client_of(self, queue: QueueRecord) -> GroupTarget:
        """Return the client of a queue's group."""
        names = self._queues.names
        return self._queues.client(names.group_of(queue.internal_name, queue.group))

    def _unreachable_home(self, queue: QueueRecord) -> str:
        """Return the node that alone has a queue, if that node cannot be reached; otherwise an
        empty string."""
        group = self._queues.names.group_of(queue.internal_name, queue.group)
        return self._queues.elsewhere.unreachable_home(group)

    def _places(self, queue: QueueRecord) -> QueuePlaces:
        """Return the nodes of a queue's leader and replicas."""
        group = self._queues.names.group_of(queue.internal_name, queue.group)
        cluster, service = self._queues.elsewhere.cluster, self._queues.service
        return places_of(group, self.limits.node_name, cluster, service)

    def _refusal(self, queue: QueueRecord, outcome: int) -> Refusal:
        """Return the refusal for the engine's outcome of a request about a queue."""
        home = self._unreachable_home(queue) if outcome == QueueOutcome.UNAVAILABLE else ""
        return refusals.unavailable(queue, home) if home else refusals.refusal_of(queue, outcome)

    def queue_status(
        self, queue: QueueRecord, done: Callable[[QueueStatus | Refusal | None], None]
    ) -> None:
        """Return a queue's ready messages and consumers."""

        def told(status: QueueStats) -> None:
            home = self._unreachable_home(queue) if status.outcome in AWAY else ""
            done(refusals.unavailable(queue, home) if home else status_of(status))

        self._ask(
            queue, lambda client, told: client.status(queue.internal_name, told), told, MISSING
        )

    def purge(self, queue: QueueRecord, done: Callable[[int | Refusal], None]) -> None:
        """Remove the ready messages."""

        def told(status: QueueStats) -> None:
            wrong = status.outcome != QueueOutcome.OK
            done(self._refusal(queue, status.outcome) if wrong else status.ready)

        self._ask(queue, lambda client, told: client.purge(queue.internal_name, told), told, AWAY)

    def delete(
        self,
        queue: QueueRecord,
        if_unused: bool,
        if_empty: bool,
        done: Callable[[int | Refusal], None],
    ) -> None:
        """Delete a queue, first in the engine, which knows whether it is used or empty."""

        def told(status: QueueStats) -> None:
            if status.outcome not in (QueueOutcome.OK, QueueOutcome.NO_QUEUE):
                done(self._refusal(queue, status.outcome))
                return

            def changed(refusal: Refusal | None) -> None:
                gone = refusal is None or refusal.code == NOT_FOUND
                done(status.ready if gone or refusal is None else refusal)

            self.change([DeleteQueue(queue.vhost, queue.name, by_broker=True)], changed)

        self._ask(
            queue,
            lambda client, told: client.delete(queue.internal_name, if_unused, if_empty, told),
            told,
            AWAY,
        )

    # Messages

    def publish(
        self,
        connection: Connection,
        run: AmqpPublishRun,
        routing: Routing,
        confirmation: PendingConfirm | None,
    ) -> int:
        """Route and store a run."""
        if self.firehose.on:
            if connection.wire == WIRE_AMQP_1_0:
                self._trace_amqp10(connection, run, routing)
            else:
                self.firehose.published(connection.identity.client.info, run, routing)
        watching = self._reactor.watching
        if watching & WATCH_SPANS and TRACEPARENT in routing.block:
            self._broker.spans.published(
                routing.exchange.name, routing.keys[0], routing.block, run.count
            )
        if watching & WATCH_RATES:
            vhost = routing.exchange.vhost
            self._broker.rates.charge(connection, vhost, run.count, run.payload_bytes)
        routed = self._publishing.publish(run, routing, confirmation)
        if self._reactor.link_full:
            self._broker.link_full(connection)
        return routed

    def _trace_amqp10(self, connection: Connection, run: AmqpPublishRun, routing: Routing) -> None:
        """Copy a run that came by AMQP 1.0, one by one where each message has its own properties."""
        info = connection.identity.client.info
        singles = map(run.single, range(run.count)) if run.blocks is not None else (run,)
        for each in singles:
            block = each.block(0, routing.block)
            each.properties = make_head(block, b"", -1, stream=False).properties
            self.firehose.published(info, each, routing)

    def may_refuse(self, routing: Routing) -> bool:
        """Return whether a queue it is routed to rejects messages beyond its limits."""
        return self._publishing.may_refuse(routing)

    def consume(
        self,
        wanted: ConsumeRequest,
        port: AmqpConsumerPort,
        done: Callable[[AmqpConsumerHandle | Refusal], None],
    ) -> None:
        """Attach a consumer."""

        def attached(answer: AmqpConsumerHandle | Refusal) -> None:
            done(answer)
            self._broker.schedule()

        home = self._unreachable_home(wanted.queue)
        if home:
            attached(refusals.unavailable(wanted.queue, home))
            return
        queue = wanted.queue
        group = self._queues.names.group_of(queue.internal_name, queue.group)
        attach = partial(self._queues.attach, self._queues.client(group, following=True))
        consume(attach, wanted, port, attached, self._refusal)

    def reply_open(self, port: AmqpConsumerPort) -> str:
        """Return a new address for direct replies."""
        return self._replies.open(port)

    def reply_close(self, address: str) -> None:
        """Close a direct reply address."""
        self._replies.close(address)

    def reply(self, address: str, run: AmqpPublishRun, block: bytes) -> bool:
        """Send a run to an address."""
        return self._replies.send(address, run, block)

    def reply_exists(self, address: str, done: Callable[[bool], None]) -> None:
        """Ask whether a consumer waits at an address, on any shard."""
        self._replies.exists(address, done)

    # Connections

    def schedule(self, connection: Connection, at: float) -> None:
        """Call the handler's ``due`` at a time."""
        self.timers.set(connection, at)

    def run_timers(self) -> None:
        """Run due timers; called by the shard's timer."""
        self.timers.due(self.now(), _due)

    def wake(self) -> None:
        """Schedule the sending of written output."""
        self._broker.schedule()

    def mark(self) -> None:
        """Call the handler's ``flush_marked`` before this tick ends, or in the next one."""
        if not self._marked:
            self._marked = True
            self._queues.service.wake()

    def flush_marked(self) -> None:
        """Flush marked channels at the end of a tick, before groups do their work."""
        if self._marked:
            self._marked = False
            self.handler.flush_marked()
            self.handler.amqp10.flush_marked()

    def pause(self, connection: Connection) -> None:
        """Stop reading."""
        self._broker.connections.pause(connection)

    def resume(self, connection: Connection) -> None:
        """Resume reading."""
        self._broker.connections.resume(connection)

    def hold_publisher(self, connection: Connection) -> None:
        """Stop reading a publishing connection until the node has no alarms."""
        self._broker.alarms.hold_publisher(connection)

    def release_publisher(self, connection: Connection) -> None:
        """Read a publisher's connection despite alarms, or its rate."""
        self._broker.alarms.release(connection)
        self._broker.rates.release(connection)

    @property
    def short_of_memory(self) -> bool:
        """True while memory is too short for anything new from clients."""
        return self._broker.alarms.critical

    def refused_for_memory(self, what: str) -> None:
        """Count a refusal."""
        self._broker.alarms.refuse(what)

    def close(self, connection: Connection, linger: bool) -> None:
        """Close a connection once its output is written."""
        self.timers.cancel(connection)
        self._broker.connections.close(connection, linger)

    def count_opened(self, client: ConnectionInfo) -> None:
        """Count a connection that has reached connection.open-ok."""
        self.counted.opened += 1
        self._broker.events.connection_created(client)
        self.log_connection(logging.DEBUG, client, "opened", "connection opened")

    def count_closed(self, client: ConnectionInfo, reason: str) -> None:
        """Count the end of a connection."""
        self.counted.closed[reason] += 1
        # Errors of a client were logged as such; a connection lost without one is logged here.
        level = logging.INFO if reason == "lost" and client.counted else logging.DEBUG
        self.log_connection(level, client, f"closed-{reason}", "connection closed: %s", reason)
        if client.counted:
            self._vhost_connections.leave(client.vhost)
            self._broker.user_limits.leave(client)
            self._broker.events.connection_closed(client)

    def log_connection(
        self, level: int, client: ConnectionInfo, key: str, message: str, *arguments: str
    ) -> None:
        """Log an event of a connection, at a bounded rate."""
        if _log.isEnabledFor(level):
            self.log.event(
                level,
                key,
                message,
                *arguments,
                peer=client.peer,
                user=client.user,
                vhost=client.vhost,
            )

    def count_error(self, client: ConnectionInfo, code: int, text: str) -> None:
        """Count a protocol error and log some."""
        self.counted.errors[code] += 1
        self.log.event(
            logging.INFO,
            f"error-{code}",
            "%s (%d)",
            text,
            code,
            peer=client.peer,
            user=client.user,
        )

    def count_drop(self, reason: str, count: int) -> None:
        """Count messages not delivered."""
        self._broker.counts.messages_dropped(reason, count)

    def count_method(self, name: str) -> None:
        """Count a method received off the hot path."""
        self.counted.methods[name] += 1


def _due(connection: Connection) -> None:
    """Handle a deadline that a connection has scheduled."""
    connection.handler.due(connection)


def permissions_of(user: User | None, vhost: str) -> Permissions | None:
    """Return a user's permissions in a vhost; None if there are none."""
    if user is None:
        return None
    for permission in user.permissions:
        if permission.vhost == vhost:
            return Permissions(user.name, permission, user.topic_permissions)
    return None

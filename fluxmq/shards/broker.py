"""The broker as sessions of one shard see it: their port, connected to the parts that do the work.

Lives on the shard's loop; everything here completes within a tick.
"""

from __future__ import annotations

import logging
import secrets
import socket
from collections import Counter
from collections.abc import Callable, Iterator

from fluxmq.auth.logins import AmqpAuthResult, LoginOutcome
from fluxmq.auth.policy import TopicPolicy
from fluxmq.auth.scram import ServerExchange, StoredKeys
from fluxmq.ipc.handoff import LISTENERS
from fluxmq.logs import RateLimited, get_logger
from fluxmq.net.reactor import PAUSED_LINK, PAUSED_STEP, Reactor
from fluxmq.net.route import Route
from fluxmq.net.tls import TlsStream
from fluxmq.net.websocket import WebSocketStream
from fluxmq.protocols.connection import Connection
from fluxmq.protocols.mqtt.delivery import EVICT, REJECT, SessionDelivery
from fluxmq.protocols.mqtt.packets import Connect
from fluxmq.protocols.mqtt.run import PublishRun
from fluxmq.protocols.mqtt.topics import ParsedFilter
from fluxmq.sessions.mqtt.handler import MqttConnectionHandler
from fluxmq.sessions.mqtt.handover import abandon
from fluxmq.sessions.mqtt.outcomes import Cause
from fluxmq.sessions.mqtt.ports import SessionLimits
from fluxmq.sessions.mqtt.session import CONNECTED, Grant, MqttClient, Session, Will
from fluxmq.settings.schema import Settings
from fluxmq.shards.alarms import Alarms
from fluxmq.shards.durable.sessions import DurableSessions
from fluxmq.shards.durable.wiring import DurablePort
from fluxmq.shards.limits import PENDING_CONNECTED_MAX, session_limits
from fluxmq.shards.parts import Parts
from fluxmq.shards.peers import Peers, Subjects
from fluxmq.shards.queue_port import QueuePort
from fluxmq.shards.session_ownership import SessionOwnership
from fluxmq.shards.session_takeover import SessionTakeover
from fluxmq.shards.surroundings import Surroundings
from fluxmq.shards.timers import DueTimes, SilenceWheel

LINGER_SECONDS = 2.0
"""Time for a client to read the reason for a disconnect before the socket is closed."""


class ShardBroker(SessionTakeover, QueuePort, DurablePort):
    """Implements the sessions' port and the reactor's host."""

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
        self.schedule_tick = around.schedule
        self.call_later = around.times.call_later
        self.authentication = parts.authentication
        self.handler = MqttConnectionHandler(self, explain)
        self.sessions: dict[str, Session] = {}
        self.wheel = SilenceWheel()
        self.timers: DueTimes[Session] = DueTimes()
        self.drops = parts.drops
        self.errors: Counter[int] = Counter()
        self.closed: Counter[str] = Counter()
        self.packets: Counter[int] = Counter()
        self.takeovers = self.expired_sessions = self.wills = 0
        self.open_now = [0] * len(LISTENERS)
        """Number of connections by listener."""
        self.log = RateLimited(get_logger("fluxmq.mqtt"), per_second=1, burst=10)
        self.alarms = Alarms(reactor)
        self.alarms.on_relief.append(self._give_up_incomplete)
        self._workers = around.workers
        self._unfed: dict[MqttClient, None] = {}
        self._arriving: dict[str, MqttClient] = {}
        """Clients that are let in once the end of their former session is on disk."""
        self.configure(settings)
        self.routes, self.groups = parts.routes, parts.groups
        self.retained, self.queues = parts.retained, parts.queues
        ownership = SessionOwnership(around.index, around.workers, parts.switch.links, self)
        self.durable = DurableSessions(
            parts.commit_waiter,
            parts.groups,
            self,
            ownership,
            self.limits.max_inflight,
            around.connected,
        )
        self.peers = self._make_peers(around, parts, ownership)

    def _make_peers(self, around: Surroundings, parts: Parts, ownership: SessionOwnership) -> Peers:
        subjects = Subjects(
            parts.routes,
            parts.groups,
            ownership,
            parts.retained,
            parts.durable_links,
            parts.queue_links,
        )

        def owned(peer: int) -> list[str]:
            return [client_id for client_id in self.sessions if ownership.home(client_id) == peer]

        return Peers(
            *(parts.switch, around.epoch, self.reactor, subjects),
            around.is_alive,
            owned,
            self.call_later,
        )

    def configure(self, settings: Settings) -> None:
        """Apply settings, at start and on change."""
        self._settings = settings
        self.limits: SessionLimits = session_limits(settings, self._workers)
        self.connacks: dict[tuple[bool, bool], bytes] = {}
        self.reactor.max_qos = settings.broker.max_qos

    # The reactor's host

    def route(self, topic: bytes) -> Route | None:
        """Return the route of a topic; None if it is not valid."""
        return self.routes.route(topic)

    def schedule(self, session: Session | None = None) -> None:
        """Schedule a tick, or, with a session, its timers."""
        if session is None:
            self.schedule_tick()
        else:
            self.timers.set_earliest(session, session.will_at, session.expires_at)
            self.durable.left(session)

    def link_full(self, connection: Connection) -> None:
        """Pause a connection whose run met a full link, until there is room."""
        self.reactor.link_full = False
        if self.peers.hold(connection):
            self.reactor.pause(connection, PAUSED_LINK)
        self.queues.hold(connection)

    def hold_publisher(self, connection: Connection) -> None:
        """Stop reading a connection if it publishes: an alarm is in force."""
        self.alarms.hold_publisher(connection)

    @property
    def short_of_memory(self) -> bool:
        """True while nothing new may begin for clients."""
        return self.alarms.critical

    def refused_for_memory(self, what: str) -> None:
        """Count a refusal: one of ``alarms.REFUSED``."""
        self.alarms.refuse(what)

    def _give_up_incomplete(self) -> None:
        """Disconnect stopped clients in the middle of a large packet: the memory alarm lasts."""
        for connection in list(self.alarms.held):
            client = connection.identity
            if isinstance(client, MqttClient) and self.alarms.is_large(connection):
                self.refused_for_memory("incomplete")
                self.handler.disconnect(client, Cause.MEMORY)

    # Time

    def now(self) -> float:
        """Return monotonic seconds at the start of the tick."""
        return self.reactor.tally.now

    def watch(self, client: MqttClient, seconds: float) -> None:
        """Disconnect the client after this many seconds of silence."""
        self.wheel.watch(client, seconds, self.now())

    def watch_connect(self, client: MqttClient, seconds: float) -> None:
        """Close the connection unless CONNECT is complete by then."""
        self.wheel.watch_connect(client, seconds, self.now())

    def run_timers(self) -> None:
        """Handle silence, expiries and wills that are due."""
        for client in self.wheel.expired(self.now()):
            self.handler.expired(client)
        unfed, self._unfed = self._unfed, {}
        for client in unfed:
            if client.stage is CONNECTED:
                self.handler.drained(client.connection)
        if self.authentication.revision >= 0:
            # Until users are known, wills cannot be authorised.
            self.timers.due(self.now(), self._session_due)

    def _session_due(self, session: Session) -> None:
        before = len(self.sessions)
        self.handler.due(session)
        self.expired_sessions += before - len(self.sessions)

    # Connecting

    def authenticate(self, client: MqttClient, connect: Connect) -> None:
        """Determine the client's identity."""
        stream = client.connection.stream
        if isinstance(stream, TlsStream):
            identity = stream.peer_identity()
            if identity is not None:
                client.certificate_name = identity.common_name or ""
        elif isinstance(stream, WebSocketStream):
            client.page = stream.page
        if not connect.username:
            self.handler.authenticated(client, self.authentication.without_name(client))
            return
        self.pause(client.connection)

        def finished(result: AmqpAuthResult) -> None:
            self.handler.authenticated(client, result)
            self.schedule()

        self.authentication.check(client, connect, finished)

    def scram_exchange(self) -> ServerExchange:
        """Return a new SCRAM exchange."""
        return self.authentication.scram_exchange()

    def scram_keys(self, username: str, peer: str) -> StoredKeys | None:
        """Return the SCRAM keys of an enabled user who may log in from ``peer``."""
        return self.authentication.scram_keys(username, peer)

    def login_refusal(self, username: str, peer: str) -> LoginOutcome | None:
        """Return the reason for refusing a SCRAM login now; None to allow it."""
        return self.authentication.login_refusal(username, peer)

    def scram_result(self, username: str, peer: str, success: bool) -> None:
        """Count a login by SCRAM."""
        self.authentication.scram_result(username, peer, success)

    def policy(self, client_id: str, username: str) -> TopicPolicy:
        """Return a client's permissions."""
        return self.authentication.policy(client_id, username)

    def is_user(self, name: str) -> bool:
        """Return whether a user of this name exists, enabled or not."""
        return self.authentication.record(name) is not None

    def will_policy(self, session: Session, will: Will) -> TopicPolicy | None:
        """Return the current permissions of a session's possibly absent client; None if it may not
        connect any more."""
        return self.authentication.will_policy(
            session.client_id, session.principal, will.without_user
        )

    def new_client_id(self) -> str:
        """Return a new client id with this shard as home, so that a plain reconnect comes here."""
        ownership = self.peers.ownership
        while True:
            name = "auto-" + secrets.token_hex(10)
            if ownership.home(name) == ownership.shard:
                return name

    def new_delivery(self) -> SessionDelivery:
        """Return a new session's delivery, which is empty."""
        settings = self._settings.session
        return SessionDelivery(
            self.reactor.tally,
            settings.max_offline_queue_size,
            max(settings.max_offline_queue_size, PENDING_CONNECTED_MAX),
            settings.max_offline_queue_bytes,
            EVICT if settings.offline_queue_policy == "evict" else REJECT,
        )

    def create(self, client_id: str) -> Session | None:
        """Create a session; return None if the shard holds the maximum."""
        if len(self.sessions) >= self.limits.max_sessions:
            return None
        session = Session(client_id, self.new_delivery())
        self.sessions[client_id] = session
        return session

    def adopt(self, client: MqttClient, session: Session) -> None:
        """Attach the client to this session."""
        self.timers.cancel(session)
        self.durable.attached(session)
        if not session.subscriptions:
            return
        self.queues.clients.connected(session)
        for written, grant in session.subscriptions.items():
            if grant.shared:
                self.groups.set_connected(grant.shared, session.filter_of(written), session, True)

    def ended(self, session: Session) -> None:
        """Clean up after a session has ended."""
        if self.sessions.get(session.client_id) is session:
            self.forget(session)
            self.peers.ownership.release(session.client_id)
        self.durable.ended(session)
        session.subscriptions.clear()
        abandon(session.delivery)

    def forget(self, session: Session) -> None:
        """Remove a session from this shard."""
        for written in list(session.subscriptions):
            self.unsubscribe(session, written)
        del self.sessions[session.client_id]
        self.timers.cancel(session)

    def hand_over(self, session: Session, ended: bool) -> None:
        """Give a leaving member's unacknowledged messages to others of its groups."""
        self.queues.clients.left(session)
        if session.subscriptions:
            self.groups.hand_over(session, ended)

    # Messages

    def publish(self, run: PublishRun) -> bool:
        """Route a run."""
        return self.reactor.publish_run(run) >= 0

    def retain(self, run: PublishRun) -> bool:
        """Store the run's last message as its topic's retained one."""
        if self.retained.retain(run):
            return True
        self.count_drop("retained_full", 1)
        return False

    def retained_topics(self, topic_filter: bytes) -> Iterator[bytes]:
        """Return the matching topics with a retained message."""
        return self.retained.topics(topic_filter)

    def retained_message(self, topic: bytes) -> PublishRun | None:
        """Return the retained message of a topic."""
        return self.retained.message(topic)

    # Subscriptions

    @property
    def subscription_count(self) -> int:
        """Number of subscriptions of this shard's sessions, including shared ones."""
        return self.routes.subscription_count + self.groups.member_count

    def subscribe(
        self, session: Session, written: bytes, parsed: ParsedFilter, grant: Grant
    ) -> None:
        """Add or replace a subscription."""
        self.enter_subscription(session, written, parsed.filter, grant)

    def enter_subscription(
        self, session: Session, written: bytes, topic_filter: bytes, grant: Grant
    ) -> None:
        """Route messages of a subscription to a session."""
        if grant.queue is not None:
            return  # consumers attach when the client connects
        if grant.shared:
            self.groups.join(grant.shared, topic_filter, session, grant)
        else:
            self.routes.add(session, topic_filter, grant)

    def unsubscribe(self, session: Session, written: bytes) -> None:
        """Remove a subscription."""
        grant = session.subscriptions[written]
        topic_filter = session.filter_of(written)
        if grant.queue is not None:
            self.queue_unsubscribe(session, written)
        elif grant.shared:
            self.groups.leave(grant.shared, topic_filter, session)
        else:
            self.routes.remove(session, topic_filter)

    def feed_later(self, client: MqttClient) -> None:
        """Continue with the client's retained messages soon, whatever is pending."""
        self._unfed[client] = None

    def when_known(self, done: Callable[[], None]) -> None:
        """Call ``done`` when every shard knows the subscriptions made so far."""

        def finished() -> None:
            done()
            self.schedule()

        self.peers.when_known(finished)

    # Connections

    def pause(self, connection: Connection) -> None:
        """Stop reading while an answer is pending."""
        self.reactor.pause(connection, PAUSED_STEP)

    def resume(self, connection: Connection) -> None:
        """Resume reading."""
        self.reactor.resume(connection, PAUSED_STEP)

    def close(self, connection: Connection, linger: bool) -> None:
        """Close, at once or after the client had time to read the last packet."""
        if connection.fd < 0 or connection.closing:
            return
        connection.delivery = None
        connection.open = False
        self.wheel.forget(connection.identity)
        if not linger:
            if connection.size or connection.stream is not None:
                # Send this tick's answers, as far as the socket accepts them.
                connection.flush()
                self._end_stream(connection)
            self.discard(connection)
            return
        connection.closing = True
        connection.buffer()
        self.reactor.pause(connection, PAUSED_STEP)
        self.call_later(LINGER_SECONDS, lambda: self.discard(connection))
        self.schedule()

    def half_close(self, connection: Connection) -> None:
        """Shut down the write side after all output, and let the client close. Closing at once
        would reset the connection if the client's last bytes are unread, and lose our last
        packet."""
        self._end_stream(connection)
        sock = socket.socket(fileno=connection.fd)
        try:
            sock.shutdown(socket.SHUT_WR)
            ended = False
        except OSError:
            ended = True
        finally:
            sock.detach()
        if ended:
            self.discard(connection)

    def _end_stream(self, connection: Connection) -> None:
        """End TLS or WebSocket in an orderly way, if the socket accepts that."""
        if connection.stream is not None and connection.fd >= 0:
            goodbye = connection.stream.shutdown()
            if goodbye and connection.size == 0:
                connection.write(goodbye, 0, len(goodbye))

    def discard(self, connection: Connection) -> None:
        """Release the socket."""
        if connection.fd >= 0:
            self.open_now[connection.listener] -= 1
            self.alarms.forget(connection)
            if connection.stream is not None:
                connection.stream.release()
            self.reactor.discard(connection)

    # Counts

    def count_closed(self, client: MqttClient, reason: str) -> None:
        """Count the end of a connection."""
        self.closed[reason] += 1

    def count_error(self, client: MqttClient, reason: int, text: str) -> None:
        """Count a client's error; log some."""
        self.errors[reason] += 1
        session, connect = client.session, client.connect
        client_id = connect.client_id if connect is not None else ""
        self.log.event(
            logging.INFO,
            f"error-{reason}",
            "%s (0x%02X)",
            text,
            reason,
            peer=client.peer,
            client_id=session.client_id if session is not None else client_id,
        )

    def count_drop(self, reason: str, count: int) -> None:
        """Count messages not delivered."""
        self.drops.count(reason, count)

    def count_packet(self, kind: int) -> None:
        """Count a control packet received."""
        self.packets[kind] += 1

    def will_published(self) -> None:
        """Count a will."""
        self.wills += 1

    def will_refused(self, session: Session, will: Will) -> None:
        """Count a will that its client may no longer publish; log some."""
        self.count_drop("no_permission", 1)
        self.log.event(
            logging.WARNING,
            "will-refused",
            "a will is not published: its client may no longer publish to the topic",
            client_id=session.client_id,
            user=session.principal,
            topic=will.topic.decode(),
        )

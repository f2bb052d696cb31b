"""A shard in the hands of a test: reactor, real sessions, and socket pairs for clients.

`Shard` is what `fluxmq.shards` is to sessions and to the reactor, without processes, timers and peers: routes
by a naive look over all subscriptions, one dictionary of retained messages, a clock that stands still. It runs
on either set of the hot path's modules (`variants`), and everything it does is decided by its input, so that
two shards given the same bytes must write the same bytes.
"""

from __future__ import annotations

import select
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from fluxmq.auth.logins import AmqpAuthResult, LoginOutcome
from fluxmq.auth.policy import TopicPolicy
from fluxmq.protocols.mqtt.codec import Limits, encode
from fluxmq.protocols.mqtt.packets import Connect, Publish, Subscribe, Subscription
from fluxmq.protocols.mqtt.pending_acks import PendingAck
from fluxmq.protocols.mqtt.properties import Properties
from fluxmq.protocols.mqtt.reasons import ProtocolError
from fluxmq.protocols.mqtt.topics import ParsedFilter, validate_topic
from fluxmq.routing.subscriptions import SubscriptionTree
from fluxmq.sessions.mqtt.handler import MqttConnectionHandler
from fluxmq.sessions.mqtt.outcomes import Cause
from fluxmq.sessions.mqtt.ports import SessionLimits
from fluxmq.sessions.mqtt.queue_subscriptions import QueueSubscription
from fluxmq.sessions.mqtt.session import Grant, MqttClient, Session, Will
from fluxmq.sessions.mqtt.settlement import SettlementCommand
from fluxmq.sessions.mqtt.subscribing import identifier_property
from tests.unit.protocols.mqtt.wire import cut, numbered, puback, read
from tests.unit.variants import INSTALLED, Hot

OUTPUT_LIMIT = 1 << 20


def session_limits(**changes: Any) -> SessionLimits:
    """Limits of the shard's sessions."""
    limits = SessionLimits(
        max_packet=1 << 20,
        max_qos=2,
        max_topic_bytes=4096,
        max_topic_levels=128,
        max_subscriptions=100,
        max_will=65536,
        max_sessions=100,
        max_client_id=256,
        topic_alias_maximum=16,
        topic_alias_maximum_out=16,
        keep_alive_maximum=0,
        default_expiry=3600,
        max_expiry=86400,
        max_inflight=1024,
        packets=Limits(max_user_properties=16, max_topic_bytes=4096, max_topic_levels=128),
    )
    for name, value in changes.items():
        setattr(limits, name, value)
    return limits


class Shard:
    """One shard. `now` is its clock, in seconds; tests set it."""

    def __init__(
        self,
        hot: Hot = INSTALLED,
        *,
        receive_bytes: int = 65536,
        output_limit: int = OUTPUT_LIMIT,
        policy: TopicPolicy | None = None,
        **limits: Any,
    ) -> None:
        self.hot = hot
        self.clock = 1000.0
        self.limits = session_limits(**limits)
        self.connacks: dict[tuple[bool, bool], bytes] = {}
        self.output_limit = output_limit
        self.access = policy or TopicPolicy(["#", "$SYS/#"], ["#"])
        hot.reactor.monotonic = lambda: self.clock
        self.reactor = hot.reactor.Reactor(self, receive_bytes, self.limits.max_packet, 8192, 64)
        self.reactor.tally.now = self.clock
        self.handler = MqttConnectionHandler(self, lambda _outcome: "")
        self.sessions: dict[str, Session] = {}
        self.tree: SubscriptionTree[Session, Grant] = SubscriptionTree()
        self.retained: dict[bytes, Any] = {}
        self.scheduled = False
        self.errors: Counter[int] = Counter()
        self.drops: Counter[str] = Counter()
        self.links: list[Any] = []
        self.lingering: list[Any] = []
        self.peers: list[Peer] = []

    # What the test does

    def open(self, *, stream: Any = None, send_buffer: int = 0) -> Peer:
        """A new connection."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        if send_buffer:
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        shared = (self.reactor.tally, self.reactor.dirty, self.output_limit, self.hot.sockets.send)
        connection = self.hot.connection.Connection(ours.detach(), *shared)
        connection.handler = self.handler
        connection.stream = stream
        connection.identity = MqttClient(connection, f"test:{len(self.peers)}", 0)
        self.reactor.add(connection)
        peer = Peer(self, connection, theirs)
        self.peers.append(peer)
        return peer

    def connect(
        self,
        name: str,
        version: int = 4,
        *,
        clean: bool = True,
        properties: Properties | None = None,
        send_buffer: int = 0,
    ) -> Peer:
        """A client that has connected; its CONNACK has been read."""
        peer = self.open(send_buffer=send_buffer)
        peer.name = name
        peer.version = version
        connect = Connect(name, clean, 60, version=version, properties=properties or Properties())
        peer.send(encode(connect, version))
        self.settle()
        packets, rest = cut(peer.received)
        assert packets
        assert packets[0][0] == 0x20, packets[0]
        peer.received = bytearray(b"".join(packets[1:]) + rest)
        return peer

    def settle(self, *, read: bool = True) -> None:
        """Tick until nothing is left to do; `read`: clients take what is written to them meanwhile."""
        while True:
            self.scheduled = False
            ticks = self.reactor.tally.ticks
            self.reactor.run_ready()
            assert self.reactor.tally.ticks - ticks <= self.hot.reactor.TICKS_MAX
            if read:
                for peer in self.peers:
                    peer.take()
            ready, _, _ = select.select([self.reactor.fileno()], [], [], 0)
            if not ready and not self.scheduled:
                return

    def close_all(self) -> None:
        """Let go of every socket."""
        for peer in self.peers:
            peer.socket.close()
            if peer.connection.fd >= 0:
                self.reactor.discard(peer.connection)
        self.reactor.poller.close()
        self.hot.reactor.monotonic = time.monotonic

    # The reactor's host

    def route(self, topic: bytes) -> Any:
        """Where a topic leads: overlapping subscriptions of a session are one target."""
        try:
            validate_topic(topic, self.limits.max_topic_bytes, self.limits.max_topic_levels)
        except ProtocolError:
            return None
        targets: dict[Session, Any] = {}
        for _, session, grant in self.tree.match(topic):
            found = targets.get(session)
            made = self.hot.inflight.Target(
                session.delivery,
                grant.qos,
                grant.no_local,
                grant.retain_as_published,
                identifier_property(grant.subscription_id),
            )
            if found is None:
                targets[session] = made
            else:
                found.qos = max(found.qos, made.qos)
                found.keep_retain |= made.keep_retain
                found.subscription_ids += made.subscription_ids
        return self.hot.route.Route(list(targets.values()), self.links, [], [])

    def schedule(self, session: Session | None = None) -> None:
        """Another tick is wanted, or a session's timers were set (which never run here)."""
        self.scheduled = True

    def link_full(self, connection: Any) -> None:
        """A link has no room: not read until a test says so."""
        self.reactor.link_full = False
        self.reactor.pause(connection, self.hot.reactor.PAUSED_LINK)

    def hold_publisher(self, connection: Any) -> None:
        """The node is short of something: not read until a test says so."""
        if connection.publishing:
            self.reactor.pause(connection, self.hot.reactor.PAUSED_ALARM)

    def half_close(self, connection: Any) -> None:
        """All is written to a connection that is closing."""
        self.discard(connection)

    def discard(self, connection: Any) -> None:
        """Close the socket."""
        self.reactor.discard(connection)

    # The sessions' port

    short_of_memory = False

    def now(self) -> float:
        """Seconds."""
        return float(self.reactor.tally.now)

    def authenticate(self, client: MqttClient, connect: Connect) -> None:
        """Everybody may come in."""
        self.handler.authenticated(client, AmqpAuthResult(LoginOutcome.ACCEPTED))

    def scram_exchange(self) -> Any:
        """There is none."""
        raise ProtocolError(0x8C, "no such method")

    def scram_keys(self, username: str, peer: str) -> None:
        """Nobody has any."""

    def login_refusal(self, username: str, peer: str) -> None:
        """Anybody may try."""

    def scram_result(self, username: str, peer: str, success: bool) -> None:
        """Not counted."""

    def policy(self, client_id: str, username: str) -> TopicPolicy:
        """What everybody may do."""
        return self.access

    def is_user(self, name: str) -> bool:
        """There are none."""
        return False

    def will_policy(self, session: Session, will: Will) -> TopicPolicy:
        """What everybody may do."""
        return self.access

    def new_client_id(self) -> str:
        """The next one."""
        return f"auto-{len(self.peers)}"

    def acquire(self, client: MqttClient, clean: bool) -> None:
        """Take the client id over from whoever has it."""
        assert client.connect is not None
        session = self.sessions.get(client.connect.client_id)
        if session is not None and session.client is not None:
            self.handler.disconnect(session.client, Cause.TAKEN_OVER)
            session = self.sessions.get(client.connect.client_id)
        if session is not None and clean:
            self.handler.finish(session)
            session = None
        self.handler.claimed(client, session)

    def create(self, client_id: str) -> Session | None:
        """A new session."""
        if len(self.sessions) >= self.limits.max_sessions:
            return None
        session = Session(client_id, self.delivery())
        self.sessions[client_id] = session
        return session

    def delivery(self) -> Any:
        """An empty delivery with room enough."""
        return self.hot.delivery.SessionDelivery(self.reactor.tally, 10_000, 100_000, 1 << 26, 0)

    def refuses_to_keep(self, client_id: str) -> int:
        """Nothing is kept on disk."""
        return 0

    def adopt(self, client: MqttClient, session: Session) -> None:
        """Nothing to do without groups."""

    def ended(self, session: Session) -> None:
        """Forget it."""
        for written in list(session.subscriptions):
            self.unsubscribe(session, written)
        if self.sessions.get(session.client_id) is session:
            del self.sessions[session.client_id]
        session.subscriptions.clear()
        session.delivery.session = None

    def hand_over(self, session: Session, ended: bool) -> None:
        """There are no groups."""

    def publish(self, run: Any) -> bool:
        """Route."""
        return bool(self.reactor.publish_run(run) >= 0)

    def retain(self, run: Any) -> bool:
        """Keep the last message."""
        payload = run.payloads()[-1]
        if payload:
            self.retained[run.topic] = self.hot.run.message_run(
                run.topic, payload, run.qos, 1, run.properties, run.deadline
            )
        else:
            self.retained.pop(run.topic, None)
        return True

    def retained_topics(self, topic_filter: bytes) -> Iterator[bytes]:
        """Those that match, in order."""
        tree: SubscriptionTree[int, None] = SubscriptionTree()
        tree.add(topic_filter, 1, None)
        return iter([topic for topic in sorted(self.retained) if list(tree.match(topic))])

    def retained_message(self, topic: bytes) -> Any:
        """The message."""
        return self.retained.get(topic)

    def subscribe(
        self, session: Session, written: bytes, parsed: ParsedFilter, grant: Grant
    ) -> None:
        """Enter it; groups are not known here, a shared subscription is an ordinary one."""
        self.tree.add(parsed.filter, session, grant)
        self.reactor.routes.clear()

    def keep_subscriptions(self, session: Session, written: Any, done: Any) -> None:
        """Nothing is kept on disk here."""
        done(0)

    def unsubscribe(self, session: Session, written: bytes) -> None:
        """Remove it."""
        self.tree.remove(session.filter_of(written), session)
        self.reactor.routes.clear()

    def when_known(self, done: Callable[[], None]) -> None:
        """At once: there is one shard."""
        done()

    def pause(self, connection: Any) -> None:
        """Stop reading."""
        self.reactor.pause(connection, self.hot.reactor.PAUSED_STEP)

    def resume(self, connection: Any) -> None:
        """Go on."""
        self.reactor.resume(connection, self.hot.reactor.PAUSED_STEP)

    def close(self, connection: Any, linger: bool) -> None:
        """Close once everything is written."""
        if connection.fd < 0 or connection.closing:
            return
        connection.delivery = None
        connection.open = False
        if not linger:
            connection.flush()
            self.reactor.discard(connection)
            return
        connection.closing = True
        connection.buffer()
        self.pause(connection)

    def watch(self, client: MqttClient, seconds: float) -> None:
        """The clock stands still."""

    def count_closed(self, client: MqttClient, reason: str) -> None:
        """Not counted."""

    def count_error(self, client: MqttClient, reason: int, text: str) -> None:
        """Count."""
        self.errors[reason] += 1

    def count_drop(self, reason: str, count: int) -> None:
        """Count."""
        self.drops[reason] += count

    def count_packet(self, kind: int) -> None:
        """Not counted."""

    def will_published(self) -> None:
        """Not counted."""

    # Not asked of it: there are no queues, nothing waits for a disk, and there is memory enough

    def queue_subscribe(
        self,
        session: Session,
        written: bytes,
        wanted: QueueSubscription,
        done: Callable[[int], None],
    ) -> None:
        raise AssertionError(written)

    def queue_unsubscribe(self, session: Session, written: bytes) -> None:
        raise AssertionError(written)

    def queue_settle(
        self, client: MqttClient, settlement: SettlementCommand, done: Callable[[int], object]
    ) -> None:
        raise AssertionError(settlement)

    def hold(self) -> PendingAck:
        raise AssertionError

    def feed_later(self, client: MqttClient) -> None:
        raise AssertionError(client.peer)

    def refused_for_memory(self, what: str) -> None:
        raise AssertionError(what)

    def will_refused(self, session: Session, will: Will) -> None:
        """Count."""
        self.drops["no_permission"] += 1


class Peer:
    """The client's end of a connection. `received`: bytes not looked at yet; `all`: everything."""

    def __init__(self, shard: Shard, connection: Any, sock: socket.socket) -> None:
        self.shard = shard
        self.connection = connection
        self.socket = sock
        self.name = ""
        self.version = 4
        self.received = bytearray()
        self.all = bytearray()
        self.closed = False

    def send(self, data: bytes) -> None:
        """Send, the shard reading whenever the socket is full."""
        view = memoryview(data)
        while view:
            try:
                sent = self.socket.send(view)
            except BlockingIOError:
                self.shard.settle()
                continue
            except OSError:
                return
            view = view[sent:]

    def take(self) -> int:
        """Read what the shard has written; how much that was."""
        total = 0
        while not self.closed:
            try:
                data = self.socket.recv(1 << 18)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if not data:
                self.closed = True
            self.received += data
            self.all += data
            total += len(data)
        return total

    def subscribe(
        self,
        topic_filter: bytes,
        qos: int = 0,
        *,
        no_local: bool = False,
        retain_as_published: bool = False,
        identifier: int = 0,
    ) -> None:
        """Subscribe; the SUBACK has been read."""
        properties = Properties(subscription_identifiers=[identifier] if identifier else [])
        wanted = Subscription(topic_filter, qos, no_local, retain_as_published)
        self.send(encode(Subscribe(1, [wanted], properties), self.version))
        self.shard.settle()
        packets, rest = cut(self.received)
        assert packets[0][0] == 0x90, packets
        self.received = bytearray(b"".join(packets[1:]) + rest)

    def packets(self) -> list[bytes]:
        """The whole packets received since the last look."""
        packets, rest = cut(self.received)
        self.received = bytearray(rest)
        return packets

    def answer(
        self, packets: list[bytes], order: Callable[[list[bytes]], list[bytes]] = list
    ) -> None:
        """Acknowledge publishes and go on with QoS 2, the answers in an order of the test's choice."""
        answers = []
        for packet in packets:
            kind = packet[0] >> 4
            if kind == 3:
                found = read(packet, self.version)
                assert isinstance(found, Publish)
                if found.qos == 1:
                    answers.append(puback(found.packet_id))
                elif found.qos == 2:
                    answers.append(numbered(0x50, found.packet_id))
            elif kind == 5:
                answers.append(b"\x62" + packet[1:4])
            elif kind == 6:
                answers.append(b"\x70" + packet[1:4])
        self.send(b"".join(order(answers)))

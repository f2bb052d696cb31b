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
from collections.abc import Callable
from typing import Any

from fluxmq.auth.policy import TopicPolicy
from fluxmq.protocols.mqtt.codec import Limits, encode
from fluxmq.protocols.mqtt.packets import Connect, Publish, Subscribe, Subscription
from fluxmq.protocols.mqtt.properties import Properties
from fluxmq.protocols.mqtt.reasons import ProtocolError
from fluxmq.protocols.mqtt.topics import validate_topic
from fluxmq.routing.subscriptions import SubscriptionTree
from fluxmq.sessions.mqtt.handler import MqttConnectionHandler
from fluxmq.sessions.mqtt.ports import SessionLimits
from fluxmq.sessions.mqtt.session import Grant, MqttClient, Session
from fluxmq.sessions.mqtt.subscribing import identifier_property
from tests.unit.net.broker import Broker
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
        self.output_limit = output_limit
        self.access = policy or TopicPolicy(["#", "$SYS/#"], ["#"])
        hot.reactor.monotonic = lambda: self.clock
        self.reactor = hot.reactor.Reactor(self, receive_bytes, self.limits.max_packet, 8192, 64)
        self.reactor.tally.now = self.clock
        self.sessions: dict[str, Session] = {}
        self.tree: SubscriptionTree[Session, Grant] = SubscriptionTree()
        self.scheduled = False
        self.errors: Counter[int] = Counter()
        self.drops: Counter[str] = Counter()
        self.broker = Broker(self)
        self.handler = MqttConnectionHandler(self.broker, lambda _outcome: "")
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
            made = self.hot.delivery.Target(
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

    def schedule(self) -> None:
        """Another tick is wanted."""
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

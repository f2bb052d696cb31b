"""Clients of the simulated nodes: some that roam with a session, some that publish for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from fluxmq.shards.session_arrivals import PATIENCE_SECONDS
from tests.conformance import wire
from tests.conformance.client import Client
from tests.conformance.received import Packet
from tests.unit.shards.net_of_nodes import TIMEOUT
from tests.unit.shards.node import drain

if TYPE_CHECKING:
    from tests.sim.sessions.world import World

EXPIRY = ((wire.SESSION_EXPIRY_INTERVAL, 1_000_000),)
KEPT_SECONDS = TIMEOUT - 1.0
"""Time for which a node certainly keeps messages for a node that is away."""
CLEARING_SECONDS = 3 * PATIENCE_SECONDS
"""Time after which a clean start has certainly ended the session, or will not."""
FAILURE = 0x80
"""Reason codes from this one on are errors."""


@dataclass
class Attempt:
    """A connection of a client id that is not closed."""

    client: Client
    node: int
    clean: bool


class Message:
    """A message that was published, and the sessions that were subscribed then."""

    def __init__(self, payload: bytes, subscribed: dict[Roamer, int]) -> None:
        self.payload = payload
        self.subscribed = subscribed

    def acknowledged(self) -> None:
        """Every session that was subscribed and has not ended since has to get it."""
        for roamer, session in self.subscribed.items():
            if roamer.session == session:
                roamer.expected.add(self.payload)


class Roamer:
    """A client id with a session, and everything that its connections have received."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.attempts: list[Attempt] = []
        self.newest: Attempt | None = None
        """The connection that the client reads from, unless that is closed."""
        self.current: Client | None = None
        """Its connection, once it is let in."""
        self.session = 0
        """Number of the session; another one begins when CONNACK says so."""
        self.subscribed = False
        self.cleared = False
        """A connection with a clean start may have ended the session."""
        self.cleared_at = 0.0
        """Moment of the last clean start: nodes go on with it for a while, also if it is closed."""
        self.expected: set[bytes] = set()
        self.known: dict[int, float] = {}
        """Moment at which a node last knew of the session, in the node's present life."""
        self.seen: Counter[bytes] = Counter()
        self.unreleased: set[int] = set()
        """Packet identifiers of QoS 2 that have come and are not released."""
        self.unanswered: list[bytes] = []
        """Answers that the client has not sent yet, of the current connection."""

    def is_known_to(self, node: int) -> bool:
        """Return whether a node has to keep messages for the session: it was connected with the
        session's node a moment ago, and since it was subscribed."""
        since = self.world.clock.now - KEPT_SECONDS
        return self.subscribed and self.known.get(node, 0.0) > since

    @property
    def topic(self) -> str:
        """The topic of its own."""
        return f"t/{self.name}"

    def connect(self, node: int, shard: int, clean: bool) -> None:
        """Send CONNECT to a shard, and read no longer from connections that there are."""
        client = self.world.net.nodes[node].client(shard)
        client.client_id = self.name
        packet = wire.connect(wire.V5, self.name, clean=clean, keep_alive=0, props=EXPIRY)
        client.send(packet)
        if clean:
            self.cleared, self.cleared_at = True, self.world.clock.now
        self.newest = Attempt(client, node, clean)
        self.attempts.append(self.newest)
        self.current = None
        self.unanswered.clear()
        self.world.net.run()

    def drop(self) -> None:
        """Close the network connection."""
        if self.current is not None:
            self.current.drop()
            self._pass()

    def pump(self, polite: Callable[[], bool]) -> None:
        """Receive everything, and answer as far as ``polite`` says.

        The newest connection is read last, unless the node has closed it: then another one has taken
        its place, and what that one brings came later.
        """
        came = [(attempt, drain(attempt.client)) for attempt in self.attempts]
        came.sort(key=lambda each: self._turn(each[0]))
        for attempt, packets in came:
            for packet in packets:
                if attempt is self.newest:
                    self._on_packet(attempt, packet, polite)
                elif packet.kind == wire.CONNACK and packet.reason < FAILURE:
                    self._on_late(attempt, packet.session_present)
        self._pass()

    def _turn(self, attempt: Attempt) -> int:
        if attempt is not self.newest:
            return 1
        return 0 if attempt.client.closed else 2

    def _pass(self) -> None:
        """Forget connections that are closed."""
        self.attempts = [each for each in self.attempts if not each.client.closed]
        if self.newest is not None and self.newest.client.closed:
            self.newest = self.current = None
            self.unanswered.clear()

    def _on_packet(self, attempt: Attempt, packet: Packet, polite: Callable[[], bool]) -> None:
        client = attempt.client
        if packet.kind == wire.CONNACK:
            if packet.reason < FAILURE:
                self._let_in(attempt, packet.session_present)
        elif packet.kind == wire.SUBACK:
            self.subscribed = client is self.current
        elif packet.kind == wire.PUBLISH:
            self._on_publish(client, packet, polite)
        elif packet.kind == wire.PUBREL:
            self.unreleased.discard(packet.packet_id)
            self._answer(client, wire.acknowledge(wire.PUBCOMP, packet.packet_id), polite)

    def _on_late(self, attempt: Attempt, present: bool) -> None:
        """Note that a connection was let in of which the client expects nothing any more: it has
        begun another one, and reads from that alone."""
        self.world.note(self.name, "let in late by", attempt.node)
        if not present:
            self._begin_anew()

    def _let_in(self, attempt: Attempt, present: bool) -> None:
        client = self.current = attempt.client
        self.unanswered.clear()
        how = "with its session" if present else "anew"
        self.world.note(self.name, "let in by", attempt.node, how)
        self.world.seen["session present" if present else "session anew"] += 1
        if present and not self.session:
            self.session = 1  # of a connection whose CONNACK was lost
        if not present:
            self._begin_anew()
        elif attempt.clean:
            self.world.violated("session present", f"{self.name} began clean")
        if not self.subscribed:
            filters = (wire.Filter(self.topic, 2), wire.Filter("t/all", 2))
            client.send(wire.subscribe(wire.V5, client.packet_id(), filters))
        if len(self.attempts) == 1 and self.world.is_owned(self.name):
            # Otherwise another connection may have been let in before, or the lease has ended since.
            self.cleared = self.world.clock.now < self.cleared_at + CLEARING_SECONDS
            self.world.pardon(self.name)

    def _begin_anew(self) -> None:
        """Note that the session is another one."""
        if self.subscribed and not self.cleared and not self.world.excused(self.name):
            self.world.violated("session present", f"the session of {self.name} is lost")
        self.session += 1
        self.subscribed = False
        self.expected.clear()
        self.seen.clear()
        self.known.clear()
        self.unreleased.clear()

    def _on_publish(self, client: Client, packet: Packet, polite: Callable[[], bool]) -> None:
        if packet.qos == 2:
            if packet.packet_id not in self.unreleased:
                self.unreleased.add(packet.packet_id)
                self.world.note(self.name, "receives", packet.payload)
                self.seen[packet.payload] += 1
                if self.seen[packet.payload] > 1:
                    self.world.violated("once", f"{self.name} has {packet.payload!r} twice")
            self._answer(client, wire.acknowledge(wire.PUBREC, packet.packet_id), polite)
        else:
            self.seen[packet.payload] += 1
            self._answer(client, wire.acknowledge(wire.PUBACK, packet.packet_id), polite)

    def _answer(self, client: Client, answer: bytes, polite: Callable[[], bool]) -> None:
        if client is not self.current:
            return
        self.unanswered.append(answer)
        if polite():
            self.answer_all()

    def answer_all(self) -> None:
        """Send the answers that the client has not sent yet."""
        answers, self.unanswered = self.unanswered, []
        if self.current is not None and answers:
            self.current.send(*answers)


class Publisher:
    """A client of one node that publishes, and keeps no session."""

    def __init__(self, world: World, node: int) -> None:
        self.world = world
        self.node = node
        self.client: Client | None = None
        self.let_in = False
        self.sent: dict[int, Message] = {}
        """Messages without an answer, by packet identifier."""

    def publish(self, payload: bytes, topic: str, qos: int, to: list[Roamer]) -> None:
        """Publish a message, or connect first."""
        client = self.client
        if client is None:
            client = self.client = self.world.net.nodes[self.node].client(0)
            self.let_in = False
            client.send(wire.connect(wire.V5, f"p{self.node}", clean=True, keep_alive=0))
            self.world.net.run()
            self.pump()
        if self.let_in and self.client is not None:
            packet_id = client.packet_id()
            self.world.look_around()
            subscribed = {each: each.session for each in to if each.is_known_to(self.node)}
            self.sent[packet_id] = Message(payload, subscribed)
            client.send(wire.publish(wire.V5, topic, payload, qos=qos, packet_id=packet_id))
            self.world.seen["published"] += 1

    def pump(self) -> None:
        """Receive answers."""
        client = self.client
        if client is None:
            return
        for packet in drain(client):
            if packet.kind == wire.CONNACK:
                self.let_in = packet.reason < FAILURE
            elif packet.kind in (wire.PUBACK, wire.PUBREC):
                message = self.sent.pop(packet.packet_id)
                self.world.note("answered", message.payload, packet.reason)
                if packet.reason < FAILURE:
                    self.world.seen["acknowledged"] += 1
                    message.acknowledged()
                    if packet.kind == wire.PUBREC:
                        client.send(wire.acknowledge(wire.PUBREL, packet.packet_id))
                else:
                    self.world.seen["refused"] += 1
        if client.closed:
            self.client = None
            self.sent.clear()


def polite_of(random: Random, chance: float) -> Callable[[], bool]:
    """Return a function that says yes with a given chance."""
    return lambda: random.random() < chance

"""SUBSCRIBE and UNSUBSCRIBE, and the retained messages for a new subscription.

SUBACK is sent when every shard of the node knows the filters, so that a later publish reaches the
subscriber from anywhere, and when every queue among them has answered. Retained messages follow as
the connection takes them: an iterator per subscription, advanced a bounded step at a time.
Subscribing again restarts it, unsubscribing ends it, so there are never more of them than
subscriptions.

Source: MQTT 5.0 sections 3.8 to 3.11, 4.7, 4.8, 3.3.1.3.
"""

from __future__ import annotations

from fluxmq.protocols.mqtt.codec import encode
from fluxmq.protocols.mqtt.packet_types import PacketType
from fluxmq.protocols.mqtt.packets import Suback, Subscribe, Subscription, Unsuback, Unsubscribe
from fluxmq.protocols.mqtt.reasons import ProtocolError, Reason
from fluxmq.protocols.mqtt.run import encode_length
from fluxmq.protocols.mqtt.topics import ParsedFilter, validate_filter
from fluxmq.sessions.mqtt.connect_flow import NO_ROOM
from fluxmq.sessions.mqtt.outcomes import reason_of
from fluxmq.sessions.mqtt.ports import MqttBrokerPort, SessionLimits, SubscriptionPort
from fluxmq.sessions.mqtt.queue_subscriptions import is_queue, queue_subscription
from fluxmq.sessions.mqtt.session import (
    CONNECTED,
    Grant,
    MqttClient,
    RetainedFeed,
    Session,
)

FEED_STEP = 256
"""Retained messages examined in one step, so that a large match does not hold up other clients."""


def on_subscribe(broker: MqttBrokerPort, client: MqttClient, packet: Subscribe) -> None:
    """Add subscriptions and answer when they are known everywhere. Raises ProtocolError, and
    UndecidedError before anything is done."""
    session = client.session
    assert session is not None
    check_answer(client, len(packet.subscriptions))
    if client.policy is not None and not client.policy.lasting:
        for wanted in packet.subscriptions:
            may_subscribe(client, wanted.filter)
    if client.connection.version == 4:
        # A bad filter ends the connection here, before any of the others is added.
        for wanted in packet.subscriptions:
            parse_filter(broker.limits, wanted.filter)
    answer = PendingSuback(broker, client, session, packet)
    for index in range(len(packet.subscriptions)):
        add(answer, index)
    broker.connections.pause(client.connection)
    broker.peers.when_known(answer.known)


def parse_filter(limits: SessionLimits, written: bytes) -> ParsedFilter:
    """Parse a filter to subscribe to. Raises ProtocolError."""
    return validate_filter(
        written,
        limits.max_topic_bytes,
        limits.max_topic_levels,
        limits.packets.control_characters,
    )


def check_answer(client: MqttClient, count: int) -> None:
    """Raise ProtocolError when the client would not accept a SUBACK or UNSUBACK of this size
    [MQTT-3.1.2-24].

    Then nothing is done: without an answer the client would ask again.
    """
    size = 3 + count  # packet identifier, no properties
    if 1 + len(encode_length(size)) + size > client.connection.max_packet_out:
        raise ProtocolError(Reason.PACKET_TOO_LARGE, NO_ROOM)


class PendingSuback:
    """A pending SUBACK: ``waiting`` for the shards of the node and for queues, then sent."""

    __slots__ = (
        "broker",
        "client",
        "feeds",
        "identifier",
        "packet",
        "reasons",
        "session",
        "waiting",
    )

    def __init__(
        self, broker: MqttBrokerPort, client: MqttClient, session: Session, packet: Subscribe
    ) -> None:
        identifiers = packet.properties.subscription_identifiers
        self.broker = broker
        self.client = client
        self.session = session
        self.packet = packet
        self.identifier = identifiers[0] if identifiers else 0
        self.reasons = [0] * len(packet.subscriptions)
        self.feeds: dict[bytes, RetainedFeed] = {}
        self.waiting = 1

    def known(self) -> None:
        """Count one of the awaited answers; after the last, persist the subscriptions."""
        self.waiting -= 1
        if not self.waiting and self.client.stage is CONNECTED:
            written = [wanted.filter for wanted in self.packet.subscriptions]
            self.broker.subscriptions.persist(self.session, written, self.kept)

    def kept(self, outcome: int) -> None:
        """Answer the client: its subscriptions are persisted if the session is, or cannot be."""
        client, connection = self.client, self.client.connection
        if client.stage is not CONNECTED:
            return
        if outcome:
            reason = reason_of(outcome, PacketType.SUBACK)
            self.give_up(reason if connection.version == 5 else Reason.UNSPECIFIED_ERROR)
        connection.append(encode(Suback(self.packet.packet_id, self.reasons), connection.version))
        if self.feeds:
            client.feeds = self.feeds if client.feeds is None else client.feeds | self.feeds
            connection.feeding = True
            feed(self.broker, client)
        self.broker.connections.resume(connection)

    def give_up(self, reason: int) -> None:
        """Remove granted subscriptions that cannot be persisted."""
        self.feeds.clear()
        for index, wanted in enumerate(self.packet.subscriptions):
            if self.reasons[index] <= Reason.GRANTED_QOS_2:
                self.reasons[index] = reason
                if wanted.filter in self.session.subscriptions:
                    remove(self.broker.subscriptions, self.session, wanted.filter)


def add(answer: PendingSuback, index: int) -> None:
    """Add one filter of a SUBSCRIBE and note its reason code, for a queue once it has answered."""
    client, session, limits = answer.client, answer.session, answer.broker.limits
    wanted = answer.packet.subscriptions[index]
    try:
        parsed = parse_filter(limits, wanted.filter)
    except ProtocolError as error:
        if error.reason == Reason.MALFORMED_PACKET or client.connection.version == 4:
            raise
        answer.reasons[index] = error.reason
        return
    existing = session.subscriptions.get(wanted.filter)
    if existing is None and len(session.subscriptions) >= limits.max_subscriptions:
        answer.reasons[index] = Reason.QUOTA_EXCEEDED
    elif not may_subscribe(client, wanted.filter):
        answer.reasons[index] = Reason.NOT_AUTHORIZED
    elif is_queue(parsed):
        add_queue(answer, index, parsed)
    else:
        answer.reasons[index] = add_topics(answer, wanted, parsed)


def add_topics(answer: PendingSuback, wanted: Subscription, parsed: ParsedFilter) -> int:
    """Add a filter of topics; return the granted QoS."""
    broker, session, written = answer.broker, answer.session, wanted.filter
    qos = min(wanted.qos, broker.limits.max_qos)
    existing = session.subscriptions.get(written)
    grant = Grant(
        qos, wanted.no_local, wanted.retain_as_published, answer.identifier, parsed.group or b""
    )
    session.subscriptions[written] = grant
    broker.subscriptions.subscribe(session, written, parsed.filter, grant)
    if wants_retained(parsed, wanted, existing):
        answer.feeds[written] = RetainedFeed(
            broker.retained.topics(parsed.filter),
            qos,
            identifier_property(answer.identifier),
            session.client_id.encode() if wanted.no_local else None,
        )
    return qos


def add_queue(answer: PendingSuback, index: int, parsed: ParsedFilter) -> None:
    """Add a filter for a queue, which may answer later. A refused one is removed, and what it
    replaced."""
    broker, session = answer.broker, answer.session
    wanted = answer.packet.subscriptions[index]
    written = wanted.filter
    try:
        taken = queue_subscription(
            parsed,
            wanted,
            answer.packet.properties.user_properties,
            session.client_id,
            answer.client.connection.version,
            broker.limits.max_qos,
            answer.identifier,
        )
    except ProtocolError as error:
        answer.reasons[index] = error.reason
        return
    grant = Grant(taken.qos, subscription_id=answer.identifier, queue=taken)
    # Added at once, so that a session that ends before the queue has answered leaves it as well.
    session.subscriptions[written] = grant
    answer.waiting += 1

    def answered(outcome: int) -> None:
        if not outcome:
            answer.reasons[index] = taken.qos
        else:
            answer.reasons[index] = reason_of(outcome, PacketType.SUBACK)
            if session.subscriptions.get(written) is grant:
                del session.subscriptions[written]
        answer.known()

    broker.queues.subscribe(session, written, taken, answered)


def may_subscribe(client: MqttClient, written: bytes) -> bool:
    """Return whether the client's permissions cover a filter."""
    assert client.policy is not None
    if client.connection.allowed is None and not written.startswith(b"$"):
        return True
    return client.policy.may_subscribe(written.decode())


def wants_retained(parsed: ParsedFilter, wanted: Subscription, existing: Grant | None) -> bool:
    """Apply MQTT 5.0 section 3.3.1.3: never for shared subscriptions, else by Retain Handling."""
    if parsed.group is not None:
        return False
    return wanted.retain_handling == 0 or (wanted.retain_handling == 1 and existing is None)


def identifier_property(identifier: int) -> bytes:
    """Return an encoded Subscription Identifier property; empty for none."""
    return b"\x0b" + encode_length(identifier) if identifier else b""


def feed(broker: MqttBrokerPort, client: MqttClient) -> None:
    """Send retained messages as far as there is room; the connection calls again when drained."""
    connection = client.connection
    session = client.session
    feeds = client.feeds
    if session is None:
        return
    delivery = session.delivery
    for _ in range(FEED_STEP):
        if not feeds:
            client.feeds = None
            connection.feeding = False
            return
        if connection.size * 2 > connection.limit or delivery.pending_count:
            break
        written, current = next(iter(feeds.items()))
        topic = next(current.topics, None)
        if topic is None:
            del feeds[written]
            continue
        run = broker.retained.message(topic)
        if run is None or (current.excluded is not None and run.publisher == current.excluded):
            continue
        qos = min(run.qos, current.qos)
        if qos:
            delivery.enqueue(run, qos, 1, current.subscription_ids, None)
        else:
            delivery.send_now(run, 1, current.subscription_ids)
    if delivery.pending_count:
        # Continues when that is written; if it expires or is too large, nothing else would.
        broker.connections.feed_later(client)
    else:
        # Marks the connection as having output, so that the end of the tick comes back here.
        connection.buffer()


def remove(subscriptions: SubscriptionPort, session: Session, written: bytes) -> None:
    """End a subscription."""
    subscriptions.unsubscribe(session, written)
    del session.subscriptions[written]


def on_unsubscribe(broker: MqttBrokerPort, client: MqttClient, packet: Unsubscribe) -> None:
    """Remove subscriptions."""
    session = client.session
    assert session is not None
    check_answer(client, len(packet.filters))
    reasons: list[int] = []
    for written in packet.filters:
        try:
            validate_filter(written, broker.limits.max_topic_bytes, broker.limits.max_topic_levels)
        except ProtocolError as error:
            if error.reason == Reason.MALFORMED_PACKET or client.connection.version == 4:
                raise
            reasons.append(error.reason)
            continue
        grant = session.subscriptions.get(written)
        if grant is not None:
            remove(broker.subscriptions, session, written)
            if client.feeds is not None:
                client.feeds.pop(written, None)
            reasons.append(Reason.SUCCESS)
        else:
            reasons.append(Reason.NO_SUBSCRIPTION_EXISTED)
    version = client.connection.version

    def kept(outcome: int) -> None:
        if client.stage is not CONNECTED:
            return
        if outcome and version == 5:
            reasons[:] = [reason_of(outcome, PacketType.UNSUBACK)] * len(reasons)
        client.connection.append(encode(Unsuback(packet.packet_id, reasons), version))
        broker.connections.resume(client.connection)

    broker.connections.pause(client.connection)
    broker.subscriptions.persist(session, packet.filters, kept)

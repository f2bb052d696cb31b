"""SUBSCRIBE and UNSUBSCRIBE, and the retained messages that a new subscription gets.

A SUBACK is sent when every shard of the node knows the filters, so that a publish made after it reaches the
subscriber wherever it is made. Retained messages follow as the connection takes them: an iterator per
subscription, advanced a bounded step at a time. Subscribing again begins anew, unsubscribing ends it, so there
are never more of them than subscriptions.

Source: MQTT 5.0 sections 3.8 to 3.11, 4.7, 4.8, 3.3.1.3.
"""

from __future__ import annotations

from fluxmq._hot.run import encode_length
from fluxmq.protocols.mqtt.codec import encode
from fluxmq.protocols.mqtt.packets import Suback, Subscribe, Subscription, Unsuback, Unsubscribe
from fluxmq.protocols.mqtt.reasons import ProtocolError, Reason
from fluxmq.protocols.mqtt.topics import ParsedFilter, validate_filter
from fluxmq.sessions.mqtt.ports import Broker
from fluxmq.sessions.mqtt.session import (
    CONNECTED,
    Client,
    Grant,
    RetainedFeed,
    Session,
)

FEED_STEP = 256
"""Retained messages looked at in one step, so that a large match does not hold up other clients."""


def on_subscribe(broker: Broker, client: Client, packet: Subscribe) -> None:
    """Add subscriptions and answer when they are known everywhere."""
    session = client.session
    assert session is not None
    identifiers = packet.properties.subscription_identifiers
    identifier = identifiers[0] if identifiers else 0
    feeds: dict[bytes, RetainedFeed] = {}
    if client.connection.version == 4:
        # A bad filter ends the connection there: before any of the others is entered.
        for wanted in packet.subscriptions:
            validate_filter(
                wanted.filter, broker.limits.max_topic_bytes, broker.limits.max_topic_levels
            )
    reasons = [
        add(broker, client, session, wanted, identifier, feeds) for wanted in packet.subscriptions
    ]
    connection = client.connection
    broker.pause(connection)

    def known() -> None:
        if client.stage is not CONNECTED:
            return
        connection.append(encode(Suback(packet.packet_id, reasons), connection.version))
        if feeds:
            client.feeds = feeds if client.feeds is None else client.feeds | feeds
            connection.feeding = True
            feed(broker, client)
        broker.resume(connection)

    broker.when_known(known)


def add(
    broker: Broker,
    client: Client,
    session: Session,
    wanted: Subscription,
    identifier: int,
    feeds: dict[bytes, RetainedFeed],
) -> int:
    """One filter of a SUBSCRIBE; its reason code."""
    limits = broker.limits
    written = wanted.filter
    try:
        parsed = validate_filter(written, limits.max_topic_bytes, limits.max_topic_levels)
    except ProtocolError as error:
        if error.reason == Reason.MALFORMED_PACKET or client.connection.version == 4:
            raise
        return error.reason
    existing = session.subscriptions.get(written)
    if existing is None and len(session.subscriptions) >= limits.max_subscriptions:
        return Reason.QUOTA_EXCEEDED
    if not may_subscribe(client, written):
        return Reason.NOT_AUTHORIZED
    qos = min(wanted.qos, limits.max_qos)
    grant = Grant(qos, wanted.no_local, wanted.retain_as_published, identifier, parsed.group or b"")
    session.subscriptions[written] = grant
    broker.subscribe(session, written, parsed, grant)
    if wants_retained(parsed, wanted, existing):
        feeds[written] = RetainedFeed(
            broker.retained_topics(parsed.filter),
            qos,
            identifier_property(identifier),
            session.client_id.encode() if wanted.no_local else None,
        )
    return qos


def may_subscribe(client: Client, written: bytes) -> bool:
    """Whether the client's permissions cover a filter."""
    assert client.policy is not None
    if client.connection.allowed is None and not written.startswith(b"$"):
        return True
    return client.policy.may_subscribe(written.decode())


def wants_retained(parsed: ParsedFilter, wanted: Subscription, existing: Grant | None) -> bool:
    """MQTT 5.0 section 3.3.1.3: never for shared subscriptions, else by Retain Handling."""
    if parsed.group is not None:
        return False
    return wanted.retain_handling == 0 or (wanted.retain_handling == 1 and existing is None)


def identifier_property(identifier: int) -> bytes:
    """A Subscription Identifier property, encoded; empty for none."""
    return b"\x0b" + encode_length(identifier) if identifier else b""


def feed(broker: Broker, client: Client) -> None:
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
        run = broker.retained_message(topic)
        if run is None or (current.excluded is not None and run.publisher == current.excluded):
            continue
        qos = min(run.qos, current.qos)
        if qos:
            delivery.enqueue(run, qos, 1, current.subscription_ids, None)
        else:
            delivery.send_now(run, 1, current.subscription_ids)
    if delivery.pending_count:
        # Comes back here when that is written; should it expire or be too large, nothing else would.
        broker.feed_later(client)
    else:
        # Marks the connection as having output, so that the end of the tick comes back here.
        connection.buffer()


def on_unsubscribe(broker: Broker, client: Client, packet: Unsubscribe) -> None:
    """Remove subscriptions."""
    session = client.session
    assert session is not None
    reasons: list[int] = []
    for written in packet.filters:
        try:
            validate_filter(written, broker.limits.max_topic_bytes, broker.limits.max_topic_levels)
        except ProtocolError as error:
            if error.reason == Reason.MALFORMED_PACKET or client.connection.version == 4:
                raise
            reasons.append(error.reason)
            continue
        if written in session.subscriptions:
            broker.unsubscribe(session, written)
            del session.subscriptions[written]
            if client.feeds is not None:
                client.feeds.pop(written, None)
            reasons.append(Reason.SUCCESS)
        else:
            reasons.append(Reason.NO_SUBSCRIPTION_EXISTED)
    version = client.connection.version
    client.connection.append(encode(Unsuback(packet.packet_id, reasons), version))

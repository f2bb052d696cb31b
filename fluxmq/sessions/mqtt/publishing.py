"""PUBLISH from a client, where the hot path asks: properties, aliases, permissions, retain, QoS 2.

The hot path calls ``on_publish`` once per run that is not plain; a run that passes is routed and answered by
it. Wills are published here too.

Source: MQTT 5.0 sections 3.3, 4.3.3, 4.9, 3.1.2.5.
"""

from __future__ import annotations

from fluxmq._hot.run import Run, message_run
from fluxmq.protocols.mqtt.packets import Puback, Pubrec
from fluxmq.protocols.mqtt.properties import PublishProperties, parse_publish_properties
from fluxmq.protocols.mqtt.reasons import ProtocolError, Reason
from fluxmq.protocols.mqtt.topics import validate_topic
from fluxmq.sessions.mqtt.connecting import may_publish, send_explained
from fluxmq.sessions.mqtt.ports import Broker
from fluxmq.sessions.mqtt.session import Client, Session, Will

ALLOWED_MAX = 1024
"""Topics a connection remembers as permitted; beyond it the memory starts anew."""
ALLOWED_BYTES_MAX = 256
"""Longest topic remembered: a connection may make us keep a quarter of a megabyte, not four."""


def on_publish(broker: Broker, client: Client, run: Run, raw: bytes) -> bool:
    """Check a run that is not plain. True: route and answer it. Raises ProtocolError."""
    session = client.session
    assert session is not None
    if raw:
        apply_properties(
            broker,
            client,
            run,
            parse_publish_properties(raw, broker.limits.packets.max_user_properties),
        )
    elif not run.topic:
        raise ProtocolError(
            Reason.PROTOCOL_ERROR if run.version == 5 else Reason.MALFORMED_PACKET,
            "empty topic name",
        )
    if not permitted(broker, client, run):
        deny(broker, client, run)
        return False
    if run.retain:
        # Kept before it is routed, which is where the other topics are looked at.
        validate_topic(run.topic, broker.limits.max_topic_bytes, broker.limits.max_topic_levels)
    if run.qos == 2 and not remember(broker, client, session, run):
        return False
    if run.retain:
        broker.retain(run)
    return True


def apply_properties(
    broker: Broker, client: Client, run: Run, properties: PublishProperties
) -> None:
    """Resolve the topic alias and note what subscribers get."""
    alias = properties.topic_alias
    if alias is not None:
        run.verbatim = False
        if alias > broker.limits.topic_alias_maximum:
            raise ProtocolError(Reason.TOPIC_ALIAS_INVALID, "topic alias above the maximum")
        if client.aliases is None:
            client.aliases = {}
        if run.topic:
            client.aliases[alias] = run.topic
        else:
            known = client.aliases.get(alias)
            if known is None:
                raise ProtocolError(Reason.PROTOCOL_ERROR, "unknown topic alias")
            run.topic = known
            run.largest += len(known)
    elif not run.topic:
        raise ProtocolError(Reason.PROTOCOL_ERROR, "empty topic name without alias")
    run.properties = properties.forward
    if properties.message_expiry is not None:
        run.verbatim = False
        run.deadline = broker.now() + properties.message_expiry


def permitted(broker: Broker, client: Client, run: Run) -> bool:
    """Whether the client may publish to the run's topic. Raises ProtocolError for a bad topic."""
    connection = client.connection
    topic = run.topic
    if connection.allowed is None:
        if not topic.startswith(b"$"):
            return True
    elif topic in connection.allowed:
        return True
    validate_topic(topic, broker.limits.max_topic_bytes, broker.limits.max_topic_levels)
    if not may_publish(client, topic):
        return False
    if connection.allowed is not None and len(topic) <= ALLOWED_BYTES_MAX:
        if len(connection.allowed) >= ALLOWED_MAX:
            connection.allowed.clear()
        connection.allowed.add(topic)
    return True


def deny(broker: Broker, client: Client, run: Run) -> None:
    """Answer a run that may not be published (MQTT 3.1.1 has no words for it but closing)."""
    broker.count_drop("no_permission", run.count)
    if run.version == 4:
        raise ProtocolError(Reason.NOT_AUTHORIZED, "publish is not permitted")
    kind = Puback if run.qos == 1 else Pubrec
    # Request Problem Information 0 rules the text out here [MQTT-3.1.2-29].
    text = "publish is not permitted" if client.problem_information else ""
    if run.qos:
        for packet_id in run.packet_ids():
            send_explained(client.connection, kind(packet_id, Reason.NOT_AUTHORIZED), text)


def remember(broker: Broker, client: Client, session: Session, run: Run) -> bool:
    """QoS 2: note packet identifiers so that a repeated PUBLISH is not routed twice.

    True when all are new. Otherwise the messages are handled here one by one.
    """
    packet_ids = run.packet_ids()
    if session.received is None:
        session.received = set()
    received = session.received
    fresh = set(packet_ids)
    if len(fresh) == len(packet_ids) and not fresh & received:
        if len(received) + len(fresh) > broker.limits.max_inflight:
            raise ProtocolError(Reason.RECEIVE_MAXIMUM_EXCEEDED, "too many unreleased messages")
        received |= fresh
        return True
    run.detach()
    offset = run.start
    for packet_id in packet_ids:
        end = run.skip(offset, 1)
        if packet_id not in received:
            if len(received) >= broker.limits.max_inflight:
                raise ProtocolError(Reason.RECEIVE_MAXIMUM_EXCEEDED, "too many unreleased messages")
            received.add(packet_id)
            piece = run.part(offset, end, 1)
            if run.retain:
                broker.retain(piece)
            if not broker.publish(piece):
                raise ProtocolError(Reason.TOPIC_NAME_INVALID, "topic name is not valid")
        client.connection.append(b"\x50\x02" + packet_id.to_bytes(2, "big"))
        offset = end
    return False


def publish_will(broker: Broker, will: Will) -> None:
    """Publish a will as its client would have."""
    deadline = broker.now() + will.expiry if will.expiry is not None else 0.0
    run = message_run(
        will.topic, will.payload, will.qos, int(will.retain), will.properties, deadline
    )
    if will.retain:
        broker.retain(run)
    broker.publish(run)
    broker.will_published()

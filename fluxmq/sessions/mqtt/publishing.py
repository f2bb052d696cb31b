"""Client PUBLISH off the hot path: properties, aliases, permissions, retain, QoS 2, queues.

The hot path calls ``on_publish`` once per run that is not plain; it routes and answers a run that
passes. A ``control`` run is answered only: it was a command to a queue, or its new messages are
routed already. Wills are published here too.

Source: MQTT 5.0 sections 3.3, 4.3.3, 4.9, 3.1.2.5.
"""

from __future__ import annotations

from fluxmq.protocols.mqtt.identifiers import IdentifierRanges
from fluxmq.protocols.mqtt.packets import Puback, Pubrec
from fluxmq.protocols.mqtt.properties import PublishProperties, parse_publish_properties
from fluxmq.protocols.mqtt.reasons import ProtocolError, Reason
from fluxmq.protocols.mqtt.run import PublishRun, message_run
from fluxmq.protocols.mqtt.topics import validate_topic
from fluxmq.routing.queue_addresses import PREFIXES, MalformedAddressError, parse_publish
from fluxmq.sessions.mqtt.addressed import Addressed
from fluxmq.sessions.mqtt.connect_flow import allows_publish, may_publish, send_explained
from fluxmq.sessions.mqtt.ports import MqttBrokerPort, SessionLimits
from fluxmq.sessions.mqtt.queue_properties import queue_options, strip_reserved
from fluxmq.sessions.mqtt.session import MqttClient, Session, Will
from fluxmq.sessions.mqtt.settlement import parse_settlement

ALLOWED_MAX = 1024
"""Permitted topics cached per connection; beyond them the cache is cleared."""
ALLOWED_BYTES_MAX = 256
"""Longest topic cached: a connection may make us keep a quarter of a megabyte, not four."""

NOT_PERMITTED = "publish is not permitted"


def on_publish(broker: MqttBrokerPort, client: MqttClient, run: PublishRun, raw: bytes) -> bool:
    """Check a run that is not plain. True: route and answer it (a ``control`` run: answer it).
    Raises ProtocolError, and UndecidedError before anything is done."""
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
    if run.topic.startswith(PREFIXES):
        return queue_publish(broker, client, session, run)
    if not permitted(broker.limits, client, run):
        return refuse(broker, client, run, Reason.NOT_AUTHORIZED, NOT_PERMITTED)
    if run.retain:
        # Retained before it is routed, where other topics are checked.
        check_topic(broker.limits, run.topic)
    if run.qos == 2:
        repeated = remember(broker.limits, session, run)
        if repeated is not None:
            return publish_pieces(broker, run, repeated)
    if run.retain:
        retain(broker, run)
    return True


def queue_publish(
    broker: MqttBrokerPort, client: MqttClient, session: Session, run: PublishRun
) -> bool:
    """Handle a run addressed to a queue: messages for it, or a command. Raises ProtocolError."""
    known = client.addressed
    if (
        known is not None
        and not run.properties
        and run.qos != 2
        and known.knows(run.topic, client.policy, broker.limits)
    ):
        run.retain = 0
        return True
    allowed = permitted(broker.limits, client, run)
    settlement = None
    try:
        address = parse_publish(run.topic)
        assert address is not None, "asked of queues only"
        if not allowed and not (address.verb and consumes(session, address.queue)):
            return refuse(broker, client, run, Reason.NOT_AUTHORIZED, NOT_PERMITTED)
        if not address.verb:
            run.options = queue_options(run.properties)
            if known is None:
                known = client.addressed = Addressed()
            if client.policy is not None and client.policy.lasting:
                known.add(run.topic, client.policy, broker.limits)
        else:
            settlement = parse_settlement(address, run.properties)
    except MalformedAddressError as error:
        return refuse(broker, client, run, Reason.TOPIC_NAME_INVALID, str(error))
    except ProtocolError as error:
        return refuse(broker, client, run, error.reason, error.text)
    # A queue does not retain its last message.
    run.retain = 0
    own = strip_reserved(run.properties)
    run.verbatim = run.verbatim and own is run.properties
    run.properties = own
    if run.qos == 2:
        repeated = remember(broker.limits, session, run)
        if repeated is not None and (settlement is None or not repeated):
            return publish_pieces(broker, run, repeated)
    if settlement is not None:
        run.control = True
        # All messages of a run have the same properties: they are one command, given once.
        done = broker.reactor.hold().done if run.qos else ignore
        broker.queues.settle(client, settlement, done)
    return True


def consumes(session: Session, queue: bytes) -> bool:
    """Return whether the session is a consumer of the queue, and so may settle its deliveries."""
    return any(
        grant.queue is not None and grant.queue.queue == queue
        for grant in session.subscriptions.values()
    )


def ignore(_reason: int) -> None:
    """Ignore the outcome of a QoS 0 command."""


def apply_properties(
    broker: MqttBrokerPort, client: MqttClient, run: PublishRun, properties: PublishProperties
) -> None:
    """Resolve the topic alias and set the properties for subscribers."""
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


def permitted(limits: SessionLimits, client: MqttClient, run: PublishRun) -> bool:
    """Return whether the client may publish to the run's topic. Raises ProtocolError for a bad
    topic, and UndecidedError."""
    connection = client.connection
    topic = run.topic
    if connection.allowed is None:
        if not topic.startswith(b"$"):
            return True
    elif topic in connection.allowed:
        return True
    check_topic(limits, topic)
    if not may_publish(client, topic):
        return False
    lasting = client.policy is not None and client.policy.lasting
    if lasting and connection.allowed is not None and len(topic) <= ALLOWED_BYTES_MAX:
        if len(connection.allowed) >= ALLOWED_MAX:
            connection.allowed.clear()
        connection.allowed.add(topic)
    return True


def check_topic(limits: SessionLimits, topic: bytes) -> None:
    """Raise ProtocolError unless a topic name may be published to at all."""
    validate_topic(
        topic,
        limits.max_topic_bytes,
        limits.max_topic_levels,
        limits.packets.control_characters,
    )


def refuse(
    broker: MqttBrokerPort, client: MqttClient, run: PublishRun, reason: int, text: str
) -> bool:
    """Answer a run that may not be published.

    MQTT 3.1.1 has no error for it: it is acknowledged all the same, unless the settings say to
    disconnect. A disconnected client republishes unacknowledged messages, is refused again, and
    never makes progress.

    Return whether the hot path should answer: for 3.1.1, and while an earlier answer is pending.
    """
    denied = reason == Reason.NOT_AUTHORIZED
    broker.counts.messages_dropped("no_permission" if denied else "queue_refused", run.count)
    if run.version == 4:
        if not broker.limits.acknowledge_refused:
            raise ProtocolError(reason, text)
        broker.counts.client_error(client, reason, text)
        run.control = True
        return run.qos > 0
    if not run.qos:
        return False
    if client.connection.pending_acks:
        # Answers keep the order of the publishes [MQTT-4.6.0-2].
        run.control = True
        broker.reactor.hold().done(reason)
        return True
    kind = Puback if run.qos == 1 else Pubrec
    # Request Problem Information 0 forbids the text here [MQTT-3.1.2-29].
    told = text if client.problem_information else ""
    for packet_id in run.packet_ids():
        send_explained(client.connection, kind(packet_id, reason), told)
    return False


def remember(limits: SessionLimits, session: Session, run: PublishRun) -> list[PublishRun] | None:
    """Record packet identifiers of QoS 2 so that a repeated PUBLISH is not routed twice.

    Return None when all are new; otherwise the new messages, one by one.
    """
    ranges = run.packet_id_ranges()
    if session.received is None:
        session.received = IdentifierRanges()
    received = session.received
    fresh = IdentifierRanges()
    repeated = IdentifierRanges()
    for first, count in ranges:
        if received.overlaps(first, count):
            for packet_id in range(first, first + count):
                (repeated if received.has(packet_id) else fresh).add(packet_id, 1)
        else:
            fresh.add(first, count)
    if received.count + fresh.count > limits.max_inflight:
        raise ProtocolError(Reason.RECEIVE_MAXIMUM_EXCEEDED, "too many unreleased messages")
    journal = session.delivery.durable
    if journal is not None:
        journal.repeated(repeated)
        journal.received(fresh)
    if fresh.count == run.count:
        for first, count in ranges:
            received.add(first, count)
        return None
    run.detach()
    pieces = []
    offset = run.start
    for packet_id in run.packet_ids():
        end = run.skip(offset, 1)
        if not received.has(packet_id):
            received.add(packet_id, 1)
            pieces.append(run.part(offset, end, 1))
        offset = end
    return pieces


def retain(broker: MqttBrokerPort, run: PublishRun) -> None:
    """Retain the run's last message, unless that is over a limit."""
    if not broker.retained.retain(run):
        broker.counts.messages_dropped("retained_full", 1)


def publish_pieces(broker: MqttBrokerPort, run: PublishRun, pieces: list[PublishRun]) -> bool:
    """Route the new messages of a run; the whole run is then answered, repetitions included."""
    reactor = broker.reactor
    for piece in pieces:
        if piece.retain:
            retain(broker, piece)
        if reactor.publish_run(piece) < 0:
            raise ProtocolError(Reason.TOPIC_NAME_INVALID, "topic name is not valid")
    run.control = True
    return True


def publish_will(broker: MqttBrokerPort, client_id: str, principal: str, will: Will) -> None:
    """Publish a client's will if it may publish that now."""
    policy = broker.authentication.will_policy(
        client_id, principal, will.without_user, will.backend
    )
    if policy is None or not allows_publish(policy, will.topic):
        broker.counts.will_refused(client_id, principal, will)
        return
    deadline = broker.now() + will.expiry if will.expiry is not None else 0.0
    queued = will.topic.startswith(PREFIXES)
    will_retained = will.retain and not queued
    properties = strip_reserved(will.properties) if queued else will.properties
    run = message_run(will.topic, will.payload, will.qos, int(will_retained), properties, deadline)
    if queued:
        run.options = queue_options(properties)
    if will_retained:
        retain(broker, run)
    broker.reactor.publish_run(run)
    broker.counts.will_published()

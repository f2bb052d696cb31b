"""Exactly once: sections 3.5 to 3.7, 4.3.3 and 4.4."""

from __future__ import annotations

import pytest

from tests.conformance import wire
from tests.conformance.client import payloads
from tests.conformance.conftest import Mqtt
from tests.conformance.test_mqtt_qos1 import persistent
from tests.conformance.wire import V5


@pytest.mark.statement(
    "v5:4.3.3-8", "v5:4.3.3-11", "v5:3.3.4-1", "v5:2.2.1-5", "v5:3.5.2-1", "v5:3.7.2-1",
    "v4:4.3.3-2", "v4:3.3.4-1", "v4:2.3.1-6",
)  # fmt: skip
@pytest.mark.parametrize("packet_id", [1, 256, 0xFFFF])
def test_receiving_handshake(mqtt: Mqtt, version: int, packet_id: int) -> None:
    """PUBLISH, PUBREC, PUBREL, PUBCOMP under one identifier."""
    client = mqtt.connect(version)
    client.send(wire.publish(version, mqtt.topic(), b"x", qos=2, packet_id=packet_id))
    pubrec = client.expect(wire.PUBREC)
    assert pubrec.packet_id == packet_id
    assert pubrec.reason in (0x00, 0x10)
    client.send(wire.acknowledge(wire.PUBREL, packet_id))
    pubcomp = client.expect(wire.PUBCOMP)
    assert (pubcomp.packet_id, pubcomp.reason) == (packet_id, 0)
    assert client.ping() == []


@pytest.mark.statement("v5:4.3.3-10", "v4:4.3.3-2")
def test_repeated_publish_is_one_message(mqtt: Mqtt, version: int) -> None:
    """Until PUBREL the same identifier is the same message: PUBREC each time, one delivery."""
    topic = mqtt.topic()
    subscriber = mqtt.subscriber(version, topic, qos=2)
    client = mqtt.connect(version)
    for dup in (False, True, True):
        client.send(wire.publish(version, topic, b"x", qos=2, packet_id=3, dup=dup))
        pubrec = client.expect(wire.PUBREC)
        assert (pubrec.packet_id, pubrec.reason & 0x80) == (3, 0)
    client.send(wire.acknowledge(wire.PUBREL, 3))
    client.expect(wire.PUBCOMP)
    client.publish(topic, b"marker", qos=2)
    assert payloads(subscriber.receive_until(b"marker")) == [b"x"]


@pytest.mark.statement("v5:4.3.3-12", "v4:4.3.3-2")
@pytest.mark.parametrize("dup", [False, True])
def test_identifier_after_pubcomp_is_a_new_message(mqtt: Mqtt, version: int, dup: bool) -> None:
    """After PUBCOMP the identifier is free, whatever DUP says."""
    topic = mqtt.topic()
    subscriber = mqtt.subscriber(version, topic, qos=2)
    client = mqtt.connect(version)
    client.publish(topic, b"first", qos=2, packet_id=3)
    client.publish(topic, b"second", qos=2, packet_id=3, dup=dup)
    assert payloads([subscriber.receive(), subscriber.receive()]) == [b"first", b"second"]


def test_message_is_routed_on_publish(fluxmq: Mqtt, version: int) -> None:
    """FluxMQ delivers when it has accepted the message, without waiting for PUBREL (4.3.3)."""
    topic = fluxmq.topic()
    subscriber = fluxmq.subscriber(version, topic, qos=2)
    client = fluxmq.connect(version)
    client.send(wire.publish(version, topic, b"x", qos=2, packet_id=3))
    client.expect(wire.PUBREC)
    assert subscriber.receive().payload == b"x"


@pytest.mark.statement("v5:4.3.3-11", "v4:4.3.3-2", "v5:3.7.2-1")
def test_pubrel_is_always_answered(mqtt: Mqtt, version: int) -> None:
    """A PUBREL that nothing is known of gets its PUBCOMP; in 5.0 with 0x92."""
    client = mqtt.connect(version)
    client.send(wire.acknowledge(wire.PUBREL, 77))
    pubcomp = client.expect(wire.PUBCOMP)
    assert (pubcomp.packet_id, pubcomp.reason) == (77, 0x92 if version == V5 else 0)


@pytest.mark.statement("v5:3.6.1-1", "v4:3.6.1-1")
@pytest.mark.parametrize("flags", [0, 1, 3, 6, 10, 15])
def test_pubrel_flags(mqtt: Mqtt, version: int, flags: int) -> None:
    """PUBREL's flag bits are 0010 and nothing else."""
    client = mqtt.connect(version)
    client.send(wire.publish(version, mqtt.topic(), b"x", qos=2, packet_id=1))
    client.expect(wire.PUBREC)
    client.send(wire.frame(wire.PUBREL << 4 | flags, b"\0\1"))
    client.expect_error(0x81)


@pytest.mark.statement(
    "v5:4.3.3-1", "v5:4.3.3-2", "v5:4.3.3-4", "v5:3.6.2-1", "v4:4.3.3-1", "v5:3.3.1-3"
)
def test_sending_handshake(mqtt: Mqtt, version: int) -> None:
    """The server as sender: PUBLISH with DUP 0, PUBREL to the PUBREC, nothing after PUBCOMP."""
    topic = mqtt.topic()
    subscriber = mqtt.subscriber(version, topic, qos=2)
    mqtt.connect(version).publish(topic, b"x", qos=2)
    message = subscriber.expect(wire.PUBLISH)
    assert (message.qos, message.dup) == (2, False)
    assert subscriber.ping() == []
    subscriber.send(wire.acknowledge(wire.PUBREC, message.packet_id))
    pubrel = subscriber.expect(wire.PUBREL)
    assert (pubrel.packet_id, pubrel.reason) == (message.packet_id, 0)
    subscriber.send(wire.acknowledge(wire.PUBCOMP, message.packet_id))
    assert subscriber.ping() == []


@pytest.mark.statement("v5:2.2.1-4", "v4:2.3.1-4", "v5:4.3.3-1", "v4:4.3.3-1")
def test_identifier_is_used_until_pubcomp(mqtt: Mqtt, version: int) -> None:
    """Between PUBREC and PUBCOMP the identifier is not given to another message."""
    topic = mqtt.topic()
    subscriber = mqtt.subscriber(version, topic, qos=2)
    publisher = mqtt.connect(version)
    held = []
    for number in range(10):
        publisher.publish(topic, b"%d" % number, qos=2)
        message = subscriber.expect(wire.PUBLISH)
        subscriber.send(wire.acknowledge(wire.PUBREC, message.packet_id))
        subscriber.expect(wire.PUBREL)
        held.append(message.packet_id)
    assert len(set(held)) == 10


@pytest.mark.statement("v5:4.3.3-3", "v5:4.4.0-1", "v4:4.3.3-1", "v4:4.4.0-1", "v5:3.3.1-1")
def test_publish_is_sent_again_before_pubrec(mqtt: Mqtt, version: int) -> None:
    """Without a PUBREC the message comes again, with DUP and its identifier."""
    topic = mqtt.topic()
    subscriber = persistent(mqtt, version)
    subscriber.subscribe(topic, qos=2)
    mqtt.connect(version).publish(topic, b"x", qos=2)
    first = subscriber.expect(wire.PUBLISH)
    subscriber.drop()
    subscriber = persistent(mqtt, version, subscriber.client_id)
    second = subscriber.receive()
    assert (second.packet_id, second.payload, second.dup) == (first.packet_id, b"x", True)


@pytest.mark.statement(
    "v5:4.3.3-5", "v5:4.3.3-6", "v5:4.4.0-1", "v4:4.3.3-1", "v4:4.4.0-1", "v4:2.3.1-3"
)
def test_pubrel_is_sent_again_before_pubcomp(mqtt: Mqtt, version: int) -> None:
    """Once PUBREC was received only PUBREL is repeated, never the message."""
    topic = mqtt.topic()
    subscriber = persistent(mqtt, version)
    subscriber.subscribe(topic, qos=2)
    mqtt.connect(version).publish(topic, b"x", qos=2)
    message = subscriber.expect(wire.PUBLISH)
    subscriber.send(wire.acknowledge(wire.PUBREC, message.packet_id))
    subscriber.expect(wire.PUBREL)
    for _ in range(2):
        subscriber.drop()
        subscriber = persistent(mqtt, version, subscriber.client_id)
        assert subscriber.expect(wire.PUBREL).packet_id == message.packet_id
    subscriber.send(wire.acknowledge(wire.PUBCOMP, message.packet_id))
    assert subscriber.ping() == []
    subscriber.drop()
    assert persistent(mqtt, version, subscriber.client_id).ping() == []


@pytest.mark.statement("v5:4.6.0-1", "v4:4.6.0-1", "v4:4.6.0-4")
def test_mixed_states_are_sent_again_in_order(mqtt: Mqtt, version: int) -> None:
    """Messages and releases are repeated in the order in which they were sent."""
    topic = mqtt.topic()
    subscriber = persistent(mqtt, version)
    subscriber.subscribe(topic, qos=2)
    publisher = mqtt.connect(version)
    for number in range(6):
        publisher.publish(topic, b"%d" % number, qos=2)
    messages = [subscriber.expect(wire.PUBLISH) for _ in range(6)]
    for message in messages[:2]:
        subscriber.send(wire.acknowledge(wire.PUBREC, message.packet_id))
    for message in messages[:2]:
        assert subscriber.expect(wire.PUBREL).packet_id == message.packet_id
    subscriber.drop()
    subscriber = persistent(mqtt, version, subscriber.client_id)
    again = [subscriber.next() for _ in range(6)]
    releases = [packet for packet in again if packet.kind == wire.PUBREL]
    resent = [packet for packet in again if packet.kind == wire.PUBLISH]
    assert [packet.packet_id for packet in releases] == [m.packet_id for m in messages[:2]]
    assert [packet.packet_id for packet in resent] == [m.packet_id for m in messages[2:]]
    assert all(packet.dup for packet in resent)


@pytest.mark.statement("v5:4.4.0-2")
@pytest.mark.parametrize("reason", [0x80, 0x83, 0x87, 0x99])
def test_refusal_by_the_subscriber_ends_the_handshake(mqtt: Mqtt, reason: int) -> None:
    """A PUBREC of 0x80 or above: no PUBREL, nothing sent again, the identifier free."""
    topic = mqtt.topic()
    subscriber = persistent(mqtt, V5)
    subscriber.subscribe(topic, qos=2)
    mqtt.connect(V5).publish(topic, b"unwanted", qos=2)
    message = subscriber.expect(wire.PUBLISH)
    subscriber.send(wire.acknowledge(wire.PUBREC, message.packet_id, reason, []))
    assert subscriber.ping() == []
    subscriber.drop()
    assert persistent(mqtt, V5, subscriber.client_id).ping() == []


@pytest.mark.statement("v5:4.3.3-10", "v4:4.3.3-2", "v5:4.1.0-1", "v4:4.1.0-1", "v5:3.1.2-23")
def test_receiving_state_survives_a_reconnect(mqtt: Mqtt, version: int) -> None:
    """A PUBLISH repeated after a reconnect is recognised: the subscriber has one message."""
    topic = mqtt.topic()
    subscriber = mqtt.subscriber(version, topic, qos=2)
    client = persistent(mqtt, version)
    client.send(wire.publish(version, topic, b"x", qos=2, packet_id=3))
    client.expect(wire.PUBREC)
    client.drop()
    client = persistent(mqtt, version, client.client_id)
    client.send(wire.publish(version, topic, b"x", qos=2, packet_id=3, dup=True))
    assert client.expect(wire.PUBREC).packet_id == 3
    client.drop()
    client = persistent(mqtt, version, client.client_id)
    client.send(wire.acknowledge(wire.PUBREL, 3))
    pubcomp = client.expect(wire.PUBCOMP)
    assert (pubcomp.packet_id, pubcomp.reason) == (3, 0)
    client.publish(topic, b"marker", qos=2)
    assert payloads(subscriber.receive_until(b"marker")) == [b"x"]


@pytest.mark.statement("v5:4.3.3-7")
def test_expiry_is_not_applied_once_sent(mqtt: Mqtt) -> None:
    """A message sent before it expired is still sent again after."""
    topic = mqtt.topic()
    subscriber = persistent(mqtt, V5)
    subscriber.subscribe(topic, qos=2)
    publisher = mqtt.connect(V5)
    publisher.publish(topic, b"x", qos=2, props=[(wire.MESSAGE_EXPIRY_INTERVAL, 1)])
    first = subscriber.expect(wire.PUBLISH)
    subscriber.drop()
    publisher.quiet(1.3)
    again = persistent(mqtt, V5, subscriber.client_id).receive()
    assert (again.packet_id, again.payload, again.dup) == (first.packet_id, b"x", True)


@pytest.mark.statement("v5:4.3.3-13")
def test_handshake_goes_on_after_expiry(mqtt: Mqtt) -> None:
    """A publisher that releases its message after its expiry still gets PUBCOMP."""
    client = mqtt.connect(V5)
    props = [(wire.MESSAGE_EXPIRY_INTERVAL, 1)]
    client.send(wire.publish(V5, mqtt.topic(), b"x", qos=2, packet_id=4, props=props))
    client.expect(wire.PUBREC)
    client.quiet(1.3)
    client.send(wire.acknowledge(wire.PUBREL, 4))
    pubcomp = client.expect(wire.PUBCOMP)
    assert (pubcomp.packet_id, pubcomp.reason) == (4, 0)

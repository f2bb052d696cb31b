"""At least once: sections 3.4, 4.3.2 and 4.4."""

from __future__ import annotations

import pytest

from tests.conformance import wire
from tests.conformance.client import Client, payloads
from tests.conformance.conftest import Mqtt
from tests.conformance.wire import V5

KEEP = [(wire.SESSION_EXPIRY_INTERVAL, 120)]


def persistent(mqtt: Mqtt, version: int, client_id: str | None = None, **fields: object) -> Client:
    """A connection to a session that outlives it."""
    props = [*(KEEP if version == V5 else []), *fields.pop("props", [])]  # type: ignore[misc]
    return mqtt.connect(version, client_id, clean=False, props=props, **fields)


@pytest.mark.statement(
    "v5:4.3.2-4", "v5:2.2.1-5", "v5:3.3.4-1", "v5:3.4.2-1", "v4:4.3.2-2", "v4:2.3.1-6", "v4:3.3.4-1"
)
@pytest.mark.parametrize("packet_id", [1, 2, 255, 256, 0x7FFF, 0x8000, 0xFFFF])
def test_puback_carries_the_identifier(mqtt: Mqtt, version: int, packet_id: int) -> None:
    """One PUBACK with the identifier of the PUBLISH, whatever number the client chose."""
    client = mqtt.connect(version)
    client.send(wire.publish(version, mqtt.topic(), b"x", qos=1, packet_id=packet_id))
    puback = client.expect(wire.PUBACK)
    assert puback.packet_id == packet_id
    assert puback.reason in (0x00, 0x10)
    assert client.ping() == []


@pytest.mark.statement("v5:4.3.2-5", "v4:4.3.2-2")
@pytest.mark.parametrize("dup", [False, True])
def test_identifier_after_puback_is_a_new_message(mqtt: Mqtt, version: int, dup: bool) -> None:
    """Once acknowledged, the same identifier means another message, with DUP or without."""
    topic = mqtt.topic()
    subscriber = mqtt.subscriber(version, topic, qos=1)
    client = mqtt.connect(version)
    client.publish(topic, b"first", qos=1, packet_id=5)
    client.publish(topic, b"second", qos=1, packet_id=5, dup=dup)
    assert payloads([subscriber.receive(), subscriber.receive()]) == [b"first", b"second"]


@pytest.mark.statement("v4:2.3.1-6", "v5:2.2.1-5", "v4:4.6.0-2")
def test_pubacks_in_the_order_of_the_messages(mqtt: Mqtt, version: int) -> None:
    """Pipelined messages on different topics are acknowledged in order."""
    client = mqtt.connect(version)
    topics = [mqtt.topic() for _ in range(3)]
    order = [9, 3, 200, 1, 77, 65535, 2]
    client.send(
        *(
            wire.publish(version, topics[i % 3], b"x", qos=1, packet_id=packet_id)
            for i, packet_id in enumerate(order)
        )
    )
    assert [client.expect(wire.PUBACK).packet_id for _ in order] == order


@pytest.mark.statement(
    "v5:2.2.1-4", "v5:4.3.2-1", "v5:4.3.2-2", "v4:2.3.1-4", "v4:4.3.2-1", "v4:2.3.1-1"
)
def test_identifiers_in_flight_are_distinct(mqtt: Mqtt, version: int) -> None:
    """The server gives every unacknowledged message an unused identifier, with DUP 0."""
    topic = mqtt.topic()
    subscriber = mqtt.subscriber(version, topic, qos=1)
    publisher = mqtt.connect(version)
    for number in range(20):
        publisher.publish(topic, b"%d" % number, qos=1)
    messages = [subscriber.expect(wire.PUBLISH) for _ in range(20)]
    assert len({message.packet_id for message in messages}) == 20
    assert not any(message.dup for message in messages)
    # Half are acknowledged; the next ones must not use what is still in flight.
    for message in messages[::2]:
        subscriber.acknowledge(message)
    for number in range(10):
        publisher.publish(topic, b"%d" % number, qos=1)
    later = [subscriber.expect(wire.PUBLISH) for _ in range(10)]
    in_flight = {message.packet_id for message in messages[1::2]}
    assert not in_flight & {message.packet_id for message in later}


@pytest.mark.statement(
    "v5:4.3.2-3", "v5:4.4.0-1", "v5:3.3.1-1", "v4:4.4.0-1", "v4:3.3.1-1", "v4:2.3.1-3", "v4:2.3.1-4"
)
def test_unacknowledged_message_is_sent_again(mqtt: Mqtt, version: int) -> None:
    """After a reconnect: the same identifier, DUP 1, the same message."""
    topic = mqtt.topic()
    subscriber = persistent(mqtt, version)
    subscriber.subscribe(topic, qos=1)
    mqtt.connect(version).publish(topic, b"again", qos=1)
    first = subscriber.expect(wire.PUBLISH)
    subscriber.drop()
    subscriber = persistent(mqtt, version, subscriber.client_id)
    second = subscriber.receive()
    assert (second.packet_id, second.payload, second.qos) == (first.packet_id, b"again", 1)
    assert second.dup
    assert not first.dup
    subscriber.ping()
    subscriber.drop()
    assert persistent(mqtt, version, subscriber.client_id).ping() == []


@pytest.mark.statement("v5:4.4.0-1")
def test_nothing_is_sent_again_on_a_living_connection(mqtt: Mqtt, version: int) -> None:
    """Only a reconnect makes the server repeat itself, however long the acknowledgement takes."""
    topic = mqtt.topic()
    subscriber = mqtt.subscriber(version, topic, qos=1)
    publisher = mqtt.connect(version)
    publisher.publish(topic, b"once", qos=1)
    first = subscriber.expect(wire.PUBLISH)
    for _ in range(20):
        assert subscriber.ping() == []
    subscriber.quiet(1.0)
    subscriber.acknowledge(first)
    assert subscriber.ping() == []


@pytest.mark.statement("v5:4.6.0-1", "v4:4.6.0-1", "v4:4.6.0-6")
def test_messages_are_sent_again_in_order(mqtt: Mqtt, version: int) -> None:
    """Unacknowledged ones first and in their order, then what came meanwhile."""
    topic = mqtt.topic()
    subscriber = persistent(mqtt, version)
    subscriber.subscribe(topic, qos=1)
    publisher = mqtt.connect(version)
    for number in range(10):
        publisher.publish(topic, b"%d" % number, qos=1)
    messages = [subscriber.expect(wire.PUBLISH) for _ in range(10)]
    for index in (0, 3, 4):
        subscriber.acknowledge(messages[index])
    subscriber.ping()
    subscriber.drop()
    for number in range(10, 15):
        publisher.publish(topic, b"%d" % number, qos=1)
    subscriber = persistent(mqtt, version, subscriber.client_id)
    got = [subscriber.receive() for _ in range(12)]
    assert payloads(got) == [b"%d" % n for n in (1, 2, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14)]
    assert [message.dup for message in got] == [True] * 7 + [False] * 5
    assert [message.packet_id for message in got[:7]] == [
        messages[index].packet_id for index in (1, 2, 5, 6, 7, 8, 9)
    ]


@pytest.mark.statement("v5:4.4.0-2")
@pytest.mark.parametrize("reason", [0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99])
def test_refusal_by_the_subscriber_is_an_acknowledgement(mqtt: Mqtt, reason: int) -> None:
    """A PUBACK of 0x80 or above settles the message: it is not sent again."""
    topic = mqtt.topic()
    subscriber = persistent(mqtt, V5)
    subscriber.subscribe(topic, qos=1)
    mqtt.connect(V5).publish(topic, b"unwanted", qos=1)
    message = subscriber.expect(wire.PUBLISH)
    subscriber.send(wire.acknowledge(wire.PUBACK, message.packet_id, reason, []))
    assert subscriber.ping() == []
    subscriber.drop()
    assert persistent(mqtt, V5, subscriber.client_id).ping() == []


@pytest.mark.parametrize(
    "tail", [b"", b"\x00", b"\x10", b"\x00\x00", b"\x00\x07\x1f\x00\x04fine"], ids=lambda t: t.hex()
)
def test_forms_of_puback(mqtt: Mqtt, tail: bytes) -> None:
    """5.0: reason code and properties may be left out (3.4.2.1)."""
    topic = mqtt.topic()
    subscriber = persistent(mqtt, V5)
    subscriber.subscribe(topic, qos=1)
    mqtt.connect(V5).publish(topic, b"x", qos=1)
    message = subscriber.expect(wire.PUBLISH)
    subscriber.send(wire.frame(wire.PUBACK << 4, wire.two(message.packet_id) + tail))
    assert subscriber.ping() == []
    subscriber.drop()
    assert persistent(mqtt, V5, subscriber.client_id).ping() == []


@pytest.mark.statement("v5:4.5.0-1", "v4:4.5.0-1", "v4:3.1.2-5", "v5:3.1.2-5")
def test_message_waits_for_an_absent_session(mqtt: Mqtt, version: int) -> None:
    """A message to a session without a connection is delivered when it connects."""
    topic = mqtt.topic()
    subscriber = persistent(mqtt, version)
    subscriber.subscribe(topic, qos=1)
    subscriber.disconnect()
    publisher = mqtt.connect(version)
    for number in range(20):
        publisher.publish(topic, b"%d" % number, qos=1)
    subscriber = persistent(mqtt, version, subscriber.client_id)
    got = [subscriber.receive() for _ in range(20)]
    assert payloads(got) == [b"%d" % number for number in range(20)]
    assert not any(message.dup for message in got)

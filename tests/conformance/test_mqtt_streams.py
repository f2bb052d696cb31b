"""Many packets in one write: what holds for single packets holds for streams of them.

A server may handle neighbouring messages together. These streams put side by side what must be told
apart: properties, identifiers, flags, aliases, topics, sizes, and errors in the middle.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.conformance import wire
from tests.conformance.client import Client, Packet, payloads
from tests.conformance.conftest import Mqtt
from tests.conformance.test_mqtt_qos1 import persistent
from tests.conformance.wire import V4, V5, Filter

ALIAS, EXPIRY, USER = wire.TOPIC_ALIAS, wire.MESSAGE_EXPIRY_INTERVAL, wire.USER_PROPERTY


def acknowledgements(client: Client, kind: int, count: int) -> list[int]:
    """The packet identifiers of the next `count` packets, all of one kind."""
    return [client.expect(kind).packet_id for _ in range(count)]


@pytest.mark.statement("v5:3.3.2-17", "v5:3.3.2-18", "v5:3.3.2-16", "v5:3.3.2-20")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_neighbours_keep_their_own_properties(mqtt: Mqtt, qos: int) -> None:
    """Same topic, same QoS, different properties: none is given another's."""
    topic = mqtt.topic()
    subscriber = mqtt.subscriber(V5, topic, qos=qos)
    client = mqtt.connect(V5)
    sets: list[list[tuple[int, Any]]] = [
        [],
        [(wire.CONTENT_TYPE, "a")],
        [(wire.CONTENT_TYPE, "b")],
        [(wire.CONTENT_TYPE, "b")],
        [(USER, ("k", "1")), (USER, ("k", "2"))],
        [(USER, ("k", "2")), (USER, ("k", "1"))],
        [(wire.CORRELATION_DATA, b"\1")],
        [(wire.CORRELATION_DATA, b"\2"), (wire.RESPONSE_TOPIC, "r")],
        [(wire.PAYLOAD_FORMAT_INDICATOR, 0)],
        [],
    ]
    client.send(
        *(
            wire.publish(V5, topic, b"%d" % n, qos=qos, packet_id=n + 1, props=props)
            for n, props in enumerate(sets * 3)
        )
    )
    for n, props in enumerate(sets * 3):
        message = subscriber.receive()
        assert (message.payload, message.properties) == (b"%d" % n, props)


def test_neighbours_keep_their_own_expiry(mqtt: Mqtt) -> None:
    """Of messages sent in one write some expire before others."""
    topic = mqtt.topic()
    away = persistent(mqtt, V5)
    away.subscribe(topic, qos=1)
    away.disconnect()
    client = mqtt.connect(V5)
    seconds = [1, 100, None, 1, 1, 200, None, 1]
    client.send(
        *(
            wire.publish(
                V5,
                topic,
                b"%d" % n,
                qos=1,
                packet_id=n + 1,
                props=[] if each is None else [(EXPIRY, each)],
            )
            for n, each in enumerate(seconds)
        )
    )
    acknowledgements(client, wire.PUBACK, len(seconds))
    client.quiet(1.6)
    away = persistent(mqtt, V5, away.client_id)
    got = [away.receive() for _ in range(4)]
    assert payloads(got) == [b"1", b"2", b"5", b"6"]
    left = [message.property(EXPIRY) for message in got]
    assert 95 <= left[0] <= 99
    assert left[1] is left[3] is None
    assert 195 <= left[2] <= 199
    assert away.ping() == []


@pytest.mark.statement("v5:3.3.4-1", "v4:3.3.4-1", "v5:4.6.0-5", "v4:4.6.0-6")
def test_mixed_qos_topics_and_retain(mqtt: Mqtt, version: int) -> None:
    """Every mixture in one write: each is answered by its QoS, each topic and QoS stays in order."""
    chance = random.Random(311 + version)
    root = mqtt.topic()
    subscriber = mqtt.subscriber(version, f"{root}/#", qos=2)
    client = mqtt.connect(version)
    sent: list[tuple[str, int, bytes]] = []
    packets: list[bytes] = []
    for number in range(400):
        name, qos = f"{root}/{chance.choice('aabc')}", chance.choice([0, 0, 1, 1, 2])
        body = b"%d:" % number + bytes(chance.choice([0, 1, 30, 500]))
        retain = chance.random() < 0.1
        packets.append(
            wire.publish(version, name, body, qos=qos, packet_id=number + 1, retain=retain)
        )
        sent.append((name, qos, body))
    client.send(*packets)
    kinds = {1: wire.PUBACK, 2: wire.PUBREC}
    for kind, qos in ((wire.PUBACK, 1), (wire.PUBREC, 2)):
        expected = [n + 1 for n, (_, each, _) in enumerate(sent) if each == qos]
        assert [client.take(kinds[qos]).packet_id for _ in expected] == expected
        if kind == wire.PUBREC:
            client.send(*(wire.acknowledge(wire.PUBREL, packet_id) for packet_id in expected))
            assert [client.take(wire.PUBCOMP).packet_id for _ in expected] == expected
    got = [subscriber.receive() for _ in sent]
    names = {name for name, _, _ in sent}
    for name in names:
        for qos in (0, 1, 2):
            mine = [m.payload for m in got if (m.topic, m.qos) == (name, qos)]
            assert mine == [body for each, q, body in sent if (each, q) == (name, qos)]
    client.send(*(wire.publish(version, name, b"", retain=True) for name in sorted(names)))


@pytest.mark.statement("v5:4.3.3-10", "v4:4.3.3-2")
def test_repeated_qos_2_messages_in_one_write(mqtt: Mqtt, version: int) -> None:
    """The same identifier twice before its PUBREL is one message, side by side too."""
    topic = mqtt.topic()
    subscriber = mqtt.subscriber(version, topic, qos=2)
    client = mqtt.connect(version)
    client.send(
        wire.publish(version, topic, b"a", qos=2, packet_id=1),
        wire.publish(version, topic, b"a", qos=2, packet_id=1, dup=True),
        wire.publish(version, topic, b"b", qos=2, packet_id=2),
        wire.publish(version, topic, b"a", qos=2, packet_id=1, dup=True),
        wire.acknowledge(wire.PUBREL, 1),
        wire.publish(version, topic, b"c", qos=2, packet_id=1),
        wire.acknowledge(wire.PUBREL, 1),
        wire.acknowledge(wire.PUBREL, 2),
    )
    kinds = [wire.PUBREC] * 4 + [wire.PUBCOMP, wire.PUBREC, wire.PUBCOMP, wire.PUBCOMP]
    got = [client.next() for _ in kinds]
    assert [(p.kind, p.packet_id) for p in got] == list(
        zip(kinds, [1, 1, 2, 1, 1, 1, 1, 2], strict=True)
    )
    assert payloads(subscriber.receive() for _ in range(3)) == [b"a", b"b", b"c"]
    assert subscriber.ping() == []


@pytest.mark.statement("v5:4.3.2-5", "v4:4.3.2-2")
def test_repeated_qos_1_identifiers_in_one_write(mqtt: Mqtt, version: int) -> None:
    """QoS 1 with one identifier again and again: each is a message of its own."""
    topic = mqtt.topic()
    subscriber = mqtt.subscriber(version, topic, qos=1)
    client = mqtt.connect(version)
    client.send(
        *(
            wire.publish(version, topic, b"%d" % n, qos=1, packet_id=7, dup=n % 2 == 1)
            for n in range(50)
        )
    )
    assert acknowledgements(client, wire.PUBACK, 50) == [7] * 50
    assert payloads(subscriber.receive() for _ in range(50)) == [b"%d" % n for n in range(50)]


@pytest.mark.parametrize("qos", [0, 1])
def test_aliases_in_one_write(mqtt: Mqtt, qos: int) -> None:
    """Aliases set, used and set anew between neighbouring messages."""
    root = mqtt.topic()
    subscriber = mqtt.subscriber(V5, f"{root}/+", qos=qos)
    client = mqtt.connect(V5)
    a, b = f"{root}/a", f"{root}/b"
    steps = [
        (a, 1),
        ("", 1),
        ("", 1),
        (b, 1),
        ("", 1),
        (a, 2),
        ("", 1),
        ("", 2),
        (a, None),
        (a, 1),
        ("", 1),
    ]
    expected = [a, a, a, b, b, a, b, a, a, a, a]
    client.send(
        *(
            wire.publish(
                V5,
                topic,
                b"%d" % n,
                qos=qos,
                packet_id=n + 1,
                props=[] if alias is None else [(ALIAS, alias)],
            )
            for n, (topic, alias) in enumerate(steps)
        )
    )
    got = {message.payload: message.topic for message in (subscriber.receive() for _ in steps)}
    assert [got[b"%d" % n] for n in range(len(steps))] == expected


@pytest.mark.statement("v5:4.13.1-1", "v4:4.8.0-1")
@pytest.mark.parametrize("position", [0, 1, 10, 49])
@pytest.mark.parametrize("kind", ["identifier 0", "QoS 3", "wildcard", "ill-formed topic"])
def test_error_among_equal_messages(mqtt: Mqtt, version: int, kind: str, position: int) -> None:
    """Fifty messages alike but for one with an error: those before it are delivered, no other."""
    topic = mqtt.topic()
    subscriber = mqtt.subscriber(version, topic, "never/+", qos=1)
    client = mqtt.connect(version)
    packets = [wire.publish(version, topic, b"%d" % n, qos=1, packet_id=n + 1) for n in range(50)]
    wrong = {
        "identifier 0": wire.publish(version, topic, b"x", qos=1, packet_id=0),
        "QoS 3": wire.publish(version, topic, b"x", qos=3, packet_id=9),
        "wildcard": wire.publish(version, "never/+", b"x", qos=1, packet_id=9),
        "ill-formed topic": wire.publish(version, b"never/\xff", b"x", qos=1, packet_id=9),
    }
    packets[position] = wrong[kind]
    client.send(*packets)
    client.expect_error(0x81, 0x82, 0x90)
    mqtt.connect(version).publish(topic, b"marker", qos=1)
    got = payloads(subscriber.receive_until(b"marker"))
    assert got == [b"%d" % n for n in range(position)]


def test_forbidden_topic_among_allowed_ones(restricted: Mqtt) -> None:
    """Permission is asked for each topic of a stream, answers stay in order."""
    topic = f"open/{restricted.topic()}"
    client = restricted.connect(V5)
    client.subscribe(topic, qos=1)
    names = [topic, topic, "secret/x", topic, "secret/x", "secret/x", topic]
    client.send(
        *(wire.publish(V5, name, b"%d" % n, qos=1, packet_id=n + 1) for n, name in enumerate(names))
    )
    answers = [client.take(wire.PUBACK) for _ in names]
    assert [answer.packet_id for answer in answers] == [1, 2, 3, 4, 5, 6, 7]
    assert [answer.reason == 0x87 for answer in answers] == [name != topic for name in names]
    assert payloads(client.receive() for _ in range(4)) == [b"0", b"1", b"3", b"6"]


def test_subscribing_and_publishing_in_one_write(mqtt: Mqtt, version: int) -> None:
    """Packets take effect in their order: what is published between two is seen by the first."""
    topic = mqtt.topic()
    client = mqtt.connect(version)
    client.send(
        wire.publish(version, topic, b"too early", qos=1, packet_id=1),
        wire.subscribe(version, 2, [Filter(topic, 1)]),
        wire.publish(version, topic, b"seen", qos=1, packet_id=3),
        wire.unsubscribe(version, 4, [topic]),
        wire.publish(version, topic, b"too late", qos=1, packet_id=5),
        wire.pingreq(),
    )
    messages: list[Packet] = []
    rest: list[int] = []
    while (packet := client.next()).kind != wire.PINGRESP:
        if packet.kind == wire.PUBLISH:
            client.acknowledge(packet)
            messages.append(packet)
        else:
            rest.append(packet.packet_id)
    assert rest == [1, 2, 3, 4, 5]
    assert payloads(messages) == [b"seen"]


@pytest.mark.statement("v5:3.1.2-24", "v5:3.1.2-25")
def test_subscribers_of_every_kind(mqtt: Mqtt) -> None:
    """One stream to subscribers that differ in all that decides what they are sent."""
    topic = mqtt.topic()
    plain = [mqtt.subscriber(V4, topic, qos=qos) for qos in (0, 1, 2)]
    new = [mqtt.subscriber(V5, topic, qos=qos) for qos in (0, 1, 2)]
    small = mqtt.connect(V5, props=[(wire.MAXIMUM_PACKET_SIZE, 200)])
    aliased = mqtt.connect(V5, props=[(wire.TOPIC_ALIAS_MAXIMUM, 5)])
    named = mqtt.connect(V5)
    narrow = mqtt.connect(V5, props=[(wire.RECEIVE_MAXIMUM, 2)])
    for client in (small, aliased, narrow):
        client.subscribe(topic, qos=1)
    named.subscribe(
        Filter(topic, 1, retain_as_published=True), props=[(wire.SUBSCRIPTION_IDENTIFIER, 300)]
    )
    publisher = mqtt.connect(V5)
    sizes = [1, 500, 2, 3, 500, 4] * 5
    props = [(wire.CONTENT_TYPE, "x"), (USER, ("k", "v"))]
    sent = [bytes([n]) * size for n, size in enumerate(sizes)]
    publisher.send(
        *(
            wire.publish(
                V5, topic, body, qos=2 - n % 2, packet_id=n + 1, retain=n == 7, props=props
            )
            for n, body in enumerate(sent)
        )
    )
    for client in [*plain, *new, aliased, named, narrow]:
        got = [client.receive() for _ in sent]
        assert sorted(payloads(got)) == sorted(sent)
        assert all(message.topic == topic for message in got)
        assert all((message.properties == []) == (client.version == V4) for message in got)
    assert sorted(small.receive().payload for _ in range(20)) == sorted(
        body for body in sent if len(body) < 100
    )
    for client in [*plain, *new, small, aliased, named, narrow]:
        assert client.ping() == []
    publisher.publish(topic, b"", retain=True)


def test_long_stream_to_many_subscribers(mqtt: Mqtt, version: int) -> None:
    """Ten thousand messages in writes of random sizes to ten subscribers, none lost or moved."""
    chance = random.Random(version)
    topic = mqtt.topic()
    subscribers = [mqtt.subscriber(version, topic, qos=1) for _ in range(10)]
    client = mqtt.connect(version)
    number = 0
    while number < 10_000:
        count = min(chance.choice([1, 5, 100, 900]), 10_000 - number)
        client.send(
            *(
                wire.publish(version, topic, b"%d" % n, qos=1, packet_id=n % 65_535 + 1)
                for n in range(number, number + count)
            )
        )
        acknowledgements(client, wire.PUBACK, count)
        number += count
        for subscriber in subscribers:
            for n in range(number - count, number):
                message = subscriber.expect(wire.PUBLISH)
                assert message.payload == b"%d" % n
                subscriber.acknowledge(message)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_stream_to_a_session_that_comes_and_goes(mqtt: Mqtt, version: int, qos: int) -> None:
    """QoS 1 and 2 messages reach a session whose connection breaks at any moment; QoS 2 once."""
    topic = mqtt.topic()
    chance = random.Random(version * 10 + qos)
    client = persistent(mqtt, version)
    client.subscribe(topic, qos=qos)
    publisher = mqtt.connect(version)
    seen: list[bytes] = []
    released: set[int] = set()
    for number in range(0, 200, 10):
        for n in range(number, number + 10):
            publisher.publish(topic, b"%d" % n, qos=qos)
        for _ in range(chance.randint(0, 30)):
            client.send(wire.pingreq())
            packet = client.next()
            while packet.kind != wire.PINGRESP:
                if packet.kind == wire.PUBLISH and packet.qos < 2:
                    client.acknowledge(packet)
                    seen.append(packet.payload)
                elif packet.kind == wire.PUBLISH:
                    if packet.packet_id not in released:
                        released.add(packet.packet_id)
                        seen.append(packet.payload)
                    client.send(wire.acknowledge(wire.PUBREC, packet.packet_id))
                elif packet.kind == wire.PUBREL:
                    released.discard(packet.packet_id)
                    client.send(wire.acknowledge(wire.PUBCOMP, packet.packet_id))
                packet = client.next()
        client.drop()
        client = persistent(mqtt, version, client.client_id)
    publisher.publish(topic, b"end", qos=qos)
    while True:
        packet = client.next()
        if packet.kind == wire.PUBREL:
            released.discard(packet.packet_id)
            client.send(wire.acknowledge(wire.PUBCOMP, packet.packet_id))
            continue
        if packet.payload == b"end":
            break
        if packet.qos == 2:
            if packet.packet_id not in released:
                released.add(packet.packet_id)
                seen.append(packet.payload)
            client.send(wire.acknowledge(wire.PUBREC, packet.packet_id))
        else:
            client.acknowledge(packet)
            seen.append(packet.payload)
    if qos:
        assert {*seen} == {b"%d" % n for n in range(200)}
    if qos == 2:
        assert sorted(seen) == sorted({*seen}), "a QoS 2 message came twice"

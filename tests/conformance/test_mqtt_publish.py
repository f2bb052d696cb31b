"""PUBLISH: section 3.3, and QoS 0: section 4.3.1."""

from __future__ import annotations

import pytest

from tests.conformance import wire
from tests.conformance.client import payloads
from tests.conformance.conftest import Mqtt
from tests.conformance.wire import V4, V5, Filter


@pytest.mark.statement(
    "v5:2.2.1-2", "v5:3.3.1-2", "v5:4.3.1-1", "v4:2.3.1-5", "v4:3.3.1-2", "v4:4.3.1-1"
)
def test_qos_0_message_is_delivered(mqtt: Mqtt, version: int) -> None:
    """QoS 0: no identifier, no DUP, no acknowledgement, the payload as it was."""
    topic = mqtt.topic()
    subscriber = mqtt.subscriber(version, topic)
    publisher = mqtt.connect(version)
    publisher.publish(topic, b"hello")
    message = subscriber.expect(wire.PUBLISH)
    assert (message.topic, message.payload, message.qos) == (topic, b"hello", 0)
    assert not message.retain
    assert publisher.ping() == subscriber.ping() == []


@pytest.mark.statement("v5:3.8.4-8", "v4:3.8.4-6", "v5:3.3.4-1", "v4:3.3.4-1")
@pytest.mark.parametrize("published", [0, 1, 2])
@pytest.mark.parametrize("granted", [0, 1, 2])
def test_qos_is_the_lesser_of_published_and_granted(
    mqtt: Mqtt, version: int, published: int, granted: int
) -> None:
    """Three by three; the publisher's acknowledgement follows its own QoS."""
    topic = mqtt.topic()
    subscriber = mqtt.subscriber(version, topic, qos=granted)
    publisher = mqtt.connect(version)
    assert publisher.publish(topic, b"x", qos=published) == 0
    message = subscriber.receive()
    assert message.qos == min(published, granted)
    assert message.payload == b"x"


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("size", [0, 1, 110, 111, 127, 128, 16_383, 16_384, 200_000])
def test_payloads_of_all_sizes(mqtt: Mqtt, version: int, size: int, qos: int) -> None:
    """Sizes around each step of Remaining Length, and an empty one, which is a message too."""
    topic = mqtt.topic()
    subscriber = mqtt.subscriber(version, topic, qos=qos)
    payload = bytes(index * 7 & 0xFF for index in range(size))
    mqtt.connect(version).publish(topic, payload, qos=qos)
    assert subscriber.receive().payload == payload


def test_payload_may_hold_any_bytes(mqtt: Mqtt, version: int) -> None:
    """The payload is not text: every byte value passes."""
    topic = mqtt.topic()
    subscriber = mqtt.subscriber(version, topic)
    mqtt.connect(version).publish(topic, bytes(range(256)))
    assert subscriber.receive().payload == bytes(range(256))


@pytest.mark.statement("v5:3.3.1-4", "v4:3.3.1-4")
def test_qos_3_is_malformed(mqtt: Mqtt, version: int) -> None:
    """Both QoS bits set."""
    client = mqtt.connect(version)
    client.send(wire.publish(version, mqtt.topic(), b"x", qos=3, packet_id=1))
    client.expect_error(0x81)


@pytest.mark.statement("v5:3.3.1-3", "v4:3.3.1-3")
@pytest.mark.parametrize("qos", [1, 2])
def test_dup_is_not_passed_on(mqtt: Mqtt, version: int, qos: int) -> None:
    """DUP from a publisher says nothing of the copy sent to a subscriber."""
    topic = mqtt.topic()
    subscriber = mqtt.subscriber(version, topic, qos=qos)
    mqtt.connect(version).publish(topic, b"x", qos=qos, dup=True)
    assert not subscriber.receive().dup


@pytest.mark.statement("v5:3.3.2-2", "v5:4.7.0-1", "v4:3.3.2-2", "v4:4.7.1-1")
@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("topic", ["+", "#", "a/+", "a/#", "a/b#", "a+/b"])
def test_wildcards_in_a_topic_name(mqtt: Mqtt, version: int, topic: str, qos: int) -> None:
    """A topic name with a wildcard ends the connection."""
    client = mqtt.connect(version)
    client.send(wire.publish(version, topic, b"x", qos=qos, packet_id=1))
    client.expect_error(0x81, 0x82, 0x90)


@pytest.mark.statement("v5:3.3.2-1", "v4:3.3.2-1")
@pytest.mark.parametrize("body", [b"", b"\0", b"\0\5abc", b"\xff\xff"])
def test_topic_name_is_the_first_field(mqtt: Mqtt, version: int, body: bytes) -> None:
    """A PUBLISH that ends before its topic does is malformed."""
    client = mqtt.connect(version)
    client.send(wire.frame(wire.PUBLISH << 4, body))
    client.expect_error(0x81, 0x82)


@pytest.mark.statement("v5:4.7.3-1", "v4:4.7.3-1")
def test_empty_topic_name(mqtt: Mqtt, version: int) -> None:
    """At least one character, unless an alias stands for the topic."""
    client = mqtt.connect(version)
    client.send(wire.publish(version, "", b"x"))
    client.expect_error(0x82, 0x90)


@pytest.mark.statement("v5:3.3.2-3", "v4:3.3.2-3")
def test_delivered_topic_matches_the_filter(mqtt: Mqtt, version: int) -> None:
    """The topic name that arrives is the one published, also through wildcards."""
    root = mqtt.topic()
    subscriber = mqtt.subscriber(version, f"{root}/+/x/#")
    publisher = mqtt.connect(version)
    for tail in ("a/x", "b/x/y", "b/y", "/x", "a/x/"):
        publisher.publish(f"{root}/{tail}", tail.encode())
    publisher.publish(f"{root}/end/x", b"marker")
    got = subscriber.receive_until(b"marker")
    assert [m.topic for m in got] == [f"{root}/{tail}" for tail in ("a/x", "b/x/y", "/x", "a/x/")]
    assert all(m.topic == f"{root}/{m.payload.decode()}" for m in got)


@pytest.mark.statement("v5:2.2.1-3", "v4:2.3.1-1")
@pytest.mark.parametrize("qos", [1, 2])
def test_packet_identifier_zero(mqtt: Mqtt, version: int, qos: int) -> None:
    """Packet identifiers are never 0."""
    client = mqtt.connect(version)
    client.send(wire.publish(version, mqtt.topic(), b"x", qos=qos, packet_id=0))
    client.expect_error(0x81, 0x82)


@pytest.mark.statement(
    "v5:4.6.0-5", "v5:4.6.0-6", "v4:4.6.0-5", "v4:4.6.0-6", "v4:4.6.0-2", "v4:4.6.0-3"
)
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_messages_of_a_topic_keep_their_order(mqtt: Mqtt, version: int, qos: int) -> None:
    """From one publisher, on one topic and QoS, to two subscribers; acknowledgements likewise."""
    topic = mqtt.topic()
    subscribers = [mqtt.subscriber(version, topic, qos=qos) for _ in range(2)]
    publisher = mqtt.connect(version)
    sent = [b"%d" % number for number in range(200)]
    packets = [
        wire.publish(version, topic, each, qos=qos, packet_id=number)
        for number, each in enumerate(sent, 1)
    ]
    for start in range(0, 200, 20):
        publisher.send(*packets[start : start + 20])
        answers = [publisher.next() for _ in range(20)] if qos else []
        assert [answer.packet_id for answer in answers] == [*range(start + 1, start + 21)][
            : 20 * qos
        ]
        if qos == 2:
            publisher.send(*(wire.acknowledge(wire.PUBREL, a.packet_id) for a in answers))
            for answer in answers:
                assert publisher.expect(wire.PUBCOMP).packet_id == answer.packet_id
    for subscriber in subscribers:
        assert payloads(subscriber.receive() for _ in sent) == sent


@pytest.mark.statement("v5:4.6.0-5", "v4:4.6.0-6")
def test_order_of_several_publishers_is_kept_for_each(mqtt: Mqtt, version: int) -> None:
    """Streams of different publishers may mix, each stays in order."""
    topic = mqtt.topic()
    subscriber = mqtt.subscriber(version, topic, qos=1)
    publishers = [mqtt.connect(version) for _ in range(3)]
    for start in range(0, 50, 10):
        for name, publisher in enumerate(publishers):
            publisher.send(
                *(
                    wire.publish(version, topic, b"%d:%d" % (name, n), qos=1, packet_id=n + 1)
                    for n in range(start, start + 10)
                )
            )
    got = [subscriber.receive().payload for _ in range(150)]
    for name in range(3):
        mine = [each for each in got if each.startswith(b"%d:" % name)]
        assert mine == [b"%d:%d" % (name, n) for n in range(50)]


@pytest.mark.statement("v5:3.3.4-6")
def test_client_must_not_send_a_subscription_identifier(mqtt: Mqtt) -> None:
    """Only servers put Subscription Identifiers into a PUBLISH."""
    client = mqtt.connect(V5)
    props = [(wire.SUBSCRIPTION_IDENTIFIER, 1)]
    client.send(wire.publish(V5, mqtt.topic(), b"x", props=props))
    client.expect_error(0x82)


def test_versions_exchange_messages(mqtt: Mqtt) -> None:
    """From 5.0 to 3.1.1 properties are left out; from 3.1.1 to 5.0 there are none."""
    topic = mqtt.topic()
    old, new = mqtt.subscriber(V4, topic, qos=1), mqtt.subscriber(V5, topic, qos=1)
    props = [(wire.CONTENT_TYPE, "text/plain"), (wire.USER_PROPERTY, ("a", "b"))]
    mqtt.connect(V5).publish(topic, b"from 5", qos=1, props=props)
    mqtt.connect(V4).publish(topic, b"from 4", qos=1)
    assert payloads([old.receive(), old.receive()]) == [b"from 5", b"from 4"]
    first, second = new.receive(), new.receive()
    assert (first.payload, second.payload) == (b"from 5", b"from 4")
    assert first.properties == props
    assert second.properties == []


def test_publisher_gets_its_own_messages(mqtt: Mqtt, version: int) -> None:
    """A client that subscribes to what it publishes receives it."""
    topic = mqtt.topic()
    client = mqtt.subscriber(version, topic, qos=1)
    client.publish(topic, b"echo", qos=1)
    assert client.receive().payload == b"echo"


@pytest.mark.statement("v5:3.2.2-15")
@pytest.mark.parametrize("first", [0x30, 0x32, 0x82, 0x40])
def test_packet_larger_than_the_maximum(limited: Mqtt, version: int, first: int) -> None:
    """Told by Maximum Packet Size in CONNACK; 0x95, and the size alone decides, not the content."""
    client = limited.connect(version)
    client.send(bytes([first]) + wire.variable(16 * 1024) + b"\0\1a")
    client.expect_error(0x95)


def test_packet_of_exactly_the_maximum(limited: Mqtt, version: int) -> None:
    """The limit is for the whole packet, its header counted."""
    topic = limited.topic()
    client = limited.subscriber(version, topic)
    # A Remaining Length of two bytes where an empty payload needs one.
    payload = bytes(16 * 1024 - len(wire.publish(version, topic)) - 1)
    assert len(wire.publish(version, topic, payload)) == 16 * 1024
    client.publish(topic, payload)
    assert client.receive().payload == payload


@pytest.mark.statement("v5:3.2.2-11")
@pytest.mark.parametrize("version", [V5], ids=["5.0"])
def test_qos_above_the_maximum(limited: Mqtt, version: int) -> None:
    """A server that announced Maximum QoS 1 ends the connection over QoS 2 with 0x9B."""
    client = limited.connect(version)
    client.send(wire.publish(version, limited.topic(), b"x", qos=2, packet_id=1))
    client.expect_error(0x9B)


def test_topic_beyond_the_limits(limited: Mqtt, version: int) -> None:
    """A topic name of too many levels or bytes is invalid."""
    for topic in ("a" + "/a" * 8, "a" * 257):
        client = limited.connect(version)
        client.send(wire.publish(version, topic, b"x", qos=1, packet_id=1))
        client.expect_error(0x90)
    client = limited.connect(version)
    assert client.publish("a" + "/a" * 7, b"x", qos=1) in (0, 0x10)
    assert client.publish("a" * 256, b"x", qos=1) in (0, 0x10)


# --- permissions ------------------------------------------------------------------------------


@pytest.mark.statement("v5:3.4.2-1", "v5:3.5.2-1")
@pytest.mark.parametrize("qos", [1, 2])
def test_unauthorised_publish_is_told(restricted: Mqtt, qos: int) -> None:
    """5.0: 0x87 in PUBACK or PUBREC, nobody receives it, and the connection goes on."""
    topic = restricted.topic()
    password = b"correct horse battery staple"
    watcher = restricted.connect(V5, username="ada", password=password)
    watcher.subscribe("#", qos=2)
    client = restricted.connect(V5)
    assert client.publish(topic, b"forbidden", qos=qos) == 0x87
    assert client.publish("open/x", b"marker", qos=qos) == 0
    assert watcher.receive_until(b"marker") == []


def test_unauthorised_qos_0_publish_is_dropped(restricted: Mqtt) -> None:
    """5.0: QoS 0 has no answer; the message is dropped and the connection goes on."""
    client = restricted.connect(V5)
    client.subscribe("open/#")
    client.publish(restricted.topic(), b"forbidden")
    client.publish("open/x", b"marker")
    assert client.receive_until(b"marker") == []


@pytest.mark.statement("v4:3.3.5-2")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_unauthorised_publish_in_version_4(restricted: Mqtt, qos: int) -> None:
    """3.1.1 has no way to say no: it is acknowledged, nobody receives it, and the connection goes on."""
    topic = restricted.topic()
    password = b"correct horse battery staple"
    watcher = restricted.connect(V5, username="ada", password=password)
    watcher.subscribe("#", qos=2)
    client = restricted.connect(V4)
    client.publish(topic, b"forbidden", qos=qos)
    client.publish("open/x", b"marker", qos=qos)
    assert watcher.receive_until(b"marker") == []


def test_permissions_by_client_identifier(restricted: Mqtt) -> None:
    """`{client_id}` in a permission is the client's own, and nobody else's."""
    client = restricted.connect(V5)
    own, other = f"own/{client.client_id}/x", "own/somebody/x"
    client.subscribe(Filter(own, 1))
    assert client.subscribe(Filter(other, 1), granted=False).reasons == [0x87]
    assert client.publish(other, b"x", qos=1) == 0x87
    assert client.publish(own, b"mine", qos=1) == 0
    assert client.receive().payload == b"mine"


@pytest.mark.statement("v5:4.3.3-9")
def test_identifier_of_a_refused_message_is_free(restricted: Mqtt) -> None:
    """After a PUBREC of 0x80 or above the same identifier carries a new message."""
    client = restricted.connect(V5)
    client.subscribe("open/#", qos=2)
    assert client.publish(restricted.topic(), b"x", qos=2, packet_id=7) == 0x87
    assert client.publish("open/y", b"new", qos=2, packet_id=7) == 0
    assert client.receive().payload == b"new"

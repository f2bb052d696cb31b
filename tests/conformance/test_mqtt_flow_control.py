"""Receive Maximum: sections 3.3.4 and 4.9, and Maximum Packet Size: 3.1.2.11.4."""

from __future__ import annotations

import pytest

from tests.conformance import wire
from tests.conformance.client import payloads
from tests.conformance.conftest import Mqtt
from tests.conformance.test_mqtt_qos1 import persistent
from tests.conformance.wire import V5, Filter

RECEIVE_MAXIMUM = wire.RECEIVE_MAXIMUM


@pytest.mark.statement("v5:3.3.4-9", "v5:4.9.0-1", "v5:4.9.0-2")
@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("maximum", [1, 3, 10])
def test_server_keeps_to_the_clients_window(mqtt: Mqtt, qos: int, maximum: int) -> None:
    """Never more unacknowledged messages than Receive Maximum; each acknowledgement frees one."""
    topic = mqtt.topic()
    client = mqtt.connect(V5, props=[(RECEIVE_MAXIMUM, maximum)])
    client.subscribe(topic, qos=qos)
    publisher = mqtt.connect(V5)
    for number in range(20):
        publisher.publish(topic, b"%d" % number, qos=qos)
    waiting = [client.expect(wire.PUBLISH) for _ in range(maximum)]
    assert client.ping() == []
    for number in range(20):
        message = waiting.pop(0)
        assert message.payload == b"%d" % number
        client.acknowledge(message)
        if number + maximum < 20:
            waiting.append(client.take(wire.PUBLISH))
        assert client.ping() == []


@pytest.mark.statement("v5:3.3.4-9", "v5:4.9.0-2")
def test_pubrec_does_not_free_the_window(mqtt: Mqtt) -> None:
    """A QoS 2 message holds its place until PUBCOMP."""
    topic = mqtt.topic()
    client = mqtt.connect(V5, props=[(RECEIVE_MAXIMUM, 1)])
    client.subscribe(topic, qos=2)
    publisher = mqtt.connect(V5)
    publisher.publish(topic, b"1", qos=2)
    publisher.publish(topic, b"2", qos=2)
    first = client.expect(wire.PUBLISH)
    client.send(wire.acknowledge(wire.PUBREC, first.packet_id))
    client.expect(wire.PUBREL)
    assert client.ping() == []
    client.send(wire.acknowledge(wire.PUBCOMP, first.packet_id))
    assert client.receive().payload == b"2"


@pytest.mark.statement("v5:4.9.0-2", "v5:3.3.4-9")
def test_refusing_pubrec_frees_the_window(mqtt: Mqtt) -> None:
    """A PUBREC of 0x80 or above is the end of that message."""
    topic = mqtt.topic()
    client = mqtt.connect(V5, props=[(RECEIVE_MAXIMUM, 1)])
    client.subscribe(topic, qos=2)
    publisher = mqtt.connect(V5)
    publisher.publish(topic, b"1", qos=2)
    publisher.publish(topic, b"2", qos=2)
    first = client.expect(wire.PUBLISH)
    client.send(wire.acknowledge(wire.PUBREC, first.packet_id, 0x83, []))
    assert client.receive().payload == b"2"


@pytest.mark.statement("v5:3.3.4-10", "v5:4.9.0-3")
def test_other_packets_pass_a_full_window(mqtt: Mqtt) -> None:
    """PINGRESP, SUBACK, UNSUBACK, PUBACK and QoS 0 messages do not wait for the window."""
    topic, free = mqtt.topic(), mqtt.topic()
    client = mqtt.connect(V5, props=[(RECEIVE_MAXIMUM, 1)])
    client.subscribe(topic, qos=1)
    publisher = mqtt.connect(V5)
    for number in range(5):
        publisher.publish(topic, b"%d" % number, qos=1)
    held = client.expect(wire.PUBLISH)
    client.subscribe(free)
    assert client.publish(free, b"own", qos=2) == 0
    assert client.receive().payload == b"own"
    publisher.publish(free, b"at most once")
    assert client.receive().payload == b"at most once"
    client.unsubscribe(free)
    assert client.ping() == []
    client.acknowledge(held)
    assert payloads(client.receive() for _ in range(4)) == [b"1", b"2", b"3", b"4"]


@pytest.mark.statement("v5:4.9.0-1", "v5:4.4.0-1")
def test_window_of_the_new_connection_counts(mqtt: Mqtt) -> None:
    """A session that reconnects with a smaller window is sent no more than that at once."""
    topic = mqtt.topic()
    client = persistent(mqtt, V5)
    client.subscribe(topic, qos=1)
    publisher = mqtt.connect(V5)
    for number in range(10):
        publisher.publish(topic, b"%d" % number, qos=1)
    for _ in range(10):
        client.expect(wire.PUBLISH)
    client.drop()
    client = persistent(mqtt, V5, client.client_id, props=[(RECEIVE_MAXIMUM, 2)])
    first = [client.expect(wire.PUBLISH), client.expect(wire.PUBLISH)]
    assert client.ping() == []
    for message in first:
        client.acknowledge(message)
    got = payloads(first) + [client.receive().payload for _ in range(8)]
    assert got == [b"%d" % number for number in range(10)]


def test_acknowledged_messages_do_not_fill_the_servers_window(limited: Mqtt) -> None:
    """A QoS 1 message is over with its PUBACK: any number may follow one another (window 4)."""
    client = limited.connect(V5)
    for _ in range(20):
        client.publish(limited.topic(), b"x", qos=1)
    assert client.ping() == []


def test_client_beyond_the_default_window(fluxmq: Mqtt) -> None:
    """1024 QoS 2 messages may wait for PUBREL; the next one is 0x93."""
    client = fluxmq.connect(V5)
    topic = fluxmq.topic()
    client.send(*(wire.publish(V5, topic, b"x", qos=2, packet_id=n) for n in range(1, 1025)))
    for number in range(1, 1025):
        assert client.expect(wire.PUBREC).packet_id == number
    client.send(wire.publish(V5, topic, b"x", qos=2, packet_id=1024, dup=True))
    assert client.expect(wire.PUBREC).packet_id == 1024
    client.send(wire.publish(V5, topic, b"x", qos=2, packet_id=1025))
    client.expect_error(0x93)


def test_receive_maximum_zero(mqtt: Mqtt) -> None:
    """0 is no Receive Maximum (3.1.2.11.3)."""
    client = mqtt.open(V5)
    client.send(wire.connect(V5, mqtt.client_id(), props=[(RECEIVE_MAXIMUM, 0)]))
    try:
        assert client.next().reason in (0x81, 0x82)
    except AssertionError:
        assert client.closed
        return
    client.expect_closed()


# --- Maximum Packet Size ------------------------------------------------------------------------

SIZE = wire.MAXIMUM_PACKET_SIZE


@pytest.mark.statement("v5:3.1.2-24", "v5:3.1.2-25")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_messages_too_large_for_a_client(mqtt: Mqtt, qos: int) -> None:
    """Left out as if delivered: no error, no repetition, and smaller ones arrive."""
    topic = mqtt.topic()
    props = [(SIZE, 200), (RECEIVE_MAXIMUM, 2)]
    client = persistent(mqtt, V5, props=props)
    client.subscribe(topic, qos=qos)
    large = mqtt.subscriber(V5, topic, qos=qos)
    publisher = mqtt.connect(V5)
    for number in range(5):
        publisher.publish(topic, bytes(200), qos=qos)
        publisher.publish(topic, b"%d" % number, qos=qos)
    assert payloads(client.receive() for _ in range(5)) == [b"0", b"1", b"2", b"3", b"4"]
    assert client.ping() == []
    assert len([large.receive() for _ in range(10)]) == 10
    client.drop()
    assert persistent(mqtt, V5, client.client_id, props=props).ping() == []


@pytest.mark.statement("v5:3.1.2-24")
@pytest.mark.parametrize("qos", [0, 1])
def test_message_of_exactly_the_clients_maximum(mqtt: Mqtt, qos: int) -> None:
    """The limit is for the whole packet: one byte less than too much is delivered."""
    topic = mqtt.topic()
    client = mqtt.connect(V5, props=[(SIZE, 300)])
    client.subscribe(topic, qos=qos)
    room = 300 - len(wire.publish(V5, topic, qos=qos)) - 1
    publisher = mqtt.connect(V5)
    publisher.publish(topic, bytes(room + 1), qos=qos)
    publisher.publish(topic, bytes(room), qos=qos)
    message = client.receive()
    assert (message.size, len(message.payload)) == (300, room)


@pytest.mark.statement("v5:3.1.2-24", "v5:3.1.2-25")
def test_properties_count_for_the_size(mqtt: Mqtt) -> None:
    """What makes a packet too large may be its properties, also those the server adds."""
    topic = mqtt.topic()
    client = mqtt.connect(V5, props=[(SIZE, 150)])
    client.subscribe(topic, props=[(wire.SUBSCRIPTION_IDENTIFIER, 268_435_455)])
    publisher = mqtt.connect(V5)
    pair = (wire.USER_PROPERTY, ("k" * 60, "v" * 60))
    publisher.publish(topic, b"large", props=[pair])
    for extra in range(20):
        publisher.publish(topic, bytes(100 + extra))
    publisher.publish(topic, b"small")
    client.receive_until(b"small")


@pytest.mark.statement("v5:3.1.2-25")
def test_retained_message_too_large_for_a_client(mqtt: Mqtt) -> None:
    """Retained messages that do not fit are left out, the others come."""
    root = mqtt.topic()
    publisher = mqtt.connect(V5)
    for name, size in (("a", 10), ("b", 500), ("c", 10)):
        publisher.publish(f"{root}/{name}", bytes(size), qos=1, retain=True)
    found = mqtt.retained(V5, f"{root}/#", qos=1, props=[(SIZE, 200)])
    assert sorted(message.topic for message in found) == [f"{root}/a", f"{root}/c"]


@pytest.mark.statement(
    "v5:3.4.2-2", "v5:3.4.2-3", "v5:3.5.2-2", "v5:3.5.2-3", "v5:3.7.2-2", "v5:3.7.2-3",
    "v5:3.9.2-1", "v5:3.9.2-2", "v5:3.11.2-1", "v5:3.11.2-2", "v5:3.14.2-3", "v5:3.14.2-4",
    "v5:3.6.2-2", "v5:3.6.2-3",
)  # fmt: skip
def test_answers_fit_the_clients_maximum(restricted: Mqtt) -> None:
    """Reason strings and user properties are left out where they would make a packet too large.

    The client asserts the size of everything it receives; errors are what a server explains.
    """
    client = restricted.connect(V5, props=[(SIZE, 20)])
    assert client.publish("secret/x", b"x", qos=1) == 0x87
    assert client.publish("secret/x", b"x", qos=2) == 0x87
    assert client.subscribe("secret/x", granted=False).reasons == [0x87]
    assert client.unsubscribe("secret/x").reasons == [0x11]
    client.send(wire.acknowledge(wire.PUBREL, 9))
    assert client.expect(wire.PUBCOMP).reason == 0x92
    client.send(b"\xf3\x00")
    client.expect_error(0x81, 0x82)


@pytest.mark.statement("v5:3.2.2-19", "v5:3.2.2-20", "v5:3.1.2-24")
def test_refusals_fit_the_clients_maximum(fluxmq: Mqtt) -> None:
    """A CONNACK that refuses is held to the size the CONNECT gave, too."""
    assert fluxmq.refused(V5, "amqp:x", props=[(SIZE, 10)]) == 0x85


@pytest.mark.statement("v5:3.1.2-24")
def test_a_connack_too_large_for_its_client(fluxmq: Mqtt) -> None:
    """Row F8: refused (0x95) where that fits, closed without a word where it does not; the session is left alone."""
    other = fluxmq.connect(V5, props=[(wire.SESSION_EXPIRY_INTERVAL, 100)])
    assert fluxmq.refused(V5, other.client_id, props=[(SIZE, 10)]) == 0x95
    silent = fluxmq.open(V5)
    silent.send(wire.connect(V5, other.client_id, props=[(SIZE, 4)]))
    silent.expect_closed()
    assert other.ping() == []


@pytest.mark.statement("v5:3.1.2-24")
@pytest.mark.parametrize("kind", ["subscribe", "unsubscribe"])
def test_an_answer_too_large_for_its_client(fluxmq: Mqtt, kind: str) -> None:
    """Row F8: one reason more than Maximum Packet Size has room for ends the connection (0x95)."""
    room = 60 - 5
    for count, fits in ((room, True), (room + 1, False)):
        client = fluxmq.connect(V5, props=[(SIZE, 60)])
        client.maximum_packet_size = 60
        topics = [f"{fluxmq.topic()}/{number}" for number in range(count)]
        if kind == "subscribe":
            client.send(wire.subscribe(V5, 1, [Filter(topic) for topic in topics]))
        else:
            client.send(wire.unsubscribe(V5, 1, topics))
        if fits:
            answer = client.expect(wire.SUBACK if kind == "subscribe" else wire.UNSUBACK)
            assert (answer.size, len(answer.reasons)) == (60, count)
        else:
            client.expect_error(0x95)


@pytest.mark.statement("v5:3.1.2-29")
@pytest.mark.parametrize("asked", [0, 1])
def test_problem_information(restricted: Mqtt, asked: int) -> None:
    """With Request Problem Information 0 only PUBLISH, CONNACK and DISCONNECT explain themselves.

    The client fails on any other packet with a reason string or user property.
    """
    client = restricted.connect(V5, props=[(wire.REQUEST_PROBLEM_INFORMATION, asked)])
    assert client.publish("secret/x", b"x", qos=1) == 0x87
    assert client.publish("secret/x", b"x", qos=2) == 0x87
    assert client.subscribe("secret/x", "#", granted=False).reasons == [0x87, 0x87]
    assert client.unsubscribe("secret/x").reasons == [0x11]
    client.send(wire.acknowledge(wire.PUBREL, 9))
    assert client.expect(wire.PUBCOMP).reason == 0x92
    client.subscribe(Filter("open/x", 1))
    props = [(wire.USER_PROPERTY, ("always", "passed on"))]
    client.publish("open/x", b"x", qos=1, props=props)
    assert client.receive().properties == props


def test_maximum_packet_size_zero(mqtt: Mqtt) -> None:
    """0 is no Maximum Packet Size (3.1.2.11.4)."""
    client = mqtt.open(V5)
    client.send(wire.connect(V5, mqtt.client_id(), props=[(SIZE, 0)]))
    try:
        assert client.next().reason in (0x81, 0x82)
    except AssertionError:
        assert client.closed
        return
    client.expect_closed()

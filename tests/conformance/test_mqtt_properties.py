"""Properties: section 2.2.2, and those of PUBLISH in 3.3.2.3."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance import wire
from tests.conformance.conftest import Mqtt
from tests.conformance.test_mqtt_qos1 import persistent
from tests.conformance.wire import V5, Filter, Will

EXPIRY = wire.MESSAGE_EXPIRY_INTERVAL


def raw_property(identifier: int, value: bytes) -> bytes:
    """A property list of one entry whose value is not checked."""
    body = bytes([identifier]) + value
    return wire.variable(len(body)) + body


@pytest.mark.statement(
    "v5:3.3.2-4", "v5:3.3.2-15", "v5:3.3.2-16", "v5:3.3.2-17", "v5:3.3.2-18", "v5:3.3.2-20"
)
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_publication_properties_are_passed_on(mqtt: Mqtt, qos: int) -> None:
    """To every subscriber, unaltered, user properties in their order and as often as they come."""
    topic = mqtt.topic()
    subscribers = [mqtt.subscriber(V5, topic, qos=qos) for _ in range(2)]
    pairs = [("b", "1"), ("a", "2"), ("b", "1"), ("", ""), ("é", "漢字"), ("a", "x" * 1000)]
    props: list[tuple[int, Any]] = [
        (wire.PAYLOAD_FORMAT_INDICATOR, 1),
        (wire.CONTENT_TYPE, "text/plain; charset=utf-8"),
        (wire.RESPONSE_TOPIC, "answers/é"),
        (wire.CORRELATION_DATA, bytes(range(256))),
        *((wire.USER_PROPERTY, pair) for pair in pairs),
    ]
    mqtt.connect(V5).publish(topic, "ü".encode(), qos=qos, props=props)
    for subscriber in subscribers:
        message = subscriber.receive()
        assert message.all(wire.USER_PROPERTY) == pairs
        assert sorted(message.properties, key=str) == sorted(props, key=str)


@pytest.mark.parametrize(
    "props",
    [
        [(wire.PAYLOAD_FORMAT_INDICATOR, 0)],
        [(wire.CONTENT_TYPE, "")],
        [(wire.CORRELATION_DATA, b"")],
    ],
    ids=["format 0", "empty content type", "empty correlation data"],
)
def test_empty_values_are_values(mqtt: Mqtt, props: list[tuple[int, Any]]) -> None:
    """A property that is present but empty is passed on as it is."""
    topic = mqtt.topic()
    subscriber = mqtt.subscriber(V5, topic)
    mqtt.connect(V5).publish(topic, b"x", props=props)
    assert subscriber.receive().properties == props


@pytest.mark.statement("v5:2.2.2-1")
def test_no_properties_is_length_zero(mqtt: Mqtt) -> None:
    """A PUBLISH without properties says so with one byte 0 (its absence would not parse)."""
    topic = mqtt.topic()
    subscriber = mqtt.subscriber(V5, topic)
    mqtt.connect(V5).publish(topic, b"payload")
    message = subscriber.receive()
    assert (message.properties, message.payload) == ([], b"payload")
    assert message.size == len(wire.publish(V5, topic, b"payload"))


@pytest.mark.statement("v5:3.3.2-6")
def test_expiry_is_passed_on_with_time_taken_off(mqtt: Mqtt) -> None:
    """Live it arrives as it was; after a wait it has become less."""
    topic = mqtt.topic()
    live = mqtt.subscriber(V5, topic, qos=1)
    late = persistent(mqtt, V5)
    late.subscribe(topic, qos=1)
    late.disconnect()
    publisher = mqtt.connect(V5)
    publisher.publish(topic, b"x", qos=1, props=[(EXPIRY, 100)])
    assert live.receive().property(EXPIRY) in (99, 100)
    publisher.quiet(2.1)
    late = persistent(mqtt, V5, late.client_id)
    assert 90 <= late.receive().property(EXPIRY) <= 98


@pytest.mark.statement("v5:3.3.2-5")
@pytest.mark.parametrize("qos", [1, 2])
def test_expired_message_is_not_delivered(mqtt: Mqtt, qos: int) -> None:
    """What could not be sent in its time is dropped; what has no expiry stays."""
    topic = mqtt.topic()
    client = persistent(mqtt, V5)
    client.subscribe(topic, qos=qos)
    client.disconnect()
    publisher = mqtt.connect(V5)
    publisher.publish(topic, b"short", qos=qos, props=[(EXPIRY, 1)])
    publisher.publish(topic, b"for ever", qos=qos)
    publisher.publish(topic, b"long", qos=qos, props=[(EXPIRY, 0xFFFFFFFF)])
    publisher.quiet(1.6)
    client = persistent(mqtt, V5, client.client_id)
    assert [client.receive().payload, client.receive().payload] == [b"for ever", b"long"]
    assert client.ping() == []


@pytest.mark.statement("v5:3.3.2-5")
def test_message_expires_behind_a_full_window(mqtt: Mqtt) -> None:
    """A message that waits for the receiver's window expires there as well."""
    topic = mqtt.topic()
    client = mqtt.connect(V5, props=[(wire.RECEIVE_MAXIMUM, 1)])
    client.subscribe(topic, qos=1)
    publisher = mqtt.connect(V5)
    publisher.publish(topic, b"first", qos=1)
    held = client.expect(wire.PUBLISH)
    publisher.publish(topic, b"short", qos=1, props=[(EXPIRY, 1)])
    publisher.publish(topic, b"last", qos=1)
    client.quiet(1.6)
    client.acknowledge(held)
    assert client.receive().payload == b"last"
    assert client.ping() == []


# --- errors -------------------------------------------------------------------------------------

PUBLISH_ERRORS: dict[str, tuple[bytes, set[int]]] = {
    "unknown identifier": (raw_property(0x7F, b"\0"), {0x81, 0x82}),
    "identifier 0": (raw_property(0x00, b"\0"), {0x81, 0x82}),
    "identifier of two bytes": (b"\3\x81\0\0", {0x81, 0x82}),
    "property of CONNECT": (raw_property(wire.RECEIVE_MAXIMUM, b"\0\1"), {0x81, 0x82}),
    "property of CONNACK": (raw_property(wire.MAXIMUM_QOS, b"\1"), {0x81, 0x82}),
    "property of a will": (raw_property(wire.WILL_DELAY_INTERVAL, bytes(4)), {0x81, 0x82}),
    "reason string": (raw_property(wire.REASON_STRING, b"\0\1a"), {0x81, 0x82}),
    "payload format 2": (raw_property(wire.PAYLOAD_FORMAT_INDICATOR, b"\2"), {0x81, 0x82}),
    "payload format twice": (b"\4\1\1\1\1", {0x82}),
    "expiry twice": (b"\x0a\2\0\0\0\1\2\0\0\0\1", {0x82}),
    "alias twice": (b"\6\x23\0\1\x23\0\1", {0x82}),
    "response topic twice": (b"\x08\x08\0\1a\x08\0\1a", {0x82}),
    "correlation data twice": (b"\x08\x09\0\1a\x09\0\1a", {0x82}),
    "content type twice": (b"\x08\x03\0\1a\x03\0\1a", {0x82}),
    "expiry cut short": (b"\3\2\0\0", {0x81}),
    "string cut short": (b"\4\3\0\5a", {0x81}),
    "pair with one string": (b"\4\x26\0\1a", {0x81}),
    "length beyond the packet": (b"\x7f\1\1", {0x81}),
    "length of five bytes": (b"\xff\xff\xff\xff\1", {0x81}),
    "response topic +": (raw_property(wire.RESPONSE_TOPIC, b"\0\3a/+"), {0x81, 0x82, 0x90}),
    "response topic #": (raw_property(wire.RESPONSE_TOPIC, b"\0\1#"), {0x81, 0x82, 0x90}),
    "response topic not UTF-8": (raw_property(wire.RESPONSE_TOPIC, b"\0\1\xff"), {0x81}),
    "content type not UTF-8": (raw_property(wire.CONTENT_TYPE, b"\0\2\xc3\x28"), {0x81}),
    "key not UTF-8": (raw_property(wire.USER_PROPERTY, b"\0\1\xff\0\1a"), {0x81}),
    "value not UTF-8": (raw_property(wire.USER_PROPERTY, b"\0\1a\0\3\xed\xa0\x80"), {0x81}),
    "null in a value": (raw_property(wire.USER_PROPERTY, b"\0\1a\0\1\0"), {0x81}),
}


@pytest.mark.statement(
    "v5:1.5.7-1", "v5:3.3.2-13", "v5:3.3.2-14", "v5:3.3.2-19", "v5:1.5.4-1", "v5:4.13.1-1"
)
@pytest.mark.parametrize("name", PUBLISH_ERRORS)
def test_wrong_properties_in_publish(mqtt: Mqtt, name: str) -> None:
    """Each ends the connection with the code that section 2.2.2 or the property's own names."""
    raw, reasons = PUBLISH_ERRORS[name]
    client = mqtt.connect(V5)
    body = wire.string(mqtt.topic()) + raw
    client.send(wire.frame(wire.PUBLISH << 4, body))
    client.expect_error(*reasons)


@pytest.mark.statement("v5:1.5.5-1")
@pytest.mark.parametrize("length", [b"\x80\0", b"\x80\x80\0", b"\x80\x80\x80\0", b"\x82\0\1\1"])
def test_property_length_longer_than_needed(mqtt: Mqtt, length: bytes) -> None:
    """A Variable Byte Integer uses as few bytes as possible."""
    client = mqtt.connect(V5)
    client.send(wire.frame(wire.PUBLISH << 4, wire.string(mqtt.topic()) + length))
    client.expect_error(0x81)


CONNECT_ERRORS: dict[str, bytes] = {
    "session expiry twice": b"\x0a\x11\0\0\0\1\x11\0\0\0\1",
    "receive maximum twice": b"\6\x21\0\1\x21\0\1",
    "receive maximum 0": b"\3\x21\0\0",
    "packet size twice": b"\x0a\x27\0\1\0\0\x27\0\1\0\0",
    "packet size 0": b"\5\x27\0\0\0\0",
    "alias maximum twice": b"\6\x22\0\1\x22\0\1",
    "response information 2": b"\2\x19\2",
    "response information twice": b"\4\x19\1\x19\1",
    "problem information 2": b"\2\x17\2",
    "problem information twice": b"\4\x17\1\x17\1",
    "authentication data alone": b"\4\x16\0\1a",
    "authentication method twice": b"\x08\x15\0\1a\x15\0\1a",
    "property of PUBLISH": b"\3\x23\0\1",
    "property of CONNACK": b"\4\x12\0\1a",
    "will delay": b"\5\x18\0\0\0\1",
    "unknown": b"\2\x7e\0",
    "cut short": b"\3\x11\0\0",
    "length beyond the packet": b"\xff\x7f",
}


@pytest.mark.statement("v5:3.1.4-1", "v5:3.1.4-2", "v5:3.14.0-1")
@pytest.mark.parametrize("name", CONNECT_ERRORS)
def test_wrong_properties_in_connect(mqtt: Mqtt, name: str) -> None:
    """A CONNACK with 0x81 or 0x82 may come before the end, a DISCONNECT must not."""
    client = mqtt.open(V5)
    head = wire.string("MQTT") + b"\5\2\0\x3c" + CONNECT_ERRORS[name]
    client.send(wire.frame(wire.CONNECT << 4, head + wire.string(mqtt.client_id())))
    try:
        connack = client.next()
    except AssertionError:
        assert client.closed
        return
    assert (connack.kind, connack.reason) in ((wire.CONNACK, 0x81), (wire.CONNACK, 0x82))
    client.expect_closed()


@pytest.mark.parametrize(
    "props",
    [
        [(wire.PAYLOAD_FORMAT_INDICATOR, 2)],
        [(wire.PAYLOAD_FORMAT_INDICATOR, 1)] * 2,
        [(wire.WILL_DELAY_INTERVAL, 1)] * 2,
        [(wire.RESPONSE_TOPIC, "a/#")],
        [(wire.TOPIC_ALIAS, 1)],
        [(wire.SESSION_EXPIRY_INTERVAL, 1)],
    ],
)
def test_wrong_properties_in_a_will(mqtt: Mqtt, props: list[tuple[int, Any]]) -> None:
    """The will's properties follow the rules of publications."""
    client = mqtt.open(V5)
    will = Will(mqtt.topic(), b"x", properties=props)
    client.send(wire.connect(V5, mqtt.client_id(), will=will))
    try:
        connack = client.next()
    except AssertionError:
        assert client.closed
        return
    assert connack.reason in (0x81, 0x82, 0x90)
    client.expect_closed()


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (wire.SUBSCRIBE, b"\0\1" + raw_property(wire.TOPIC_ALIAS, b"\0\1") + b"\0\1a\0"),
        (wire.SUBSCRIBE, b"\0\1" + raw_property(wire.REASON_STRING, b"\0\1a") + b"\0\1a\0"),
        (wire.UNSUBSCRIBE, b"\0\1" + raw_property(wire.SUBSCRIPTION_IDENTIFIER, b"\1") + b"\0\1a"),
        (wire.PUBACK, b"\0\1\0" + raw_property(wire.CONTENT_TYPE, b"\0\1a")),
        (wire.PUBREC, b"\0\1\0\x08\x1f\0\1a\x1f\0\1a"),
        (wire.PUBREL, b"\0\1\0" + raw_property(wire.TOPIC_ALIAS, b"\0\1")),
        (wire.PUBCOMP, b"\0\1\0" + raw_property(0x7F, b"\0")),
        (wire.PUBCOMP, b"\0\1\0\x05"),
        (wire.DISCONNECT, b"\0" + raw_property(wire.RECEIVE_MAXIMUM, b"\0\1")),
        (wire.DISCONNECT, b"\0\x08\x1f\0\1a\x1f\0\1a"),
    ],
)
def test_wrong_properties_elsewhere(mqtt: Mqtt, kind: int, body: bytes) -> None:
    """Table 2-4 says which packet has which property, and none but user properties come twice."""
    client = mqtt.connect(V5)
    client.send(wire.frame(kind << 4 | wire.FLAGS.get(kind, 0), body))
    client.expect_error(0x81, 0x82)


def test_user_properties_are_welcome_everywhere(mqtt: Mqtt) -> None:
    """Every packet of a client may carry them, several times."""
    pairs = [(wire.USER_PROPERTY, ("k", "v")), (wire.USER_PROPERTY, ("k", "v"))]
    topic = mqtt.topic()
    will = Will(topic, b"x", properties=pairs)
    client = mqtt.connect(V5, props=pairs, will=will)
    client.subscribe(Filter(topic, 2), props=pairs)
    client.send(wire.publish(V5, topic, b"1", qos=2, packet_id=9, props=pairs))
    client.take(wire.PUBREC)
    client.send(wire.acknowledge(wire.PUBREL, 9, 0, pairs))
    client.take(wire.PUBCOMP)
    message = client.take(wire.PUBLISH)
    assert message.properties == pairs
    client.send(wire.acknowledge(wire.PUBREC, message.packet_id, 0, pairs))
    client.take(wire.PUBREL)
    client.send(wire.acknowledge(wire.PUBCOMP, message.packet_id, 0, pairs))
    client.unsubscribe(topic, props=pairs)
    assert client.ping() == []
    client.disconnect(0, pairs)


def test_user_properties_beyond_the_limit(limited: Mqtt) -> None:
    """More than the server's limit (here 4) in one packet ends the connection."""
    topic = limited.topic()
    client = limited.subscriber(V5, topic, qos=1)
    pairs = [(wire.USER_PROPERTY, ("k", str(n))) for n in range(4)]
    client.publish(topic, b"x", qos=1, props=pairs)
    assert client.receive().properties == pairs
    client.send(wire.publish(V5, topic, b"x", qos=1, packet_id=99, props=[*pairs, pairs[0]]))
    client.expect_error(0x82, 0x83, 0x95, 0x97)

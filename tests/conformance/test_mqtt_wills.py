"""Will messages: sections 3.1.2.5 to 3.1.2.7, 3.1.3.2 to 3.1.3.4."""

from __future__ import annotations

import time

import pytest

from tests.conformance import wire
from tests.conformance.client import eventually
from tests.conformance.conftest import Mqtt
from tests.conformance.wire import V4, V5, Filter, Will

EXPIRY, DELAY = wire.SESSION_EXPIRY_INTERVAL, wire.WILL_DELAY_INTERVAL


@pytest.mark.statement("v5:3.1.2-7", "v5:3.1.2-8", "v4:3.1.2-8", "v5:3.1.2-12", "v4:3.1.2-14")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_will_is_published_when_the_connection_breaks(mqtt: Mqtt, version: int, qos: int) -> None:
    """Closed without a DISCONNECT: the will goes out, at its own QoS."""
    topic = mqtt.topic()
    watcher = mqtt.subscriber(version, topic, qos=2)
    mqtt.connect(version, will=Will(topic, b"gone", qos)).drop()
    message = watcher.receive()
    assert (message.topic, message.payload, message.qos) == (topic, b"gone", qos)
    assert not message.retain


@pytest.mark.statement("v5:3.1.2-14", "v5:3.1.2-15", "v4:3.1.2-16", "v4:3.1.2-17")
@pytest.mark.parametrize("retain", [False, True])
def test_retained_will(mqtt: Mqtt, version: int, retain: bool) -> None:
    """Will Retain decides whether later subscribers find the will."""
    topic = mqtt.topic()
    watcher = mqtt.subscriber(version, topic)
    mqtt.connect(version, will=Will(topic, b"gone", 1, retain)).drop()
    assert not watcher.receive().retain
    found = mqtt.retained(version, topic)
    assert [(m.payload, m.retain) for m in found] == ([(b"gone", True)] if retain else [])


def test_retained_will_without_payload_clears(mqtt: Mqtt, version: int) -> None:
    """An empty retained will removes the retained message, as any publication would."""
    topic = mqtt.topic()
    watcher = mqtt.connect(version)
    watcher.publish(topic, b"kept", retain=True, qos=1)
    watcher.subscribe(topic)
    assert watcher.receive().payload == b"kept"
    mqtt.connect(version, will=Will(topic, b"", 0, True)).drop()
    assert watcher.receive().payload == b""
    assert mqtt.retained(version, topic) == []


@pytest.mark.statement("v4:3.1.2-12")
def test_no_will_no_message(mqtt: Mqtt, version: int) -> None:
    """A connection without a will ends in silence, also when an earlier one had a will."""
    topic = mqtt.topic()
    watcher = mqtt.subscriber(version, topic)
    client = mqtt.connect(version, will=Will(topic, b"first"))
    client.disconnect()
    mqtt.connect(version, client.client_id).drop()
    mqtt.connect(version).publish(topic, b"marker")
    assert watcher.receive_until(b"marker") == []


@pytest.mark.statement("v5:3.1.2-10", "v4:3.1.2-10")
def test_will_is_published_once(mqtt: Mqtt, version: int) -> None:
    """Once published it is gone: the session's next connection has none."""
    topic = mqtt.topic()
    watcher = mqtt.subscriber(version, topic)
    props = [(EXPIRY, 60)] if version == V5 else []
    client = mqtt.connect(version, clean=False, will=Will(topic, b"once"), props=props)
    client.drop()
    assert watcher.receive().payload == b"once"
    mqtt.connect(version, client.client_id, clean=False, props=props).drop()
    again = mqtt.connect(version, client.client_id, clean=False, props=props)
    again.publish(topic, b"marker")
    assert watcher.receive_until(b"marker") == []


@pytest.mark.statement("v5:3.1.2-8", "v4:3.1.2-8", "v5:4.13.1-1", "v4:4.8.0-1")
def test_will_after_a_protocol_error(mqtt: Mqtt, version: int) -> None:
    """When the server closes because of an error, the will is published."""
    topic = mqtt.topic()
    watcher = mqtt.subscriber(version, topic)
    client = mqtt.connect(version, will=Will(topic, b"error"))
    client.send(b"\x00\x00")
    client.expect_error(0x81, 0x82)
    assert watcher.receive().payload == b"error"


@pytest.mark.statement("v5:3.1.2-8", "v4:3.1.2-8")
def test_will_on_take_over(mqtt: Mqtt, version: int) -> None:
    """The connection that is taken over is closed without DISCONNECT: its will is published."""
    topic = mqtt.topic()
    watcher = mqtt.subscriber(version, topic)
    client = mqtt.connect(version, will=Will(topic, b"taken over"))
    mqtt.connect(version, client.client_id)
    assert watcher.receive().payload == b"taken over"


@pytest.mark.statement("v5:3.1.3-10", "v5:3.1.2-7", "v5:3.3.2-4", "v5:3.3.2-15", "v5:3.3.2-20")
def test_will_properties_are_delivered(mqtt: Mqtt) -> None:
    """5.0: all that a publication can carry, user properties in their order; not the delay."""
    topic = mqtt.topic()
    watcher = mqtt.subscriber(V5, topic, qos=1)
    props = [
        (wire.PAYLOAD_FORMAT_INDICATOR, 1),
        (wire.CONTENT_TYPE, "text/plain"),
        (wire.RESPONSE_TOPIC, "answers/here"),
        (wire.CORRELATION_DATA, b"\x00\xff"),
        *((wire.USER_PROPERTY, (f"k{n % 3}", f"v{n}")) for n in range(10)),
    ]
    will = Will(
        topic, b"gone", 1, properties=[(DELAY, 0), (wire.MESSAGE_EXPIRY_INTERVAL, 60), *props]
    )
    mqtt.connect(V5, will=will).drop()
    message = watcher.receive()
    assert message.all(wire.USER_PROPERTY) == [value for key, value in props[4:]]
    assert message.property(wire.MESSAGE_EXPIRY_INTERVAL) in (59, 60)
    for key, value in props[:4]:
        assert message.property(key) == value


@pytest.mark.statement("v5:3.1.2-8")
def test_will_delay(mqtt: Mqtt) -> None:
    """5.0: the will waits for its delay when the session lives on."""
    topic = mqtt.topic()
    watcher = mqtt.subscriber(V5, topic)
    will = Will(topic, b"gone", properties=[(DELAY, 1)])
    client = mqtt.connect(V5, will=will, props=[(EXPIRY, 60)])
    began = time.monotonic()
    client.drop()
    assert watcher.receive().payload == b"gone"
    assert time.monotonic() - began > 0.9


@pytest.mark.statement("v5:3.1.3-9", "v5:3.1.2-8")
def test_reconnecting_within_the_delay_cancels_the_will(mqtt: Mqtt) -> None:
    """5.0: a client that is back in time is not declared gone."""
    topic = mqtt.topic()
    watcher = mqtt.subscriber(V5, topic)
    will = Will(topic, b"gone", properties=[(DELAY, 1)])
    client = mqtt.connect(V5, will=will, props=[(EXPIRY, 60)])
    client.drop()
    mqtt.connect(V5, client.client_id, clean=False, props=[(EXPIRY, 60)])
    watcher.quiet(1.5)


@pytest.mark.statement("v5:3.1.3-9")
def test_taking_over_within_the_delay_cancels_the_will(mqtt: Mqtt) -> None:
    """5.0: the same when the first connection was still open."""
    topic = mqtt.topic()
    watcher = mqtt.subscriber(V5, topic)
    will = Will(topic, b"gone", properties=[(DELAY, 1)])
    client = mqtt.connect(V5, will=will, props=[(EXPIRY, 60)])
    mqtt.connect(V5, client.client_id, clean=False, props=[(EXPIRY, 60)])
    client.expect_error(0x8E)
    watcher.quiet(1.5)


@pytest.mark.statement("v5:3.1.2-8")
@pytest.mark.parametrize("how", ["expiry", "clean start", "zero expiry", "disconnect"])
def test_end_of_the_session_is_the_end_of_the_delay(mqtt: Mqtt, how: str) -> None:
    """5.0: the will is published at the latest when the session ends."""
    topic = mqtt.topic()
    watcher = mqtt.subscriber(V5, topic)
    will = Will(topic, b"gone", properties=[(DELAY, 600)])
    props = [(EXPIRY, {"expiry": 1, "zero expiry": 0}.get(how, 60))]
    client = mqtt.connect(V5, will=will, props=props)
    if how == "disconnect":
        client.send(wire.disconnect(0x04, [(EXPIRY, 0)]))
        client.expect_closed()
    else:
        client.drop()
    if how == "clean start":
        mqtt.connect(V5, client.client_id, clean=True)
    assert watcher.receive().payload == b"gone"


@pytest.mark.statement("v5:3.2.2-12")
def test_will_of_a_qos_that_is_not_supported(limited: Mqtt) -> None:
    """5.0: refused with 0x9B."""
    will = Will(limited.topic(), b"x", qos=2)
    assert limited.refused(V5, will=will) == 0x9B


@pytest.mark.statement("v5:4.7.0-1", "v4:4.7.1-1", "v5:3.3.2-2")
@pytest.mark.parametrize("topic", ["a/+", "#", "a/#", ""])
def test_will_topic_must_be_a_topic_name(mqtt: Mqtt, version: int, topic: str) -> None:
    """A will to a filter, or to nothing, is refused."""
    client = mqtt.open(version)
    client.send(wire.connect(version, mqtt.client_id(), will=Will(topic, b"x")))
    try:
        connack = client.next()
    except AssertionError:
        assert client.closed
        return
    assert connack.reason in ((0x81, 0x82, 0x90) if version == V5 else (1, 2, 3, 4, 5))
    client.expect_closed()


def test_will_needs_permission(restricted: Mqtt, version: int) -> None:
    """A will to a topic its client may not publish to reaches nobody."""
    ada = restricted.connect(version, username="ada", password=b"correct horse battery staple")
    ada.subscribe(Filter("#", 1))
    client = restricted.open(version)
    client.send(wire.connect(version, restricted.client_id(), will=Will("secret/will", b"x", 1)))
    client.drop()
    ada.publish("open/x", b"marker", qos=1)
    assert ada.receive_until(b"marker") == []


@pytest.mark.statement("v4:3.1.2-8")
def test_retained_will_of_version_4_is_found_by_version_5(mqtt: Mqtt) -> None:
    """Wills are messages like others, across versions."""
    topic = mqtt.topic()
    mqtt.connect(V4, will=Will(topic, b"gone", 1, True)).drop()

    def found() -> bool:
        return [message.payload for message in mqtt.retained(V5, topic)] == [b"gone"]

    eventually(found, "the retained will")


@pytest.mark.statement("v5:3.1.4-2", "v4:3.2.2-5")
def test_will_without_permission_is_refused(restricted: Mqtt, version: int) -> None:
    """A CONNECT whose will could not be published is refused: 0x87, 3.1.1: 5."""
    reason = restricted.refused(version, will=Will("secret/will", b"x", 1))
    assert reason == (0x87 if version == V5 else 5)

"""DISCONNECT: section 3.14."""

from __future__ import annotations

import pytest

from tests.conformance import wire
from tests.conformance.conftest import Mqtt
from tests.conformance.wire import V5, Filter, Will

EXPIRY = wire.SESSION_EXPIRY_INTERVAL


@pytest.mark.statement("v4:3.14.4-1", "v5:3.14.4-2")
def test_connection_is_closed_after_disconnect(mqtt: Mqtt, version: int) -> None:
    """A client that says goodbye and forgets to close is closed, without an answer."""
    client = mqtt.connect(version)
    client.send(wire.disconnect())
    client.expect_closed()


@pytest.mark.statement("v5:3.14.4-1", "v4:3.14.4-2")
def test_packets_behind_a_disconnect_are_not_processed(mqtt: Mqtt, version: int) -> None:
    """DISCONNECT is the last packet of a connection."""
    topic = mqtt.topic()
    watcher = mqtt.subscriber(version, topic)
    client = mqtt.connect(version)
    late = wire.publish(version, topic, b"late", retain=True)
    client.send(wire.disconnect(), late, wire.pingreq())
    client.expect_closed()
    mqtt.connect(version).publish(topic, b"marker")
    assert watcher.receive_until(b"marker") == []
    assert mqtt.retained(version, topic) == []


@pytest.mark.statement("v5:3.14.1-1", "v4:3.14.1-1")
@pytest.mark.parametrize("flags", [1, 2, 4, 8, 15])
def test_disconnect_flags(mqtt: Mqtt, version: int, flags: int) -> None:
    """DISCONNECT's flag bits are validated: 0x81, and the will is published."""
    topic = mqtt.topic()
    watcher = mqtt.subscriber(version, topic)
    client = mqtt.connect(version, will=Will(topic, b"not a normal end"))
    client.send(wire.frame(wire.DISCONNECT << 4 | flags))
    client.expect_error(0x81)
    assert watcher.receive().payload == b"not a normal end"


@pytest.mark.statement("v5:3.14.4-3", "v5:3.1.2-10", "v4:3.14.4-3", "v4:3.1.2-10")
def test_will_is_discarded(mqtt: Mqtt, version: int) -> None:
    """A normal disconnection removes the will."""
    topic = mqtt.topic()
    watcher = mqtt.subscriber(version, topic)
    client = mqtt.connect(version, will=Will(topic, b"will"))
    client.disconnect()
    mqtt.connect(version).publish(topic, b"marker")
    assert watcher.receive_until(b"marker") == []


@pytest.mark.statement("v5:3.1.2-8")
@pytest.mark.parametrize("reason", [0x04, 0x80, 0x83])
def test_disconnect_with_will(mqtt: Mqtt, reason: int) -> None:
    """5.0: any reason but 0x00 keeps the will, 0x04 is the one made for it."""
    topic = mqtt.topic()
    watcher = mqtt.subscriber(V5, topic)
    client = mqtt.connect(V5, will=Will(topic, b"will"))
    client.send(wire.disconnect(reason, []))
    client.expect_closed()
    assert watcher.receive().payload == b"will"


@pytest.mark.statement("v5:3.14.4-3")
@pytest.mark.parametrize(
    "body",
    [b"", b"\0", b"\0\0", b"\0\5\x11\0\0\0\x3c", b"\0\7\x1f\0\4done", b"\0\7\x26\0\1a\0\1b"],
    ids=lambda body: body.hex() or "empty",
)
def test_forms_of_disconnect(mqtt: Mqtt, body: bytes) -> None:
    """5.0: reason code and properties may be left out; each form is a normal end."""
    topic = mqtt.topic()
    watcher = mqtt.subscriber(V5, topic)
    client = mqtt.connect(V5, will=Will(topic, b"will"), props=[(EXPIRY, 30)])
    client.send(wire.frame(wire.DISCONNECT << 4, body))
    client.expect_closed()
    mqtt.connect(V5).publish(topic, b"marker")
    assert watcher.receive_until(b"marker") == []


@pytest.mark.statement("v5:3.14.2-1", "v5:4.13.1-1")
@pytest.mark.parametrize("body", [b"\x03", b"\x8b", b"\0\1", b"\0\5\x11\0\0\0", b"\0\3\x22\0\1"])
def test_malformed_disconnect(mqtt: Mqtt, body: bytes) -> None:
    """Reason codes that are none of a client's, and broken properties."""
    client = mqtt.connect(V5)
    client.send(wire.frame(wire.DISCONNECT << 4, body))
    client.expect_error(0x81, 0x82)


@pytest.mark.parametrize(
    ("connected", "disconnected", "kept"),
    [(60, None, True), (60, 0, False), (60, 120, True), (0, 0, False), (None, 0, False)],
)
def test_session_expiry_in_disconnect(
    mqtt: Mqtt, connected: int | None, disconnected: int | None, kept: bool
) -> None:
    """5.0: DISCONNECT may change the session's expiry (3.14.2.2.2)."""
    client = mqtt.connect(V5, props=[] if connected is None else [(EXPIRY, connected)])
    client.disconnect(0, [] if disconnected is None else [(EXPIRY, disconnected)])
    again = mqtt.open(V5)
    assert again.connect(client.client_id, clean=False).session_present == kept


@pytest.mark.parametrize("connected", [None, 0])
def test_session_expiry_cannot_be_raised_from_zero(mqtt: Mqtt, connected: int | None) -> None:
    """5.0: a session that was to end with its connection cannot be kept after all (0x82)."""
    client = mqtt.connect(V5, props=[] if connected is None else [(EXPIRY, connected)])
    client.send(wire.disconnect(0, [(EXPIRY, 60)]))
    client.expect_error(0x82)
    again = mqtt.open(V5)
    assert not again.connect(client.client_id, clean=False).session_present


@pytest.mark.statement("v5:3.14.2-2", "v5:3.14.2-1", "v5:4.13.2-1", "v5:3.14.4-2", "v5:3.14.4-1")
def test_servers_disconnect(mqtt: Mqtt) -> None:
    """After the server's DISCONNECT nothing follows but the end; it has no Session Expiry."""
    client = mqtt.connect(V5, props=[(EXPIRY, 60)])
    client.subscribe(mqtt.topic("/#"))
    client.send(wire.frame(wire.SUBACK << 4, b"\0\1\0\0"), wire.pingreq())
    said = client.take(wire.DISCONNECT)
    assert said.reason in (0x81, 0x82)
    client.expect_closed()


def test_disconnect_of_a_subscriber_in_mid_stream(mqtt: Mqtt, version: int) -> None:
    """A client that leaves while it is sent messages disturbs nobody."""
    topic = mqtt.topic()
    leaving = mqtt.subscriber(version, topic)
    staying = mqtt.subscriber(version, Filter(topic, 1))
    publisher = mqtt.connect(version)
    for number in range(50):
        publisher.publish(topic, b"%d" % number, qos=1)
        if number == 25:
            leaving.disconnect()
    assert [staying.receive().payload for _ in range(50)] == [b"%d" % n for n in range(50)]

"""UNSUBSCRIBE and UNSUBACK: sections 3.10 and 3.11."""

from __future__ import annotations

import pytest

from tests.conformance import wire
from tests.conformance.conftest import Mqtt
from tests.conformance.test_mqtt_qos1 import persistent
from tests.conformance.wire import V5


@pytest.mark.statement(
    "v5:3.10.4-4", "v5:3.10.4-5", "v5:2.2.1-6", "v5:3.11.3-2",
    "v4:3.10.4-4", "v4:3.10.4-5", "v4:2.3.1-7",
)  # fmt: skip
@pytest.mark.parametrize("packet_id", [1, 256, 0xFFFF])
def test_unsuback(mqtt: Mqtt, version: int, packet_id: int) -> None:
    """Always answered with its identifier, whether there was a subscription or not."""
    topic = mqtt.topic()
    client = mqtt.subscriber(version, topic)
    for reason in (0x00, 0x11):
        client.send(wire.unsubscribe(version, packet_id, [topic]))
        unsuback = client.expect(wire.UNSUBACK)
        assert unsuback.packet_id == packet_id
        assert unsuback.reasons == ([reason] if version == V5 else [])


@pytest.mark.statement("v5:3.11.3-1", "v5:3.10.4-6", "v4:3.10.4-6")
def test_several_filters_in_one_unsubscribe(mqtt: Mqtt, version: int) -> None:
    """One UNSUBACK, in 5.0 with a code for each filter in order."""
    root = mqtt.topic()
    client = mqtt.subscriber(version, f"{root}/a", f"{root}/b", f"{root}/c")
    unsuback = client.unsubscribe(f"{root}/a", f"{root}/none", f"{root}/c")
    assert unsuback.reasons == ([0x00, 0x11, 0x00] if version == V5 else [])
    publisher = mqtt.connect(version)
    for name in "acb":
        publisher.publish(f"{root}/{name}", name.encode())
    assert client.receive_until(b"b") == []


@pytest.mark.statement("v5:3.10.1-1", "v4:3.10.1-1")
@pytest.mark.parametrize("flags", [0, 1, 3, 6, 10, 15])
def test_unsubscribe_flags(mqtt: Mqtt, version: int, flags: int) -> None:
    """UNSUBSCRIBE's flag bits are 0010 and nothing else."""
    client = mqtt.connect(version)
    good = wire.unsubscribe(version, 1, [mqtt.topic()])
    client.send(bytes([wire.UNSUBSCRIBE << 4 | flags]) + good[1:])
    client.expect_error(0x81)


@pytest.mark.statement("v5:3.10.3-2", "v4:3.10.3-2")
def test_unsubscribe_without_a_filter(mqtt: Mqtt, version: int) -> None:
    """A payload without a filter is an error."""
    client = mqtt.connect(version)
    client.send(wire.unsubscribe(version, 1, []))
    client.expect_error(0x81, 0x82)


@pytest.mark.statement("v5:2.2.1-3", "v4:2.3.1-1")
def test_unsubscribe_with_identifier_zero(mqtt: Mqtt, version: int) -> None:
    """Packet identifiers are never 0."""
    client = mqtt.connect(version)
    client.send(wire.unsubscribe(version, 0, [mqtt.topic()]))
    client.expect_error(0x81, 0x82)


@pytest.mark.statement("v5:3.10.4-1", "v4:3.10.4-1")
def test_filters_are_compared_byte_by_byte(mqtt: Mqtt, version: int) -> None:
    """A filter that only matches, or looks alike, removes nothing."""
    root = mqtt.topic()
    client = mqtt.subscriber(version, f"{root}/a", f"{root}/+")
    near = [f"{root}/#", f"{root}/A", f"{root}/a/", f"/{root}/a", "#", "+/+/a", f"{root}/b"]
    unsuback = client.unsubscribe(*near)
    assert unsuback.reasons == ([0x11] * len(near) if version == V5 else [])
    client.unsubscribe(f"{root}/+")
    publisher = mqtt.connect(version)
    publisher.publish(f"{root}/b", b"gone")
    publisher.publish(f"{root}/a", b"kept")
    assert client.receive_until(b"kept") == []


@pytest.mark.statement("v5:3.10.4-2", "v4:3.10.4-2")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_no_message_after_unsuback(mqtt: Mqtt, version: int, qos: int) -> None:
    """What is published after UNSUBACK is not delivered."""
    topic, marker = mqtt.topic(), mqtt.topic()
    client = mqtt.subscriber(version, topic, marker, qos=qos)
    publisher = mqtt.connect(version)
    publisher.publish(topic, b"before", qos=qos)
    assert client.receive().payload == b"before"
    client.unsubscribe(topic)
    publisher.publish(topic, b"after", qos=qos)
    publisher.publish(marker, b"marker", qos=qos)
    assert client.receive_until(b"marker") == []


@pytest.mark.statement("v5:3.10.4-3", "v4:3.10.4-3")
@pytest.mark.parametrize("qos", [1, 2])
def test_deliveries_under_way_are_completed(mqtt: Mqtt, version: int, qos: int) -> None:
    """What the server has begun to send is finished, even over a reconnect."""
    topic = mqtt.topic()
    client = persistent(mqtt, version)
    client.subscribe(topic, qos=qos)
    mqtt.connect(version).publish(topic, b"x", qos=qos)
    first = client.expect(wire.PUBLISH)
    client.unsubscribe(topic)
    client.drop()
    client = persistent(mqtt, version, client.client_id)
    again = client.receive()
    assert (again.packet_id, again.payload, again.dup) == (first.packet_id, b"x", True)
    assert client.ping() == []


def test_unsubscribing_from_a_shared_subscription(mqtt: Mqtt) -> None:
    """Its filter is the whole of it, group included."""
    topic = mqtt.topic()
    client = mqtt.subscriber(V5, f"$share/g/{topic}")
    assert client.unsubscribe(topic, f"$share/h/{topic}").reasons == [0x11, 0x11]
    assert client.unsubscribe(f"$share/g/{topic}").reasons == [0x00]
    marker = mqtt.topic()
    client.subscribe(marker)
    publisher = mqtt.connect(V5)
    publisher.publish(topic, b"x")
    publisher.publish(marker, b"marker")
    assert client.receive_until(b"marker") == []

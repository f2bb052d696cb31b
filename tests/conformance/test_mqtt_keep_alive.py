"""Keep alive and PING: sections 3.1.2.10, 3.12 and 3.13."""

from __future__ import annotations

import time

import pytest

from tests.conformance import wire
from tests.conformance.conftest import Mqtt
from tests.conformance.wire import V5, Will


@pytest.mark.statement("v5:3.12.4-1", "v4:3.12.4-1")
def test_pingreq_is_answered(mqtt: Mqtt, version: int) -> None:
    """One PINGRESP per PINGREQ."""
    client = mqtt.connect(version)
    client.send(wire.pingreq() * 5)
    for _ in range(5):
        client.expect(wire.PINGRESP)
    assert client.ping() == []


@pytest.mark.statement("v5:2.1.3-1", "v4:2.2.2-1", "v4:2.2.2-2")
@pytest.mark.parametrize("flags", [1, 2, 8, 15])
def test_pingreq_flags_are_reserved(mqtt: Mqtt, version: int, flags: int) -> None:
    """PINGREQ's four flag bits are 0."""
    client = mqtt.connect(version)
    client.send(wire.frame(wire.PINGREQ << 4 | flags))
    client.expect_error(0x81, 0x82)


def test_pingreq_has_no_body(mqtt: Mqtt, version: int) -> None:
    """PINGREQ's Remaining Length is 0 (3.12.1)."""
    client = mqtt.connect(version)
    client.send(wire.frame(wire.PINGREQ << 4, b"\0"))
    client.expect_error(0x81, 0x82)


@pytest.mark.statement("v5:3.1.2-22", "v4:3.1.2-24")
def test_silent_client_is_disconnected(mqtt: Mqtt, version: int) -> None:
    """After one and a half times the keep alive, as if the network had failed: the will is sent."""
    topic = mqtt.topic()
    watcher = mqtt.subscriber(version, topic)
    began = time.monotonic()
    client = mqtt.connect(version, keep_alive=1, will=Will(topic, b"silent"))
    # Keep alive 0 switches the mechanism off: this client is as silent and stays.
    patient = mqtt.connect(version, keep_alive=0)
    client.expect_error(0x8D)
    took = time.monotonic() - began
    assert watcher.receive().payload == b"silent"
    assert 1.4 < took < 4.0
    assert patient.ping() == []


@pytest.mark.statement("v5:3.1.2-22", "v4:3.1.2-24")
@pytest.mark.parametrize("what", ["PINGREQ", "PUBLISH"])
def test_any_packet_counts_as_a_sign_of_life(mqtt: Mqtt, version: int, what: str) -> None:
    """Whatever the client sends starts the time anew."""
    client = mqtt.connect(version, keep_alive=1)
    topic = mqtt.topic()
    for _ in range(3):
        client.quiet(0.8)
        if what == "PUBLISH":
            client.publish(topic, b"alive")
        else:
            assert client.ping() == []
    assert client.ping() == []


@pytest.mark.statement("v5:3.1.2-22", "v4:3.1.2-24")
def test_packets_to_a_client_are_no_sign_of_its_life(mqtt: Mqtt, version: int) -> None:
    """Only what the client sends counts, not what it is sent."""
    topic = mqtt.topic()
    client = mqtt.connect(version, keep_alive=1)
    client.subscribe(topic)
    publisher = mqtt.connect(version)
    end = time.monotonic() + 6
    while not client.ended(0.2):
        assert time.monotonic() < end, "a silent client is kept as long as it is sent messages"
        publisher.publish(topic, b"tick")


@pytest.mark.statement("v5:3.2.2-22", "v5:3.1.2-22")
def test_imposed_keep_alive_is_the_one_that_counts(limited: Mqtt) -> None:
    """A client told Server Keep Alive 2 is disconnected by that, not by the 60 it asked for."""
    began = time.monotonic()
    client = limited.connect(V5, keep_alive=60)
    client.expect_error(0x8D)
    assert 2.8 < time.monotonic() - began < 6.0

"""Malformed packets and protocol errors: sections 2.1, 4.13, and 4.8 of 3.1.1."""

from __future__ import annotations

import random

import pytest

from tests.conformance import wire
from tests.conformance.client import Client, payloads
from tests.conformance.conftest import Mqtt
from tests.conformance.wire import V4, V5, Filter, Will


def still_serves(mqtt: Mqtt, version: int, witness: Client) -> None:
    """Another client's connection works as before."""
    topic = mqtt.topic()
    witness.subscribe(topic, qos=1)
    mqtt.connect(version).publish(topic, b"fine", qos=1)
    assert witness.receive().payload == b"fine"


@pytest.mark.statement("v5:4.13.1-1", "v5:4.13.2-1", "v4:4.8.0-1")
@pytest.mark.parametrize("kind", [0, wire.CONNACK, wire.SUBACK, wire.UNSUBACK, wire.PINGRESP])
def test_packets_a_client_must_not_send(mqtt: Mqtt, version: int, kind: int) -> None:
    """The reserved type 0 and the packets that only servers send."""
    witness = mqtt.connect(version)
    bodies = {wire.CONNACK: b"\0\0\0", wire.SUBACK: b"\0\1\0\0", wire.UNSUBACK: b"\0\1\0\0"}
    client = mqtt.connect(version)
    client.send(wire.frame(kind << 4, bodies.get(kind, b"")))
    client.expect_error(0x81, 0x82)
    still_serves(mqtt, version, witness)


@pytest.mark.statement("v4:4.8.0-1", "v4:2.2.2-2")
@pytest.mark.parametrize("packet", [b"\xf0\0", b"\xf0\2\0\0", b"\xff\0"])
def test_type_15_in_version_4(mqtt: Mqtt, packet: bytes) -> None:
    """3.1.1 has no packet type 15."""
    client = mqtt.connect(V4)
    client.send(packet)
    client.expect_closed()


@pytest.mark.statement("v5:2.1.3-1", "v4:2.2.2-1", "v4:2.2.2-2")
@pytest.mark.parametrize("flags", [1, 2, 4, 8])
@pytest.mark.parametrize("kind", [wire.PUBACK, wire.PUBREC, wire.PUBCOMP])
def test_reserved_flags(mqtt: Mqtt, version: int, kind: int, flags: int) -> None:
    """The flag bits of acknowledgements are 0."""
    client = mqtt.connect(version)
    client.send(wire.frame(kind << 4 | flags, b"\0\1"))
    client.expect_error(0x81)


@pytest.mark.statement("v5:4.13.1-1", "v4:4.8.0-1")
@pytest.mark.parametrize(
    "header",
    [
        b"\x30\xff\xff\xff\xff",
        b"\x30\xff\xff\xff\xff\x7f",
        b"\x30\x80\x80\x80\x80\x01",
        b"\xc0\x80\x80\x80\x80\x00",
    ],
    ids=lambda header: header.hex(),
)
def test_remaining_length_of_five_bytes(mqtt: Mqtt, version: int, header: bytes) -> None:
    """Four bytes at most: the fourth has no continuation bit."""
    client = mqtt.connect(version)
    client.send(header)
    client.expect_error(0x81, 0x95)


@pytest.mark.statement("v5:1.5.5-1")
@pytest.mark.parametrize("packet", [b"\xc0\x80\x00", b"\xe0\x80\x80\x00", b"\x40\x82\x00\0\1"])
def test_remaining_length_longer_than_needed(mqtt: Mqtt, packet: bytes) -> None:
    """5.0: Remaining Length is a Variable Byte Integer, in as few bytes as possible."""
    client = mqtt.connect(V5)
    client.send(packet)
    client.expect_error(0x81)


@pytest.mark.statement("v5:4.13.1-1", "v4:4.8.0-1")
@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (wire.PUBACK, b""),
        (wire.PUBACK, b"\0"),
        (wire.PUBREC, b"\1"),
        (wire.PUBREL, b""),
        (wire.PUBCOMP, b"\0"),
        (wire.SUBSCRIBE, b""),
        (wire.SUBSCRIBE, b"\0"),
        (wire.SUBSCRIBE, b"\0\1\0\5a"),
        (wire.UNSUBSCRIBE, b"\0"),
        (wire.UNSUBSCRIBE, b"\0\1\0\5a"),
    ],
)
def test_packets_cut_short(mqtt: Mqtt, version: int, kind: int, body: bytes) -> None:
    """A packet that ends before its fields do."""
    client = mqtt.connect(version)
    client.send(wire.frame(kind << 4 | wire.FLAGS.get(kind, 0), body))
    client.expect_error(0x81, 0x82)


@pytest.mark.statement("v4:4.8.0-1")
@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (wire.PUBACK, b"\0\1\0"),
        (wire.PUBREL, b"\0\1\0\0"),
        (wire.DISCONNECT, b"\0"),
        (wire.SUBSCRIBE, b"\0\1\0\1a"),
    ],
)
def test_packets_too_long_in_version_4(mqtt: Mqtt, kind: int, body: bytes) -> None:
    """Bytes that no field of a 3.1.1 packet accounts for, or that begin a field and end."""
    client = mqtt.connect(V4)
    client.send(wire.frame(kind << 4 | wire.FLAGS.get(kind, 0), body))
    client.expect_closed()


@pytest.mark.statement("v5:3.4.2-1", "v5:3.5.2-1", "v5:3.6.2-1", "v5:3.7.2-1")
@pytest.mark.parametrize("kind", [wire.PUBACK, wire.PUBREC, wire.PUBREL, wire.PUBCOMP])
@pytest.mark.parametrize("reason", [0x01, 0x7F, 0x8D, 0xFF])
def test_reason_codes_that_are_none(mqtt: Mqtt, kind: int, reason: int) -> None:
    """A code that the packet's table does not list."""
    client = mqtt.connect(V5)
    client.send(wire.acknowledge(kind, 1, reason, []))
    client.expect_error(0x81, 0x82)


@pytest.mark.statement("v5:4.13.2-1", "v5:4.13.1-1", "v4:4.8.0-1", "v5:3.14.4-2")
def test_error_in_mid_stream(mqtt: Mqtt, version: int) -> None:
    """What came before the error is done, what came after is not, the connection is closed."""
    topic = mqtt.topic()
    watcher = mqtt.subscriber(version, topic, qos=1)
    client = mqtt.connect(version)
    client.send(
        wire.publish(version, topic, b"before", qos=1, packet_id=1),
        b"\x00\x00",
        wire.publish(version, topic, b"after", qos=1, packet_id=2),
    )
    client.expect_error(0x81, 0x82)
    mqtt.connect(version).publish(topic, b"marker", qos=1)
    assert payloads(watcher.receive_until(b"marker")) == [b"before"]


@pytest.mark.statement("v4:4.8.0-1", "v5:4.13.1-1")
def test_connection_broken_inside_a_packet(mqtt: Mqtt, version: int) -> None:
    """Half a PUBLISH has no effect, the will is published."""
    topic = mqtt.topic()
    watcher = mqtt.subscriber(version, topic, qos=1)
    client = mqtt.connect(version, will=Will(topic, b"broken"))
    whole = wire.publish(version, topic, bytes(1000), qos=1, packet_id=1)
    client.send(whole[:500])
    client.drop()
    assert watcher.receive().payload == b"broken"
    assert watcher.ping() == []


def test_packets_in_any_pieces(mqtt: Mqtt, version: int) -> None:
    """A stream of packets cut at random places, many packets or none in a write."""
    chance = random.Random(20_260_101)
    topic = mqtt.topic()
    watcher = mqtt.subscriber(version, topic, qos=1)
    client = mqtt.connect(version)
    sent = [bytes([n]) * chance.choice([0, 1, 5, 130, 20_000]) for n in range(60)]
    stream = b"".join(
        wire.publish(version, topic, payload, qos=1, packet_id=n)
        for n, payload in enumerate(sent, 1)
    )
    while stream:
        size = chance.choice([1, 2, 3, 10, 1000, 40_000])
        client.send(stream[:size])
        stream = stream[size:]
    for number in range(1, 61):
        assert client.expect(wire.PUBACK).packet_id == number
    assert payloads(watcher.receive() for _ in sent) == sent


@pytest.mark.statement("v4:4.8.0-1", "v5:4.13.1-1")
@pytest.mark.parametrize("seed", range(40))
def test_random_bytes(mqtt: Mqtt, version: int, seed: int) -> None:
    """Whatever bytes a client sends, others are served; the connection ends or answers."""
    chance = random.Random(seed * 10 + version)
    client = mqtt.connect(version)
    good = [
        wire.publish(version, "a/b", b"x" * 20, qos=1, packet_id=1),
        wire.subscribe(version, 2, [Filter("a/#", 1)]),
        wire.unsubscribe(version, 3, ["a/#"]),
        wire.acknowledge(wire.PUBREL, 4),
    ]
    for _ in range(20):
        data = bytearray(chance.choice(good))
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        client.send(bytes(data))
    client.drop()
    still_serves(mqtt, version, mqtt.connect(version))


@pytest.mark.statement("v4:4.8.0-1")
def test_version_5_packets_in_version_4(mqtt: Mqtt) -> None:
    """A connection keeps the version of its CONNECT: properties are not understood in 3.1.1."""
    client = mqtt.connect(V4)
    client.send(wire.subscribe(V5, 1, [Filter("a", 0)]))
    client.expect_closed()

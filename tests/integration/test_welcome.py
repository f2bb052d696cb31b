"""What clients that nobody here wrote do, and are let do: large packets, old versions, names that mean nothing."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest

from tests.broker import Broker, client_tls, running_broker
from tests.conformance import wire
from tests.conformance.client import Client, tcp
from tests.conformance.conftest import Mqtt
from tests.conformance.wire import V4, V5

MIB = 1 << 20


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker of two shards with the defaults."""
    directory: Path = tmp_path_factory.mktemp("welcome")
    with running_broker(directory, workers=2, tls=True) as started:
        yield started


@pytest.fixture
def mqtt(node: Broker) -> Iterator[Mqtt]:
    """Clients of that broker."""
    with ExitStack() as stack:
        yield Mqtt(node, stack)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_packets_of_16_mib_reach_every_shard(node: Broker, mqtt: Mqtt, qos: int) -> None:
    """In pieces through the rings between shards, which are smaller; past the output limit of a client that reads."""
    topic = mqtt.topic()
    subscribers = [mqtt.subscriber(V5, topic, qos=qos) for _ in range(4)]
    payload = os.urandom(16 * MIB - 100)
    publisher = mqtt.connect(V5)
    publisher.publish(topic, payload, qos=qos)
    for subscriber in subscribers:
        assert subscriber.receive(60).payload == payload


def test_a_packet_above_16_mib_is_refused(mqtt: Mqtt) -> None:
    client = mqtt.connect(V5)
    client.send(wire.publish(V5, mqtt.topic(), bytes(16 * MIB)))
    client.expect_error(0x95)


def test_announcing_large_packets_takes_no_memory(node: Broker, mqtt: Mqtt) -> None:
    """100 clients announce 16 MiB each, and send a little: that is 1.6 GB if it is believed."""

    def resident() -> int:
        pids = node.pids()
        return sum(psutil.Process(pids[f"shard {shard}"]).memory_info().rss for shard in (0, 1))

    clients = [mqtt.connect(V5) for _ in range(100)]
    before = resident()
    for client in clients:
        client.send(wire.publish(V5, "t", bytes(15 * MIB))[: 4 << 10])
    mqtt.connect(V5).ping()
    assert resident() - before < 64 * MIB


@pytest.mark.parametrize("version", [V4, V5])
@pytest.mark.parametrize("transport", ["tcp", "tls", "websocket"])
def test_large_connects(node: Broker, mqtt: Mqtt, version: int, transport: str) -> None:
    """Up to 128 KiB, wherever the client id is; a larger one is told 0x95 before it is closed."""

    def fresh() -> Client:
        if transport == "websocket":
            return mqtt.over(mqtt.web_socket(), version)
        if transport == "tls":
            return mqtt.over(tcp(node.host, node.tls_port, client_tls()), version)
        return mqtt.open(version)

    will = wire.Will(mqtt.topic(), bytes(60_000))
    filling = b"x" * 30_000
    props = [(wire.USER_PROPERTY, ("name", "x" * 50_000))] if version == V5 else []
    client = fresh()
    assert client.connect(mqtt.client_id(), will=will, props=props).reason == 0
    client.ping()
    refused = fresh()
    large = wire.connect(
        version,
        mqtt.client_id(),
        will=wire.Will("t", bytes(65_000)),
        password=filling * 2,
        username="y" * 60_000,
        props=props,
    )
    assert len(large) > 128 << 10
    with suppress(ConnectionError, ssl.SSLError):  # the broker closes before it has read all
        refused.send(large)
    if version == V5:
        connack = refused.next()
        assert (connack.kind, connack.reason) == (wire.CONNACK, 0x95)
    assert refused.ended(15)


def test_mqtt_3_1(mqtt: Mqtt) -> None:
    """As 3.1.1, with other bytes at the beginning and a client id of any length."""
    client = mqtt.open(V4)
    client.send(wire.connect(V4, "c" * 60, protocol=b"MQIsdp", level=3))
    connack = client.next()
    assert (connack.kind, connack.reason) == (wire.CONNACK, 0)
    topic = mqtt.topic()
    client.subscribe(topic, qos=1)
    client.publish(topic, b"x", qos=1)
    assert client.receive().payload == b"x"


@pytest.mark.parametrize("version", [V4, V5])
def test_names_that_mean_nothing(mqtt: Mqtt, version: int) -> None:
    """An empty name is none; nobody has added a user here, so an unknown one is none, too."""
    for fields in (
        {"username": ""},
        {"username": "", "password": b""},
        {"username": "sensor", "password": b"whatever"},
    ):
        client = mqtt.connect(version, **fields)
        assert client.ping() == []
    reason = mqtt.refused(version, username="guest", password=b"wrong")
    assert reason == (0x86 if version == V5 else 4)


def test_deep_topics(mqtt: Mqtt) -> None:
    """201 levels, as other brokers have it."""
    client = mqtt.connect(V5)
    deep = "/".join(["l"] * 201)
    client.subscribe(deep)
    client.publish(deep, b"x", qos=1)
    assert client.receive().payload == b"x"
    client.send(wire.publish(V5, deep + "/l", b"x"))
    client.expect_error(0x90)

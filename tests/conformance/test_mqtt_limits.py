"""What the standard leaves to the server: bounds of sessions and output, slow readers, the end of the broker."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.broker import Broker, BrokerFactory
from tests.conformance import wire
from tests.conformance.client import eventually, payloads
from tests.conformance.conftest import Mqtt
from tests.conformance.test_mqtt_qos1 import KEEP, persistent
from tests.conformance.wire import V4, V5, Filter, Will


@pytest.fixture
def node(own_broker: BrokerFactory) -> Iterator[Callable[..., Mqtt]]:
    """Starts a broker with settings and makes its clients."""
    with ExitStack() as stack:
        yield lambda **settings: Mqtt(own_broker(settings=settings), stack)


def test_sessions_are_limited(node: Callable[..., Mqtt]) -> None:
    """A new session beyond max_sessions is refused (0x97, 3.1.1: 3); room comes back with an end."""
    mqtt = node(session={"max_sessions": 3})
    clients = [mqtt.connect(V5), mqtt.connect(V4), persistent(mqtt, V5)]
    assert mqtt.refused(V5) == 0x97
    assert mqtt.refused(V4) == 3
    # The session of a client that left counts as long as it is kept; resuming it is no new one.
    clients[2].disconnect()
    assert mqtt.refused(V5) == 0x97
    resumed = persistent(mqtt, V5, clients[2].client_id)
    assert resumed.ping() == []
    clients[0].disconnect()
    assert mqtt.connect(V4).ping() == []


@pytest.mark.statement("v4:3.1.2-4", "v5:4.1.0-2")
def test_sessions_of_version_4_expire(node: Callable[..., Mqtt]) -> None:
    """3.1.1 has no expiry of its own: default_expiry_interval bounds what is kept."""
    mqtt = node(session={"default_expiry_interval": "1s"})
    client = persistent(mqtt, V4)
    client.subscribe(mqtt.topic(), qos=1)
    client.drop()
    again = persistent(mqtt, V4, client.client_id)
    again.subscribe(mqtt.topic(), qos=1)
    again.drop()
    sessions = eventually(lambda: _sessions(mqtt.broker) == 0, "the end of the session")
    assert sessions
    fresh = mqtt.open(V4)
    assert not fresh.connect(client.client_id, clean=False).session_present


def _sessions(broker: Broker) -> float:
    return sum(broker.metrics("fluxmq_sessions").values())


def test_messages_wait_for_a_slow_reader(fluxmq: Mqtt, version: int) -> None:
    """A client that reads late gets every QoS 1 message, in order, and holds up nobody."""
    topic = fluxmq.topic()
    slow, quick = (fluxmq.subscriber(version, topic, qos=1) for _ in range(2))
    publisher = fluxmq.connect(version)
    body = bytes(50_000)
    for number in range(300):
        publisher.publish(topic, b"%d " % number + body, qos=1)
        assert quick.receive().payload.startswith(b"%d " % number)
    for number in range(300):
        assert slow.receive().payload.startswith(b"%d " % number)
    assert slow.ping() == []


def test_at_most_once_to_a_slow_reader(fluxmq: Mqtt, version: int) -> None:
    """QoS 0 messages that do not fit are left out; those that come are whole and in order."""
    topic = fluxmq.topic()
    slow, quick = (fluxmq.subscriber(version, topic) for _ in range(2))
    publisher = fluxmq.connect(version)
    body = bytes(100_000)
    for number in range(400):
        publisher.publish(topic, b"%d " % number + body)
        assert quick.receive().payload.startswith(b"%d " % number)
    got: list[int] = []
    for packet in slow.ping():
        assert packet.kind == wire.PUBLISH
        assert len(packet.payload) == len(b"%d " % int(packet.payload.split()[0])) + len(body)
        got.append(int(packet.payload.split()[0]))
    assert got == sorted(got)
    assert 0 < len(got) < 400
    publisher.publish(topic, b"later")
    assert slow.receive().payload == b"later"


def test_reader_that_never_reads_is_not_waited_for(fluxmq: Mqtt) -> None:
    """A client that fills its window and its buffers and stays silent costs others nothing."""
    topic = fluxmq.topic()
    stuck = fluxmq.subscriber(V5, topic, qos=1)
    publisher = fluxmq.connect(V5)
    for _ in range(3000):
        assert publisher.publish(topic, bytes(2000), qos=1) in (0x00, 0x10)
    assert publisher.ping() == []
    stuck.drop()


@pytest.mark.statement("v5:3.1.2-8", "v4:3.1.2-8")
def test_half_closed_connection(mqtt: Mqtt, version: int) -> None:
    """A client that closes its sending side has left: its will is published, its connection closed."""
    topic = mqtt.topic()
    watcher = mqtt.subscriber(version, topic)
    client = mqtt.connect(version, will=Will(topic, b"gone"))
    assert isinstance(client.stream, socket.socket)
    client.stream.shutdown(socket.SHUT_WR)
    client.expect_closed()
    assert watcher.receive().payload == b"gone"


@pytest.mark.statement("v5:3.8.4-6", "v4:3.8.4-5", "v5:3.9.3-1")
def test_a_thousand_filters_at_once(fluxmq: Mqtt, version: int) -> None:
    """As many as a session may hold by default, in one SUBSCRIBE, and out in one UNSUBSCRIBE."""
    root = fluxmq.topic()
    client = fluxmq.connect(version)
    filters = [f"{root}/{number}" for number in range(1000)]
    client.subscribe(*(Filter(each, number % 3) for number, each in enumerate(filters)))
    publisher = fluxmq.connect(version)
    for number in (0, 499, 999):
        publisher.publish(filters[number], b"%d" % number, qos=2)
        message = client.receive()
        assert (message.payload, message.qos) == (b"%d" % number, number % 3)
    refused = client.subscribe(f"{root}/more", granted=False).reasons
    assert refused == [0x97 if version == V5 else 0x80]
    assert client.unsubscribe(*filters).reasons == ([0] * 1000 if version == V5 else [])


@pytest.mark.statement("v5:3.14.0-1", "v5:3.14.2-1")
def test_clients_are_told_of_the_end(own_broker: BrokerFactory) -> None:
    """SIGTERM: 5.0 clients get DISCONNECT 0x8B, all connections close, the broker ends with 0."""
    broker = own_broker()
    with ExitStack() as stack:
        mqtt = Mqtt(broker, stack)
        topic = mqtt.topic()
        new, old = mqtt.subscriber(V5, topic), mqtt.subscriber(V4, topic)
        half = mqtt.open(V5)
        half.send(wire.connect(V5, mqtt.client_id())[:5])
        mqtt.connect(V5).publish(topic, b"last", qos=1)
        assert broker.stop() == 0
        for client in (new, old):
            assert client.receive().payload == b"last"
        new.expect_error(0x8B)
        old.expect_closed()
        assert half.ended(5)


def test_retained_messages_are_limited(node: Callable[..., Mqtt]) -> None:
    """Beyond max_retained_messages nothing more is stored; replacing is, and deleting makes room."""
    mqtt = node(broker={"max_retained_messages": 5})
    root = mqtt.topic()
    publisher = mqtt.connect(V5)
    # The broker's own numbers below $SYS must not take the place of users' messages.
    mqtt.subscriber(V5, "$SYS/broker/#").receive()
    for number in range(5):
        assert publisher.publish(f"{root}/{number}", b"x", qos=1, retain=True) in (0x00, 0x10)
    publisher.publish(f"{root}/beyond", b"x", qos=1, retain=True)
    publisher.publish(f"{root}/0", b"new", qos=1, retain=True)
    client = mqtt.subscriber(V5, f"{root}/#", qos=1)
    found = [client.receive() for _ in range(5)]
    assert {m.topic: m.payload for m in found} == {
        f"{root}/{n}": b"new" if n == 0 else b"x" for n in range(5)
    }
    assert client.ping() == []
    publisher.publish(f"{root}/1", b"", qos=1, retain=True)
    publisher.publish(f"{root}/beyond", b"x", qos=1, retain=True)
    again = mqtt.subscriber(V5, f"{root}/beyond")
    assert again.receive().payload == b"x"


def test_connection_rate_is_limited(own_broker: BrokerFactory) -> None:
    """More connections from an address than its rate allows are closed at once; later ones pass."""
    limit: dict[str, Any] = {"rate": 5.0, "burst": 5, "exempt_loopback": False}
    broker = own_broker(settings={"ratelimit": {"connection": limit}})
    with ExitStack() as stack:
        mqtt = Mqtt(broker, stack)

        def accepted() -> bool:
            client = mqtt.open(V5)
            try:
                return client.connect(mqtt.client_id()).reason == 0
            except (AssertionError, OSError):
                return False

        outcomes = [accepted() for _ in range(30)]
        assert outcomes[0]
        assert not all(outcomes)
        eventually(accepted, "the rate to allow another connection")


def test_silent_session_is_resumed_over_and_over(mqtt: Mqtt, version: int) -> None:
    """Two hundred reconnects of one session leave one session."""
    client_id = mqtt.client_id()
    topic = mqtt.topic()
    first = persistent(mqtt, version, client_id)
    first.subscribe(topic, qos=1)
    for _ in range(200):
        client = persistent(mqtt, version, client_id)
        client.drop()
    mqtt.connect(version).publish(topic, b"x", qos=1)
    last = mqtt.open(version)
    props = KEEP if version == V5 else []
    assert last.connect(client_id, clean=False, props=props).session_present
    assert payloads([last.receive()]) == [b"x"]

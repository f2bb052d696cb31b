"""What MQTT runs over: section 4.2, and WebSocket: chapter 6."""

from __future__ import annotations

import time

import pytest

from tests.broker import client_tls
from tests.conformance import websocket, wire
from tests.conformance.client import DEADLINE, Client, tcp
from tests.conformance.conftest import Mqtt
from tests.conformance.wire import Will


def round_trip(mqtt: Mqtt, client: Client) -> None:
    """Connect over the transport and talk to a client on plain TCP, both ways."""
    client.connect(mqtt.client_id())
    other = mqtt.connect(client.version)
    one, two = mqtt.topic(), mqtt.topic()
    client.subscribe(one, qos=2)
    other.subscribe(two, qos=2)
    for qos, size in ((0, 0), (1, 100), (2, 70_000), (1, 300_000)):
        other.publish(one, bytes(size), qos=qos)
        assert client.receive().payload == bytes(size)
        client.publish(two, bytes(size), qos=qos)
        assert other.receive().payload == bytes(size)


@pytest.mark.statement("v5:4.2.0-1", "v4:7.1.1-1")
@pytest.mark.parametrize("transport", ["tcp", "tls", "websocket"])
def test_transports(mqtt: Mqtt, version: int, transport: str) -> None:
    """TCP, TLS and WebSocket carry the same protocol."""
    if transport == "websocket":
        client = mqtt.over(mqtt.web_socket(), version)
    elif transport == "tls":
        if not mqtt.broker.tls_port:
            pytest.skip("no TLS listener")
        stream = tcp(mqtt.broker.host, mqtt.broker.tls_port, client_tls())
        client = mqtt.over(stream, version)
    else:
        client = mqtt.open(version)
    round_trip(mqtt, client)


@pytest.mark.statement("v5:6.0.0-4", "v4:6.0.0-4")
@pytest.mark.parametrize("offered", [("mqtt",), ("mqttv3.1", "mqtt"), ("mqtt", "x")])
def test_server_selects_the_subprotocol(mqtt: Mqtt, version: int, offered: tuple[str, ...]) -> None:
    """The answer to the handshake says "mqtt"."""
    stream = mqtt.web_socket(subprotocols=offered)
    assert stream.status == 101
    assert stream.headers["sec-websocket-protocol"] == "mqtt"
    assert mqtt.over(stream, version).connect(mqtt.client_id()).reason == 0


@pytest.mark.statement("v5:6.0.0-3", "v4:6.0.0-3")
@pytest.mark.parametrize("offered", [(), ("chat",), ("mqttx", "amqp")])
def test_handshake_without_the_subprotocol(fluxmq: Mqtt, offered: tuple[str, ...]) -> None:
    """A client that does not offer "mqtt" is not spoken to."""
    stream = fluxmq.web_socket(subprotocols=offered)
    assert 400 <= stream.status < 500


def test_handshake_to_another_path(fluxmq: Mqtt) -> None:
    """The listener's path is /mqtt."""
    assert 400 <= fluxmq.web_socket(path="/other").status < 500


@pytest.mark.statement("v5:6.0.0-1", "v4:6.0.0-1")
@pytest.mark.parametrize("when", ["first", "later"])
def test_text_frames_close_the_connection(mqtt: Mqtt, version: int, when: str) -> None:
    """Control packets come in binary frames; any other data frame is an error."""
    stream = mqtt.web_socket()
    client = mqtt.over(stream, version)
    if when == "later":
        topic = mqtt.topic()
        watcher = mqtt.subscriber(version, topic)
        client.connect(mqtt.client_id(), will=Will(topic, b"text"))
        stream.send_frame(websocket.TEXT, wire.pingreq())
        assert watcher.receive().payload == b"text"
    else:
        stream.send_frame(websocket.TEXT, wire.connect(version, mqtt.client_id()))
    assert client.ended(DEADLINE)


@pytest.mark.statement("v5:6.0.0-1", "v4:6.0.0-1")
def test_server_sends_binary_frames(mqtt: Mqtt, version: int) -> None:
    """What the server sends is in binary frames, unmasked."""
    stream = mqtt.web_socket()
    round_trip(mqtt, mqtt.over(stream, version))
    assert set(stream.opcodes) <= {websocket.BINARY, websocket.CONTINUATION}


@pytest.mark.statement("v5:6.0.0-2", "v4:6.0.0-2")
@pytest.mark.parametrize("size", [1, 2, 7, 125, 126, 127, 65_536])
def test_frames_do_not_align_with_packets(mqtt: Mqtt, version: int, size: int) -> None:
    """Packets in pieces, and the pieces of several packets in one frame."""
    stream = mqtt.web_socket(frame_size=size)
    client = mqtt.over(stream, version)
    topic = mqtt.topic()
    client.send(
        wire.connect(version, mqtt.client_id()),
        wire.subscribe(version, 1, [wire.Filter(topic, 1)]),
        *(wire.publish(version, topic, b"%d" % n * 50, qos=1, packet_id=n) for n in range(2, 12)),
    )
    client.expect(wire.CONNACK)
    client.expect(wire.SUBACK)
    for number in range(2, 12):
        assert client.take(wire.PUBACK).packet_id == number
    assert [client.receive().payload for _ in range(10)] == [b"%d" % n * 50 for n in range(2, 12)]


@pytest.mark.statement("v5:6.0.0-2", "v4:6.0.0-2")
def test_fragmented_messages_with_control_frames_between(mqtt: Mqtt, version: int) -> None:
    """RFC 6455, 5.4: fragments may have pings between them; each is answered."""
    stream = mqtt.web_socket()
    packet = wire.connect(version, mqtt.client_id())
    stream.send_frame(websocket.BINARY, packet[:5], final=False)
    stream.send_frame(websocket.PING, b"between")
    stream.send_frame(websocket.CONTINUATION, b"", final=False)
    stream.send_frame(websocket.CONTINUATION, packet[5:])
    frames = [stream.receive_frame(), stream.receive_frame()]
    assert (websocket.PONG, b"between") in frames
    assert any(frame and frame[0] == websocket.BINARY and frame[1][0] == 0x20 for frame in frames)


@pytest.mark.parametrize(
    ("opcode", "payload", "options"),
    [
        (websocket.BINARY, b"x", {"masked": False}),
        (websocket.CONTINUATION, b"x", {}),
        (websocket.PING, bytes(126), {}),
        (websocket.PING, b"", {"final": False}),
        (3, b"x", {}),
        (11, b"", {}),
    ],
    ids=["unmasked", "stray continuation", "long ping", "fragmented ping", "opcode 3", "opcode 11"],
)
def test_broken_frames_close_the_connection(
    mqtt: Mqtt, opcode: int, payload: bytes, options: dict[str, bool]
) -> None:
    """Errors of RFC 6455 end the connection."""
    stream = mqtt.web_socket()
    client = mqtt.over(stream, wire.V5)
    client.connect(mqtt.client_id())
    stream.send_frame(opcode, payload, **options)
    assert client.ended(DEADLINE)


def test_closing_handshake(mqtt: Mqtt, version: int) -> None:
    """A closing frame is answered, and it is no DISCONNECT: the will is published."""
    topic = mqtt.topic()
    watcher = mqtt.subscriber(version, topic)
    stream = mqtt.web_socket()
    client = mqtt.over(stream, version)
    client.connect(mqtt.client_id(), will=Will(topic, b"closed"))
    stream.send_frame(websocket.CLOSE, b"\x03\xe8")
    frame = stream.receive_frame()
    assert frame is None or frame[0] == websocket.CLOSE
    assert watcher.receive().payload == b"closed"


def test_origins(own_broker: object) -> None:
    """With a list of origins, a browser on another page is turned away."""
    from contextlib import ExitStack

    origins = ["https://dashboard.example"]
    settings = {"server": {"mqtt": {"websocket": {"allowed_origins": origins}}}}
    with ExitStack() as stack:
        mqtt = Mqtt(own_broker(settings=settings), stack)  # type: ignore[operator]
        assert mqtt.web_socket(origin="https://dashboard.example").status == 101
        assert mqtt.web_socket(origin="https://elsewhere.example").status == 403


def test_slow_handshakes_do_not_hold_up_others(mqtt: Mqtt, version: int) -> None:
    """Connections that say nothing, or half of something, leave room for those that speak."""
    silent = [mqtt.open(version) for _ in range(50)]
    for number, client in enumerate(silent):
        client.send(wire.connect(version, "x" * 20)[: number % 20])
    began = time.monotonic()
    assert mqtt.connect(version).ping() == []
    assert time.monotonic() - began < 5

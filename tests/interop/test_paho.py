"""Eclipse Paho for Python (paho-mqtt), the client most Python programs use."""

from __future__ import annotations

import queue
import ssl
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, Literal

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from tests.broker import Broker, client_tls

DEADLINE = 15.0
Topic = Callable[[], str]


class Client:
    """A paho client whose network thread runs, with events turned into waits."""

    def __init__(self, broker: Broker, version: int, transport: str, **options: Any) -> None:
        web = transport in ("websocket", "wss")
        kind: Literal["websockets", "tcp"] = "websockets" if web else "tcp"
        fields: dict[str, Any] = {"client_id": f"paho-{uuid.uuid4().hex[:12]}", "protocol": version}
        if version == paho.MQTTv311:
            fields["clean_session"] = options.pop("clean", True)
        fields |= {name: options.pop(name) for name in list(options) if name == "client_id"}
        self.paho = paho.Client(paho.CallbackAPIVersion.VERSION2, transport=kind, **fields)
        self.version = version
        self.messages: queue.Queue[paho.MQTTMessage] = queue.Queue()
        self.connected, self.disconnected = threading.Event(), threading.Event()
        self.reason: Any = None
        self.session_present = False
        self._answers: queue.Queue[tuple[int, list[Any]]] = queue.Queue()
        self.paho.on_connect = self._on_connect
        self.paho.on_disconnect = self._on_disconnect
        self.paho.on_message = lambda _client, _data, message: self.messages.put(message)
        self.paho.on_subscribe = self._on_answer
        self.paho.on_unsubscribe = self._on_answer
        will = options.pop("will", None)
        if will is not None:
            self.paho.will_set(**will)
        context: ssl.SSLContext | None = options.pop("tls", None)
        port = broker.port
        if transport in ("tls", "wss"):
            context = context or client_tls()
            port = broker.tls_port if transport == "tls" else broker.wss_port
        if context is not None:
            self.paho.tls_set_context(context)
        if web:
            self.paho.ws_set_options(path="/mqtt")
        if transport == "websocket":
            port = broker.ws_port
        if "username" in options:
            self.paho.username_pw_set(options.pop("username"), options.pop("password"))
        self.paho.connect(broker.host, port, keepalive=30, **options)
        self.paho.loop_start()
        assert self.connected.wait(DEADLINE), "no CONNACK"

    def _on_connect(self, _client: Any, _data: Any, flags: Any, reason: Any, _props: Any) -> None:
        self.reason, self.session_present = reason, flags.session_present
        self.connected.set()

    def _on_disconnect(self, _client: Any, _data: Any, _flags: Any, reason: Any, _p: Any) -> None:
        self.reason = reason
        self.disconnected.set()

    def _on_answer(self, _client: Any, _data: Any, mid: int, reasons: Any, _props: Any) -> None:
        self._answers.put((mid, list(reasons)))

    def answer(self, sent: tuple[Any, int | None]) -> list[Any]:
        """Wait for SUBACK or UNSUBACK and return its reason codes."""
        error, expected = sent
        assert error == paho.MQTT_ERR_SUCCESS
        mid, reasons = self._answers.get(timeout=DEADLINE)
        assert mid == expected
        return reasons

    def subscribe(self, topic: str, qos: int = 0, **options: Any) -> None:
        """Subscribe, and see it granted."""
        [reason] = self.answer(self.paho.subscribe(topic, qos, **options))
        assert reason.value < 0x80, str(reason)

    def publish(self, topic: str, payload: bytes, qos: int = 0, **fields: Any) -> None:
        """Publish, and see it acknowledged."""
        info = self.paho.publish(topic, payload, qos, **fields)
        info.wait_for_publish(DEADLINE)
        assert info.is_published()

    def receive(self) -> paho.MQTTMessage:
        """The next message."""
        return self.messages.get(timeout=DEADLINE)

    def stop(self) -> None:
        """Disconnect and end the thread."""
        self.paho.disconnect()
        self.paho.loop_stop()

    def break_off(self) -> None:
        """End the network connection without DISCONNECT."""
        sock = self.paho.socket()
        assert sock is not None
        self.paho.loop_stop()
        sock.close()


Connect = Callable[..., Client]


@pytest.fixture(params=["tcp", "tls", "websocket", "wss"])
def transport(request: pytest.FixtureRequest) -> str:
    """Each listener."""
    return str(request.param)


@pytest.fixture(params=[paho.MQTTv311, paho.MQTTv5], ids=["3.1.1", "5.0"])
def version(request: pytest.FixtureRequest) -> int:
    """Each version of the protocol."""
    return int(request.param)


@pytest.fixture
def connect(broker: Broker) -> Iterator[Connect]:
    """Makes connected clients."""
    with ExitStack() as stack:

        def make(version: int, transport: str = "tcp", **options: Any) -> Client:
            client = Client(options.pop("broker", broker), version, transport, **options)
            stack.callback(client.stop)
            return client

        yield make


def properties(kind: int, **values: Any) -> Properties:
    """Paho's properties object."""
    made = Properties(kind)
    for name, value in values.items():
        setattr(made, name, value)
    return made


@pytest.mark.statement("v4:7.0.0-2")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_publish_and_subscribe(
    connect: Connect, topic: Topic, version: int, transport: str, qos: int
) -> None:
    """Messages of many sizes, over each transport, at each QoS, in order."""
    name = topic()
    subscriber, publisher = connect(version, transport), connect(version, transport)
    subscriber.subscribe(name, qos)
    sizes = [0, 1, 100, 200, 20_000, 300_000] * 3
    for number, size in enumerate(sizes):
        publisher.publish(name, bytes([number]) * size, qos)
    for number, size in enumerate(sizes):
        message = subscriber.receive()
        assert (message.topic, message.qos) == (name, qos)
        assert message.payload == bytes([number]) * size


def test_many_messages_in_flight(connect: Connect, topic: Topic, version: int) -> None:
    """A burst of QoS 1 and 2 messages without waiting for each."""
    name = topic()
    subscriber, publisher = connect(version), connect(version)
    subscriber.subscribe(name, 2)
    infos = [publisher.paho.publish(name, b"%d" % n, 1 + n % 2) for n in range(500)]
    for info in infos:
        info.wait_for_publish(DEADLINE)
    got = [subscriber.receive() for _ in infos]
    for qos in (1, 2):
        mine = [int(message.payload) for message in got if message.qos == qos]
        assert mine == [n for n in range(500) if 1 + n % 2 == qos]


@pytest.mark.parametrize("retain", [False, True])
def test_will(connect: Connect, topic: Topic, version: int, retain: bool) -> None:
    """A client that breaks off leaves its will."""
    name = topic()
    watcher = connect(version)
    watcher.subscribe(name, 1)
    leaving = connect(version, will={"topic": name, "payload": b"gone", "qos": 1, "retain": retain})
    leaving.break_off()
    assert watcher.receive().payload == b"gone"
    late = connect(version)
    late.subscribe(name, 1)
    watcher.publish(name, b"marker", 1)
    messages = [late.receive() for _ in range(2 if retain else 1)]
    expected = [(b"gone", 1), (b"marker", 0)][0 if retain else 1 :]
    assert [(m.payload, int(m.retain)) for m in messages] == expected


def test_retained(connect: Connect, topic: Topic, version: int) -> None:
    """Stored, found with a wildcard, cleared."""
    name = topic()
    publisher = connect(version)
    for tail in ("a", "b"):
        publisher.publish(f"{name}/{tail}", tail.encode(), 1, retain=True)
    reader = connect(version)
    reader.subscribe(f"{name}/+", 1)
    found = [reader.receive(), reader.receive()]
    assert sorted(message.payload for message in found) == [b"a", b"b"]
    assert all(message.retain for message in found)
    publisher.publish(f"{name}/a", b"", 1, retain=True)
    assert reader.receive().payload == b""
    other = connect(version)
    other.subscribe(f"{name}/+", 1)
    assert other.receive().payload == b"b"


def test_unsubscribe(connect: Connect, topic: Topic, version: int) -> None:
    """After UNSUBACK nothing more comes."""
    name, marker = topic(), topic()
    client = connect(version)
    client.subscribe(name, 1)
    client.subscribe(marker, 1)
    client.answer(client.paho.unsubscribe(name))
    client.publish(name, b"x", 1)
    client.publish(marker, b"marker", 1)
    assert client.receive().payload == b"marker"


def test_persistent_session(connect: Connect, topic: Topic, version: int) -> None:
    """A session that is away is given its messages when it is back."""
    name, identifier = topic(), f"paho-{uuid.uuid4().hex[:12]}"
    options: dict[str, Any] = {"client_id": identifier}
    if version == paho.MQTTv5:
        options["clean_start"] = False
        options["properties"] = properties(PacketTypes.CONNECT, SessionExpiryInterval=60)
    else:
        options["clean"] = False
    client = connect(version, **options)
    assert not client.session_present
    client.subscribe(name, 1)
    client.stop()
    publisher = connect(version)
    for number in range(10):
        publisher.publish(name, b"%d" % number, 1)
    client = connect(version, **options)
    assert client.session_present
    assert [client.receive().payload for _ in range(10)] == [b"%d" % n for n in range(10)]


def test_shared_subscription(connect: Connect, topic: Topic, version: int) -> None:
    """Members divide the messages (a filter like any other to a 3.1.1 client)."""
    name = topic()
    members = [connect(version) for _ in range(2)]
    for member in members:
        member.subscribe(f"$share/g/{name}", 1)
    publisher = connect(version)
    for number in range(40):
        publisher.publish(name, b"%d" % number, 1)
    got: list[bytes] = []
    while len(got) < 40:
        for member in members:
            try:
                got.append(bytes(member.messages.get(timeout=0.05).payload))
            except queue.Empty:
                continue
    assert sorted(got) == sorted(b"%d" % n for n in range(40))


def test_properties(connect: Connect, topic: Topic) -> None:
    """5.0: what is published with a message arrives with it."""
    name = topic()
    subscriber, publisher = connect(paho.MQTTv5), connect(paho.MQTTv5)
    options = SubscribeOptions(qos=1, retainAsPublished=True)
    identifier = properties(PacketTypes.SUBSCRIBE, SubscriptionIdentifier=7)
    sent = subscriber.paho.subscribe(name, options=options, properties=identifier)
    assert subscriber.answer(sent)[0].value == 1
    carried = properties(
        PacketTypes.PUBLISH,
        ContentType="application/json",
        ResponseTopic="answers",
        CorrelationData=b"\x00\x01",
        MessageExpiryInterval=60,
        PayloadFormatIndicator=1,
        UserProperty=[("a", "1"), ("a", "2")],
    )
    publisher.publish(name, b"{}", 1, retain=True, properties=carried)
    message = subscriber.receive()
    assert message.retain
    got: Any = message.properties  # its attributes are made at run time
    assert got.ContentType == "application/json"
    assert got.ResponseTopic == "answers"
    assert got.CorrelationData == b"\x00\x01"
    assert got.UserProperty == [("a", "1"), ("a", "2")]
    assert got.SubscriptionIdentifier == [7]


def test_take_over_is_told(connect: Connect) -> None:
    """5.0: the older of two clients learns why it was disconnected."""
    first = connect(paho.MQTTv5)
    first.paho.reconnect_delay_set(60, 60)
    connect(paho.MQTTv5, client_id=first.paho._client_id.decode())
    assert first.disconnected.wait(DEADLINE)
    assert first.reason.value == 0x8E


def test_client_certificates(
    own_broker: Callable[..., Broker], connect: Connect, topic: Topic
) -> None:
    """With client_auth require, a client with a certificate talks and one without is shut out."""
    broker = own_broker(
        tls=True, settings={"server": {"mqtt": {"tls": {"client_auth": "require"}}}}
    )
    name = topic()
    client = connect(paho.MQTTv5, "tls", broker=broker, tls=client_tls(certificate=True))
    client.subscribe(name, 1)
    client.publish(name, b"hello", 1)
    assert client.receive().payload == b"hello"
    plain = paho.Client(paho.CallbackAPIVersion.VERSION2)
    plain.tls_set_context(client_tls())
    refused = False
    try:
        plain.connect(broker.host, broker.tls_port)
        # TLS 1.3 tells a client of its missing certificate after the handshake, when it reads.
        while plain.loop(0.2) == paho.MQTT_ERR_SUCCESS:
            assert not plain.is_connected()
        refused = True
    except OSError:
        refused = True
    assert refused


def test_user(
    own_broker: Callable[..., Broker], connect: Connect, topic: Topic, version: int
) -> None:
    """A user added with fluxmqctl while the broker runs."""
    broker = own_broker(settings={"auth": {"anonymous": {"allow": "never"}}})
    broker.add_user("ada", "secret", publish=("interop/#",), subscribe=("interop/#",))
    name = topic()
    client = connect(version, broker=broker, username="ada", password="secret")
    client.subscribe(name, 1)
    client.publish(name, b"hello", 1)
    assert client.receive().payload == b"hello"
    other = paho.Client(paho.CallbackAPIVersion.VERSION2, protocol=MQTTProtocolVersion(version))
    reasons: queue.Queue[Any] = queue.Queue()
    other.on_connect = lambda _client, _data, _flags, reason, _props: reasons.put(reason)
    other.username_pw_set("ada", "wrong")
    other.connect(broker.host, broker.port)
    other.loop_start()
    try:
        assert reasons.get(timeout=DEADLINE).is_failure
    finally:
        other.loop_stop()

"""Fixtures of the conformance suite: versions, clients of the shared broker, brokers with other settings."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.broker import Broker, broker, external_broker, own_broker, running_broker, shared_broker
from tests.conformance import wire
from tests.conformance.client import Client, Packet, Stream, tcp
from tests.conformance.websocket import WebSocket

__all__ = ["broker", "own_broker", "shared_broker"]

VERSIONS = pytest.mark.parametrize("version", [wire.V4, wire.V5], ids=["3.1.1", "5.0"])


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker that the conformance matrix is made from."""
    config.addinivalue_line(
        "markers",
        "statement(*ids): the normative statements a test covers, "
        '"v5:3.3.1-5" for MQTT 5.0 and "v4:3.3.1-5" for 3.1.1',
    )


@pytest.fixture(params=[wire.V4, wire.V5], ids=["3.1.1", "5.0"])
def version(request: pytest.FixtureRequest) -> int:
    """Runs a test in both versions of the protocol."""
    return int(request.param)


class Mqtt:
    """Makes clients of one broker, and names that no other test uses."""

    def __init__(self, broker: Broker, stack: ExitStack) -> None:
        self.broker = broker
        self._stack = stack
        self._names = itertools.count(1)
        self._run = uuid.uuid4().hex[:12]

    def client_id(self) -> str:
        """A client identifier within the 23 characters of [0-9a-zA-Z] that any server allows."""
        return f"c{self._run}n{next(self._names)}"

    def topic(self, suffix: str = "") -> str:
        """A topic of this test."""
        return f"{self._run}/{next(self._names)}{suffix}"

    def open(self, version: int) -> Client:
        """A client whose network connection is open, with no CONNECT sent."""
        return self.over(tcp(self.broker.host, self.broker.port), version)

    def over(self, stream: Stream, version: int) -> Client:
        """A client on a connection made otherwise."""
        return self._stack.enter_context(Client(stream, version))

    def web_socket(self, **options: Any) -> WebSocket:
        """A WebSocket to the broker; skips where there is no such listener."""
        if not self.broker.ws_port:
            pytest.skip("no WebSocket listener")
        stream = WebSocket(self.broker.host, self.broker.ws_port, **options)
        self._stack.callback(stream.close)
        return stream

    def connect(self, version: int, client_id: str | None = None, **fields: Any) -> Client:
        """A connected client; the fields are those of `wire.connect`."""
        client = self.open(version)
        connack = client.connect(self.client_id() if client_id is None else client_id, **fields)
        assert connack.reason == 0, f"refused: {connack}"
        return client

    def refused(self, version: int, client_id: str | None = None, **fields: Any) -> int:
        """Connect, see it refused and the connection closed, and return the reason."""
        client = self.open(version)
        connack = client.connect(self.client_id() if client_id is None else client_id, **fields)
        assert connack.reason != 0, "accepted"
        client.expect_closed()
        return connack.reason

    def subscriber(
        self, version: int, *filters: str | wire.Filter, qos: int = 0, **fields: Any
    ) -> Client:
        """A connected client with subscriptions."""
        client = self.connect(version, **fields)
        client.subscribe(*filters, qos=qos)
        return client

    def retained(
        self,
        version: int,
        *filters: str | wire.Filter,
        qos: int = 0,
        client: Client | None = None,
        **fields: Any,
    ) -> list[Packet]:
        """What subscribing sends of retained messages, up to a marker's that is subscribed after."""
        topic = self.topic("/marker")
        with tcp_client(self.broker, version) as publisher:
            publisher.connect(self.client_id())
            publisher.publish(topic, b"retained marker", qos=1, retain=True)
            client = client or self.connect(version, **fields)
            client.subscribe(*filters, qos=qos)
            client.subscribe(topic)
            found = client.receive_until(b"retained marker")
            client.unsubscribe(topic)
            publisher.publish(topic, b"", qos=1, retain=True)
        return found


def tcp_client(broker: Broker, version: int) -> Client:
    """A client whose connection its user closes."""
    return Client(tcp(broker.host, broker.port), version)


@pytest.fixture
def mqtt(broker: Broker) -> Iterator[Mqtt]:
    """Clients of the shared broker."""
    with ExitStack() as stack:
        yield Mqtt(broker, stack)


@pytest.fixture
def fluxmq(mqtt: Mqtt) -> Mqtt:
    """Clients of the shared broker, for what the standard leaves to the server."""
    if not mqtt.broker.own:
        pytest.skip("the standard leaves this to the server; FluxMQ's choice is tested")
    return mqtt


def _with_settings(
    tmp_path_factory: pytest.TempPathFactory, name: str, settings: dict[str, Any]
) -> Iterator[Broker]:
    if external_broker() is not None:
        pytest.skip("needs a broker with settings of its own")
    with running_broker(tmp_path_factory.mktemp(name), settings=settings) as broker:
        yield broker


# Small limits, so that each can be met in one test.
LIMITS: dict[str, Any] = {
    "broker": {
        "max_qos": 1,
        "max_packet_size": "16KiB",
        "max_subscriptions_per_session": 5,
        "topic_alias_maximum": 3,
        "keep_alive_maximum": "2s",
        "max_topic_levels": 8,
        "max_topic_bytes": 256,
        "max_user_properties": 4,
    },
    "session": {
        "max_inflight_messages": 4,
        "max_expiry_interval": "1h",
        "default_expiry_interval": "1h",
    },
    "server": {"mqtt": {"tcp": {"connect_timeout": "1s"}}},
}

# What anonymous clients may do is narrowed to a part of the topics.
PERMISSIONS: dict[str, Any] = {
    "auth": {
        "anonymous": {
            "publish": ["open/#", "own/{client_id}/#"],
            "subscribe": ["open/#", "own/{client_id}/#", "secret/+/read"],
        },
        "argon2": {"time_cost": 1, "memory_cost": "8MiB"},
        # Many tests fail to log in, all from one address.
        "failed_logins": {"per_user": 1000, "per_address": 1000},
    }
}


@pytest.fixture(scope="session")
def limited_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker with small limits."""
    yield from _with_settings(tmp_path_factory, "limited", LIMITS)


@pytest.fixture
def limited(limited_broker: Broker) -> Iterator[Mqtt]:
    """Clients of the broker with small limits."""
    with ExitStack() as stack:
        yield Mqtt(limited_broker, stack)


USER, PASSWORD = "ada", "correct horse battery staple"


@pytest.fixture(scope="session")
def restricted_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker with one user, and anonymous clients confined to a part of the topics."""
    for started in _with_settings(tmp_path_factory, "restricted", PERMISSIONS):
        started.add_user(USER, PASSWORD)
        yield started


@pytest.fixture
def restricted(restricted_broker: Broker) -> Iterator[Mqtt]:
    """Clients of the broker with permissions."""
    with ExitStack() as stack:
        yield Mqtt(restricted_broker, stack)

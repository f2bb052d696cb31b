"""Limits of users, the firehose and events of a broker, seen by real clients."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import paho.mqtt.client as paho
import pika  # type: ignore[import-untyped]
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from pika.exceptions import (  # type: ignore[import-untyped]
    AMQPError,
    ConnectionClosedByBroker,
    ProbableAccessDeniedError,
)

from tests.broker import HOST, Broker, external_broker, free_ports, running_broker
from tests.conformance.client import eventually
from tests.management import ManagementSite


class Node:
    """A broker of two shards, with its clients."""

    def __init__(self, broker: Broker, port: int) -> None:
        self.broker = broker
        self.port = port
        self.site = ManagementSite(broker.http_port, port)
        self._open: list[Any] = []

    def connect(self, user: str = "guest") -> Any:
        """An AMQP connection; each next one is on the other shard."""
        login = pika.PlainCredentials(user, user)
        parameters = pika.ConnectionParameters(HOST, self.port, credentials=login)
        self._open.append(pika.BlockingConnection(parameters))
        return self._open[-1]

    def mqtt(self, user: str = "guest") -> MqttUser:
        """An MQTT client, which has its CONNACK."""
        return MqttUser(self.broker.port, user)

    def close(self) -> None:
        """Close the AMQP connections."""
        for connection in self._open:
            with suppress(AMQPError):
                connection.close()
        self._open.clear()


class MqttUser:
    """An MQTT 5 client, and the reason code of its CONNACK."""

    def __init__(self, port: int, user: str) -> None:
        self._answers: list[int] = []
        version = MQTTProtocolVersion.MQTTv5
        self.client = paho.Client(CallbackAPIVersion.VERSION2, f"watched-{user}", protocol=version)
        self.client.username_pw_set(user, user)
        self.client.on_connect = lambda *told: self._answers.append(told[3].value)
        self.client.connect(HOST, port)
        self.client.loop_start()
        self.reason = eventually(lambda: [*self._answers], "CONNACK")[0]

    def end(self) -> None:
        """Disconnect, and try no more."""
        self.client.disconnect()
        self.client.loop_stop()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """The broker of all tests here."""
    if external_broker() is not None:
        pytest.skip("needs a broker of its own")
    (port,) = free_ports(1)
    settings = {"server": {"amqp": {"tcp": {"addr": f"{HOST}:{port}"}}}}
    with running_broker(tmp_path_factory.mktemp("watched"), workers=2, settings=settings) as broker:
        yield Node(broker, port)


@pytest.fixture
def node(shared: Node) -> Iterator[Node]:
    """The broker, without clients."""
    yield shared
    shared.close()


def test_a_users_connections_and_channels_are_limited(node: Node) -> None:
    site = node.site
    assert site.status("PUT", "users/ann", {"password": "ann", "tags": ""}) == 201
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    assert site.status("PUT", "permissions/%2F/ann", everything) == 201
    node.broker.control("set_user_limits", "ann", '{"max-connections": 2, "max-channels": 1}')
    first = node.connect("ann")
    mqtt = node.mqtt("ann")
    assert mqtt.reason == 0
    with pytest.raises(ProbableAccessDeniedError, match=r"user connection limit \(2\) is reached"):
        node.connect("ann")
    first.channel()
    with pytest.raises(ConnectionClosedByBroker, match="maximum allowed user limit of 1"):
        first.channel()
    second = node.connect("ann")
    other = node.mqtt("ann")
    assert other.reason == 0x97
    other.end()
    mqtt.end()
    second.close()
    refused = node.broker.metrics("fluxmq_user_limit_refused_total")
    assert sum(refused.values()) == 3

"""Limits of users, the firehose and events of a broker, seen by real clients."""

from __future__ import annotations

import time
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

    def mqtt(self, user: str) -> MqttUser:
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
    settings = {
        "server": {"amqp": {"tcp": {"addr": f"{HOST}:{port}"}}},
        "amqp": {"event_exchange": True},
    }
    with running_broker(tmp_path_factory.mktemp("watched"), workers=2, settings=settings) as broker:
        node = Node(broker, port)
        ann = {"password": "ann", "tags": "", "publish": ["#"]}
        assert node.site.status("PUT", "users/ann", ann) == 201
        everything = {"configure": ".*", "write": ".*", "read": ".*"}
        assert node.site.status("PUT", "permissions/%2F/ann", everything) == 201
        yield node


@pytest.fixture
def node(shared: Node) -> Iterator[Node]:
    """The broker, without clients."""
    yield shared
    shared.close()


def test_a_users_connections_and_channels_are_limited(node: Node) -> None:
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
    for limit in ("max-connections", "max-channels"):
        assert node.site.status("DELETE", f"user-limits/ann/{limit}") == 204
    refused = node.broker.metrics("fluxmq_user_limit_refused_total")
    assert sum(refused.values()) == 3


def test_a_publisher_is_as_fast_as_its_virtual_host_may_be(node: Node) -> None:
    limit = "vhost-limits/%2F/max-publish-rate"
    assert node.site.status("PUT", limit, {"value": 50}) == 204
    channel = node.connect().channel()
    channel.queue_declare("rated")
    mqtt = node.mqtt("ann")
    begun = time.monotonic()
    for number in range(60):
        sent = mqtt.client.publish(f"rated/{number}", b"", qos=1)
        channel.basic_publish("", "rated", b"%d" % number)
    sent.wait_for_publish(10)
    eventually(
        lambda: channel.queue_declare("rated", passive=True).method.message_count == 60, "all"
    )
    assert time.monotonic() - begun > 0.9, "120 messages, of which 50 at once"
    mqtt.end()
    assert node.site.status("DELETE", limit) == 204
    assert sum(node.broker.metrics("fluxmq_publishers_slowed_total").values()) > 0


def taken(channel: Any, queue: str, count: int) -> list[tuple[Any, Any, bytes]]:
    """Messages of a queue, in order of their routing keys."""
    found: list[tuple[Any, Any, bytes]] = []

    def take() -> bool:
        message = channel.basic_get(queue, auto_ack=True)
        if message[0] is not None:
            found.append(message)
        return len(found) >= count

    eventually(take, f"{count} messages, not {found}")
    return sorted(found, key=lambda each: str(each[0].routing_key))


def test_the_firehose_copies_publishes_and_deliveries(node: Node) -> None:
    here, there = node.connect().channel(), node.connect().channel()
    here.queue_declare("traced", durable=True)
    here.queue_declare("copies")
    here.queue_bind("copies", "amq.rabbitmq.trace", "#")
    node.broker.control("trace_on")
    assert node.site.get("vhosts/%2F")["tracing"] is True
    properties = pika.BasicProperties(
        content_type="text/plain", headers={"a": 1}, timestamp=7, message_id="m"
    )
    here.basic_publish("", "traced", b"one", properties)
    assert taken(there, "traced", 1)[0][2] == b"one"
    delivered, published = taken(here, "copies", 2)
    assert (delivered[0].routing_key, delivered[2]) == ("deliver.traced", b"one")
    assert (published[0].routing_key, published[2]) == ("publish.", b"one")
    about = published[1].headers
    assert about["properties"] == {
        "content_type": "text/plain",
        "headers": {"a": 1},
        "message_id": "m",
        "timestamp": 7,
    }
    expected = {"exchange_name": "", "routing_keys": ["traced"], "vhost": "/", "user": "guest"}
    assert {name: about[name] for name in expected} == expected
    assert (about["channel"], about["routed_queues"]) == (1, ["traced"])
    assert about["connection"].endswith(f":{node.port}")
    assert about["node"] == node.site.get("overview")["node"]
    about = delivered[1].headers
    assert {name: about[name] for name in expected} == expected
    assert (about["redelivered"], "routed_queues" in about) == (0, False)
    mqtt = node.mqtt("ann")
    mqtt.client.publish("m/x", b"two", qos=1).wait_for_publish(10)
    mqtt.end()
    (published,) = taken(here, "copies", 1)
    assert (published[0].routing_key, published[2]) == ("publish.amq.topic", b"two")
    assert published[1].headers["routing_keys"] == ["m.x"]
    site = node.site
    assert site.status("PUT", "vhosts/%2F", {"tracing": False}) == 204
    assert site.get("vhosts")[0]["tracing"] is False
    here.basic_publish("", "traced", b"three")
    assert taken(here, "traced", 1)[0][2] == b"three"
    assert here.basic_get("copies")[0] is None


def test_events_of_both_protocols_and_of_changes_are_published(node: Node) -> None:
    here = node.connect().channel()
    here.queue_declare("events")
    here.queue_bind("events", "amq.rabbitmq.event", "#")
    eventually(lambda: [*taken(here, "events", 0)] == [], "no event")
    here.queue_declare("new", arguments={"x-max-length": 5})
    node.site.ask("PUT", "users/bob", {"password": "bob", "tags": "monitoring"})
    mqtt = node.mqtt("ann")
    mqtt.end()
    found = {}
    for method, properties, body in taken(here, "events", 6):
        assert (body, properties.delivery_mode) == (b"", 2)
        assert properties.timestamp == properties.headers["timestamp_in_ms"] // 1000
        found[method.routing_key] = properties.headers
    assert found["queue.created"]["arguments"] == {"x-max-length": 5}
    assert found["user.created"]["name"] == "bob"
    assert found["user.tags.set"]["tags"] == ["monitoring"]
    assert found["user.authentication.success"]["name"] == "ann"
    created = found["connection.created"]
    assert (created["protocol"], created["user"]) == ("MQTT 5.0", "ann")
    assert created["client_properties"] == {"client_id": "watched-ann"}
    assert found["connection.closed"]["name"] == created["name"]

"""MQTT messages between nodes, with real clients: every subscriber gets every message once, whatever the nodes do."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.broker import HOST
from tests.cluster.nodes import Cluster, Node
from tests.conformance.client import eventually

WORKERS = 2
SETTINGS: dict[str, Any] = {
    "cluster": {"transport": {"route_publish_timeout": "10s"}},
    "queues": [{"name": "work", "replication": {"enabled": True}}],
}
SECONDS = 30


class Subscriber:
    """A client that remembers what it gets."""

    def __init__(self, node: Node, name: str = "", expiry: int = 0) -> None:
        self.got: list[bytes] = []
        self._known = threading.Event()
        self.client = paho.Client(paho.CallbackAPIVersion.VERSION2, name, protocol=paho.MQTTv5)
        self.client.on_message = lambda _client, _data, message: self.got.append(
            bytes(message.payload)
        )
        self.client.on_subscribe = lambda *_told: self._known.set()
        connected = threading.Event()
        self.client.on_connect = lambda *_told: connected.set()
        properties = Properties(PacketTypes.CONNECT)
        properties.SessionExpiryInterval = expiry
        self.client.connect(HOST, node.broker.port, clean_start=not expiry, properties=properties)
        self.client.loop_start()
        assert connected.wait(SECONDS)

    def subscribe(self, topic: str, qos: int) -> None:
        """Subscribe, and wait for the answer."""
        self._known.clear()
        self.client.subscribe(topic, qos)
        assert self._known.wait(SECONDS)

    def expect(self, count: int) -> None:
        """Wait until so many messages have come."""
        eventually(lambda: len(self.got) >= count, "all came", SECONDS)

    def close(self) -> None:
        """Disconnect."""
        self.client.disconnect()
        self.client.loop_stop()


@contextmanager
def subscriber(node: Node, *topics: str, qos: int = 1, **fields: Any) -> Iterator[Subscriber]:
    """A subscribed client."""
    made = Subscriber(node, **fields)
    try:
        for topic in topics:
            made.subscribe(topic, qos)
        yield made
    finally:
        made.close()


def publish(client: Subscriber, topic: str, count: int, qos: int, first: int = 0) -> None:
    """Publish numbers, and wait until all are acknowledged."""
    sent = [
        client.client.publish(topic, b"%d" % number, qos) for number in range(first, first + count)
    ]
    for each in sent:
        each.wait_for_publish(SECONDS)


def numbers(count: int, first: int = 0) -> list[bytes]:
    """The payloads that are expected."""
    return [b"%d" % number for number in range(first, first + count)]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_message_reaches_subscribers_of_all_nodes(cluster: Cluster, qos: int) -> None:
    """An acknowledged subscription gets what is published after it, on any node. S1-10, S2-20, S2-21."""
    topic = f"all/{qos}"
    with ExitStack() as stack:
        subscribers = [
            stack.enter_context(subscriber(node, topic, qos=qos)) for node in cluster.nodes
        ]
        publisher = stack.enter_context(subscriber(cluster.nodes[0]))
        publish(publisher, topic, 500, qos)
        for each in subscribers:
            each.expect(500)
            assert each.got == numbers(500)


def test_shared_subscriptions_share_over_all_nodes(cluster: Cluster) -> None:
    with ExitStack() as stack:
        members = [
            stack.enter_context(subscriber(node, "$share/g/shared")) for node in cluster.nodes
        ]
        publisher = stack.enter_context(subscriber(cluster.nodes[1]))
        publish(publisher, "shared", 300, 1)
        eventually(lambda: sum(len(each.got) for each in members) >= 300, "all came", SECONDS)
        assert sorted(int(each) for member in members for each in member.got) == list(range(300))
        assert min(len(member.got) for member in members) >= 50


def test_a_persistent_session_gets_what_was_published_elsewhere_while_it_was_away(
    cluster: Cluster,
) -> None:
    """Also if its node is killed after the messages were acknowledged."""
    home, other = cluster.nodes[0], cluster.nodes[1]
    with subscriber(home, "kept", name="sleeper", expiry=3600):
        pass
    with subscriber(other) as publisher:
        publish(publisher, "kept", 100, 1)
    home.kill()
    home.start()
    cluster.wait_ready()
    with subscriber(home, name="sleeper", expiry=3600) as back:
        back.expect(100)
        assert back.got == numbers(100)


def test_a_node_that_is_killed_does_not_hold_up_the_others(cluster: Cluster) -> None:
    one, other, third = cluster.nodes
    with subscriber(other, "rest") as stays, subscriber(one) as publisher:
        gone = Subscriber(third)
        gone.subscribe("rest", 1)
        publish(publisher, "rest", 10, 1)
        third.kill()
        publish(publisher, "rest", 10, 1, first=10)
        stays.expect(20)
        assert stays.got == numbers(20)
        gone.client.loop_stop()
        third.start()
        cluster.wait_ready()
        with subscriber(third, "rest") as fresh:
            publish(publisher, "rest", 10, 1, first=20)
            fresh.expect(10)
            assert fresh.got == numbers(10, 20)

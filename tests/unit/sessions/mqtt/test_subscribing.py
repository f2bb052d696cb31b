"""SUBSCRIBE and UNSUBSCRIBE: reason codes, limits, what a changed subscription means."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.conformance import wire
from tests.conformance.client import Client
from tests.conformance.wire import Filter
from tests.unit.shards.node import Node, drain, messages

MakeNode = Callable[..., Node]


@pytest.fixture
def node(make_node: MakeNode) -> Node:
    """One shard on which anonymous clients may subscribe to some topics."""
    auth = {"anonymous": {"subscribe": ("open/#", "own/{client_id}/+", "$SYS/#")}}
    return make_node(1, {"auth": auth, "broker": {"max_subscriptions_per_session": 5}})


def reasons(client: Client, *filters: str, version: int = 5, **fields: Any) -> list[int]:
    """What a SUBACK says."""
    return client.subscribe(*filters, granted=False, **fields).reasons


@pytest.mark.parametrize(
    ("topic_filter", "reason"),
    [
        ("open/#", 1),
        ("open/+/x", 1),
        ("own/c/+", 1),
        ("$SYS/broker/#", 1),
        ("$share/g/open/x", 1),
        ("#", 0x87),
        ("+/x", 0x87),
        ("own/other/x", 0x87),
        ("$share/g/#", 0x87),
        ("$other", 0x87),
        ("open/" + "x" * 5000, 0x8F),
        ("open/" + "x/" * 200, 0x8F),
    ],
)
def test_reasons(node: Node, topic_filter: str, reason: int) -> None:
    client = node.connect(0, "c")
    assert reasons(client, topic_filter, qos=1) == [reason]
    assert reasons(client, "open/a", topic_filter, "open/b", qos=1) == [1, reason, 1]
    old = node.connect(0, "c", version=4)
    if reason == 0x8F:
        old.send(wire.subscribe(4, 1, [Filter(topic_filter, 1)]))
        assert old.ended(1)
    else:
        assert reasons(old, topic_filter, qos=1) == [min(reason, 0x80)]


@pytest.mark.parametrize(
    ("topic_filter", "reason"),
    [("a/#/b", 0x8F), ("a+", 0x8F), ("$share/g", 0x8F), ("$share//t", 0x8F), ("a\0", 0x81)],
)
def test_filters_that_are_none(node: Node, topic_filter: str, reason: int) -> None:
    """Those that break a rule of the standard end the connection or are refused, and nothing is left."""
    client = node.connect(0, "c")
    client.send(wire.subscribe(5, 1, [Filter("open/a"), Filter(topic_filter)]))
    (answer,) = drain(client)
    assert reason in (answer.reason, *answer.reasons)
    session = node[0].session("c")
    assert session is None or list(session.subscriptions) == [b"open/a"]


def test_subscriptions_are_limited(node: Node) -> None:
    client = node.connect(0, "c")
    filters = [f"open/{number}" for number in range(7)]
    assert reasons(client, *filters) == [0] * 5 + [0x97] * 2
    assert reasons(client, "open/1", qos=1) == [1], "one it has may be changed"
    client.unsubscribe("open/0")
    assert reasons(client, "open/9") == [0]
    old = node.connect(0, "old", version=4)
    assert reasons(old, *filters) == [0] * 5 + [0x80] * 2


def test_unsubscribing(node: Node) -> None:
    client = node.connect(0, "c")
    client.subscribe("open/a", "$share/g/open/a")
    unsuback = client.unsubscribe("open/a", "open/b", "$share/g/open/a", "open/a")
    assert unsuback.reasons == [0, 0x11, 0, 0x11]
    node.connect(0, "p").publish("open/a", b"x")
    assert messages(client) == []
    assert node[0].broker.subscriptions.count == 0
    assert len(node[0].broker.subscriptions.groups) == 0
    old = node.connect(0, "c", version=4)
    assert old.unsubscribe("open/a").reasons == []


def test_a_changed_subscription_replaces_the_old_one(node: Node) -> None:
    client, publisher = node.connect(0, "c"), node.connect(0, "p")
    identifier = wire.SUBSCRIPTION_IDENTIFIER
    for qos, number, keep in ((0, 1, False), (2, 2, True), (1, 3, False)):
        client.subscribe(
            Filter("open/a", qos, retain_as_published=keep), props=((identifier, number),)
        )
        publisher.publish("open/a", b"x", qos=2, retain=True)
        live = [packet for packet in drain(client) if packet.kind == wire.PUBLISH][-1]
        assert (live.qos, live.property(identifier), live.retain) == (qos, number, keep)
        client.acknowledge(live)
    assert node[0].broker.subscriptions.count == 1


@pytest.mark.parametrize(("handling", "first", "again"), [(0, 1, 1), (1, 1, 0), (2, 0, 0)])
def test_retain_handling(node: Node, handling: int, first: int, again: int) -> None:
    node.connect(0, "p").publish("open/a", b"kept", qos=1, retain=True)
    client = node.connect(0, "c")
    wanted = Filter("open/#", 1, retain_handling=handling)
    client.subscribe(wanted)
    assert len(messages(client)) == first
    client.subscribe(wanted)
    assert len(messages(client)) == again
    client.unsubscribe("open/#")
    client.subscribe(wanted)
    assert len(messages(client)) == first
    client.subscribe("$share/g/open/#")
    assert messages(client) == []


def test_overlapping_subscriptions_are_one_delivery(node: Node) -> None:
    """With the highest QoS and every identifier, MQTT 5.0 section 3.3.4."""
    client, publisher = node.connect(0, "c"), node.connect(0, "p")
    identifier = wire.SUBSCRIPTION_IDENTIFIER
    client.subscribe("open/a", qos=0, props=((identifier, 1),))
    client.subscribe("open/+", qos=2, props=((identifier, 300_000),))
    client.subscribe("open/#", qos=1)
    publisher.publish("open/a", b"x", qos=2)
    (message,) = drain(client)
    assert message.qos == 2
    assert sorted(message.all(identifier)) == [1, 300_000]


def test_packets_behind_subscribe_wait_for_suback(make_node: MakeNode) -> None:
    """What the client publishes next reaches its own subscription, wherever that is known."""
    node = make_node(2)
    client = node.connect(1, node.id_of(1))
    node.hold()
    client.send(
        wire.subscribe(5, 1, [Filter("t", 1)]), wire.publish(5, "t", b"x", qos=1, packet_id=2)
    )
    assert drain(client) == []
    node.release()
    assert [packet.kind for packet in drain(client)] == [wire.SUBACK, wire.PUBLISH, wire.PUBACK]


def test_a_client_that_leaves_before_its_suback(make_node: MakeNode) -> None:
    node = make_node(2)
    client = node.connect(1, node.id_of(1))
    node.hold()
    client.send(wire.subscribe(5, 1, [Filter("t", 1)]))
    node.run()
    client.drop()
    node.release()
    node.advance(0.2)
    assert node[1].broker.subscriptions.count == 0
    assert not node[0].broker.subscriptions.routes.build(b"t").links


@pytest.mark.parametrize(
    ("topic_filter", "reason"), [("x" * 5000, 0x8F), ("a/" * 201, 0x8F), ("a\0", 0x81)]
)
def test_unsubscribing_from_what_no_subscription_can_be(
    node: Node, topic_filter: str, reason: int
) -> None:
    client = node.connect(0, "c")
    client.subscribe("open/a")
    client.send(wire.unsubscribe(5, 7, ["open/a", topic_filter]))
    (answer,) = drain(client)
    assert reason in (answer.reason, *answer.reasons)
    old = node.connect(0, "old", version=4)
    old.send(wire.unsubscribe(4, 7, [topic_filter]))
    assert old.ended(1)

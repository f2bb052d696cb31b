"""SUBSCRIBE to queues: what is understood, what the queue is asked, and what the client is told when."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fluxmq.protocols.mqtt.reasons import ProtocolError
from fluxmq.sessions.mqtt.queue_subscriptions import QueueSubscription, parse_start
from tests.conformance import wire
from tests.conformance.client import Client
from tests.conformance.wire import Filter
from tests.unit.sessions.mqtt.queue_port import QueuePort
from tests.unit.shards.node import Node, drain, messages

MakeNode = Callable[..., Node]
SUBSCRIBER = {
    "auth": {"anonymous": {"subscribe": ("open/#", "$queue/#", "$dlq/q")}},
    "broker": {"max_subscriptions_per_session": 4},
}


@pytest.fixture
def node(make_node: MakeNode) -> Node:
    """One shard on which anonymous clients may use queues and few topics."""
    return make_node(1, SUBSCRIBER)


@pytest.fixture
def port(node: Node, monkeypatch: pytest.MonkeyPatch) -> QueuePort:
    """The queues of that shard."""
    return QueuePort(node[0], monkeypatch)


def properties(**said: str) -> tuple[tuple[int, tuple[str, str]], ...]:
    """User properties of SUBSCRIBE; `_` stands for `-`."""
    return tuple(
        (wire.USER_PROPERTY, (key.replace("_", "-"), value)) for key, value in said.items()
    )


def reasons(client: Client, *filters: Any, **fields: Any) -> list[int]:
    """What a SUBACK says."""
    return client.subscribe(*filters, granted=False, **fields).reasons


def test_what_a_queue_is_asked(node: Node, port: QueuePort) -> None:
    client = node.connect(0, "app-1")
    said = properties(
        consumer_group="workers", start="offset=5", ack_mode="explicit", prefetch="20", other="x"
    )
    identifier = ((wire.SUBSCRIPTION_IDENTIFIER, 7),)
    assert reasons(client, "$queue/q/eu/#", qos=2, props=identifier + said) == [2]
    assert port.subscribed == [
        (
            "app-1",
            b"$queue/q/eu/#",
            QueueSubscription(
                b"q", b"workers@eu/#", b"eu/#", 2, True, ("offset", 5), 20, identifier=7
            ),
        )
    ]
    grant = node[0].session("app-1").subscriptions[b"$queue/q/eu/#"]
    assert (grant.qos, grant.shared, grant.subscription_id) == (2, b"", 7)
    assert grant.queue == port.subscribed[0][2]
    assert node[0].broker.subscriptions.routes.subscription_count == 0, "no topic leads there"


@pytest.mark.parametrize(
    ("version", "client_id", "topic_filter", "said", "group"),
    [
        (5, "app-1-x", "$queue/q", {}, b"app-1-x"),
        (5, "app", "$queue/q/a", {}, b"app@a"),
        (5, "app", "$queue/q", {"consumer_group": "g h"}, b"g h"),
        (5, "app", "$share/g/$queue/q", {}, b"g"),
        (5, "app", "$share/g/$queue/q/a/+", {"consumer_group": "g"}, b"g@a/+"),
        (4, "app-1-x", "$queue/q", {}, b"app"),
        (4, "app", "$queue/q", {}, b"app"),
        (4, "-x", "$queue/q", {}, b"-x"),
        (4, "app-1", "$share/g/$queue/q", {}, b"g"),
        (4, "app-1", "$queue/q/a", {}, b"app@a"),
    ],
)
def test_groups(
    node: Node,
    port: QueuePort,
    version: int,
    client_id: str,
    topic_filter: str,
    said: dict[str, str],
    group: bytes,
) -> None:
    client = node.connect(0, client_id, version=version)
    assert reasons(client, topic_filter, qos=1, props=properties(**said)) == [1]
    ((_, _, wanted),) = port.subscribed
    assert wanted.group == group
    assert not wanted.explicit
    assert wanted.start is None
    assert wanted.prefetch == 0


@pytest.mark.parametrize(
    ("topic_filter", "said", "reason"),
    [
        ("$queue/#", {}, 0x8F),
        ("$queue/+/x", {}, 0x8F),
        ("$queue/q/$ack", {}, 0x8F),
        ("$queue/$dlq/q", {}, 0x8F),
        ("$share/g/$queue/+", {}, 0x8F),
        ("$dlq/other", {}, 0x87),
        ("$share/g/$dlq/other", {}, 0x87),
        ("$dlq/q", {}, 1),
        ("$queue/q", {"consumer_group": ""}, 0x83),
        ("$queue/q", {"consumer_group": "a/b"}, 0x83),
        ("$queue/q", {"consumer_group": "a@b"}, 0x83),
        ("$queue/q", {"consumer_group": "+"}, 0x83),
        ("$queue/q", {"consumer_group": "a\x01"}, 0x83),
        ("$queue/q", {"consumer_group": "x" * 1025}, 0x83),
        ("$share/g/$queue/q", {"consumer_group": "other"}, 0x83),
        ("$share/a@b/$queue/q", {}, 0x83),
        ("$queue/q", {"ack_mode": "manual"}, 0x83),
        ("$queue/q", {"start": "yesterday"}, 0x83),
        ("$queue/q", {"start": "offset"}, 0x83),
        ("$queue/q", {"start": "offset=-1"}, 0x83),
        ("$queue/q", {"start": "timestamp=now"}, 0x83),
        ("$queue/q", {"start": "first=1"}, 0x83),
        ("$queue/q", {"prefetch": "0"}, 0x83),
        ("$queue/q", {"prefetch": "many"}, 0x83),
        ("$queue/q", {"prefetch": "1000001"}, 0x83),
    ],
)
def test_reasons(
    node: Node, port: QueuePort, topic_filter: str, said: dict[str, str], reason: int
) -> None:
    client = node.connect(0, "c")
    props = properties(**said)
    assert reasons(client, "open/a", topic_filter, qos=1, props=props) == [1, reason]
    granted = reason < 0x80
    assert len(port.subscribed) == granted
    assert set(node[0].session("c").subscriptions) == {b"open/a"} | (
        {topic_filter.encode()} if granted else set()
    )
    if not said and reason != 0x87:
        old = node.connect(0, "old", version=4)
        assert reasons(old, "open/a", topic_filter, qos=1) == [1, min(reason, 0x80)]


def test_a_group_and_pattern_that_no_delivery_could_name(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = make_node(1, {"broker": {"max_topic_bytes": 65_535}})
    port = QueuePort(node[0], monkeypatch)
    client = node.connect(0, "c")
    group = properties(consumer_group="g" * 1000)
    pattern = "x" * (65_535 - 1001)
    assert reasons(client, f"$queue/q/{pattern}x", qos=1, props=group) == [0x8F]
    assert reasons(client, f"$queue/q/{pattern}", qos=1, props=group) == [1]
    ((_, _, wanted),) = port.subscribed
    assert len(wanted.group) == 65_535


def test_what_is_said_twice(node: Node, port: QueuePort) -> None:
    client = node.connect(0, "c")
    twice = properties(consumer_group="g") * 2
    assert reasons(client, "$queue/q", "open/a", qos=1, props=twice) == [0x83, 1]
    assert port.subscribed == []


def test_no_local_is_not_for_queues(node: Node, port: QueuePort) -> None:
    client = node.connect(0, "c")
    assert reasons(client, Filter("$queue/q", 1, no_local=True)) == [0x83]
    assert port.subscribed == []


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("first", ("first", 0)),
        ("last", ("last", 0)),
        ("next", ("next", 0)),
        ("offset=0", ("offset", 0)),
        ("timestamp=1700000000", ("timestamp", 1_700_000_000_000_000)),
        ("timestamp=1700000000123", ("timestamp", 1_700_000_000_123_000)),
        ("timestamp=99999999999", ("timestamp", 99_999_999_999_000_000)),
        ("timestamp=100000000000", ("timestamp", 100_000_000_000_000)),
    ],
)
def test_starts(text: str, start: tuple[str, int]) -> None:
    assert parse_start(text) == start


@pytest.mark.parametrize("text", ["", "FIRST", "offset=", "offset=1=2", "timestamp=1e9", "next=0"])
def test_starts_that_are_none(text: str) -> None:
    with pytest.raises(ProtocolError):
        parse_start(text)


def test_suback_waits_for_every_queue(node: Node, port: QueuePort) -> None:
    port.later = True
    client = node.connect(0, "c")
    filters = [Filter("$queue/a", 1), Filter("open/a", 1), Filter("$queue/b", 2)]
    client.send(wire.subscribe(5, 9, filters), wire.publish(5, "open/a", b"x", qos=1, packet_id=1))
    assert drain(client) == []
    port.answer(1, 0x83)
    assert drain(client) == []
    port.answer(0, 0)
    suback, *rest = drain(client)
    assert suback.reasons == [1, 1, 0x83]
    assert [packet.kind for packet in rest] == [wire.PUBLISH, wire.PUBACK], "read on afterwards"
    assert set(node[0].session("c").subscriptions) == {b"$queue/a", b"open/a"}


def test_a_replacement_that_is_refused(node: Node, port: QueuePort) -> None:
    client = node.connect(0, "c")
    client.subscribe("$queue/a", qos=1)
    bad = properties(ack_mode="manual")
    assert reasons(client, "$queue/a", qos=2, props=bad) == [0x83], "the queue was not asked"
    assert node[0].session("c").subscriptions[b"$queue/a"].qos == 1
    port.refusing = 0x83
    assert reasons(client, "$queue/a", qos=2) == [0x83]
    assert reasons(client, "$queue/b", "$queue/b", qos=1) == [0x83, 0x83]
    assert node[0].session("c").subscriptions == {}


def test_two_of_one_filter_refused_late(node: Node, port: QueuePort) -> None:
    port.later = True
    client = node.connect(0, "c")
    client.send(wire.subscribe(5, 9, [Filter("$queue/a", 1), Filter("$queue/a", 1)]))
    node.run()
    port.answer(0, 0x83)
    port.answer(1, 0x83)
    (suback,) = drain(client)
    assert suback.reasons == [0x83, 0x83]
    assert node[0].session("c").subscriptions == {}


def test_an_answer_after_the_client_has_gone(node: Node, port: QueuePort) -> None:
    port.later = True
    props = ((wire.SESSION_EXPIRY_INTERVAL, 100),)
    client = node.connect(0, "c", props=props)
    client.send(wire.subscribe(5, 9, [Filter("$queue/a", 1), Filter("$queue/b", 1)]))
    node.run()
    client.drop()
    port.answer(0, 0)
    port.answer(1, 0x83)
    assert set(node[0].session("c").subscriptions) == {b"$queue/a"}


def test_subscriptions_are_limited(node: Node, port: QueuePort) -> None:
    client = node.connect(0, "c")
    filters = [f"$queue/{name}" for name in "abcde"]
    assert reasons(client, *filters, qos=1) == [1, 1, 1, 1, 0x97]
    assert len(port.subscribed) == 4


def test_unsubscribing(node: Node, port: QueuePort) -> None:
    client = node.connect(0, "c")
    client.subscribe("$queue/q/a", "open/a", qos=1, props=properties(consumer_group="g"))
    suback = client.unsubscribe("$queue/q", "$queue/q/a", "open/a", "$queue/q/a")
    assert suback.reasons == [0x11, 0, 0, 0x11]
    assert port.unsubscribed == [("c", b"$queue/q/a")]
    assert node[0].session("c").subscriptions == {}


def test_nothing_retained_comes_from_a_queue(node: Node, port: QueuePort) -> None:
    publisher = node.connect(0, "p")
    publisher.publish("open/a", b"kept", qos=1, retain=True)
    client = node.connect(0, "c")
    client.subscribe("$queue/open/a", qos=1)
    assert messages(client) == []
    client.subscribe("open/#", qos=1)
    assert messages(client) == [b"kept"]

"""How long things last: sessions, wills, connections."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.conformance import wire
from tests.conformance.client import Client
from tests.unit.shards.node import Node, drain, messages

MakeNode = Callable[..., Node]
NEVER = 0xFFFFFFFF


@pytest.fixture
def node(make_node: MakeNode) -> Node:
    """One shard."""
    return make_node(1)


def lasting(seconds: int, **more: int) -> dict[str, Any]:
    """A CONNECT's session expiry."""
    return {"props": ((wire.SESSION_EXPIRY_INTERVAL, seconds),), **more}


def will(delay: int | None = None, **fields: Any) -> wire.Will:
    """A will to topic "w"."""
    properties = list(fields.pop("properties", ()))
    if delay is not None:
        properties.append((wire.WILL_DELAY_INTERVAL, delay))
    return wire.Will("w", b"gone", properties=tuple(properties), **fields)


def watcher(node: Node) -> Client:
    """Hears wills."""
    client = node.connect(0, "watcher")
    client.subscribe("w", qos=2)
    return client


# Sessions


def test_a_session_lasts_as_long_as_it_was_asked_to(node: Node) -> None:
    client = node.connect(0, "c", **lasting(100))
    client.subscribe("t", qos=1)
    client.drop()
    node.advance(99)
    node.connect(0, "p").publish("t", b"x", qos=1)
    back = node.connect(0, "c", clean=False, **lasting(100))
    assert back.present
    assert messages(back) == [b"x"]
    back.drop()
    node.advance(101)
    assert node[0].session("c") is None
    assert node[0].broker.sessions.expired == 1
    assert not node.connect(0, "c", clean=False).present


def test_a_session_does_not_expire_while_its_client_is_here(node: Node) -> None:
    client = node.connect(0, "c", **lasting(10))
    client.drop()
    node.advance(5)
    client = node.connect(0, "c", clean=False, **lasting(10))
    node.advance(100)
    assert client.ping() == []
    client.drop()
    node.advance(9)
    assert node[0].session("c") is not None
    node.advance(2)
    assert node[0].session("c") is None


@pytest.mark.parametrize(
    ("asked", "granted"), [(0, None), (50, None), (100, None), (101, 100), (NEVER, 100)]
)
def test_the_longest_expiry_is_the_brokers(
    make_node: MakeNode, asked: int, granted: int | None
) -> None:
    node = make_node(1, {"session": {"max_expiry_interval": 100.0}})
    client = node.client(0)
    connack = client.connect("c", keep_alive=0, **lasting(asked))
    assert connack.property(wire.SESSION_EXPIRY_INTERVAL) == granted
    client.drop()
    effective = granted or asked
    if effective:
        node.advance(effective - 1)
        assert node[0].session("c") is not None
        node.advance(2)
    assert node[0].session("c") is None


@pytest.mark.parametrize(
    ("at_connect", "at_disconnect", "lives"),
    [(100, None, 100), (100, 10, 10), (100, 500, 500), (100, 0, 0), (100, NEVER, 1000), (0, 0, 0)],
)
def test_expiry_set_at_disconnect(
    make_node: MakeNode, at_connect: int, at_disconnect: int | None, lives: int
) -> None:
    node = make_node(1, {"session": {"max_expiry_interval": 1000.0}})
    client = node.connect(0, "c", **lasting(at_connect))
    props = () if at_disconnect is None else ((wire.SESSION_EXPIRY_INTERVAL, at_disconnect),)
    client.disconnect(0, props)
    if lives:
        node.advance(lives - 1)
        assert node[0].session("c") is not None
        node.advance(2)
    assert node[0].session("c") is None


def test_expiry_cannot_begin_at_disconnect(node: Node) -> None:
    client = node.connect(0, "c", **lasting(0))
    client.send(wire.disconnect(0, ((wire.SESSION_EXPIRY_INTERVAL, 5),)))
    assert [packet.reason for packet in drain(client)] == [0x82]
    assert node[0].session("c") is None


def test_persistent_sessions_of_3_1_1(make_node: MakeNode) -> None:
    node = make_node(1, {"session": {"default_expiry_interval": 50.0}})
    for clean in (True, False):
        client = node.connect(0, "c", version=4, clean=clean)
        client.subscribe("t", qos=1)
        client.drop()
        assert (node[0].session("c") is None) is clean
    node.advance(51)
    assert node[0].session("c") is None


def test_a_clean_start_ends_the_old_session(node: Node) -> None:
    old = node.connect(0, "c", **lasting(100))
    old.subscribe("t", qos=1)
    old.drop()
    node.connect(0, "p").publish("t", b"x", qos=1)
    new = node.connect(0, "c", clean=True, **lasting(100))
    assert not new.present
    assert drain(new) == []
    assert node[0].broker.subscriptions.routes.subscription_count == 0


def test_sessions_are_limited(make_node: MakeNode) -> None:
    """Absent ones count; a client that has one may always come back."""
    node = make_node(1, {"session": {"max_sessions": 3}})
    for number in range(3):
        node.connect(0, f"c{number}", **lasting(100)).drop()
    refused = node.client(0)
    assert refused.connect("one too many").reason == 0x97
    assert refused.ended(1)
    old = node.client(0, version=4)
    assert old.connect("another", clean=True).reason == 3
    assert node.connect(0, "c1", clean=False, **lasting(100)).present
    assert not node.connect(0, "c2", clean=True).present
    node.advance(101)
    node.connect(0, "room again")


# Wills


@pytest.mark.parametrize("version", [4, 5])
def test_a_will_is_published_when_the_connection_is_lost(node: Node, version: int) -> None:
    hears = watcher(node)
    node.connect(0, "c", version=version, will=will(qos=1)).drop()
    (message,) = drain(hears)
    assert (message.topic, message.payload, message.qos) == ("w", b"gone", 1)


@pytest.mark.parametrize(
    ("version", "reason", "published"),
    [(4, None, False), (5, None, False), (5, 0, False), (5, 4, True), (5, 0x80, True)],
)
def test_a_will_and_disconnect(
    node: Node, version: int, reason: int | None, published: bool
) -> None:
    hears = watcher(node)
    client = node.connect(0, "c", version=version, will=will())
    client.disconnect(reason)
    assert messages(hears) == [b"gone"] * published


@pytest.mark.parametrize(
    ("delay", "expiry", "at"), [(0, 100, 0), (10, 100, 10), (200, 100, 100), (10, 0, 0)]
)
def test_a_delayed_will(node: Node, delay: int, expiry: int, at: int) -> None:
    """At the end of its delay or of the session, whichever is first [MQTT-3.1.3-9]."""
    hears = watcher(node)
    node.connect(0, "c", will=will(delay), **lasting(expiry)).drop()
    if at:
        node.advance(at - 1)
        assert messages(hears) == []
        node.advance(2)
    assert messages(hears) == [b"gone"]
    node.advance(1000)
    assert messages(hears) == []
    assert node[0].broker.counts.wills == 1


def test_coming_back_calls_a_delayed_will_off(node: Node) -> None:
    hears = watcher(node)
    node.connect(0, "c", will=will(10), **lasting(100)).drop()
    node.advance(5)
    back = node.connect(0, "c", clean=False, **lasting(100))
    node.advance(200)
    assert messages(hears) == []
    back.drop()
    node.advance(200)
    assert messages(hears) == [], "the new connection brought no will"


def test_a_clean_start_ends_the_session_and_its_will_is_due(node: Node) -> None:
    hears = watcher(node)
    node.connect(0, "c", will=will(10), **lasting(100)).drop()
    node.connect(0, "c", clean=True)
    assert messages(hears) == [b"gone"]


def test_a_will_after_a_protocol_error_and_after_silence(node: Node) -> None:
    hears = watcher(node)
    node.connect(0, "c", will=will()).send(b"\xf0\x01\xff")
    assert messages(hears) == [b"gone"]
    silent = node.connect(0, "s", will=will(), keep_alive=10)
    node.advance(14)
    assert messages(hears) == []
    node.advance(2)
    assert messages(hears) == [b"gone"]
    assert [packet.reason for packet in drain(silent)] == [0x8D]


def test_a_will_with_everything(node: Node) -> None:
    hears = watcher(node)
    properties = (
        (wire.MESSAGE_EXPIRY_INTERVAL, 77),
        (wire.CONTENT_TYPE, "text"),
        (wire.RESPONSE_TOPIC, "r"),
        (wire.CORRELATION_DATA, b"\0\1"),
        (wire.PAYLOAD_FORMAT_INDICATOR, 1),
        (wire.USER_PROPERTY, ("a", "1")),
        (wire.USER_PROPERTY, ("a", "2")),
    )
    node.connect(0, "c", will=will(qos=2, retain=True, properties=properties)).drop()
    (message,) = drain(hears)
    assert sorted(message.properties, key=str) == sorted(properties, key=str)
    assert not message.retain
    late = node.connect(0, "late")
    late.subscribe("w")
    (kept,) = drain(late)
    assert kept.retain
    assert kept.property(wire.USER_PROPERTY) == ("a", "1")


def test_a_will_expires_in_a_queue(node: Node) -> None:
    absent = node.connect(0, "a", **lasting(1000))
    absent.subscribe("w", qos=1)
    absent.drop()
    properties = ((wire.MESSAGE_EXPIRY_INTERVAL, 20),)
    node.connect(0, "c", will=will(10, qos=1, properties=properties), **lasting(50)).drop()
    node.advance(25)
    back = node.connect(0, "a", clean=False, **lasting(1000))
    (message,) = drain(back)
    left = message.property(wire.MESSAGE_EXPIRY_INTERVAL)
    assert left in (4, 5, 6), "counted from its publication"


def test_a_will_that_may_not_be_published_is_refused(make_node: MakeNode) -> None:
    node = make_node(1, {"auth": {"anonymous": {"publish": ("open",)}}})
    for version, reason in ((5, 0x87), (4, 5)):
        assert node.client(0, version).connect("c", will=will()).reason == reason


def test_wills_are_limited(make_node: MakeNode) -> None:
    node = make_node(1, {"broker": {"max_will_size": 10, "max_qos": 1}})
    large = wire.Will("w", b"x" * 11)
    assert node.client(0).connect("c", will=large).reason == 0x95
    assert node.client(0, 4).connect("c", will=large).reason == 3
    assert node.client(0).connect("c", will=wire.Will("w", b"x" * 10, qos=2)).reason == 0x9B
    assert node.client(0).connect("c", will=wire.Will("w", b"x" * 10, qos=1)).reason == 0


# Connections


@pytest.mark.parametrize("version", [4, 5])
def test_keep_alive(node: Node, version: int) -> None:
    """One and a half times; whatever is received counts, what is sent does not."""
    client = node.connect(0, "c", version=version, keep_alive=10)
    for _ in range(5):
        node.advance(14)
        client.send(wire.publish(version, "t", b"x"))
        node.run()
    node.advance(14)
    assert client.ping() == []
    node.advance(16)
    assert [packet.reason for packet in drain(client)] == ([0x8D] if version == 5 else [])
    assert client.closed
    assert node[0].broker.counts.closed["keep_alive"] == 1


def test_the_servers_keep_alive(make_node: MakeNode) -> None:
    """Imposed on clients of version 5, told to them; 3.1.1 has no words for it."""
    node = make_node(1, {"broker": {"keep_alive_maximum": 20.0}})
    told: list[int | None] = []
    for version, asked in ((5, 0), (5, 100), (5, 10), (4, 100)):
        client = node.client(0, version)
        told.append(
            client.connect(f"c{len(told)}", keep_alive=asked).property(wire.SERVER_KEEP_ALIVE)
        )
    assert told == [20, 20, None, None]
    node.advance(31)
    assert node[0].broker.counts.closed["keep_alive"] == 3
    node.advance(121)
    assert node[0].broker.counts.closed["keep_alive"] == 4


def test_connect_has_to_come_in_time(node: Node) -> None:
    """However slowly it comes, and however much of it."""
    clients = [node.client(0) for _ in range(3)]
    packet = wire.connect(5, "c" * 50)
    for index in range(9):
        clients[1].send(packet[index : index + 1])
        node.advance(1)
    assert len(node[0].reactor.connections) == 3
    clients[2].connect("in time", keep_alive=0)
    node.advance(2)
    assert [client.ended(1) for client in clients[:2]] == [True, True]
    assert node[0].broker.counts.closed["connect_timeout"] == 2
    node.advance(100)
    assert clients[2].ping() == []


def test_a_takeover_on_one_shard(node: Node) -> None:
    hears = watcher(node)
    first = node.connect(0, "c", will=will(), **lasting(100))
    first.subscribe("t", qos=1)
    second = node.connect(0, "c", clean=False, **lasting(100))
    assert second.present
    assert [packet.reason for packet in drain(first)] == [0x8E]
    assert messages(hears) == [b"gone"]
    node.connect(0, "p").publish("t", b"x", qos=1)
    assert messages(second) == [b"x"]
    third = node.connect(0, "c", version=4)
    assert not third.present
    assert second.ended(1)
    assert node[0].broker.takeover.count == 2


def test_a_client_that_does_not_read_its_disconnect_is_let_go_of(node: Node) -> None:
    """After a while, whether it closes or not."""
    client = node.connect(0, "c")
    client.send(b"\xf0\x01\xff")
    node.run()
    assert len(node[0].reactor.connections) == 1
    node.advance(3)
    assert len(node[0].reactor.connections) == 0
    assert [packet.kind for packet in drain(client)] == [wire.DISCONNECT]

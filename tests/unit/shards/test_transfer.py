"""A session as values: what leaves one shard is what arrives at another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fluxmq.net.reactor
from fluxmq.net import frames
from fluxmq.sessions.mqtt.session import Grant, Session, Will
from fluxmq.shards.transfer import (
    export_session,
    import_session,
    received_again,
    received_of,
    released_of,
)
from tests.conformance import wire
from tests.unit.shards.node import Clock, Node, drain, messages

MakeNode = Callable[..., Node]
LASTING = ((wire.SESSION_EXPIRY_INTERVAL, 1000),)

GRANTS = st.builds(
    Grant, st.integers(0, 2), st.booleans(), st.booleans(), st.integers(0, 268_435_455)
)
WILLS = st.builds(
    Will,
    st.binary(min_size=1, max_size=20),
    st.binary(max_size=100),
    st.integers(0, 2),
    st.booleans(),
    st.binary(max_size=30),
    st.integers(0, 2**32 - 1),
    st.none() | st.integers(0, 2**32 - 1),
    st.booleans(),
)


@settings(max_examples=60)
@given(
    st.fixed_dictionaries(
        {
            "principal": st.text(max_size=20),
            "expiry": st.integers(0, 2**32 - 1),
            "expires_at": st.floats(0, 1e9),
            "will_at": st.floats(0, 1e9),
            "will": st.none() | WILLS,
            "received": st.none() | st.sets(st.integers(1, 65535), max_size=20),
        }
    ),
    st.dictionaries(st.binary(min_size=1, max_size=20), GRANTS, max_size=10),
    st.lists(st.integers(1, 65535), unique=True, max_size=10),
    st.integers(1, 65535),
)
def test_everything_but_messages(
    fields: dict[str, Any],
    subscriptions: dict[bytes, Grant],
    released: list[int],
    next_pid: int,
) -> None:
    with_node(lambda node: round_trip(node, fields, subscriptions, released, next_pid))


def with_node(act: Callable[[Node], None]) -> None:
    """Hypothesis and fixtures do not go together."""
    loop, clock = asyncio.new_event_loop(), Clock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fluxmq.net.reactor, "monotonic", clock)
        node = Node(2, clock, loop)
        try:
            act(node)
        finally:
            node.close()
            loop.close()


def round_trip(
    node: Node,
    fields: dict[str, Any],
    subscriptions: dict[bytes, Grant],
    released: list[int],
    next_pid: int,
) -> None:
    session = Session("c", node[0].broker.sessions.new_delivery())
    for name, value in fields.items():
        if name != "received":
            setattr(session, name, value)
    received_again(session, sorted(fields["received"] or ()))
    session.subscriptions = dict(subscriptions)
    for packet_id in released:
        session.delivery.release(packet_id, 1, None, packet_id)
    session.delivery.inflight = len(released)
    session.delivery.next_pid = next_pid
    state = over_the_wire(export_session(session))
    target = node[1].broker
    found = import_session(
        state,
        target.sessions.new_delivery(),
        target.subscriptions.groups,
        target.sessions.durable.keep,
    )
    assert found.client_id == "c"
    for name, value in fields.items():
        if name not in ("will", "received"):
            assert getattr(found, name) == value
    assert received_of(found) == sorted(fields["received"] or ())
    assert values(found.will) == values(fields["will"])
    assert {name: values(grant) for name, grant in found.subscriptions.items()} == {
        name: values(grant) for name, grant in subscriptions.items()
    }
    assert released_of(found.delivery) == released
    assert found.delivery.inflight == len(released)
    assert found.delivery.next_pid == next_pid
    assert found.delivery.session is found


def values(thing: Any) -> Any:
    """The slots of a thing."""
    return thing and [getattr(thing, name) for name in type(thing).__slots__]


def over_the_wire(state: list[Any]) -> Any:
    """What msgpack makes of it on the way."""
    return frames.decode_control(frames.encode_control("grant", 1, state))[2]


MESSAGES = st.lists(
    st.tuples(
        st.integers(1, 2),
        st.sampled_from((b"", b"x", b"y" * 300)),
        st.sampled_from(((), ((wire.CONTENT_TYPE, "t"),), ((wire.MESSAGE_EXPIRY_INTERVAL, 50),))),
        st.sampled_from((4, 5)),
    ),
    max_size=15,
)


@settings(max_examples=40)
@given(
    MESSAGES,
    st.integers(0, 6),
    st.lists(st.sampled_from(("answer", "skip", "nothing")), max_size=8),
    st.sampled_from((4, 5)),
    st.sampled_from((0, 77)),
)
def test_messages(
    published: list[Any], window: int, answers: list[str], version: int, identifier: int
) -> None:
    """Whatever was in flight, half-way or waiting: the client gets the same from the other shard as it would
    have from this one."""

    def act(node: Node) -> None:
        expected = converse(node, published, window, answers, version, identifier, move=False)
        found = converse(node, published, window, answers, version, identifier, move=True)
        assert found == expected

    with_node(act)


def converse(
    node: Node,
    published: list[Any],
    window: int,
    answers: list[str],
    version: int,
    identifier: int,
    *,
    move: bool,
) -> list[Any]:
    """What a client receives after it came back, here or at the other shard."""
    name = node.id_of(0, "moves" if move else "stays")
    fields: dict[str, Any] = {"clean": False}
    subscribing: Any = ()
    if version == 5:
        fields["props"] = (*LASTING, (wire.RECEIVE_MAXIMUM, window + 1))
        subscribing = ((wire.SUBSCRIPTION_IDENTIFIER, identifier),) if identifier else ()
    client = node.connect(0, name, version, **fields)
    client.subscribe("t/#", qos=2, props=subscribing)
    publishers = {each: node.connect(0, f"p{each}", each) for each in (4, 5)}
    for number, (qos, payload, props, sender) in enumerate(published):
        publishers[sender].publish(
            f"t/{number % 3}", payload, qos=qos, props=props if sender == 5 else ()
        )
    for packet, answer in zip(drain(client), answers, strict=False):
        if packet.kind == wire.PUBLISH and answer == "answer":
            kind = wire.PUBACK if packet.qos == 1 else wire.PUBREC
            client.send(wire.acknowledge(kind, packet.packet_id))
    node.run()
    client.drop()
    publishers[4].publish("t/away", b"away", qos=1)
    back = node.connect(1 if move else 0, name, version, **fields)
    assert back.present
    received = drain(back)
    found = [
        (p.kind, p.packet_id, p.topic, p.payload, p.qos, p.dup, p.retain, p.properties)
        for p in received
    ]
    for packet in received:
        if packet.kind == wire.PUBLISH:
            back.acknowledge(packet)
        elif packet.kind == wire.PUBREL:
            back.send(wire.acknowledge(wire.PUBCOMP, packet.packet_id))
    rest = messages(back)
    session = node[1 if move else 0].session(name)
    assert session.delivery.inflight == 0
    assert session.delivery.pending_count == session.delivery.pending_bytes == 0
    back.send(wire.disconnect())
    node.connect(1 if move else 0, name, version).drop()
    return [found, rest]


def test_qos_2_towards_the_broker_goes_on_elsewhere(make_node: MakeNode) -> None:
    """A message received before the move is not routed again after it [MQTT-4.3.3-10]."""
    node = make_node(2)
    listener = node.connect(1, "l")
    listener.subscribe("t", qos=2)
    name = node.id_of(0)
    client = node.connect(0, name, props=LASTING)
    packet = wire.publish(5, "t", b"once", qos=2, packet_id=9)
    client.send(packet)
    assert [p.kind for p in drain(client)] == [wire.PUBREC]
    client.drop()
    back = node.connect(1, name, clean=False, props=LASTING)
    back.send(wire.publish(5, "t", b"once", qos=2, packet_id=9, dup=True))
    assert [(p.kind, p.reason) for p in drain(back)] == [(wire.PUBREC, 0)]
    back.send(wire.acknowledge(wire.PUBREL, 9))
    assert [(p.kind, p.reason) for p in drain(back)] == [(wire.PUBCOMP, 0)]
    assert messages(listener) == [b"once"]


def test_a_will_moves_with_its_session(make_node: MakeNode) -> None:
    """It is published once, where the session is, when its delay is over."""
    node = make_node(3)
    listener = node.connect(2, "l")
    listener.subscribe("w")
    name = node.id_of(0)
    will = wire.Will("w", b"gone", properties=((wire.WILL_DELAY_INTERVAL, 60),))
    node.connect(0, name, will=will, props=LASTING).drop()
    claimer = node.client(1)
    node.hold()
    claimer.send(wire.connect(5, name, clean=False, props=LASTING))
    node.run()
    node.let(1, 0)
    claimer.drop()
    node.release()
    assert node.holders(name) == [1]
    node.advance(30)
    assert drain(listener) == []
    node.advance(31)
    assert [packet.payload for packet in drain(listener)] == [b"gone"]
    node.advance(2000)
    assert drain(listener) == []
    assert node.holders(name) == [], "the expiry moved too"


def test_coming_back_elsewhere_calls_off_the_will(make_node: MakeNode) -> None:
    node = make_node(2)
    listener = node.connect(0, "l")
    listener.subscribe("w")
    name = node.id_of(0)
    will = wire.Will("w", b"gone", properties=((wire.WILL_DELAY_INTERVAL, 60),))
    node.connect(0, name, will=will, props=LASTING).drop()
    node.connect(1, name, clean=False, props=LASTING)
    node.advance(100)
    assert drain(listener) == []


def test_a_takeover_from_another_shard_ends_the_connection(make_node: MakeNode) -> None:
    """With its will, if that has no delay; the client of version 5 is told [MQTT-3.1.4-3]."""
    node = make_node(2)
    listener = node.connect(0, "l")
    listener.subscribe("w")
    name = node.id_of(0)
    for version in (4, 5):
        first = node.connect(0, name, version, will=wire.Will("w", b"gone"))
        second = node.connect(1, name)
        told = [(packet.kind, packet.reason) for packet in drain(first)]
        assert told == ([(wire.DISCONNECT, 0x8E)] if version == 5 else [])
        assert first.closed
        assert [packet.payload for packet in drain(listener)] == [b"gone"]
        second.disconnect(0)
    assert node[0].broker.takeover.count == 2


def test_a_session_with_a_long_queue_moves(make_node: MakeNode) -> None:
    """Megabytes, in pieces, through a link with little room."""
    node = make_node(2)
    name = node.id_of(0)
    client = node.connect(0, name, props=LASTING)
    client.subscribe("t", qos=1)
    client.drop()
    publisher = node.connect(0, "p")
    for number in range(300):
        publisher.publish("t", b"%05d" % number * 2000, qos=1)
    node.pipes[0, 1].room = 100_000
    back = node.client(1)
    back.send(wire.connect(5, name, clean=False, props=LASTING))
    node.advance(5)
    found = [packet for packet in drain(back) if packet.kind == wire.PUBLISH]
    assert [packet.payload[:5] for packet in found] == [b"%05d" % number for number in range(300)]


@pytest.mark.parametrize("order", ["subscribed again", "other filter"])
def test_subscriptions_go_on_at_the_new_place_only(make_node: MakeNode, order: str) -> None:
    node = make_node(2)
    name = node.id_of(0)
    client = node.connect(0, name, props=LASTING)
    client.subscribe("t", "$share/g/s", qos=1)
    back = node.connect(1, name, clean=False, props=LASTING)
    if order == "subscribed again":
        back.subscribe("t", "$share/g/s", qos=1)
    publisher = node.connect(0, "p")
    for topic in ("t", "s"):
        publisher.publish(topic, topic.encode(), qos=1)
    assert messages(back) == [b"t", b"s"]
    assert node[0].broker.subscriptions.routes.subscription_count == 0
    assert node[1].broker.subscriptions.routes.subscription_count == 1
    back.unsubscribe("t", "$share/g/s")
    node.advance(0.2)
    for shard in node:
        assert not shard.broker.subscriptions.routes.build(b"t").links
        assert not shard.broker.subscriptions.routes.build(b"t").targets
        assert len(shard.broker.subscriptions.groups) == 0


def test_what_is_published_after_connack_reaches_the_session(make_node: MakeNode) -> None:
    """CONNACK waits until every shard routes to the new place."""
    node = make_node(3)
    name = node.id_of(0)
    node.connect(0, name, props=LASTING).subscribe("t", qos=1)
    publisher = node.connect(2, node.id_of(2))
    back = node.client(1)
    node.hold()
    back.send(wire.connect(5, name, clean=False, props=LASTING))
    node.run()
    node.let(1, 0)  # claim
    node.let(0, 1)  # grant
    assert drain(back) == []
    while not (packets := drain(back)):
        node.let(*node.waiting()[0])
    assert packets[0].kind == wire.CONNACK
    publisher.send(wire.publish(5, "t", b"x", qos=1, packet_id=9))
    node.run()
    node.release()
    assert messages(back) == [b"x"]

"""Retained messages of a node: all shards end with the same ones, and subscribers get them at their pace."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fluxmq.net.reactor
from fluxmq.sessions.mqtt.subscribing import FEED_STEP
from tests.conformance import wire
from tests.conformance.client import Client
from tests.unit.shards.interleavings import Story, explore
from tests.unit.shards.node import Clock, Node, drain, messages, stream_of

MakeNode = Callable[..., Node]


def contents(node: Node) -> list[dict[bytes, bytes]]:
    """What each shard keeps: topic to payload."""
    return [
        {
            topic: kept.message.payloads()[0]
            for topic, kept in shard.broker.retained.store.snapshot()
        }
        for shard in node
    ]


@pytest.mark.parametrize(
    "scripts",
    [
        [(0, b"a"), (1, b"b"), (2, b"c")],
        [(0, b"a"), (1, b"")],
        [(0, b""), (1, b"b"), (2, b"")],
    ],
)
def test_the_last_writer_wins_in_every_order(
    clock: Clock, loop: asyncio.AbstractEventLoop, scripts: list[tuple[int, bytes]]
) -> None:
    """Whatever the order of the frames, all shards agree, on what was written last."""
    last: list[bytes] = []

    def tell() -> Story:
        node = Node(3, clock, loop)
        clients = [node.connect(shard, f"p{shard}", version=4) for shard in range(3)]
        node.connect(0, "first").publish("t", b"before", qos=1, retain=True)
        node.run()
        last[:] = [b"before"]

        def step(shard: int, payload: bytes) -> Callable[[], None]:
            def publish() -> None:
                clients[shard].publish("t", payload, retain=True)
                last[:] = [payload]

            return publish

        return Story(node, [[step(*script)] for script in scripts])

    def check(story: Story) -> None:
        expected = {b"t": last[0]} if last[0] else {}
        assert contents(story.node) == [expected] * 3

    assert explore(tell, check, walks=40 if len(scripts) > 2 else 0) > 3


@settings(max_examples=50)
@given(
    st.lists(
        st.one_of(
            st.tuples(
                st.just("publish"), st.integers(0, 2), st.sampled_from("xy"), st.binary(max_size=2)
            ),
            st.tuples(st.just("let"), st.integers(0, 5)),
            st.tuples(st.just("let"), st.integers(0, 5)),
            st.tuples(st.just("back"), st.integers(1, 10**12)),
            st.tuples(st.just("restart"), st.integers(0, 2)),
        ),
        max_size=40,
    )
)
def test_shards_agree_after_anything(events: list[Any]) -> None:
    """Publishes anywhere, frames in any order, clocks set back, shards restarted."""
    loop = asyncio.new_event_loop()
    clock = Clock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fluxmq.net.reactor, "monotonic", clock)
        node = Node(3, clock, loop)
        try:
            clients: dict[int, Client] = {}
            node.hold()
            for event in events:
                if event[0] == "publish":
                    _, shard, topic, payload = event
                    if not node[shard].peers.synchronised:
                        continue  # it takes no connections yet
                    if shard not in clients:
                        clients[shard] = node.connect(shard, node.id_of(shard), version=4)
                    clients[shard].publish(topic, payload, retain=True)
                    node.run()
                elif event[0] == "let":
                    waiting = node.waiting()
                    if waiting:
                        node.let(*waiting[event[1] % len(waiting)])
                elif event[0] == "back":
                    clock.wall -= event[1]
                else:
                    # What a shard has said reaches the others before the next death: with two at once, a
                    # message may have reached some of the living only. One that is still coming up counts as dead.
                    others = [shard for number, shard in enumerate(node) if number != event[1]]
                    if not all(shard.peers.synchronised for shard in others):
                        continue
                    for source, target in node.waiting():
                        if source == event[1]:
                            node.let(source, target, len(node.pipes[source, target].records))
                    node.kill(event[1])
                    clients.pop(event[1], None)
                    node.start(event[1])
                    node.hold()
            node.release()
            assert all(shard.peers.synchronised for shard in node)
            first, *rest = contents(node)
            assert rest == [first] * 2
            for shard in clients:
                clients[shard].publish("z", b"last %d" % shard, qos=1, retain=True)
                node.run()
                assert [kept[b"z"] for kept in contents(node)] == [b"last %d" % shard] * 3
        finally:
            node.close()
            loop.close()


def test_a_message_published_elsewhere_keeps_everything(make_node: MakeNode) -> None:
    node = make_node(2)
    properties = (
        (wire.CONTENT_TYPE, "text"),
        (wire.USER_PROPERTY, ("k", "v")),
        (wire.MESSAGE_EXPIRY_INTERVAL, 60),
    )
    node.connect(0, "p").publish("t", b"x" * 100_000, qos=2, retain=True, props=properties)
    subscriber = node.connect(1, "s")
    subscriber.subscribe("t", qos=2, props=((wire.SUBSCRIPTION_IDENTIFIER, 9),))
    message = subscriber.receive()
    assert (message.payload, message.qos, message.retain) == (b"x" * 100_000, 2, True)
    assert message.property(wire.CONTENT_TYPE) == "text"
    assert message.property(wire.USER_PROPERTY) == ("k", "v")
    assert message.property(wire.MESSAGE_EXPIRY_INTERVAL) == 60
    assert message.property(wire.SUBSCRIPTION_IDENTIFIER) == 9
    node.advance(61)
    subscriber.subscribe("t")
    assert messages(subscriber) == []
    assert contents(node) == [{}, {}]


@pytest.mark.parametrize(
    ("interval", "waited", "left"), [(1, 0, 1), (2, 0, 2), (2, 1.4, 1), (9, 3.2, 6)]
)
@pytest.mark.parametrize("shard", [0, 1])
def test_what_is_left_of_a_messages_time_is_rounded_up(
    make_node: MakeNode, shard: int, interval: int, waited: float, left: int
) -> None:
    """Row F3: of a retained message, and of one that waited in a session; at once it is what was received."""
    node = make_node(2)
    lasting = ((wire.SESSION_EXPIRY_INTERVAL, 100),)
    live = node.connect(shard, "live")
    live.subscribe("t", qos=1)
    away = node.connect(shard, "away", props=lasting)
    away.subscribe("t", qos=1)
    away.drop()
    expiry = ((wire.MESSAGE_EXPIRY_INTERVAL, interval),)
    node.connect(0, "p").publish("t", b"x", qos=1, retain=True, props=expiry)
    assert [each.property(wire.MESSAGE_EXPIRY_INTERVAL) for each in drain(live)] == [interval]
    node.advance(waited)
    late = node.connect(shard, "late")
    late.subscribe("t", qos=1)
    away = node.connect(shard, "away", clean=False, props=lasting)
    for client in (late, away):
        assert [each.property(wire.MESSAGE_EXPIRY_INTERVAL) for each in drain(client)] == [left]


def test_limits_refuse_new_topics_only(make_node: MakeNode) -> None:
    """The message is delivered and counted as not kept; what is kept may change and go."""
    node = make_node(2, {"broker": {"max_retained_messages": 2}})
    publisher, subscriber = node.connect(0, "p"), node.connect(1, "s")
    subscriber.subscribe("#", qos=1)
    for topic in ("a", "b", "c"):
        assert publisher.publish(topic, b"1", qos=1, retain=True) == 0
    assert messages(subscriber) == [b"1"] * 3
    assert contents(node) == [{b"a": b"1", b"b": b"1"}] * 2
    assert node[0].broker.counts.drops["retained_full"] == 1
    publisher.publish("a", b"2", qos=1, retain=True)
    publisher.publish("b", b"", qos=1, retain=True)
    publisher.publish("c", b"3", qos=1, retain=True)
    node.run()
    assert contents(node) == [{b"a": b"2", b"c": b"3"}] * 2


def test_bytes_are_limited(make_node: MakeNode) -> None:
    node = make_node(1, {"broker": {"max_retained_bytes": 5000}})
    publisher = node.connect(0, "p")
    for number in range(10):
        publisher.publish(f"t{number}", b"x" * 1000, qos=1, retain=True)
    assert len(contents(node)[0]) == 4
    assert node[0].broker.counts.drops["retained_full"] == 6


def test_a_topic_that_is_none_is_not_kept(make_node: MakeNode) -> None:
    """It is looked at before it is kept, also where the client may publish everything."""
    node = make_node(1)
    for topic in (b"a/#", b"+", b"a\0b", b"\xff", b"x" * 5000, b"a/" * 201):
        client = node.connect(0, "p", version=4)
        client.send(wire.publish(4, topic, b"x", retain=True))
        assert client.ended(1)
    assert contents(node) == [{}]


def test_ten_thousand_messages_for_a_slow_reader(make_node: MakeNode) -> None:
    """They come as they are taken, all of them, a bounded number at a time, and others are served meanwhile."""
    node = make_node(1, {"session": {"max_output_bytes": 20_000}})
    count = 10_000
    publisher = node.connect(0, "p", version=4)
    publisher.send(
        *(wire.publish(4, f"t/{number:05}", b"x" * 50, retain=True) for number in range(count))
    )
    node.run()
    slow = node.client(0, buffer=4096)
    slow.connect("slow")
    sock = stream_of(slow).sock
    slow.subscribe("t/#")
    found = b""
    other = node.connect(0, "other")
    (connection,) = [c for c in node[0].reactor.connections.values() if c.feeding]
    largest = 0
    while True:
        try:
            found += sock.recv(3000)
        except BlockingIOError:
            if not node.run():
                break
        largest = max(largest, connection.size)
    assert other.ping() == []
    assert largest <= 20_000
    assert not connection.feeding
    slow._bytes += found
    assert [packet.topic for packet in drain(slow)] == [f"t/{n:05}" for n in range(count)]
    assert node[0].reactor.tally.dropped_slow == 0


@pytest.mark.parametrize("qos", [1, 2])
def test_ten_thousand_messages_through_a_window_of_three(make_node: MakeNode, qos: int) -> None:
    node = make_node(1)
    count = 10_000 if qos == 1 else 2_000
    publisher = node.connect(0, "p", version=4)
    publisher.send(
        *(
            wire.publish(
                4, f"t/{number:05}", b"x", qos=qos, packet_id=number % 1000 + 1, retain=True
            )
            + (wire.acknowledge(wire.PUBREL, number % 1000 + 1) if qos == 2 else b"")
            for number in range(count)
        )
    )
    node.run()
    subscriber = node.connect(0, "s", props=((wire.RECEIVE_MAXIMUM, 3),))
    subscriber.subscribe("t/#", qos=qos)
    session = node[0].session("s")
    topics: list[str] = []
    while len(topics) < count:
        assert session.delivery.inflight <= 3
        assert session.delivery.pending_count <= 1, "the session's queue is not filled with them"
        batch = drain(subscriber)
        assert batch
        topics += [packet.topic for packet in batch if packet.kind == wire.PUBLISH]
        subscriber.send(
            *(
                wire.acknowledge(
                    {
                        wire.PUBLISH: wire.PUBACK if qos == 1 else wire.PUBREC,
                        wire.PUBREL: wire.PUBCOMP,
                    }[packet.kind],
                    packet.packet_id,
                )
                for packet in batch
            )
        )
    assert topics == [f"t/{number:05}" for number in range(count)]


def test_a_tick_is_bounded(make_node: MakeNode) -> None:
    node = make_node(1)
    node.connect(0, "p", version=4).send(
        *(wire.publish(4, f"t/{number}", b"x", retain=True) for number in range(2000))
    )
    node.run()
    subscriber = node.connect(0, "s")
    subscriber.send(wire.subscribe(5, 1, [wire.Filter("t/#")]))
    sent = []
    shard = node[0]
    before = shard.reactor.tally.sent0
    while shard.step():
        sent.append(shard.reactor.tally.sent0 - before)
        before = shard.reactor.tally.sent0
    assert sum(sent) == 2000
    assert max(sent) <= 2 * FEED_STEP


def test_a_message_too_large_or_expired_does_not_end_the_feed(make_node: MakeNode) -> None:
    """What waits for the window may be dropped instead of written; the others come all the same."""
    node = make_node(1)
    publisher = node.connect(0, "p")
    for number in range(10):
        size = 500 if number in (4, 8) else 5
        props = ((wire.MESSAGE_EXPIRY_INTERVAL, 5),) if number == 6 else ()
        publisher.publish(f"t/{number}", b"x" * size, qos=1, retain=True, props=props)
    subscriber = node.connect(
        0, "s", props=((wire.RECEIVE_MAXIMUM, 1), (wire.MAXIMUM_PACKET_SIZE, 100))
    )
    subscriber.subscribe("t/#", qos=1)
    topics: list[str] = []
    while len(topics) < 7:
        packets = drain(subscriber)
        for packet in packets:
            topics.append(packet.topic)
            if packet.topic == "t/5":
                node.advance(10)
            subscriber.send(wire.acknowledge(wire.PUBACK, packet.packet_id))
        if not packets:
            node.advance(0.2)
    assert topics == [f"t/{number}" for number in (0, 1, 2, 3, 5, 7, 9)]


def test_unsubscribing_ends_the_feed(make_node: MakeNode) -> None:
    """[MQTT-3.10.4-2]: nothing new is added for delivery."""
    node = make_node(1)
    node.connect(0, "p", version=4).send(
        *(wire.publish(4, f"t/{n}", b"x", qos=1, packet_id=n, retain=True) for n in range(1, 1001))
    )
    node.run()
    subscriber = node.connect(0, "s", props=((wire.RECEIVE_MAXIMUM, 10),))
    subscriber.subscribe("t/#", "t/1", qos=1)
    subscriber.unsubscribe("t/#")
    found = messages(subscriber)
    assert len(found) < 15
    assert not any(c.feeding for c in node[0].reactor.connections.values())


def test_subscribing_again_and_again_keeps_one_feed(make_node: MakeNode) -> None:
    """[MQTT-3.8.4-3]: retained messages are sent anew; what was left of the last time is part of them."""
    node = make_node(1)
    node.connect(0, "p", version=4).send(
        *(wire.publish(4, f"t/{n}", b"x", qos=1, packet_id=n, retain=True) for n in range(1, 101))
    )
    node.run()
    subscriber = node.connect(0, "s", props=((wire.RECEIVE_MAXIMUM, 1),))
    for _ in range(50):
        subscriber.subscribe("t/#", "t/+", qos=1)
    (connection,) = [c for c in node[0].reactor.connections.values() if c.feeding]
    assert len(connection.identity.feeds) == 2
    topics: list[str] = []
    while True:
        packets = drain(subscriber)
        if not packets:
            break
        topics += [packet.topic for packet in packets]
        for packet in packets:
            subscriber.send(wire.acknowledge(wire.PUBACK, packet.packet_id))
    assert set(topics) == {f"t/{n}" for n in range(1, 101)}
    assert len(topics) <= 202


def test_the_feed_ends_with_the_connection(make_node: MakeNode) -> None:
    node = make_node(1)
    node.connect(0, "p", version=4).send(
        *(wire.publish(4, f"t/{n}", b"x", qos=1, packet_id=n, retain=True) for n in range(1, 101))
    )
    subscriber = node.connect(0, "s", props=((wire.RECEIVE_MAXIMUM, 1),))
    subscriber.subscribe("t/#", qos=1)
    (client,) = node[0].broker.connections._unfed
    subscriber.drop()
    node.advance(0.5)
    assert client.feeds is None
    assert not node[0].broker.connections._unfed


def test_no_local_holds_for_retained_messages(make_node: MakeNode) -> None:
    """[MQTT-3.8.3-3]: wherever the subscription is made, and after the publisher came back."""
    node = make_node(2)
    name = node.id_of(0)
    own, other = node.connect(0, name), node.connect(0, "other")
    own.publish("t/own", b"own", qos=1, retain=True)
    own.publish("t/both", b"old", qos=1, retain=True)
    other.publish("t/both", b"new", qos=1, retain=True)
    node.run()
    for shard in (0, 1):
        client = node.connect(shard, name)
        client.subscribe(wire.Filter("t/#", 1, no_local=True))
        assert messages(client) == [b"new"]
        client.subscribe(wire.Filter("t/#", 1))
        assert messages(client) == [b"new", b"own"]
    other.subscribe(wire.Filter("t/#", 1, no_local=True))
    assert messages(other) == [b"own"]

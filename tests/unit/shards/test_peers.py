"""Shards among each other: interest that is known before it is promised, lives and deaths, slow links."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fluxmq.net import frames
from fluxmq.net.reactor import PAUSED_LINK
from tests.conformance import wire
from tests.unit.shards.node import Node, drain, messages, stream_of

MakeNode = Callable[..., Node]


def numbered(count: int, start: int = 0) -> list[bytes]:
    """Payloads that show their order."""
    return [b"%d" % number for number in range(start, start + count)]


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("workers", [2, 3])
def test_messages_reach_every_shard_in_order(make_node: MakeNode, workers: int, qos: int) -> None:
    node = make_node(workers)
    subscribers = [node.connect(shard, f"s{shard}") for shard in range(workers)]
    for subscriber in subscribers:
        subscriber.subscribe("a/#", "+/b", qos=qos)
    publishers = [node.connect(shard, f"p{shard}", version=4) for shard in range(workers)]
    for number in range(60):
        publisher = publishers[number % workers]
        publisher.publish("a/b", b"%d" % number, qos=qos)
    for subscriber in subscribers:
        found = messages(subscriber)
        assert sorted(found, key=int) == numbered(60), "once each, whatever overlaps"
        for index in range(workers):
            own = [payload for payload in found if int(payload) % workers == index]
            assert own == sorted(own, key=int), "in each publisher's order"


def test_a_burst_crosses_as_runs(make_node: MakeNode) -> None:
    """Neighbouring messages of one size are one frame."""
    payloads = [b"%03d" % number for number in range(500)]
    node = make_node(2)
    subscriber = node.connect(1, "s")
    subscriber.subscribe("t", qos=1)
    publisher = node.connect(0, "p")
    node.hold()
    publisher.send(
        *(
            wire.publish(5, "t", payload, qos=1, packet_id=number)
            for number, payload in enumerate(payloads, 1)
        )
    )
    node.run()
    (record,) = node.pipes[0, 1].records
    assert frames.decode_run(record).count == 500
    node.release()
    assert messages(subscriber) == payloads


def test_a_suback_waits_until_every_shard_knows(make_node: MakeNode) -> None:
    node = make_node(3)
    subscriber = node.connect(1, "s")
    publishers = [node.connect(shard, f"p{shard}") for shard in (0, 2)]
    node.hold()
    subscriber.send(wire.subscribe(5, 7, [wire.Filter("t", 1)]), wire.pingreq())
    assert drain(subscriber) == []
    node.let(1, 0)
    node.let(1, 2)
    node.let(0, 1)
    assert drain(subscriber) == [], "one of two shards has not confirmed"
    node.let(2, 1)
    suback, pong = drain(subscriber)
    assert (suback.kind, suback.reasons, pong.kind) == (wire.SUBACK, [1], wire.PINGRESP)
    for publisher in publishers:
        publisher.publish("t", b"m", qos=1)
    node.release()
    assert messages(subscriber) == [b"m", b"m"]


def test_a_suback_does_not_wait_for_the_dead(make_node: MakeNode) -> None:
    node = make_node(3)
    subscriber = node.connect(1, "s")
    node.hold()
    subscriber.send(wire.subscribe(5, 7, [wire.Filter("t", 1)]))
    node.run()
    node.kill(2)
    node.release()
    assert drain(subscriber) == []
    node[1].timer()
    (suback,) = drain(subscriber)
    assert suback.kind == wire.SUBACK
    subscriber.subscribe("u")


def test_several_subscribes_wait_each_for_its_own(make_node: MakeNode) -> None:
    node = make_node(2)
    first, second = node.connect(1, "a"), node.connect(1, "b")
    node.hold()
    first.send(wire.subscribe(5, 1, [wire.Filter("t")]))
    node.run()
    second.send(wire.subscribe(5, 2, [wire.Filter("u")]))
    node.run()
    node.let(1, 0)
    node.let(0, 1)
    assert [packet.packet_id for packet in drain(first)] == [1]
    assert drain(second) == []
    node.let(1, 0)
    node.let(0, 1)
    assert [packet.packet_id for packet in drain(second)] == [2]


def test_what_is_already_known_is_acknowledged_at_once(make_node: MakeNode) -> None:
    node = make_node(2)
    node.connect(1, "a").subscribe("t")
    second = node.connect(1, "b")
    node.hold()
    second.subscribe("t")
    assert not node.waiting()


def test_interest_that_ends_is_told(make_node: MakeNode) -> None:
    """The last subscriber of a filter leaves: messages do not cross any more."""
    node = make_node(2)
    one, other, publisher = node.connect(1, "a"), node.connect(1, "b"), node.connect(0, "p")
    one.subscribe("t/+")
    other.subscribe("t/+")
    sent = node[0].peers.links[1].sent_bytes
    publisher.publish("t/1", b"x")
    node.run()
    assert node[0].peers.links[1].sent_bytes > sent
    one.unsubscribe("t/+")
    other.drop()
    node.advance(0.2)
    sent = node[0].peers.links[1].sent_bytes
    publisher.publish("t/1", b"y")
    node.run()
    assert node[0].peers.links[1].sent_bytes == sent
    assert [packet.payload for packet in drain(one)] == [b"x"]


def test_interest_that_ends_and_begins_again_between_two_tellings(make_node: MakeNode) -> None:
    node = make_node(2)
    subscriber, publisher = node.connect(1, "s"), node.connect(0, "p")
    subscriber.subscribe("t")
    subscriber.unsubscribe("t")
    subscriber.subscribe("t")
    publisher.publish("t", b"x")
    assert messages(subscriber) == [b"x"]


def test_system_topics_are_added_up(make_node: MakeNode) -> None:
    node = make_node(3)
    clients = [node.connect(shard, f"c{shard}") for shard in range(3)]
    for client in clients:
        client.subscribe("t", "$SYS/broker/#")
    clients[2].publish("t", b"x")
    node.run()
    for _ in range(2):
        for shard in node:
            shard.system.tick()
            node.run()
    for client in clients:
        told = {packet.topic: packet.payload for packet in drain(client) if packet.topic != "t"}
        assert told["$SYS/broker/clients/connected"] == b"3"
        assert told["$SYS/broker/subscriptions/count"] == b"6"
        assert told["$SYS/broker/messages/publish/received"] == b"1"
        assert told["$SYS/broker/retained/count"] == b"0", "its own topics do not count"
        assert b"FluxMQ" in told["$SYS/broker/version"]
    late = node.connect(1, "late")
    late.subscribe("$SYS/broker/uptime")
    (uptime,) = drain(late)
    assert uptime.retain
    clients[1].publish("$SYS/broker/version", b"forged", retain=True)
    node.run()
    late.subscribe("$SYS/broker/version")
    assert b"FluxMQ" in drain(late)[-1].payload


# Full links, dead peers


def test_messages_for_a_dead_shard_are_dropped_and_hold_up_nobody(make_node: MakeNode) -> None:
    node = make_node(3)
    alive, dead = node.connect(1, "alive"), node.connect(2, "dead")
    for client in (alive, dead):
        client.subscribe("t", qos=1)
    publisher = node.connect(0, "p")
    node.pipes[0, 2].room = 3000
    node.kill(2)
    publisher.send(
        *(
            wire.publish(5, "t", b"%03d" % number * 1000, qos=1, packet_id=number + 1)
            for number in range(50)
        )
    )
    node.run()
    link = node[0].peers.links[2]
    node.clock.now += 0.01
    node.run()
    assert not link.up, "noticed when the link was full, before the timer"
    assert len(drain(publisher)) == 50
    assert len(messages(alive)) == 50
    assert not link.backlog
    before = link.sent_bytes
    publisher.publish("t", b"x", qos=1)
    node.run()
    assert link.sent_bytes == before
    assert messages(alive) == [b"x"]


def test_a_full_link_stops_those_who_feed_it_and_no_others(make_node: MakeNode) -> None:
    node = make_node(3)
    slow, quick = node.connect(1, "slow"), node.connect(2, "quick")
    slow.subscribe("slow", qos=1)
    quick.subscribe("quick", qos=1)
    feeder = node.connect(0, node.id_of(0, "feeder"))
    other = node.connect(0, node.id_of(0, "other"))
    node.pipes[0, 1].room = 5000
    node.hung.add(1)
    left = b"".join(
        wire.publish(5, "slow", b"%04d" % number * 250, qos=1, packet_id=number)
        for number in range(1, 400)
    )
    while left:
        try:
            left = left[stream_of(feeder).sock.send(left[:3000]) :]
        except BlockingIOError:
            break
        node.run()
    assert left, "the client was not held up"
    link = node[0].peers.links[1]
    assert link.backlog
    assert link.backlog_bytes < 10_000, "what waits is bounded by what had been read"
    paused = [c for c in node[0].reactor.connections.values() if c.paused & PAUSED_LINK]
    assert len(paused) == 1
    acknowledged = len(drain(feeder))
    assert 0 < acknowledged < 20
    other.publish("quick", b"x", qos=1)
    assert messages(quick) == [b"x"]
    node.hung.clear()
    node.pipes[0, 1].room = None
    node.advance(0.5)
    feeder.send(left)
    assert [int(payload[:4]) for payload in messages(slow)] == list(range(1, 400))
    assert acknowledged + len(drain(feeder)) == 399
    assert not link.backlog
    assert not link.paused
    assert not any(c.paused for c in node[0].reactor.connections.values())


def test_a_connection_held_by_two_links_waits_for_both(make_node: MakeNode) -> None:
    node = make_node(3)
    for shard in (1, 2):
        node.connect(shard, f"s{shard}").subscribe("t")
    for shard in (1, 2):
        node.pipes[0, shard].room = 500
        node.hung.add(shard)
    feeder = node.connect(0, node.id_of(0, "feeder"))
    for _ in range(3):
        feeder.send(wire.publish(5, "t", b"x" * 400))
        node.run()
    (connection,) = node[0].reactor.connections.values()
    assert connection.paused
    assert all(link.backlog for link in node[0].peers.links.values())
    node.hung.discard(1)
    node.advance(0.5)
    assert connection.paused
    node.hung.clear()
    node.advance(0.5)
    assert not connection.paused


def test_a_connection_held_by_a_link_whose_peer_dies_goes_on(make_node: MakeNode) -> None:
    node = make_node(2)
    node.connect(1, "s").subscribe("t")
    feeder = node.connect(0, node.id_of(0, "feeder"))
    node.pipes[0, 1].room = 500
    node.hung.add(1)
    for number in range(1, 8):
        feeder.send(wire.publish(5, "t", b"x" * 400, qos=1, packet_id=number))
        node.run()
    assert len(drain(feeder)) < 7
    node.kill(1)
    node.advance(0.5)
    assert feeder.ping() is not None
    assert not node[0].reactor.connections[next(iter(node[0].reactor.connections))].paused


def test_a_held_connection_may_go_away(make_node: MakeNode) -> None:
    node = make_node(2)
    node.connect(1, "s").subscribe("t")
    feeder = node.connect(0, node.id_of(0, "feeder"))
    node.pipes[0, 1].room = 500
    node.hung.add(1)
    for _ in range(3):
        feeder.send(wire.publish(5, "t", b"x" * 400))
        node.run()
    assert node[0].peers.links[1].paused
    feeder.drop()
    node.hung.clear()
    node.advance(0.5)
    assert not node[0].peers.links[1].paused
    assert not node[0].reactor.connections

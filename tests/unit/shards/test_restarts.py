"""Shards that are killed and started again: what they learn, what they forget, what was under way."""

from __future__ import annotations

from collections.abc import Callable

from tests.conformance import wire
from tests.unit.shards.node import Node, drain, messages

MakeNode = Callable[..., Node]


def test_a_restarted_shard_knows_what_its_peers_want(make_node: MakeNode) -> None:
    """Filters, groups, retained messages, owned ids."""
    node = make_node(3)
    name = node.id_of(0)
    subscriber = node.connect(1, name, props=((wire.SESSION_EXPIRY_INTERVAL, 100),))
    subscriber.subscribe("a/+", "b", qos=1)
    subscriber.subscribe("$share/g/s", qos=1)
    journal = node.connect(2, node.id_of(2, "keeper"))
    for topic, payload in (("kept", b"r"), ("deleted", b"r"), ("deleted", b"")):
        journal.publish(topic, payload, qos=1, retain=True)
    node.kill(0)
    node.start(0)
    node.run()
    fresh = node[0]
    assert fresh.peers.synchronised
    assert fresh.ownership._owners == {name: 1}
    publisher = node.connect(0, "p")
    for topic in ("a/1", "b", "s"):
        publisher.publish(topic, topic.encode(), qos=1)
    assert messages(subscriber) == [b"a/1", b"b", b"s"]
    publisher.subscribe("#")
    assert [(packet.topic, packet.payload) for packet in drain(publisher)] == [("kept", b"r")]
    assert dict(fresh.broker.retained.store.tombstones()).keys() == {b"deleted"}


def test_a_restarted_shards_former_interest_is_forgotten(make_node: MakeNode) -> None:
    node = make_node(2)
    node.connect(1, "s").subscribe("t/#", "$share/g/t/#")
    publisher = node.connect(0, "p")
    node.kill(1)
    node.start(1)
    node.run()
    assert len(node[0].broker.subscriptions.groups) == 0
    before = node[0].peers.links[1].sent_bytes
    publisher.publish("t/1", b"x")
    node.run()
    assert node[0].peers.links[1].sent_bytes == before
    again = node.connect(1, "s")
    again.subscribe("t/#")
    publisher.publish("t/1", b"y")
    assert messages(again) == [b"y"]


def test_records_for_a_former_life_are_ignored(make_node: MakeNode) -> None:
    """What peers sent before they heard hello was meant for the predecessor."""
    node = make_node(2)
    subscriber = node.connect(1, "s")
    subscriber.subscribe("t")
    publisher = node.connect(0, "p")
    node.hold()
    node.kill(1)
    node.start(1)
    node.hold()
    publisher.publish("t", b"x", retain=True)
    node.run()
    node.let(0, 1, 2)  # the retained message and the run, before the welcome
    assert not node[1].peers.links[0].up
    assert len(node[1].broker.retained.store) == 0
    node.release()
    assert node[1].peers.synchronised
    assert node[1].broker.retained.message(b"t") is not None, "fetched with all others"


def test_a_shard_is_not_synchronised_before_all_have_told(make_node: MakeNode) -> None:
    node = make_node(3)
    node.connect(2, "k").publish("kept", b"r", qos=1, retain=True)
    node.kill(0)
    node.hold()
    shard = node.start(0)
    node.hold()
    assert not shard.peers.synchronised
    for peer in (1, 2):
        node.let(0, peer)
        node.let(peer, 0, len(node.pipes[peer, 0].records))
    assert not shard.peers.synchronised, "the retained messages are not here"
    assert node.pipes[0, 1].records or node.pipes[0, 2].records
    node.release()
    assert shard.peers.synchronised
    assert len(shard.broker.retained.store) == 1


def test_the_source_of_retained_messages_dies_half_way(make_node: MakeNode) -> None:
    """Another peer that has them all is asked."""
    node = make_node(3)
    journal = node.connect(1, "k")
    for number in range(300):
        journal.publish(f"kept/{number}", b"r" * 100, retain=True)
    node.run()
    node.kill(0)
    node.pipes[1, 0].room = node.pipes[2, 0].room = 4000
    node.hold()
    shard = node.start(0)
    node.hold()
    while not shard.peers._sources:
        for pair in node.waiting():
            node.let(*pair)
    (source,) = shard.peers._sources
    node.let(0, source, len(node.pipes[0, source].records))
    node.let(source, 0, 3)
    assert not shard.peers.synchronised
    node.kill(source)
    shard.timer()
    node.release()
    node.advance(10)
    assert shard.peers.synchronised
    assert len(shard.broker.retained.store) == 300


def test_what_was_retained_just_now_is_told_by_who_did_it(make_node: MakeNode) -> None:
    """It was sent to the predecessor, and has not reached the peer that sends the whole store."""
    node = make_node(3)
    publisher = node.connect(2, "p")
    publisher.publish("old", b"r", qos=1, retain=True)
    node.hold()
    node.kill(0)
    # Their homes are away, or cannot be asked: the answers come when these have them on disk.
    publisher.send(wire.publish(5, "new", b"r", qos=1, retain=True, packet_id=101))
    publisher.send(wire.publish(5, "old", b"", qos=1, retain=True, packet_id=102))
    node.run()
    node.start(0)
    node.hold()
    for peer in (1, 2):
        node.let(0, peer)
    node.let(1, 0, len(node.pipes[1, 0].records))
    node.let(2, 0, len(node.pipes[2, 0].records))
    assert node[0].peers._sources == {1}
    node.let(0, 1, len(node.pipes[0, 1].records))
    node.let(1, 0, len(node.pipes[1, 0].records))
    assert node[1].broker.retained.message(b"new") is None
    assert node[0].peers.synchronised
    assert node[0].broker.retained.message(b"new") is not None
    assert node[0].broker.retained.message(b"old") is None


def test_a_shard_with_half_the_retained_messages_is_not_asked(make_node: MakeNode) -> None:
    """Two shards restart at once: both fetch from the third, neither from the other."""
    node = make_node(3)
    journal = node.connect(2, "k")
    for number in range(50):
        journal.publish(f"kept/{number}", b"r", retain=True)
    node.run()
    for shard in (0, 1):
        node.kill(shard)
    node.hold()
    for shard in (0, 1):
        node.start(shard)
    node.hold()
    while True:  # everything between those two first
        pairs = [pair for pair in node.waiting() if 2 not in pair]
        if not pairs:
            break
        node.let(*pairs[0])
    for shard in (0, 1):
        assert len(node[shard].broker.retained.store) == len(node.disks[shard].rows["retained"])
    node.release()
    for each in node:
        assert each.peers.synchronised
        assert len(each.broker.retained.store) == 50


def test_a_node_that_starts_has_nobody_to_ask(make_node: MakeNode) -> None:
    for shard in make_node(3):
        assert shard.peers.synchronised
        assert shard.peers.complete


def test_a_shard_alone_is_synchronised(make_node: MakeNode) -> None:
    node = make_node(1)
    node[0].timer()
    assert node[0].peers.synchronised


def test_a_shard_that_served_before_a_peer_heard_it_tells_what_it_wants(
    make_node: MakeNode,
) -> None:
    """A peer was slow to answer the hello; what was subscribed meanwhile must reach it with the welcome."""
    node = make_node(2)
    node.kill(0)
    node.hold()
    node.start(0)
    node.hold()
    subscriber = node.connect(0, node.id_of(0, "s"))
    subscriber.subscribe("t")
    node.release()
    node.connect(1, "p").publish("t", b"x")
    assert messages(subscriber) == [b"x"]


def test_a_shard_restarted_before_anybody_noticed(make_node: MakeNode) -> None:
    """Its predecessor's records are followed by its hello; both are dealt with in their order."""
    node = make_node(2)
    old = node.connect(1, "old")
    old.subscribe("t")
    publisher = node.connect(1, "p")
    listener = node.connect(0, "l")
    listener.subscribe("u")
    node.hold()
    publisher.publish("u", b"last words")
    node.run()
    node.kill(1)
    node.start(1)
    node.release()
    assert messages(listener) == [b"last words"]
    assert node[0].peers.links[1].up
    assert node[1].peers.links[0].up
    again = node.connect(1, "again")
    again.subscribe("t")
    listener.publish("t", b"x")
    assert messages(again) == [b"x"]


def test_a_hello_is_believed_before_the_process_table_shows_it(make_node: MakeNode) -> None:
    """A shard may be heard before its supervisor and its own heartbeat have written its row."""
    node = make_node(2)
    node.kill(1)
    node.unseen.add(1)
    node.start(1)
    node.run()
    node[0].timer()
    assert node[0].peers.links[1].up
    subscriber = node.connect(1, node.id_of(1))
    subscriber.subscribe("t")
    node.unseen.clear()
    node.advance(5)
    node.connect(0, "p").publish("t", b"x")
    assert messages(subscriber) == [b"x"]
    node.unseen.add(1)
    node[0].timer()
    assert not node[0].peers.links[1].up, "once shown, what is shown holds"


def test_a_hello_is_not_believed_for_ever(make_node: MakeNode) -> None:
    node = make_node(2)
    node.kill(1)
    node.start(1)
    node.run()
    node.kill(1)
    node.advance(1.5)
    assert not node[0].peers.links[1].up

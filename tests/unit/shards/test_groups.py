"""Shared subscriptions of a node: dealt out fairly over shards, handed over when a member leaves.

Source: MQTT 5.0 section 4.8.2.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from tests.conformance import wire
from tests.conformance.client import Client
from tests.unit.shards.node import Node, drain, messages, stream_of

MakeNode = Callable[..., Node]
LASTING = ((wire.SESSION_EXPIRY_INTERVAL, 1000),)


def members(node: Node, *shards: int, qos: int = 1, **fields: Any) -> list[Client]:
    """Clients on these shards, all in one group; their ids tell their home, which is their shard."""
    found = []
    for number, shard in enumerate(shards):
        client = node.connect(shard, node.id_of(shard, f"m{number}-"), **fields)
        client.subscribe("$share/g/t", qos=qos)
        found.append(client)
    node.advance(0.2)
    return found


def numbered(count: int) -> list[bytes]:
    """Payloads of one length that show their order."""
    return [b"%04d" % number for number in range(count)]


def publish(publisher: Client, payloads: list[bytes], qos: int = 1) -> None:
    """In one write: a run."""
    publisher.send(
        *(
            wire.publish(publisher.version, "t", payload, qos=qos, packet_id=number)
            for number, payload in enumerate(payloads, 1)
        )
    )
    stream_of(publisher).node.run()


@pytest.mark.parametrize("shards", [(0, 0), (1, 1), (0, 1), (0, 1, 2), (0, 1, 1, 1), (2, 2, 1)])
def test_a_run_is_dealt_out_evenly(make_node: MakeNode, shards: tuple[int, ...]) -> None:
    node = make_node(3)
    group = members(node, *shards)
    publish(node.connect(0, "p"), numbered(600))
    found = [messages(member) for member in group]
    assert sorted(itertools.chain(*found)) == numbered(600), "each message once"
    for part in found:
        assert part == sorted(part), "in order"
        assert abs(len(part) - 600 / len(shards)) <= 2


@pytest.mark.parametrize("publishers", [(0,), (0, 1, 2)])
def test_single_messages_alternate(make_node: MakeNode, publishers: tuple[int, ...]) -> None:
    node = make_node(3)
    group = members(node, 0, 1, 1, 2)
    sources = [node.connect(shard, f"p{shard}") for shard in publishers]
    for number in range(120):
        sources[number % len(sources)].publish("t", b"%d" % number, qos=1)
        node.run()
    counts = [len(messages(member)) for member in group]
    assert sum(counts) == 120
    assert max(counts) - min(counts) <= 2 * len(publishers)


def test_a_member_also_subscribed_by_itself_gets_both(make_node: MakeNode) -> None:
    node = make_node(2)
    (member,) = members(node, 1)
    member.subscribe("t", qos=1)
    node.connect(0, "p").publish("t", b"x", qos=1)
    assert messages(member) == [b"x", b"x"]


def test_groups_do_not_share_with_each_other(make_node: MakeNode) -> None:
    node = make_node(2)
    clients = [node.connect(number % 2, f"c{number}") for number in range(4)]
    for number, client in enumerate(clients):
        client.subscribe(f"$share/g{number % 2}/t/+", qos=1)
    publisher = node.connect(1, "p")
    for number in range(20):
        publisher.publish(f"t/{number % 3}", b"x", qos=1)
    counts = [len(messages(client)) for client in clients]
    assert counts[0] + counts[2] == counts[1] + counts[3] == 20
    assert min(counts) >= 6


def test_an_absent_member_gets_nothing_while_another_is_connected(make_node: MakeNode) -> None:
    node = make_node(2)
    here, there = members(node, 0, 1, props=LASTING)
    here.drop()
    node.advance(0.2)
    publisher = node.connect(0, "p")
    publish(publisher, numbered(10))
    assert messages(there) == numbered(10)
    there.drop()
    node.advance(0.2)
    publish(publisher, numbered(10))
    pending = [
        shard.session(client.client_id).delivery.pending_count
        for shard, client in zip(node, (here, there), strict=True)
    ]
    assert pending == [5, 5], "nobody is connected: it waits in their sessions"


def test_unacknowledged_messages_go_to_another_shard(make_node: MakeNode) -> None:
    """A member leaves with QoS 1 messages in flight and waiting: nothing is lost, nothing comes back."""
    node = make_node(2)
    one, other = members(node, 0, 1, props=(*LASTING, (wire.RECEIVE_MAXIMUM, 3)))
    publish(node.connect(0, "p"), numbered(20))
    mine = drain(one)
    assert len(mine) == 3
    one.send(wire.acknowledge(wire.PUBACK, mine[0].packet_id))
    node.run()
    got = messages(other)
    assert len(got) == 10
    one.drop()
    node.advance(0.2)
    rest = messages(other)
    assert sorted([mine[0].payload, *got, *rest]) == numbered(20)
    assert rest == sorted(rest)
    back = node.connect(0, one.client_id, clean=False, props=LASTING)
    assert back.present
    assert drain(back) == []


def test_messages_in_flight_stay_with_the_only_member(make_node: MakeNode) -> None:
    """Nobody could take over: it gets them again, as repetitions, with their identifiers [MQTT-4.4.0-1]."""
    node = make_node(2)
    (alone,) = members(node, 1, props=(*LASTING, (wire.RECEIVE_MAXIMUM, 2)))
    alone.subscribe("$share/other/u")
    node.connect(0, "partner").subscribe("$share/other/u")
    publish(node.connect(0, "p"), numbered(4))
    first = drain(alone)
    assert [packet.dup for packet in first] == [False, False]
    alone.drop()
    back = node.connect(1, alone.client_id, clean=False, props=LASTING)
    again = drain(back)
    assert [(p.payload, p.dup) for p in again] == list(
        zip(numbered(4), (True, True, False, False), strict=True)
    )
    assert [p.packet_id for p in again[:2]] == [p.packet_id for p in first]


def test_qos_2_messages_are_completed_with_their_member_or_nobody(make_node: MakeNode) -> None:
    """[MQTT-4.8.2-4], [MQTT-4.8.2-5]; those not yet sent go to another."""
    node = make_node(2)
    one, other = members(node, 0, 1, qos=2, props=(*LASTING, (wire.RECEIVE_MAXIMUM, 2)))
    publisher = node.connect(0, "p")
    publish(publisher, numbered(8), qos=2)
    mine = drain(one)
    assert len(mine) == 2
    one.drop()
    node.advance(0.2)
    got = messages(other)
    sent = [packet.payload for packet in mine]
    assert sorted(got + sent) == numbered(8)
    back = node.connect(0, one.client_id, clean=False, props=LASTING)
    again = drain(back)
    assert [(p.payload, p.packet_id, p.dup) for p in again] == [
        (p.payload, p.packet_id, True) for p in mine
    ]
    back.send(wire.acknowledge(wire.PUBREC, again[0].packet_id))
    assert drain(back)[0].kind == wire.PUBREL
    back.drop()
    node.connect(0, one.client_id).drop()  # clean start: the session ends
    node.advance(0.2)
    assert messages(other) == []


@pytest.mark.parametrize("way", ["expiry", "clean start", "disconnect", "unsubscribed before"])
def test_a_session_that_ends_hands_over(make_node: MakeNode, way: str) -> None:
    node = make_node(2)
    one, other = members(node, 0, 1, props=((wire.SESSION_EXPIRY_INTERVAL, 10),))
    for member in (one, other):
        member.drop()
    node.advance(0.2)
    publish(node.connect(0, "p"), numbered(10))
    assert node[0].session(one.client_id).delivery.pending_count == 5
    if way == "expiry":
        second = node.connect(1, other.client_id, clean=False, props=LASTING)
        assert len(messages(second)) == 5
        node.advance(11)
    elif way == "clean start":
        second = node.connect(1, other.client_id, clean=False, props=LASTING)
        first = node.connect(0, one.client_id)
        assert drain(first) == []
    elif way == "disconnect":
        second = node.connect(1, other.client_id, clean=False, props=LASTING)
        first = node.connect(
            0, one.client_id, clean=False, props=(*LASTING, (wire.RECEIVE_MAXIMUM, 1))
        )
        assert len(drain(first)) == 1
        first.send(wire.disconnect(0, ((wire.SESSION_EXPIRY_INTERVAL, 0),)))
    else:
        second = node.connect(1, other.client_id, clean=False, props=LASTING)
        first = node.connect(
            0, one.client_id, clean=False, props=(*LASTING, (wire.RECEIVE_MAXIMUM, 1))
        )
        first.unsubscribe("$share/g/t")
        assert len(messages(first)) == 5, "what was given to it is its own"
        assert len(messages(second)) == 5
        return
    node.run()
    total = messages(second)
    if way == "expiry":
        assert len(total) == 5
    else:
        assert sorted(total) == numbered(10)


def test_messages_on_their_way_to_a_member_that_left_go_on(make_node: MakeNode) -> None:
    """The part of a run for a shard whose member has just left goes to a member elsewhere."""
    node = make_node(3)
    one, other = members(node, 1, 2)
    publisher = node.connect(0, "p")
    node.hold()
    publish(publisher, numbered(10))
    one.drop()
    node.release()
    node.advance(0.3)
    assert sorted(messages(other)) == numbered(10)


def test_messages_for_a_group_that_has_gone_are_counted(make_node: MakeNode) -> None:
    node = make_node(2)
    (member,) = members(node, 1)
    publisher = node.connect(0, "p")
    node.hold()
    publish(publisher, numbered(10))
    member.drop()
    node.release()
    node.advance(0.3)
    assert node[1].broker.counts.drops["shared_no_member"] == 10
    publish(publisher, numbered(10))
    assert not node[0].broker.counts.drops["shared_no_member"], "no group, no route"


def test_qos_0_for_absent_members_is_counted(make_node: MakeNode) -> None:
    node = make_node(1)
    (member,) = members(node, 0, qos=0, props=LASTING)
    member.drop()
    publish(node.connect(0, "p"), numbered(7))
    assert node[0].broker.counts.drops["shared_no_member"] == 7


def test_a_dead_shards_members_get_nothing_more(make_node: MakeNode) -> None:
    node = make_node(3)
    _, alive = members(node, 1, 2)
    publisher = node.connect(0, "p")
    node.kill(1)
    node.advance(0.3)
    publish(publisher, numbered(10))
    assert messages(alive) == numbered(10)


def test_subscription_identifiers_and_qos_are_the_members_own(make_node: MakeNode) -> None:
    node = make_node(2)
    one, other = node.connect(0, "a"), node.connect(1, "b")
    one.subscribe("$share/g/t", qos=0, props=((wire.SUBSCRIPTION_IDENTIFIER, 1),))
    other.subscribe("$share/g/t", qos=2, props=((wire.SUBSCRIPTION_IDENTIFIER, 300),))
    publish(node.connect(0, "p"), numbered(10))
    for client, qos, identifier in ((one, 0, 1), (other, 1, 300)):
        packets = drain(client)
        assert len(packets) == 5
        assert {packet.qos for packet in packets} == {qos}
        assert {packet.property(wire.SUBSCRIPTION_IDENTIFIER) for packet in packets} == {identifier}


def test_a_message_measured_for_one_member_is_measured_again_for_another(
    make_node: MakeNode,
) -> None:
    """What fits the one that leaves may be too large for the one that takes over."""
    node = make_node(2)
    small = ((wire.MAXIMUM_PACKET_SIZE, 100),)
    wide = (*LASTING, (wire.MAXIMUM_PACKET_SIZE, 150), (wire.RECEIVE_MAXIMUM, 1))
    one = node.connect(0, node.id_of(0, "one"), props=wide)
    one.subscribe("$share/g/t", qos=1)
    publisher = node.connect(0, "p")
    for size in (120, 10, 120, 200):
        publisher.publish("t", b"x" * size, qos=1)
    other = node.connect(1, node.id_of(1, "other"), props=small)
    other.subscribe("$share/g/t", qos=1)
    node.advance(0.2)
    one.drop()
    node.advance(0.2)
    assert [len(payload) for payload in messages(other)] == [10]
    assert sum(shard.reactor.tally.dropped_large for shard in node) == 3


def test_messages_do_not_go_round_in_circles(make_node: MakeNode) -> None:
    """Members on two shards leave at once, and each shard still believes that the other has one."""
    node = make_node(3)
    group = members(node, 0, 1, props=((wire.RECEIVE_MAXIMUM, 1),))
    publish(node.connect(0, "p"), numbered(10))
    node.hold()
    for member in group:
        member.drop()
    node.release()
    crossed = sum(link.sent_bytes for shard in node for link in shard.peers.links.values())
    assert crossed < 5000
    assert sum(shard.broker.counts.drops["shared_no_member"] for shard in node) == 10

"""Sessions and retained messages on disk: nothing is answered before it is there, all of it comes back.

Longer than 500 lines because the cases share their clients and restarts.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fluxmq.net.frames import decode_run
from fluxmq.shards.node_transfer import unanswered_of
from fluxmq.storage.state_store import (
    ANSWERED,
    MESSAGES,
    RECEIVED,
    RELEASED,
    RETAINED,
    SESSIONS,
    Row,
    StateTable,
)
from tests.conformance import wire
from tests.conformance.client import Client
from tests.unit.shards.node import Node, drain, messages

MakeNode = Callable[..., Node]
LASTING = [(wire.SESSION_EXPIRY_INTERVAL, 1000)]


def again(node: Node, name: str, shard: int = 0) -> Client:
    """The client's next connection, which finds its session."""
    client = node.connect(shard, name, clean=False, props=LASTING)
    assert client.present
    return client


def absent(node: Node, name: str, *filters: str, qos: int = 1) -> None:
    """A client that has subscribed and gone."""
    client = node.connect(0, name, clean=False, props=LASTING)
    client.subscribe(*filters, qos=qos)
    client.drop()
    node.run()


def rows(node: Node, table: StateTable) -> list[Row]:
    """What the first shard's disk holds in a table, in the order of keys."""
    return [row for _, row in sorted(node.disks[0].rows[table.name].items())]


def restart(node: Node) -> None:
    """SIGKILL of all shards, and their start."""
    for shard in list(node):
        node.kill(shard.index)
    for index in range(node.workers):
        node.start(index)
    for _ in range(3):
        node.run()
        for shard in node:
            shard.timer()
    node.run()


def kinds(client: Client) -> list[int]:
    """What has come."""
    return [packet.kind for packet in drain(client)]


@pytest.mark.parametrize("qos", [1, 2])
def test_a_message_for_an_absent_client_is_answered_when_it_is_on_disk(
    make_node: MakeNode, qos: int
) -> None:
    node = make_node()
    absent(node, "away", "t", qos=qos)
    publisher = node.connect(0, "p")
    node.disks[0].held = True
    publisher.send(wire.publish(5, "t", b"x", qos=qos, packet_id=1))
    assert kinds(publisher) == []
    node.disks[0].held = False
    node[0].store.commit()
    assert kinds(publisher) == [wire.PUBACK if qos == 1 else wire.PUBREC]
    restart(node)
    assert messages(again(node, "away")) == [b"x"]


def test_a_prompt_client_costs_no_write(make_node: MakeNode) -> None:
    node = make_node()
    client = node.connect(0, "here", clean=False, props=LASTING)
    client.subscribe("t", qos=1)
    publisher = node.connect(0, "p")
    node.advance(1)
    commits = node.disks[0].commits
    for number in range(10):
        publisher.send(wire.publish(5, "t", b"x", qos=1, packet_id=number + 1))
        client.acknowledge(client.expect(wire.PUBLISH))
        assert publisher.expect(wire.PUBACK).packet_id == number + 1
    assert node.disks[0].commits == commits
    assert not node.disks[0].rows["messages"]


def test_a_slow_client_does_not_hold_up_the_publisher_for_long(make_node: MakeNode) -> None:
    node = make_node()
    client = node.connect(0, "slow", clean=False, props=LASTING)
    client.subscribe("t", qos=1)
    publisher = node.connect(0, "p")
    node.disks[0].held = True
    publisher.send(wire.publish(5, "t", b"x", qos=1, packet_id=1))
    node.run()
    assert kinds(publisher) == [], "neither answered nor on disk"
    node.disks[0].held = False
    node.advance(0.2)
    assert kinds(publisher) == [wire.PUBACK]
    assert node.disks[0].keys(MESSAGES) == [("slow", 0)]
    assert messages(client) == [b"x"]
    node.advance(0.2)
    assert node.disks[0].keys(MESSAGES) == []


def test_unanswered_messages_come_again_with_dup_and_their_identifiers(make_node: MakeNode) -> None:
    node = make_node()
    client = node.connect(0, "c", clean=False, props=LASTING)
    client.subscribe("t", qos=2)
    publisher = node.connect(0, "p")
    for number in range(6):
        publisher.send(
            wire.publish(5, "t", b"%d" % number, qos=1 + number % 2, packet_id=number + 1)
        )
    sent = {packet.payload: packet.packet_id for packet in drain(client)}
    assert len(sent) == 6
    node.advance(0.5)
    restart(node)
    back = again(node, "c")
    found = drain(back)
    assert {packet.payload: packet.packet_id for packet in found} == sent
    assert all(packet.dup for packet in found)


def test_pubrel_to_a_client_that_returns_waits_for_the_disk_as_well(make_node: MakeNode) -> None:
    """After PUBREL the client has no memory of the message: it would be a new one if it came again."""
    node = make_node()
    client = node.connect(0, "c", clean=False, props=LASTING)
    client.subscribe("t", qos=2)
    node.connect(0, "p").publish("t", b"x", qos=2)
    message = client.expect(wire.PUBLISH)
    node.disks[0].held = True
    client.send(wire.acknowledge(wire.PUBREC, message.packet_id))
    client.drop()
    back = again(node, "c")
    assert kinds(back) == []
    node.disks[0].held = False
    node[0].store.commit()
    found = drain(back)
    assert [(each.kind, each.packet_id) for each in found] == [(wire.PUBREL, message.packet_id)]


def test_a_message_released_before_the_restart_is_not_sent_again(make_node: MakeNode) -> None:
    node = make_node()
    client = node.connect(0, "c", clean=False, props=LASTING)
    client.subscribe("t", qos=2)
    node.connect(0, "p").publish("t", b"x", qos=2)
    message = client.expect(wire.PUBLISH)
    node.disks[0].held = True
    client.send(wire.acknowledge(wire.PUBREC, message.packet_id))
    assert kinds(client) == [], "PUBREL would promise that the message is not sent again"
    node.disks[0].held = False
    node[0].store.commit()
    assert kinds(client) == [wire.PUBREL]
    restart(node)
    back = again(node, "c")
    found = drain(back)
    assert [(each.kind, each.packet_id) for each in found] == [(wire.PUBREL, message.packet_id)]
    back.send(wire.acknowledge(wire.PUBCOMP, message.packet_id))
    node.advance(0.5)
    assert node.disks[0].keys(RELEASED) == []
    assert node.disks[0].keys(MESSAGES) == []


def test_a_repeated_qos_2_publish_is_known_after_a_restart(make_node: MakeNode) -> None:
    node = make_node()
    absent(node, "away", "t", qos=2)
    publisher = node.connect(0, "p", clean=False, props=LASTING)
    node.disks[0].held = True
    publisher.send(wire.publish(5, "t", b"x", qos=2, packet_id=7))
    assert kinds(publisher) == []
    node.disks[0].held = False
    node[0].store.commit()
    assert kinds(publisher) == [wire.PUBREC]
    assert node.disks[0].keys(RECEIVED) == [("p", 7)]
    restart(node)
    publisher = again(node, "p")
    publisher.send(wire.publish(5, "t", b"x", qos=2, packet_id=7, dup=True))
    assert kinds(publisher) == [wire.PUBREC]
    publisher.send(wire.acknowledge(wire.PUBREL, 7))
    assert kinds(publisher) == [wire.PUBCOMP]
    assert node.disks[0].keys(RECEIVED) == []
    assert messages(again(node, "away")) == [b"x"]


def test_received_identifiers_are_kept_as_ranges(make_node: MakeNode) -> None:
    node = make_node()
    publisher = node.connect(0, "p", clean=False, props=LASTING)
    publisher.send(*(wire.publish(5, "t", b"x", qos=2, packet_id=n) for n in range(1, 9)))
    publisher.send(*(wire.publish(5, "u", b"x", qos=2, packet_id=n) for n in (9, 20, 10)))
    assert kinds(publisher) == [wire.PUBREC] * 11
    assert rows(node, RECEIVED) == [("p", 1, 10), ("p", 20, 1)]
    publisher.send(*(wire.acknowledge(wire.PUBREL, n) for n in (1, 2, 5, 20, 6)))
    assert kinds(publisher) == [wire.PUBCOMP] * 5
    assert rows(node, RECEIVED) == [("p", 3, 2), ("p", 7, 4)]
    restart(node)
    publisher = again(node, "p")
    publisher.send(*(wire.acknowledge(wire.PUBREL, n) for n in range(3, 11)))
    found = drain(publisher)
    assert [(each.packet_id, each.reason) for each in found] == [
        (n, 0 if n not in (5, 6) else 0x92) for n in (5, 6, 3, 4, 7, 8, 9, 10)
    ]
    assert rows(node, RECEIVED) == []


def test_messages_received_out_of_order_are_not_sent_again(make_node: MakeNode) -> None:
    """Of one row, which stays until all its messages have been received."""
    node = make_node()
    client = node.connect(0, "c", clean=False, props=LASTING)
    client.subscribe("t", qos=2)
    publisher = node.connect(0, "p")
    publisher.send(*(wire.publish(5, "t", b"%d" % n, qos=2, packet_id=n + 1) for n in range(8)))
    sent = {packet.payload: packet.packet_id for packet in drain(client)}
    assert len(sent) == 8
    assert len(node.disks[0].keys(MESSAGES)) == 1
    ids = [sent[b"%d" % n] for n in (0, 1, 4, 5, 7)]
    client.send(*(wire.acknowledge(wire.PUBREC, each) for each in ids))
    assert kinds(client) == [wire.PUBREL] * 5
    client.send(*(wire.acknowledge(wire.PUBCOMP, each) for each in (ids[0], ids[3])))
    drain(client)
    node.advance(0.5)
    restart(node)
    back = again(node, "c")
    found = drain(back)
    assert sorted(p.packet_id for p in found if p.kind == wire.PUBREL) == [ids[1], ids[2], ids[4]]
    left = [p for p in found if p.kind == wire.PUBLISH]
    assert [(p.payload, p.packet_id, p.dup) for p in left] == [
        (b"%d" % n, sent[b"%d" % n], True) for n in (2, 3, 6)
    ]
    back.send(*(wire.acknowledge(wire.PUBCOMP, ids[each]) for each in (1, 2, 4)))
    back.send(*(wire.acknowledge(wire.PUBREC, p.packet_id) for p in left))
    assert kinds(back) == [wire.PUBREL] * 3
    assert node.disks[0].keys(MESSAGES) == []
    back.send(*(wire.acknowledge(wire.PUBCOMP, p.packet_id) for p in left))
    drain(back)
    node.advance(0.5)
    for table in (MESSAGES, ANSWERED, RELEASED):
        assert node.disks[0].keys(table) == []


def test_a_refused_qos_2_publish_is_new_when_it_comes_again(make_node: MakeNode) -> None:
    """Whether or not its client was still there to be told."""
    node = make_node()
    absent(node, "away", "t", qos=2)
    publisher = node.connect(0, "p", clean=False, props=LASTING)
    node.disks[0].held = True
    publisher.send(wire.publish(5, "t", b"x", qos=2, packet_id=7))
    node.run()
    publisher.drop()
    node.run()
    node.disks[0].reason = 0x97
    node[0].store.commit()
    node.disks[0].reason = 0
    node.disks[0].held = False
    publisher = again(node, "p")
    publisher.send(wire.publish(5, "t", b"x", qos=2, packet_id=7, dup=True))
    assert kinds(publisher) == [wire.PUBREC]
    assert b"x" in messages(again(node, "away"))


def test_numbers_of_messages_that_were_received_are_not_used_again(make_node: MakeNode) -> None:
    """What is known of the last message of a row would be taken for the next message's."""
    node = make_node()
    client = node.connect(0, "c", clean=False, props=LASTING)
    client.subscribe("t", qos=2)
    publisher = node.connect(0, "p")
    publisher.send(*(wire.publish(5, "t", b"%d" % n, qos=2, packet_id=n + 1) for n in range(3)))
    last = drain(client)[-1]
    client.send(wire.acknowledge(wire.PUBREC, last.packet_id))
    assert kinds(client) == [wire.PUBREL]
    restart(node)
    node.connect(0, "q").publish("t", b"new", qos=2)
    node.advance(0.5)
    restart(node)
    found = [each.payload for each in drain(again(node, "c")) if each.kind == wire.PUBLISH]
    assert found == [b"0", b"1", b"new"]


@pytest.mark.parametrize("qos", [1, 2])
def test_identifiers_that_begin_anew_within_a_row_are_the_same_after_a_restart(
    make_node: MakeNode, qos: int
) -> None:
    node = make_node()
    client = node.connect(0, "c", clean=False, props=LASTING)
    client.subscribe("t", qos=qos)
    node[0].session("c").delivery.durable.number = 65_530
    publisher = node.connect(0, "p")
    publisher.send(*(wire.publish(5, "t", b"%d" % n, qos=qos, packet_id=n + 1) for n in range(8)))
    ids = [65_531, 65_532, 65_533, 65_534, 65_535, 1, 2, 3]
    assert [packet.packet_id for packet in drain(client)] == ids
    node.advance(0.5)
    assert len(node.disks[0].keys(MESSAGES)) == 1
    restart(node)
    found = [packet for packet in drain(again(node, "c")) if packet.kind == wire.PUBLISH]
    assert [(packet.packet_id, packet.payload) for packet in found] == [
        (each, b"%d" % n) for n, each in enumerate(ids)
    ]


def test_nothing_is_written_of_a_session_that_has_ended_meanwhile(make_node: MakeNode) -> None:
    """Its publish waits for a disk; a row that was written afterwards would hide a later publish."""
    node = make_node(2)
    absent(node, node.id_of(1, "away"), "t", qos=2)
    name = node.id_of(0, "p")
    publisher = node.connect(0, name, clean=False, props=LASTING)
    node.disks[1].held = True
    publisher.send(wire.publish(5, "t", b"x", qos=2, packet_id=7))
    node.run()
    assert kinds(publisher) == [], "the subscriber's disk is waited for"
    node.connect(0, name, clean=True).drop()
    node.run()
    node.disks[1].held = False
    node[1].store.commit()
    node.run()
    node.advance(1.0)
    assert [disk.keys(RECEIVED) for disk in node.disks] == [[], []]


def test_messages_of_qos_2_leave_for_another_node_one_by_one(make_node: MakeNode) -> None:
    """A node of the release before keeps each in a row of its own."""
    node = make_node()
    client = node.connect(0, "c", clean=False, props=LASTING)
    client.subscribe("t", qos=2)
    publisher = node.connect(0, "p")
    publisher.send(*(wire.publish(5, "t", b"%d" % n, qos=2, packet_id=n + 1) for n in range(4)))
    sent = {packet.payload: packet.packet_id for packet in drain(client)}
    client.send(wire.acknowledge(wire.PUBREC, sent[b"1"]))
    drain(client)
    client.drop()
    node.run()
    left = list(unanswered_of(node[0].session("c"), node.clock.now))
    assert [(values[1], values[2]) for values in left] == [
        (sent[payload], 1) for payload in (b"0", b"2", b"3")
    ]
    numbers = [values[-3] for values in left]
    assert [number - numbers[0] for number in numbers] == [0, 2, 3]
    bodies = [decode_run(values[0]).payloads() for values in left]
    assert bodies == [[b"0"], [b"2"], [b"3"]]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_retained_message_is_answered_when_its_home_has_it(
    make_node: MakeNode, workers: int
) -> None:
    node = make_node(workers)
    publisher = node.connect(0, "p")
    for disk in node.disks:
        disk.held = True
    for number in range(4):
        publisher.send(
            wire.publish(5, f"r/{number}", b"x", qos=1, retain=True, packet_id=number + 1)
        )
    assert kinds(publisher) == []
    for shard in node:
        node.disks[shard.index].held = False
        shard.store.commit()
    assert kinds(publisher) == [wire.PUBACK] * 4
    assert sum(len(disk.keys(RETAINED)) for disk in node.disks) == 4
    restart(node)
    reader = node.connect(workers - 1, "reader")
    reader.subscribe("r/#")
    assert len(messages(reader)) == 4


def test_a_deletion_made_while_the_home_is_down_is_not_undone(make_node: MakeNode) -> None:
    node = make_node(2)
    publisher = node.connect(1, "p")
    topic = node.id_of(0, "topic")  # the home of a topic is found as that of a client
    publisher.publish(topic, b"x", qos=1, retain=True)
    assert node.disks[0].keys(RETAINED) == [(topic.encode(),)]
    node.kill(0)
    publisher.send(wire.publish(5, topic, b"", qos=1, retain=True, packet_id=9))
    node[1].timer()
    assert kinds(publisher) == [], "its home does not know"
    node.advance(70)  # longer than deletions are remembered
    drain(publisher)
    node.start(0)
    node.advance(1)
    assert node.disks[0].keys(RETAINED) == []
    for shard in node:
        assert shard.broker.retained.message(topic.encode()) is None


def test_a_session_that_ends_leaves_nothing(make_node: MakeNode) -> None:
    node = make_node()
    absent(node, "c", "t")
    node.connect(0, "p").publish("t", b"x", qos=1)
    assert node.disks[0].keys(SESSIONS) == [("c",)]
    node.advance(1001)
    node.advance(1)
    assert all(not rows for name, rows in node.disks[0].rows.items() if name != "life")


def test_a_session_that_expired_while_the_node_was_down_is_gone(make_node: MakeNode) -> None:
    node = make_node()
    absent(node, "c", "t")
    node.kill(0)
    node.clock.now += 2000
    node.start(0)
    node.advance(1)
    assert node.holders("c") == []
    assert not node.connect(0, "c", clean=False, props=LASTING).present


def test_a_clean_start_is_answered_when_the_old_session_is_gone(make_node: MakeNode) -> None:
    node = make_node()
    absent(node, "c", "t")
    node.disks[0].held = True
    client = node.client(0)
    client.send(wire.connect(5, "c"))
    assert kinds(client) == []
    node.disks[0].held = False
    node[0].store.commit()
    assert kinds(client) == [wire.CONNACK]
    restart(node)
    assert not node.connect(0, "c", clean=False).present


def test_what_is_published_while_a_shard_is_down_reaches_its_sessions(make_node: MakeNode) -> None:
    node = make_node(2)
    name = node.id_of(0)
    absent(node, name, "t")
    publisher = node.connect(1, node.id_of(1))
    node.kill(0)
    node[1].timer()
    publisher.send(wire.publish(5, "t", b"x", qos=1, packet_id=1))
    assert kinds(publisher) == []
    node.start(0)
    node.advance(1)
    assert kinds(publisher) == [wire.PUBACK]
    assert messages(again(node, name)) == [b"x"]


def test_filters_of_a_shard_that_starts_later_are_known(make_node: MakeNode) -> None:
    node = make_node(2)
    name = node.id_of(0)
    absent(node, name, "t")
    for index in (0, 1):
        node.kill(index)
    node.start(1)
    node.advance(1)
    publisher = node.connect(1, node.id_of(1))
    publisher.send(wire.publish(5, "t", b"x", qos=1, packet_id=1))
    assert kinds(publisher) == []
    node.start(0)
    node.advance(1)
    assert kinds(publisher) == [wire.PUBACK]
    assert messages(again(node, name)) == [b"x"]


def test_a_session_served_elsewhere_comes_back_to_its_home(make_node: MakeNode) -> None:
    """Its rows are at home, whatever shard it was on when that was killed."""
    node = make_node(2)
    name = node.id_of(0)
    client = node.connect(1, name, clean=False, props=LASTING)
    client.subscribe("t", qos=1)
    node.connect(0, "p").publish("t", b"x", qos=1)
    node.advance(0.2)
    assert [key for key in node.disks[0].keys(MESSAGES) if key[0] == name]
    node.kill(1)
    node.advance(0.5)
    assert node.holders(name) == [0]
    assert messages(again(node, name)) == [b"x"]


def absent_member(node: Node, home: int) -> str:
    """A persistent member of a shared group that has gone."""
    name = node.id_of(home, "member")
    client = node.connect(home, name, clean=False, props=LASTING)
    client.subscribe("$share/g/t", qos=2)
    client.drop()
    node.run()
    return name


@pytest.mark.parametrize("qos", [1, 2])
def test_a_share_for_another_shard_is_answered_when_it_is_on_disk_there(
    make_node: MakeNode, qos: int
) -> None:
    node = make_node(2)
    name = absent_member(node, 0)
    publisher = node.connect(1, node.id_of(1))
    node.disks[0].held = True
    publisher.send(wire.publish(5, "t", b"x", qos=qos, packet_id=1))
    assert kinds(publisher) == [], "the member's shard has it in memory only"
    node.kill(0)
    node.disks[0].held = False
    node[1].timer()
    assert kinds(publisher) == []
    node.start(0)
    node.advance(1)
    assert kinds(publisher) == [wire.PUBACK if qos == 1 else wire.PUBREC]
    assert messages(again(node, name)) == [b"x"]


def test_a_share_published_while_its_members_shard_is_down_waits_for_it(
    make_node: MakeNode,
) -> None:
    node = make_node(2)
    name = absent_member(node, 0)
    publisher = node.connect(1, node.id_of(1))
    node.kill(0)
    node[1].timer()
    publisher.send(wire.publish(5, "t", b"x", qos=1, packet_id=1))
    assert kinds(publisher) == []
    node.start(0)
    node.advance(1)
    assert kinds(publisher) == [wire.PUBACK]
    assert messages(again(node, name)) == [b"x"]


def test_persistent_members_of_a_shard_that_starts_later_are_known(make_node: MakeNode) -> None:
    node = make_node(2)
    name = absent_member(node, 0)
    for index in (0, 1):
        node.kill(index)
    node.start(1)
    node.advance(1)
    publisher = node.connect(1, node.id_of(1))
    publisher.send(wire.publish(5, "t", b"x", qos=1, packet_id=1))
    assert kinds(publisher) == []
    node.start(0)
    node.advance(1)
    assert kinds(publisher) == [wire.PUBACK]
    assert messages(again(node, name)) == [b"x"]


def test_a_member_that_ended_with_its_shard_down_gets_nothing(make_node: MakeNode) -> None:
    node = make_node(2)
    absent_member(node, 0)
    node.kill(0)
    node[1].timer()
    node.clock.now += 2000
    node.start(0)
    node.advance(1)
    assert len(node[1].broker.subscriptions.groups) == 0
    publisher = node.connect(1, node.id_of(1))
    publisher.publish("t", b"x", qos=1)


def test_a_share_without_persistent_members_is_answered_at_once(make_node: MakeNode) -> None:
    node = make_node(2)
    member = node.connect(0, node.id_of(0), clean=True)
    member.subscribe("$share/g/t", qos=1)
    publisher = node.connect(1, node.id_of(1))
    node.hold()
    publisher.send(wire.publish(5, "t", b"x", qos=1, packet_id=1))
    assert kinds(publisher) == [wire.PUBACK]
    node.release()
    assert messages(member) == [b"x"]


def test_what_a_member_leaves_is_its_own_until_another_has_it_safe(make_node: MakeNode) -> None:
    node = make_node(2)
    name = node.id_of(0, "member")
    leaving = node.connect(0, name, clean=False, props=LASTING)
    leaving.subscribe("$share/g/t", qos=1)
    publisher = node.connect(0, node.id_of(0))
    publisher.publish("t", b"x", qos=1)
    assert node.disks[0].keys(MESSAGES) == [(name, 0)]
    other = node.connect(1, node.id_of(1), clean=False, props=LASTING)
    other.subscribe("$share/g/t", qos=1)
    node.disks[1].held = True
    leaving.drop()
    node.advance(0.3)
    assert node.disks[0].keys(MESSAGES) == [(name, 0)], "the other has it in memory only"
    node.disks[1].held = False
    node[1].store.commit()
    node.advance(0.3)
    assert node.disks[0].keys(MESSAGES) == []
    assert messages(other) == [b"x"]


@pytest.mark.parametrize(("reason", "answer"), [(0x97, 0x97), (0x83, 0x88)])
@pytest.mark.parametrize("shard", [0, 1])
def test_no_session_is_begun_that_cannot_be_kept(
    make_node: MakeNode, reason: int, answer: int, shard: int
) -> None:
    """Also on another shard than its home's, which is told."""
    node = make_node(2)
    absent(node, "known", "t")
    known = node.holders("known")[0]
    name = node.id_of(0, "new")
    for disk in node.disks:
        disk.reason = reason
    node.advance(0.2)
    refused = node.client(shard)
    assert refused.connect(name, clean=False, props=LASTING).reason == answer
    old = node.client(shard, wire.V4)
    assert old.connect(name, clean=False).reason == 3
    node.connect(shard, name)
    again(node, "known", known)
    for disk in node.disks:
        disk.reason = 0
    node.advance(0.2)
    node.connect(shard, node.id_of(0, "other"), clean=False, props=LASTING)


def test_a_qos_2_message_sent_again_to_a_restarted_shard_arrives_once(make_node: MakeNode) -> None:
    node = make_node(2)
    name = node.id_of(0)
    absent(node, name, "t", qos=2)
    publisher = node.connect(1, node.id_of(1))
    node.hold()
    publisher.send(wire.publish(5, "t", b"x", qos=2, packet_id=1))
    node.run()
    node.let(1, 0)
    assert [key[0] for key in node.disks[0].keys(MESSAGES)] == [name]
    node.kill(0)  # its answer is under way
    node.pipes[0, 1].records.clear()
    node[1].timer()
    node.release()
    node.start(0)
    node.advance(1)
    publisher.send(wire.publish(5, "t", b"y", qos=2, packet_id=2))
    assert kinds(publisher) == [wire.PUBREC] * 2
    assert messages(again(node, name)) == [b"x", b"y"]


def test_a_qos_2_message_that_was_refused_before_the_restart_is_not_taken_for_a_repetition(
    make_node: MakeNode,
) -> None:
    node = make_node(2)
    name = node.id_of(0)
    absent(node, name, "t", qos=2)
    publisher = node.connect(1, node.id_of(1))
    node.hold()
    publisher.send(wire.publish(5, "t", b"x", qos=2, packet_id=1))
    node.disks[0].held = True
    node.run()
    node.let(1, 0)
    node.disks[0].reason = 0x97
    node[0].store.commit()
    node.disks[0].held = False
    node.disks[0].reason = 0
    publisher.send(wire.publish(5, "t", b"y", qos=2, packet_id=2))
    node.run()
    node.let(1, 0)
    assert len(node.disks[0].keys(MESSAGES)) == 1, "only the second is kept"
    node.kill(0)  # its answers are under way
    node.pipes[0, 1].records.clear()
    node[1].timer()
    node.release()
    node.start(0)
    node.advance(1)
    assert kinds(publisher) == [wire.PUBREC] * 2
    assert set(messages(again(node, name))) == {b"x", b"y"}

"""Queues whose group lives on another shard: answers, order, and what comes of it when one of the two dies."""

from __future__ import annotations

import pytest

from fluxmq.engine import group_server
from tests.conformance import wire
from tests.unit.engine.conftest import MakeQueues
from tests.unit.engine.support import QueueNode, consume, drain, fill, offsets, said, user

NOT_USABLE = 0x83


def hosts(node: QueueNode, queue: str = "work") -> tuple[int, int]:
    """The shard that hosts a queue, and the other one."""
    host = next(shard.index for shard in node if node.group(queue, shard.index) is not None)
    return host, 1 - host


def test_publish_and_consume_through_another_shard(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "work", "topics": ("shop/#",)}, workers=2)
    host, other = hosts(node)
    client = node.connect(other, node.id_of(other, "client"))
    client.subscribe("$queue/work", qos=1)
    publisher = node.connect(other, node.id_of(other, "publisher"))
    fill(publisher, "work", 3)
    assert publisher.publish("shop/a", b"captured", qos=1) == 0
    got = consume(client)
    assert offsets(got) == [0, 1, 2, 3]
    assert said(got[0])["client_id"] == publisher.client_id
    node.advance(0.1)
    assert node.machine("work", host).start == 4


def test_nothing_is_acknowledged_before_the_other_shard_has_it(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "work"}, workers=2)
    _, other = hosts(node)
    publisher = node.connect(other, node.id_of(other, "publisher"))
    node.hold_syncs()
    publisher.send(wire.publish(wire.V5, "$queue/work", b"", qos=1, packet_id=1))
    assert drain(publisher) == []
    node.hold_syncs(False)
    assert [packet.packet_id for packet in drain(publisher)] == [1]


def test_publishes_wait_for_a_host_that_starts_again(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "work"}, workers=2)
    host, other = hosts(node)
    publisher = node.connect(other, node.id_of(other, "publisher"))
    fill(publisher, "work", 2)
    client = node.connect(other, node.id_of(other, "client"))
    client.subscribe("$queue/work", qos=1)
    assert offsets(consume(client)) == [0, 1]
    node.advance(0.1)
    node.kill(host)
    node.advance(0.5)
    for number in (1, 2, 3):
        publisher.send(
            wire.publish(wire.V5, "$queue/work", b"%d" % number, qos=1, packet_id=number)
        )
    assert drain(publisher) == []
    node.start(host)
    node.advance(3)
    assert [packet.packet_id for packet in drain(publisher)] == [1, 2, 3]
    assert [packet.payload for packet in consume(client)] == [b"1", b"2", b"3"]


def test_an_append_whose_answer_is_lost_is_sent_again_and_counts_once(
    make_queues: MakeQueues,
) -> None:
    """A message that the group had stored was stored again when its shard came back."""
    node = make_queues({"name": "work"}, workers=2)
    host, other = hosts(node)
    publisher = node.connect(other, node.id_of(other, "publisher"))
    fill(publisher, "work", 1)
    answers = node.pipes[host, other]
    answers.allowed = 0
    publisher.send(wire.publish(wire.V5, "$queue/work", b"once", qos=1, packet_id=7))
    assert drain(publisher) == []
    assert node.machine("work", host).next_offset == 2
    node.kill(host)
    answers.records.clear()
    answers.allowed = None
    publisher.send(wire.publish(wire.V5, "$queue/work", b"next", qos=1, packet_id=8))
    assert drain(publisher) == []
    node.start(host)
    node.advance(3)
    assert [packet.packet_id for packet in drain(publisher)] == [7, 8]
    client = node.connect(other, node.id_of(other, "client"))
    client.subscribe("$queue/work", qos=1)
    assert [packet.payload for packet in consume(client)][1:] == [b"once", b"next"]


def test_a_host_that_stays_away_is_given_up(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "work"}, workers=2)
    host, other = hosts(node)
    publisher = node.connect(other, node.id_of(other, "publisher"))
    fill(publisher, "work", 1)
    node.kill(host)
    node.advance(1)
    publisher.send(wire.publish(wire.V5, "$queue/work", b"", qos=1, packet_id=7))
    assert drain(publisher) == []
    node.advance(12)
    (answer,) = drain(publisher)
    assert (answer.packet_id, answer.reason) == (7, NOT_USABLE)
    assert publisher.publish("$queue/work", b"", qos=1) == NOT_USABLE
    client = node.connect(other, node.id_of(other, "client"))
    suback = client.subscribe("$queue/work", qos=1, granted=False)
    assert suback.reasons == [NOT_USABLE]


def test_the_host_takes_back_what_a_dead_shard_held(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "work"}, workers=2)
    host, other = hosts(node)
    fill(node.connect(host, node.id_of(host, "publisher")), "work", 2)
    props = user(("consumer-group", "group"))
    gone = node.connect(other, node.id_of(other, "gone"))
    gone.subscribe("$queue/work", qos=1, props=props)
    assert offsets(drain(gone)) == [0, 1]
    node.kill(other)
    node.advance(1)
    client = node.connect(host, node.id_of(host, "client"))
    client.subscribe("$queue/work", qos=1, props=props)
    got = consume(client)
    assert offsets(got) == [0, 1]
    assert {said(packet)["x-delivery-count"] for packet in got} == {"1"}


def test_orders_reach_the_host(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "work"}, workers=2)
    host, other = hosts(node)
    client = node.connect(other, node.id_of(other, "client"))
    client.subscribe("$queue/work", qos=1, props=user(("ack-mode", "explicit")))
    fill(node.connect(other, node.id_of(other, "publisher")), "work", 2)
    assert len(consume(client)) == 2
    group = ("group-id", client.client_id)
    props = user(("message-id", "work:0-1"), group)
    node.hold_syncs()
    client.send(wire.publish(wire.V5, "$queue/work/$ack", qos=1, packet_id=9, props=props))
    assert drain(client) == []
    node.hold_syncs(False)
    assert [packet.packet_id for packet in drain(client)] == [9]
    assert node.machine("work", host).start == 2


def test_publishers_held_for_another_shard_are_let_go(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "work"}, workers=2)
    _, other = hosts(node)
    publisher = node.connect(other, node.id_of(other, "publisher"))
    fill(publisher, "work", 1)
    node.hold_syncs()
    payload = b"x" * 400_000
    service = node[other].queues.service
    sent = 0
    while not service.held:
        sent += 1
        assert sent < 100, "it takes whatever comes"
        publisher.send(wire.publish(wire.V5, "$queue/work", payload, qos=1, packet_id=sent))
        node.run()
    node.hold_syncs(False)
    node.advance(0.3)
    assert not service.held
    assert len(drain(publisher)) == sent


def test_a_slow_qos_0_reader_on_another_shard_gets_everything(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "log", "type": "stream"}, workers=2)
    _, other = hosts(node, "log")
    publisher = node.connect(other, node.id_of(other, "publisher"))
    for number in range(100):
        assert publisher.publish("$queue/log", b"%02d" % number + b"x" * 60_000, qos=1) == 0
    reader = node.client(other, buffer=4096)
    reader.connect(node.id_of(other, "reader"), keep_alive=0)
    reader.subscribe("$queue/log", qos=0)
    node.advance(2)
    assert [packet.payload[:2] for packet in consume(reader)] == [
        b"%02d" % number for number in range(100)
    ]


def test_messages_wait_for_room_in_a_link(
    make_queues: MakeQueues, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_server, "BACKLOG_BYTES_MAX", 50_000)
    node = make_queues({"name": "work", "consumer": {"visibility_timeout": "60s"}}, workers=2)
    host, other = hosts(node)
    publisher = node.connect(host, node.id_of(host, "publisher"))
    for _ in range(60):
        assert publisher.publish("$queue/work", b"x" * 10_000, qos=1) == 0
    node.pipes[host, other].room = 20_000
    client = node.connect(other, node.id_of(other, "client"))
    client.subscribe("$queue/work", qos=1)
    node.advance(3)
    got = consume(client)
    assert offsets(got) == list(range(60))
    assert {said(packet)["x-delivery-count"] for packet in got} == {"0"}

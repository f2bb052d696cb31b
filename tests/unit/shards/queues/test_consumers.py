"""Deliveries to MQTT consumers: room, sizes, what a client answers."""

from __future__ import annotations

from tests.conformance import wire
from tests.unit.shards.queues.conftest import MakeQueues
from tests.unit.shards.queues.support import consume, drain, fill, offsets, said, user

BIG = b"x" * 60_000


def test_a_slow_qos_0_reader_of_a_stream_gets_every_message(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "log", "type": "stream"})
    publisher = node.connect(0, "publisher")
    for number in range(200):
        assert publisher.publish("$queue/log", b"%03d" % number + BIG, qos=1) == 0
    reader = node.client(0, buffer=4096)
    reader.connect("reader", keep_alive=0)
    reader.subscribe("$queue/log", qos=0, props=user(("start", "first")))
    node.advance(2)  # the reader does nothing: what it has no room for stays where it is
    tally = node[0].reactor.tally
    assert tally.sent0 < 200
    assert tally.dropped_slow == 0
    assert [packet.payload[:3] for packet in consume(reader)] == [
        b"%03d" % number for number in range(200)
    ]


def test_qos_0_does_not_wait_for_the_window_of_other_messages(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "log", "type": "stream"}, {"name": "work"})
    client = node.connect(0, "client", props=[(wire.RECEIVE_MAXIMUM, 1)])
    client.subscribe("$queue/work", qos=1)
    client.subscribe("$queue/log", qos=0)
    publisher = node.connect(0, "publisher")
    fill(publisher, "work", 2)
    assert len(drain(client)) == 1  # not answered: the window is closed
    fill(publisher, "log", 2)
    got = drain(client)
    assert [packet.qos for packet in got] in ([0, 0], [])
    node.advance(0.1)


def test_only_what_is_too_large_for_a_consumer_is_rejected(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "work", "dlq": {"enabled": True}})
    publisher = node.connect(0, "publisher")
    publisher.send(
        b"".join(
            wire.publish(wire.V5, "$queue/work", payload, qos=1, packet_id=number + 1)
            for number, payload in enumerate([b"a", b"b" * 5000, b"c"])
        )
    )
    drain(publisher)
    client = node.connect(0, "client", props=[(wire.MAXIMUM_PACKET_SIZE, 1000)])
    client.subscribe("$queue/work", qos=1)
    assert [packet.payload for packet in consume(client)] == [b"a", b"c"]
    dead = node.connect(0, "dead")
    dead.subscribe("$dlq/work", qos=1)
    (letter,) = consume(dead)
    assert said(letter)["_dlq_original_id"] == "work:1"
    assert said(letter)["_dlq_reason"] == "larger than the consumer's maximum packet size"


def test_a_message_of_just_the_allowed_size_is_delivered(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "log", "type": "stream"})
    publisher = node.connect(0, "publisher")
    publisher.publish("$queue/log", b"x" * 100, qos=1)
    whole = None
    for group, spare, expected in (("aaaa", 0, 1), ("bbbb", 0, 1), ("cccc", -1, 0)):
        limit = [] if whole is None else [(wire.MAXIMUM_PACKET_SIZE, whole + spare)]
        client = node.connect(0, group, props=limit)
        client.subscribe("$queue/log", qos=1)
        got = consume(client)
        assert len(got) == expected, group
        whole = got[0].size if got else whole


def test_a_puback_with_a_reason_settles_at_once(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "work"})
    publisher = node.connect(0, "publisher")
    publisher.send(
        b"".join(
            wire.publish(wire.V5, "$queue/work", b"%d" % number, qos=1, packet_id=number + 1)
            for number in range(4)
        )
    )
    drain(publisher)
    client = node.connect(0, "client")
    client.subscribe("$queue/work", qos=1)
    first, second, third, _ = drain(client)
    for packet in (first, second):
        client.send(wire.acknowledge(wire.PUBACK, packet.packet_id, 0x10))
    node.advance(0.1)
    assert node.machine("work").start == 2
    client.send(wire.acknowledge(wire.PUBACK, third.packet_id, 0x80))
    client.drop()
    again = node.connect(0, "client")
    again.subscribe("$queue/work", qos=1)
    assert offsets(consume(again)) == [3]

"""Deliveries to MQTT consumers: room, sizes, what a client answers."""

from __future__ import annotations

from fluxmq.queues.work_dispatcher import WorkDispatcher
from tests.conformance import wire
from tests.unit.engine.conftest import MakeQueues
from tests.unit.engine.support import consume, drain, fill, offsets, said, user

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
        limit: wire.Properties = (
            [] if whole is None else [(wire.MAXIMUM_PACKET_SIZE, whole + spare)]
        )
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


def test_what_the_client_does_not_take_stays_in_the_queue(make_queues: MakeQueues) -> None:
    node = make_queues(
        {"name": "work", "consumer": {"visibility_timeout": "5s", "delivery_limit": 2}}
    )
    fill(node.connect(0, "publisher"), "work", 4)
    props = user(("consumer-group", "group"))
    client = node.connect(0, "client", props=[(wire.RECEIVE_MAXIMUM, 1)])
    client.subscribe("$queue/work", qos=1, props=props)
    for number in range(4):  # three seconds each: together more than the timeout
        (packet,) = drain(client)
        assert offsets([packet]) == [number]
        assert said(packet)["x-delivery-count"] == "0"
        node.advance(3)
        client.acknowledge(packet)
        node.advance(0.01)
    assert drain(client) == []
    assert node.machine("work").start == 4


def test_a_resumed_session_brings_its_window(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "work"})
    expiry = (wire.SESSION_EXPIRY_INTERVAL, 1000)
    client = node.connect(0, "client", clean=False, props=[expiry])
    client.subscribe("$queue/work", qos=1)
    client.drop()
    node.connect(0, "client", clean=False, props=[expiry, (wire.RECEIVE_MAXIMUM, 2)])
    fill(node.connect(0, "publisher"), "work", 5)
    node.advance(0.1)
    assert node.machine("work").group("client").pending.count == 2


def test_a_client_that_takes_nothing_does_not_gather_messages(make_queues: MakeQueues) -> None:
    consumer = {"visibility_timeout": "1s", "delivery_limit": 1, "max_unsettled": 5}
    node = make_queues({"name": "work", "consumer": consumer})
    publisher = node.connect(0, "publisher")
    client = node.client(0, buffer=4096)
    client.connect("client", keep_alive=0)
    client.subscribe("$queue/work", qos=1)
    for _ in range(60):
        assert publisher.publish("$queue/work", BIG, qos=1) == 0
        node.advance(0.5)
    delivery = node[0].session("client").delivery
    assert sum(inflight.count for inflight in delivery.pending) <= 2 * 5
    assert node.machine("work").start > 20  # they have been delivered too often


def test_an_answer_to_what_was_given_back_does_not_settle_it(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "work"})
    fill(node.connect(0, "publisher"), "work", 2)
    client = node.connect(0, "client")
    client.subscribe("$queue/work", qos=1)
    first, second = drain(client)
    props = user(("message-id", "work:0"), ("group-id", "client"), ("delay", "0"))
    assert client.publish("$queue/work/$nack", qos=1, props=props) == 0
    node.advance(0.1)
    (again,) = drain(client)
    assert offsets([again]) == [0]
    for packet in (first, second):  # late: it is the first delivery that is answered
        client.acknowledge(packet)
    node.advance(0.1)
    assert node.machine("work").start == 0
    client.acknowledge(again)
    node.advance(0.1)
    assert node.machine("work").start == 2


def test_deliveries_of_many_ticks_are_claimed_together(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "work"})
    publisher = node.connect(0, "publisher")
    client = node.connect(0, "client")
    client.subscribe("$queue/work", qos=1)
    node.advance(0.1)
    state, hosting = node.machine("work"), node.group("work")
    group = state.group("client")
    for number in range(1, 6):
        publisher.send(wire.publish(wire.V5, "$queue/work", b"", qos=1, packet_id=number))
        node.run()
    assert (state.next_offset, group.cursor) == (5, 0)  # they are under way, and claimed soon
    entries = hosting.applied_index
    node.advance(0.1)
    assert (group.cursor, group.pending.count) == (5, 5)
    assert hosting.applied_index == entries + 1
    dispatcher = hosting.dispatch.consumers.dispatcher(state.id, group.id)
    assert isinstance(dispatcher, WorkDispatcher)
    assert not dispatcher.under_way
    assert offsets(consume(client)) == [0, 1, 2, 3, 4]
    node.advance(0.1)
    assert state.start == 5


def test_what_is_settled_makes_room_at_once(make_queues: MakeQueues) -> None:
    limits = {"max_depth": 1}
    node = make_queues({"name": "work", "limits": limits})
    publisher = node.connect(0, "publisher")
    client = node.connect(0, "client")
    client.subscribe("$queue/work", qos=1)
    for number in range(3):
        fill(publisher, "work", 1, first=number)
        (packet,) = drain(client)
        client.acknowledge(packet)
        node.run()

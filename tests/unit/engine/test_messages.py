"""What becomes of publishes to queues, by protocol version, QoS, properties and consumer."""

from __future__ import annotations

import pytest

from tests.conformance import wire
from tests.conformance.wire import Will
from tests.unit.engine.conftest import MakeQueues
from tests.unit.engine.support import consume, drain, fill, offsets, said, user

NO_MATCHING = 0x10
NOT_USABLE = 0x83
NOT_AUTHORIZED = 0x87


@pytest.mark.parametrize("version", [wire.V4, wire.V5])
@pytest.mark.parametrize("published", [0, 1, 2])
@pytest.mark.parametrize("subscribed", [1, 2])
def test_every_qos_comes_through(
    make_queues: MakeQueues, version: int, published: int, subscribed: int
) -> None:
    node = make_queues({"name": "work"})
    publisher = node.connect(0, "publisher", version)
    for number in range(3):
        assert publisher.publish("$queue/work/key", b"%d" % number, qos=published) == 0
    node.run()
    client = node.connect(0, "client", version)
    client.subscribe("$queue/work/#", qos=subscribed)
    got = [client.receive() for _ in range(3)]
    assert [packet.payload for packet in got] == [b"0", b"1", b"2"]
    assert {(packet.topic, packet.qos) for packet in got} == {("$queue/work/key", subscribed)}
    node.advance(0.1)
    client.drop()
    again = node.connect(0, "client", version)
    again.subscribe("$queue/work/#", qos=subscribed)
    assert drain(again) == []


def test_a_qos_2_message_is_settled_by_pubcomp(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "work"})
    fill(node.connect(0, "publisher"), "work", 1)
    client = node.connect(0, "client")
    client.subscribe("$queue/work", qos=2)
    (packet,) = drain(client)
    client.send(wire.acknowledge(wire.PUBREC, packet.packet_id))
    assert [each.kind for each in drain(client)] == [wire.PUBREL]
    node.advance(0.1)
    assert node.machine("work").start == 0
    client.send(wire.acknowledge(wire.PUBCOMP, packet.packet_id))
    node.advance(0.1)
    assert node.machine("work").start == 1


def test_retain_means_nothing(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "work", "topics": ("plain/#",)})
    publisher = node.connect(0, "publisher")
    assert publisher.publish("$queue/work", b"queued", qos=1, retain=True) == 0
    assert publisher.publish("plain/topic", b"kept", qos=1, retain=True) == 0
    client = node.connect(0, "client")
    client.subscribe("$queue/work", qos=1)
    got = consume(client)
    assert [packet.payload for packet in got] == [b"queued", b"kept"]
    assert not any(packet.retain for packet in got)
    client.subscribe("plain/#", qos=0)
    (packet,) = drain(client)
    assert packet.payload == b"kept"
    assert packet.retain


@pytest.mark.parametrize("topic", ["$queue/work/last", "captured/topic"])
def test_wills_reach_queues(make_queues: MakeQueues, topic: str) -> None:
    node = make_queues({"name": "work", "topics": ("captured/#",)})
    client = node.connect(0, "client", will=Will(topic, b"gone", 1))
    client.drop()
    node.run()
    reader = node.connect(0, "reader")
    reader.subscribe("$queue/work", qos=1)
    (packet,) = consume(reader)
    assert packet.payload == b"gone"
    assert said(packet)["x-source-topic"] == topic


def test_publishers_properties_come_through(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "work"})
    publisher = node.connect(0, "publisher")
    props = [
        (wire.CONTENT_TYPE, "text/plain"),
        (wire.CORRELATION_DATA, b"\0\1"),
        *user(("a", "1"), ("offset", "forged"), ("b", "2"), ("a", "3")),
    ]
    assert publisher.publish("$queue/work", b"", qos=1, props=props) == 0
    client = node.connect(0, "client")
    client.subscribe("$queue/work", qos=1)
    (packet,) = consume(client)
    assert packet.property(wire.CONTENT_TYPE) == "text/plain"
    assert packet.property(wire.CORRELATION_DATA) == b"\0\1"
    theirs = [pair for pair in packet.all(wire.USER_PROPERTY) if pair[0] in ("a", "b")]
    assert theirs == [("a", "1"), ("b", "2"), ("a", "3")]
    assert said(packet)["offset"] == "0"
    assert said(packet)["client_id"] == "publisher"


def test_delayed_messages_come_in_their_time(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "work"})
    publisher = node.connect(0, "publisher")
    publisher.publish("$queue/work", b"late", qos=1, props=user(("x-delay", "5000")))
    publisher.publish("$queue/work", b"now", qos=1)
    client = node.connect(0, "client")
    client.subscribe("$queue/work", qos=1)
    assert offsets(consume(client)) == [1]
    node.advance(4)
    assert consume(client) == []
    node.advance(2)
    assert offsets(consume(client)) == [0]


@pytest.mark.parametrize(
    ("interval", "waited", "left"), [(1, 0, 1), (2, 0, 2), (2, 0.5, 2), (9, 3.2, 6)]
)
@pytest.mark.parametrize("shard", [0, 1])
def test_what_is_left_of_the_publishers_expiry_is_rounded_up(
    make_queues: MakeQueues, shard: int, interval: int, waited: float, left: int
) -> None:
    """Row F3: out of a queue as well; 1 does not become 0, nor 2 become 1."""
    node = make_queues({"name": "work"}, workers=2)
    expiry = [(wire.MESSAGE_EXPIRY_INTERVAL, interval)]
    node.connect(0, "publisher").publish("$queue/work", b"1", qos=1, props=expiry)
    node.advance(waited)
    one = node.connect(shard, "one")
    one.subscribe("$queue/work", qos=1)
    assert [each.property(wire.MESSAGE_EXPIRY_INTERVAL) for each in drain(one)] == [left]


def test_expiry_of_the_publisher(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "work"})
    publisher = node.connect(0, "publisher")
    expiry = [(wire.MESSAGE_EXPIRY_INTERVAL, 10)]
    publisher.publish("$queue/work", b"short", qos=1, props=expiry)
    publisher.publish("$queue/work", b"long", qos=1)
    node.advance(4)
    one = node.connect(0, "one")
    one.subscribe("$queue/work", qos=1)
    got = drain(one)
    assert [packet.property(wire.MESSAGE_EXPIRY_INTERVAL) for packet in got] == [6, None]
    one.drop()
    node.advance(10)
    two = node.connect(0, "one")
    two.subscribe("$queue/work", qos=1)
    assert offsets(consume(two)) == [1]


def test_filters_are_groups_of_their_own(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "work"})
    client = node.connect(0, "client")
    client.subscribe("$queue/work", "$queue/work/eu/+", qos=1)
    publisher = node.connect(0, "publisher")
    publisher.publish("$queue/work/eu/a", b"both", qos=1)
    publisher.publish("$queue/work/us/a", b"one", qos=1)
    got = consume(client)
    assert sorted((said(packet)["group-id"], packet.payload) for packet in got) == [
        ("client", b"both"),
        ("client", b"one"),
        ("client@eu/+", b"both"),
    ]


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("first", [0, 1, 2]),
        ("last", [2]),
        ("next", []),
        ("offset=1", [1, 2]),
        ("timestamp={}", [1, 2]),
    ],
)
@pytest.mark.parametrize("kind", ["classic", "stream"])
def test_where_a_new_group_begins(
    make_queues: MakeQueues, kind: str, start: str, expected: list[int]
) -> None:
    node = make_queues({"name": "work", "type": kind})
    publisher = node.connect(0, "publisher")
    for number in range(3):
        fill(publisher, "work", 1, first=number)
        node.advance(2)
        if number == 0:
            between = round(node.clock() * 1000) - 1000
    start = start.format(between // 1000)
    client = node.connect(0, "client")
    client.subscribe("$queue/work", qos=1, props=user(("start", start)))
    assert offsets(consume(client)) == expected


def test_orders_settle(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "work", "dlq": {"enabled": True}})
    fill(node.connect(0, "publisher"), "work", 6)
    client = node.connect(0, "client")
    client.subscribe("$queue/work", qos=1, props=user(("ack-mode", "explicit")))
    assert offsets(consume(client)) == [0, 1, 2, 3, 4, 5]
    node.advance(0.1)
    assert node.machine("work").start == 0  # PUBACK settles nothing

    def order(verb: str, span: str, *more: tuple[str, str]) -> int:
        props = user(("message-id", f"work:{span}"), ("group-id", "client"), *more)
        return client.publish(f"$queue/work/${verb}", qos=1, props=props)

    assert order("ack", "0-2") == 0
    assert order("ack", "2-3") == NO_MATCHING  # 3 is settled by it all the same
    assert order("ack", "3") == NO_MATCHING
    assert order("nack", "4", ("delay", "0")) == 0
    assert order("reject", "5") == 0
    assert order("ack", "9000-9223372036854775807") == NO_MATCHING
    node.advance(0.1)
    assert offsets(consume(client)) == [4]
    assert order("ack", "4") == 0
    node.advance(0.1)
    assert node.machine("work").start == 6
    assert node.machine("$dlq/work").next_offset == 1
    counts = node[0].queues.service.counts.settled
    assert sum(counts.values()) == 7


def test_others_may_not_settle(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "work"})
    fill(node.connect(0, "publisher"), "work", 1)
    client = node.connect(0, "client")
    client.subscribe("$queue/work", qos=1)
    drain(client)
    other = node.connect(0, "other")
    props = user(("message-id", "work:0"), ("group-id", "client"))
    assert other.publish("$queue/work/$ack", qos=1, props=props) == NO_MATCHING
    node.advance(0.1)
    assert node.machine("work").start == 0


def test_commit_of_a_stream(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "log", "type": "stream"})
    fill(node.connect(0, "publisher"), "log", 3)
    client = node.connect(0, "client")
    client.subscribe("$queue/log", qos=1, props=user(("ack-mode", "explicit")))
    assert len(consume(client)) == 3
    node.advance(10)
    assert node.machine("log").group("client").cursor == 0
    props = user(("message-id", "log:1"), ("group-id", "client"))
    assert client.publish("$queue/log/$commit", qos=1, props=props) == 0
    assert node.machine("log").group("client").cursor == 2
    client.drop()
    node.restart()
    again = node.connect(0, "client")
    again.subscribe("$queue/log", qos=1)
    assert offsets(consume(again)) == [2]


def test_a_rejected_message_is_a_dead_letter(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "work", "dlq": {"enabled": True}})
    fill(node.connect(0, "publisher"), "work", 2)
    client = node.connect(0, "client")
    client.subscribe("$queue/work", qos=1)
    first, second = drain(client)
    client.send(wire.acknowledge(wire.PUBACK, first.packet_id, 0x80))
    client.send(wire.acknowledge(wire.PUBACK, second.packet_id))
    node.advance(0.1)
    dead = node.connect(0, "dead")
    dead.subscribe("$dlq/work", qos=1)
    (letter,) = consume(dead)
    assert letter.payload == b"0"
    assert said(letter)["_dlq_original_queue"] == "work"
    assert said(letter)["_dlq_original_id"] == "work:0"
    assert said(letter)["_dlq_group"] == "client"
    assert said(letter)["_dlq_delivery_count"] == "1"
    assert node.machine("work").start == 2


def test_a_dead_letter_survives_a_crash_between_its_two_queues(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "work", "dlq": {"enabled": True}})
    fill(node.connect(0, "publisher"), "work", 1)
    client = node.connect(0, "client")
    client.subscribe("$queue/work", qos=1)
    (packet,) = drain(client)
    client.send(wire.acknowledge(wire.PUBACK, packet.packet_id, 0x80))
    node.advance(0.004)
    node.restart()
    node.advance(2)
    node.restart()
    node.advance(2)
    dead = node.connect(0, "dead")
    dead.subscribe("$dlq/work", qos=1)
    assert len(consume(dead)) <= 1
    again = node.connect(0, "client")
    again.subscribe("$queue/work", qos=1)
    assert node.machine("$dlq/work").next_offset + len(consume(again)) == 1


def test_a_dead_letter_waits_for_a_queue_that_is_not_known(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "work", "dlq": {"enabled": True}})
    fill(node.connect(0, "publisher"), "work", 1)
    names = node[0].queues.names
    info = names.info("$dlq/work")
    names.remove("$dlq/work")
    client = node.connect(0, "client")
    client.subscribe("$queue/work", qos=1)
    (packet,) = drain(client)
    client.send(wire.acknowledge(wire.PUBACK, packet.packet_id, 0x80))
    node.advance(3)
    assert node.machine("work").kept == 0
    assert node.machine("$dlq/work") is None  # nor is one in memory made
    names.add(info)
    node.advance(3)
    assert node.machine("work").kept == 1
    assert node.machine("$dlq/work").next_offset == 1


@pytest.mark.parametrize("version", [wire.V4, wire.V5])
def test_a_refused_publish(make_queues: MakeQueues, version: int) -> None:
    node = make_queues({"name": "work", "limits": {"max_message_size": 10}})
    client = node.connect(0, "client", version)
    client.send(wire.publish(version, "$queue/work", b"x" * 11, qos=1, packet_id=1))
    if version == wire.V4:
        client.expect_error()
    else:
        assert client.take(wire.PUBACK, 1).reason == 0x97
    assert node.machine("work").next_offset == 0


def test_qos_0_for_a_work_queue_is_refused(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "work"})
    client = node.connect(0, "client")
    assert client.subscribe("$queue/work", qos=0, granted=False).reasons == [NOT_USABLE]
    old = node.connect(0, "old", wire.V4)
    assert old.subscribe("$queue/work", qos=0, granted=False).reasons == [0x80]


def test_instances_of_a_3_1_1_application_share(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "work"})
    clients = [node.connect(0, f"billing-{number}", wire.V4) for number in range(2)]
    for client in clients:
        client.subscribe("$queue/work", qos=1)
    fill(node.connect(0, "publisher"), "work", 4)
    got = [packet.payload for client in clients for packet in consume(client)]
    assert sorted(got) == [b"0", b"1", b"2", b"3"]


def test_an_ephemeral_queue_keeps_the_order_it_was_made_in(make_queues: MakeQueues) -> None:
    node = make_queues()
    publisher = node.connect(0, "publisher")
    publisher.send(
        b"".join(
            wire.publish(wire.V5, f"$queue/new/{number}", b"%d" % number, qos=1, packet_id=number)
            for number in range(1, 6)
        )
    )
    assert [packet.packet_id for packet in drain(publisher)] == [1, 2, 3, 4, 5]
    client = node.connect(0, "client")
    client.subscribe("$queue/new", qos=1)
    assert [packet.payload for packet in consume(client)] == [b"1", b"2", b"3", b"4", b"5"]


def test_two_groups_get_one_copy_each(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "work"})
    clients = []
    for group in ("a", "b"):
        for number in range(2):
            client = node.connect(0, f"{group}{number}")
            client.subscribe(f"$share/{group}/$queue/work", qos=1)
            clients.append(client)
    fill(node.connect(0, "publisher"), "work", 10)
    got = [sorted(offsets(consume(client))) for client in clients]
    assert sorted(got[0] + got[1]) == list(range(10))
    assert sorted(got[2] + got[3]) == list(range(10))
    node.advance(0.1)
    assert node.machine("work").start == 10


@pytest.mark.parametrize("kind", ["classic", "stream"])
def test_members_take_turns_when_messages_come_one_by_one(
    make_queues: MakeQueues, kind: str
) -> None:
    node = make_queues({"name": "work", "type": kind})
    props = user(("consumer-group", "group"))
    clients = [node.connect(0, name) for name in ("a", "b")]
    for client in clients:
        client.subscribe("$queue/work", qos=1, props=props)
    publisher = node.connect(0, "publisher")
    got: list[list[int]] = [[], []]
    for number in range(6):
        fill(publisher, "work", 1, first=number)
        for each, client in zip(got, clients, strict=True):
            each += offsets(consume(client))
    assert sorted(got) == [[0, 2, 4], [1, 3, 5]]


def test_what_a_silent_member_holds_goes_to_another(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "work", "consumer": {"visibility_timeout": "5s"}})
    props = user(("consumer-group", "group"))
    silent = node.connect(0, "silent")
    silent.subscribe("$queue/work", qos=1, props=props)
    fill(node.connect(0, "publisher"), "work", 1)
    client = node.connect(0, "client")
    client.subscribe("$queue/work", qos=1, props=props)
    node.advance(12)
    assert offsets(consume(client)) == [0]


@pytest.mark.parametrize("prefetch", ["1", "2", "3"])
def test_a_consumer_that_holds_all_it_may_gets_them_again(
    make_queues: MakeQueues, prefetch: str
) -> None:
    node = make_queues({"name": "work", "consumer": {"visibility_timeout": "5s"}})
    fill(node.connect(0, "publisher"), "work", 2)
    client = node.connect(0, "client")
    client.subscribe(
        "$queue/work", qos=1, props=user(("ack-mode", "explicit"), ("prefetch", prefetch))
    )
    first = offsets(consume(client))
    node.advance(6)
    assert offsets(consume(client))[: len(first)] == first

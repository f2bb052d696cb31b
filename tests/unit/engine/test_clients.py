"""What a shard's clients do with queues: captured publishes, subscriptions made again."""

from __future__ import annotations

from tests.conformance import wire
from tests.unit.engine.conftest import MakeQueues
from tests.unit.engine.support import consume, drain, fill, offsets, said, user


def test_a_topic_that_several_filters_match_is_captured_once(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "work", "topics": ("shop/#", "shop/+", "$queue/work")})
    publisher = node.connect(0, "publisher")
    assert publisher.publish("shop/a", b"", qos=1) == 0
    assert publisher.publish("$queue/work", b"", qos=1) == 0
    assert node.machine("work").next_offset == 2


def test_captured_and_addressed_are_kept_in_both(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "a", "topics": ("t/#",)}, {"name": "b", "topics": ("t/+",)})
    publisher = node.connect(0, "publisher")
    reader = node.connect(0, "reader")
    reader.subscribe("t/#", qos=1)
    node.hold_syncs()
    publisher.send(wire.publish(wire.V5, "t/1", b"x", qos=1, packet_id=1))
    assert [packet.payload for packet in drain(reader)] == [b"x"]
    assert drain(publisher) == []
    node.hold_syncs(False)
    assert [packet.kind for packet in drain(publisher)] == [wire.PUBACK]
    assert node.machine("a").next_offset == node.machine("b").next_offset == 1


def test_a_queue_that_is_told_captures_at_once(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "work"})
    publisher = node.connect(0, "publisher")
    assert publisher.publish("shop/a", b"", qos=1) == 0  # its route is remembered
    names = node[0].queues.names
    info = names.info("work")
    names.add(type(info)("work", info.group, info.type, (b"shop/#",)))
    node[0].queues.service.wake()
    node.run()
    assert publisher.publish("shop/a", b"", qos=1) == 0
    assert node.machine("work").next_offset == 1


def test_what_clients_settle_is_seen_to_in_the_same_tick(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "work"})
    service, reactor = node[0].queues.service, node[0].reactor
    (group,) = (hosted.group for hosted in service.groups.values())
    queues = node[0].queues
    settle = queues.flush_others

    def settles() -> None:
        settle()
        group.when_applied(lambda: applied.append(True))

    applied: list[bool] = []
    queues.flush_others = settles
    service.finish()
    assert not reactor.unfinished
    queues.flush_others = settle
    node.run()
    assert applied == [True]


def test_subscribing_anew_while_an_attach_is_under_way(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "work"})
    fill(node.connect(0, "publisher"), "work", 3)
    first = node.connect(0, "client", clean=False, props=[(wire.SESSION_EXPIRY_INTERVAL, 1000)])
    first.subscribe("$queue/work", qos=1)
    first.drop()
    node.run()
    node.hold_syncs()
    client = node.connect(0, "client", clean=False, props=[(wire.SESSION_EXPIRY_INTERVAL, 1000)])
    client.send(wire.subscribe(wire.V5, 9, [wire.Filter("$queue/work", 1)], ()))
    node.run()
    node.hold_syncs(False)
    node.advance(3)
    got = [packet for packet in drain(client) if packet.kind == wire.PUBLISH]
    assert offsets(got) == [0, 1, 2]
    (consumer,) = node[0].queues.clients._consumers[node[0].session("client")].values()
    handle = consumer.handle
    assert handle is not None
    node.advance(3)  # nobody attaches it again
    assert consumer.handle is handle
    assert drain(client) == []


def test_a_session_that_comes_back_is_a_consumer_again(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "work"})
    publisher = node.connect(0, "publisher")
    expiry = [(wire.SESSION_EXPIRY_INTERVAL, 1000)]
    first = node.connect(0, "client", clean=False, props=expiry)
    first.subscribe("$queue/work", qos=1)
    fill(publisher, "work", 2)
    assert offsets(drain(first)) == [0, 1]  # not answered
    second = node.connect(0, "client", clean=False, props=expiry)  # takes over
    got = consume(second)
    assert offsets(got) == [0, 1]
    assert [said(packet)["x-delivery-count"] for packet in got] == ["1", "1"]
    assert not any(packet.dup for packet in got)


def test_unsubscribing_gives_back_at_once(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "work"})
    props = user(("consumer-group", "group"))
    one = node.connect(0, "one")
    one.subscribe("$queue/work", qos=1, props=props)
    fill(node.connect(0, "publisher"), "work", 2)
    assert offsets(drain(one)) == [0, 1]
    two = node.connect(0, "two")
    two.subscribe("$queue/work", qos=1, props=props)
    assert drain(two) == []
    one.unsubscribe("$queue/work")
    node.advance(0.1)
    assert offsets(consume(two)) == [0, 1]


def test_a_subscription_outlives_the_shard(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "work"}, {"name": "log", "type": "stream"})
    expiry = [(wire.SESSION_EXPIRY_INTERVAL, 1000)]
    first = node.connect(0, "client", clean=False, props=expiry)
    first.subscribe("$queue/work", qos=1, props=user(("ack-mode", "explicit")))
    first.subscribe("$share/readers/$queue/log", qos=1, props=user(("start", "first")))
    publisher = node.connect(0, "publisher")
    fill(publisher, "work", 1)
    fill(publisher, "log", 2)
    assert len(consume(first)) == 3
    node.advance(10)
    node.restart()
    second = node.connect(0, "client", clean=False, props=expiry)
    got = consume(second)
    assert [said(packet)["message-id"] for packet in got] == ["work:0"]  # PUBACK settled nothing
    fill(node.connect(0, "publisher"), "log", 1)
    assert [said(packet)["message-id"] for packet in consume(second)] == ["log:2"]


def test_a_queue_that_captures_nothing_moves_no_filter(make_queues: MakeQueues) -> None:
    """Review finding 4: with each of many queues every other one was looked at again."""
    node = make_queues({"name": "work", "topics": ("shop/#",)})
    publisher = node.connect(0, "publisher")
    clients = node[0].queues.clients
    names = clients.names
    before = clients._captured
    info = names.info("work")
    for number in range(3):
        names.add(type(info)(f"plain {number}", info.group, info.type))
    node[0].queues.service.wake()
    node.run()
    assert clients._captured is before
    names.remove("work")
    node[0].queues.service.wake()
    node.run()
    assert clients._captured == {}
    assert publisher.publish("shop/a", b"", qos=1) == 0

"""A group whose time is ahead of everybody's, because somebody once believed a wrong clock: it goes on from there."""

from __future__ import annotations

import pytest

from fluxmq.engine.group_time import SHIFT_US, GroupTime
from fluxmq.model.steady import SLEW_PARTS
from tests.conformance import wire
from tests.conformance.client import Client
from tests.conformance.received import Packet
from tests.unit.engine.conftest import MakeQueues
from tests.unit.engine.support import QueueNode, consume, drain, fill, said, user

HOUR = 3600
SECOND = 1_000_000
JUMP = 8 * HOUR


class Steady:
    """A node's time."""

    def __init__(self) -> None:
        self.now = 100 * SECOND

    def __call__(self) -> int:
        return self.now


def test_it_is_the_nodes_while_no_entry_is_ahead() -> None:
    steady = Steady()
    time = GroupTime(steady)
    assert time.now(0) == time.now(steady.now) == steady.now
    assert time.ahead == time.shift(steady.now) == 0


def test_it_goes_on_from_an_entry_of_the_future_as_fast_as_real_time() -> None:
    """Review finding 3: a group that a wrong clock has moved is well again at once."""
    steady = Steady()
    time = GroupTime(steady)
    ahead = 8 * HOUR * SECOND
    applied = steady.now + ahead
    assert time.now(applied) == applied
    assert time.ahead == time.shift(applied) == ahead
    for passed in (SECOND, 60 * SECOND, HOUR * SECOND):
        before = time.now(applied)
        steady.now += passed
        span = time.now(applied) - before
        assert passed - passed // SLEW_PARTS - 1 <= span <= passed


def test_it_comes_back_to_the_nodes_time() -> None:
    steady = Steady()
    time = GroupTime(steady)
    applied = steady.now + HOUR * SECOND
    time.now(applied)
    steady.now += SLEW_PARTS * HOUR * SECOND - 1
    assert time.ahead == 1
    steady.now += 1
    assert time.now(applied) == steady.now
    assert time.ahead == 0


def test_what_is_ahead_by_little_shifts_no_message() -> None:
    steady = Steady()
    time = GroupTime(steady)
    assert time.shift(steady.now + SHIFT_US) == 0
    assert time.ahead == SHIFT_US
    assert time.shift(steady.now + SHIFT_US + 1) == SHIFT_US + 1


def test_a_node_whose_time_is_set_back_takes_the_group_nowhere() -> None:
    """A process that has just started learns that it was ahead."""
    steady = Steady()
    time = GroupTime(steady)
    applied = time.now(0)
    steady.now -= 50 * SECOND
    assert time.now(applied) == applied
    steady.now += 2 * SECOND
    assert applied < time.now(applied) <= applied + 2 * SECOND


def poisoned(node: QueueNode) -> QueueNode:
    """Entries are written with a clock that is ahead, as older programs did; then it is right again."""
    publisher = node.connect(0, "poisoner")
    before = node.clock.now
    node.clock.now += JUMP
    fill(publisher, "work", 1)
    (packet,) = taken(node, "cleaner")
    assert packet.payload == b"0"
    node.advance(0.1)
    assert node.group("work").machine.time >= round((before + JUMP) * SECOND)
    publisher.drop()
    node.clock.now = before
    node[0].reactor.tally.now = before
    node.advance(0.1)
    return node


def taken(node: QueueNode, name: str) -> list[Packet]:
    """What a consumer of the one group gets and settles."""
    client = node.connect(0, name)
    client.subscribe("$queue/work", qos=1, props=user(("consumer-group", "all")))
    found = consume(client)
    node.advance(0.1)
    client.drop()
    return found


def explicit(node: QueueNode, name: str) -> Client:
    """A consumer that says what becomes of each message."""
    client = node.connect(0, name)
    props = user(("consumer-group", "all"), ("ack-mode", "explicit"))
    client.subscribe("$queue/work", qos=1, props=props)
    return client


@pytest.mark.parametrize("restarted", [False, True])
def test_messages_with_a_time_to_live_are_there(make_queues: MakeQueues, restarted: bool) -> None:
    """Review finding 3: and they expire when their time is over, not before and not hours later."""
    node = poisoned(make_queues({"name": "work"}))
    if restarted:
        node.restart()
    publisher = node.connect(0, "publisher")
    expiry = [(wire.MESSAGE_EXPIRY_INTERVAL, 60)]
    assert publisher.publish("$queue/work", b"short", qos=1, props=expiry) == 0
    node.advance(30)
    (packet,) = taken(node, "taker")
    assert packet.payload == b"short"
    assert 1 <= packet.property(wire.MESSAGE_EXPIRY_INTERVAL) <= 60
    assert publisher.publish("$queue/work", b"over", qos=1, props=expiry) == 0
    node.advance(70)
    assert taken(node, "late") == []


def test_what_is_refused_comes_again(make_queues: MakeQueues) -> None:
    """Review finding 3: after its back-off, and not after hours."""
    queue = {"name": "work", "retry": {"initial_backoff": "1s"}}
    node = poisoned(make_queues(queue))
    fill(node.connect(0, "publisher"), "work", 1)
    client = explicit(node, "consumer")
    (packet,) = drain(client)
    props = user(("message-id", said(packet)["message-id"]), ("group-id", "all"))
    assert client.publish("$queue/work/$nack", qos=1, props=props) == 0
    node.advance(0.7)
    assert drain(client) == []
    node.advance(0.6)
    assert [said(again)["x-delivery-count"] for again in drain(client)] == ["1"]


def test_what_is_not_settled_is_passed_on(make_queues: MakeQueues) -> None:
    """Review finding 3: after its visibility timeout."""
    node = poisoned(make_queues({"name": "work", "consumer": {"visibility_timeout": "3s"}}))
    fill(node.connect(0, "publisher"), "work", 1)
    client = explicit(node, "idle")
    assert len(drain(client)) == 1
    node.advance(2)
    assert drain(client) == []
    node.advance(2)
    assert len(drain(client)) == 1


def test_a_leader_waits_until_it_is_known_what_time_it_is(make_queues: MakeQueues) -> None:
    """Review finding 3: nothing is stored or handed out by a clock that nobody has vouched for."""
    node = make_queues({"name": "work"})
    group = node.group("work")
    known = False
    group.is_timed = lambda: known
    publisher = node.connect(0, "publisher")
    publisher.send(wire.publish(wire.V5, "$queue/work", b"early", qos=1, packet_id=9))
    node.advance(1)
    assert drain(publisher) == []
    assert node.machine("work").next_offset == 0
    known = True
    node[0].queues.go_on()
    node.run()
    assert [packet.packet_id for packet in drain(publisher)] == [9]

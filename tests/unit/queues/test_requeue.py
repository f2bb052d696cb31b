"""Giving back as AMQP does: at once, to the message's place, marked as redelivered, counted against a delivery limit."""

from __future__ import annotations

import pytest

from fluxmq.queues.commands import DeadLetterReason, Verb
from tests.unit.queues.support import Host, group_of, offsets, pending


def test_messages_given_back_are_at_their_place_at_once() -> None:
    host = Host()
    queue = host.declare()
    host.publish(queue, 6)
    consumer = host.attach(queue, "a", limit=4)
    assert offsets(host.run()) == [0, 1, 2, 3]
    host.settle(consumer, Verb.RELEASE, (1, 1), (3, 3))
    assert host.run() == [("a", 1, 2), ("a", 3, 2)]
    host.settle(consumer, Verb.ACK, (0, 0), (2, 2))
    assert host.run() == [("a", 4, 1), ("a", 5, 1)]


def test_what_one_gives_back_goes_to_who_has_room_before_what_is_new() -> None:
    host = Host()
    queue = host.declare()
    host.publish(queue, 4)
    first = host.attach(queue, "a", limit=2)
    host.run()
    host.attach(queue, "b", limit=3)
    host.dispatch.consumers.set_limit(first, 1)
    host.settle(first, Verb.RELEASE, (0, 0))
    assert host.run() == [("b", 0, 2), ("b", 2, 1), ("b", 3, 1)]


def test_a_consumer_that_goes_gives_everything_back() -> None:
    host = Host()
    queue = host.declare()
    host.publish(queue, 3)
    consumer = host.attach(queue, "a")
    host.run()
    host.settle(consumer, Verb.ACK, (1, 1))
    host.do(*host.dispatch.consumers.detach(consumer))
    host.attach(queue, "b")
    assert host.run() == [("b", 0, 2), ("b", 2, 2)]


def test_without_a_delivery_limit_it_may_come_back_for_ever() -> None:
    host = Host()
    queue = host.declare(max_retries=0)
    host.publish(queue, 1)
    consumer = host.attach(queue)
    for attempts in range(1, 100):
        assert host.run() == [("m", 0, attempts)]
        host.settle(consumer, Verb.RELEASE, (0, 0))


@pytest.mark.parametrize("returns", [0, 1, 20])
@pytest.mark.parametrize("leaving", [False, True])
def test_a_message_may_come_back_as_often_as_its_limit_says(returns: int, leaving: bool) -> None:
    """AMQP's x-delivery-limit counts returns; a queue is told one delivery more."""
    host = Host()
    queue = host.declare(delivery_limit=returns + 1, dead_letter=True)
    host.publish(queue, 1)
    for delivery in range(returns + 1):
        consumer = host.attach(queue)
        assert host.run() == [("m", 0, delivery + 1)], "attempts less one is x-delivery-count"
        if not leaving:
            host.settle(consumer, Verb.RELEASE, (0, 0))
        host.do(*host.dispatch.consumers.detach(consumer))
    host.attach(queue)
    assert host.run() == []
    (letter,) = host.dead
    assert (letter.reason, letter.attempts) == (DeadLetterReason.DELIVERY_LIMIT, returns + 1)


def test_a_rejected_message_does_not_come_back() -> None:
    host = Host()
    queue = host.declare()
    host.publish(queue, 2)
    consumer = host.attach(queue)
    host.run()
    host.settle(consumer, Verb.REJECT, (0, 0))
    assert host.run() == []
    assert [first for first, *_ in pending(group_of(queue))] == [1]

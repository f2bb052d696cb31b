"""Limits of length and consumers that wait: what is taken at once never was too much."""

from __future__ import annotations

from typing import Any

import pytest

from fluxmq.queues import commands
from fluxmq.queues.commands import Verb
from fluxmq.queues.config import Overflow
from fluxmq.queues.dispatch import SHORTEN_DELAY
from fluxmq.queues.results import Code, Result
from fluxmq.queues.states import QueueState
from tests.unit.queues.support import Host, batch_of, given, group_of, offsets


def append(host: Host, queue: QueueState, count: int) -> Result:
    """One batch, as the host of a group appends it."""
    batch = batch_of([b"x" * 10] * count)
    spare = host.dispatch.consumers.spare(queue)
    return host.do(commands.append_header(queue.id, len(batch), spare) + batch)[0]


@pytest.mark.parametrize("limit", [{"max_length": 2}, {"max_length_bytes": 20}])
@pytest.mark.parametrize("overflow", list(Overflow))
def test_what_waiting_consumers_take_is_not_too_much(
    limit: dict[str, Any], overflow: Overflow
) -> None:
    host = Host()
    queue = host.declare(overflow=overflow, **limit)
    host.attach(queue)
    host.run()
    assert append(host, queue, 50).code == Code.OK
    assert offsets(host.run()) == list(range(50))


@pytest.mark.parametrize("limit", [{"max_length": 2}, {"max_length_bytes": 20}])
def test_what_nobody_takes_after_all_goes(limit: dict[str, Any]) -> None:
    host = Host()
    queue = host.declare(dead_letter=True, **limit)
    consumer = host.attach(queue, limit=5)
    host.run()
    host.dispatch.consumers.set_limit(consumer, 10)
    spare = host.dispatch.consumers.spare(queue)
    assert spare == 10
    batch = batch_of([b"x" * 10] * 10)
    host.do(commands.append_header(queue.id, len(batch), spare) + batch)
    host.dispatch.consumers.set_limit(consumer, 3)
    assert offsets(host.run()) == [0, 1, 2]
    host.pass_time(SHORTEN_DELAY)
    assert host.run() == []
    group = group_of(queue)
    assert (group.cursor, group.ready(10), group.dead.count) == (8, 2, 5)
    assert not queue.is_too_long()
    assert host.run() == []


def test_beyond_what_waiting_consumers_take_the_oldest_go() -> None:
    host = Host()
    queue = host.declare(max_length=2)
    host.attach(queue, limit=3)
    host.run()
    append(host, queue, 10)
    assert offsets(host.run()) == [5, 6, 7]
    assert host.dispatch.consumers.counts(queue.id)[0] == 2


def test_a_publish_is_refused_beyond_what_waiting_consumers_take() -> None:
    host = Host()
    queue = host.declare(max_length=2, overflow=Overflow.REJECT_PUBLISH)
    host.attach(queue, limit=3)
    host.run()
    assert append(host, queue, 6).code == Code.FULL
    assert append(host, queue, 5).code == Code.OK
    assert offsets(host.run()) == [0, 1, 2]
    assert append(host, queue, 1).code == Code.FULL


def test_who_does_not_wait_makes_no_room() -> None:
    host = Host()
    queue = host.declare(max_length=2)
    assert host.dispatch.consumers.spare(queue) == 0
    first = host.attach(queue, limit=1)
    host.attach(queue, taking=True)
    host.run()
    assert host.dispatch.consumers.spare(queue) == 1
    append(host, queue, 3)
    assert offsets(host.run()) == [0]
    assert host.dispatch.consumers.spare(queue) == 0
    host.settle(first, Verb.ACK, (0, 0))
    assert offsets(host.run()) == [1]
    other = host.attach(queue, group="other")
    host.run()
    assert host.dispatch.consumers.spare(queue) == 0, "one group's consumers are full"
    assert other.active


def test_an_append_of_before_has_no_spare_room() -> None:
    host = Host()
    queue = host.declare(max_length=2)
    host.attach(queue)
    host.run()
    host.do(commands.append(queue.id, batch_of([b"x"] * 5)))
    assert offsets(host.run()) == [3, 4]
    assert queue.spare == 0


def test_what_is_being_claimed_is_not_too_much() -> None:
    host = Host()
    queue = host.declare(max_length=2, dead_letter=True)
    host.attach(queue)
    host.run()
    batch = batch_of([b"x"] * 9)
    host.do(
        commands.append_header(queue.id, len(batch), host.dispatch.consumers.spare(queue)) + batch
    )
    step = host.dispatch.run(queue.id, host.now, 100)
    assert offsets(given(step.deliveries)) == list(range(9))
    assert len(step.commands) == 1, "a claim, and nothing that would drop what it is about"
    due = host.dispatch.next_due()
    assert due is not None
    assert due <= host.now + SHORTEN_DELAY, "it is looked at again"
    host.proposed += step.commands
    host.flush()
    host.pass_time(SHORTEN_DELAY)
    assert host.run() == []
    assert (group_of(queue).cursor, group_of(queue).dead.count) == (9, 0)


def test_not_every_consumer_is_asked_for_its_room() -> None:
    host = Host()
    queue = host.declare(max_length=2)
    for _ in range(300):
        host.attach(queue, limit=1)
    host.run()
    assert host.dispatch.consumers.spare(queue) == 256


# A length of 0


@pytest.mark.parametrize("consumers", [0, 1])
@pytest.mark.parametrize("more", [{}, {"max_length": 5}, {"max_length_bytes": 1}])
def test_a_length_of_nothing_keeps_nothing(consumers: int, more: dict[str, Any]) -> None:
    """Row F5: everything is dead-lettered, whatever the other limit says, also behind a consumer that has all it may."""
    host = Host()
    queue = host.declare(keeps_none=True, dead_letter=True, **more)
    for _ in range(consumers):
        host.attach(queue, limit=2)
        host.run()
        assert append(host, queue, 2).code == Code.OK
        assert offsets(host.run()) == [0, 1]
    dead = len(host.dead)
    assert append(host, queue, 3).code == Code.OK
    assert offsets(host.run()) == []
    assert (queue.ready(), len(host.dead) - dead) == (0, 3)


@pytest.mark.parametrize("overflow", [Overflow.REJECT_PUBLISH, Overflow.REJECT_PUBLISH_DLX])
def test_a_length_of_nothing_refuses_everything(overflow: Overflow) -> None:
    """Row F5: but for what a consumer waits for."""
    host = Host()
    queue = host.declare(keeps_none=True, overflow=overflow)
    assert append(host, queue, 1).code == Code.FULL
    host.attach(queue, limit=2)
    host.run()
    assert append(host, queue, 2).code == Code.OK
    assert offsets(host.run()) == [0, 1]
    assert append(host, queue, 1).code == Code.FULL


def test_what_comes_back_to_a_length_of_nothing_goes() -> None:
    """Row F5: the queue does not become longer by a consumer's end."""
    host = Host()
    queue = host.declare(keeps_none=True, dead_letter=True)
    consumer = host.attach(queue, limit=2)
    host.run()
    append(host, queue, 2)
    assert offsets(host.run()) == [0, 1]
    for command in host.dispatch.consumers.detach(consumer):
        host.do(command)
    host.run()
    assert (queue.ready(), len(host.dead)) == (0, 2)


def test_a_length_of_nothing_can_be_given_and_taken_back() -> None:
    """Row F5: as by a policy."""
    host = Host()
    queue = host.declare()
    append(host, queue, 3)
    host.declare(keeps_none=True)
    host.run()
    append(host, queue, 1)
    assert queue.ready() == 0
    host.declare()
    append(host, queue, 2)
    assert queue.ready() == 2

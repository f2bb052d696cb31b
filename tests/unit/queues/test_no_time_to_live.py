"""A time to live of nothing: whoever is there takes the message, else it expires (AMQP's time to live of 0)."""

from __future__ import annotations

import pytest

from fluxmq.model.batch_format import DELAY
from fluxmq.model.message_batch import build_message
from fluxmq.queues import commands
from fluxmq.queues.commands import Verb
from fluxmq.queues.verdicts import AT_ONCE
from tests.unit.queues.support import SECOND, Host, batch_of, group_of, offsets

MAX_PRIORITIES = pytest.mark.parametrize("max_priority", [0, 5])


@MAX_PRIORITIES
@pytest.mark.parametrize("own", [False, True])
def test_a_message_is_taken_at_once_or_not_at_all(max_priority: int, own: bool) -> None:
    host = Host()
    queue = host.declare(message_ttl=0 if own else AT_ONCE, max_priority=max_priority)
    consumer = host.attach(queue, limit=2)
    host.run()
    expiry = host.now + AT_ONCE if own else 0
    host.pass_time(1_000)
    for _ in range(3):
        host.do(commands.append(queue.id, build_message(b"", b"", b"x", host.now, expiry)))
    assert offsets(host.run()) == [0, 1]
    host.pass_time(1_000)
    host.run()
    host.settle(consumer, Verb.ACK, (0, 1))
    assert host.run() == []
    host.flush()
    assert queue.start == 3


@MAX_PRIORITIES
def test_without_a_consumer_it_expires(max_priority: int) -> None:
    host = Host()
    queue = host.declare(message_ttl=AT_ONCE, dead_letter=True, max_priority=max_priority)
    host.publish(queue, 2)
    host.pass_time(10)
    host.run()
    host.attach(queue)
    assert host.run() == []
    assert queue.nobodys.dead.count == 2


def test_given_back_it_expires() -> None:
    host = Host()
    queue = host.declare(message_ttl=AT_ONCE, dead_letter=True)
    consumer = host.attach(queue)
    host.publish(queue, 1)
    host.pass_time(10)
    assert offsets(host.run()) == [0]
    host.settle(consumer, Verb.RELEASE, (0, 0))
    assert host.run() == []
    assert group_of(queue).dead.count == 1


def test_a_longer_life_ends_whoever_waits() -> None:
    host = Host()
    queue = host.declare(message_ttl=SECOND)
    host.publish(queue, 1)
    host.pass_time(SECOND)
    host.attach(queue)
    assert host.run() == []


def test_delayed_messages_of_a_batch_that_would_expire_wait() -> None:
    host = Host()
    queue = host.declare(message_ttl=SECOND)
    later = host.now + 5 * SECOND
    host.do(commands.append(queue.id, batch_of([b"x"], flags=DELAY, eights=[[later]])))
    host.attach(queue)
    assert host.run() == []

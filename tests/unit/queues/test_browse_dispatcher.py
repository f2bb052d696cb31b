"""Browsers: they see what is ready, in order, and nobody else notices."""

from __future__ import annotations

import pytest

from fluxmq.model.batch_format import DELAY, EXPIRY
from fluxmq.queues import commands
from fluxmq.queues.attachments import AttachError
from fluxmq.queues.commands import Verb
from fluxmq.queues.consumers import ConsumerTerms, GroupConsumer
from fluxmq.queues.limits import SCANNED_MAX
from fluxmq.queues.states import QueueState
from tests.unit.queues.support import NOW, SECOND, Host, offsets, pending

OWN = ""
"""The group that consumers of AMQP share."""


def browse(
    host: Host, queue: QueueState, member: str = "b", limit: int = 100, cursor: int = 0
) -> GroupConsumer:
    """A browser."""
    terms = ConsumerTerms("", member, limit=limit, automatic=True, browsing=True)
    return host.dispatch.consumers.browse(queue.id, terms, cursor)


def test_a_browser_sees_what_is_ready_and_takes_nothing() -> None:
    host = Host()
    queue = host.declare()
    host.publish(queue, 3)
    before = host.machine.state_hash()
    browser = browse(host, queue)
    assert host.run() == [("b", 0, 1), ("b", 1, 1), ("b", 2, 1)]
    host.settle(browser, Verb.ACK, (0, 0))
    host.settle(browser, Verb.REJECT, (1, 2))
    assert not host.dead
    assert host.machine.state_hash() == before, "nothing is written down"
    assert host.dispatch.consumers.counts(queue.id) == (3, 0, 0), "nor is it counted"
    assert not host.dispatch.consumers.in_use(queue.id)
    host.attach(queue, "m", OWN)
    assert offsets(host.run(), "m") == [0, 1, 2]


def test_a_browser_passes_over_what_others_hold_and_follows() -> None:
    host = Host()
    queue = host.declare()
    host.publish(queue, 6)
    consumer = host.attach(queue, "m", OWN, limit=4)
    assert offsets(host.run()) == [0, 1, 2, 3]
    host.settle(consumer, Verb.ACK, (0, 0))
    host.dispatch.consumers.set_limit(consumer, 1)
    host.settle(consumer, Verb.NACK, (2, 2), delay=0)
    browse(host, queue)
    assert host.run() == [("b", 2, 2), ("b", 4, 1), ("b", 5, 1)]
    host.publish(queue, 2)
    assert offsets(host.run()) == [6, 7], "it goes on with what comes"
    host.settle(consumer, Verb.NACK, (3, 3), delay=0)
    assert offsets(host.run(), "b") == [], "and sees nothing that returns behind it"


def test_the_limit_is_of_messages_that_it_has_not_settled() -> None:
    host = Host()
    queue = host.declare()
    host.publish(queue, 5)
    browser = browse(host, queue, limit=2)
    assert offsets(host.run()) == [0, 1]
    assert host.dispatch.consumers.unseen(browser) == 3
    host.settle(browser, Verb.ACK, (0, 0))
    assert offsets(host.run()) == [2]
    host.dispatch.consumers.set_limit(browser, 4)
    assert offsets(host.run()) == [3, 4]
    assert host.dispatch.consumers.unseen(browser) == 0


def test_expired_and_delayed_messages_are_not_shown() -> None:
    host = Host()
    queue = host.declare()
    host.publish(queue, 2, flags=EXPIRY, eights=[(NOW - 1, 0)])
    host.publish(queue, 2, flags=DELAY, eights=[(NOW + SECOND, 0)])
    browse(host, queue)
    assert offsets(host.run(), "b") == [1, 3]


def test_a_browser_begins_where_it_is_told_and_where_the_queue_begins() -> None:
    host = Host()
    queue = host.declare()
    for _ in range(4):
        host.publish(queue, 1)
    browse(host, queue, "late", cursor=2)
    assert offsets(host.run()) == [2, 3]
    consumer = host.attach(queue, "m", OWN)
    host.run()
    host.settle(consumer, Verb.ACK, (0, 3))
    host.dispatch.consumers.stop(consumer)
    host.publish(queue, 2)
    browse(host, queue, "first")
    assert offsets(host.run(), "first") == [4, 5]
    host.publish(queue, 1)
    host.do(commands.purge(queue.id))
    assert offsets(host.run()) == []


def test_a_long_queue_is_looked_through_in_parts() -> None:
    host = Host()
    queue = host.declare()
    count = SCANNED_MAX // 1000 + 2
    for _ in range(count):
        host.publish(queue, 1000, flags=EXPIRY, eights=[[NOW - 1] * 1000])
    host.publish(queue, 1)
    browser = browse(host, queue)
    step = host.dispatch.run(queue.id, host.now, 10)
    assert not step.deliveries
    assert step.more
    assert host.dispatch.consumers.unseen(browser) == count * 1000 + 1 - SCANNED_MAX
    assert offsets(host.run(), "b") == [count * 1000]


def test_a_stopped_and_a_detached_browser_leave_nothing_behind() -> None:
    host = Host()
    queue = host.declare()
    host.attach(queue, "m", OWN, limit=1)
    browser = browse(host, queue)
    assert host.dispatch.consumers.stop(browser) == []
    host.publish(queue, 2)
    assert offsets(host.run(), "b") == []
    assert host.dispatch.consumers.detach(browser) == []
    assert [each.member for each in host.dispatch.consumers.consumers_of(queue.id)] == ["m"]
    assert [range_[:2] for range_ in pending(queue.groups[1])] == [(0, 0)]


def test_a_browser_ends_with_its_queue_and_not_with_groups() -> None:
    host = Host()
    queue = host.declare()
    browser = browse(host, queue)
    consumer = host.attach(queue, "m", "g")
    host.run()
    host.do(commands.delete_group(queue.id, consumer.group_id))
    host.publish(queue, 1)
    assert offsets(host.run(), "b") == [0]
    assert host.dispatch.consumers.cancelled() == [consumer]
    host.do(commands.delete(queue.id))
    assert host.dispatch.consumers.cancelled() == [browser]
    with pytest.raises(AttachError):
        browse(host, queue)

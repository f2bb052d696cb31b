"""The dispatcher on a machine and a log in memory: who is given what, when, and how often."""

from __future__ import annotations

import sys

import pytest

from fluxmq.model.batch_format import DELAY
from fluxmq.queues import commands
from fluxmq.queues.attachments import AttachError
from fluxmq.queues.commands import NEXT, Mode, Verb
from fluxmq.queues.config import QueueConfig, ephemeral
from fluxmq.queues.consumers import ConsumerTerms
from fluxmq.queues.limits import CLAIM_GRANULE
from tests.unit.queues.support import (
    NOW,
    SECOND,
    Host,
    batch_of,
    given,
    group_of,
    offsets,
    pending,
)

LATE = 30 * SECOND + CLAIM_GRANULE


def test_messages_are_given_in_order_and_once() -> None:
    host = Host()
    queue = host.declare()
    host.attach(queue)
    host.publish(queue, 3)
    assert host.run() == [("m", 0, 1), ("m", 1, 1), ("m", 2, 1)]
    host.publish(queue, 2)
    assert host.run() == [("m", 3, 1), ("m", 4, 1)]
    assert host.run() == []


def test_one_batch_is_one_delivery_and_one_command() -> None:
    host = Host()
    queue = host.declare()
    host.attach(queue)
    host.publish(queue, 200)
    step = host.dispatch.run(queue.id, host.now, 1_000)
    assert [(each.first, each.count) for each in step.deliveries] == [(0, 200)]
    assert len(step.commands) == 1


def test_claims_under_way_are_not_handed_out_twice() -> None:
    host = Host()
    queue = host.declare()
    host.attach(queue, "a")
    host.attach(queue, "b")
    host.publish(queue, 10)
    host.hold = True
    first = host.dispatch.run(queue.id, host.now, 4)
    second = host.dispatch.run(queue.id, host.now, 100)
    assert sorted(offsets(given(first.deliveries + second.deliveries))) == list(range(10))
    host.proposed += first.commands + second.commands
    host.flush()
    assert group_of(queue).cursor == 0
    host.release()
    assert (group_of(queue).cursor, host.run()) == (10, [])


def test_redeliveries_under_way_are_not_handed_out_twice() -> None:
    host = Host()
    queue = host.declare()
    consumer = host.attach(queue)
    host.publish(queue, 4)
    host.run()
    host.settle(consumer, Verb.RELEASE, (0, 3))
    host.hold = True
    assert host.run() == [("m", offset, 2) for offset in range(4)]
    assert host.run() == []
    host.release()
    assert host.run() == []
    assert host.settle(consumer, Verb.ACK, (0, 3)) == (4, 0)
    assert queue.start == 4


def test_what_comes_again_is_given_before_what_is_new() -> None:
    host = Host()
    queue = host.declare()
    one = host.attach(queue, "one", limit=4)
    host.publish(queue, 8)
    assert offsets(host.run()) == [0, 1, 2, 3]
    host.settle(one, Verb.RELEASE, (2, 3), (0, 0))
    assert host.run() == [("one", 0, 2), ("one", 2, 2), ("one", 3, 2)]
    host.settle(one, Verb.ACK, (1, 1))
    assert host.run() == [("one", 4, 1)]


def test_consumers_take_turns_by_claim_batch() -> None:
    host = Host()
    queue = host.declare(claim_batch=3)
    for name in "abc":
        host.attach(queue, name)
    host.publish(queue, 20)
    found = host.run()
    assert offsets(found) == list(range(20))
    turns = [who for who, offset, _ in found if offset % 3 == 0]
    assert turns == ["a", "b", "c", "a", "b", "c", "a"]


def test_a_turn_ends_where_the_messages_end_and_goes_on_there() -> None:
    host = Host()
    queue = host.declare(claim_batch=3)
    for name in "ab":
        host.attach(queue, name)
    found = []
    for _ in range(4):
        host.publish(queue, 3)
        found += host.run()
    assert [who for who, offset, _ in found if offset % 3 == 0] == ["a", "b", "a", "b"]


@pytest.mark.parametrize(("limit", "credit", "expected"), [(4, 1 << 40, 4), (100, 3, 3), (2, 3, 2)])
def test_nobody_gets_more_than_limit_and_credit(limit: int, credit: int, expected: int) -> None:
    host = Host()
    queue = host.declare()
    consumer = host.attach(queue, limit=limit, credit=credit)
    host.publish(queue, 10)
    assert len(host.run()) == expected
    assert host.run() == []
    assert host.settle(consumer, Verb.ACK, (0, expected - 1)) == (expected, 0)
    assert len(host.run()) == min(limit, credit - expected)


def test_credit_wakes_a_consumer() -> None:
    host = Host()
    queue = host.declare()
    consumer = host.attach(queue, credit=0)
    host.publish(queue, 10)
    assert host.run() == []
    host.dispatch.consumers.credit(consumer, 2)
    assert offsets(host.run()) == [0, 1]
    host.dispatch.consumers.credit(consumer, 5)
    host.dispatch.consumers.credit(consumer, -9)
    assert host.run() == []


def test_a_run_is_bounded_and_says_that_there_is_more() -> None:
    host = Host()
    queue = host.declare()
    host.attach(queue)
    host.publish(queue, 10)
    host.dispatch.due(host.now)
    step = host.dispatch.run(queue.id, host.now, 4)
    assert (sum(each.count for each in step.deliveries), step.more) == (4, True)
    host.proposed += step.commands
    assert host.dispatch.due(host.now) == [queue.id]
    assert offsets(given(host.dispatch.run(queue.id, host.now, 6).deliveries)) == [4, 5, 6, 7, 8, 9]


def test_only_what_is_held_is_settled() -> None:
    host = Host()
    queue = host.declare()
    one, two = host.attach(queue, "one", limit=5), host.attach(queue, "two", limit=5)
    host.publish(queue, 10)
    host.run()
    assert host.settle(two, Verb.ACK, (3, 6)) == (2, 2)
    assert host.settle(one, Verb.ACK, (0, 4)) == (5, 0)
    assert host.settle(one, Verb.ACK, (0, 4)) == (0, 5)
    assert pending(group_of(queue)) == [(7, 9, two.holder, 1)]


def test_overdue_messages_come_back_to_the_only_consumer() -> None:
    host = Host()
    queue = host.declare()
    consumer = host.attach(queue)
    host.publish(queue, 4)
    host.run()
    assert host.dispatch.next_due() == NOW + LATE
    host.pass_time(LATE - 1)
    assert host.run() == []
    host.pass_time(1)
    assert host.run() == [("m", offset, 2) for offset in range(4)]
    assert host.settle(consumer, Verb.ACK, (0, 3)) == (4, 0)


def test_overdue_messages_go_to_anybody_and_late_settlements_do_nothing() -> None:
    host = Host()
    queue = host.declare()
    slow = host.attach(queue, "slow", credit=4)
    host.publish(queue, 4)
    host.run()
    other = host.attach(queue, "other")
    host.pass_time(LATE)
    assert host.run() == [("other", offset, 2) for offset in range(4)]
    assert host.settle(slow, Verb.ACK, (0, 3)) == (0, 4)
    assert host.settle(other, Verb.ACK, (0, 3)) == (4, 0)


def test_detaching_releases_everything_in_one_command() -> None:
    host = Host()
    queue = host.declare()
    one = host.attach(queue, "one")
    host.publish(queue, 10)
    host.run()
    host.attach(queue, "two")
    proposals = host.dispatch.consumers.detach(one)
    assert len(proposals) == 1
    host.do(*proposals)
    assert host.run() == [("two", offset, 2) for offset in range(10)]
    assert host.settle(one, Verb.ACK, (0, 9)) == (0, 10)


def test_a_consumer_that_goes_before_it_came_leaves_nothing() -> None:
    host = Host()
    queue = host.declare()
    consumer, proposals = host.dispatch.consumers.attach(queue.id, ConsumerTerms("g", "m"))
    host.do(*proposals, *host.dispatch.consumers.detach(consumer))
    host.publish(queue, 3)
    assert host.run() == []
    assert group_of(queue).members == {}


@pytest.mark.parametrize("delay", [-1, 0, 3 * SECOND])
def test_a_nacked_message_comes_again_after_its_delay(delay: int) -> None:
    host = Host()
    queue = host.declare()
    consumer = host.attach(queue)
    host.publish(queue, 2)
    host.run()
    host.settle(consumer, Verb.NACK, (0, 0), delay=delay)
    wait = 5 * SECOND if delay < 0 else delay
    if wait:
        assert host.run() == []
        host.pass_time(wait - 1)
        assert host.run() == []
        assert host.dispatch.next_due() == NOW + wait
        host.pass_time(1)
    assert host.run() == [("m", 0, 2)]


def test_delayed_messages_come_in_order_of_their_time() -> None:
    host = Host()
    queue = host.declare()
    host.attach(queue)
    due = [NOW + 9, 0, NOW + 5, NOW + 5, NOW - 7, NOW + 9]
    host.publish(queue, 6, flags=DELAY, eights=[due])
    assert offsets(host.run()) == [1, 4]
    assert host.dispatch.next_due() is not None
    host.pass_time(4)
    assert host.run() == []
    host.pass_time(2_000)
    assert host.run() == [("m", offset, 1) for offset in (2, 3, 0, 5)]


def test_filters_pass_over_what_does_not_match() -> None:
    host = Host()
    queue = host.declare("q", dead_letter=True)
    host.attach(queue, filter=b"a/#")
    keys = [b"$queue/q/a", b"$queue/q/b", b"$queue/q/a/b", b"$queue/q", b"a/x", b"b/a"]
    host.publish(queue, 6, keys=keys)
    host.publish(queue, 3, keys=b"$queue/q/c")
    host.publish(queue, 2, keys=b"$queue/q/a/1")
    assert offsets(host.run()) == [0, 2, 4, 9, 10]
    group = group_of(queue, "g@a/#")
    assert (group.cursor, group.pending.count, group.dead.count) == (11, 5, 0)


def test_a_filter_that_matches_nothing_holds_nothing_back() -> None:
    host = Host()
    queue = host.declare()
    consumer = host.attach(queue, filter=b"a")
    host.do(*host.dispatch.consumers.detach(consumer))
    for _ in range(3):
        host.publish(queue, 40, keys=b"b")
    host.run()
    assert queue.start == 120


# --- leadership, seeking, timers ---------------------------------------------------------------------------------


def test_a_new_leader_releases_what_former_consumers_held() -> None:
    host = Host()
    queue = host.declare()
    host.attach(queue, "old")
    host.publish(queue, 3)
    host.run()
    host.dispatch.reset()
    host.lead(2)
    host.attach(queue, "new")
    assert host.run() == [("new", offset, 2) for offset in range(3)]


def test_claims_that_are_refused_are_made_again() -> None:
    host = Host()
    queue = host.declare(max_length=6)
    consumer = host.attach(queue)
    host.publish(queue, 6)
    step = host.dispatch.run(queue.id, host.now, 4)
    host.proposed += [commands.append(queue.id, batch_of([b"x"] * 3)), *step.commands]
    assert offsets(host.run()) == [4, 5, 6, 7, 8]
    assert pending(group_of(queue)) == [(3, 8, consumer.holder, 1)]


def test_a_seek_voids_what_is_held_and_under_way() -> None:
    host = Host()
    queue = host.declare()
    host.do(commands.create_group(queue.id, "keeps"))
    consumer = host.attach(queue)
    host.publish(queue, 6)
    step = host.dispatch.run(queue.id, host.now, 4)
    group = group_of(queue)
    host.proposed += [*step.commands, commands.seek(queue.id, group.id, (3, 2))]
    assert host.run() == [("m", offset, 1) for offset in range(2, 6)]
    assert host.settle(consumer, Verb.ACK, (0, 1)) == (0, 2)


def test_a_deleted_group_or_queue_cancels_its_consumers() -> None:
    host = Host()
    queue = host.declare()
    one = host.attach(queue, "one")
    two = host.attach(queue, "two", group="other")
    host.run()
    host.do(commands.delete_group(queue.id, group_of(queue).id))
    host.run()
    assert host.dispatch.consumers.cancelled() == [one]
    host.do(commands.delete(queue.id))
    assert host.dispatch.consumers.cancelled() == [two]
    assert host.dispatch.consumers.cancelled() == []
    assert host.dispatch.consumers.detach(two) == []
    assert host.run() == []


def test_attaching_needs_a_queue_and_a_group_that_agrees() -> None:
    host = Host()
    queue = host.declare()
    host.attach(queue)
    with pytest.raises(AttachError):
        host.dispatch.consumers.attach(99, ConsumerTerms("g", "m"))
    with pytest.raises(AttachError):
        host.dispatch.consumers.attach(queue.id, ConsumerTerms("g", "m", Mode.STREAM))


def test_a_group_begins_where_it_is_told() -> None:
    host = Host()
    queue = host.declare()
    host.publish(queue, 5)
    host.attach(queue, "all", group="all")
    host.attach(queue, "new", group="new", start=NEXT)
    assert offsets(host.run(), "new") == []
    host.publish(queue, 1)
    assert sorted(host.run()) == [("all", 5, 1), ("new", 5, 1)]


def test_unused_queues_go_by_themselves() -> None:
    host = Host()
    host.do(commands.declare(ephemeral("e")))
    queue = host.machine.queues[1]
    consumer = host.attach(queue)
    host.run()
    assert host.dispatch.next_due() is None
    host.do(*host.dispatch.consumers.detach(consumer))
    host.run()
    assert host.dispatch.next_due() == NOW + 300 * SECOND
    host.pass_time(300 * SECOND)
    host.run()
    assert host.machine.queues == {}
    assert host.dispatch.next_due() is None


def test_retention_by_age_works_by_itself() -> None:
    host = Host()
    queue = host.declare(retention_age=60 * SECOND)
    for _ in range(3):
        host.publish(queue, 10)
        host.run()
        host.pass_time(20 * SECOND)
    for start in (10, 20, 30):
        host.run()
        assert queue.start == start
        host.pass_time(20 * SECOND)


def test_a_clock_that_was_set_back_stops_nothing() -> None:
    host = Host()
    queue = host.declare()
    consumer = host.attach(queue)
    host.publish(queue, 2)
    host.pass_time(-500 * SECOND)
    assert len(host.run()) == 2
    host.settle(consumer, Verb.NACK, (0, 1), delay=0)
    assert len(host.run()) == 2


def test_idle_queues_cost_nothing() -> None:
    host = Host()
    for number in range(100):
        host.declare(f"q{number}")
    host.run()
    assert (host.dispatch.due(host.now), host.dispatch.next_due()) == ([], None)


def test_a_new_configuration_takes_effect_at_once() -> None:
    host = Host()
    queue = host.declare()
    host.attach(queue)
    host.do(commands.declare(QueueConfig("q", visibility_timeout=SECOND)))
    host.publish(queue, 1)
    host.run()
    host.pass_time(SECOND + CLAIM_GRANULE)
    assert host.run() == [("m", 0, 2)]


def test_a_consumer_that_takes_from_itself_stands_in_line_once() -> None:
    host = Host()
    queue = host.declare()
    consumer = host.attach(queue, limit=9)
    host.publish(queue, 6)
    host.run()
    host.pass_time(LATE)
    assert len(host.run()) == 6
    host.do(*host.dispatch.consumers.detach(consumer))
    host.publish(queue, 1)
    assert host.run() == []


def test_redeliveries_that_were_refused_come_again() -> None:
    host = Host()
    queue = host.declare()
    consumer = host.attach(queue)
    host.publish(queue, 3)
    host.run()
    host.settle(consumer, Verb.RELEASE, (0, 2))
    step = host.dispatch.run(queue.id, host.now, 10)
    assert offsets(given(step.deliveries)) == [0, 1, 2]
    leave = host.dispatch.consumers.detach(consumer)
    host.do(*leave, *step.commands)  # a claim by somebody who has gone is refused
    host.attach(queue, "new")
    assert host.run() == [("new", offset, 2) for offset in range(3)]


def test_a_range_that_grows_while_it_is_claimed_is_not_given_again() -> None:
    host = Host()
    queue = host.declare()
    consumer = host.attach(queue)
    host.publish(queue, 2)
    host.run()
    host.hold = True
    host.settle(consumer, Verb.RELEASE, (0, 0))
    host.settle(consumer, Verb.RELEASE, (1, 1))
    host.release_one()
    assert host.run() == [("m", 0, 2)]
    host.release_one()  # now 0, whose claim still waits, and 1 are one range
    assert host.run() == [("m", 1, 2)]
    host.release()
    assert host.run() == []


def test_no_batch_is_kept_in_memory_between_runs() -> None:
    host = Host()
    queue = host.declare()
    host.attach(queue, limit=1)
    host.publish(queue, 5)
    host.run()
    host.deliveries = []
    references = sys.getrefcount(host.log[1][0])
    assert references == 2  # the log's list, and the argument

"""The dispatcher on a machine and a log in memory: who is given what, when, and how often."""

from __future__ import annotations

from typing import Any

import pytest

from fluxmq._hot.batches import DELAY, EXPIRY
from fluxmq.queues import commands
from fluxmq.queues.commands import NEXT, Mode, Reason, Verb
from fluxmq.queues.config import QueueConfig, QueueType, ephemeral
from fluxmq.queues.dispatch import AttachError
from fluxmq.queues.limits import CLAIM_GRANULE
from fluxmq.queues.results import Code
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
    host.dispatch.credit(consumer, 2)
    assert offsets(host.run()) == [0, 1]
    host.dispatch.credit(consumer, 5)
    host.dispatch.credit(consumer, -9)
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
    proposals = host.dispatch.detach(one)
    assert len(proposals) == 1
    host.do(*proposals)
    assert host.run() == [("two", offset, 2) for offset in range(10)]
    assert host.settle(one, Verb.ACK, (0, 9)) == (0, 10)


def test_a_consumer_that_goes_before_it_came_leaves_nothing() -> None:
    host = Host()
    queue = host.declare()
    consumer, proposals = host.dispatch.attach(queue.id, "g", "m")
    host.do(*proposals, *host.dispatch.detach(consumer))
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
    host.attach(queue, filter_=b"a/#")
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
    consumer = host.attach(queue, filter_=b"a")
    host.do(*host.dispatch.detach(consumer))
    for _ in range(3):
        host.publish(queue, 40, keys=b"b")
    host.run()
    assert queue.start == 120


# --- dying -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("grouped", [True, False])
def test_expired_messages_die_without_a_consumer(enabled: bool, grouped: bool) -> None:
    host = Host()
    queue = host.declare(message_ttl=10 * SECOND, dead_letter=enabled)
    if grouped:
        host.do(commands.create_group(queue.id, "g"))
    host.publish(queue, 3)
    host.pass_time(5 * SECOND)
    host.publish(queue, 2)
    assert host.run() == []
    assert host.dispatch.next_due() == NOW + 10 * SECOND
    host.pass_time(5 * SECOND)
    host.run()
    assert queue.start == 3
    assert [(each.offset, each.reason) for each in host.dead] == (
        [(offset, Reason.EXPIRED) for offset in range(3)] if enabled else []
    )
    host.pass_time(5 * SECOND)
    host.run()
    assert queue.start == 5


def test_a_messages_own_expiry_counts_if_it_is_sooner() -> None:
    host = Host()
    queue = host.declare(message_ttl=10 * SECOND)
    consumer = host.attach(queue, credit=0)
    own = [NOW + SECOND, 0, NOW + 99 * SECOND, NOW + SECOND]
    host.publish(queue, 4, flags=EXPIRY, eights=[own])
    host.run()
    host.pass_time(2 * SECOND)
    host.dispatch.credit(consumer, 10)
    assert offsets(host.run()) == [1, 2]
    host.settle(consumer, Verb.RELEASE, (1, 2))
    host.pass_time(8 * SECOND)
    assert host.run() == []
    assert queue.start == 4


def test_an_overdue_message_dies_at_its_delivery_limit() -> None:
    host = Host()
    queue = host.declare(delivery_limit=2, dead_letter=True)
    host.attach(queue)
    host.publish(queue, 1)
    assert host.run() == [("m", 0, 1)]
    host.pass_time(LATE)
    assert host.run() == [("m", 0, 2)]
    host.pass_time(LATE)
    assert host.run() == []
    assert [(each.offset, each.reason, each.attempts) for each in host.dead] == [
        (0, Reason.DELIVERY_LIMIT, 2)
    ]


def test_the_dead_are_handed_out_once_and_again_to_a_new_leader() -> None:
    host = Host()
    queue = host.declare(dead_letter=True)
    consumer = host.attach(queue)
    host.publish(queue, 3)
    host.run()
    host.settle(consumer, Verb.REJECT, (0, 1), reason=b"broken")
    host.run()
    letters = host.dead
    assert [(each.offset, each.text, each.target) for each in letters] == [
        (0, b"broken", "$dlq/q"),
        (1, b"broken", "$dlq/q"),
    ]
    host.run()
    assert host.dead == []
    host.lead(2)
    host.run()
    again = host.dead
    assert [each.offset for each in again] == [0, 1]
    assert [each.producer for each in again] == [each.producer for each in letters]
    host.bury_dead()
    host.lead(3)
    host.run()
    assert host.dead == []


def test_a_repeated_dead_letter_append_is_recognised() -> None:
    host = Host()
    queue = host.declare(dead_letter=True)
    target = host.declare("$dlq/q")
    consumer = host.attach(queue)
    host.publish(queue, 1)
    host.run()
    host.settle(consumer, Verb.REJECT, (0, 0))
    codes = []
    for term in (2, 3):
        host.lead(term)
        host.run()
        letter = host.dead[0]
        codes.append(host.do(commands.append(target.id, as_batch(letter)))[0].code)
    assert codes == [Code.OK, Code.DUPLICATE]


def as_batch(letter: Any) -> bytes:
    """The dead-letter append as the host makes it."""
    from fluxmq._hot.batches import build_message

    return build_message(
        letter.batch.key(letter.index),
        b"",
        letter.batch.payload(letter.index),
        NOW,
        producer=letter.producer,
        sequence=letter.offset,
    )


def test_transfer_ids_differ_by_queue_and_group_and_after_making_a_queue_anew() -> None:
    host = Host()
    seen = set()
    for _ in range(2):
        queue = host.declare()
        for name in ("one", "two"):
            host.do(commands.create_group(queue.id, name))
            seen.add(queue.transfer_producer(group_of(queue, name)))
        host.do(commands.delete(queue.id))
    assert len(seen) == 4


def test_dead_letters_that_could_not_be_stored_come_again_later() -> None:
    host = Host()
    queue = host.declare(dead_letter=True, max_length=1)
    host.publish(queue, 3)
    host.run()
    assert len(host.dead) == 2
    host.dispatch.retry_dead(queue.id, host.now + SECOND)
    host.run()
    assert host.dead == []
    host.pass_time(SECOND)
    host.run()
    assert [each.offset for each in host.dead] == [0, 1]


def test_dead_letters_of_a_run_are_bounded() -> None:
    host = Host()
    queue = host.declare(dead_letter=True, max_length=1)
    host.publish(queue, 11)
    host.flush()
    step = host.dispatch.run(queue.id, host.now, 4)
    assert ([each.offset for each in step.dead], step.more) == ([0, 1, 2, 3], True)
    host.run(4)
    assert [each.offset for each in host.dead] == [4, 5, 6, 7, 8, 9]


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
    assert host.dispatch.cancelled() == [one]
    host.do(commands.delete(queue.id))
    assert host.dispatch.cancelled() == [two]
    assert host.dispatch.cancelled() == []
    assert host.dispatch.detach(two) == []
    assert host.run() == []


def test_attaching_needs_a_queue_and_a_group_that_agrees() -> None:
    host = Host()
    queue = host.declare()
    host.attach(queue)
    with pytest.raises(AttachError):
        host.dispatch.attach(99, "g", "m")
    with pytest.raises(AttachError):
        host.dispatch.attach(queue.id, "g", "m", Mode.STREAM)


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
    host.do(*host.dispatch.detach(consumer))
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


# --- streams -----------------------------------------------------------------------------------------------------


def stream(host: Host, **values: Any) -> Any:
    """A stream of ten messages."""
    queue = host.declare("s", type=QueueType.STREAM, **values)
    host.publish(queue, 10)
    return queue


def test_a_streams_group_shares_a_cursor_and_commits_what_is_acknowledged() -> None:
    host = Host()
    queue = stream(host, claim_batch=5)
    one = host.attach(queue, "one", mode=Mode.STREAM)
    two = host.attach(queue, "two", mode=Mode.STREAM)
    found = host.run()
    assert offsets(found) == list(range(10))
    mine = offsets(found, "one")
    consumer, other = (one, two) if mine[0] == 0 else (two, one)
    host.settle(other, Verb.ACK, (5, 9))
    host.pass_time(5 * SECOND)
    host.run()
    assert group_of(queue).cursor == 0
    host.settle(consumer, Verb.ACK, (0, 4))
    assert group_of(queue).cursor == 0
    host.pass_time(5 * SECOND)
    host.run()
    assert (group_of(queue).cursor, queue.start, group_of(queue).pending.count) == (10, 0, 0)


def test_a_stream_goes_on_where_it_was_committed() -> None:
    host = Host()
    queue = stream(host)
    consumer = host.attach(queue, mode=Mode.STREAM)
    host.run()
    host.settle(consumer, Verb.ACK, (0, 3))
    host.do(*host.dispatch.detach(consumer))
    assert group_of(queue).cursor == 4
    host.lead(2)
    host.attach(queue, mode=Mode.STREAM)
    assert offsets(host.run()) == [4, 5, 6, 7, 8, 9]


def test_manual_commits_alone_move_the_offset() -> None:
    host = Host()
    queue = stream(host)
    consumer = host.attach(queue, mode=Mode.STREAM, auto_commit=False)
    host.run()
    host.settle(consumer, Verb.ACK, (0, 9))
    host.pass_time(60 * SECOND)
    host.run()
    assert group_of(queue).cursor == 0
    host.do(*host.dispatch.commit(consumer, 7))
    assert group_of(queue).cursor == 7
    with pytest.raises(Exception, match="outside"):
        host.dispatch.commit(consumer, 11)


def test_a_work_group_does_not_commit() -> None:
    host = Host()
    consumer = host.attach(host.declare())
    host.run()
    with pytest.raises(Exception, match="stream"):
        host.dispatch.commit(consumer, 0)


@pytest.mark.parametrize(("verb", "wait"), [(Verb.NACK, 5 * SECOND), (Verb.RELEASE, 0)])
def test_what_a_reader_refuses_is_read_again_and_not_committed(verb: Verb, wait: int) -> None:
    host = Host()
    queue = stream(host)
    consumer = host.attach(queue, mode=Mode.STREAM)
    host.run()
    host.settle(consumer, Verb.ACK, (0, 2), (5, 9))
    host.settle(consumer, verb, (3, 4))
    host.pass_time(wait)
    assert host.run() == [("m", 3, 2), ("m", 4, 2)]
    host.pass_time(5 * SECOND)
    host.run()
    assert group_of(queue).cursor == 3
    host.settle(consumer, Verb.REJECT, (3, 4))
    host.pass_time(5 * SECOND)
    host.run()
    assert group_of(queue).cursor == 10


def test_what_a_reader_leaves_unacknowledged_goes_to_the_others() -> None:
    host = Host()
    queue = stream(host)
    one = host.attach(queue, "one", mode=Mode.STREAM)
    host.run()
    host.attach(queue, "two", mode=Mode.STREAM)
    host.settle(one, Verb.ACK, (0, 7))
    host.do(*host.dispatch.detach(one))
    assert host.run() == [("two", 8, 2), ("two", 9, 2)]


def test_a_subscription_may_set_a_streams_cursor() -> None:
    host = Host()
    queue = stream(host)
    consumer = host.attach(queue, mode=Mode.STREAM, start=(3, 8))
    assert offsets(host.run()) == [8, 9]
    host.do(*host.dispatch.detach(consumer))
    host.attach(queue, mode=Mode.STREAM, start=(3, 6))
    assert offsets(host.run()) == [6, 7, 8, 9]


def test_a_stream_is_filtered_delayed_and_trimmed() -> None:
    host = Host()
    queue = host.declare("s", type=QueueType.STREAM, retention_messages=6)
    host.publish(queue, 4, keys=[b"a", b"b", b"a", b"b"])
    host.publish(queue, 2, keys=b"a", flags=DELAY, eights=[[NOW + 9, 0]])
    host.attach(queue, mode=Mode.STREAM, filter_=b"a")
    assert offsets(host.run()) == [0, 2, 5]
    host.pass_time(5_000)
    assert host.run() == [("m", 4, 1)]
    host.publish(queue, 20, keys=b"a")
    assert offsets(host.run()) == list(range(20, 26))


def test_a_stream_reader_is_bounded_by_its_credit() -> None:
    host = Host()
    queue = stream(host)
    consumer = host.attach(queue, mode=Mode.STREAM, limit=3)
    assert offsets(host.run()) == [0, 1, 2]
    host.settle(consumer, Verb.ACK, (1, 1))
    assert offsets(host.run()) == [3]


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
    host.do(*host.dispatch.detach(consumer))
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
    leave = host.dispatch.detach(consumer)
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

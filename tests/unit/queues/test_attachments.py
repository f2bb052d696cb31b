"""Who consumes and how: automatic, taking, exclusive, stopped, single and preferred consumers; counting and deleting."""

from __future__ import annotations

import pytest

from fluxmq.model.batch_format import DELAY
from fluxmq.queues import commands
from fluxmq.queues.attachments import ExclusiveError
from fluxmq.queues.commands import Mode, Verb
from fluxmq.queues.config import QueueType
from fluxmq.queues.consumers import ConsumerTerms, GroupConsumer
from fluxmq.queues.groups import TEMPORARY
from fluxmq.queues.limits import CLAIM_GRANULE, UNSETTLED_MAX
from fluxmq.queues.machine import Machine
from fluxmq.queues.results import Code, Result
from tests.unit.queues.support import NOW, SECOND, Host, batch_of, group_of, offsets, pending


def take(host: Host, consumer: GroupConsumer) -> list[tuple[str, int, int]]:
    """What a consumer that takes is given."""
    host.dispatch.consumers.credit(consumer, 1)
    got = host.run()
    host.dispatch.consumers.credit(consumer, -1)
    return got


# Automatic


def test_what_an_automatic_consumer_is_given_is_settled() -> None:
    """S4-46: so what is lost on the way to it is not delivered again."""
    host = Host()
    queue = host.declare()
    host.attach(queue, "a", automatic=True)
    host.publish(queue, 3)
    assert offsets(host.run()) == [0, 1, 2]
    host.flush()
    assert pending(group_of(queue)) == []
    assert (queue.start, queue.depth) == (3, 0)
    host.lead(2)
    host.attach(queue, "b")
    assert host.run() == []


def test_only_what_was_handed_out_is_settled() -> None:
    host = Host()
    queue = host.declare()
    host.attach(queue, "a", automatic=True, limit=2)
    host.publish(queue, 5)
    assert offsets(host.run()) == [0, 1]
    host.flush()
    assert (group_of(queue).cursor, queue.start) == (2, 2)
    host.attach(queue, "b")
    assert offsets(host.run()) == [2, 3, 4]


def test_an_automatic_consumer_gets_more_when_it_has_got_rid_of_some() -> None:
    host = Host()
    queue = host.declare()
    consumer = host.attach(queue, automatic=True, limit=2)
    host.publish(queue, 5)
    assert offsets(host.run()) == [0, 1]
    before = len(host.entries)
    assert host.settle(consumer, Verb.ACK, (0, 0)) == (1, 0)
    assert len(host.entries) == before, "nothing is left to be said of it"
    assert offsets(host.run()) == [2]
    host.dispatch.consumers.set_limit(consumer, 0)
    assert consumer.limit == UNSETTLED_MAX
    assert offsets(host.run()) == [3, 4]


def test_what_was_given_back_is_settled_by_an_automatic_consumer() -> None:
    host = Host()
    queue = host.declare()
    first = host.attach(queue, "a", limit=2)
    host.publish(queue, 2)
    host.run()
    host.settle(first, Verb.RELEASE, (0, 1))
    host.do(*host.dispatch.consumers.detach(first))
    host.attach(queue, "b", automatic=True)
    assert host.run() == [("b", 0, 2), ("b", 1, 2)]
    host.flush()
    assert pending(group_of(queue)) == []
    assert queue.start == 2


def test_claims_under_way_are_not_given_twice_to_an_automatic_consumer() -> None:
    host = Host()
    queue = host.declare()
    host.attach(queue, automatic=True)
    host.publish(queue, 2)
    host.hold = True
    assert offsets(host.run()) == [0, 1]
    assert host.dispatch.consumers.counts(queue.id) == (0, 0, 1)
    host.release()
    assert host.run() == []
    assert group_of(queue).cursor == 2


# Taking


def test_a_taking_consumer_is_given_what_it_asks_for() -> None:
    host = Host()
    queue = host.declare()
    consumer = host.attach(queue, taking=True)
    host.publish(queue, 3)
    assert host.run() == []
    assert take(host, consumer) == [("m", 0, 1)]
    assert host.run() == []
    assert host.dispatch.consumers.counts(queue.id) == (2, 1, 0)
    host.flush()
    assert host.dispatch.consumers.counts(queue.id) == (2, 1, 0)
    host.settle(consumer, Verb.RELEASE, (0, 0))
    assert host.dispatch.consumers.counts(queue.id) == (3, 0, 0)
    assert take(host, consumer) == [("m", 0, 2)]
    assert take(host, consumer) == [("m", 1, 1)]


def test_an_automatic_taking_consumer_needs_no_room() -> None:
    host = Host()
    queue = host.declare()
    consumer = host.attach(queue, taking=True, automatic=True, limit=1)
    host.publish(queue, 2)
    assert [take(host, consumer), take(host, consumer)] == [[("m", 0, 1)], [("m", 1, 1)]]
    assert take(host, consumer) == []
    host.flush()
    assert queue.start == 2


def test_whether_a_message_may_yet_be_found() -> None:
    host = Host()
    queue = host.declare()
    consumer, proposals = host.dispatch.consumers.attach(
        queue.id, ConsumerTerms("g", "m", taking=True)
    )
    assert host.dispatch.consumers.may_give(consumer), "it has not begun"
    host.do(*proposals)
    host.run()
    assert not host.dispatch.consumers.may_give(consumer)
    host.publish(queue, 1)
    assert host.dispatch.consumers.may_give(consumer)
    assert take(host, consumer) == [("m", 0, 1)]
    assert not host.dispatch.consumers.may_give(consumer)
    host.do(*host.dispatch.consumers.detach(consumer))
    assert not host.dispatch.consumers.may_give(consumer)


# Exclusive


@pytest.mark.parametrize(("first", "second"), [(True, False), (False, True), (True, True)])
def test_an_exclusive_consumer_is_the_only_one(first: bool, second: bool) -> None:
    host = Host()
    queue = host.declare()
    consumer = host.attach(queue, "a", exclusive=first)
    with pytest.raises(ExclusiveError):
        host.attach(queue, "b", exclusive=second)
    with pytest.raises(ExclusiveError):
        host.attach(queue, "b", "another group", exclusive=second)
    host.do(*host.dispatch.consumers.detach(consumer))
    host.attach(queue, "b", exclusive=second)


def test_exclusive_use_holds_before_the_consumer_has_joined() -> None:
    host = Host()
    queue = host.declare()
    host.dispatch.consumers.attach(queue.id, ConsumerTerms("g", "a", exclusive=True))
    with pytest.raises(ExclusiveError):
        host.dispatch.consumers.attach(queue.id, ConsumerTerms("g", "b"))


def test_taking_is_not_hindered_by_an_exclusive_consumer() -> None:
    host = Host()
    queue = host.declare()
    host.attach(queue, "taker", taking=True)
    host.attach(queue, "a", exclusive=True)
    host.attach(queue, "taker", taking=True)


def test_a_stopped_consumer_is_no_hindrance() -> None:
    host = Host()
    queue = host.declare()
    consumer = host.attach(queue, "a", exclusive=True)
    host.do(*host.dispatch.consumers.stop(consumer))
    host.attach(queue, "b", exclusive=True)


# Stopping


def test_a_stopped_consumer_keeps_what_it_holds_and_gets_nothing_more() -> None:
    host = Host()
    queue = host.declare()
    consumer = host.attach(queue, limit=2)
    host.publish(queue, 4)
    assert offsets(host.run()) == [0, 1]
    host.do(*host.dispatch.consumers.stop(consumer))
    assert host.dispatch.consumers.stop(consumer) == []
    assert host.settle(consumer, Verb.ACK, (0, 0)) == (1, 0)
    assert host.run() == []
    assert host.dispatch.consumers.counts(queue.id) == (2, 1, 0)
    assert queue.consumers() == 0
    assert host.settle(consumer, Verb.RELEASE, (1, 1)) == (1, 0)
    host.attach(queue, "b")
    assert host.run() == [("b", 1, 2), ("b", 2, 1), ("b", 3, 1)]


# Priority and the single one


def test_of_hungry_consumers_the_highest_priority_is_served_first() -> None:
    host = Host()
    queue = host.declare(claim_batch=1)
    low = host.attach(queue, "low", limit=2)
    high = [host.attach(queue, f"high-{at}", priority=10, limit=2) for at in (1, 2)]
    host.attach(queue, "lowest", limit=9, priority=-5)
    host.publish(queue, 7)
    got = host.run()
    assert sorted(member for member, _, _ in got[:4]) == ["high-1", "high-1", "high-2", "high-2"]
    assert [member for member, _, _ in got[:2]] == ["high-1", "high-2"], "they take turns"
    assert [member for member, _, _ in got[4:]] == ["low", "low", "lowest"]
    host.settle(low, Verb.ACK, (4, 5))
    host.settle(high[1], Verb.ACK, (0, 6))
    host.publish(queue, 3)
    assert [member for member, _, _ in host.run()] == ["high-2", "high-2", "low"]


def test_a_consumer_that_goes_leaves_its_turn() -> None:
    host = Host()
    queue = host.declare()
    gone = host.attach(queue, "gone", priority=1)
    host.attach(queue, "stays")
    host.run()
    host.do(*host.dispatch.consumers.detach(gone))
    host.publish(queue, 1)
    assert host.run() == [("stays", 0, 1)]


def test_a_single_active_consumer_gives_way_when_it_goes_or_stops() -> None:
    host = Host()
    queue = host.declare(single_active_consumer=True)
    consumers = [host.attach(queue, name, limit=2) for name in "abc"]
    taker = host.attach(queue, "taker", taking=True)
    host.publish(queue, 9)
    assert host.run() == [("a", 0, 1), ("a", 1, 1)]
    host.do(*host.dispatch.consumers.stop(consumers[0]))
    assert host.run() == [("b", 2, 1), ("b", 3, 1)]
    host.settle(consumers[0], Verb.ACK, (0, 1))
    assert host.run() == []
    host.do(*host.dispatch.consumers.detach(consumers[1]))
    assert host.run() == [("c", 2, 2), ("c", 3, 2)]
    assert take(host, taker) == [("taker", 4, 1)]


# Temporary groups


def test_a_temporary_group_ends_with_its_consumer() -> None:
    host = Host()
    queue = host.declare(type=QueueType.STREAM)
    consumer = host.attach(queue, mode=Mode.STREAM, temporary=True)
    other = host.attach(queue, mode=Mode.STREAM, temporary=True)
    host.publish(queue, 1)
    assert len(host.run()) == 2
    assert consumer.group_name != other.group_name
    host.do(*host.dispatch.consumers.detach(consumer))
    assert [group.name for group in queue.groups.values()] == [other.group_name]
    host.lead(2)
    host.flush()
    assert queue.groups == {}
    assert other.group_name.startswith(TEMPORARY)


# Counting and deleting


def test_counts_of_a_queue_without_a_group_and_of_a_stream() -> None:
    host = Host()
    queue = host.declare()
    stream = host.declare("s", type=QueueType.STREAM)
    host.publish(queue, 2)
    host.publish(stream, 3)
    host.attach(stream, mode=Mode.STREAM)
    host.run()
    assert host.dispatch.consumers.counts(queue.id) == (2, 0, 0)
    assert host.dispatch.consumers.counts(stream.id) == (3, 0, 1)


def test_counts_while_messages_given_back_are_being_given_again() -> None:
    host = Host()
    queue = host.declare()
    consumer = host.attach(queue, limit=2)
    host.publish(queue, 3)
    host.run()
    host.settle(consumer, Verb.RELEASE, (0, 1))
    host.hold = True
    assert offsets(host.run()) == [0, 1]
    assert host.dispatch.consumers.counts(queue.id) == (1, 2, 1)


def test_a_queue_is_deleted_only_as_asked() -> None:
    host = Host()
    queue = host.declare()
    consumer = host.attach(queue, limit=1)
    host.publish(queue, 3)
    host.run()
    assert host.do(commands.delete(queue.id, if_unused=True)) == [Result(Code.IN_USE, 1)]
    assert host.do(commands.delete(queue.id, if_empty=True)) == [Result(Code.NOT_EMPTY, 2)]
    host.do(*host.dispatch.consumers.stop(consumer))
    assert host.do(commands.delete(queue.id, True, True)) == [Result(Code.NOT_EMPTY, 2)]
    assert host.do(commands.purge(queue.id)) == [Result(Code.OK, 2)]
    assert host.do(commands.delete(queue.id, True, True)) == [Result(Code.OK, 0)]
    assert host.machine.queue("q") is None


def test_a_delete_tells_how_many_messages_were_ready() -> None:
    host = Host()
    queue = host.declare()
    host.publish(queue, 3)
    assert host.do(commands.delete(queue.id)) == [Result(Code.OK, 3)]


def test_use_without_a_consumer_puts_expiry_off() -> None:
    host = Host()
    queue = host.declare(expires=10 * SECOND)
    taker = host.attach(queue, taking=True)
    host.pass_time(9 * SECOND)
    host.do(commands.touch(queue.id))
    host.run()
    host.pass_time(9 * SECOND)
    host.run()
    assert host.machine.queue("q") is queue, "it was used"
    consumer = host.attach(queue)
    host.do(commands.touch(queue.id))
    host.pass_time(60 * SECOND)
    host.run()
    assert queue.idle_since == 0, "it has a consumer"
    host.do(*host.dispatch.consumers.stop(consumer))
    host.pass_time(10 * SECOND)
    host.run()
    host.flush()
    assert host.machine.queue("q") is None, "a taker and a stopped one are no consumers"
    assert host.dispatch.consumers.cancelled() != []
    assert taker.queue_id == queue.id


def test_members_that_do_not_count_are_in_snapshots() -> None:
    host = Host()
    queue = host.declare()
    host.attach(queue, "taker", taking=True)
    host.attach(queue, "member")
    restored = Machine()
    restored.restore(host.machine.snapshot())
    assert restored.snapshot() == host.machine.snapshot()
    copy = restored.queue("q")
    assert copy is not None
    assert copy.consumers() == 1
    assert list(group_of(copy).members.values()) == ["taker", "member"]


def test_the_time_of_a_claim_taken_back_is_the_queues() -> None:
    host = Host()
    queue = host.declare(visibility_timeout=1800 * SECOND)
    host.attach(queue, "slow")
    host.publish(queue, 1)
    host.run()
    host.attach(queue, "other")
    host.pass_time(1800 * SECOND - 1)
    assert host.run() == []
    host.pass_time(CLAIM_GRANULE + 1)
    assert [offset for _, offset, _ in host.run()] == [0]
    assert host.now > NOW


def test_an_automatic_claim_settles_nothing_that_only_waits() -> None:
    host = Host()
    queue = host.declare()
    host.attach(queue, automatic=True)
    later = NOW + 5 * SECOND
    host.do(commands.append(queue.id, batch_of([b"a", b"b"], flags=DELAY, eights=[[0, later]])))
    assert offsets(host.run()) == [0]
    host.flush()
    assert pending(group_of(queue)) == [(1, 1, 0, 0)]
    host.lead(2)
    host.pass_time(5 * SECOND)
    host.attach(queue, automatic=True)
    assert offsets(host.run()) == [1]


def test_single_active_consumers_that_ask_are_told_when_that_changes() -> None:
    host = Host()
    queue = host.declare(single_active_consumer=True)
    first = host.attach(queue, "first", activity=True)
    host.attach(queue, "silent")
    second = host.attach(queue, "second", activity=True)

    def told() -> list[tuple[str, bool]]:
        found = []
        host.flush()
        for queue_id in host.dispatch.due(host.now):
            step = host.dispatch.run(queue_id, host.now, 10)
            host.proposed += step.commands
            found += [(consumer.member, active) for consumer, active in step.activity]
        return found

    assert told() == [("first", True), ("second", False)]
    host.publish(queue, 1)
    assert told() == []
    host.do(*host.dispatch.consumers.stop(first))
    assert told() == [("first", False)], "the one that asks nothing is next"
    host.do(*host.dispatch.consumers.detach(first))
    (silent,) = [
        each for each in host.dispatch.consumers.consumers_of(queue.id) if each.member == "silent"
    ]
    host.do(*host.dispatch.consumers.detach(silent))
    assert told() == [("second", True)]
    assert second.active

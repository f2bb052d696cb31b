"""A queue's limits, what gives way to them, and duplicates."""

from __future__ import annotations

from typing import Any

import pytest

from fluxmq.queues import commands
from fluxmq.queues.commands import Mode, Verb, encode_entry
from fluxmq.queues.config import Overflow, QueueType
from fluxmq.queues.machine import FIRST_VERSION, VERSION, Machine
from fluxmq.queues.results import Code, Result
from tests.unit.queues.claiming import HOLDER, claim, from_producer, settle, started
from tests.unit.queues.support import NOW, SECOND, Host, batch_of, group_of, pending, singles


@pytest.mark.parametrize(
    ("values", "count", "code"),
    [
        ({"max_depth": 12}, 2, Code.OK),
        ({"max_depth": 12}, 3, Code.FULL),
        ({"max_message_size": 1}, 2, Code.OK),
        ({"max_message_size": 1}, 11, Code.TOO_LARGE),
        ({"max_length": 12, "overflow": Overflow.REJECT_PUBLISH}, 2, Code.OK),
        ({"max_length": 12, "overflow": Overflow.REJECT_PUBLISH}, 3, Code.FULL),
        ({"max_length_bytes": 11, "overflow": Overflow.REJECT_PUBLISH}, 1, Code.OK),
        ({"max_length_bytes": 10, "overflow": Overflow.REJECT_PUBLISH}, 1, Code.FULL),
        ({"type": QueueType.STREAM, "max_depth": 3}, 9, Code.OK),
    ],
)
@pytest.mark.parametrize("grouped", [True, False])
def test_limits_refuse_a_publish(
    values: dict[str, Any], count: int, code: Code, grouped: bool
) -> None:
    host = Host()
    queue = host.declare(**values)
    if grouped:
        host.do(commands.create_group(queue.id, "g"))
    host.publish(queue, 10)
    assert host.publish(queue, count)[0].code == code
    assert queue.next_offset == 10 + (count if code == Code.OK else 0)


def test_depth_counts_what_the_slowest_group_has_not_settled() -> None:
    host, queue = started(10, max_depth=10)
    host.do(commands.create_group(queue.id, "slow"))
    claim(host, queue, 0, 9)
    settle(host, queue, Verb.ACK, (0, 9))
    assert host.publish(queue, 1)[0].code == Code.FULL
    host.do(commands.delete_group(queue.id, 2))
    assert host.publish(queue, 10)[0].code == Code.OK


# --- giving way ------------------------------------------------------------------------------------------------


def test_the_oldest_ready_messages_give_way_and_held_ones_do_not() -> None:
    host, queue = started(10, max_length=5)
    group = group_of(queue)
    assert (group.cursor, queue.start) == (5, 5)
    claim(host, queue, 5, 7)
    settle(host, queue, Verb.RELEASE, (6, 6))
    host.publish(queue, 4)  # ready: 6, 8, 9 and four new ones
    assert pending(group) == [(5, 5, HOLDER, 1), (7, 7, HOLDER, 1)]
    assert (group.cursor, queue.start) == (9, 5)


def test_bytes_of_payloads_give_way_message_by_message() -> None:
    host, queue = started(0, max_length_bytes=300)
    host.do(commands.append(queue.id, batch_of([b"x" * 50] * 9)))
    assert (queue.start, queue.next_offset) == (3, 9)
    host.do(commands.append(queue.id, batch_of([b"x"] * 49)))
    assert queue.start == 4
    host.do(commands.append(queue.id, singles([b"x"])[0]))
    assert queue.start == 4
    host.do(commands.append(queue.id, singles([b"x" * 301])[0]))
    assert queue.start == queue.next_offset, (
        "one that is larger than the limit does not stay either"
    )


def test_bytes_that_consumers_hold_do_not_count() -> None:
    host, queue = started(0, max_length_bytes=100)
    host.do(commands.append(queue.id, batch_of([b"x" * 50] * 2)))
    claim(host, queue, 0, 1)
    host.do(commands.append(queue.id, batch_of([b"x" * 50] * 3)))
    group = group_of(queue)
    assert (group.cursor, group.ready(5)) == (3, 2)
    settle(host, queue, Verb.RELEASE, (1, 1))
    assert pending(group) == [(0, 0, HOLDER, 1)], "what came back was the oldest, and is too much"
    settle(host, queue, Verb.ACK, (0, 0))
    assert (queue.start, group.ready(5)) == (3, 2)


def test_what_comes_back_is_too_much_as_well() -> None:
    host, queue = started(2, max_length=2)
    claim(host, queue, 0, 1)
    host.publish(queue, 2)
    group = group_of(queue)
    assert group.ready(4) == 2
    settle(host, queue, Verb.RELEASE, (0, 0))
    assert pending(group) == [(1, 1, HOLDER, 1)]
    host.do(commands.leave(queue.id, "g", HOLDER))
    assert (pending(group), queue.start) == ([], 2)


def test_a_publish_is_refused_for_the_bytes_of_ready_payloads() -> None:
    host, queue = started(0, max_length_bytes=100, overflow=Overflow.REJECT_PUBLISH)
    full = singles([b"x" * 50])[0]
    codes = [host.do(commands.append(queue.id, full))[0].code for _ in range(3)]
    assert codes == [Code.OK, Code.OK, Code.FULL]
    claim(host, queue, 0, 0)
    assert host.do(commands.append(queue.id, full))[0].code == Code.OK
    settle(host, queue, Verb.RELEASE, (0, 0))
    assert host.do(commands.append(queue.id, full))[0].code == Code.FULL


def test_version_1_counts_bytes_of_batches_and_leaves_what_comes_back() -> None:
    host = Host()
    host.proposed.clear()  # what raises the version
    queue = host.declare(max_length_bytes=300, max_length=5, message_ttl=0)
    assert host.machine.version == FIRST_VERSION
    host.do(commands.create_group(queue.id, "g"), commands.join(queue.id, "g", HOLDER, "m"))
    for payload in singles([b"x" * 50] * 9):
        host.do(commands.append(queue.id, payload))
    assert queue.size <= 300
    assert 0 < queue.start < 8
    host.do(commands.append(queue.id, singles([b"x" * 5_000])[0]))
    assert (queue.start, queue.next_offset) == (9, 10)
    claim(host, queue, 9, 9)
    host.do(commands.append(queue.id, singles([b"x"])[0]))
    settle(host, queue, Verb.RELEASE, (9, 9))
    assert group_of(queue).ready(11) == 2
    restored = Machine()
    restored.restore(host.machine.snapshot())
    assert (restored.version, restored.queues[queue.id].exact) == (FIRST_VERSION, False)
    host.do(commands.raise_version(VERSION))
    assert queue.exact
    restored.restore(host.machine.snapshot())
    assert (restored.version, restored.queues[queue.id].exact) == (VERSION, True)
    assert restored.snapshot() == host.machine.snapshot()


@pytest.mark.parametrize("kind", [QueueType.CLASSIC, QueueType.STREAM])
def test_retention_forgets_whoever_lags(kind: QueueType) -> None:
    host, queue = started(0, type=kind, retention_messages=25)
    for _ in range(5):
        host.publish(queue, 10)
    assert (queue.start, group_of(queue).cursor, host.trims[-1]) == (25, 25, (1, 25))


def test_retention_by_bytes_keeps_the_newest() -> None:
    host, queue = started(0, retention_bytes=500)
    for _ in range(20):
        host.publish(queue, 10)
    assert 0 < queue.size <= 500


def test_retention_by_age_is_a_sweeps_matter() -> None:
    host, queue = started(0, retention_age=10 * SECOND)
    host.publish(queue, 10)
    host.pass_time(9 * SECOND)
    host.publish(queue, 10)
    host.do(commands.sweep(queue.id))
    assert queue.start == 0
    host.pass_time(SECOND)
    host.do(commands.sweep(queue.id))
    assert queue.start == 10
    host.pass_time(9 * SECOND)
    host.do(commands.sweep(queue.id))
    assert queue.start == 20


def test_a_claim_under_way_while_messages_give_way_takes_what_is_left() -> None:
    host, queue = started(10, max_length=10)
    append = commands.append(queue.id, batch_of([b"x"] * 4))
    given = commands.claim(queue.id, 1, HOLDER, 0, 6, [(0, 5)])
    assert host.do(append, given)[1] == Result(Code.OK, 2)
    assert pending(group_of(queue)) == [(4, 5, HOLDER, 1)]


def test_a_queue_without_groups_keeps_everything() -> None:
    host = Host()
    queue = host.declare()
    for _ in range(5):
        host.publish(queue, 10)
        host.pass_time(3600 * SECOND)
        host.do(commands.sweep(queue.id))
    assert (queue.start, queue.next_offset, host.trims) == (0, 50, [])


def test_the_last_group_leaves_what_it_had_not_taken() -> None:
    host, queue = started()
    claim(host, queue, 0, 4)
    settle(host, queue, Verb.ACK, (0, 4))
    host.do(commands.delete_group(queue.id, 1))
    assert (queue.start, queue.next_offset) == (5, 10)
    host.do(commands.create_group(queue.id, "new"))
    assert group_of(queue, "new").cursor == 5


def test_the_slowest_work_group_decides_and_readers_do_not() -> None:
    host, queue = started()
    host.do(commands.create_group(queue.id, "slow"))
    host.do(commands.create_group(queue.id, "reader", Mode.STREAM))
    claim(host, queue, 0, 9)
    settle(host, queue, Verb.ACK, (0, 9))
    assert queue.start == 0
    host.do(commands.delete_group(queue.id, 2))
    assert (queue.start, group_of(queue, "reader").cursor) == (10, 10)


def test_a_streams_groups_hold_nothing_back_and_take_nothing_away() -> None:
    host = Host()
    queue = host.declare(type=QueueType.STREAM)
    host.publish(queue, 10)
    host.do(commands.create_group(queue.id, "g", Mode.STREAM))
    assert host.do(commands.commit(queue.id, 1, 10))[0] == Result(Code.OK, 10)
    assert (queue.start, group_of(queue).cursor) == (0, 10)
    assert host.do(commands.commit(queue.id, 1, 3))[0] == Result(Code.OK, 10)
    assert host.do(commands.commit(queue.id, 1, 11))[0].code == Code.OUT_OF_RANGE


def test_purging_drops_what_is_ready_only() -> None:
    host, queue = started()
    claim(host, queue, 0, 3)
    settle(host, queue, Verb.RELEASE, (1, 1))
    assert host.do(commands.purge(queue.id))[0] == Result(Code.OK, 7)
    assert pending(group_of(queue)) == [(0, 0, 7, 1), (2, 3, 7, 1)]
    assert group_of(queue).cursor == 10


def test_an_operator_may_trim() -> None:
    host, queue = started()
    claim(host, queue, 0, 5)
    assert host.do(commands.trim(queue.id, 4))[0] == Result(Code.OK, 4)
    assert pending(group_of(queue)) == [(4, 5, HOLDER, 1)]
    assert host.do(commands.trim(queue.id, 400))[0] == Result(Code.OK, 10)


# --- duplicates ------------------------------------------------------------------------------------------------


def test_a_repeated_batch_is_answered_and_stored_once() -> None:
    host, queue = started(0)
    first = host.do(commands.append(queue.id, from_producer(5, 1, 2, 3)))[0]
    again = host.do(commands.append(queue.id, from_producer(5, 1, 2, 3)))[0]
    assert (first.code, again.code, again.ok) == (Code.OK, Code.DUPLICATE, True)
    assert queue.next_offset == 3


def test_of_a_batch_repeated_in_part_the_rest_is_stored() -> None:
    host, queue = started(0)
    host.do(commands.append(queue.id, from_producer(5, 1, 2)))
    result = host.do(commands.append(queue.id, from_producer(5, 2, 3, 3, 4)))[0]
    assert result == Result(Code.OK, 2)
    stored = [batch.payload(index) for batch in host.log[1] for index in range(batch.count)]
    assert stored == [b"1", b"2", b"3", b"4"]


def test_a_refused_batch_is_not_remembered() -> None:
    host, queue = started(0, max_depth=1)
    assert host.do(commands.append(queue.id, from_producer(5, 1, 2)))[0].code == Code.FULL
    assert host.do(commands.append(queue.id, from_producer(5, 1)))[0].code == Code.OK


def test_duplicates_are_known_after_a_snapshot() -> None:
    host, queue = started(0)
    host.do(commands.append(queue.id, from_producer(5, 1, 2)))
    again = Machine()
    again.restore(host.machine.snapshot())
    entry = encode_entry(NOW, [commands.append(queue.id, from_producer(5, 1, 2))])
    assert again.apply(99, 1, entry).results == [Result(Code.DUPLICATE)]

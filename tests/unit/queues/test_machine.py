"""The machine rule by rule: commands go in, results and effects come out."""

from __future__ import annotations

import msgpack  # type: ignore[import-untyped]
import pytest

from fluxmq.queues import commands
from fluxmq.queues.commands import FIRST, LAST, NEXT, DeadLetterReason, Mode, Verb, encode_entry
from fluxmq.queues.config import QueueConfig, QueueType, ephemeral
from fluxmq.queues.limits import CLAIM_GRANULE
from fluxmq.queues.machine import Machine, SnapshotError
from fluxmq.queues.results import Code, Result
from fluxmq.queues.states import QueueState
from tests.unit.queues.claiming import HOLDER, OTHER, claim, from_producer, settle, started
from tests.unit.queues.support import (
    NOW,
    SECOND,
    Host,
    batch_of,
    group_of,
    pending,
)

# --- queues and appends ----------------------------------------------------------------------------------------


def test_offsets_count_up_and_are_never_reused() -> None:
    host, queue = started(0)
    assert [host.publish(queue, 3)[0].value for _ in range(3)] == [0, 3, 6]
    host.do(commands.purge(queue.id))
    assert host.publish(queue, 1)[0] == Result(Code.OK, 9)
    assert [batch.base_offset for batch in host.log[queue.id]] == [0, 3, 6, 9]


def test_batches_are_stamped_with_offset_time_and_term() -> None:
    host, queue = started(0)
    host.term = 5
    host.pass_time(77)
    host.publish(queue, 2)
    host.publish(queue, 2)
    batch = host.log[queue.id][1]
    assert (batch.base_offset, batch.base_time, batch.term) == (2, NOW + 77, 5)


def test_time_never_goes_back() -> None:
    host, queue = started(0)
    host.publish(queue, 1)
    host.pass_time(-50 * SECOND)
    host.publish(queue, 1)
    assert host.log[queue.id][1].base_time == NOW


def test_declaring_again_changes_the_configuration_but_not_the_type() -> None:
    host, queue = started()
    assert host.do(commands.declare(QueueConfig("q", max_depth=3)))[0] == Result(Code.EXISTS, 1)
    assert queue.config.max_depth == 3
    stream = QueueConfig("q", QueueType.STREAM)
    assert host.do(commands.declare(stream))[0].code == Code.CONFLICT
    assert queue.next_offset == 10


def test_a_deleted_queue_is_gone_with_what_the_entry_stored() -> None:
    host, queue = started()
    entry = [commands.append(queue.id, batch_of([b"x"])), commands.delete(queue.id)]
    applied = host.machine.apply(99, 1, encode_entry(NOW, entry))
    assert (applied.deleted, applied.batches) == ([(1, "q")], [])
    assert host.machine.queue("q") is None
    assert host.machine.queues == {}


# --- claims ----------------------------------------------------------------------------------------------------


def test_a_claim_moves_the_cursor_and_is_pending_as_one_range() -> None:
    host, queue = started()
    assert claim(host, queue, 0, 3) == Result(Code.OK, 4)
    assert claim(host, queue, 4, 5) == Result(Code.OK, 2)
    assert pending(group_of(queue)) == [(0, 5, HOLDER, 1)]
    assert group_of(queue).cursor == 6


def test_what_a_claim_passes_over_is_settled() -> None:
    host, queue = started()
    host.do(commands.claim(queue.id, 1, HOLDER, 0, 10, [(2, 3), (6, 6)]))
    assert pending(group_of(queue)) == [(2, 3, HOLDER, 1), (6, 6, HOLDER, 1)]
    assert queue.start == 2


@pytest.mark.parametrize(
    ("holder", "cursor", "target", "ranges"),
    [
        (HOLDER, 1, 5, [(1, 4)]),  # skips a message
        (HOLDER, 0, 11, [(0, 10)]),  # beyond the end
        (HOLDER, 3, 2, [(0, 1)]),
        (99, 0, 5, [(0, 4)]),  # no member
        (HOLDER, 0, 5, [(0, 3), (3, 4)]),  # overlapping
    ],
)
def test_a_claim_that_does_not_fit_claims_nothing(
    holder: int, cursor: int, target: int, ranges: list[tuple[int, int]]
) -> None:
    host, queue = started()
    result = host.do(commands.claim(queue.id, 1, holder, cursor, target, ranges))[0]
    assert result.code == Code.STALE
    assert (group_of(queue).cursor, pending(group_of(queue))) == (0, [])


def test_what_is_held_cannot_be_claimed_before_its_deadline() -> None:
    host, queue = started()
    claim(host, queue, 0, 9)
    assert claim(host, queue, 0, 9, OTHER, 10).value == 0
    host.pass_time(queue.config.visibility_timeout)
    assert claim(host, queue, 0, 9, OTHER, 10).value == 0
    host.pass_time(CLAIM_GRANULE)
    assert claim(host, queue, 2, 4, OTHER, 10).value == 3
    assert pending(group_of(queue)) == [(0, 1, 7, 1), (2, 4, 8, 2), (5, 9, 7, 1)]


def test_an_overdue_claim_may_come_back_to_the_same_consumer() -> None:
    host, queue = started()
    claim(host, queue, 0, 0)
    host.pass_time(queue.config.visibility_timeout + CLAIM_GRANULE)
    assert claim(host, queue, 0, 0, HOLDER, 1).value == 1
    assert pending(group_of(queue)) == [(0, 0, HOLDER, 2)]


def test_delayed_messages_wait_and_expired_ones_die() -> None:
    host, queue = started(dead_letter=True)
    others = [(3, 4, NOW + SECOND), (7, 7, -1)]
    host.do(commands.claim(queue.id, 1, HOLDER, 0, 10, [(0, 2), (5, 6), (8, 9)], others))
    group = group_of(queue)
    assert pending(group) == [(0, 2, 7, 1), (3, 4, 0, 0), (5, 6, 7, 1), (8, 9, 7, 1)]
    assert [(each.first, each.state.reason) for each in group.dead] == [
        (7, DeadLetterReason.EXPIRED)
    ]
    assert claim(host, queue, 3, 4, HOLDER, 10).value == 0
    host.pass_time(SECOND)
    assert claim(host, queue, 3, 4, HOLDER, 10).value == 2
    assert pending(group)[1] == (3, 4, HOLDER, 1)


# --- settling --------------------------------------------------------------------------------------------------


def test_acknowledged_messages_are_gone_and_the_floor_follows() -> None:
    host, queue = started()
    claim(host, queue, 0, 9)
    assert settle(host, queue, Verb.ACK, (4, 6)) == Result(Code.OK, 3)
    assert (group_of(queue).floor, queue.start) == (0, 0)
    assert settle(host, queue, Verb.ACK, (0, 3)) == Result(Code.OK, 4)
    assert (group_of(queue).floor, queue.start) == (7, 7)
    assert host.trims == [(1, 7)]


def test_the_floor_never_passes_a_pending_range() -> None:
    host, queue = started()
    claim(host, queue, 0, 9)
    settle(host, queue, Verb.ACK, (1, 9))
    assert (group_of(queue).floor, queue.start, host.trims) == (0, 0, [])


def test_only_the_holder_settles() -> None:
    host, queue = started()
    claim(host, queue, 0, 4)
    claim(host, queue, 5, 9, OTHER)
    assert settle(host, queue, Verb.ACK, (3, 6)) == Result(Code.NOT_PENDING, 2)
    assert pending(group_of(queue)) == [(0, 2, HOLDER, 1), (5, 9, OTHER, 1)]


def test_nobody_settles_what_waits() -> None:
    host, queue = started()
    claim(host, queue, 0, 0)
    settle(host, queue, Verb.RELEASE, (0, 0))
    for verb in Verb:
        assert settle(host, queue, verb, (0, 0), holder=0) == Result(Code.NOT_PENDING, 0)
    assert pending(group_of(queue)) == [(0, 0, 0, 1)]


def test_a_settlement_after_a_transfer_does_nothing() -> None:
    host, queue = started(dead_letter=True)
    claim(host, queue, 0, 0)
    host.pass_time(queue.config.visibility_timeout + CLAIM_GRANULE)
    claim(host, queue, 0, 0, OTHER, 1)
    for verb in Verb:
        assert settle(host, queue, verb, (0, 0)) == Result(Code.NOT_PENDING, 0)
    assert pending(group_of(queue)) == [(0, 0, OTHER, 2)]


@pytest.mark.parametrize(("delay", "due"), [(-1, 5 * SECOND), (0, 0), (90, 90)])
def test_a_nack_waits_for_its_back_off_or_delay(delay: int, due: int) -> None:
    host, queue = started()
    claim(host, queue, 0, 0)
    settle(host, queue, Verb.NACK, (0, 0), delay=delay)
    assert [each.state.due for each in group_of(queue).pending] == [NOW + due]
    host.pass_time(due - 1)
    assert claim(host, queue, 0, 0, HOLDER, 1).value == (1 if due == 0 else 0) or due == 0
    host.pass_time(1)
    claim(host, queue, 0, 0, HOLDER, 1)
    assert pending(group_of(queue)) == [(0, 0, HOLDER, 2)]


def test_a_release_waits_for_nobody_and_counts_as_a_delivery() -> None:
    host, queue = started()
    claim(host, queue, 0, 3)
    settle(host, queue, Verb.RELEASE, (1, 2))
    assert claim(host, queue, 1, 2, OTHER, 4).value == 2
    assert pending(group_of(queue)) == [(0, 0, 7, 1), (1, 2, 8, 2), (3, 3, 7, 1)]


def test_leaving_releases_everything_held() -> None:
    host, queue = started()
    claim(host, queue, 0, 3)
    claim(host, queue, 4, 5, OTHER)
    assert host.do(commands.leave(queue.id, "g", HOLDER))[0] == Result(Code.OK, 4)
    assert pending(group_of(queue)) == [(0, 3, 0, 1), (4, 5, OTHER, 1)]
    assert host.do(commands.leave(queue.id, "g", HOLDER))[0].code == Code.NOT_PENDING


# --- dead letters ----------------------------------------------------------------------------------------------


def kill(host: Host, queue: QueueState, reason: DeadLetterReason) -> None:
    """Let message 0 die."""
    if reason == DeadLetterReason.MAX_LENGTH:
        host.publish(queue, 1)
        return
    if reason == DeadLetterReason.EXPIRED:
        host.do(commands.claim(queue.id, 1, 0, 0, 1, [], [(0, 0, -1)]))
        return
    claim(host, queue, 0, 0)
    if reason == DeadLetterReason.REJECTED:
        settle(host, queue, Verb.REJECT, (0, 0), reason=b"bad")
    elif reason == DeadLetterReason.MAX_RETRIES:
        settle(host, queue, Verb.NACK, (0, 0))
    else:
        settle(host, queue, Verb.RELEASE, (0, 0))


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("reason", [each for each in DeadLetterReason if each])
def test_the_dead_stay_until_their_append_is_committed(
    reason: DeadLetterReason, enabled: bool
) -> None:
    host, queue = started(1, dead_letter=enabled, max_retries=0, delivery_limit=1, max_length=1)
    kill(host, queue, reason)
    group = group_of(queue)
    dead = [(each.first, each.last, each.state.reason) for each in group.dead]
    assert dead == ([(0, 0, reason)] if enabled else [])
    assert pending(group) == []
    assert queue.start == 1
    if not enabled:
        assert host.trims == [(1, 1)]
        return
    assert host.trims == []
    assert [each.state.text for each in group.dead] == [b"bad" if reason == 1 else b""]
    assert host.do(commands.dead_lettered(queue.id, 1, [(0, 0)]))[0] == Result(Code.OK, 1)
    assert host.trims == [(1, 1)]
    assert host.do(commands.dead_lettered(queue.id, 1, [(0, 0)]))[0] == Result(Code.OK, 0)


def test_a_message_is_offered_again_max_retries_times() -> None:
    host, queue = started(1, dead_letter=True, max_retries=2)
    claim(host, queue, 0, 0)
    for attempts in (1, 2):
        settle(host, queue, Verb.NACK, (0, 0), delay=0)
        assert pending(group_of(queue)) == [(0, 0, 0, attempts)]
        claim(host, queue, 0, 0, HOLDER, 1)
    settle(host, queue, Verb.NACK, (0, 0), delay=0)
    assert [each.state.attempts for each in group_of(queue).dead] == [3]


def test_a_message_is_delivered_up_to_the_limit() -> None:
    host, queue = started(1, dead_letter=True, delivery_limit=3)
    claim(host, queue, 0, 0)
    for _ in range(2):
        host.pass_time(queue.config.visibility_timeout + CLAIM_GRANULE)
        assert claim(host, queue, 0, 0, OTHER, 1).value == 1
    host.pass_time(queue.config.visibility_timeout + CLAIM_GRANULE)
    assert claim(host, queue, 0, 0, OTHER, 1).value == 0
    dead_letter = commands.dead_letter(queue.id, 1, DeadLetterReason.DELIVERY_LIMIT, [(0, 0)])
    assert host.do(dead_letter)[0] == Result(Code.OK, 1)
    state = next(iter(group_of(queue).dead)).state
    assert (state.attempts, state.first_time, state.reason) == (
        3,
        NOW,
        DeadLetterReason.DELIVERY_LIMIT,
    )
    assert state.last_time > state.first_time


@pytest.mark.parametrize("reason", [DeadLetterReason.EXPIRED, DeadLetterReason.DELIVERY_LIMIT])
def test_nothing_held_or_below_the_limit_is_buried(reason: DeadLetterReason) -> None:
    host, queue = started(1, dead_letter=True, delivery_limit=5)
    claim(host, queue, 0, 0)
    result = host.do(commands.dead_letter(queue.id, 1, reason, [(0, 0)]))[0]
    assert result == Result(Code.NOT_PENDING, 0)
    assert pending(group_of(queue)) == [(0, 0, HOLDER, 1)]


def test_the_dead_of_a_queue_without_groups_are_its_own() -> None:
    host = Host()
    queue = host.declare(max_length=2, dead_letter=True)
    host.publish(queue, 5)
    assert (queue.start, queue.kept, queue.next_offset) == (3, 0, 5)
    assert [(each.first, each.last) for each in queue.nobodys.dead] == [(0, 2)]
    host.do(commands.dead_lettered(queue.id, 0, [(0, 2)]))
    assert host.trims == [(1, 3)]


# --- groups, seeking, expiry -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "cursor"),
    [(FIRST, 4), (LAST, 9), (NEXT, 10), ((3, 6), 6), ((3, 0), 4), ((3, 99), 10)],
)
def test_positions_lie_inside_of_the_log(start: tuple[int, int], cursor: int) -> None:
    host, queue = started()
    host.do(commands.trim(queue.id, 4))
    host.do(commands.create_group(queue.id, "new", start=start))
    assert group_of(queue, "new").cursor == cursor
    assert host.do(commands.seek(queue.id, 1, start))[0] == Result(Code.OK, cursor)
    assert group_of(queue).cursor == cursor


def test_seeking_forgets_what_was_pending_but_not_the_dead() -> None:
    host, queue = started(dead_letter=True)
    host.do(commands.create_group(queue.id, "keeps"))
    claim(host, queue, 0, 5)
    settle(host, queue, Verb.REJECT, (1, 1))
    host.do(commands.seek(queue.id, 1, FIRST))
    assert (pending(group_of(queue)), group_of(queue).dead.count) == ([], 1)
    claim(host, queue, 0, 5)
    settle(host, queue, Verb.REJECT, (0, 2))
    assert group_of(queue).dead.count == 3


def test_a_group_has_one_mode_and_filter() -> None:
    host, queue = started()
    for command in (
        commands.create_group(queue.id, "g", Mode.STREAM),
        commands.create_group(queue.id, "g", filter_=b"a"),
    ):
        assert host.do(command)[0] == Result(Code.CONFLICT, 1)
    assert host.do(commands.create_group(queue.id, "g"))[0] == Result(Code.EXISTS, 1)


def test_an_ephemeral_queue_goes_five_minutes_after_its_last_consumer() -> None:
    host = Host()
    host.do(commands.declare(ephemeral("e")))
    queue = host.machine.queues[1]
    host.do(commands.create_group(1, "g"), commands.join(1, "g", HOLDER, "a"))
    host.pass_time(1_000 * SECOND)
    host.do(commands.sweep(1))
    assert host.machine.queue("e") is queue
    host.do(commands.leave(1, "g", HOLDER))
    host.pass_time(300 * SECOND - 1)
    host.do(commands.sweep(1))
    assert host.machine.queue("e") is queue
    host.pass_time(1)
    host.do(commands.sweep(1))
    assert host.machine.queue("e") is None


@pytest.mark.parametrize(("configured", "stays"), [(0, True), (60 * SECOND, False)])
def test_abandoned_groups_go_only_where_that_is_configured(configured: int, stays: bool) -> None:
    host, queue = started(group_expires=configured)
    host.do(commands.leave(1, "g", HOLDER), commands.leave(1, "g", OTHER))
    host.pass_time(60 * SECOND)
    host.do(commands.sweep(1))
    assert (queue.group("g") is not None) is stays


# --- snapshots -------------------------------------------------------------------------------------------------


def test_restoring_a_snapshot_gives_the_same_snapshot() -> None:
    host, queue = started(dead_letter=True, max_length=50)
    claim(host, queue, 0, 6)
    settle(host, queue, Verb.REJECT, (1, 2), reason=b"why")
    settle(host, queue, Verb.NACK, (4, 4))
    host.do(commands.append(queue.id, from_producer(5, 1, 3)))
    content = host.machine.snapshot()
    machine = Machine()
    machine.restore(content)
    assert machine.snapshot() == content
    assert machine.state_hash() == host.machine.state_hash()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xc1",
        msgpack.packb(5),
        msgpack.packb([9, 1]),
        msgpack.packb([1, 2, 3]),
        msgpack.packb([1, 99, 0, 0, 1, 0, []]),
    ],
)
def test_what_is_not_a_snapshot_is_refused_and_changes_nothing(content: bytes) -> None:
    host, _ = started()
    before = host.machine.snapshot()
    with pytest.raises(SnapshotError):
        host.machine.restore(content)
    assert host.machine.snapshot() == before


def test_a_backlog_costs_nothing_per_message() -> None:
    host, queue = started(0, max_depth=1 << 40)
    batch = batch_of([b"x"] * 4_000)
    for _ in range(250):
        host.do(*[commands.append(queue.id, batch)] * 10)
        host.log[1].clear()
    assert queue.next_offset == 10_000_000
    assert len(host.machine.snapshot()) < 100_000


def test_the_hash_tells_machines_apart() -> None:
    one, queue = started()
    two, _ = started()
    assert one.machine.state_hash() == two.machine.state_hash()
    claim(one, queue, 0, 1)
    claim(two, two.machine.queues[1], 0, 2)
    assert one.machine.state_hash() != two.machine.state_hash()

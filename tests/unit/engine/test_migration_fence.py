"""Appends to a queue that moves are held up, and taken in the order in which they were made if it stays."""

from __future__ import annotations

from fluxmq.engine.migration_fence import MigrationFence
from fluxmq.queues.config import QueueConfig
from fluxmq.queues.origins import Identity
from fluxmq.queues.states import QueueState


def queue() -> QueueState:
    return QueueState(1, QueueConfig("q"), 1, 0)


def test_nothing_passes_an_append_that_was_held_up() -> None:
    migration_fence, state = MigrationFence(), queue()
    state.closed = True
    assert migration_fence.holds("q", state, Identity(7, 20, 10))
    assert migration_fence.holds("q", state, Identity(7, 30, 10))
    state.closed = False
    assert migration_fence.busy
    assert migration_fence.holds(
        "q", state, Identity(7, 30, 10)
    )  # it was under way when the queue opened
    assert not migration_fence.holds("q", state, Identity(8, 5, 5))  # another shard's
    assert not migration_fence.holds("q", state, Identity(7, 20, 10))
    assert not migration_fence.holds("q", state, Identity(7, 30, 20))
    assert not migration_fence.busy


def test_one_that_was_given_up_is_not_waited_for() -> None:
    migration_fence, state = MigrationFence(), queue()
    state.closed = True
    assert migration_fence.holds("q", state, Identity(7, 20, 10))
    state.closed = False
    assert not migration_fence.holds("q", state, Identity(7, 30, 30))


def test_nothing_is_remembered_of_a_queue_that_is_deleted() -> None:
    """Review finding 18: an append that was held up and never comes again left its name."""
    migration_fence, state = MigrationFence(), queue()
    state.closed = True
    for name in ("q", "other"):
        assert migration_fence.holds(name, state, Identity(7, 20, 10))
    migration_fence.forget("q")
    state.closed = False
    assert not migration_fence.holds("q", state, Identity(7, 30, 10))
    assert migration_fence.holds("other", state, Identity(7, 30, 10))


def test_a_fence_under_way_holds_appends_up() -> None:
    migration_fence, state = MigrationFence(), queue()
    migration_fence.fencing.add("q")
    assert migration_fence.holds("q", state, Identity(7, 20, 10))
    assert migration_fence.holds("q", state, None)
    migration_fence.clear()
    assert not migration_fence.holds("q", state, Identity(7, 30, 10))


def test_a_queue_that_is_in_another_group_is_asked_for_there() -> None:
    migration_fence = MigrationFence()
    assert not migration_fence.holds("q", None, Identity(7, 20, 10))
    migration_fence.moved_away = lambda name: name == "q"
    assert migration_fence.holds("q", None, Identity(7, 20, 10))
    assert not migration_fence.holds("other", None, Identity(7, 20, 10))
    assert not migration_fence.busy

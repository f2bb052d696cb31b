"""Appends to a queue that moves are held up, and taken in the order in which they were made if it stays."""

from __future__ import annotations

from fluxmq.engine.gates import Gate
from fluxmq.queues.config import QueueConfig
from fluxmq.queues.origins import Identity
from fluxmq.queues.states import Queue


def queue() -> Queue:
    return Queue(1, QueueConfig("q"), 1, 0)


def test_nothing_passes_an_append_that_was_held_up() -> None:
    gate, state = Gate(), queue()
    state.closed = True
    assert gate.holds("q", state, Identity(7, 20, 10))
    assert gate.holds("q", state, Identity(7, 30, 10))
    state.closed = False
    assert gate.busy
    assert gate.holds("q", state, Identity(7, 30, 10))  # it was under way when the queue opened
    assert not gate.holds("q", state, Identity(8, 5, 5))  # another shard's
    assert not gate.holds("q", state, Identity(7, 20, 10))
    assert not gate.holds("q", state, Identity(7, 30, 20))
    assert not gate.busy


def test_one_that_was_given_up_is_not_waited_for() -> None:
    gate, state = Gate(), queue()
    state.closed = True
    assert gate.holds("q", state, Identity(7, 20, 10))
    state.closed = False
    assert not gate.holds("q", state, Identity(7, 30, 30))


def test_nothing_is_remembered_of_a_queue_that_is_deleted() -> None:
    """Review finding 18: an append that was held up and never comes again left its name."""
    gate, state = Gate(), queue()
    state.closed = True
    for name in ("q", "other"):
        assert gate.holds(name, state, Identity(7, 20, 10))
    gate.forget("q")
    state.closed = False
    assert not gate.holds("q", state, Identity(7, 30, 10))
    assert gate.holds("other", state, Identity(7, 30, 10))


def test_a_fence_under_way_holds_appends_up() -> None:
    gate, state = Gate(), queue()
    gate.fencing.add("q")
    assert gate.holds("q", state, Identity(7, 20, 10))
    assert gate.holds("q", state, None)
    gate.clear()
    assert not gate.holds("q", state, Identity(7, 30, 10))


def test_a_queue_that_is_in_another_group_is_asked_for_there() -> None:
    gate = Gate()
    assert not gate.holds("q", None, Identity(7, 20, 10))
    gate.moved_away = lambda name: name == "q"
    assert gate.holds("q", None, Identity(7, 20, 10))
    assert not gate.holds("other", None, Identity(7, 20, 10))
    assert not gate.busy

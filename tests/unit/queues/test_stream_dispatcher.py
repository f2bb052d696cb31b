"""Streams: a shared cursor, lazy commits, nothing missed after a restart."""

from __future__ import annotations

from typing import Any

import pytest

from fluxmq.model.batch_format import DELAY
from fluxmq.queues.attachments import CommitError
from fluxmq.queues.commands import Mode, Verb
from fluxmq.queues.config import QueueType
from fluxmq.queues.states import QueueState
from tests.unit.queues.support import NOW, SECOND, Host, group_of, offsets


def stream(host: Host, **values: Any) -> QueueState:
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
    host.do(*host.dispatch.consumers.detach(consumer))
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
    host.do(*host.dispatch.consumers.commit(consumer, 7))
    assert group_of(queue).cursor == 7
    with pytest.raises(CommitError, match="outside"):
        host.dispatch.consumers.commit(consumer, 11)


def test_a_commit_makes_room_for_who_made_it() -> None:
    host = Host()
    queue = stream(host)
    one = host.attach(queue, "one", mode=Mode.STREAM, auto_commit=False, limit=4)
    host.run()
    two = host.attach(queue, "two", mode=Mode.STREAM, auto_commit=False, limit=4)
    assert offsets(host.run(), "two") == [4, 5, 6, 7]
    host.do(*host.dispatch.consumers.commit(one, 0))
    assert host.run() == []
    host.do(*host.dispatch.consumers.commit(one, 3))
    assert host.run() == [("one", 8, 1), ("one", 9, 1)]
    assert (one.unsettled, two.unsettled) == (3, 4)
    assert host.settle(one, Verb.ACK, (2, 3)) == (1, 1)


def test_a_work_group_does_not_commit() -> None:
    host = Host()
    consumer = host.attach(host.declare())
    host.run()
    with pytest.raises(CommitError, match="stream"):
        host.dispatch.consumers.commit(consumer, 0)


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
    host.do(*host.dispatch.consumers.detach(one))
    assert host.run() == [("two", 8, 2), ("two", 9, 2)]


def test_a_subscription_may_set_a_streams_cursor() -> None:
    host = Host()
    queue = stream(host)
    consumer = host.attach(queue, mode=Mode.STREAM, start=(3, 8))
    assert offsets(host.run()) == [8, 9]
    host.do(*host.dispatch.consumers.detach(consumer))
    host.attach(queue, mode=Mode.STREAM, start=(3, 6))
    assert offsets(host.run()) == [6, 7, 8, 9]


def test_a_stream_is_filtered_delayed_and_trimmed() -> None:
    host = Host()
    queue = host.declare("s", type=QueueType.STREAM, retention_messages=6)
    host.publish(queue, 4, keys=[b"a", b"b", b"a", b"b"])
    host.publish(queue, 2, keys=b"a", flags=DELAY, eights=[[NOW + 9, 0]])
    host.attach(queue, mode=Mode.STREAM, filter=b"a")
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

"""Queues with priorities: the highest ready message first, whoever wrote what when, and nothing lost by the sorting."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluxmq.model.message_batch import build_message
from fluxmq.model.properties import Item, PropertyKind, encode
from fluxmq.queues import commands, priorities
from fluxmq.queues.commands import Verb
from fluxmq.queues.consumers import GroupConsumer
from fluxmq.queues.priorities import Bands, priority_of
from fluxmq.queues.states import QueueState
from tests.unit.queues.support import NOW, SECOND, Host, group_of, offsets, pending


def block_of(priority: int | None) -> bytes:
    """A property block; without a priority for None."""
    items = [Item(PropertyKind.CONTENT_TYPE, b"text/plain")]
    return encode(
        [*items, Item(PropertyKind.PRIORITY, priority)] if priority is not None else items
    )


def publish(host: Host, queue: QueueState, *levels: int | None, **values: int) -> None:
    """One message of each priority."""
    for level in levels:
        batch = build_message(b"k", block_of(level), b"x", host.now, **values)
        host.do(commands.append(queue.id, batch))


def one_by_one(host: Host, consumer: GroupConsumer) -> list[int]:
    """Offsets in the order in which a consumer that holds one message gets them."""
    found: list[int] = []
    while got := offsets(host.run()):
        found += got
        host.settle(consumer, Verb.ACK, (got[0], got[-1]))
    return found


@pytest.mark.parametrize("level", [0, 1, 9, 255])
def test_the_priority_of_a_block(level: int) -> None:
    assert priority_of(block_of(level)) == level


@pytest.mark.parametrize("block", [b"", block_of(None), b"\xff\xff", b"\x09\x05"])
def test_a_block_without_a_priority(block: bytes) -> None:
    assert priority_of(block) == 0


def test_the_highest_priority_is_given_first() -> None:
    host = Host()
    queue = host.declare(max_priority=10)
    publish(host, queue, 1, 5, None, 10, 5, 255, 1)
    consumer = host.attach(queue, limit=1)
    assert one_by_one(host, consumer) == [3, 5, 1, 4, 0, 6, 2]
    host.flush()
    assert (queue.start, pending(group_of(queue))) == (7, [])


def test_priorities_mean_nothing_to_other_queues() -> None:
    host = Host()
    queue = host.declare()
    publish(host, queue, 1, 5, 10)
    assert one_by_one(host, host.attach(queue, limit=1)) == [0, 1, 2]


def test_a_higher_one_that_comes_later_passes_those_that_wait() -> None:
    host = Host()
    queue = host.declare(max_priority=10)
    publish(host, queue, 1, 1, 1)
    consumer = host.attach(queue, limit=1)
    assert offsets(host.run()) == [0]
    publish(host, queue, 2)
    host.settle(consumer, Verb.ACK, (0, 0))
    host.run()
    assert host.dispatch.consumers.counts(queue.id) == (2, 1, 1)
    host.settle(consumer, Verb.ACK, (3, 3))
    assert offsets(host.run()) == [1]
    host.settle(consumer, Verb.ACK, (1, 1))
    assert offsets(host.run()) == [2]


def test_a_message_given_back_has_its_place_among_its_equals() -> None:
    host = Host()
    queue = host.declare(max_priority=10)
    publish(host, queue, 1, 1, 5)
    consumer = host.attach(queue, limit=1)
    assert offsets(host.run()) == [2]
    host.settle(consumer, Verb.RELEASE, (2, 2))
    assert host.run() == [("m", 2, 2)]
    host.settle(consumer, Verb.ACK, (2, 2))
    assert host.run() == [("m", 0, 1)]
    host.settle(consumer, Verb.RELEASE, (0, 0))
    publish(host, queue, 3)
    assert offsets(host.run()) == [3]
    host.settle(consumer, Verb.ACK, (3, 3))
    assert host.run() == [("m", 0, 2)]
    host.settle(consumer, Verb.ACK, (0, 0))
    assert host.run() == [("m", 1, 1)]


def test_a_new_leader_sorts_anew() -> None:
    host = Host()
    queue = host.declare(max_priority=10)
    publish(host, queue, 1, 2, 3, 4)
    host.attach(queue, "a", limit=1)
    assert offsets(host.run()) == [3]
    host.flush()
    host.lead(2)
    publish(host, queue, 3)
    consumer = host.attach(queue, "b", limit=1)
    assert one_by_one(host, consumer) == [3, 2, 4, 1, 0]


def test_counts_while_the_cursor_moves_over_what_waits() -> None:
    host = Host()
    queue = host.declare(max_priority=10)
    publish(host, queue, 1, 2, 3)
    taker = host.attach(queue, taking=True)
    host.run()
    host.hold = True
    host.dispatch.consumers.credit(taker, 1)
    assert offsets(host.run()) == [2]
    assert host.dispatch.consumers.counts(queue.id)[0] == 2
    host.dispatch.consumers.credit(taker, 1)
    assert host.run() == []
    assert host.dispatch.consumers.may_give(taker), (
        "the others are to be found when that is applied"
    )
    host.release()
    assert offsets(host.run()) == [1]
    assert host.dispatch.consumers.counts(queue.id)[0] == 1
    assert host.dispatch.consumers.may_give(taker)


def test_expired_and_delayed_messages_of_a_queue_with_priorities() -> None:
    host = Host()
    queue = host.declare(max_priority=10, dead_letter=True)
    publish(host, queue, 1)
    publish(host, queue, 2, expiry_us=NOW + SECOND)
    publish(host, queue, 3, delay_us=NOW + 5 * SECOND)
    publish(host, queue, 4, expiry_us=NOW + 3 * SECOND)
    publish(host, queue, 1)
    consumer = host.attach(queue, limit=1)
    assert offsets(host.run()) == [3]
    host.pass_time(2 * SECOND)
    host.settle(consumer, Verb.ACK, (3, 3))
    assert offsets(host.run()) == [0]
    host.flush()
    host.run()
    assert [first for first, *_ in pending(group_of(queue))] == [0, 2, 4]
    host.pass_time(4 * SECOND)
    host.settle(consumer, Verb.ACK, (0, 0))
    assert offsets(host.run()) == [2]
    assert group_of(queue).dead.count == 1


@pytest.mark.uncompiled
def test_what_is_looked_through_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(priorities, "READY_MAX", 3)
    host = Host()
    queue = host.declare(max_priority=10)
    publish(host, queue, 1, 1, 1, 1, 1, 9)
    consumer = host.attach(queue, limit=1)
    order = one_by_one(host, consumer)
    assert sorted(order) == [0, 1, 2, 3, 4, 5]
    assert order[0] == 0, "the highest was out of sight"
    assert order.index(5) < 5


def test_bands() -> None:
    bands = Bands()
    bands.add(1, 0, 4)
    bands.add(7, 5, 5)
    bands.add(1, 3, 6)
    assert (bands.count, bands.highest()) == (8, (7, (5, 5)))
    bands.remove(7, 5, 5)
    assert bands.highest() == (1, (0, 6))
    bands.remove(1, 0, 5)
    assert (bands.count, bands.highest()) == (1, (1, (6, 6)))
    bands.clear()
    assert not bands


@given(
    st.lists(
        st.one_of(
            st.integers(0, 4).map(lambda level: ("publish", level)),
            st.sampled_from(
                [("ack", 0), ("back", 0), ("hold", 0), ("free", 0), ("lead", 0), ("more", 0)]
            ),
        ),
        max_size=60,
    )
)
def test_nothing_is_lost_nor_doubled_and_no_higher_one_waits(steps: list[tuple[str, int]]) -> None:
    host = Host()
    queue = host.declare(max_priority=3, max_depth=0)
    levels: list[int] = []
    consumers = [host.attach(queue, limit=2)]
    held: dict[int, GroupConsumer] = {}
    done: set[int] = set()

    def tick() -> None:
        host.run()
        for delivery in host.deliveries:
            first = delivery.batch.base_offset + delivery.first
            for offset in range(first, first + delivery.count):
                assert offset not in done, "given again after it was settled"
                assert offset not in held, "given to two"
                held[offset] = delivery.consumer

    for word, level in steps:
        if word == "publish":
            if host.hold:
                continue
            levels.append(min(level, 3))
            publish(host, queue, level)
        elif word in ("ack", "back") and held and not host.hold:
            offset = min(held)
            consumer = held.pop(offset)
            verb = Verb.ACK if word == "ack" else Verb.RELEASE
            assert host.settle(consumer, verb, (offset, offset)) == (1, 0)
            if word == "ack":
                done.add(offset)
        elif word == "hold":
            host.hold = True
        elif word == "free":
            host.release()
        elif word == "more":
            consumers.append(host.attach(queue, limit=1))
        elif word == "lead":
            host.release()
            host.flush()
            held.clear()
            host.lead(host.term + 1)
            consumers = [host.attach(queue, limit=2)]
        tick()
    host.release()
    tick()
    order: list[int] = []
    while held:
        offset, consumer = min(held.items(), key=lambda item: item[0])
        del held[offset]
        host.settle(consumer, Verb.ACK, (offset, offset))
        done.add(offset)
        before = set(held)
        tick()
        order += [offset for offset in held if offset not in before]
    assert done == set(range(len(levels)))
    assert [levels[offset] for offset in order] == sorted(
        (levels[offset] for offset in order), reverse=True
    )

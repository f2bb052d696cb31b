"""What a channel owes: tags become offsets, in ranges, whatever the order of the answers."""

from __future__ import annotations

import time
import weakref
from random import Random
from typing import Any

import pytest

from fluxmq.protocols.amqp091.ledger import RANGE_MAX, SWEEP_MIN, ChannelLedger


def ledger(*given: tuple[object, int, int]) -> ChannelLedger:
    """A ledger of these deliveries."""
    made = ChannelLedger(1)
    for consumer, count, offset in given:
        made.given(consumer, count, offset)
    return made


def test_tags_are_consecutive() -> None:
    made = ChannelLedger(7)
    assert [made.given("a", 3, 10), made.given("b", 1, 99), made.given(None, 5, 0)] == [1, 4, 5]
    assert (made.channel, made.next_tag, made.unsettled) == (7, 10, 4)
    assert made.given("a", 2, 13) == 10
    assert made.all() == [("a", 10, 12), ("b", 99, 99), ("a", 13, 14)]
    assert (made.outstanding(), made.outstanding("a"), made.outstanding("b")) == (6, 5, 1)
    assert made.outstanding("nobody") == 0
    for count in (0, -1):
        with pytest.raises(ValueError, match="no message"):
            made.given("a", count, 1)


def test_acknowledged_in_order_is_one_range() -> None:
    made = ledger(("a", 100, 1000))
    assert all(made.acknowledge(tag, False) for tag in range(1, 51))
    assert made.take_acknowledged() == [("a", 1000, 1049)]
    assert made.take_acknowledged() == []
    assert made.all() == [("a", 1050, 1099)]
    assert made.acknowledge(100, True)
    assert made.take_acknowledged() == [("a", 1050, 1099)]
    assert (made.unsettled, made.outstanding("a"), made.all()) == (0, 0, [])


def test_ranges_given_one_by_one_are_one() -> None:
    made = ledger(*(("a", 1, 50 + number) for number in range(10)))
    assert made.all() == [("a", 50, 59)]
    made.given("a", 1, 61)
    assert made.all() == [("a", 50, 59), ("a", 61, 61)]


def test_disorder_is_merged_when_it_is_taken() -> None:
    made = ledger(("a", 10, 0), ("b", 10, 0))
    for tag in (9, 1, 15, 3, 2, 10, 8, 16):
        assert made.acknowledge(tag, False)
    assert sorted(made.take_acknowledged()) == [("a", 0, 2), ("a", 7, 9), ("b", 4, 5)]
    assert made.all() == [("a", 3, 6), ("b", 0, 3), ("b", 6, 9)]
    made.acknowledge(20, True)
    assert sorted(made.take_acknowledged()) == [("a", 3, 6), ("b", 0, 3), ("b", 6, 9)]


@pytest.mark.parametrize("multiple", [False, True])
@pytest.mark.parametrize("tag", [3, 11, 0xFFFF_FFFF_FFFF_FFFF])
def test_a_tag_that_is_not_outstanding(tag: int, multiple: bool) -> None:
    made = ledger(("a", 5, 0), ("b", 5, 0))
    made.acknowledge(3, False)
    made.take_acknowledged()
    assert not made.acknowledge(tag, multiple)
    assert made.settle(tag, multiple) is None
    assert (made.unsettled, made.take_acknowledged()) == (9, [])


def test_tag_0_is_all_or_nothing() -> None:
    made = ledger(("a", 5, 0), ("b", 5, 0))
    assert not made.acknowledge(0, False)
    assert made.settle(0, False) is None
    assert made.acknowledge(0, True)
    assert made.take_acknowledged() == [("a", 0, 4), ("b", 0, 4)]
    assert made.acknowledge(0, True)
    assert made.settle(0, True) == []


def test_settling_gives_the_ranges_at_once() -> None:
    made = ledger(("a", 5, 10), ("b", 5, 20))
    assert made.settle(2, False) == [("a", 11, 11)]
    assert made.settle(7, True) == [("a", 10, 10), ("a", 12, 14), ("b", 20, 21)]
    assert made.take_acknowledged() == []
    assert made.settle(0, True) == [("b", 22, 24)]


def test_the_mark_is_set_once_until_it_is_taken() -> None:
    marks: list[int] = []
    made = ChannelLedger(1, lambda: marks.append(made.unsettled))
    made.given("a", 10, 0)
    made.settle(1, False)
    assert marks == []
    made.acknowledge(2, False)
    made.acknowledge(5, False)
    assert marks == [8]
    made.take_acknowledged()
    made.acknowledge(10, True)
    assert len(marks) == 2


def test_a_mark_may_take_at_once() -> None:
    taken: list[object] = []
    made = ChannelLedger(1, lambda: taken.extend(made.take_acknowledged()))
    made.given("a", 2, 5)
    made.acknowledge(1, False)
    made.acknowledge(2, False)
    assert taken == [("a", 5, 5), ("a", 6, 6)]


def test_a_forgotten_consumer_is_owed_nothing() -> None:
    made = ledger(("a", 5, 0), ("b", 5, 0), ("a", 5, 5))
    made.acknowledge(1, False)
    made.acknowledge(3, False)
    assert made.forget("a") == [("a", 1, 1), ("a", 3, 4), ("a", 5, 9)]
    assert made.forget("a") == []
    assert (made.unsettled, made.outstanding("a"), made.all()) == (5, 0, [("b", 0, 4)])
    assert sorted(made.take_acknowledged()) == [("a", 0, 0), ("a", 2, 2)]
    # The client does not know: its tags are still good, once.
    assert made.acknowledge(2, False)
    assert not made.acknowledge(2, False)
    assert made.settle(4, False) == []
    assert made.settle(15, True) == [("b", 0, 4)]
    assert (made.unsettled, made.take_acknowledged()) == (0, [])
    assert made.given("a", 1, 50) == 16
    assert made.all() == [("a", 50, 50)]


def test_consumers_are_told_apart_by_identity() -> None:
    one, other = [1], [1]
    made = ledger((one, 1, 0), (other, 1, 0))
    assert made.outstanding(one) == 1
    made.acknowledge(2, True)
    taken = made.take_acknowledged()
    assert [each[0] is one for each in taken] == [True, False]


class Consumer:
    """Whoever gets messages."""


def test_accounts_of_consumers_that_are_owed_nothing_go() -> None:
    made = ChannelLedger(1)
    kept = Consumer()
    made.given(kept, 1, 0)
    seen = []
    for number in range(3 * SWEEP_MIN):
        each = Consumer()
        seen.append(weakref.ref(each))
        made.acknowledge(made.given(each, 1, number), False)
        made.take_acknowledged()
        del each
    assert sum(reference() is not None for reference in seen) <= SWEEP_MIN
    assert made.outstanding(kept) == 1


def test_ranges_are_bounded() -> None:
    made = ledger(("a", 3 * RANGE_MAX + 1, 7))
    assert made.all() == [
        ("a", 7, 6 + RANGE_MAX),
        ("a", 7 + RANGE_MAX, 6 + 2 * RANGE_MAX),
        ("a", 7 + 2 * RANGE_MAX, 6 + 3 * RANGE_MAX),
        ("a", 7 + 3 * RANGE_MAX, 7 + 3 * RANGE_MAX),
    ]
    made.acknowledge(made.next_tag - 1, True)
    assert made.take_acknowledged() == [("a", 7, 7 + 3 * RANGE_MAX)]
    made = ledger(("a", RANGE_MAX - 1, 0), ("a", 3, RANGE_MAX - 1))
    assert made.all() == [("a", 0, RANGE_MAX - 1), ("a", RANGE_MAX, RANGE_MAX + 1)]


def seconds(count: int, order: str, size: int) -> float:
    """Processor time to acknowledge `count` messages given `size` at a time."""
    tags = list(range(1, count + 1))
    if order == "reverse":
        tags.reverse()
    elif order == "disorder":
        Random(1).shuffle(tags)
    made = ChannelLedger(1)
    for number in range(count // size):
        # Never neighbours: each range is its own.
        made.given("a", size, number * 2 * size)
    started = time.process_time()
    for tag in tags:
        assert made.acknowledge(tag, False)
    spent = time.process_time() - started
    assert made.unsettled == 0
    assert sum(last - first + 1 for _, first, last in made.take_acknowledged()) == count
    return spent


@pytest.mark.parametrize("order", ["order", "reverse", "disorder"])
@pytest.mark.parametrize("size", [1, 64])
def test_time_is_in_proportion_to_what_was_given(order: str, size: int) -> None:
    """Sixteen times the messages; a quadratic path would take 256 times."""
    small = min(seconds(1 << 11, order, size) for _ in range(3))
    assert min(seconds(1 << 15, order, size) for _ in range(3)) < 64 * small + 0.05


def each_of(ranges: list[Any]) -> list[Any]:
    """Ranges as messages one by one."""
    return [(who, one, one) for who, first, last in ranges for one in range(first, last + 1)]


def test_a_range_settles_what_is_outstanding_in_it() -> None:
    made = ledger(("a", 10, 0), ("b", 5, 100), ("a", 5, 10))
    assert made.settle(3, False) == [("a", 2, 2)]
    offsets = {"a": [0, 1, 3, 4, 5, 6, 7, 8, 9, 10], "b": [100, 101, 102, 103, 104]}
    found = each_of(made.settle_range(1, 16))
    assert {name: [first for who, first, _ in found if who == name] for name in "ab"} == offsets
    assert made.settle_range(1, 16) == []
    assert (made.unsettled, made.all()) == (4, [("a", 11, 14)])
    assert made.settle_range(0, 1 << 62) == [("a", 11, 14)]
    assert made.settle_range(5, 4) == []


def test_ranges_settle_as_single_tags_do() -> None:
    random = Random(7)
    for _ in range(50):
        made, single = (ledger(("a", 300, 0), ("b", 40, 7), ("a", 9, 300)) for _ in range(2))
        for _ in range(20):
            first = random.randrange(1, 350)
            last = first + random.choice((0, 3, 60))
            expected = [
                each for tag in range(first, last + 1) for each in single.settle(tag, False) or ()
            ]
            assert each_of(made.settle_range(first, last)) == expected
        assert made.all() == single.all()
        assert made.unsettled == single.unsettled


def test_a_range_passes_over_a_forgotten_consumer() -> None:
    made = ledger(("a", 3, 0), ("b", 3, 0))
    made.forget("a")
    assert made.settle_range(1, 6) == [("b", 0, 2)]

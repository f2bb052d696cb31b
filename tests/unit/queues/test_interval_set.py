"""Sets of numbers kept as ranges, against sets."""

from __future__ import annotations

import random

import pytest

from fluxmq.queues.interval_set import IntervalSet


def test_neighbours_become_one_range() -> None:
    intervals = IntervalSet([(0, 4), (10, 14)])
    assert intervals.add(5, 9) == 5
    assert list(intervals) == [(0, 14)]
    assert intervals.count == 15


@pytest.mark.parametrize(
    ("first", "last", "taken", "left"),
    [
        (0, 3, [(2, 3)], [(4, 6), (10, 12)]),
        (3, 4, [(3, 4)], [(2, 2), (5, 6), (10, 12)]),
        (6, 10, [(6, 6), (10, 10)], [(2, 5), (11, 12)]),
        (7, 9, [], [(2, 6), (10, 12)]),
        (0, 99, [(2, 6), (10, 12)], []),
    ],
)
def test_removing_gives_what_was_there(
    first: int, last: int, taken: list[tuple[int, int]], left: list[tuple[int, int]]
) -> None:
    intervals = IntervalSet([(2, 6), (10, 12)])
    assert intervals.remove(first, last) == taken
    assert list(intervals) == left
    assert intervals.count == sum(high - low + 1 for low, high in left)


def test_within_and_missing_share_a_range_out() -> None:
    intervals = IntervalSet([(2, 3), (6, 7)])
    assert intervals.within(0, 6) == [(2, 3), (6, 6)]
    assert intervals.missing(0, 8) == [(0, 1), (4, 5), (8, 8)]
    assert IntervalSet().missing(3, 5) == [(3, 5)]


def test_packing_gives_the_same_set_back() -> None:
    intervals = IntervalSet([(2, 3), (6, 7)])
    assert list(IntervalSet.unpack(intervals.pack())) == list(intervals)


def test_random_operations_agree_with_a_set() -> None:
    random_ = random.Random(1)
    intervals, model = IntervalSet(), set[int]()
    for _ in range(3_000):
        first = random_.randrange(60)
        last = first + random_.randrange(8)
        numbers = set(range(first, last + 1))
        if random_.random() < 0.5:
            assert intervals.add(first, last) == len(numbers - model)
            model |= numbers
        else:
            removed = {
                n for low, high in intervals.remove(first, last) for n in range(low, high + 1)
            }
            assert removed == numbers & model
            model -= numbers
        assert {n for low, high in intervals for n in range(low, high + 1)} == model
        assert intervals.count == len(model)
        assert all(
            a[1] + 1 < b[0] for a, b in zip(list(intervals), list(intervals)[1:], strict=False)
        )

"""Duplicate suppression is bounded, and forgets rather than loses."""

from __future__ import annotations

from fluxmq.queues.limits import PRODUCER_RANGES_MAX, PRODUCERS_MAX
from fluxmq.queues.producers import Producers


def test_a_repeat_is_not_fresh_and_no_producer_is_always() -> None:
    producers = Producers()
    messages = [(5, 1), (5, 1), (0, 0), (0, 0), (6, 1)]
    assert producers.fresh(messages) == [0, 2, 3, 4]
    producers.remember(messages)
    assert producers.fresh([(5, 1), (5, 2), (6, 1), (0, 0)]) == [1, 3]


def test_sequences_in_order_cost_one_range() -> None:
    producers = Producers()
    producers.remember([(1, number) for number in range(10_000)])
    assert producers.pack() == [[1, [0, 9_999]]]


def test_the_lowest_range_is_forgotten_beyond_the_window() -> None:
    producers = Producers()
    producers.remember([(1, 2 * number) for number in range(PRODUCER_RANGES_MAX + 1)])
    assert producers.fresh([(1, 0), (1, 2), (1, 2 * PRODUCER_RANGES_MAX)]) == [0]


def test_the_producer_unused_for_longest_is_forgotten_first() -> None:
    producers = Producers()
    producers.remember([(number, 1) for number in range(1, PRODUCERS_MAX + 1)])
    producers.remember([(1, 2)])
    producers.remember([(PRODUCERS_MAX + 1, 1)])
    assert len(producers) == PRODUCERS_MAX
    assert producers.fresh([(1, 1), (2, 1)]) == [1]


def test_packing_keeps_windows_and_their_order() -> None:
    producers = Producers()
    producers.remember([(3, 1), (2, 1), (3, 9)])
    assert (
        Producers.unpack(producers.pack()).pack()
        == producers.pack()
        == [[2, [1, 1]], [3, [1, 1, 9, 9]]]
    )

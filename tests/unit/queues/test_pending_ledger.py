"""Pending ranges: memory per range, settling anywhere, due times."""

from __future__ import annotations

from fluxmq.queues.pending_ledger import NOBODY, Ledger, PendingState

HELD = PendingState(7, 100, 1, 5, 5)
WAITS = PendingState(NOBODY, 50, 1, 5, 5)


def ranges(ledger: Ledger) -> list[tuple[int, int]]:
    return [(each.first, each.last) for each in ledger]


def test_neighbours_of_one_fate_are_one_range() -> None:
    ledger = Ledger()
    ledger.add(0, 9, HELD)
    ledger.add(10, 19, HELD)
    ledger.add(30, 39, HELD)
    ledger.add(20, 29, HELD)
    assert ranges(ledger) == [(0, 39)]
    ledger.add(40, 41, WAITS)
    assert ranges(ledger) == [(0, 39), (40, 41)]
    assert (ledger.count, ledger.waiting) == (42, 2)


def test_cutting_out_of_the_middle_leaves_both_ends() -> None:
    ledger = Ledger()
    ledger.add(0, 9, HELD)
    assert ledger.cut(3, 5) == [(3, 5, HELD)]
    assert ranges(ledger) == [(0, 2), (6, 9)]
    assert ledger.count == 7


def test_cutting_takes_only_what_is_wanted() -> None:
    ledger = Ledger()
    ledger.add(0, 4, HELD)
    ledger.add(5, 9, WAITS)
    ledger.add(10, 14, HELD)
    assert ledger.cut(3, 11, lambda state: state.holder == 7) == [(3, 4, HELD), (10, 11, HELD)]
    assert ranges(ledger) == [(0, 2), (5, 9), (12, 14)]
    assert ledger.waiting == 5


def test_memory_follows_ranges_and_settling_in_order_shifts_nothing() -> None:
    ledger = Ledger()
    for number in range(10_000):
        ledger.add(2 * number, 2 * number, HELD)
    for number in range(10_000):
        assert ledger.first == 2 * number
        ledger.cut(2 * number, 2 * number)
        assert len(ledger._ranges) <= 2 * max(32, len(ledger)) + 1
    assert not ledger
    assert ledger.first is None
    assert len(ledger._timers) <= 65


def test_each_due_range_is_given_once_until_armed_again() -> None:
    ledger = Ledger()
    ledger.add(0, 9, HELD)
    ledger.add(20, 29, WAITS)
    assert ledger.next_due() == 50
    assert ledger.pop_due(49, 10) == []
    assert ledger.pop_due(100, 10) == [(20, 29, WAITS), (0, 9, HELD)]
    assert ledger.pop_due(100, 10) == []
    ledger.arm_all()
    assert len(ledger.pop_due(100, 10)) == 2


def test_a_range_that_shrank_is_due_as_what_is_left_of_it() -> None:
    ledger = Ledger()
    ledger.add(0, 9, HELD)
    ledger.cut(0, 3)
    ledger.cut(6, 6)
    assert sorted(ledger.pop_due(100, 10)) == [(4, 5, HELD), (7, 9, HELD)]
    assert ledger.pop_due(100, 10) == []


def test_settled_ranges_are_never_due() -> None:
    ledger = Ledger()
    ledger.add(0, 9, HELD)
    ledger.cut(0, 9)
    assert ledger.next_due() is None


def test_packing_gives_the_same_ranges_back() -> None:
    ledger = Ledger()
    ledger.add(0, 9, HELD)
    ledger.add(12, 19, WAITS)
    again = Ledger.unpack(ledger.pack())
    assert again.pack() == ledger.pack()
    assert (again.count, again.waiting) == (ledger.count, ledger.waiting)

"""Marks of a log: bounded, and never cutting too early."""

from __future__ import annotations

from fluxmq.queues.limits import MARKS_MAX
from fluxmq.queues.marks import Marks


def filled(count: int) -> Marks:
    """`count` batches of ten messages, 100 bytes and one second each."""
    marks = Marks()
    for number in range(count):
        marks.append(10 * number, 100, number)
    return marks


def test_every_batch_is_marked_while_there_are_few() -> None:
    marks = filled(5)
    assert marks.bytes_from(20) == 300
    assert marks.at_most(250, 50) == 30
    assert marks.at_most(300, 50) == 20
    assert marks.at_most(1, 50) == 40
    assert marks.older_than(2, 50) == 30
    assert marks.older_than(4, 50) == 50
    assert marks.next_time(0) == 0
    assert marks.next_time(40) == 4


def test_marks_are_bounded_and_cut_no_more_than_exact_ones() -> None:
    count = 10 * MARKS_MAX
    marks = filled(count)
    assert len(marks.marks) <= MARKS_MAX
    for size in (100, 5_000, 123_456):
        exact = 10 * (count - size // 100)
        cut = marks.at_most(size, 10 * count)
        assert marks.end_bytes - marks.bytes_from(cut) >= 0
        assert exact <= cut <= exact + 10 * 2 * marks.stride or cut == marks.marks[-1][0]
    for time in (0, 77, count // 2):
        assert marks.older_than(time, 10 * count) <= 10 * (time + 1)


def test_trimming_keeps_one_mark_at_or_before_the_start() -> None:
    marks = filled(10)
    marks.trim(35)
    assert marks.marks[0][0] == 30
    assert marks.bytes_from(35) == 700


def test_packing_gives_the_same_marks_back() -> None:
    marks = filled(5_000)
    again = Marks.unpack(marks.pack())
    assert again.pack() == marks.pack()
    for each in (marks, again):
        each.append(50_000, 1, 9_999)
    assert again.pack() == marks.pack()


def test_an_empty_log_has_nothing_to_cut() -> None:
    marks = Marks()
    assert marks.at_most(10, 0) == 0
    assert marks.older_than(10**9, 0) == 0
    assert marks.next_time(0) is None


def test_bytes_between_marks() -> None:
    marks = Marks()
    for offset, size in enumerate([10, 20, 30, 40]):
        marks.append(offset, size, 0)
    assert [marks.bytes_before(offset, 4) for offset in range(6)] == [0, 10, 30, 60, 100, 100]
    assert [marks.reach(0, size, 4) for size in (1, 10, 11, 30, 60, 61, 200)] == [
        1,
        1,
        2,
        2,
        3,
        4,
        4,
    ]
    assert [marks.reach(2, size, 4) for size in (0, 30, 31)] == [3, 3, 4]
    assert Marks().bytes_before(0, 1) == 0


def test_bytes_between_marks_that_have_become_rare() -> None:
    marks = Marks()
    count = 4 * MARKS_MAX
    for offset in range(count):
        marks.append(offset, 1, 0)
    assert marks.stride > 1
    for offset in (0, 777, 5_000, count - 1):
        assert 0 <= offset - marks.bytes_before(offset, count) < marks.stride
        reached = marks.reach(offset, 100, count)
        assert min(100, count - offset) <= reached - offset + marks.stride
        assert reached <= min(count, offset + 100 + marks.stride)

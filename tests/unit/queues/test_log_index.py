"""Marks of a log: bounded, and never cutting too early."""

from __future__ import annotations

from fluxmq.queues.limits import MARKS_MAX
from fluxmq.queues.log_index import LogIndex


def filled(count: int) -> LogIndex:
    """`count` batches of ten messages, 100 bytes and one second each."""
    entries = LogIndex()
    for number in range(count):
        entries.append(10 * number, 100, number)
    return entries


def test_every_batch_is_marked_while_there_are_few() -> None:
    entries = filled(5)
    assert entries.bytes_from(20) == 300
    assert entries.at_most(250, 50) == 30
    assert entries.at_most(300, 50) == 20
    assert entries.at_most(1, 50) == 40
    assert entries.older_than(2, 50) == 30
    assert entries.older_than(4, 50) == 50
    assert entries.next_time(0) == 0
    assert entries.next_time(40) == 4


def test_marks_are_bounded_and_cut_no_more_than_exact_ones() -> None:
    count = 10 * MARKS_MAX
    entries = filled(count)
    assert len(entries.entries) <= MARKS_MAX
    for size in (100, 5_000, 123_456):
        exact = 10 * (count - size // 100)
        cut = entries.at_most(size, 10 * count)
        assert entries.end_bytes - entries.bytes_from(cut) >= 0
        assert exact <= cut <= exact + 10 * 2 * entries.stride or cut == entries.entries[-1][0]
    for time in (0, 77, count // 2):
        assert entries.older_than(time, 10 * count) <= 10 * (time + 1)


def test_trimming_keeps_one_mark_at_or_before_the_start() -> None:
    entries = filled(10)
    entries.trim(35)
    assert entries.entries[0][0] == 30
    assert entries.bytes_from(35) == 700


def test_packing_gives_the_same_marks_back() -> None:
    entries = filled(5_000)
    again = LogIndex.unpack(entries.pack())
    assert again.pack() == entries.pack()
    for each in (entries, again):
        each.append(50_000, 1, 9_999)
    assert again.pack() == entries.pack()


def test_an_empty_log_has_nothing_to_cut() -> None:
    entries = LogIndex()
    assert entries.at_most(10, 0) == 0
    assert entries.older_than(10**9, 0) == 0
    assert entries.next_time(0) is None


def test_bytes_between_marks() -> None:
    entries = LogIndex()
    for offset, size in enumerate([10, 20, 30, 40]):
        entries.append(offset, size, 0)
    assert [entries.bytes_before(offset, 4) for offset in range(6)] == [0, 10, 30, 60, 100, 100]
    assert [entries.reach(0, size, 4) for size in (1, 10, 11, 30, 60, 61, 200)] == [
        1,
        1,
        2,
        2,
        3,
        4,
        4,
    ]
    assert [entries.reach(2, size, 4) for size in (0, 30, 31)] == [3, 3, 4]
    assert LogIndex().bytes_before(0, 1) == 0


def test_bytes_between_marks_that_have_become_rare() -> None:
    entries = LogIndex()
    count = 4 * MARKS_MAX
    for offset in range(count):
        entries.append(offset, 1, 0)
    assert entries.stride > 1
    for offset in (0, 777, 5_000, count - 1):
        assert 0 <= offset - entries.bytes_before(offset, count) < entries.stride
        reached = entries.reach(offset, 100, count)
        assert min(100, count - offset) <= reached - offset + entries.stride
        assert reached <= min(count, offset + 100 + entries.stride)

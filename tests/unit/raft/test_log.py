"""The log: its marks, its two parts, and writes that are overtaken by cuts."""

from __future__ import annotations

import pytest

from fluxmq.raft.errors import Compacted, InconsistentLog
from fluxmq.raft.log import RaftLog
from fluxmq.raft.types import COMMAND, Entry, Membership, Snapshot, SnapshotMark
from tests.unit.raft.cluster import Disk


def entries(first: int, *terms: int) -> list[Entry]:
    return [Entry(term, index, COMMAND, b"%d" % index) for index, term in enumerate(terms, first)]


def log_on(*terms: int, base: int = 0, base_term: int = 0, applied: int | None = None) -> RaftLog:
    disk = Disk(Membership((1,)), entries(base + 1, *terms))
    disk.mark = SnapshotMark(base, base_term, Membership((1,)))
    return RaftLog(disk, base + len(terms), base if applied is None else applied)


def snapshot(index: int, term: int) -> Snapshot:
    return Snapshot(SnapshotMark(index, term, Membership((1,))), b"")


def test_terms_are_known_from_the_snapshots_on() -> None:
    log = log_on(2, 3, base=10, base_term=2)
    log.append(entries(13, 4))
    assert [log.term(index) for index in range(9, 15)] == [None, 2, 2, 3, 4, None]
    assert log.matches(12, 3)
    assert not log.matches(12, 2)
    assert not log.matches(14, 4)


def test_what_the_reader_has_compacted_meanwhile_is_not_held() -> None:
    disk = Disk(Membership((1,)), entries(1, 1, 1, 1, 1))
    log = RaftLog(disk, 4, 4)
    disk.compact(3, Membership((1,)), [])
    assert log.term(2) is None
    with pytest.raises(Compacted):
        log.slice(2, 100)
    assert log.last_possible_match(2, 1, 0) == (0, 0)


def test_applied_must_lie_within_the_log() -> None:
    for applied in (9, 13):
        with pytest.raises(InconsistentLog):
            log_on(1, 1, base=10, base_term=1, applied=applied)


def test_a_log_that_ends_before_what_is_committed_has_lost_it() -> None:
    with pytest.raises(InconsistentLog, match="ends at 2"):
        RaftLog(Disk(Membership((1,)), entries(1, 1, 1)), 3, 1)


def test_a_slice_comes_from_disk_or_from_memory() -> None:
    log = log_on(1, 1)
    log.append(entries(3, 2, 2, 2))
    assert [entry.index for entry in log.slice(1, 100)] == [1, 2]
    assert [entry.index for entry in log.slice(3, 100)] == [3, 4, 5]
    assert [entry.index for entry in log.slice(3, 2)] == [3, 4]
    assert [entry.index for entry in log.slice(3, 0)] == [3]
    assert log.slice(6, 100) == []


def test_entries_are_handed_out_to_be_persisted_once() -> None:
    log = log_on()
    log.append(entries(1, 1, 1))
    assert [entry.index for entry in log.take_entries()] == [1, 2]
    assert log.given == log.last_index
    log.append(entries(3, 1))
    assert [entry.index for entry in log.take_entries()] == [3]


def test_what_is_persisted_and_handed_out_leaves_memory() -> None:
    log = log_on()
    log.append(entries(1, 1, 1, 1))
    log.take_entries()
    log.commit = 2
    assert log.take_committed(100) == [], "nothing is applied before it is durable here"
    assert log.persist(3, 1)
    assert [entry.index for entry in log.take_committed(100)] == [1, 2]
    assert [entry.index for entry in log.tail] == [3]
    assert (log.offset, log.tail_bytes) == (3, 1)
    log.commit = 3
    log.take_committed(100)
    assert (log.tail, log.tail_bytes, log.offset) == ([], 0, 4)
    assert log.term(3) == 1


def test_a_replay_is_handed_out_in_portions() -> None:
    log = log_on(1, 1, 1, 1, 1)
    assert [entry.index for entry in log.take_committed(2)] == [1, 2]
    assert [entry.index for entry in log.take_committed(2)] == [3, 4]
    assert [entry.index for entry in log.take_committed(2)] == [5]
    assert log.take_committed(2) == []


def test_several_writes_may_be_under_way_and_end_in_order() -> None:
    log = log_on()
    for index in (1, 2, 3):
        log.append(entries(index, 1))
        log.take_entries()
    assert log.persist(2, 1), "the first write is done as well"
    assert log.persisted == 2
    assert not log.persist(1, 1)
    assert not log.persist(2, 1)
    assert log.persist(3, 1)


def test_part_of_a_write_counts() -> None:
    log = log_on()
    log.append(entries(1, 1, 1, 1))
    log.take_entries()
    assert log.persist(2, 1)
    assert not log.persist(2, 2)
    assert log.persisted == 2
    assert log.persist(3, 1)


def test_writes_of_entries_overwritten_since_do_not_count() -> None:
    log = log_on()
    log.append(entries(1, 1, 1, 1))
    log.take_entries()
    assert log.accept(entries(2, 2)) == 2
    assert log.persist(3, 1)
    assert log.persisted == 1
    log.take_entries()
    assert not log.persist(3, 1)
    assert log.persist(2, 2)
    assert log.persisted == 2


def test_the_same_entry_written_twice_with_another_between() -> None:
    """(2, term 1) is being written, is overwritten by term 2, and comes again with a leader of term 3. When the
    first write ends, the second is still to come and would undo it: only the third makes it durable."""
    log = log_on(1)
    first, second = entries(2, 1), entries(2, 2)
    log.append(first)
    log.take_entries()
    log.accept(second)
    log.take_entries()
    log.accept(first)
    log.take_entries()
    log.persist(2, 1)
    assert log.persisted == 1
    log.persist(2, 2)
    assert log.persisted == 1
    assert log.persist(2, 1)
    assert log.persisted == 2


def test_a_cut_reaches_into_the_stable_part() -> None:
    log = log_on(1, 2, 2, 2)
    log.append(entries(5, 2))
    log.commit = 1
    assert log.accept(entries(2, 2, 3)) == 3
    assert (log.last_index, log.last_term, log.persisted, log.given) == (3, 3, 2, 2)
    assert [log.term(index) for index in (1, 2, 3, 4)] == [1, 2, 3, None]
    assert [entry.index for entry in log.take_entries()] == [3]


def test_what_is_held_already_changes_nothing() -> None:
    log = log_on(1, 1)
    log.append(entries(3, 1))
    assert log.accept(entries(1, 1, 1, 1)) is None
    assert log.accept([]) is None
    assert log.accept(entries(2, 1, 1, 1)) == 4
    assert log.tail_bytes == 2


def test_the_last_possible_match_goes_back_by_terms() -> None:
    log = log_on(1, 1, 3, 3, 5, 5)
    assert log.last_possible_match(6, 5, 0) == (6, 5)
    assert log.last_possible_match(6, 4, 0) == (4, 3)
    assert log.last_possible_match(6, 2, 0) == (2, 1)
    assert log.last_possible_match(6, 0, 0) == (0, 0)
    assert log.last_possible_match(6, 2, 4) == (4, 3), "no further than what matches"


def test_a_snapshot_replaces_everything_and_voids_writes_under_way() -> None:
    log = log_on(1, 1)
    log.commit = 1
    log.append(entries(3, 1))
    log.take_entries()
    log.restore(snapshot(10, 4))
    assert (log.last_index, log.last_term, log.commit, log.persisted) == (10, 4, 10, 0)
    assert log.term(3) is None
    log.append(entries(11, 4))
    log.commit = 11
    assert log.take_snapshot() == snapshot(10, 4)
    assert log.take_snapshot() is None
    assert [entry.index for entry in log.take_entries()] == [11]
    assert not log.persist(3, 1)
    assert log.take_committed(100) == []
    assert log.persist(10, 4)
    assert log.snapshot is None
    assert log.take_committed(100) == []
    assert log.persist(11, 4)
    assert [entry.index for entry in log.take_committed(100)] == [11]


def test_a_later_write_proves_the_snapshots() -> None:
    log = log_on(1)
    log.restore(snapshot(10, 4))
    log.take_snapshot()
    log.append(entries(11, 4))
    log.take_entries()
    assert log.persist(11, 4)
    assert (log.snapshot, log.persisted) == (None, 11)


def test_a_second_snapshot_takes_the_place_of_one_under_way() -> None:
    log = log_on(1)
    log.restore(snapshot(10, 4))
    log.take_snapshot()
    log.restore(snapshot(20, 5))
    assert not log.persist(10, 4)
    assert log.snapshot is not None
    log.take_snapshot()
    assert log.persist(20, 5)
    assert log.persisted == 20


def test_the_beginning_moves_by_compaction() -> None:
    log = log_on(1, 1, 2)
    log.take_committed(100)
    log.compact(2, 1)
    assert (log.base_index, log.base_term) == (2, 1)
    assert [log.term(index) for index in (1, 2, 3)] == [None, 1, 2]
    log.compact(1, 1)
    assert log.base_index == 2
    with pytest.raises(Compacted):
        log.slice(2, 10)
    with pytest.raises(AssertionError):
        log.compact(4, 2)

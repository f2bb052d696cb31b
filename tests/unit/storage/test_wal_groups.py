"""What records do to their group: overriding, truncation, checkpoints, leaving."""

from pathlib import Path

import pytest

from fluxmq.storage.errors import StorageError
from fluxmq.storage.wal_groups import NAME_BYTES_MAX
from tests.unit.storage.wal_harness import FILE_BYTES, bench, body, fill

pytestmark = pytest.mark.usefixtures("direct")


def test_a_later_entry_overrides_what_stood_at_its_index_and_behind(tmp_path: Path) -> None:
    with bench(tmp_path) as made:
        log = made.log
        group = log.number("default")
        fill(made, group, 1, 10)
        fill(made, group, 5, 6, size=50, term=2)
        log.append_entry(group, 2, 7, 0, b"void before it is written")
        log.append_entry(group, 3, 7, 0, b"seven")
        expected = (
            [(index, 1, body(index)) for index in range(1, 5)]
            + [(index, 2, body(index, 50)) for index in (5, 6)]
            + [(7, 3, b"seven")]
        )
        entries = [log.entry(group, index) for index in range(1, 8)]
        assert [(entry.term, entry.body) for entry in entries] == [each[1:] for each in expected]
        assert log.last_index(group) == 7
        with pytest.raises(LookupError):
            log.entry(group, 8)
        made.commit()
        assert made.contents() == {"default": expected}
        assert [log.term(group, index) for index in range(9)] == [0, 1, 1, 1, 1, 2, 2, 3, None]
        made.again()
        assert made.contents() == {"default": expected}
        terms = [made.log.term(group, index) for index in range(9)]
        assert terms == [0, 1, 1, 1, 1, 2, 2, 3, None]
        assert made.log.last_index(group) == 7


def test_a_truncation_survives(tmp_path: Path) -> None:
    with bench(tmp_path) as made:
        log = made.log
        group = log.number("default")
        fill(made, group, 1, 40)
        log.append_truncation(group, 4)
        assert log.last_index(group) == 3
        with pytest.raises(LookupError):
            log.entry(group, 4)
        made.commit()
        made.again()
        assert [index for index, _, _ in made.contents()["default"]] == [1, 2, 3]
        made.log.append_entry(group, 2, 4, 0, b"new")
        made.commit()
        made.again()
        assert made.contents()["default"][3:] == [(4, 2, b"new")]


def test_entries_that_were_truncated_hold_no_file(tmp_path: Path) -> None:
    for again in (False, True):
        with bench(tmp_path / str(again)) as made:
            group = made.log.number("default")
            fill(made, group, 1, 60)
            made.log.append_truncation(group, 4)
            made.commit()
            if again:
                made.again()
            made.log.release(group, 3)
            made.commit()
            made.log.completed()
            assert "1" not in made.names
            assert "2" not in made.names


@pytest.mark.parametrize("by", ["truncation", "entry"])
def test_truncated_entries_hold_their_file_until_that_is_durable(tmp_path: Path, by: str) -> None:
    """Else a power cut loses the truncation, and entries are missing that nobody said were void."""
    with bench(tmp_path) as made:
        log = made.log
        group, other = log.number("default"), log.number("other")
        fill(made, group, 1, 20)
        log.release(group, 17)
        fill(made, other, 1, 20)
        log.release(other, 20)
        made.commit()
        assert made.names[0] == "1"
        if by == "truncation":
            log.append_truncation(group, 18)
        else:
            log.append_entry(group, 2, 18, 0, b"another")
        assert log.flush()
        log.release(other, 20)  # looks which files are needed
        assert made.names[0] == "1"
        made.syncer.sync()
        log.completed()
        assert made.names[0] == "2"
        made.again()
        found = made.log.recovered("default")
        assert (found.first_index, found.checkpoint_index) == (18, 17)
        assert len(found.entries) == (by == "entry")
        assert made.log.term(group, 17) == 1


def test_a_snapshot_from_elsewhere_moves_the_log(tmp_path: Path) -> None:
    with bench(tmp_path) as made:
        log = made.log
        group = log.number("default")
        fill(made, group, 1, 5)
        log.append_checkpoint(group, 100, 9)
        assert log.last_index(group) == 100
        with pytest.raises(ValueError, match="entry 102 after 100"):
            log.append_entry(group, 9, 102, 0, b"")
        with pytest.raises(ValueError, match="checkpoint 100"):
            log.append_entry(group, 9, 100, 0, b"")
        log.append_entry(group, 9, 101, 0, b"next")
        made.commit()
        assert (log.first_index(group), log.term(group, 100)) == (101, 9)
        made.again()
        assert made.log.recovered("default") == ((0, 0, 0), 101, [(9, 101, 0, b"next")], 100, 9)


def test_entries_before_a_checkpoint_are_not_recovered(tmp_path: Path) -> None:
    with bench(tmp_path) as made:
        log = made.log
        group = log.number("default")
        fill(made, group, 1, 10)
        log.append_checkpoint(group, 7)
        log.append_checkpoint(group, 6)
        made.commit()
        assert log.entry(group, 3).body == body(3)
        with pytest.raises(ValueError, match="before the checkpoint"):
            log.append_truncation(group, 7)
        made.again()
        found = made.log.recovered("default")
        assert [entry.index for entry in found.entries] == [8, 9, 10]
        assert (found.first_index, found.checkpoint_index, found.checkpoint_term) == (8, 7, 1)


def test_a_group_that_left_is_not_recovered(tmp_path: Path) -> None:
    with bench(tmp_path) as made:
        log = made.log
        gone, stays = log.number("gone"), log.number("stays")
        fill(made, gone, 1, 60)
        fill(made, stays, 1, 1)
        log.forget(gone)
        assert log.groups() == ["stays"]
        assert made.names[0] == "1"
        fresh = log.number("gone")
        assert fresh not in (gone, stays)
        log.append_entry(fresh, 1, 1, 0, b"another life")
        made.commit()
        assert "1" not in made.names
        made.again()
        assert made.contents() == {"stays": [(1, 1, body(1))], "gone": [(1, 1, b"another life")]}
        assert made.log.number("gone") == fresh


def test_a_new_file_repeats_what_was_written_not_what_waits(tmp_path: Path) -> None:
    """A group leaves and comes back while a write is under way that begins a file: none of that is in the file."""
    with bench(tmp_path) as made:
        log = made.log
        group = log.number("default")
        fill(made, group, 1, 20)
        for index in range(21, 41):
            log.append_entry(group, 1, index, 0, body(index))
        assert log.flush()
        log.forget(group)
        log.append_hard_state(log.number("default"), 1, 1, 1)
        log.number("other")
        made.syncer.sync()
        log.completed()
        made.syncer.sync()
        assert log.completed() == 21
        made.again()
        assert made.log.groups() == ["default"]
        assert len(made.contents()["default"]) == 40


def test_groups_are_bounded(tmp_path: Path) -> None:
    with bench(tmp_path) as made:
        log = made.log
        with pytest.raises(StorageError, match="at most 255 bytes"):
            log.number("x" * (NAME_BYTES_MAX + 1))
        taken = 7
        for number in range(taken):
            log.number(f"group-{number}")
        with pytest.raises(StorageError, match="no more than 7 groups"):
            log.number("one too many")
        assert len(log.groups()) == taken
        made.commit()
        for index in range(1, 50):
            log.append_entry(1, 1, index, 0, b"x" * (FILE_BYTES // 2))
            made.commit()
        log.release(1, 49)
        made.commit()
        made.again()
        assert len(made.log.groups()) == taken


@pytest.mark.parametrize("by", ["release", "forget"])
def test_a_file_stays_until_what_the_next_one_repeats_is_durable(tmp_path: Path, by: str) -> None:
    """No entry in it is wanted any longer, but hard states and checkpoints stand nowhere else yet."""
    with bench(tmp_path) as made:
        log = made.log
        group, quiet = log.number("default"), log.number("quiet")
        log.append_hard_state(quiet, 5, 2, 0)
        third = log.number("third")
        while not made.log._row.used or FILE_BYTES - made.log._row.used[-1].end > 400:
            index = log.last_index(group) + 1
            fill(made, group, index, index)
        if by == "release":
            log.append_checkpoint(group, index)
            made.commit()
        else:
            log.forget(group)
        log.append_entry(third, 1, 1, 0, body(1, 500))
        log.flush()
        if by == "release":
            log.release(group, index)
        else:
            made.syncer.sync()
            log.completed()
        assert log.stats.files_begun == 2
        assert log.in_flight
        assert made.names[0] == "1"
        made.syncer.sync()
        log.completed()
        assert not log.in_flight
        assert made.names[0] == "2"
        made.again()
        assert made.log.recovered("quiet").hard_state == (5, 2, 0)

"""A group's log gives way to a snapshot that came from elsewhere: at once, whole, and it can be written on."""

from __future__ import annotations

from pathlib import Path

import pytest

from fluxmq.storage.directory import DataPaths
from fluxmq.storage.files import Files
from fluxmq.storage.transfer import TransferPaths
from fluxmq.storage.transfer_install import Installed, decide, decided, restart_log
from tests.unit.storage.wal_harness import bench, body, fill

pytestmark = pytest.mark.usefixtures("direct")


def test_a_log_begins_anew_behind_a_snapshot(tmp_path: Path) -> None:
    with bench(tmp_path) as made:
        group, other = made.log.number("g"), made.log.number("other")
        fill(made, other, 1, 3)
        fill(made, group, 1, 9)
        made.log.append_hard_state(group, 4, 2, 7)
        made.log.restart(group, 20, 6)
        assert made.log.last_index(group) == 20
        assert made.log.durable_checkpoint(group) == 0
        assert made.commit()
        assert made.log.durable_checkpoint(group) == 20
        assert made.log.first_index(group) == 21
        made.log.restart(group, 20, 6)
        made.log.restart(group, 12, 6)
        assert made.commit() == 0  # it is there
        assert made.log.term(group, 20) == 6
        fill(made, group, 21, 23, term=6)
        made.again()
        found = made.log.recovered("g")
        assert (found.checkpoint_index, found.checkpoint_term, found.first_index) == (20, 6, 21)
        assert [(each.index, each.term, each.body) for each in found.entries] == [
            (index, 6, body(index)) for index in (21, 22, 23)
        ]
        assert found.hard_state == (4, 2, 7)
        assert [each.index for each in made.log.recovered("other").entries] == [1, 2, 3]


def test_what_was_written_before_is_recycled(tmp_path: Path) -> None:
    """Files that held nothing but what is void now are not kept for it."""
    with bench(tmp_path) as made:
        group = made.log.number("g")
        fill(made, group, 1, 200)
        assert len(made.names) > 6
        made.log.restart(group, 500, 2)
        made.commit()
        assert made.log.lagging(1) == []
        fill(made, group, 501, 540, term=2)
        made.again()
        assert [each.index for each in made.log.recovered("g").entries] == list(range(501, 541))


@pytest.mark.parametrize("written", [True, False])
def test_what_is_in_the_log_behind_a_checkpoint_is_void(tmp_path: Path, written: bool) -> None:
    """Also entries beyond the snapshot's: they followed another entry than it does."""
    with bench(tmp_path) as made:
        group = made.log.number("g")
        fill(made, group, 1, 8)
        made.log.append_checkpoint(group, 5)
        for index in range(9, 13):
            made.log.append_entry(group, 1, index, 0, body(index))
        if written:
            assert made.commit()
        made.log.restart(group, 10, 3)
        with pytest.raises(ValueError, match="entry 12 after 10"):
            made.log.append_entry(group, 3, 12, 0, b"")
        made.log.append_entry(group, 3, 11, 0, b"new")
        assert made.commit()
        assert made.log.entry(group, 11).body == b"new"
        with pytest.raises(LookupError):
            made.log.entry(group, 9)
        made.again()
        found = made.log.recovered("g")
        assert [(each.index, each.body) for each in found.entries] == [(11, b"new")]
        assert (found.checkpoint_index, found.checkpoint_term) == (10, 3)


def test_a_restart_that_is_not_written_never_was(tmp_path: Path) -> None:
    with bench(tmp_path) as made:
        group = made.log.number("g")
        fill(made, group, 1, 4)
        made.log.restart(group, 9, 2)
        made.again()
        assert made.contents() == {"g": [(index, 1, body(index)) for index in range(1, 5)]}


def test_an_installation_is_forgotten_only_when_the_log_durably_agrees(tmp_path: Path) -> None:
    files, paths, installed = Files(), DataPaths(str(tmp_path)), Installed(20, 6)
    staging = Path(TransferPaths(paths, "g").incoming) / installed.name
    staging.mkdir(parents=True)
    decide(files, paths, "g", installed)
    with bench(tmp_path) as made:
        group = made.log.number("g")
        fill(made, group, 1, 9)
        made.log.append_hard_state(group, 4, 2, 7)
        assert made.commit()

        def opened() -> tuple[int, int, int]:
            before = made.log.recovered("g")
            after = restart_log(files, paths, "g", made.log, before, installed)
            assert after.hard_state == (4, 2, 7)
            return len(after.entries), after.first_index, after.checkpoint_index

        assert opened() == (0, 21, 20)
        assert made.log.flush()  # written, and not yet synced
        assert opened() == (0, 21, 20)
        assert decided(files, paths, "g") == installed
        made.commit()
        assert opened() == (0, 21, 20)
        assert decided(files, paths, "g") is None


def test_what_was_thought_committed_beyond_the_snapshot_is_not_any_more(tmp_path: Path) -> None:
    with bench(tmp_path) as made:
        group = made.log.number("g")
        fill(made, group, 1, 9)
        made.log.append_hard_state(group, 4, 2, 9)
        made.commit()
        found = restart_log(
            Files(),
            DataPaths(str(tmp_path)),
            "g",
            made.log,
            made.log.recovered("g"),
            Installed(8, 6),
        )
        assert (found.hard_state, found.entries) == ((4, 2, 8), [])

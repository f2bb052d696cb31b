"""Where groups are when a node starts."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fluxmq.settings.schema import Settings
from fluxmq.storage.directory import DataPaths, Placement, read_placement, write_placement
from fluxmq.storage.files import Files
from fluxmq.supervisor.group_placement import RelocationError, notes, place
from fluxmq.supervisor.placement import Plan, plan


def settings(path: Path, **manager: Any) -> Settings:
    return Settings.model_validate(
        {
            "server": {"mqtt": {"tcp": {"addr": "127.0.0.1:1883"}}},
            "storage": {"data_dir": str(path), "wal_file_bytes": 4 << 20},
            "queue_manager": {"uncommitted_bytes": 1 << 20, **manager},
        }
    )


def two(*pins: str) -> Plan:
    return plan(2, [0, 1], pins)


def written(path: Path) -> Placement | None:
    return read_placement(Files(), DataPaths(str(path)))


def test_the_first_start_writes_the_placement(tmp_path: Path) -> None:
    made = place(tmp_path, settings(tmp_path, local_groups=5), two("g=1"))
    assert made == written(tmp_path) == Placement(2, 5, {"g": 1}, revision=1)


def test_the_next_start_leaves_it_alone(tmp_path: Path) -> None:
    place(tmp_path, settings(tmp_path), two())
    before = (tmp_path / "placement.json").stat()
    assert place(tmp_path, settings(tmp_path), two()).revision == 1
    after = (tmp_path / "placement.json").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_local_groups_stay_as_they_were_made(tmp_path: Path) -> None:
    first = settings(tmp_path, local_groups=5)
    place(tmp_path, first, two())
    other = settings(tmp_path, local_groups=9)
    placement = place(tmp_path, other, two())
    assert placement.local_groups == 5
    assert notes(first, placement) == []
    (note,) = notes(other, placement)
    assert "local_groups is 9" in note
    assert "created with 5" in note


def test_a_move_that_was_under_way_is_given_up(tmp_path: Path) -> None:
    first = place(tmp_path, settings(tmp_path), two())
    paths = DataPaths(str(tmp_path))
    write_placement(Files(), paths, replace(first, moving={"g": 1}, revision=2))
    assert place(tmp_path, settings(tmp_path), two()) == replace(first, revision=3)


def test_pins_are_kept_and_added_to(tmp_path: Path) -> None:
    place(tmp_path, settings(tmp_path), two("g=1"))
    assert place(tmp_path, settings(tmp_path), two("h=0")).pins == {"g": 1, "h": 0}
    assert place(tmp_path, settings(tmp_path), two()).pins == {"g": 1, "h": 0}


def test_logs_of_shards_that_are_no_more_are_removed(tmp_path: Path) -> None:
    place(tmp_path, settings(tmp_path), plan(3, [0, 1], ()))
    for shard in range(3):
        (tmp_path / f"shards/{shard}/wal").mkdir(parents=True)
    (tmp_path / "shards/2/else").write_text("not ours")
    made = place(tmp_path, settings(tmp_path), two())
    assert made == written(tmp_path)
    assert (made.workers, made.revision) == (2, 2)
    assert sorted(each.name for each in (tmp_path / "shards").glob("*/wal")) == ["wal", "wal"]
    assert (tmp_path / "shards/2/else").exists()


def test_logs_that_cannot_be_read_keep_the_placement(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    place(tmp_path, settings(tmp_path), two())
    wal = tmp_path / "shards/1/wal"
    wal.mkdir(parents=True)
    (wal / "00000000000000000001.wal").write_bytes(b"x" * 4096)
    with pytest.raises(RelocationError, match="ended with code 3"):
        place(tmp_path, settings(tmp_path), plan(1, [0], ()))
    assert f"storage.data_dir: {wal}" in capfd.readouterr().err
    found = written(tmp_path)
    assert found is not None
    assert (found.workers, found.revision) == (2, 1)
    assert wal.exists()


def test_a_start_that_was_not_completed_is_completed_by_the_next(tmp_path: Path) -> None:
    first = place(tmp_path, settings(tmp_path), two())
    wal = tmp_path / "shards/1/wal"
    wal.mkdir(parents=True)
    (wal / "00000000000000000001.wal").write_bytes(b"x" * 4096)
    with pytest.raises(RelocationError):
        place(tmp_path, settings(tmp_path), plan(1, [0], ()))
    unfinished = written(tmp_path)
    assert unfinished is not None
    assert unfinished.moving
    (wal / "00000000000000000001.wal").unlink()
    made = place(tmp_path, settings(tmp_path), two())
    assert (made.workers, made.moving) == (2, {})
    assert made.revision > first.revision

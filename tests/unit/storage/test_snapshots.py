"""Snapshots: whole or not there, two kept, and never a damaged one believed."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import pytest

from fluxmq.storage.errors import Corruption, FileMissing, Misfit
from fluxmq.storage.files import Files
from fluxmq.storage.log_state import LogState, SegmentState
from fluxmq.storage.snapshots import (
    HEADER_BYTES,
    GroupSnapshot,
    GroupSnapshotContent,
    find_snapshots,
    latest_snapshot,
    read_snapshot,
    snapshot_name,
    write_snapshot,
)

CONTENT = bytes(range(256))


def written(directory: Path, *indexes: int) -> Path:
    """Snapshots with these indexes; the path of the last."""
    for index in indexes:
        write_snapshot(Files(), str(directory), index, index // 10, b"%d " % index + CONTENT)
    return directory / snapshot_name(indexes[-1])


def test_the_latest_is_read_and_two_are_kept(tmp_path: Path) -> None:
    directory = tmp_path / "snapshots"
    assert latest_snapshot(Files(), str(directory)) is None
    written(directory, 5, 70, 800)
    assert latest_snapshot(Files(), str(directory)) == GroupSnapshot(800, 80, b"800 " + CONTENT)
    assert sorted(os.listdir(directory)) == [snapshot_name(70), snapshot_name(800)]


def test_what_a_crash_left_half_written_goes_and_nothing_else(tmp_path: Path) -> None:
    for name in ("notes.snap", "notes.tmp", f"{snapshot_name(900)}.tmp"):
        (tmp_path / name).write_text("half of one")
    written(tmp_path, 1, 2, 3)
    expected = [snapshot_name(2), snapshot_name(3), "notes.snap", "notes.tmp"]
    assert sorted(os.listdir(tmp_path)) == expected
    assert find_snapshots(Files(), str(tmp_path)).damaged == ()


@pytest.mark.parametrize("first_index", [None, 1, 70, 71, 72, 800])
def test_the_older_one_stands_in_if_the_log_reaches_back_to_it(
    tmp_path: Path, first_index: int | None
) -> None:
    newest = written(tmp_path, 70, 800)
    newest.write_bytes(newest.read_bytes()[:-1])
    if first_index is not None and first_index <= 71:
        found = latest_snapshot(Files(), str(tmp_path), first_index)
        assert found is not None
        assert found.index == 70
    else:
        with pytest.raises(Corruption, match=snapshot_name(800)):
            latest_snapshot(Files(), str(tmp_path), first_index)


def test_a_damaged_older_one_does_not_matter(tmp_path: Path) -> None:
    written(tmp_path, 70, 800)
    (tmp_path / snapshot_name(70)).write_bytes(b"")
    found = latest_snapshot(Files(), str(tmp_path))
    assert found is not None
    assert found.index == 800
    assert [each.path for each in find_snapshots(Files(), str(tmp_path)).damaged] == [
        str(tmp_path / snapshot_name(70))
    ]


def test_both_damaged(tmp_path: Path) -> None:
    for index in (70, 800):
        written(tmp_path, index).write_bytes(b"FLUXSNAP")
    with pytest.raises(Corruption, match=snapshot_name(800)):
        latest_snapshot(Files(), str(tmp_path), 1)


def test_a_snapshot_under_another_name_is_not_believed(tmp_path: Path) -> None:
    written(tmp_path, 70).rename(tmp_path / snapshot_name(71))
    with pytest.raises(Corruption, match="it is snapshot 70"):
        latest_snapshot(Files(), str(tmp_path), 1)


def test_every_cut_and_every_flipped_bit_is_noticed(tmp_path: Path) -> None:
    path = written(tmp_path, 800)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(Corruption) as found:
            read_snapshot(Files(), str(path))
        assert found.value.path == str(path)
    random = Random(1)
    for _ in range(300):
        bit = random.randrange(8 * len(whole))
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        with pytest.raises(Corruption):
            read_snapshot(Files(), str(path))
    path.write_bytes(whole + b"\0")
    with pytest.raises(Corruption, match="content"):
        read_snapshot(Files(), str(path))
    with pytest.raises(FileMissing):
        read_snapshot(Files(), str(tmp_path / "none"))
    assert HEADER_BYTES == 48


def test_a_newer_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fluxmq.storage.snapshots.VERSION", 2)
    path = written(tmp_path, 70)
    monkeypatch.undo()
    with pytest.raises(Corruption, match="version 2; this program reads 1"):
        read_snapshot(Files(), str(path))


def test_a_newer_snapshot_is_not_passed_over_for_an_older_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Review, gap "formats": beginning from the older one would undo what the newer program did."""
    written(tmp_path, 70)
    monkeypatch.setattr("fluxmq.storage.snapshots.VERSION", 2)
    written(tmp_path, 80)
    monkeypatch.undo()
    with pytest.raises(Misfit, match="version 2; this program reads 1"):
        latest_snapshot(Files(), str(tmp_path), first_index=1)


# --- the content -----------------------------------------------------------------------------------------------------


def state() -> LogState:
    sealed = SegmentState(10, 20, 5000, 7, 9, True, bytes(16), 1, 4800, 99)
    return LogState(12, 25, (sealed, SegmentState(20, 25, 4500, 9, 11, False, bytes(range(16)))))


def test_the_state_of_a_group_is_packed() -> None:
    group = GroupSnapshotContent(
        b"machine", (1, 2), (3,), {"orders": state(), "é/x": LogState(0, 0, ())}
    )
    assert GroupSnapshotContent.decode(group.encode()) == group
    assert group.logs["orders"].bytes == 5064 + 4500


@pytest.mark.parametrize("content", [b"", b"\x90", b"\xc0", b"\x94\xc0\xc0\xc0\xc0", CONTENT])
def test_what_is_no_state_of_a_group(content: bytes) -> None:
    with pytest.raises(ValueError, match="not the state of a group"):
        GroupSnapshotContent.decode(content)


@pytest.mark.parametrize(
    "packed",
    [
        None,
        [0, 0],
        [0, 0, 0],
        [1, 0, []],
        [-1, 0, []],
        [True, 1, []],
        [0, 5, []],
        [0, 0, [[1]]],
        [12, 26, state().pack()[2]],
        [12, 25, [*state().pack()[2]][::-1]],  # type: ignore[misc]
        [0, 5, [[0, 5, 5000, 0, 0, False, b"short", 0, 0, 0]]],
        [0, 5, [[0, 5, 5000, 0, 0, 1, bytes(16), 0, 0, 0]]],
        [0, 5, [[0, 5, 100, 0, 0, False, bytes(16), 0, 0, 0]]],
        [0, 0, [[0, 0, 5000, 0, 0, False, bytes(16), 0, 0, 0]]],
    ],
)
def test_what_is_no_state_of_a_log(packed: object) -> None:
    with pytest.raises(ValueError, match=r"log|segment"):
        LogState.unpack(packed)


def test_the_state_of_a_log_is_packed() -> None:
    assert LogState.unpack(state().pack()) == state()

"""Checkpoints of a queue's log, and opening it again after a crash."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fluxmq.model.segments import segment_name
from fluxmq.storage.errors import Corruption, DiskFull
from fluxmq.storage.files import Files
from fluxmq.storage.head import read_head
from fluxmq.storage.log_state import LogState
from fluxmq.storage.queue_log import QueueLog
from tests.unit.storage.logs import (
    SMALL,
    assert_holds,
    batches,
    checkpoint,
    contents,
    fill,
    opened,
    payload,
)

# --- checkpoints -----------------------------------------------------------------------------------------------------


class Syncs(Files):
    """Notes what was synced."""

    def __init__(self) -> None:
        super().__init__()
        self.synced: list[str] = []

    def fdatasync(self, fd: int) -> None:
        self.synced.append(self.path_of(fd).rpartition("/")[2])
        super().fdatasync(fd)

    def fsync_directory(self, path: str) -> None:
        self.synced.append(path)
        super().fsync_directory(path)


def test_a_checkpoint_syncs_all_that_was_written_since_the_last(tmp_path: Path) -> None:
    files = Syncs()
    log = opened(tmp_path / "orders", files=files)
    fill(log, batches(200))
    files.synced.clear()
    checkpoint(log)
    assert set(files.synced) == {*contents(tmp_path / "orders"), log.directory}
    files.synced.clear()
    checkpoint(log)
    assert files.synced == []
    fill(log, batches(1, first=200))
    last = segment_name(log.state().segments[-1].base_offset)
    checkpoint(log)
    assert files.synced == [last]


def test_a_rolled_segment_is_synced_with_its_directory(tmp_path: Path) -> None:
    files = Syncs()
    log = opened(tmp_path / "orders", files=files)
    fill(log, batches(5))
    checkpoint(log)
    files.synced.clear()
    fill(log, batches(60, first=5))
    checkpoint(log)
    assert segment_name(0) in files.synced
    assert files.synced[-1] == log.directory


def test_a_log_in_which_nothing_changed_costs_a_checkpoint_nothing(tmp_path: Path) -> None:
    """Review finding 4: of 100,000 queues each had its directory synced, new or after a start."""
    files = Syncs()
    empty = opened(tmp_path / "empty", files=files)
    checkpoint(empty)
    log = opened(tmp_path / "orders", files=files)
    fill(log, batches(60))
    state = checkpoint(log)
    log.close()
    again = opened(tmp_path / "orders", state, files=files, recovering=True)
    again.cut()
    files.synced.clear()
    checkpoint(again)
    assert files.synced == []
    fill(again, batches(60, first=60))
    checkpoint(again)
    assert files.synced[-1] == log.directory


def test_removed_segments_are_not_synced(tmp_path: Path) -> None:
    files = Syncs()
    log = opened(tmp_path / "orders", files=files)
    fill(log, batches(200))
    log.trim(200)
    files.synced.clear()
    checkpoint(log)
    assert files.synced == [log.directory]


def test_the_log_goes_on_while_a_checkpoint_is_under_way(tmp_path: Path) -> None:
    """Segments that roll, are trimmed or closed meanwhile stay open until the sync is done."""
    log = opened(tmp_path / "orders")
    fill(log, batches(60))
    unsynced = log.unsynced()
    fill(log, batches(200, first=60))
    log.trim(200)
    unsynced.sync()
    log.synced(unsynced)
    assert_holds(log, 200, 260)
    under_way = log.unsynced()
    log.close()
    under_way.sync()
    log.synced(under_way)
    assert all(file.fd < 0 for file in under_way.files)


def test_a_queue_that_is_deleted_meanwhile_does_not_spoil_a_checkpoint(tmp_path: Path) -> None:
    log = opened(tmp_path / "orders")
    fill(log, batches(60))
    unsynced = log.unsynced()
    log.delete()
    unsynced.sync()
    log.synced(unsynced)
    assert all(file.fd < 0 for file in unsynced.files)
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_that_is_given_up_is_only_repeated(tmp_path: Path) -> None:
    """Something else failed before this log was synced, or after: all of it is synced by the next one."""
    files = Syncs()
    log = opened(tmp_path / "orders", files=files)
    fill(log, batches(60))
    log.unsynced()
    for synced in (False, True):
        unsynced = log.unsynced()
        if synced:
            unsynced.sync()
        fill(log, batches(60, first=log.next_offset))
        log.synced(unsynced, DiskFull("no space for the snapshot"))
        files.synced.clear()
        changed = set(contents(tmp_path / "orders"))
        if synced:
            changed = {
                name
                for name in changed
                if int(name[:20]) >= unsynced.state.segments[-1].base_offset
            }
        else:
            changed = set(contents(tmp_path / "orders"))
        checkpoint(log)
        assert set(files.synced) == {*changed, log.directory}
    assert_holds(log, 0, 180)


def test_a_checkpoint_does_not_end_well_without_a_sync(tmp_path: Path) -> None:
    log = opened(tmp_path / "orders")
    fill(log, batches(5))
    with pytest.raises(AssertionError):
        log.synced(log.unsynced())


# --- recovery --------------------------------------------------------------------------------------------------------


def test_replay_writes_the_same_bytes(tmp_path: Path) -> None:
    """From any checkpoint, over whatever the files came to hold since."""
    log = opened(tmp_path / "orders")
    made = batches(130)
    states: dict[int, LogState] = {0: log.state()}
    for number, each in enumerate(made, 1):
        log.append(each)
        if number % 13 == 0:
            states[number] = checkpoint(log)
    log.flush()
    whole, end = contents(tmp_path / "orders"), log.state()
    log.close()
    for number, state in states.items():
        copy = tmp_path / f"from {number}"
        shutil.copytree(tmp_path / "orders", copy)
        again = opened(copy, state, recovering=True)
        fill(again, made[number:], per_flush=number + 1)
        again.cut()
        assert contents(copy) == whole
        assert again.state() == end
        assert_holds(again, 0, 130)
        again.close()


def test_what_is_behind_the_end_is_cut(tmp_path: Path) -> None:
    """Entries that were never committed, or a log that ends earlier: later segments and bytes go."""
    log = opened(tmp_path / "orders")
    fill(log, batches(20))
    state, whole = checkpoint(log), contents(tmp_path / "orders")
    fill(log, batches(180, first=20))
    log.close()
    again = opened(tmp_path / "orders", state)
    assert contents(tmp_path / "orders") == whole
    assert_holds(again, 0, 20)
    fill(again, batches(30, first=20, size=700))
    assert again.read(25).payload(0) == payload(25, 700)


def test_trims_since_the_checkpoint_may_have_removed_files_already(tmp_path: Path) -> None:
    log = opened(tmp_path / "orders")
    fill(log, batches(130))
    state = checkpoint(log)
    fill(log, batches(70, first=130))
    log.trim(180)
    whole, end = contents(tmp_path / "orders"), log.state()
    log.close()
    again = opened(tmp_path / "orders", state, recovering=True)
    fill(again, batches(70, first=130))
    again.trim(180)
    again.cut()
    assert contents(tmp_path / "orders") == whole
    assert again.state() == end
    assert_holds(again, 180, 200)


def test_a_log_that_was_deleted_since_may_be_replayed(tmp_path: Path) -> None:
    log = opened(tmp_path / "orders")
    fill(log, batches(30))
    state = checkpoint(log)
    log.delete()
    again = opened(tmp_path / "orders", state, recovering=True)
    fill(again, batches(30, first=30))
    again.delete()
    assert list(tmp_path.iterdir()) == []


def test_a_new_queue_does_not_inherit_files(tmp_path: Path) -> None:
    log = opened(tmp_path / "orders")
    fill(log, batches(100))
    log.close()
    new = opened(tmp_path / "orders")
    assert (new.start_offset, new.next_offset, new.segments) == (0, 0, 0)
    assert contents(tmp_path / "orders") == {}


@pytest.mark.parametrize("gone", [0, 1, -1])
def test_a_segment_that_should_be_there_is_missed(tmp_path: Path, gone: int) -> None:
    log = opened(tmp_path / "orders")
    fill(log, batches(130))
    state = checkpoint(log)
    log.close()
    name = segment_name(state.segments[gone].base_offset)
    (tmp_path / "orders" / name).unlink()
    with pytest.raises(Corruption, match=f"{name}, byte 0: the segment is missing"):
        opened(tmp_path / "orders", state)


def test_replay_does_not_hide_that_synced_bytes_are_gone(tmp_path: Path) -> None:
    """The last segment vanished: replayed batches make the file again, with a hole where synced ones were."""
    log = opened(tmp_path / "orders")
    fill(log, batches(20))
    state = checkpoint(log)
    log.close()
    (tmp_path / "orders" / segment_name(0)).unlink()
    again = opened(tmp_path / "orders", state, recovering=True)
    fill(again, batches(5, first=20))
    with pytest.raises(Corruption, match="byte 0: the header page"):
        again.cut()


def test_another_queues_segment_is_refused(tmp_path: Path) -> None:
    one = opened(tmp_path / "orders")
    fill(one, batches(20))
    state = checkpoint(one)
    one.close()
    other = QueueLog.open(Files(), str(tmp_path / "other"), "other", SMALL)
    fill(other, batches(20))
    other.close()
    shutil.copy(tmp_path / "other" / segment_name(0), tmp_path / "orders" / segment_name(0))
    with pytest.raises(Corruption, match="another segment's"):
        opened(tmp_path / "orders", state)


def test_the_head_never_goes_back_in_a_recovery(tmp_path: Path) -> None:
    log = opened(tmp_path / "orders")
    fill(log, batches(20))
    state = checkpoint(log)
    fill(log, batches(60, first=20))
    log.trim(30)
    log.flush()
    before = read_head(Files(), log.directory)
    log.close()
    again = opened(tmp_path / "orders", state, recovering=True)
    for each in batches(60, first=20):
        again.append(each)
        again.flush()
        assert read_head(Files(), log.directory) == before
    again.trim(30)
    again.cut()
    after = read_head(Files(), log.directory)
    assert before is not None
    assert after is not None
    assert after.sequence >= before.sequence
    assert after[1:] == before[1:]

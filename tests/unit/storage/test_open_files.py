"""Which files of a shard's logs stay open, and that nothing is lost or refused by closing the others."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from fluxmq.storage.batch_cache import BatchCache
from fluxmq.storage.errors import AwaitsSync, OutOfDescriptors, WriteFailed
from fluxmq.storage.files import Files
from fluxmq.storage.log_reader import OpenSegments
from fluxmq.storage.log_state import LogState
from fluxmq.storage.open_files import SPARES, OpenFile, OpenFiles, note_synced
from fluxmq.storage.queue_log import QueueLog
from tests.faults import FailingFiles
from tests.unit.storage.logs import SMALL, assert_holds, batches, checkpoint, fill


class NoDescriptors(Files):
    """Files of a process whose descriptors are used up but for a few."""

    def __init__(self, free: int) -> None:
        super().__init__()
        self.free = free

    def call(self, operation, path, function, *args, **kwargs):
        """Opening fails when too many are open."""
        opening = operation in {"open", "create", "open directory"}

        def limited(*arguments: object, **named: object) -> object:
            if opening and len(self._names) >= self.free:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return function(*arguments, **named)

        return super().call(operation, path, limited, *args, **kwargs)


def log_of(
    segments: OpenSegments, root: Path, name: str, state: LogState | None = None
) -> QueueLog:
    files = segments.table.files
    cache = BatchCache(recent_bytes=0, window_bytes=0)
    return QueueLog.open(
        files, str(root / name), "orders", SMALL, state, cache=cache, segments=segments
    )


def sync(table: OpenFiles) -> None:
    """What a shard does beside its checkpoints."""
    files = [(file, file.writes) for file in table.oldest_unsynced()]
    for file, _ in files:
        file.sync()
    note_synced(files)
    for file, _ in files:
        file.give_back()


def test_the_file_used_longest_ago_is_closed_for_another(tmp_path: Path) -> None:
    table = OpenFiles(Files(), places=4)
    files = [OpenFile(table, str(tmp_path / str(number))) for number in range(5)]
    for file in files[:4]:
        file.opened()
    files[0].opened()
    files[4].opened()
    assert [file.fd >= 0 for file in files] == [True, False, True, True, True]
    assert len(table) == 4
    for file in files:
        file.release()
    assert len(table) == 0


def test_what_is_not_synced_stays_open(tmp_path: Path) -> None:
    """Whoever closes a file before its sync does not learn of what the kernel could not write out."""
    table = OpenFiles(Files(), places=4)
    written = [OpenFile(table, str(tmp_path / str(number))) for number in range(3)]
    for file in written:
        file.write([b"message"], 0)
    others = [OpenFile(table, str(tmp_path / f"other {number}")) for number in range(3)]
    for file in others:
        file.opened()
    assert all(file.fd >= 0 for file in written)
    assert [file.fd >= 0 for file in others] == [False, False, True]
    sync(table)
    for file in others:
        file.opened()
    assert [file.fd >= 0 for file in written] == [False, False, True]


def test_a_shared_file_stays_open(tmp_path: Path) -> None:
    """A thread that syncs or writes out has the descriptor in hand."""
    table = OpenFiles(Files(), places=2)
    file = OpenFile(table, str(tmp_path / "a"))
    file.write([b"message"], 0)
    file.shared()
    file.note_synced(1)
    for number in range(3):
        OpenFile(table, str(tmp_path / str(number))).opened()
    assert file.fd >= 0
    file.give_back()
    OpenFile(table, str(tmp_path / "last")).opened()
    assert file.fd < 0


@pytest.mark.parametrize("attended", [False, True])
def test_unsynced_files_leave_places_for_others(tmp_path: Path, attended: bool) -> None:
    """A write beyond their part waits for a sync where somebody sees to one, and else has it done."""
    files = FailingFiles()
    table = OpenFiles(files, places=8)
    table.attended = attended
    written = [OpenFile(table, str(tmp_path / str(number))) for number in range(7)]
    for file in written[:6]:
        file.write([b"message"], 0)
    assert (table.unsynced, table.wanting) == (6, False)
    if attended:
        with pytest.raises(AwaitsSync):
            written[6].write([b"message"], 0)
        assert (written[6].writes, table.wanting) == (0, True)
        assert files.calls["fdatasync"] == 0
        sync(table)
    written[6].write([b"message"], 0)
    assert files.calls["fdatasync"] == 6
    assert (table.unsynced, written[6].dirty) == (1, True)


def test_a_hot_file_is_written_without_a_sync(tmp_path: Path) -> None:
    files = FailingFiles()
    table = OpenFiles(files, places=8)
    table.attended = True
    hot = [OpenFile(table, str(tmp_path / str(number))) for number in range(6)]
    for turn in range(50):
        for file in hot:
            file.write([b"message"], turn * 7)
    assert files.calls["create"] == 6
    assert files.calls["fdatasync"] == 0
    assert not table.wanting


def test_a_sync_between_checkpoints_that_fails_fails_the_checkpoint(tmp_path: Path) -> None:
    """The second sync would say that all is well."""
    files = FailingFiles()
    segments = OpenSegments(OpenFiles(files, places=8))
    log = log_of(segments, tmp_path, "a")
    fill(log, batches(5))
    files.fail("fdatasync", errno.EIO)
    with pytest.raises(WriteFailed):
        segments.table.sync_oldest()
    assert segments.table.unsynced == 1
    unsynced = log.unsynced()
    with pytest.raises(WriteFailed) as failure:
        unsynced.sync()
    log.synced(unsynced, failure.value)
    with pytest.raises(WriteFailed):
        log.flush()


def test_many_queues_with_few_places(tmp_path: Path) -> None:
    """Review finding 4: every queue that was written to held two descriptors."""
    segments = OpenSegments(OpenFiles(Files(), places=16))
    logs = [log_of(segments, tmp_path, str(number)) for number in range(60)]
    for round_ in range(3):
        for log in logs:
            fill(log, batches(30, first=30 * round_))
    assert len(segments.table) <= 16
    assert segments.table.unsynced <= 12
    states = [checkpoint(log) for log in logs]
    assert segments.table.unsynced == 0
    for log in logs:
        assert_holds(log, 0, 90)
    assert len(segments.table) <= 16
    for log in logs:
        log.close()
    segments.close()
    assert len(segments.table) == 0
    again = [log_of(segments, tmp_path, str(number), state) for number, state in enumerate(states)]
    for log in again:
        assert_holds(log, 0, 90)


def test_a_log_gives_its_descriptors_to_whoever_finds_none(tmp_path: Path) -> None:
    """Review finding 4: connections have taken all descriptors; logs that are synced give theirs."""
    files = NoDescriptors(free=8)
    segments = OpenSegments(OpenFiles(files, places=100))
    logs = [log_of(segments, tmp_path, str(number)) for number in range(3)]
    for log in logs:
        fill(log, batches(40))
        checkpoint(log)
    assert len(segments.table) > 3
    files.free = 3
    for log in logs:
        assert_holds(log, 0, 40)
    assert len(segments.table) <= 3


def test_spare_descriptors_are_for_when_there_are_none(tmp_path: Path) -> None:
    """A reader finds a descriptor although connections have taken all and no file of ours is open."""
    files = NoDescriptors(free=100)
    table = OpenFiles(files)
    file = OpenFile(table, str(tmp_path / "a"))
    file.opened()
    file.release()
    table.keep_spares()
    table.keep_spares()
    files.free = SPARES
    reader = OpenFile(table, str(tmp_path / "a"), readonly=True)
    assert reader.opened() >= 0
    reader.release()
    others = [OpenFile(table, str(tmp_path / f"other {number}")) for number in range(SPARES)]
    for other in others:
        other.opened().__index__()
        other.shared()
    with pytest.raises(OutOfDescriptors, match="raise the limit of open files"):
        OpenFile(table, str(tmp_path / "last")).opened()
    for other in others:
        other.give_back()
        other.release()
    table.keep_spares()
    assert len(files._names) == SPARES
    table.close_spares()
    assert not files._names


def test_other_threads_take_spare_descriptors_only(tmp_path: Path) -> None:
    """What the shard's own thread has in hand is not closed under it."""
    files = NoDescriptors(free=100)
    table = OpenFiles(files)
    table.keep_spares()
    file = OpenFile(table, str(tmp_path / "a"))
    file.opened()
    files.free = SPARES + 1
    found: list[bool] = []
    for _ in range(SPARES + 1):
        thread = threading.Thread(target=lambda: found.append(table.make_room()))
        thread.start()
        thread.join()
    assert found == [True] * SPARES + [False]
    assert file.fd >= 0
    assert table.make_room()
    assert file.fd < 0


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
@pytest.mark.parametrize("operation", ["open", "create", "open directory", "listdir"])
def test_no_descriptor_is_nobodys_failure(tmp_path: Path, operation: str, code: int) -> None:
    files = FailingFiles()
    files.fail(operation, code)
    with pytest.raises(OutOfDescriptors, match=operation):
        files.call(operation, str(tmp_path), int)


def test_no_memory_for_a_write_is_a_failure(tmp_path: Path) -> None:
    files = FailingFiles()
    files.fail("pwritev", errno.ENOMEM)
    with pytest.raises(WriteFailed):
        files.call("pwritev", str(tmp_path), int)

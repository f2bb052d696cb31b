"""Segments are written out a little at a time: so that no sync, and no kernel, has hundreds of megabytes to write at once."""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

import pytest

from fluxmq.storage import files as files_module
from fluxmq.storage.errors import WriteFailed
from fluxmq.storage.files import Files
from fluxmq.storage.open_files import WRITE_OUT_BYTES
from fluxmq.storage.queue_log import QueueLog, SegmentOptions
from tests.faults import FailingFiles
from tests.unit.storage.logs import SECOND, batches, checkpoint, fill, opened

LARGE = SegmentOptions(segment_bytes=4 << 20, segment_age=3600 * SECOND, index_bytes=64 << 10)


def grown(directory: Path, files: Files) -> QueueLog:
    """A log with one segment of a little over a megabyte."""
    log = opened(directory / "orders", options=LARGE, files=files)
    fill(log, batches(20, size=60_000))
    assert log.bytes > 4 * WRITE_OUT_BYTES
    return log


def test_a_sync_writes_in_pieces_first(tmp_path: Path) -> None:
    files = FailingFiles()
    log = grown(tmp_path, files)
    checkpoint(log)
    assert files.calls["write_out"] == (log.bytes - 1) // WRITE_OUT_BYTES
    synced = files.calls["fdatasync"]
    assert synced > 0
    fill(log, batches(1, first=20))
    checkpoint(log)  # little is not worth a piece, and what was written out is not again
    assert files.calls["write_out"] == (log.bytes - 1) // WRITE_OUT_BYTES
    assert files.calls["fdatasync"] > synced


def test_what_failed_when_it_was_written_out_is_never_synced(tmp_path: Path) -> None:
    files = FailingFiles()
    log = grown(tmp_path, files)
    (file, *_) = log.written_files()
    files.fail("write_out", errno.EIO, nth=2)
    with pytest.raises(WriteFailed, match="write_out"):
        file.write_out(file.end)
    unsynced = log.unsynced()
    with pytest.raises(WriteFailed, match="write_out") as failure:
        unsynced.sync()  # although the disk works again, as far as it says
    assert files.calls["fdatasync"] == 0
    log.synced(unsynced, failure.value)
    with pytest.raises(WriteFailed):
        log.unsynced()


def test_a_file_that_was_closed_begins_where_it_goes_on(tmp_path: Path) -> None:
    files = FailingFiles()
    state = checkpoint(grown(tmp_path, files))
    again = FailingFiles()
    log = opened(tmp_path / "orders", state, options=LARGE, files=again)
    fill(log, batches(5, first=20, size=60_000))
    checkpoint(log)
    assert again.calls["write_out"] == 1


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.EPERM, errno.EINVAL])
def test_where_it_cannot_be_asked_for_the_kernel_does_it_in_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    class Refusing:
        def sync_file_range(self, *_arguments: object) -> int:
            ctypes.set_errno(code)
            return -1

    for libc in (Refusing(), object()):
        monkeypatch.setattr(files_module, "_libc", libc)
        checkpoint(grown(tmp_path / type(libc).__name__, Files()))


def test_a_failure_of_the_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing:
        def sync_file_range(self, *_arguments: object) -> int:
            ctypes.set_errno(errno.EIO)
            return -1

    files = Files()
    fd = files.open_(str(tmp_path / "file"), create=True)
    files.pwritev(fd, [bytes(8192)], 0)
    files.write_out(fd, 0, 8192)
    monkeypatch.setattr(files_module, "_libc", Failing())
    with pytest.raises(WriteFailed, match=os.strerror(errno.EIO)):
        files.write_out(fd, 0, 8192)
    files.close(fd)

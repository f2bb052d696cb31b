"""Copies of a queue that is written to meanwhile: whole, of one moment, or not there."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fluxmq.model.group_states import GROUPS_NAME
from fluxmq.model.segments import SLOT_BYTES, newest_head
from fluxmq.storage.directory import DirectoryError
from fluxmq.storage.errors import Corruption, DiskFull, StorageError
from fluxmq.storage.files import Files
from fluxmq.storage.inspect import log_batches, scan_log
from fluxmq.storage.queue_copy import ATTEMPTS_MAX, COPYING, copy_queue
from fluxmq.storage.queue_log import QueueLog
from tests.faults import FailingFiles
from tests.unit.storage.logs import batches, fill, opened, payload


@pytest.fixture
def source(tmp_path: Path) -> Iterator[QueueLog]:
    """A log of 200 messages in several segments, the last of which grows; the first ones are gone."""
    log = opened(tmp_path / "data" / "orders")
    fill(log, batches(200))
    log.trim(30)
    log.flush()
    assert len(log.state().segments) > 3
    yield log
    log.close()


def payloads(directory: str) -> list[bytes]:
    """What a copy holds; all of it is whole."""
    report = scan_log(Files(), directory)
    assert report.problems == []
    return [each.payload(0) for each in log_batches(Files(), directory)]


def test_a_copy_holds_what_the_head_says(source: QueueLog, tmp_path: Path) -> None:
    (Path(source.directory) / GROUPS_NAME).write_bytes(b"where groups are")
    target = str(tmp_path / "copies" / "groups" / "g" / "queues" / "orders")
    copy = copy_queue(Files(), source.directory, target)
    assert (copy.head.start, copy.head.committed, copy.messages) == (30, 200, 170)
    assert payloads(target) == [payload(offset) for offset in range(30, 200)]
    assert (Path(target) / GROUPS_NAME).read_bytes() == b"where groups are"
    assert (copy.linked, copy.copied) == (len(source.state().segments) - 1, 1)
    linked, copied = 0, 0
    for path in Path(target).glob("*.seg"):
        links = path.stat().st_nlink
        linked += path.stat().st_size if links == 2 else 0
        copied += path.stat().st_size if links == 1 else 0
    assert (copy.linked_bytes, copy.copied_bytes) == (linked, copied)
    head = (Path(target) / "head").read_bytes()
    slots = [newest_head(head[at : at + SLOT_BYTES]) for at in (0, SLOT_BYTES)]
    assert [slot and slot.sequence for slot in slots] == [2, 1]
    assert slots[0] is not None
    assert slots[0] == newest_head(head) == copy.head._replace(sequence=2)


def test_what_the_queue_does_later_does_not_touch_the_copy(
    source: QueueLog, tmp_path: Path
) -> None:
    target = str(tmp_path / "copy")
    copy_queue(Files(), source.directory, target)
    before = {path.name: path.read_bytes() for path in Path(target).iterdir()}
    fill(source, batches(200, first=200))
    source.trim(400, purge=True)
    assert len(list(Path(source.directory).glob("*.seg"))) == 0
    assert {path.name: path.read_bytes() for path in Path(target).iterdir()} == before


def test_a_last_segment_that_is_sealed_is_linked(source: QueueLog, tmp_path: Path) -> None:
    base = source.state().segments[-1].base_offset
    next_offset = 200
    while source.state().segments[-1].base_offset == base:
        # The batch that seals it is committed in the next segment: the head of before is what readers may have.
        head = (Path(source.directory) / "head").read_bytes()
        fill(source, batches(1, first=next_offset))
        next_offset += 1
    (Path(source.directory) / "head").write_bytes(head)
    copy = copy_queue(Files(), source.directory, str(tmp_path / "copy"))
    assert (copy.copied, copy.messages) == (0, next_offset - 1 - 30)
    assert payloads(copy.directory) == [payload(offset) for offset in range(30, next_offset - 1)]


def test_a_segment_whose_index_is_not_sealed_yet_is_copied(
    source: QueueLog, tmp_path: Path
) -> None:
    """As between the two writes that seal a segment: what is linked would change once more."""
    base = source.state().segments[-1].base_offset
    while source.state().segments[-1].base_offset == base:
        head = (Path(source.directory) / "head").read_bytes()
        fill(source, batches(1, first=source.next_offset))
    (Path(source.directory) / "head").write_bytes(head)
    index = Path(source.directory) / f"{base:020d}.idx"
    os.truncate(index, index.stat().st_size - 16)
    copy = copy_queue(Files(), source.directory, str(tmp_path / "copy"))
    assert copy.copied == 1
    assert len(payloads(copy.directory)) == copy.messages


def test_a_copy_of_a_growing_segment_ends_where_the_head_does(
    source: QueueLog, tmp_path: Path
) -> None:
    head = (Path(source.directory) / "head").read_bytes()
    segments = source.state().segments
    fill(source, batches(10, first=200))
    assert len(source.state().segments) == len(segments)
    (Path(source.directory) / "head").write_bytes(head)
    copy = copy_queue(Files(), source.directory, str(tmp_path / "copy"))
    last = Path(copy.directory) / f"{segments[-1].base_offset:020d}.seg"
    assert last.stat().st_size == copy.head.position == segments[-1].length
    assert last.with_suffix(".idx").stat().st_size == 16 * segments[-1].index_entries
    assert payloads(copy.directory)[-1] == payload(199)


@pytest.mark.parametrize("code", [errno.EXDEV, errno.EPERM])
def test_where_files_cannot_be_linked_they_are_copied(
    source: QueueLog, tmp_path: Path, code: int
) -> None:
    files = FailingFiles()
    files.fail_always("link", code)
    copy = copy_queue(files, source.directory, str(tmp_path / "copy"))
    assert (copy.linked, copy.copied, copy.unlinkable) == (0, len(source.state().segments), True)
    assert files.calls["link"] == 1
    assert payloads(copy.directory) == [payload(offset) for offset in range(30, 200)]
    assert {path.stat().st_nlink for path in Path(copy.directory).iterdir()} == {1}


def test_a_kernel_that_does_not_copy_is_done_without(source: QueueLog, tmp_path: Path) -> None:
    files = FailingFiles()
    files.fail_always("copy", errno.ENOSYS)
    copy = copy_queue(files, source.directory, str(tmp_path / "copy"), link=False)
    assert (copy.linked, copy.unlinkable) == (0, False)
    assert payloads(copy.directory) == [payload(offset) for offset in range(30, 200)]


@pytest.mark.parametrize("operation", ["link", "copy", "fdatasync", "pwritev", "rename"])
def test_an_error_leaves_nothing_behind(source: QueueLog, tmp_path: Path, operation: str) -> None:
    files = FailingFiles()
    files.fail(operation, errno.ENOSPC)
    with pytest.raises(DiskFull):
        copy_queue(files, source.directory, str(tmp_path / "copies" / "orders"))
    assert list((tmp_path / "copies").iterdir()) == []


def test_what_a_killed_process_left_is_replaced(source: QueueLog, tmp_path: Path) -> None:
    left = tmp_path / f"{COPYING}orders"
    left.mkdir()
    (left / "00000000000000000000.seg").write_bytes(b"half of one")
    copy = copy_queue(Files(), source.directory, str(tmp_path / "orders"))
    assert payloads(copy.directory) == [payload(offset) for offset in range(30, 200)]
    assert not left.exists()


@pytest.mark.parametrize("appended", [30, 60, 120])
def test_retention_before_the_next_write_leaves_a_head_that_is_right(
    source: QueueLog, tmp_path: Path, appended: int
) -> None:
    """Segments were filled and are not written yet when the head has to move: it ends in what is written."""
    end = source.state().segments[1].next_offset
    for each in batches(appended, first=200):
        source.append(each)
    source.trim(end)
    copy = copy_queue(Files(), source.directory, str(tmp_path / "copy"))
    assert copy.head.committed == 200
    assert copy.head.segment <= 200
    assert payloads(copy.directory) == [payload(each) for each in range(copy.head.start, 200)]


def test_an_index_that_is_not_there_is_not_missed(source: QueueLog, tmp_path: Path) -> None:
    for path in Path(source.directory).glob("*.idx"):
        path.unlink()
    copy = copy_queue(Files(), source.directory, str(tmp_path / "copy"))
    assert list(Path(copy.directory).glob("*.idx")) == []
    assert {problem.what for problem in scan_log(Files(), copy.directory).problems} == {
        "the index is missing or wrong"
    }
    assert copy.messages == 170


def test_two_at_once_are_refused(source: QueueLog, tmp_path: Path) -> None:
    class Meanwhile(Files):
        """Makes the same copy while one is made."""

        refused = ""

        def reach(self, failpoint: str) -> None:
            if failpoint == "copy.rename":
                with pytest.raises(DirectoryError) as error:
                    copy_queue(Files(), source.directory, str(tmp_path / "orders"))
                self.refused = str(error.value)

    files = Meanwhile()
    copy = copy_queue(files, source.directory, str(tmp_path / "orders"))
    assert "another process is making" in files.refused
    assert copy.messages == 170
    with pytest.raises(DirectoryError, match="is there already"):
        copy_queue(Files(), source.directory, str(tmp_path / "orders"))


class Racing(Files):
    """Retention removes the oldest segment each time such a file is about to be linked, for some times."""

    def __init__(self, log: QueueLog, times: int, suffix: str = ".seg") -> None:
        super().__init__()
        self.log = log
        self.times = times
        self.suffix = suffix

    def call(self, operation, path, function, *args, **kwargs):
        if operation == "link" and self.times and path.endswith(self.suffix):
            self.times -= 1
            self.log.trim(self.log.state().segments[0].next_offset)
            fill(self.log, batches(70, first=self.log.next_offset))
        return super().call(operation, path, function, *args, **kwargs)


@pytest.mark.parametrize("suffix", [".seg", ".idx"])
def test_retention_that_is_faster_makes_it_begin_anew(
    source: QueueLog, tmp_path: Path, suffix: str
) -> None:
    copy = copy_queue(Racing(source, 3, suffix), source.directory, str(tmp_path / "copy"))
    assert copy.attempts == 4
    assert copy.head.start > 30
    assert payloads(copy.directory) == [
        payload(offset) for offset in range(copy.head.start, copy.head.committed)
    ]


def test_retention_that_is_always_faster_ends_it(source: QueueLog, tmp_path: Path) -> None:
    with pytest.raises(DirectoryError, match=f"removed segments while .* {ATTEMPTS_MAX} times"):
        copy_queue(Racing(source, 1000), source.directory, str(tmp_path / "copy"))
    assert not (tmp_path / "copy").exists()


@pytest.mark.parametrize("number", [0, 1, -1])
def test_a_segment_that_is_missing_is_damage(source: QueueLog, tmp_path: Path, number: int) -> None:
    """The first and the last are missed by the copy; a hole between them by whoever reads it."""
    sorted(Path(source.directory).glob("*.seg"))[number].unlink()
    if number == 1:
        copy = copy_queue(Files(), source.directory, str(tmp_path / "copy"))
        (problem,) = scan_log(Files(), copy.directory).problems
        assert "are missing before it" in problem.what
        return
    with pytest.raises(Corruption, match="there are not all"):
        copy_queue(Files(), source.directory, str(tmp_path / "copy"))


def test_a_segment_that_ends_before_the_head_says_is_damage(
    source: QueueLog, tmp_path: Path
) -> None:
    last = max(Path(source.directory).glob("*.seg"))
    size = last.stat().st_size
    os.truncate(last, size - 1)
    with pytest.raises(Corruption, match=f"byte {size - 1}: the file ends here"):
        copy_queue(Files(), source.directory, str(tmp_path / "copy"))


def test_a_queue_without_messages(tmp_path: Path) -> None:
    log = opened(tmp_path / "orders")
    with pytest.raises(DirectoryError, match="no valid head"):
        copy_queue(Files(), str(tmp_path / "nothing"), str(tmp_path / "copy"))
    fill(log, batches(5))
    log.trim(5)
    log.flush()
    copy = copy_queue(Files(), log.directory, str(tmp_path / "copy"))
    log.close()
    assert (copy.messages, copy.head.start, copy.head.segment, copy.head.position) == (0, 5, 5, 0)
    assert [path.name for path in Path(copy.directory).iterdir()] == ["head"]
    assert scan_log(Files(), copy.directory).problems == []


def test_beside_a_writer(tmp_path: Path) -> None:
    """Each copy is whole, whatever the writer does meanwhile: appending, rolling, removing."""
    log = opened(tmp_path / "orders")
    fill(log, batches(50))
    ended, failed = threading.Event(), []

    def write() -> None:
        try:
            while not ended.is_set():
                fill(log, batches(20, first=log.next_offset), per_flush=3)
                if log.segments > 20:
                    # As an entry does that appends and trims: not all is written when the head moves.
                    for each in batches(60, first=log.next_offset):
                        log.append(each)
                    log.trim(log.start_offset + 60)
                    log.flush()
        except StorageError as error:
            failed.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for number in range(4):
            copy = copy_queue(Files(), log.directory, str(tmp_path / f"copy{number}"))
            report = scan_log(Files(), copy.directory)
            assert report.problems == []
            assert (report.start, report.next_offset) == (copy.head.start, copy.head.committed)
            assert payloads(copy.directory) == [
                payload(offset) for offset in range(copy.head.start, copy.head.committed)
            ]
    finally:
        ended.set()
        writer.join()
        log.close()
    assert failed == []


def test_no_descriptor_stays_open(source: QueueLog, tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    copy_queue(Files(), source.directory, str(tmp_path / "copy"))
    assert len(os.listdir("/proc/self/fd")) == before

"""Which queues and segments there are, as the head says."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fluxmq.model.segments import FOOTER_BYTES
from fluxmq_spark.catalog import Log, QueueFiles, find_queues, missing, read_head, read_log
from fluxmq_spark.errors import Damage, SparkSourceError
from fluxmq_spark.storage import LocalStorage
from tests.spark_queues import QueueOnDisk, messages_of

STORAGE = LocalStorage()


def files_of(queue: QueueOnDisk) -> QueueFiles:
    """Where a queue is."""
    return QueueFiles(queue.log.queue, "default", str(queue.directory))


def log_of(queue: QueueOnDisk) -> Log:
    """Its log, which has to be there."""
    log = read_log(STORAGE, files_of(queue))
    assert log is not None
    return log


@pytest.fixture
def queue(tmp_path: Path) -> QueueOnDisk:
    """A queue of several segments."""
    made = QueueOnDisk(tmp_path / "data")
    made.fill(3000)
    return made


def test_queues_are_found_by_their_own_names(tmp_path: Path) -> None:
    """Encoded, cut, or plain; in any replication group."""
    root = tmp_path / "data"
    long = "é" * 150
    for name, group in ((long, "default"), ("a/b", "default"), (".hidden", "west"), ("x", "we/st")):
        QueueOnDisk(root, name, group=group).append(messages_of([b"1"]))
    (root / "groups/default/queues/.deleted-7").mkdir()
    found = find_queues(STORAGE, str(root))
    assert [(files.queue, files.group) for files in found] == [
        (".hidden", "west"),
        ("a/b", "default"),
        ("x", "we/st"),
        (long, "default"),
    ]
    assert all(Path(files.directory, "head").exists() for files in found)


def test_a_long_name_without_segments_is_not_known(tmp_path: Path) -> None:
    """The name is in the segments, and there is nothing to read."""
    QueueOnDisk(tmp_path / "data", "é" * 150)
    assert find_queues(STORAGE, str(tmp_path / "data")) == []


def test_a_queue_alone_and_a_copy(tmp_path: Path, queue: QueueOnDisk) -> None:
    """One queue's directory, wherever it is; a group's; a copy without VERSION. A file ``groups`` is no directory of groups."""
    (queue.directory / "groups").write_bytes(b"")
    shutil.copytree(queue.directory, tmp_path / "copy")
    assert find_queues(STORAGE, str(tmp_path / "copy")) == [
        QueueFiles("orders", "", str(tmp_path / "copy"))
    ]
    shutil.copytree(queue.root / "groups", tmp_path / "other/groups")
    (found,) = find_queues(STORAGE, str(tmp_path / "other"))
    assert (found.queue, found.group) == ("orders", "default")
    assert find_queues(STORAGE, str(tmp_path / "other/groups/default")) == [found]


def test_what_is_no_data_directory(tmp_path: Path) -> None:
    """Nothing there, something else there, another version."""
    with pytest.raises(SparkSourceError, match="is not there"):
        find_queues(STORAGE, str(tmp_path / "none"))
    (tmp_path / "file").write_text("")
    with pytest.raises(SparkSourceError, match="is neither a data directory"):
        find_queues(STORAGE, str(tmp_path))
    (tmp_path / "VERSION").write_text("fluxmq data 1\n")
    assert find_queues(STORAGE, str(tmp_path)) == []
    (tmp_path / "VERSION").write_text("fluxmq data 4\n")
    with pytest.raises(SparkSourceError, match="fluxmq data 3"):
        find_queues(STORAGE, str(tmp_path))


def test_a_damaged_page_where_the_name_is_needed(tmp_path: Path) -> None:
    """File and byte are named."""
    queue = QueueOnDisk(tmp_path / "data", "é" * 150)
    queue.fill(1)
    with open(queue.segments()[0], "r+b") as file:
        file.write(b"X")
    with pytest.raises(Damage, match=r"0\.seg, byte 0: the header page"):
        find_queues(STORAGE, str(queue.root))


def test_a_log_is_what_the_head_says(queue: QueueOnDisk) -> None:
    """Segments follow each other; of the last one no byte behind the head is told."""
    log = log_of(queue)
    assert [segment.path for segment in log.segments] == [str(path) for path in queue.segments()]
    assert len(log.segments) > 2
    for segment, after in zip(log.segments, log.segments[1:], strict=False):
        assert segment.next_offset == after.base_offset
        assert (segment.sealed, segment.end) == (True, -1)
        assert Path(segment.index_path).exists()
    last = log.segments[-1]
    assert (last.next_offset, last.sealed) == (3000, False)
    assert last.end == queue.segments()[-1].stat().st_size
    # Bytes behind the head: a torn append.
    with open(last.path, "ab") as file:
        file.write(b"FLXB" + bytes(60))
    assert log_of(queue) == log


def test_segments_below_the_start_are_left_out(queue: QueueOnDisk) -> None:
    """Retention moved the head and has not unlinked yet, or keeps a part of a segment."""
    second = log_of(queue).segments[1].base_offset
    kept = queue.directory / "kept"
    shutil.copytree(queue.directory, kept)
    queue.trim(second + 1)
    log = log_of(queue)
    assert (log.head.start, log.segments[0].base_offset) == (second + 1, second)
    shutil.copy(kept / f"{0:020d}.seg", queue.directory)
    assert log_of(queue) == log


def test_a_queue_whose_last_segment_is_sealed(queue: QueueOnDisk) -> None:
    """What ended the last segment does not belong to what may be read."""
    segment = queue.log._growing
    assert segment is not None
    queue.log._roll(segment)
    queue.log._head_moved = True
    queue.log.flush()
    last = log_of(queue).segments[-1]
    assert last.end == queue.segments()[-1].stat().st_size - FOOTER_BYTES
    assert not last.sealed


def test_empty_queues(tmp_path: Path) -> None:
    """Never anything appended, and everything removed."""
    queue = QueueOnDisk(tmp_path / "data")
    assert log_of(queue).segments == ()
    queue.fill(300)
    queue.log.trim(300, purge=True)
    queue.log.flush()
    log = log_of(queue)
    assert (log.head.start, log.head.committed, log.segments) == (300, 300, ())
    assert missing(log, 300, 300) == []


def test_no_head(queue: QueueOnDisk) -> None:
    """Gone or torn: nothing of the queue may be read."""
    head = queue.directory / "head"
    head.write_bytes(head.read_bytes()[:40])
    assert read_head(STORAGE, files_of(queue)) is None
    assert read_log(STORAGE, files_of(queue)) is None
    head.unlink()
    assert read_log(STORAGE, files_of(queue)) is None


def test_missing_files_are_told(queue: QueueOnDisk) -> None:
    """At both ends; what was asked for and is in no file."""
    log = log_of(queue)
    assert missing(log, 0, 3000) == []
    first, *_, last = queue.segments()
    second = log.segments[1].base_offset
    first.unlink()
    last.unlink()
    cut = log_of(queue)
    tail = log.segments[-1].base_offset
    assert missing(cut, 0, 3000) == [(0, second), (tail, 3000)]
    assert missing(cut, 100, 200) == [(100, 200)]
    assert missing(cut, second, tail) == []
    for path in queue.segments():
        path.unlink()
    assert missing(log_of(queue), 0, 3000) == [(0, 3000)]


class Racing(LocalStorage):
    """Between the first look at the head and the list of files something happens."""

    def __init__(self, queue: QueueOnDisk, start: int) -> None:
        self._queue = queue
        self._start = start

    def list(self, directory: str) -> list[str]:
        """Retention first."""
        self._queue.trim(self._start)
        return super().list(directory)


def test_retention_between_head_and_list(queue: QueueOnDisk) -> None:
    """The head says why files are not there: it is looked at again."""
    start = log_of(queue).segments[2].base_offset
    log = read_log(Racing(queue, start), files_of(queue))
    assert log is not None
    assert (log.head.start, log.segments[0].base_offset) == (start, start)

"""Disks that are full, fail, or lose their power while a log is written."""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random

import pytest

from fluxmq.model.segments import segment_name
from fluxmq.storage.directory import remove_unknown
from fluxmq.storage.errors import DiskFull, OutOfDescriptors, StorageError, WriteFailed
from fluxmq.storage.files import Files
from fluxmq.storage.head import read_head
from fluxmq.storage.log_state import LogState
from fluxmq.storage.queue_log import QueueLog
from fluxmq.storage.snapshots import latest_snapshot, snapshot_name, write_snapshot
from tests.faults import Crash, FailingFiles, PowerCutFiles
from tests.unit.storage.logs import batches, checkpoint, contents, fill, opened, payload


def assert_readable(log: QueueLog) -> None:
    for offset in range(log.start_offset, log.next_offset):
        assert log.read(offset).payload(0) == payload(offset)


@pytest.mark.parametrize("operation", ["pwritev", "create"])
def test_a_full_disk_is_waited_for(tmp_path: Path, operation: str) -> None:
    """Nothing is lost, all can be read meanwhile, and the files come out as if nothing had been."""
    files = FailingFiles()
    log = opened(tmp_path / "orders", files=files)
    fill(log, batches(30))
    files.fail_always(operation, errno.ENOSPC)
    for each in batches(60, first=30):
        log.append(each)
    for _ in range(3):
        with pytest.raises(DiskFull):
            log.flush()
        assert_readable(log)
    head = read_head(Files(), log.directory)
    assert head is not None
    assert head.committed == 30
    files.work_again()
    log.flush()
    assert_readable(log)
    other = opened(tmp_path / "other")
    fill(other, batches(90))
    assert contents(tmp_path / "orders") == contents(tmp_path / "other")
    assert log.state() == other.state()


def test_space_is_given_back_on_a_full_disk(tmp_path: Path) -> None:
    """Trimming needs no space: the head's slots are there from the beginning."""
    files = FailingFiles()
    log = opened(tmp_path / "orders", files=files)
    fill(log, batches(100))
    for each in batches(10, first=100):
        log.append(each)
    files.fail("pwritev", errno.ENOSPC)
    with pytest.raises(DiskFull):
        log.flush()
    files.fail_always("create", errno.ENOSPC)
    log.trim(90)
    assert segment_name(0) not in contents(tmp_path / "orders")
    head = read_head(Files(), log.directory)
    assert head is not None
    assert (head.start, head.committed) == (90, 100)
    log.flush()
    assert_readable(log)


@pytest.mark.parametrize("kept", [0, 1, 63, 64, 100, 5000])
def test_short_writes_are_continued(tmp_path: Path, kept: int) -> None:
    files = FailingFiles()
    log = opened(tmp_path / "orders", files=files)
    for each in batches(20):
        log.append(each)
    files.shorten("pwritev", kept)
    if kept:
        log.flush()
    else:
        with pytest.raises(WriteFailed, match="nothing was written"):
            log.flush()
        log.flush()
    fresh = opened(tmp_path / "orders", checkpoint(log))
    assert_readable(fresh)


def test_a_failed_sync_ends_the_log(tmp_path: Path) -> None:
    files = FailingFiles()
    log = opened(tmp_path / "orders", files=files)
    fill(log, batches(10))
    unsynced = log.unsynced()
    files.fail("fdatasync", errno.EIO)
    with pytest.raises(WriteFailed) as failure:
        unsynced.sync()
    log.synced(unsynced, failure.value)
    log.append(batches(1, first=10)[0])
    with pytest.raises(WriteFailed):
        log.flush()
    with pytest.raises(WriteFailed):
        log.unsynced()


def test_a_failed_head_leaves_the_older_one(tmp_path: Path) -> None:
    files = FailingFiles()
    log = opened(tmp_path / "orders", files=files)
    fill(log, batches(10))
    log.append(batches(1, first=10)[0])
    files.fail("pwritev", errno.EIO, nth=2)
    with pytest.raises(WriteFailed):
        log.flush()
    head = read_head(Files(), log.directory)
    assert head is not None
    assert head.committed == 10
    log.flush()
    head = read_head(Files(), log.directory)
    assert head is not None
    assert head.committed == 11


# --- power cuts ------------------------------------------------------------------------------------------------------


class Node:
    """A log, the entries behind its last checkpoint as a write-ahead log would have them, and its power."""

    def __init__(self, root: Path, random: Random) -> None:
        self.root = root
        self.random = random
        self.entries: list[tuple[str, int]] = []
        self.state: LogState | None = None
        self.life = 0
        self.files = PowerCutFiles(str(root / "stash 0"))
        self.log = self.open()

    def open(self, *, recovering: bool = False) -> QueueLog:
        return opened(self.root / "log", self.state, files=self.files, recovering=recovering)

    def apply(self, verb: str, number: int) -> None:
        if verb == "append":
            self.log.append(batches(1, first=number)[0])
        else:
            self.log.trim(number)

    def do(self, verb: str, number: int) -> None:
        """The entry is durable elsewhere, so it counts even if the power fails within."""
        self.entries.append((verb, number))
        self.apply(verb, number)

    def checkpoint(self) -> None:
        behind = len(self.entries)
        state = checkpoint(self.log)
        # The snapshot is what makes a checkpoint count.
        self.state = state
        del self.entries[:behind]

    def cut(self) -> None:
        mode = self.random.choice(["nothing", "all", "prefix", "sectors"])
        self.files.cut(self.random, mode)
        self.log.close()

    def restart(self) -> None:
        self.life += 1
        self.files = PowerCutFiles(str(self.root / f"stash {self.life}"))
        self.log = self.open(recovering=True)
        for verb, number in self.entries:
            self.apply(verb, number)
            if self.random.random() < 0.2:
                self.log.flush()
        self.log.cut()


@pytest.mark.parametrize("seed", range(40))
def test_a_power_cut_anywhere_loses_nothing(tmp_path: Path, seed: int) -> None:
    """Crashes before any system call or at any named place; then the disk keeps what it likes of what was not synced."""
    random = Random(seed)
    (tmp_path / "log").mkdir()
    node = Node(tmp_path, random)
    start = end = 0
    for _ in range(4):
        operation = random.choice(["pwritev", "unlink", "fdatasync", "create", "truncate", "close"])
        if random.random() < 0.3:
            place = ["write", "roll", "trim", "sync", "sync_directory", "cut"]
            node.files.crash_at(f"segment.{random.choice(place)}", random.randrange(1, 8))
        else:
            node.files.crash(operation, random.randrange(1, 60))
        try:
            for _ in range(random.randrange(30, 200)):
                kind = random.random()
                if kind < 0.8:
                    end += 1
                    node.do("append", end - 1)
                elif kind < 0.9:
                    start = max(start, random.randrange(start, end + 1))
                    node.do("trim", start)
                elif kind < 0.97:
                    node.log.flush()
                else:
                    node.checkpoint()
        except Crash:
            assert node.files.dead
        node.cut()
        node.restart()
        assert (node.log.start_offset, node.log.next_offset) == (start, end)
        assert_readable(node.log)
        head = read_head(Files(), node.log.directory)
        assert head is not None
        assert (head.start, head.committed) == (start, end)
    node.checkpoint()
    node.log.close()
    assert_readable(opened(tmp_path / "log", node.state))


def test_replicas_are_equal_though_one_lost_its_power(tmp_path: Path) -> None:
    random = Random(1)
    (tmp_path / "log").mkdir()
    node = Node(tmp_path, random)
    healthy = opened(tmp_path / "healthy")
    for number in range(150):
        node.do("append", number)
        healthy.append(batches(1, first=number)[0])
        if number % 31 == 0:
            node.do("trim", number - 10)
            healthy.trim(number - 10)
        if number % 41 == 0:
            node.checkpoint()
        if number % 50 == 49:
            node.cut()
            node.restart()
    healthy.flush()
    node.log.flush()
    assert contents(tmp_path / "log") == contents(tmp_path / "healthy")
    assert node.log.state() == healthy.state()


@pytest.mark.parametrize("seed", range(25))
def test_a_snapshot_is_there_or_not(tmp_path: Path, seed: int) -> None:
    """A crash in writing the third of three snapshots leaves the second or the third, whole."""
    random = Random(seed)
    files = PowerCutFiles(str(tmp_path / "stash"))
    directory = str(tmp_path / "snapshots")
    for index in (1, 2):
        write_snapshot(files, directory, index, 1, b"%d" % index * 2000)
    operation = random.choice(
        ["create", "pwritev", "fdatasync", "rename", "fsync_directory", "unlink"]
    )
    files.crash(operation)
    done = False
    try:
        write_snapshot(files, directory, 3, 1, b"3" * 2000)
        done = True
    except Crash:
        assert files.dead
    files.cut(random, random.choice(["nothing", "all", "prefix", "sectors"]))
    found = latest_snapshot(Files(), directory)
    assert found is not None
    assert found.content == b"%d" % found.index * 2000
    assert found.index == 3 if done or operation == "unlink" else found.index in (2, 3)


@pytest.mark.parametrize("operation", ["pwritev", "fdatasync", "rename", "create"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_snapshot_that_fails_leaves_the_others(tmp_path: Path, operation: str, code: int) -> None:
    files = FailingFiles()
    write_snapshot(files, str(tmp_path), 1, 1, b"one")
    files.fail(operation, code)
    with pytest.raises(StorageError):
        write_snapshot(files, str(tmp_path), 2, 1, b"two")
    assert [path.name for path in tmp_path.iterdir()] == [snapshot_name(1)]
    found = latest_snapshot(files, str(tmp_path))
    assert found is not None
    assert found.content == b"one"


@pytest.mark.parametrize("nth", range(1, 6))
def test_a_deletion_that_ends_half_way_is_finished_later(tmp_path: Path, nth: int) -> None:
    files = FailingFiles()
    log = opened(tmp_path / "orders", files=files)
    fill(log, batches(60))
    files.crash("unlink", nth)
    with pytest.raises(Crash):
        log.delete()
    assert not (tmp_path / "orders").exists()
    remove_unknown(Files(), str(tmp_path), [])
    assert list(tmp_path.iterdir()) == []


# --- no descriptors --------------------------------------------------------------------------------------------------

OPENING = ("create", "open", "open directory", "listdir")


def out_of_descriptors(files: FailingFiles, code: int) -> None:
    """No file can be opened."""
    for operation in OPENING:
        files.fail_always(operation, code)


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE])
def test_a_log_waits_for_descriptors(tmp_path: Path, code: int) -> None:
    """Review finding 4: "Too many open files" while a segment rolls ended the group, where a full disk is waited for."""
    files = FailingFiles()
    log = opened(tmp_path / "orders", files=files, cached=True)
    fill(log, batches(30))
    checkpoint(log)
    out_of_descriptors(files, code)
    for each in batches(60, first=30):
        log.append(each)
    for _ in range(2):
        with pytest.raises(OutOfDescriptors):
            log.flush()
        assert_readable(log)
    files.work_again()
    log.flush()
    assert_readable(log)
    other = opened(tmp_path / "other")
    fill(other, batches(90))
    assert contents(tmp_path / "orders") == contents(tmp_path / "other")
    assert log.state() == other.state()


def test_a_log_is_made_when_there_are_descriptors(tmp_path: Path) -> None:
    """A queue that is declared meanwhile is there, and takes messages; what was left of an older one goes."""
    older = opened(tmp_path / "orders")
    fill(older, batches(90))
    older.close()
    files = FailingFiles()
    out_of_descriptors(files, errno.EMFILE)
    log = opened(tmp_path / "orders", files=files, cached=True)
    assert log.incomplete
    for each in batches(10):
        log.append(each)
    log.trim(5)
    with pytest.raises(OutOfDescriptors):
        log.flush()
    with pytest.raises(OutOfDescriptors):
        log.unsynced()
    assert_readable(log)
    files.work_again()
    log.flush()
    assert not log.incomplete
    assert_readable(log)
    assert len((tmp_path / "orders" / segment_name(0)).read_bytes()) == log.bytes
    assert len([name for name in contents(tmp_path / "orders") if name.endswith(".seg")]) == 1
    head = read_head(Files(), log.directory)
    assert head is not None
    assert (head.start, head.committed) == (5, 10)


def test_files_are_removed_when_there_are_descriptors(tmp_path: Path) -> None:
    files = FailingFiles()
    log = opened(tmp_path / "orders", files=files)
    fill(log, batches(100))
    state = checkpoint(log)
    out_of_descriptors(files, errno.EMFILE)
    with pytest.raises(OutOfDescriptors):
        log.trim(90)
    assert (log.start_offset, log.incomplete) == (90, True)
    files.work_again()
    log.flush()
    assert not log.incomplete
    assert segment_name(0) not in contents(tmp_path / "orders")
    assert len(log.state().segments) < len(state.segments)
    assert_readable(log)


def test_a_log_that_is_ahead_removes_nothing_and_shows_nothing(tmp_path: Path) -> None:
    log = opened(tmp_path / "orders")
    fill(log, batches(100))
    before = contents(tmp_path / "orders")
    log.ahead = True
    for each in batches(3, first=100):
        log.append(each)
    log.trim(90)
    log.flush()
    head = read_head(Files(), log.directory)
    assert head is not None
    assert (head.start, head.committed) == (0, 100)
    assert before.keys() <= contents(tmp_path / "orders").keys()
    assert (log.start_offset, log.incomplete) == (90, True)
    log.ahead = False
    log.flush()
    head = read_head(Files(), log.directory)
    assert head is not None
    assert (head.start, head.committed) == (90, 103)
    assert segment_name(0) not in contents(tmp_path / "orders")


def test_a_cut_that_waits_for_descriptors_removes_nothing_of_a_log_that_is_ahead(
    tmp_path: Path,
) -> None:
    older = opened(tmp_path / "orders")
    fill(older, batches(90))
    older.close()
    before = contents(tmp_path / "orders")
    files = FailingFiles()
    out_of_descriptors(files, errno.EMFILE)
    log = opened(tmp_path / "orders", files=files, cached=True)
    files.work_again()
    log.ahead = True
    log.flush()
    assert log.incomplete
    assert contents(tmp_path / "orders").keys() == before.keys()
    log.ahead = False
    log.flush()
    assert not log.incomplete
    assert [name for name in contents(tmp_path / "orders") if name.endswith(".seg")] == []


def test_a_checkpoint_without_descriptors_is_only_repeated(tmp_path: Path) -> None:
    """Nothing was synced and nothing has failed: the log goes on."""
    files = FailingFiles()
    log = opened(tmp_path / "orders", files=files)
    fill(log, batches(40))
    unsynced = log.unsynced()
    out_of_descriptors(files, errno.EMFILE)
    with pytest.raises(OutOfDescriptors) as failure:
        unsynced.sync()
    log.synced(unsynced, failure.value)
    files.work_again()
    fill(log, batches(10, first=40))
    again = log.unsynced()
    assert again.names is not None
    assert again.files
    again.sync()
    log.synced(again)
    assert log.unsynced().files == []

"""What the log does when the disk fails, fills up, or the process dies between two steps."""

import errno
from pathlib import Path
from random import Random

import pytest

from fluxmq.storage.errors import DiskFull, OutOfDescriptors, ReadFailed, StorageError, WriteFailed
from tests.faults import Crash, PowerCutFiles
from tests.unit.storage.wal_harness import FILE_BYTES, Bench, bench, body, fill

pytestmark = pytest.mark.usefixtures("direct")


def test_a_failed_sync_is_final(tmp_path: Path, direct: bool) -> None:
    with bench(tmp_path) as made:
        log = made.log
        group = log.number("default")
        fill(made, group, 1, 3)
        log.append_entry(group, 1, 4, 0, body(4))
        assert log.flush() == 4
        log.append_entry(group, 1, 5, 0, body(5))
        made.syncer.sync(errno.EIO)
        what = "a write" if direct else "fdatasync"
        with pytest.raises(WriteFailed, match=rf"{what} of .*wal: Input/output error"):
            log.completed()
        for call in (log.flush, log.completed, log.flush):
            with pytest.raises(WriteFailed):
                call()
        assert made.syncer.waiting == 0
        assert log.entry(group, 2).body == body(2)


def write_through(made: Bench, direct: bool) -> None:
    """Have what is buffered written: at once, or by the syncer."""
    made.log.flush()
    if direct:
        made.syncer.sync()
        made.log.completed()


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EROFS])
def test_a_failed_write_is_final(tmp_path: Path, code: int, direct: bool) -> None:
    with bench(tmp_path) as made:
        log = made.log
        group = log.number("default")
        fill(made, group, 1, 3)
        log.append_entry(group, 1, 4, 0, body(4))
        made.files.fail("pwritev", code)
        with pytest.raises(WriteFailed, match=r"(pwritev|a write) of .*wal"):
            write_through(made, direct)
        assert made.syncer.waiting == 0
        with pytest.raises(WriteFailed):
            log.flush()
        with pytest.raises(WriteFailed):
            log.completed()
        made.again()
        assert [index for index, _, _ in made.contents()["default"]] == [1, 2, 3]


def test_a_short_write_is_continued(tmp_path: Path) -> None:
    with bench(tmp_path) as made:
        group = made.log.number("default")
        made.files.shorten("pwritev", 50)
        fill(made, group, 1, 1)
        made.again()
        assert made.contents() == {"default": [(1, 1, body(1))]}


def test_after_a_failed_sync_a_new_start_writes_the_last_write_again(tmp_path: Path) -> None:
    """The kernel holds pages as clean that never came to the disk: what is read back is not what is durable."""
    files = PowerCutFiles(str(tmp_path / "stash"))
    made = Bench(tmp_path, files)
    group = made.log.number("default")
    fill(made, group, 1, 3)
    made.log.append_entry(group, 1, 4, 0, body(4))
    assert made.log.flush()
    made.syncer.sync(errno.EIO)
    with pytest.raises(WriteFailed):
        made.log.completed()
    # What is on the disk now is not known; what this test can see is that it is written, and synced, once more.
    made.kill()
    files.all_changes.clear()
    made.start()
    assert [index for index, _, _ in made.contents()["default"]] == [1, 2, 3, 4]
    assert any(body(4) in change.new for change in files.all_changes), "not written again"
    assert not any(body(1) in change.new for change in files.all_changes)
    made.kill()
    files.cut(Random(1), "nothing")
    made = Bench(tmp_path)
    assert [index for index, _, _ in made.contents()["default"]] == [1, 2, 3, 4]
    made.kill()


# A full disk


def test_a_full_disk_is_noticed_before_anything_is_written(tmp_path: Path) -> None:
    with bench(tmp_path) as made:
        log = made.log
        group = log.number("default")
        made.files.fail_always("allocate", errno.ENOSPC)
        index = 0
        with pytest.raises(DiskFull, match="allocate of"):
            fill_until_full(made, group)
        index = log.last_index(group)
        assert index > 10
        assert log.room < 2 * 148
        written = made.files.calls["pwritev"]
        buffered = log.buffered_bytes
        assert buffered > 0
        for _ in range(3):
            with pytest.raises(DiskFull):
                log.flush()
        assert made.files.calls["pwritev"] == written
        assert log.buffered_bytes == buffered
        assert log.completed() == index - 1
        assert not log.in_flight

        made.files.work_again()
        assert log.flush() == 0 or log.in_flight
        made.commit()
        while log.in_flight:
            made.commit()
        assert log.buffered_bytes == 0
        assert log.room > 0
        fill(made, group, index + 1, index + 30)
        made.again()
        assert [i for i, _, _ in made.contents()["default"]] == list(range(1, index + 31))


def fill_until_full(made: Bench, group: int) -> None:
    for _ in range(1000):
        index = made.log.last_index(group) + 1
        made.log.append_entry(group, 1, index, 0, body(index))
        made.commit()


def test_a_full_disk_leaves_no_half_made_file(tmp_path: Path) -> None:
    with bench(tmp_path) as made:
        group = made.log.number("default")
        made.files.fail("allocate", errno.ENOSPC)
        fill(made, group, 1, 1)
        names = sorted(path.name for path in (tmp_path / "wal").iterdir())
        assert "new.tmp" not in names or (tmp_path / "wal" / "new.tmp").stat().st_size in (
            0,
            FILE_BYTES,
        )
        made.again()
        assert not (tmp_path / "wal" / "new.tmp").exists()


def test_on_a_full_disk_recycling_makes_room(tmp_path: Path) -> None:
    with bench(tmp_path) as made:
        log = made.log
        group = log.number("default")
        fill(made, group, 1, 60)
        made.files.fail_always("allocate", errno.ENOSPC)
        with pytest.raises(DiskFull):
            fill_until_full(made, group)
        index = log.last_index(group)
        # The mark itself needs room: it goes with what waits, once the oldest file may go.
        made.files.work_again()
        made.commit()
        log.release(group, index)
        made.commit()
        made.files.fail_always("allocate", errno.ENOSPC)
        fill(made, group, index + 1, index + 60)
        assert log.stats.files_recycled > 0
        made.files.work_again()


def test_making_a_file_is_not_tried_at_every_turn(tmp_path: Path) -> None:
    now = [0.0]
    with bench(tmp_path, clock=lambda: now[0], retry_seconds=2.0) as made:
        log = made.log
        group = log.number("default")
        made.files.fail_always("allocate", errno.ENOSPC)
        fill(made, group, 1, 5)
        tried = made.files.calls["allocate"]
        assert tried == 2
        for index in range(6, 12):
            fill(made, group, index, index)
        assert made.files.calls["allocate"] == tried
        now[0] = 2.5
        log.completed()
        assert made.files.calls["allocate"] == tried + 1


def test_a_directory_that_cannot_be_synced_is_final(tmp_path: Path) -> None:
    for code in (errno.EIO, errno.ENOSPC):
        with bench(tmp_path / str(code)) as made:
            log = made.log
            group = log.number("default")
            fill(made, group, 1, 10)
            made.files.fail("fsync_directory", code)
            with pytest.raises(WriteFailed, match="fsync_directory"):
                fill(made, group, 11, 50)
            with pytest.raises(WriteFailed):
                log.flush()


def test_an_unreadable_file_is_no_empty_one(tmp_path: Path) -> None:
    made = Bench(tmp_path)
    group = made.log.number("default")
    fill(made, group, 1, 1)
    made.kill()
    for nth in (1, 2, 3):
        made.files.work_again()
        made.files.fail("pread", errno.EIO, nth)
        with pytest.raises(ReadFailed):
            made.start()


def test_closing_a_failed_log_acknowledges_nothing(tmp_path: Path, direct: bool) -> None:
    made = Bench(tmp_path)
    group = made.log.number("default")
    fill(made, group, 1, 1)
    made.log.append_entry(group, 1, 2, 0, body(2))
    made.files.fail("pwritev", errno.EIO)
    with pytest.raises(WriteFailed):
        write_through(made, direct)
    made.log.close()
    made.syncer.close()
    made.start()
    assert made.contents() == {"default": [(1, 1, body(1))]}
    made.kill()


# Death between two steps

POINTS = (
    "wal.write",
    "wal.written",
    "wal.synced",
    "wal.rotate",
    "wal.create",
    "wal.recycle",
    "wal.recycled",
    "wal.remove",
)


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("mode", ["nothing", "all", "prefix", "sectors"])
def test_a_power_cut_at_each_failpoint_loses_nothing(tmp_path: Path, point: str, mode: str) -> None:
    random = Random(point + mode)
    for nth in (1, 2, 4):
        folder = tmp_path / str(nth)
        files = PowerCutFiles(str(tmp_path / "stash"))
        made = Bench(folder, files, spare_files=3)
        group = made.log.number("default")
        made.commit()
        files.crash_at(point, nth)
        acknowledged = run_until_death(made, group)
        assert files.dead, f"{point} is not reached {nth} times"
        made.kill()
        files.cut(random, mode)
        check_and_go_on(Bench(folder, spare_files=1), acknowledged)


def run_until_death(made: Bench, group: int) -> int:
    """Append, commit, release, until the process dies; the last index acknowledged."""
    acknowledged = 0
    try:
        for index in range(1, 1200):
            made.log.append_entry(group, 1, index, 0, body(index))
            made.commit()
            acknowledged = index
            if index > 150:
                # All at once: more files come back than are kept.
                made.log.release(group, index - index % 100)
    except (Crash, WriteFailed):
        pass
    return acknowledged


def check_and_go_on(made: Bench, acknowledged: int) -> None:
    """What was acknowledged is there, nothing that was not appended is; the log can be written on."""
    found = made.log.recovered("default")
    indexes = [entry.index for entry in found.entries]
    last = found.first_index + len(indexes) - 1
    assert indexes == list(range(found.first_index, last + 1))
    assert acknowledged <= last <= acknowledged + 1
    assert found.first_index <= max(1, acknowledged + 1)
    assert all(entry.body == body(entry.index) for entry in found.entries)
    group = made.log.number("default")
    fill(made, group, last + 1, last + 60)
    made.again()
    assert made.log.last_index(group) == last + 60
    made.kill()


@pytest.mark.parametrize("operation", ["create", "allocate", "rename", "pwritev", "fdatasync"])
def test_a_power_cut_while_the_log_is_made_leaves_it_usable(tmp_path: Path, operation: str) -> None:
    for nth in range(1, 4):
        files = PowerCutFiles(str(tmp_path / "stash"))
        files.crash(operation, nth)
        folder = tmp_path / str(nth)
        try:
            made = Bench(folder, files)
            made.kill()
        except StorageError:
            assert files.dead
        files.cut(Random(nth), "sectors")
        made = Bench(folder)
        group = made.log.number("default")
        fill(made, group, 1, 3)
        made.again()
        assert [index for index, _, _ in made.contents()["default"]] == [1, 2, 3]
        made.kill()


def test_a_power_cut_during_recovery_changes_nothing(tmp_path: Path) -> None:
    made = Bench(tmp_path)
    group = made.log.number("default")
    fill(made, group, 1, 20)
    for index in range(21, 26):
        made.log.append_entry(group, 1, index, 0, body(index))
    assert made.log.flush()
    made.kill()
    path = tmp_path / "wal" / "00000000000000000001.wal"
    path.write_bytes(path.read_bytes().replace(body(22), bytes(100)))
    for nth in range(1, 6):
        files = PowerCutFiles(str(tmp_path / "stash"))
        files.crash("pwritev", nth)
        try:
            Bench(tmp_path, files).kill()
        except StorageError:
            assert files.dead
        files.cut(Random(nth), "sectors")
    made = Bench(tmp_path)
    assert [index for index, _, _ in made.contents()["default"]] == list(range(1, 22))
    made.kill()


# No descriptors


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE])
def test_a_log_waits_for_descriptors(tmp_path: Path, code: int) -> None:
    """Review finding 4: "Too many open files" in the thread that makes files failed the log for good."""
    with bench(tmp_path) as made:
        log = made.log
        group = log.number("default")
        for operation in ("create", "open", "open directory"):
            made.files.fail_always(operation, code)
        with pytest.raises(OutOfDescriptors, match=r"create of .*raise the"):
            fill_until_full(made, group)
        index = log.last_index(group)
        made.files.work_again()
        made.commit()
        while log.in_flight or log.buffered_bytes:
            made.commit()
        fill(made, group, index + 1, index + 30)
        made.again()
        assert [i for i, _, _ in made.contents()["default"]] == list(range(1, index + 31))


def test_a_file_is_used_again_without_a_descriptor(tmp_path: Path) -> None:
    """Once it has its new name nothing more can fail for want of one: half of that could not be repeated."""
    with bench(tmp_path) as made:
        log = made.log
        group = log.number("default")
        fill(made, group, 1, 60)
        recycled = log.stats.files_recycled
        opened = {each: made.files.calls[each] for each in ("create", "open", "open directory")}
        log.release(group, log.last_index(group))
        made.commit()
        for operation in opened:
            made.files.fail_always(operation, errno.EMFILE)
        for index in range(61, 200):
            fill(made, group, index, index)
            log.release(group, index)
        assert log.stats.files_recycled > recycled + 2
        made.files.work_again()
        made.again()
        fill(made, group, 200, 201)
        assert made.contents()["default"][-1][0] == 201

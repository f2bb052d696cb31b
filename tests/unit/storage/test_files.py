"""Whole writes, errors that name the operation and the file, files replaced whole, failpoints."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fluxmq.storage.errors import (
    Corruption,
    DiskFull,
    FileMissing,
    ReadFailed,
    StorageError,
    WriteFailed,
)
from fluxmq.storage.failpoints import Failpoints, parse
from fluxmq.storage.files import BUFFERS_MAX, RWF_DONTCACHE, Files
from tests.faults import Crash, FailingFiles


@pytest.fixture
def files() -> FailingFiles:
    return FailingFiles()


def new_file(files: Files, folder: Path) -> int:
    return files.open_(str(folder / "file"), create=True)


def test_buffers_are_written_one_behind_the_other(files: FailingFiles, tmp_path: Path) -> None:
    fd = new_file(files, tmp_path)
    assert files.pwritev(fd, [b"ab", b"", memoryview(b"cd"), bytearray(b"e")], 3) == 5
    assert files.pread(fd, 100, 0) == b"\0\0\0abcde"
    assert files.calls["pwritev"] == 1
    files.close(fd)


def test_more_buffers_than_one_call_takes(files: FailingFiles, tmp_path: Path) -> None:
    fd = new_file(files, tmp_path)
    buffers = [b"%05d" % number for number in range(2 * BUFFERS_MAX + 1)]
    assert files.pwritev(fd, buffers, 0) == 5 * len(buffers)
    assert files.pread(fd, 10 * len(buffers), 0) == b"".join(buffers)
    assert files.calls["pwritev"] == 3
    files.close(fd)


@pytest.mark.parametrize("kept", [1, 3, 4, 7])
def test_a_short_write_is_continued(files: FailingFiles, tmp_path: Path, kept: int) -> None:
    fd = new_file(files, tmp_path)
    files.shorten("pwritev", kept)
    assert files.pwritev(fd, [b"abc", b"d", b"efgh"], 0) == 8
    assert files.pread(fd, 100, 0) == b"abcdefgh"
    files.close(fd)


def test_a_write_of_nothing_is_an_error(files: FailingFiles, tmp_path: Path) -> None:
    fd = new_file(files, tmp_path)
    files.shorten("pwritev", 0)
    with pytest.raises(WriteFailed, match="nothing was written"):
        files.pwritev(fd, [b"abc"], 0)
    files.close(fd)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (errno.ENOSPC, DiskFull),
        (errno.EDQUOT, DiskFull),
        (errno.EIO, WriteFailed),
        (errno.EROFS, WriteFailed),
    ],
)
@pytest.mark.parametrize("operation", ["pwritev", "fdatasync", "allocate", "rename", "create"])
def test_errors_name_the_operation_and_the_file(
    files: FailingFiles, tmp_path: Path, operation: str, code: int, kind: type[StorageError]
) -> None:
    fd = new_file(files, tmp_path)
    files.fail(operation, code)
    path = str(tmp_path / "file")
    with pytest.raises(kind, match=rf"{operation} of {path}: ") as caught:
        {
            "pwritev": lambda: files.pwritev(fd, [b"a"], 0),
            "fdatasync": lambda: files.fdatasync(fd),
            "allocate": lambda: files.allocate_zeroed(fd, 10),
            "rename": lambda: files.rename(path, path + "2"),
            "create": lambda: files.open_(path, create=True),
        }[operation]()
    assert os.strerror(code) in str(caught.value)
    files.close(fd)


def test_reading_has_errors_of_its_own(files: FailingFiles, tmp_path: Path) -> None:
    fd = new_file(files, tmp_path)
    files.fail("pread", errno.EIO)
    with pytest.raises(ReadFailed):
        files.pread(fd, 1, 0)
    with pytest.raises(FileMissing):
        files.read_file(str(tmp_path / "other"))
    with pytest.raises(FileMissing):
        files.listdir(str(tmp_path / "other"))
    files.close(fd)


def test_corruption_says_where() -> None:
    error = Corruption("a.wal", 40, "a bad record")
    assert str(error) == "a.wal, byte 40: a bad record"
    assert (error.path, error.position, error.what) == ("a.wal", 40, "a bad record")


def test_a_file_is_given_written_zeroes(files: FailingFiles, tmp_path: Path) -> None:
    fd = new_file(files, tmp_path)
    files.allocate_zeroed(fd, (2 << 20) + 5)
    assert files.size(fd) == files.size(str(tmp_path / "file")) == (2 << 20) + 5
    assert not any(files.pread(fd, 3 << 20, 0))
    assert os.fstat(fd).st_blocks * 512 >= 2 << 20
    assert files.calls["fdatasync"] == 1
    files.close(fd)


@pytest.mark.parametrize("code", [0, errno.EOPNOTSUPP, errno.EINVAL])
def test_what_passes_is_written_also_where_the_kernel_cannot_let_it_pass(
    files: FailingFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    tried: list[tuple[int, ...]] = []
    pwritev = os.pwritev

    def without_flags(fd: int, buffers: list[bytes], position: int, *flags: int) -> int:
        tried.append(flags)
        if code and flags:
            raise OSError(code, os.strerror(code))
        return pwritev(fd, buffers, position)

    monkeypatch.setattr(os, "pwritev", without_flags)
    fd = new_file(files, tmp_path)
    assert files.pwritev(fd, [b"ab", b"cd"], 0, passing=True) == 4
    assert tried == ([(RWF_DONTCACHE,), ()] if code else [(RWF_DONTCACHE,)])
    tried.clear()
    assert files.pwritev(fd, [b"e"], 4) == 1
    assert tried == [()]
    assert files.pread(fd, 9, 0) == b"abcde"
    files.close(fd)


def test_another_error_of_what_passes_is_one(
    files: FailingFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwritev", full)
    fd = new_file(files, tmp_path)
    with pytest.raises(DiskFull):
        files.pwritev(fd, [b"a"], 0, passing=True)
    files.close(fd)


def test_a_file_is_cut_short(files: FailingFiles, tmp_path: Path) -> None:
    fd = new_file(files, tmp_path)
    files.pwritev(fd, [b"abc"], 0)
    files.truncate(fd, 1)
    assert files.pread(fd, 10, 0) == b"a"
    files.close(fd)


def test_names(files: FailingFiles, tmp_path: Path) -> None:
    folder = str(tmp_path / "a" / "b")
    files.make_directory(folder)
    files.make_directory(folder)
    assert files.calls["fsync_directory"] == 2
    for name in ("y", "x"):
        files.write_whole(f"{folder}/{name}", name.encode())
    assert files.listdir(folder) == ["x", "y"]
    files.unlink(f"{folder}/x")
    assert not files.exists(f"{folder}/x")
    files.unlink(f"{folder}/y")
    files.remove_directory(folder)
    assert files.listdir(str(tmp_path / "a")) == []


def test_a_whole_file_is_synced_before_it_is_renamed(files: FailingFiles, tmp_path: Path) -> None:
    path = str(tmp_path / "file")
    files.write_whole(path, b"old")
    order: list[str] = []
    call = files.call

    def noted(operation: str, *args: object, **kwargs: object) -> object:
        order.append(operation)
        return call(operation, *args, **kwargs)  # type: ignore[arg-type]

    files.call = noted  # type: ignore[method-assign, assignment]
    files.write_whole(path, b"new")
    assert [o for o in order if o in {"pwritev", "fdatasync", "rename", "fsync_directory"}] == [
        "pwritev",
        "fdatasync",
        "rename",
        "fsync_directory",
    ]
    assert files.read_file(path) == b"new"


@pytest.mark.parametrize("operation", ["pwritev", "fdatasync", "rename"])
def test_a_whole_file_that_could_not_be_replaced_stays(
    files: FailingFiles, tmp_path: Path, operation: str
) -> None:
    path = str(tmp_path / "file")
    files.write_whole(path, b"old")
    files.fail(operation, errno.ENOSPC)
    with pytest.raises(DiskFull):
        files.write_whole(path, b"new and longer")
    assert files.read_file(path) == b"old"
    assert files.listdir(str(tmp_path)) == ["file"]


def test_after_a_crash_nothing_has_an_effect(files: FailingFiles, tmp_path: Path) -> None:
    path = str(tmp_path / "file")
    files.crash("rename")
    with pytest.raises(Crash):
        files.write_whole(path, b"new")
    assert os.listdir(tmp_path) == ["file.tmp"]
    with pytest.raises(Crash):
        files.listdir(str(tmp_path))


def test_failpoints_are_read_from_the_environment() -> None:
    assert parse("") == {}
    assert parse("wal.write:3,wal.rotate") == {"wal.write": 3, "wal.rotate": 1}
    for bad in ("wal.write:0", "wal.write:x", ":1"):
        with pytest.raises(ValueError, match=r"name:count|invalid literal"):
            parse(bad)
    Failpoints({}).reach("wal.write")
    armed = Failpoints({"FLUXMQ_FAILPOINT": "wal.write:2"})
    armed.reach("wal.write")
    armed.reach("other")


def test_a_failpoint_kills_the_process_at_its_count() -> None:
    program = """
from fluxmq.storage.files import Files
files = Files()
for number in range(5):
    print(number, flush=True)
    files.reach("here")
"""
    environ = {**os.environ, "FLUXMQ_FAILPOINT": "here:3", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == -signal.SIGKILL
    assert done.stdout.split() == ["0", "1", "2"]


def test_what_is_in_memory_is_read_without_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = Files()
    fd = files.open_(str(tmp_path / "file"), create=True)
    files.pwritev(fd, [b"0123456789"], 0)
    assert files.pread_now(fd, 4, 3) == b"3456"
    assert files.pread_now(fd, 4, 8) is None  # who reads it for good says what is wrong
    for code, found in ((errno.EAGAIN, True), (errno.EOPNOTSUPP, True), (errno.EIO, False)):

        def refused(*_arguments: object, code: int = code) -> int:
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr(os, "preadv", refused)
        if found:
            assert files.pread_now(fd, 4, 3) is None
        else:
            with pytest.raises(ReadFailed):
                files.pread_now(fd, 4, 3)
    files.close(fd)

"""What is damaged gives way, and is kept; a log that cannot be opened still says whose it is."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from fluxmq.storage.directory import DataPaths
from fluxmq.storage.errors import Corruption, StorageError
from fluxmq.storage.files import Files
from fluxmq.storage.set_aside import (
    KEPT,
    LogGroups,
    groups_in_log,
    set_group_aside,
    set_log_aside,
)
from fluxmq.storage.wal_files import KEY_FILE, file_name
from tests.faults import FailingFiles
from tests.unit.storage.wal_harness import Bench, body

GROUP = "g"


def fill(paths: DataPaths, content: str) -> Path:
    """A group's directory, with what belongs to it."""
    root = Path(paths.group(GROUP))
    for folder in ("queues/q", "snapshots", "outgoing/1"):
        (root / folder).mkdir(parents=True)
        (root / folder / "file").write_text(content)
    (root / "member").write_text("new")
    return root


def test_a_group_gives_way_and_is_kept(tmp_path: Path) -> None:
    files, paths = Files(), DataPaths(str(tmp_path))
    root = fill(paths, "one")
    assert set_group_aside(files, paths, GROUP, b"old") == f"{root}/damaged/1"
    assert sorted(path.name for path in root.iterdir()) == ["damaged", "member", "outgoing"]
    kept = root / "damaged" / "1"
    assert (kept / "queues" / "q" / "file").read_text() == "one"
    assert (kept / "snapshots" / "file").read_text() == "one"
    assert (kept / "member").read_text() == "old"
    assert (root / "member").read_text() == "new"


def test_what_is_set_aside_already_is_not_set_aside_again(tmp_path: Path) -> None:
    files, paths = Files(), DataPaths(str(tmp_path))
    assert set_group_aside(files, paths, GROUP) is None
    root = fill(paths, "one")
    set_group_aside(files, paths, GROUP)
    assert set_group_aside(files, paths, GROUP) is None
    assert [path.name for path in (root / "damaged").iterdir()] == ["1"]


def test_no_more_than_the_newest_are_kept(tmp_path: Path) -> None:
    files, paths = Files(), DataPaths(str(tmp_path))
    for number in range(1, KEPT + 3):
        root = Path(paths.group(GROUP))
        (root / "queues" / "q").mkdir(parents=True)
        (root / "queues" / "q" / "file").write_text(str(number))
        set_group_aside(files, paths, GROUP)
    found = {path.name: (path / "queues/q/file").read_text() for path in root.glob("damaged/*")}
    assert found == {str(number): str(number) for number in range(3, KEPT + 3)}


def test_half_of_it_is_set_aside_by_the_next_attempt(tmp_path: Path) -> None:
    files, paths = FailingFiles(), DataPaths(str(tmp_path))
    root = fill(paths, "one")
    files.fail("rename", errno.EIO, nth=4)  # that of the queues
    with pytest.raises(StorageError):
        set_group_aside(files, paths, GROUP)
    files.work_again()
    set_group_aside(files, paths, GROUP)
    assert (root / "damaged/1/snapshots/file").is_file()
    assert (root / "damaged/2/queues/q/file").is_file()


def test_a_log_gives_way(tmp_path: Path) -> None:
    files = Files()
    for number in range(1, KEPT + 2):
        (tmp_path / "wal").mkdir()
        (tmp_path / "wal" / "file").write_text(str(number))
        assert set_log_aside(files, f"{tmp_path}/wal") == f"{tmp_path}/wal.damaged-{number}"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["wal.damaged-2", "wal.damaged-3"]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """The directory of a log of several files, with two groups in it."""
    bench = Bench(tmp_path, file_bytes=4096)
    one, two = bench.log.number("local-0"), bench.log.number("g")
    for index in range(1, 60):
        bench.log.append_entry(one, 1, index, 1, body(index, 90))
        bench.log.append_entry(two, 1, index, 1, body(index, 90))
        bench.commit()
    bench.kill()
    return tmp_path / "wal"


def test_a_damaged_log_says_whose_it_is(log: Path) -> None:
    path = log / file_name(1)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(Corruption):
        Bench(log.parent)
    assert groups_in_log(Files(), str(log)) == LogGroups(frozenset(("local-0", "g")), True)


def test_a_log_whose_names_or_key_are_lost_is_not_whole(log: Path) -> None:
    files = sorted(log.glob("*.wal"))
    for path in files:
        content = bytearray(path.read_bytes())
        at = content.find(b"local-0")
        while at >= 0:  # each file says it again
            content[at] ^= 1
            at = content.find(b"local-0", at)
        path.write_bytes(content)
    assert groups_in_log(Files(), str(log)) == LogGroups(frozenset(("g",)), False)
    (log / KEY_FILE).write_bytes(bytes(1024))
    assert groups_in_log(Files(), str(log)) == LogGroups(frozenset(), False)

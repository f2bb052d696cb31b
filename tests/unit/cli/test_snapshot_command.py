"""`fluxmqctl snapshot`: what it makes, what it says, and what it refuses."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from fluxmq.cli import main as cli
from fluxmq.cli import snapshot_command
from fluxmq.storage.directory import FORMAT_VERSION
from fluxmq.storage.files import Files
from fluxmq.storage.inspect import scan_log
from tests.faults import FailingFiles
from tests.spark_queues import QueueOnDisk


class Ctl:
    """Runs `fluxmqctl` on one data directory; `out` and `err`: what it printed last."""

    def __init__(self, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._data = data
        self._capsys = capsys
        self.out = self.err = ""

    def __call__(self, *arguments: object, code: int = 0) -> str:
        given = ["--data-dir", str(self._data), *map(str, arguments)]
        try:
            found = cli.run(given)
        except SystemExit as exit_:
            found = int(exit_.code or 0)
        self.out, self.err = self._capsys.readouterr()
        assert found == code, self.err
        return self.out


@pytest.fixture
def ctl(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Ctl:
    """Commands on a data directory."""
    return Ctl(tmp_path / "data", capsys)


@pytest.fixture
def orders(tmp_path: Path) -> Iterator[QueueOnDisk]:
    """A queue of 2,000 messages that stays open, as on a running broker."""
    queue = QueueOnDisk(tmp_path / "data", "orders/eu", group="local-1")
    queue.fill(2_000)
    yield queue
    queue.close()


def test_a_copy_is_made_and_can_be_verified(ctl: Ctl, orders: QueueOnDisk, tmp_path: Path) -> None:
    lines = ctl("snapshot", "orders/eu", tmp_path / "copies").splitlines()
    assert lines[0] == "orders/eu: 2,000 messages, offsets 0 to before 2000"
    count = len(orders.segments())
    assert lines[1].startswith(f"{count - 1} segments linked (")
    target = tmp_path / "copies" / "groups" / "local-1" / "queues" / "orders%2Feu"
    assert lines[2:] == [str(target)]
    assert not (tmp_path / "copies" / "VERSION").exists()
    for path in (tmp_path / "copies", target):
        assert "0 damaged, 0 to be repaired" in ctl("log", "verify", path)
    assert "orders/eu" in ctl("log", "stat", tmp_path / "copies")


def test_copies_of_several_queues_share_a_directory(
    ctl: Ctl, orders: QueueOnDisk, tmp_path: Path
) -> None:
    other = QueueOnDisk(orders.root, "other", group="local-2")
    other.fill(10)
    other.close()
    for queue in ("orders/eu", "other"):
        ctl("snapshot", queue, tmp_path / "copies")
    found = ctl("log", "verify", tmp_path / "copies")
    assert "group local-1" in found
    assert "group local-2" in found
    ctl("snapshot", "other", tmp_path / "copies", code=1)
    assert "is there already" in ctl.err


def test_damage_in_a_copy_is_no_note(ctl: Ctl, orders: QueueOnDisk, tmp_path: Path) -> None:
    """No start mends a copy, since there is no log beside it."""
    target = Path(ctl("snapshot", "orders/eu", tmp_path / "copies").splitlines()[-1])
    last = max(target.glob("*.seg"))
    data = bytearray(last.read_bytes())
    data[-20] ^= 1
    last.write_bytes(data)
    for path in (tmp_path / "copies", target):
        assert "1 damaged, 0 to be repaired" in ctl("log", "verify", path, code=1)
        assert str(last) in ctl.err


def test_a_queue_of_a_buffered_group_is_copied(ctl: Ctl, tmp_path: Path) -> None:
    queue = QueueOnDisk(tmp_path / "data", "fast", group="buffered-4")
    queue.fill(2_000)
    queue.close()
    said = ctl("snapshot", "fast", tmp_path / "copies")
    assert "0 segments linked (0 bytes)" in said
    assert "acknowledges before its data is synced" in said
    copies = list((tmp_path / "copies").rglob("*.seg"))
    assert {path.stat().st_nlink for path in copies} == {1}
    assert scan_log(Files(), str(copies[0].parent)).problems == []


def test_another_file_system_is_said(
    ctl: Ctl, orders: QueueOnDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing() -> FailingFiles:
        files = FailingFiles()
        files.fail_always("link", errno.EXDEV)
        return files

    monkeypatch.setattr(snapshot_command, "Files", failing)
    said = ctl("snapshot", "orders/eu", tmp_path / "copies")
    assert "0 segments linked" in said
    assert "cannot be hard-linked here (another file system?)" in said


def test_what_is_not_there_is_refused(ctl: Ctl, orders: QueueOnDisk, tmp_path: Path) -> None:
    ctl("snapshot", "nothing", tmp_path / "copies", code=2)
    assert ctl.err == "fluxmqctl: queue 'nothing' is not there\n"
    assert not (tmp_path / "copies").exists()
    (orders.root / "VERSION").write_text(f"fluxmq data {FORMAT_VERSION + 1}\n")
    ctl("snapshot", "orders/eu", tmp_path / "copies", code=1)
    assert "newer FluxMQ" in ctl.err

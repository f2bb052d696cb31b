"""``fluxmqctl backup-queue`` and ``restore-queue``: what is refused without a broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from fluxmq.cli import main as cli


@pytest.mark.parametrize("place", ["", "12", "xy:1", "0:1", "1f:-1", f"{1 << 63:x}:0", "1f:x"])
def test_a_restore_goes_on_only_where_one_has_ended(
    place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.run(["restore-queue", "/backup", "--continue", place])
    assert ended.value.code == 2
    assert "is not what restore-queue has said" in capsys.readouterr().err


def test_nothing_is_restored_from_another_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["--data-dir", str(tmp_path), "restore-queue", str(tmp_path)]) == 1
    assert "is no backup of a queue" in capsys.readouterr().err


def test_an_existing_directory_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "there").mkdir()
    command = ["--data-dir", str(tmp_path), "backup-queue", "orders", str(tmp_path / "there")]
    assert cli.run(command) == 1
    assert "exists already" in capsys.readouterr().err
    (tmp_path / "new.incomplete").mkdir()
    assert cli.run([*command[:-1], str(tmp_path / "new")]) == 1
    assert "new.incomplete exists already" in capsys.readouterr().err


def test_a_backup_needs_a_broker(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["--data-dir", str(tmp_path), "backup-queue", "a/b", str(tmp_path / "new")]
    assert cli.run(command) == 3
    assert "no broker is running" in capsys.readouterr().err
    assert not list(tmp_path.glob("new*"))

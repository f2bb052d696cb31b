"""The data directory: private, versioned, exclusive."""

import os
import stat
from pathlib import Path

import pytest

from fluxmq.storage.directory import FORMAT_VERSION, VERSION_PREFIX
from fluxmq.supervisor.directory import DataDirectoryError, open_directory


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_directory_is_private_and_marked(tmp_path: Path) -> None:
    directory = open_directory(tmp_path / "new" / "data")
    assert directory.path == tmp_path / "new" / "data"
    assert mode(directory.path) == 0o700
    assert mode(directory.run) == 0o700
    assert directory.run == directory.path / "run"
    assert (directory.path / "VERSION").read_text() == f"{VERSION_PREFIX}{FORMAT_VERSION}\n"
    assert (directory.path / "LOCK").read_text() == f"{os.getpid()}\n"
    assert mode(directory.path / "LOCK") == 0o600
    directory.close()
    open_directory(tmp_path / "new" / "data").close()


def test_a_directory_belongs_to_one_broker(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(DataDirectoryError, match=f"in use by process {os.getpid()}"):
        open_directory(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == before
    directory.close()


def test_another_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "VERSION").write_text("fluxmq data 99\n")
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(
        DataDirectoryError, match=r"^storage\.data_dir: .* written by a newer FluxMQ"
    ):
        open_directory(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == before  # not locked either


def test_a_file_in_its_place(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    with pytest.raises(DataDirectoryError, match=r"storage\.data_dir: .*data: "):
        open_directory(tmp_path / "data")


def test_a_symbolic_link_is_no_lock(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("precious")
    (tmp_path / "LOCK").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DataDirectoryError):
        open_directory(tmp_path)
    assert (tmp_path / "elsewhere").read_text() == "precious"

"""The data directory as the supervisor opens it: private, of a known version, for one broker only.

The lock is an ``flock`` on the file LOCK, held as long as the supervisor lives and released by the
kernel however it ends. Children do not inherit the descriptor: they die with the supervisor.
"""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass
from pathlib import Path

from fluxmq.model.errors import FluxmqError
from fluxmq.storage.directory import DataPaths, check_version
from fluxmq.storage.errors import StorageError
from fluxmq.storage.files import Files

_MODE = 0o700


class DataDirectoryError(FluxmqError):
    """The data directory cannot be used; the message begins with the setting's path."""


@dataclass(slots=True)
class DataDirectory:
    """An opened and locked data directory. ``run`` holds sockets and nothing that must survive."""

    path: Path
    run: Path
    lock_fd: int

    def close(self) -> None:
        """Release the lock."""
        os.close(self.lock_fd)


def open_directory(path: Path) -> DataDirectory:
    """Create the directory if it is missing, lock it, check its version. Raises DirectoryError."""
    path = path.absolute()
    try:
        path.mkdir(mode=_MODE, parents=True, exist_ok=True)
        lock_fd = _lock(path / "LOCK")
    except OSError as exc:
        raise DataDirectoryError(f"storage.data_dir: {path}: {exc.strerror}") from exc
    try:
        check_version(Files(), DataPaths(str(path)), create=True)
        run = path / "run"
        run.mkdir(mode=_MODE, exist_ok=True)
        run.chmod(_MODE)  # it holds the socket that changes users
    except OSError as exc:
        os.close(lock_fd)
        raise DataDirectoryError(f"storage.data_dir: {path}: {exc.strerror}") from exc
    except StorageError as exc:
        os.close(lock_fd)
        raise DataDirectoryError(f"storage.data_dir: {exc}") from exc
    return DataDirectory(path, run, lock_fd)


def _lock(path: Path) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(fd, 32, 0).decode("ascii", "replace").strip()
        os.close(fd)
        by = f"process {holder}" if holder.isdigit() else "another process"
        raise DataDirectoryError(
            f"storage.data_dir: {path.parent} is in use by {by}; a directory belongs to one broker"
        ) from None
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd

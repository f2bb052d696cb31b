"""The data directory from fluxmqctl's side: is a broker running on it, and if not, may we write?

The supervisor holds an exclusive `flock` on ``LOCK`` as long as it lives. `is_locked` reads the
kernel's list of locks instead of trying the lock, which would make a broker that starts at that
moment fail. Changing metadata while no broker runs takes the lock for the duration of the change.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fluxmq.ipc.launch import CONTROL_SOCKET
from fluxmq.model.errors import FluxmqError

if TYPE_CHECKING:
    from fluxmq.control.metadata import MetadataStore

LOCK_NAME: Final = "LOCK"
RUN_NAME: Final = "run"


class LockedError(FluxmqError):
    """Another process, most likely a broker, holds the data directory."""


def control_socket(data_dir: Path) -> Path:
    """Return the control socket's path for a broker on this directory."""
    return data_dir / RUN_NAME / CONTROL_SOCKET


def is_locked(data_dir: Path) -> bool:
    """Return whether a process holds the directory's lock, without touching the lock."""
    path = data_dir / LOCK_NAME
    try:
        status = os.stat(path)
        holder = path.read_text("ascii", "replace").strip()
        with open("/proc/locks", encoding="ascii") as file:
            lines = [line.split() for line in file]
    except OSError:
        return False
    # A line of /proc/locks: "1: FLOCK  ADVISORY  WRITE 4242 fe:01:131077 0 EOF". On layered file
    # systems its device differs from the one stat reports; then the holder's own note in the file
    # decides.
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
    for line in lines:
        if len(line) > 5 and line[1] == "FLOCK":
            found, _, inode = line[5].rpartition(":")
            if inode == str(status.st_ino) and (found == device or line[4] == holder):
                return True
    return False


@contextlib.contextmanager
def opened_store(data_dir: Path) -> Iterator[MetadataStore]:
    """Hold the directory's lock and yield its metadata store.

    Raises LockedError when a broker holds it, OSError for the database's, and the errors of
    `MetadataStore`.
    """
    # Most commands never touch the database.
    import sqlite3

    from fluxmq.control.metadata import FILE_NAME, MetadataStore

    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    lock = os.open(data_dir / LOCK_NAME, flags, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LockedError(f"{data_dir} is in use by a running broker") from None
        store = MetadataStore(data_dir / FILE_NAME)
        try:
            yield store
        finally:
            store.close()
    except sqlite3.Error as problem:
        raise OSError(str(problem)) from problem
    finally:
        os.close(lock)

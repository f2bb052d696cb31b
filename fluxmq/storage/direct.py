"""Detects whether a directory's files support direct I/O that does not block the caller.

Tries it, once per log, on a file without a name. A file system may refuse such writes, or complete
them while the caller waits (tmpfs, overlays in user space, ext4 that journals data); the caller
then uses a thread.
"""

from __future__ import annotations

import os
import select
from typing import TYPE_CHECKING, Final

from fluxmq.source_only import PURE

if TYPE_CHECKING:
    from fluxmq.storage._direct import DirectWriter

TRIAL_BYTES: Final = 16 << 10
TRIALS: Final = 4
"""Writes to try. One still in flight when the call returned is enough: a fast disk may be done by
then, or this process may have been preempted."""
TRIAL_SECONDS_MAX: Final = 10.0
"""Longest wait for one trial write; a start is not delayed for longer."""


def direct_writer(event: int, directory: str) -> DirectWriter | None:
    """Return a writer for files of this directory, or its nearest existing parent; None where
    unsupported.

    `event`: an eventfd that is incremented after each write.
    """
    if PURE:
        return None
    try:
        from fluxmq.storage._direct import DirectWriter
    except ImportError:
        return None
    try:
        return DirectWriter(event) if _works(DirectWriter, directory) else None
    except OSError:
        return None


def _works(kind: type[DirectWriter], directory: str) -> bool:
    """Return whether writes proceed while the caller continues. Raises OSError where they are
    refused."""
    while not os.path.isdir(directory):
        above = os.path.dirname(os.path.abspath(directory))
        if above == directory:
            return False
        directory = above
    fd = os.open(directory, os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, 0o600)
    event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    try:
        # Written once like the log's own files, so that only contents have to reach the disk.
        os.pwrite(fd, bytes(TRIAL_BYTES), 0)
        os.fdatasync(fd)
        writer = kind(event)
        try:
            writer.open(fd)
            return _under_way_on_return(writer, fd, event)
        finally:
            writer.close()
    finally:
        os.close(event)
        os.close(fd)


def _under_way_on_return(writer: DirectWriter, fd: int, event: int) -> bool:
    poll = select.poll()
    poll.register(event, select.POLLIN)
    found = False
    position = 0
    for trial in range(TRIALS):
        data = bytes([trial + 1]) * (TRIAL_BYTES // TRIALS - 1)
        if not writer.write([data], position, trial):
            return False
        answer = writer.completed()
        found = found or answer is None
        if not poll.poll(TRIAL_SECONDS_MAX * 1000):
            return False
        os.eventfd_read(event)
        answer = answer or writer.completed()
        if answer is None or answer[:2] != (trial, 0):
            return False
        if os.pread(fd, len(data), position) != data:
            return False
        position += len(data)
    return found

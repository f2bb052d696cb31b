"""Finds out whether a directory's files can be written past the page cache without waiting for the disk.

Responsible for trying it, once per log, on a file without a name. A file system may refuse such writes, or do them at
once and keep the caller waiting (tmpfs, overlays in user space, ext4 that journals data); who asks has a thread then.
"""

from __future__ import annotations

import os
import select
from typing import TYPE_CHECKING, Final

from fluxmq._hot import PURE

if TYPE_CHECKING:
    from fluxmq._hot._direct import DirectWriter

TRIAL_BYTES: Final = 16 << 10
TRIALS: Final = 4
"""Writes to try. One that was under way when the call returned is enough: a fast disk may be done by then, or this process
may have been off its processor."""
TRIAL_SECONDS_MAX: Final = 10.0
"""How long the disk may take for one; a start is not held up for longer."""


def direct_writer(event: int, directory: str) -> DirectWriter | None:
    """What writes files of this directory, or of the nearest one above it that is there; None where that cannot be.

    `event`: an eventfd that is counted up after each write.
    """
    if PURE:
        return None
    try:
        from fluxmq._hot._direct import DirectWriter
    except ImportError:
        return None
    try:
        return DirectWriter(event) if _works(DirectWriter, directory) else None
    except OSError:
        return None


def _works(kind: type[DirectWriter], directory: str) -> bool:
    """Whether writes are carried out while the caller goes on. Raises OSError where they are refused."""
    while not os.path.isdir(directory):
        above = os.path.dirname(os.path.abspath(directory))
        if above == directory:
            return False
        directory = above
    fd = os.open(directory, os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, 0o600)
    event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    try:
        # As the log's own files: written once, so that nothing but the contents has to reach the disk.
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

"""The head file of a queue's log: the range that readers outside the broker may read, updated by
every flush.

Two slots are written in turn, so that one is always whole; the layout is
``fluxmq.model.segments``'. Written with pwrite, 0.6 µs, rather than through a mapping, 0.2 µs: if
the disk fails, a store to a mapping ends the process with SIGBUS, while pwrite raises an error that
can be handled. Never synced by itself: after a power cut it may be old or missing, and is rewritten
when the log has been recovered.
"""

from __future__ import annotations

from fluxmq.model.segments import HEAD_BYTES, HEAD_NAME, SLOT_BYTES, QueueHead, newest_head
from fluxmq.storage.errors import FileMissing
from fluxmq.storage.files import Files
from fluxmq.storage.open_files import OpenFile, OpenFiles


class HeadFile:
    """The head of one log, for its only writer."""

    def __init__(self, table: OpenFiles, directory: str) -> None:
        self._files = table.files
        self._file = OpenFile(table, f"{directory}/{HEAD_NAME}")
        self._sequence = -1

    def write(self, start: int, committed: int, segment: int, position: int, time: int) -> None:
        """Publish what may be read, see `QueueHead`. Raises StorageError, which leaves the older
        slot whole."""
        fd = self._file.opened()
        if self._sequence < 0:
            newest, whole = self._begin(fd)
            self._sequence = 0 if newest is None else newest.sequence
            if whole and newest == QueueHead(
                self._sequence, start, committed, segment, position, time
            ):
                return  # as after every orderly stop
        head = QueueHead(self._sequence + 1, start, committed, segment, position, time)
        self._files.pwritev(fd, [head.encode()], head.slot_position)
        self._sequence += 1

    def _begin(self, fd: int) -> tuple[QueueHead | None, bool]:
        """Return the head in the file before the first write, and whether the file still has it."""
        data = self._files.pread(fd, HEAD_BYTES, 0)
        whole = len(data) >= HEAD_BYTES
        if not whole:
            # Both slots exist from the start, so that later writes never need space.
            self._files.pwritev(fd, [bytes(2 * SLOT_BYTES)], 0)
        return newest_head(data), whole

    def close(self) -> None:
        """Close the file."""
        self._file.release()


def read_head(files: Files, directory: str) -> QueueHead | None:
    """Return a log's head, None if there is none or neither slot is whole."""
    try:
        return newest_head(files.read_file(f"{directory}/{HEAD_NAME}"))
    except FileMissing:
        return None

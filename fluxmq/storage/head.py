"""The head file of a queue's log: what readers outside the broker may read, kept current by every flush.

Two slots are written in turn, so that one is whole whenever somebody looks; the layout is
``fluxmq.model.segments``'. Written with pwrite, 0.6 µs, rather than through a mapping, 0.2 µs: on a disk that
fails a store to a mapping ends the process with SIGBUS, where pwrite raises an error that has a policy. Never synced by
itself: after a power cut it may be old or gone, and is set anew when the log has been recovered.
"""

from __future__ import annotations

from fluxmq.model.segments import HEAD_BYTES, HEAD_NAME, SLOT_BYTES, Head, newest_head
from fluxmq.storage.errors import FileMissing
from fluxmq.storage.files import Files
from fluxmq.storage.open_files import OpenFile, OpenFiles


class HeadFile:
    """The head of one log, as its only writer has it."""

    def __init__(self, table: OpenFiles, directory: str) -> None:
        self._files = table.files
        self._file = OpenFile(table, f"{directory}/{HEAD_NAME}")
        self._sequence = -1

    def write(self, start: int, committed: int, segment: int, position: int, time: int) -> None:
        """Say what may be read, see `Head`. Raises StorageError; the older slot is whole then."""
        fd = self._file.opened()
        if self._sequence < 0:
            newest, whole = self._begin(fd)
            self._sequence = 0 if newest is None else newest.sequence
            if whole and newest == Head(self._sequence, start, committed, segment, position, time):
                return  # as after every orderly stop
        head = Head(self._sequence + 1, start, committed, segment, position, time)
        self._files.pwritev(fd, [head.encode()], head.slot_position)
        self._sequence += 1

    def _begin(self, fd: int) -> tuple[Head | None, bool]:
        """What the file says before the first write, and whether it says so still."""
        data = self._files.pread(fd, HEAD_BYTES, 0)
        whole = len(data) >= HEAD_BYTES
        if not whole:
            # Both slots exist from the start, so that later writes never need space.
            self._files.pwritev(fd, [bytes(2 * SLOT_BYTES)], 0)
        return newest_head(data), whole

    def close(self) -> None:
        """Close the file."""
        self._file.release()


def read_head(files: Files, directory: str) -> Head | None:
    """Return what a log's head says, None if there is none or no slot of it is whole."""
    try:
        return newest_head(files.read_file(f"{directory}/{HEAD_NAME}"))
    except FileMissing:
        return None

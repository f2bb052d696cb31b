"""Prepares the next files of a write-ahead log ahead of need, and recycles those no longer needed.

Responsible for files of full length, written once and durable under their names: new zeroed ones,
or old ones renamed. A thread does it, one task after the other. Knows nothing of records.

A task that found the disk full, or no descriptor, is retried later; any other failure is final,
because the effect of a failed directory sync is unknown. So the directory stays open, and a renamed
file is not reopened: once something has changed, a task needs no further descriptor.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Final

from fluxmq.storage.errors import DiskFull, Exhausted, StorageError, WriteFailed
from fluxmq.storage.files import Files
from fluxmq.storage.syncer import spread
from fluxmq.storage.wal_files import LogFile, file_name, open_file, same_file
from fluxmq.storage.wal_options import WalOptions

BESIDE: Final = "new.tmp"


class FileSupply:
    """Creates, recycles and removes files, one after the other, in a thread of its own."""

    def __init__(
        self, files: Files, directory: str, key: int, options: WalOptions, wake: Callable[[], None]
    ) -> None:
        """The thread calls `wake` after each task. Raises StorageError."""
        self.files = files
        self._directory = directory
        self._directory_fd = files.open_directory(directory)
        self._key = key
        self._file_bytes = options.file_bytes
        self._background = options.background
        self._cores = options.cores
        self._wake = wake
        self._tasks: SimpleQueue[Callable[[], LogFile | None] | None] = SimpleQueue()
        self._results: SimpleQueue[LogFile | StorageError | None] = SimpleQueue()
        self._helper: threading.Thread | None = None
        self.busy = False
        self.full: Exhausted | None = None
        """Reason why the last task could not be done, for now."""

    def create(self, sequence: int) -> LogFile:
        """Create a zeroed file in the calling thread."""
        path = os.path.join(self._directory, file_name(sequence))
        beside = os.path.join(self._directory, BESIDE)
        fd = self.files.open_(beside, create=True)
        try:
            try:
                self.files.truncate(fd, 0)
                self.files.allocate_zeroed(fd, self._file_bytes)
            except DiskFull:
                self.files.truncate(fd, 0)
                raise
            self.files.reach("wal.create")
            self.files.rename(beside, path)
            self._sync_names()
            return same_file(self.files, self._directory, self._key, sequence, fd)
        except StorageError:
            self.files.close(fd)
            raise

    def open_(self, sequence: int) -> LogFile:
        """Open an existing file."""
        return open_file(self.files, self._directory, self._key, sequence)

    def recycle(self, file: LogFile, sequence: int) -> LogFile:
        """Rename an unneeded file to a future one; its old contents are invalid there."""
        self.files.reach("wal.recycle")
        path = os.path.join(self._directory, file_name(sequence))
        self.files.rename(file.path, path)
        self.files.reach("wal.recycled")
        self._sync_names()
        return same_file(self.files, self._directory, self._key, sequence, file.fd)

    def remove(self, file: LogFile) -> None:
        """Remove a file that is no longer needed."""
        self.files.reach("wal.remove")
        self.files.unlink(file.path)
        self._sync_names()
        self.files.close(file.fd)

    def _sync_names(self) -> None:
        try:
            self.files.fsync_names(self._directory_fd)
        except Exhausted as error:
            raise WriteFailed(str(error)) from error

    # The thread

    def start(self, task: Callable[[], LogFile | None]) -> None:
        """Start a task in the thread; one at a time."""
        assert not self.busy, "one task at a time"
        if not self._background:
            self.busy = True
            self.full = None
            self._do(task)
            return
        if self._helper is None:
            self._helper = threading.Thread(target=self._run, name="wal files", daemon=True)
            self._helper.start()
        self.busy = True
        self.full = None
        self._tasks.put(task)

    @property
    def done(self) -> bool:
        """True when the thread has finished its task and `take` does not block."""
        return not self._results.empty()

    def take(self) -> LogFile | None:
        """Return the task's result, waiting for it. Raises WriteFailed (or ReadFailed) when it
        failed for good."""
        result = self._results.get()
        self.busy = False
        if isinstance(result, Exhausted):
            self.full = result
            return None
        if isinstance(result, StorageError):
            raise result
        return result

    def close(self) -> None:
        """Wait for the current task, end the thread, close the directory."""
        if self._helper is not None:
            self._tasks.put(None)
            self._helper.join()
            self._helper = None
        if self._directory_fd >= 0:
            self.files.close(self._directory_fd)
            self._directory_fd = -1

    def _run(self) -> None:
        spread(self._cores)
        while True:
            task = self._tasks.get()
            if task is None:
                return
            self._do(task)
            self._wake()

    def _do(self, task: Callable[[], LogFile | None]) -> None:
        try:
            self._results.put(task())
        except StorageError as error:
            self._results.put(error)


class FileRow:
    """The files of a log in order: in use, then ready."""

    def __init__(self, supply: FileSupply, options: WalOptions) -> None:
        """At most `spare_files` are kept ready, unless more are wanted at once."""
        self._supply = supply
        self._file_bytes = options.file_bytes
        self._spare_files = options.spare_files
        self._pause = options.retry_seconds
        self._retiring: LogFile | None = None
        self._retry_at = 0.0
        self.used: list[LogFile] = []
        self.ready: deque[LogFile] = deque()
        self.recycled = 0

    @property
    def full(self) -> Exhausted | None:
        """Reason why the next file could not be made; None when it is ready or being made."""
        return self._supply.full

    @property
    def busy(self) -> bool:
        """True while a file is being made, recycled or removed."""
        return self._supply.busy

    def at(self, sequence: int) -> LogFile:
        """Return a file in use."""
        return self.used[sequence - self.used[0].sequence]

    def begin(self) -> LogFile:
        """Take the next file into use."""
        self.used.append(self.ready.popleft())
        return self.used[-1]

    def tend(self, is_needed: Callable[[LogFile], bool], wanted: int, now: float) -> None:
        """Collect the thread's result, and have it recycle, remove or create a file: one at a time.

        `wanted` files should be ready. After a full disk the next attempt follows after a pause.
        Raises WriteFailed or ReadFailed when the thread failed.
        """
        while not self._supply.busy or self._supply.done:
            if self._supply.busy:
                self._take(now)
                if self._supply.full is not None:
                    return
            elif self._supply.full is not None and now < self._retry_at:
                return
            following = (self.ready[-1] if self.ready else self.used[-1]).sequence + 1
            if len(self.used) > 1 and self.used[1].begun and not is_needed(self.used[0]):
                self._retire(self.used.pop(0), following, max(wanted, self._spare_files))
            elif len(self.ready) < wanted:
                self._supply.start(partial(self._supply.create, following))
            else:
                return

    def _take(self, now: float) -> None:
        """Collect the thread's result."""
        file = self._supply.take()
        if file is not None:
            self.ready.append(file)
        if self._supply.full is not None:
            self._retry_at = now + self._pause
            if self._retiring is not None:
                self.used.insert(0, self._retiring)
        self._retiring = None

    def _retire(self, oldest: LogFile, following: int, ready_max: int) -> None:
        self._retiring = oldest
        if len(self.ready) < ready_max and oldest.size == self._file_bytes:
            self.recycled += 1
            self._supply.start(partial(self._supply.recycle, oldest, following))
        else:
            self._supply.start(partial(self._supply.remove, oldest))

    def close(self) -> None:
        """End the thread and close all files."""
        self._supply.close()
        last = None
        try:
            if self._supply.busy:
                last = self._supply.take()
        except StorageError:
            pass  # the file being prepared is not needed any more
        for file in filter(None, (*self.used, *self.ready, last)):
            self._supply.files.close(file.fd)
        self.used.clear()
        self.ready.clear()

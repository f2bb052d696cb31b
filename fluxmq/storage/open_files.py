"""Open files of a shard's queue logs: segments and indexes being written or read, heads; a bounded
number.

Responsible for which of them stay open: those used last. An idle queue holds no descriptor. Knows
nothing of the files' contents.
**A file with unsynced writes stays open.** The kernel reports failed write-backs to open
descriptors only; once the last is closed and the inode has left the cache, the error is lost, and a
sync by a new descriptor succeeds. So only synced files are closed for others. At most three
quarters of the places go to unsynced ones, so that readers and heads always find some; a write
beyond that raises `AwaitsSync`. It is repeated once the oldest have been synced, by an owner that
has a thread for it (`attended`); otherwise they are synced at once.

When a call finds no descriptor left in the process, synced files are closed one after another until
it works, then the spare descriptors kept for this. So a reader finds one although connections have
taken all the others.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from fluxmq.storage.errors import AwaitsSync, StorageError
from fluxmq.storage.files import Buffer, Files

PLACES: Final = 1024
"""Default number of files open at once, for tools and tests."""
SPARES: Final = 4
"""Descriptors in reserve: the shard needs one at a time, and each of its threads one."""
UNSYNCED_PART: Final = 3, 4
"""Fraction of the places that unsynced files may take."""
SYNCED_PART: Final = 8
"""Divisor of the places: that many files are synced at a time when unsynced files have used up
theirs."""
WRITE_OUT_BYTES: Final = 256 << 10
"""Bytes written out at a time. With much more, every write of the log would wait in the disk's
queue."""
_NO_SPARE: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


class OpenFile:
    """A file of a log, opened on demand and closed when its place is needed or it is no longer
    used.

    `writes` counts writes, `synced` how many of them are known to be synced. `end` is where the
    last ended, `begun` up to where bytes were written out; `aged` is an earlier value of `end`, for
    the code that writes out old bytes.
    """

    __slots__ = (
        *(
            "_owned",
            "_readonly",
            "_sharers",
            "aged",
            "begun",
            "end",
            "failure",
            "fd",
            "files",
            "path",
        ),
        *("synced", "table", "writes"),
    )

    def __init__(self, table: OpenFiles, path: str, *, readonly: bool = False) -> None:
        self.table = table
        self.files = table.files
        self.path = path
        self.fd = -1
        self.writes = 0
        self.synced = 0
        self.end = self.begun = self.aged = 0
        self.failure: StorageError | None = None
        """Error of a write-out: a sync would not report it again."""
        self._owned = True
        self._sharers = 0
        self._readonly = readonly

    def opened(self) -> int:
        """Return the descriptor, valid until another file is opened. A writable file is created if
        missing. Raises StorageError."""
        if self.fd >= 0:
            self.table.touch(self)
        else:
            self.fd = self.table.open_(self, self._readonly)
        return self.fd

    def write(self, buffers: list[Buffer], position: int, *, passing: bool = False) -> None:
        """Write at a position, creating the file if missing. Raises StorageError, or AwaitsSync
        before anything is done. `passing`: see `Files.pwritev`."""
        table = self.table
        if self.synced == self.writes:
            table.admit()
        if self.fd < 0:
            self.fd = table.open_(self, False)
            self.end = self.begun = self.aged = position
        self.writes += 1
        table.wrote(self)
        self.end = position + self.files.pwritev(self.fd, buffers, position, passing=passing)

    def write_out(self, end: int) -> None:
        """Write out bytes up to `end`, except a last piece, pausing after each piece for as long as
        it took.

        Runs in any one thread. Raises StorageError, now and at every later call.
        """
        if self.failure is not None:
            raise self.failure
        try:
            while end - self.begun > WRITE_OUT_BYTES:
                began = time.monotonic()
                self.files.write_out(self.fd, self.begun, WRITE_OUT_BYTES)
                self.begun += WRITE_OUT_BYTES
                time.sleep(time.monotonic() - began)
        except StorageError as error:
            self.failure = error
            raise

    def sync(self) -> None:
        """Sync everything written so far, in any one thread for which it is `shared`. Raises
        StorageError, now and at every later call."""
        if self.failure is not None:
            raise self.failure
        try:
            self.files.fdatasync(self.fd)
        except StorageError as error:
            self.failure = error
            raise

    def note_synced(self, writes: int) -> None:
        """Record that the first `writes` writes are synced."""
        if writes > self.synced:
            self.synced = writes
            self.table.settled(self)

    @property
    def dirty(self) -> bool:
        """True when some write is not known to be synced."""
        return self.synced < self.writes

    @property
    def spared(self) -> bool:
        """True when it may be closed: all of it is synced, and it is not shared."""
        return self.synced == self.writes and not self._sharers

    def shared(self) -> OpenFile:
        """Return the file for another user; it stays open until `give_back`."""
        self._sharers += 1
        return self

    def give_back(self) -> None:
        """End one user's sharing."""
        self._sharers -= 1
        self._close_unused()

    def release(self) -> None:
        """Release the log's own use of it."""
        self._owned = False
        self._close_unused()

    def _close_unused(self) -> None:
        if not self._owned and not self._sharers and self.fd >= 0:
            self.table.close(self)


class OpenFiles:
    """The open files of one shard. Used in the thread that created it; only `make_room` may run in
    others."""

    def __init__(self, files: Files, places: int = PLACES) -> None:
        self.files = files
        self.places = places
        self.attended = False
        """True when a thread syncs the oldest files on `wanting`; otherwise the write that needs a
        place does."""
        self.wanting = False
        """True while a write waits for files to be synced."""
        # Both least recently used first.
        self._synced: OrderedDict[OpenFile, None] = OrderedDict()
        self._unsynced: OrderedDict[OpenFile, None] = OrderedDict()
        self._spares: list[int] = []
        self._opened_by = threading.get_ident()
        files.make_room = self.make_room

    def __len__(self) -> int:
        return len(self._synced) + len(self._unsynced)

    @property
    def unsynced(self) -> int:
        """Number of files with unsynced writes."""
        return len(self._unsynced)

    @property
    def unsynced_max(self) -> int:
        """Maximum number of files with unsynced writes."""
        part, whole = UNSYNCED_PART
        return max(2, self.places * part // whole)

    # For files

    def open_(self, file: OpenFile, readonly: bool) -> int:
        """Open a file. Raises StorageError."""
        while len(self) >= self.places and self.give_up():
            pass
        fd = self.files.open_(file.path, create=not readonly, readonly=readonly)
        (self._unsynced if file.dirty else self._synced)[file] = None
        return fd

    def touch(self, file: OpenFile) -> None:
        """Mark a file as just used."""
        (self._unsynced if file.dirty else self._synced).move_to_end(file)

    def admit(self) -> None:
        """Admit one more file to be written. Raises AwaitsSync when there are too many, others when
        a sync fails."""
        if len(self._unsynced) < self.unsynced_max:
            return
        if self.attended:
            self.wanting = True
            raise AwaitsSync(f"{len(self._unsynced)} files wait to be synced")
        self.sync_oldest()

    def wrote(self, file: OpenFile) -> None:
        """Record that a file has unsynced writes."""
        self._synced.pop(file, None)
        self._unsynced[file] = None
        self._unsynced.move_to_end(file)

    def settled(self, file: OpenFile) -> None:
        """Record that a file was synced, up to some write."""
        if not file.dirty and file in self._unsynced:
            del self._unsynced[file]
            self._synced[file] = None
            self._synced.move_to_end(file, last=False)  # one that is still written to comes back

    def close(self, file: OpenFile) -> None:
        """Close a file that is no longer used."""
        self._synced.pop(file, None)
        self._unsynced.pop(file, None)
        fd, file.fd = file.fd, -1
        self.files.close(fd)

    # Room

    def give_up(self) -> bool:
        """Close the least recently used file that may be closed; return False when none may."""
        for file in self._synced:
            if file.spared:
                with contextlib.suppress(StorageError):  # all of it is synced: nothing is lost
                    self.close(file)
                return True
        return False

    def make_room(self) -> bool:
        """Free a descriptor when there is none left; return False when none can be spared."""
        if threading.get_ident() == self._opened_by and self.give_up():
            return True
        try:
            fd = self._spares.pop()
        except IndexError:
            return False
        self.files.close(fd)
        return True

    def keep_spares(self) -> None:
        """Reopen the spare descriptors that were given up, if the process has that many again."""
        while len(self._spares) < SPARES:
            try:
                fd = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                if error.errno not in _NO_SPARE:
                    raise
                return
            self.files.renamed(fd, "/dev/null")
            self._spares.append(fd)

    def oldest_unsynced(self) -> list[OpenFile]:
        """Return the files to sync first to free places, each of them `shared`."""
        count = max(8, self.places // SYNCED_PART)
        found: list[OpenFile] = []
        for file in self._unsynced:
            if len(found) == count:
                break
            if file.failure is None:
                found.append(file.shared())
        return found

    def sync_oldest(self) -> None:
        """Sync some files in the calling thread. Raises StorageError; the failed file raises it at
        every later sync."""
        files = self.oldest_unsynced()
        try:
            writes = [file.writes for file in files]
            for file in files:
                file.sync()
            note_synced(zip(files, writes, strict=True))
        finally:
            for file in files:
                file.give_back()

    def close_spares(self) -> None:
        """Close the spare descriptors, at the shard's end."""
        while self._spares:
            self.files.close(self._spares.pop())


def note_synced(files: Iterable[tuple[OpenFile, int]]) -> None:
    """Record how many writes are synced of files given least recently used first."""
    for file, writes in reversed(list(files)):
        file.note_synced(writes)

"""The files that the queues' logs of a shard have open: segments and indexes written or read, heads; a bounded number.

Responsible for which of them stay open: those used last. A queue in which nothing happens holds no descriptor. Knows
nothing of what is in the files.

**A file that holds what is not synced stays open.** What the kernel fails to write out it reports to descriptors that are open;
once the last is closed, and the inode has left the cache, nobody is told, and a sync by a new descriptor says that all is well. So
only synced files are closed for others. At most three quarters of the places go to unsynced ones, so that readers and heads always
find some; a write beyond that raises `AwaitsSync`. It is repeated when the oldest have been synced, by whoever has a thread for
that (`attended`); where nobody has, they are synced at once.

Where the process has no descriptor left for a call, synced files are closed one after another until the call works; then the
spare descriptors are given up, which are kept for that. So a reader finds one although connections have taken all the others.
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
"""Files open at once where nobody says otherwise: a tool, a test."""
SPARES: Final = 4
"""Descriptors kept for when there are none: the shard needs one at a time, its threads one each."""
UNSYNCED_PART: Final = 3, 4
"""How much of the places unsynced files may take."""
SYNCED_PART: Final = 8
"""The part of the places that is synced at a time when unsynced files have used up theirs."""
WRITE_OUT_BYTES: Final = 256 << 10
"""What is written out at a time. Behind much more every write of the log would wait: the disk takes them in turn."""
_NO_SPARE: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


class OpenFile:
    """A file of a log, opened when it is needed and closed when others need the place, or nobody needs it any more.

    `writes` counts them, `synced` how many of them are known to be synced. `end` is where the last ended, `begun` up to where
    bytes were written out; `aged` is where `end` was some time ago, for whoever looks after that.
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
        """What went wrong when bytes were written out: a sync would not report it again."""
        self._owned = True
        self._sharers = 0
        self._readonly = readonly

    def opened(self) -> int:
        """Return the descriptor, good until another file is opened. One to write to is made if it is not there. Raises StorageError."""
        if self.fd >= 0:
            self.table.touch(self)
        else:
            self.fd = self.table.open_(self, self._readonly)
        return self.fd

    def write(self, buffers: list[Buffer], position: int) -> None:
        """Write at a position; the file is made if need be. Raises StorageError, AwaitsSync before anything is done."""
        table = self.table
        if self.synced == self.writes:
            table.admit()
        if self.fd < 0:
            self.fd = table.open_(self, False)
            self.end = self.begun = self.aged = position
        self.writes += 1
        table.wrote(self)
        self.end = position + self.files.pwritev(self.fd, buffers, position)

    def write_out(self, end: int) -> None:
        """Have bytes up to `end` written out, all but a last piece, a piece at a time with as long a pause behind each.

        In any one thread. Raises StorageError, now and at every later call.
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
        """Sync what was written so far; in any one thread, for which it is `shared`. Raises StorageError, now and at every later
        call."""
        if self.failure is not None:
            raise self.failure
        try:
            self.files.fdatasync(self.fd)
        except StorageError as error:
            self.failure = error
            raise

    def note_synced(self, writes: int) -> None:
        """The first so many writes are synced."""
        if writes > self.synced:
            self.synced = writes
            self.table.settled(self)

    @property
    def dirty(self) -> bool:
        """Whether something was written that is not known to be synced."""
        return self.synced < self.writes

    @property
    def spared(self) -> bool:
        """Whether nobody minds that it is closed: all of it is synced, and it is not shared."""
        return self.synced == self.writes and not self._sharers

    def shared(self) -> OpenFile:
        """Return it for somebody else, for whom it stays open until `give_back`."""
        self._sharers += 1
        return self

    def give_back(self) -> None:
        """Say that one of those who share it needs it no more."""
        self._sharers -= 1
        self._close_unused()

    def release(self) -> None:
        """Say that its log needs it no more."""
        self._owned = False
        self._close_unused()

    def _close_unused(self) -> None:
        if not self._owned and not self._sharers and self.fd >= 0:
            self.table.close(self)


class OpenFiles:
    """The open files of one shard. Used in the thread that made it; `make_room` alone may be called in others."""

    def __init__(self, files: Files, places: int = PLACES) -> None:
        self.files = files
        self.places = places
        self.attended = False
        """Whether somebody syncs the oldest files when `wanting` says so; else they are synced by the write that needs it."""
        self.wanting = False
        """Whether a write waits for files to be synced."""
        # Both with those first that were used longest ago.
        self._synced: OrderedDict[OpenFile, None] = OrderedDict()
        self._unsynced: OrderedDict[OpenFile, None] = OrderedDict()
        self._spares: list[int] = []
        self._opened_by = threading.get_ident()
        files.make_room = self.make_room

    def __len__(self) -> int:
        return len(self._synced) + len(self._unsynced)

    @property
    def unsynced(self) -> int:
        """How many files hold what is not synced."""
        return len(self._unsynced)

    @property
    def unsynced_max(self) -> int:
        """How many may."""
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
        """A file is used."""
        (self._unsynced if file.dirty else self._synced).move_to_end(file)

    def admit(self) -> None:
        """One more file is about to be written to. Raises AwaitsSync when that makes too many, others when a sync fails."""
        if len(self._unsynced) < self.unsynced_max:
            return
        if self.attended:
            self.wanting = True
            raise AwaitsSync(f"{len(self._unsynced)} files wait to be synced")
        self.sync_oldest()

    def wrote(self, file: OpenFile) -> None:
        """A file holds what is not synced."""
        self._synced.pop(file, None)
        self._unsynced[file] = None
        self._unsynced.move_to_end(file)

    def settled(self, file: OpenFile) -> None:
        """A file was synced, up to some write."""
        if not file.dirty and file in self._unsynced:
            del self._unsynced[file]
            self._synced[file] = None
            self._synced.move_to_end(file, last=False)  # one that is still written to comes back

    def close(self, file: OpenFile) -> None:
        """Close a file that nobody uses any more."""
        self._synced.pop(file, None)
        self._unsynced.pop(file, None)
        fd, file.fd = file.fd, -1
        self.files.close(fd)

    # Room

    def give_up(self) -> bool:
        """Close the file that was used longest ago of those that may be closed; False when none may."""
        for file in self._synced:
            if file.spared:
                with contextlib.suppress(StorageError):  # all of it is synced: nothing is lost
                    self.close(file)
                return True
        return False

    def make_room(self) -> bool:
        """There is no descriptor: give one up that can be spared; False when there is none to give."""
        if threading.get_ident() == self._opened_by and self.give_up():
            return True
        try:
            fd = self._spares.pop()
        except IndexError:
            return False
        self.files.close(fd)
        return True

    def keep_spares(self) -> None:
        """Have the spare descriptors there that were given up, if the process has that many again."""
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
        """Return the files to sync first so that others find places, each of them `shared`."""
        count = max(8, self.places // SYNCED_PART)
        found: list[OpenFile] = []
        for file in self._unsynced:
            if len(found) == count:
                break
            if file.failure is None:
                found.append(file.shared())
        return found

    def sync_oldest(self) -> None:
        """Sync some files here and now. Raises StorageError; the file it failed on says so at every later sync."""
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
        """Close the spare descriptors: the shard ends."""
        while self._spares:
            self.files.close(self._spares.pop())


def note_synced(files: Iterable[tuple[OpenFile, int]]) -> None:
    """Note of files, the one used longest ago first, how many of their writes are synced."""
    for file, writes in reversed(list(files)):
        file.note_synced(writes)

"""The shard's write-ahead log as its groups use it: one write and one sync per tick for all of them.

While a sync is under way the next write gathers; when it is done the groups written are told how far their
entries are durable. A log whose write or sync failed is done with: every group on it fails, and nothing on it is
acknowledged again before the shard has been started anew.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable
from typing import Protocol

from fluxmq.logs import get_logger
from fluxmq.shards.queues.counts import SyncTimes
from fluxmq.storage.errors import Exhausted, OutOfDescriptors, StorageError, WriteFailed
from fluxmq.storage.files import Files
from fluxmq.storage.wal import WriteAheadLog
from fluxmq.storage.wal_options import NO_MARK, MarkWrite

_log = get_logger("fluxmq.log")

AWAIT_SECONDS = 0.0003
"""How long the end of a sync is looked for without sleeping: most disks with a safe cache answer within it, and being
woken would take as long again. What such a disk does not do by then is waited for asleep."""


class Written(Protocol):
    """Whoever has entries in a write."""

    def persisted(self, index: int, term: int, number: int) -> None:
        """Everything up to entry ``index`` of ``term`` is durable, and all that was said to be write ``number``."""

    def log_failed(self, why: str) -> None:
        """Nothing written since the last ``persisted`` ever will be."""


class SharedLog:
    """One write-ahead log and who waits for it."""

    def __init__(
        self,
        wal: WriteAheadLog,
        wake: Callable[[], None],
        times: SyncTimes | None = None,
        *,
        impatient: bool = False,
        is_awaited: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`impatient`: the disk is synced on another processor, so that this one may look for the end of it.

        `is_awaited`: whether a group has something to propose that waits for the log to be free.
        """
        self.wal = wal
        self.times = times or SyncTimes()
        self.failed = ""
        self.full = False
        """Whether what is buffered waits for space on the disk: nothing more is taken then."""
        self.problem: Exhausted | None = None
        """What was used up when a write had to wait last."""
        self.busy = False
        """Whether a sync is under way."""
        self.awaited = 0.0
        """Until when (monotonic seconds) the end of the sync under way is worth looking for without sleep; 0: none is."""
        self.gathering = False
        """Whether `flush` will be called soon anyway, so that what is written now need not wake the shard."""
        self._wake = wake
        self._impatient = impatient
        self._is_awaited = is_awaited
        self._clock = clock
        self._next: dict[Written, tuple[int, int, int]] = {}
        self._under_way: dict[Written, tuple[int, int, int]] = {}
        self._durable: dict[Written, tuple[int, int, int]] = {}
        """Who is still to be told of a sync that has ended."""
        self._members: set[Written] = set()

    def join(self, group: Written) -> None:
        """A group writes here."""
        self._members.add(group)

    def owes(self, group: Written) -> bool:
        """Whether something that a group gave is not written and durable, and still may be."""
        return not self.failed and (group in self._next or group in self._under_way)

    def leave(self, group: Written) -> None:
        """A group has moved away."""
        self._members.discard(group)
        self._next.pop(group, None)
        self._under_way.pop(group, None)
        self._durable.pop(group, None)

    def wrote(self, group: Written, index: int, term: int, number: int = 0) -> None:
        """The group's entries up to ``index`` are in the next write, which it may give a number to."""
        self._next[group] = (index, term, number)
        if not self.gathering:
            self._wake()

    def flush(self) -> None:
        """Write what has gathered, unless a sync is under way."""
        if self.busy or self.failed or not self.wal.buffered_bytes:
            return
        try:
            if self.wal.flush():
                self._under_way, self._next = self._next, {}
                self.full = False
                self.busy = bool(self._under_way)
                if self._impatient:
                    self.awaited = self._clock() + AWAIT_SECONDS
        except Exhausted as error:
            if not self.full:
                wanted = "a descriptor" if isinstance(error, OutOfDescriptors) else "space"
                _log.warning("the log waits for %s", wanted, extra={"problem": str(error)})
            self.problem = error
            self.full = True  # what is buffered waits; nobody is answered meanwhile
        except StorageError as error:
            self._fail(str(error))

    def begin_tick(self) -> None:
        """The end of a tick begins: tell those whose sync has ended; what is written from now on goes with `end_tick`."""
        self.gathering = True
        if self.busy:
            self.look()  # it may have ended since the tick began
        if self._durable:
            self.tell()

    def end_tick(self) -> float:
        """Write what has gathered; until when (monotonic seconds) the end of its sync is worth looking for, or 0."""
        self.flush()
        self.gathering = False
        if self.busy and not self.wal.synced:
            self.look()  # it is as good as synced
            self._wake()
        return self.awaited

    def look(self) -> None:
        """Take note of a sync that has ended; the log is free then. Who waits for it is told by ``tell``."""
        if self.failed:
            return
        try:
            done = self.wal.completed()
        except StorageError as error:
            self._fail(str(error))
            return
        if done and self.busy and not self.wal.in_flight:
            # Nobody has more under way than one write, so nobody is in both.
            self._durable.update(self._under_way)
            self._under_way = {}
            self.busy = False
            self.awaited = 0.0

    def tell(self) -> None:
        """Tell those whose entries have become durable."""
        if not self._durable:
            return
        durable, self._durable = self._durable, {}
        for group, (index, term, number) in durable.items():
            group.persisted(index, term, number)

    def ready(self) -> None:
        """A sync has ended, or a file that a write waits for is there.

        Who waits for it is told at once, and has a tick end if something comes of that; so has what waits to be written.
        """
        self.look()
        self.tell()
        if self.wal.buffered_bytes or self.failed or self._is_awaited():
            self._wake()

    def completed(self) -> None:
        """A sync may have ended: tell whose entries are durable now."""
        self.look()
        self.tell()

    def close(self) -> None:
        """Close the files; what is under way is waited for by the caller."""
        self.wal.close()

    def _fail(self, why: str) -> None:
        self.failed = why
        _log.error("nothing more is acknowledged on this log", extra={"problem": why})
        for group in list(self._members):
            group.log_failed(why)


class BufferedSyncer:
    """Says at once that a write is durable, and syncs later: for queues whose publishers asked for just that.

    ``sync`` runs in a thread of the caller's, at most ``interval`` seconds after the oldest unsynced write.
    """

    def __init__(self, files: Files | None = None) -> None:
        self._files = files or Files()
        self._syncing = threading.Lock()
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._done: list[tuple[int, int, float]] = []
        self._lock = threading.Lock()
        self._dirty: dict[tuple[int, int], int] = {}
        """Files to be synced, by device and inode: our own descriptors, since the log may close its."""
        self._failure = 0

    def fileno(self) -> int:
        """Readable when something completed."""
        return self._event

    def submit(self, fd: int, number: int, mark: MarkWrite = NO_MARK) -> None:
        """Note what will have to be synced, and answer. A log that is not synced has no mark."""
        assert mark.fd < 0, "a mark says what is synced"
        file = os.fstat(fd)
        key = (file.st_dev, file.st_ino)
        with self._lock:
            known = key in self._dirty
            if not known:
                try:
                    self._dirty[key] = os.dup(fd)
                    known = True
                except OSError as error:
                    if error.errno not in (errno.EMFILE, errno.ENFILE):
                        raise
        if not known:
            self._sync_now(fd)  # it cannot be kept open for later
        self._done.append((number, self._failure, 0.0))
        os.eventfd_write(self._event, 1)

    def begin(self, fd: int) -> None:
        """Whichever it is, who asks writes to it."""

    def write(
        self, _parts: list[bytes], _position: int, _number: int, _mark: MarkWrite = NO_MARK
    ) -> bool:
        """Nothing is written here."""
        return False

    def completed(self) -> list[tuple[int, int, float]]:
        """What was asked since the last call."""
        try:
            os.eventfd_read(self._event)
        except BlockingIOError:
            return []
        done, self._done = self._done, []
        return done

    @property
    def dirty(self) -> bool:
        """Whether something is not synced."""
        return bool(self._dirty)

    def sync(self) -> None:
        """Sync everything noted so far (blocks), in any thread. A failure is the answer to every later request."""
        with self._syncing:
            with self._lock:
                dirty, self._dirty = self._dirty, {}
            for fd in dirty.values():
                try:
                    self._sync_now(fd)
                finally:
                    os.close(fd)

    def _sync_now(self, fd: int) -> None:
        try:
            self._files.fdatasync(fd)
        except StorageError:
            self._failure = errno.EIO

    def settle(self) -> None:
        """Sync now (blocks), before something is done that an entry asked for and that cannot be taken back.

        Raises WriteFailed when what was written may be lost.
        """
        self.sync()
        if self._failure:
            raise WriteFailed("what was answered before it was synced may be lost")

    def wake(self) -> None:
        """Make ``fileno`` readable; from any thread."""
        os.eventfd_write(self._event, 1)

    def close(self) -> None:
        """Sync what is left and end."""
        self.sync()
        os.close(self._event)

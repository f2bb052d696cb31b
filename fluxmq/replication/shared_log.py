"""The shard's write-ahead log as its groups use it: one write and one sync per tick for all of
them.

While a sync is in flight the next write gathers; afterwards the groups learn how far their entries
are durable. A failed write or sync ends the log: every group on it fails, and nothing on it is
acknowledged before the shard restarts.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from fluxmq.logs import get_logger
from fluxmq.storage.errors import Exhausted, OutOfDescriptors, StorageError, WriteFailed
from fluxmq.storage.files import Files
from fluxmq.storage.wal import WriteAheadLog
from fluxmq.storage.wal_options import NO_MARK, MarkWrite

_log = get_logger("fluxmq.log")

AWAIT_SECONDS = 0.0003
"""Time to poll for the end of a sync: most disks with a safe cache finish within it, and a wake-up
would take as long again. After that the shard sleeps until the sync ends."""

RECENT_SYNCS = 1024
"""Number of syncs behind a log's percentile: some seconds under load, minutes at rest."""


class SyncTimes:
    """Durations of a log's syncs. ``observe``: further observer of each duration."""

    def __init__(self, observe: Callable[[float], None] = lambda _seconds: None) -> None:
        self._recent: deque[float] = deque(maxlen=RECENT_SYNCS)
        self._observe = observe

    def __call__(self, seconds: float) -> None:
        """Record a sync's duration."""
        self._recent.append(seconds)
        self._observe(seconds)

    @property
    def p99(self) -> float:
        """The 99th percentile of recent syncs, in seconds; 0 before the first."""
        if not self._recent:
            return 0.0
        return sorted(self._recent)[(len(self._recent) * 99 - 1) // 100]


class WrittenGroup(Protocol):
    """A group with entries in a write."""

    def persisted(self, index: int, term: int, number: int) -> None:
        """Handle durability up to entry ``index`` of ``term``, and of everything in writes up to
        ``number``."""

    def log_failed(self, why: str) -> None:
        """Handle failure: nothing written since the last ``persisted`` ever will be durable."""


class SharedLog:
    """One write-ahead log and the groups that write to it."""

    def __init__(
        self,
        wal: WriteAheadLog,
        wake: Callable[[], None],
        times: SyncTimes | None = None,
        *,
        polling: bool = False,
        is_awaited: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`polling`: the sync runs on another processor, so that this one may poll for its end.

        `is_awaited`: returns whether a group has commands to propose that wait for the log.
        """
        self.wal = wal
        self.times = times or SyncTimes()
        self.failed = ""
        self.full = False
        """True while buffered data waits for disk space: nothing more is accepted."""
        self.problem: Exhausted | None = None
        """Exhausted resource of the last write that had to wait."""
        self.busy = False
        """True while a sync is in flight."""
        self.awaited = 0.0
        """Time (monotonic seconds) until which to poll for the end of the sync; 0: no sync."""
        self.gathering = False
        """True if `flush` is due anyway, so that a write need not wake the shard."""
        self._wake = wake
        self._polling = polling
        self._is_awaited = is_awaited
        self._clock = clock
        self._next: dict[WrittenGroup, tuple[int, int, int]] = {}
        self._under_way: dict[WrittenGroup, tuple[int, int, int]] = {}
        self._durable: dict[WrittenGroup, tuple[int, int, int]] = {}
        """Groups still to be notified of a sync that has ended."""
        self._members: set[WrittenGroup] = set()

    def join(self, group: WrittenGroup) -> None:
        """Register a group that writes here."""
        self._members.add(group)

    def has_pending(self, group: WrittenGroup) -> bool:
        """Return whether writes of a group are not durable yet and still may become so."""
        return not self.failed and (group in self._next or group in self._under_way)

    def leave(self, group: WrittenGroup) -> None:
        """Remove a group that has moved away."""
        self._members.discard(group)
        self._next.pop(group, None)
        self._under_way.pop(group, None)
        self._durable.pop(group, None)

    def wrote(self, group: WrittenGroup, index: int, term: int, number: int = 0) -> None:
        """Register the group's entries up to ``index`` for the next write, with the group's write
        ``number``."""
        self._next[group] = (index, term, number)
        if not self.gathering:
            self._wake()

    def flush(self) -> None:
        """Write buffered entries, unless a sync is in flight."""
        if self.busy or self.failed or not self.wal.buffered_bytes:
            return
        try:
            if self.wal.flush():
                self._under_way, self._next = self._next, {}
                self.full = False
                self.busy = bool(self._under_way)
                if self._polling:
                    self.awaited = self._clock() + AWAIT_SECONDS
        except Exhausted as error:
            if not self.full:
                wanted = "a descriptor" if isinstance(error, OutOfDescriptors) else "space"
                _log.warning("the log is waiting for %s", wanted, extra={"problem": str(error)})
            self.problem = error
            self.full = True  # buffered data waits; nothing is acknowledged meanwhile
        except StorageError as error:
            self._fail(str(error))

    def begin_tick(self) -> None:
        """Notify groups of an ended sync, at the end of a tick; later writes go with `end_tick`."""
        self.gathering = True
        if self.busy:
            self.look()  # it may have ended during the tick
        if self._durable:
            self.tell()

    def end_tick(self) -> float:
        """Write buffered entries; return the time (monotonic seconds) until which to poll for its
        sync, or 0."""
        self.flush()
        self.gathering = False
        if self.busy and not self.wal.synced:
            self.look()  # it counts as synced
            self._wake()
        return self.awaited

    def look(self) -> None:
        """Check whether the sync has ended, which frees the log. ``tell`` notifies the groups."""
        if self.failed:
            return
        try:
            done = self.wal.completed()
        except StorageError as error:
            self._fail(str(error))
            return
        if done and self.busy and not self.wal.in_flight:
            # A group has at most one write in flight, so it is not in both.
            self._durable.update(self._under_way)
            self._under_way = {}
            self.busy = False
            self.awaited = 0.0

    def tell(self) -> None:
        """Notify groups whose entries have become durable."""
        if not self._durable:
            return
        durable, self._durable = self._durable, {}
        for group, (index, term, number) in durable.items():
            group.persisted(index, term, number)

    def ready(self) -> None:
        """Handle the end of a sync, or a new file that a write waited for.

        Groups are notified at once; the shard wakes if that causes work or a write is waiting.
        """
        self.look()
        self.tell()
        if self.wal.buffered_bytes or self.failed or self._is_awaited():
            self._wake()

    def completed(self) -> None:
        """Check for the end of a sync and notify groups."""
        self.look()
        self.tell()

    def close(self) -> None:
        """Close the files; the caller waits for writes in flight."""
        self.wal.close()

    def _fail(self, why: str) -> None:
        self.failed = why
        _log.error("a log has failed: nothing more is acknowledged on it", extra={"problem": why})
        for group in list(self._members):
            group.log_failed(why)


class BufferedSyncer:
    """Reports writes as durable at once and syncs later, for queues with that durability.

    ``sync`` runs in a thread of the caller's, at most ``storage.queue_sync_interval`` after the
    oldest unsynced write.
    """

    def __init__(self, files: Files | None = None) -> None:
        self._files = files or Files()
        self._syncing = threading.Lock()
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._done: list[tuple[int, int, float]] = []
        self._lock = threading.Lock()
        self._dirty: dict[tuple[int, int], int] = {}
        """Files to sync by device and inode: duplicated descriptors, since the log may close its
        own."""
        self._failure = 0

    def fileno(self) -> int:
        """Return the descriptor that is readable when something completed."""
        return self._event

    def submit(self, fd: int, number: int, mark: MarkWrite = NO_MARK) -> None:
        """Note a file to sync and complete the request. A log that is not synced has no mark."""
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
        """Do nothing: the caller writes to the file itself."""

    def write(
        self, _parts: list[bytes], _position: int, _number: int, _mark: MarkWrite = NO_MARK
    ) -> bool:
        """Write nothing."""
        return False

    def completed(self) -> list[tuple[int, int, float]]:
        """Return the requests completed since the last call."""
        try:
            os.eventfd_read(self._event)
        except BlockingIOError:
            return []
        done, self._done = self._done, []
        return done

    @property
    def dirty(self) -> bool:
        """True while some files are not synced."""
        return bool(self._dirty)

    def sync(self) -> None:
        """Sync everything noted so far (blocks), in any thread. A failure answers all later
        requests."""
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
        """Sync now (blocks), before an irreversible action that an entry requested.

        Raises WriteFailed if written data may be lost.
        """
        self.sync()
        if self._failure:
            raise WriteFailed("entries answered before their sync may be lost")

    def wake(self) -> None:
        """Make ``fileno`` readable; from any thread."""
        os.eventfd_write(self._event, 1)

    def close(self) -> None:
        """Sync the rest and close."""
        self.sync()
        os.close(self._event)

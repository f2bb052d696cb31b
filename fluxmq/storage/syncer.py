"""Makes file writes durable away from the event loop, and reports when each is.

Responsible for the order of answers, for writing a request's mark before it is answered, and for
passing on system errors; the user decides what a failed sync means. Where the file system supports
it, a syncer writes itself: with direct I/O, and the kernel signals completion (see `direct`).
Otherwise its user writes, and a thread syncs. Compiled, the thread is C and never holds the
interpreter's lock; uncompiled, it is a Python thread that releases it during the call. One user per
syncer: each answer is returned once.

A shard is bound to one core. The thread is not: it would compete there with the shard it works for.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

from fluxmq.source_only import PURE
from fluxmq.storage.direct import direct_writer
from fluxmq.storage.errors import WriteFailed
from fluxmq.storage.wal_options import NO_MARK, MarkWrite

if TYPE_CHECKING:
    from fluxmq.storage._direct import DirectWriter

DELAY_VARIABLE = "FLUXMQ_SYNC_DELAY"
"""Seconds added to each sync, for benchmarks on disks that report too early (hosts that cache)."""

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Errors of a full disk."""

REQUESTS_MAX = 64
"""Requests in flight in one syncer; its user waits for answers, so one or two is usual. The C ring
has as many."""


class SyncThread(Protocol):
    """Interface of both forms of the thread."""

    def fileno(self) -> int:
        """Return an eventfd, readable when something completed since the last `completed`."""

    def submit(
        self, fd: int, number: int, mark_fd: int = -1, position: int = 0, mark: bytes = b""
    ) -> bool:
        """Request a sync, after which `mark` is written; return False when too many are in
        flight."""

    def completed(self) -> list[tuple[int, int, float]]:
        """Return number, errno (below 0: of the mark) and seconds of requests completed since the
        last call."""

    def expect(self) -> None:
        """Announce that something else makes `fileno` readable once, or has: `completed` clears
        that as well."""

    def wake(self) -> None:
        """Make `fileno` readable; from any thread."""

    def close(self) -> None:
        """Finish pending requests and end the thread."""


def delay_from(environment: Mapping[str, str]) -> float:
    """Return the delay set in the environment, in seconds."""
    return max(0.0, float(environment.get(DELAY_VARIABLE) or 0))


def spread(cores: Iterable[int]) -> None:
    """Let the calling thread run on these processors; with none, or if the system forbids it,
    change nothing."""
    wanted = set(cores)
    if wanted:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, wanted)


def native_thread(delay: float, cores: Iterable[int] = ()) -> SyncThread | None:
    """Return the compiled thread, or None where it was not built or uncompiled code is
    requested."""
    if PURE:
        return None
    try:
        from fluxmq.storage._sync import SyncThread as NativeThread
    except ImportError:
        return None
    return NativeThread(delay, cores)


class PythonSyncThread:
    """The same thread in Python, for installations without a compiler."""

    def __init__(self, delay: float = 0.0, cores: Iterable[int] = ()) -> None:
        self._delay = delay
        self._cores = tuple(cores)
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._changed = threading.Condition()
        self._asked: deque[tuple[int, int, MarkWrite]] = deque()
        self._done: deque[tuple[int, int, float]] = deque()
        self._under_way = 0
        self._stopping = False
        self._helper = threading.Thread(target=self._run, name="sync", daemon=True)
        self._helper.start()

    def fileno(self) -> int:
        """Return an eventfd, readable when something completed since the last `completed`."""
        if self._stopping:
            raise ValueError("the sync thread was stopped")
        return self._event

    def submit(
        self, fd: int, number: int, mark_fd: int = -1, position: int = 0, mark: bytes = b""
    ) -> bool:
        """Request a sync, after which `mark` is written; return False when too many are in
        flight."""
        with self._changed:
            if self._stopping:
                raise ValueError("the sync thread was stopped")
            if self._under_way >= REQUESTS_MAX:
                return False
            self._under_way += 1
            self._asked.append((fd, number, MarkWrite(mark_fd, position, mark)))
            self._changed.notify()
        return True

    def completed(self) -> list[tuple[int, int, float]]:
        """Return number, errno (below 0: of the mark) and seconds of requests completed since the
        last call."""
        with self._changed:
            if self._stopping:
                raise ValueError("the sync thread was stopped")
            try:
                os.eventfd_read(self._event)
            except BlockingIOError:
                return []
            found = list(self._done)
            self._done.clear()
            self._under_way -= len(found)
        return found

    def expect(self) -> None:
        """Announce that something else makes `fileno` readable once, or has: `completed` clears
        that as well."""

    def wake(self) -> None:
        """Make `fileno` readable; from any thread."""
        os.eventfd_write(self.fileno(), 1)

    def close(self) -> None:
        """Finish pending requests and end the thread."""
        with self._changed:
            if self._stopping:
                return
            self._stopping = True
            self._changed.notify()
        self._helper.join()
        os.close(self._event)

    def _run(self) -> None:
        spread(self._cores)
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._asked or self._stopping)
                if not self._asked:
                    return
                fd, number, mark = self._asked.popleft()
                numbers = [number]
                while self._asked and self._asked[0][0] == fd:
                    _, number, mark = self._asked.popleft()
                    numbers.append(number)
            failure, seconds = self._sync(fd)
            if not failure:
                failure = -_write_mark(mark)
            with self._changed:
                self._done.extend((number, failure, seconds) for number in numbers)
                os.eventfd_write(self._event, 1)

    def _sync(self, fd: int) -> tuple[int, float]:
        begin = time.monotonic()
        if self._delay:
            time.sleep(self._delay)
        failure = 0
        try:
            os.fdatasync(fd)
        except OSError as error:
            failure = error.errno or errno.EIO
        return failure, time.monotonic() - begin


def _write_mark(mark: MarkWrite) -> int:
    """Write a request's mark; return 0 or the error. A full disk is no error: the older mark is
    still true."""
    if mark.fd < 0:
        return 0
    try:
        done = os.pwrite(mark.fd, mark.data, mark.position)
    except OSError as error:
        return 0 if error.errno in FULL else error.errno or errno.EIO
    return 0 if done == len(mark.data) else errno.EIO


class Syncer:
    """Writes and fdatasync in the background, compiled where that was built."""

    def __init__(
        self,
        delay: float | None = None,
        *,
        native: bool = True,
        cores: Iterable[int] = (),
        directory: str = "",
    ) -> None:
        """`delay`: seconds added to each sync (default: the environment's). `native` False: the
        Python thread.

        `cores`: processors the thread may run on; with none, the creator's. `directory`: of the
        files, to write them here where that does not block; empty, or with a delay: sync only.
        """
        delay = delay_from(os.environ) if delay is None else delay
        cores = tuple(cores)
        found = native_thread(delay, cores) if native else None
        self._helper = found or PythonSyncThread(delay, cores)
        self._direct: DirectWriter | None = None
        self._writable = False
        if found is not None and directory and not delay:
            self._direct = direct_writer(found.fileno(), directory)

    @property
    def compiled(self) -> bool:
        """True when the thread is the compiled one."""
        return not isinstance(self._helper, PythonSyncThread)

    @property
    def writes(self) -> bool:
        """True when `write` may write."""
        return self._direct is not None

    def fileno(self) -> int:
        """Return an eventfd for the event loop: readable when `completed` has something."""
        return self._helper.fileno()

    def submit(self, fd: int, number: int, mark: MarkWrite = NO_MARK) -> None:
        """Sync the writes to `fd` so far; `fd` stays open until `number` is answered.

        On success `mark` is written before the answer. Raises WriteFailed when REQUESTS_MAX are in
        flight, without a request.
        """
        if not self._helper.submit(fd, number, mark.fd, mark.position, mark.data):
            raise WriteFailed(f"more than {REQUESTS_MAX} syncs are under way")

    def begin(self, fd: int) -> None:
        """Direct `write` to this file, which stays open until the next one; files are written one
        at a time.

        No write may be in flight.
        """
        self._writable = False
        if self._direct is not None:
            with contextlib.suppress(
                OSError
            ):  # then it is written as where direct I/O is unsupported
                self._direct.open(fd)
                self._writable = True

    def write(
        self, parts: list[bytes], position: int, number: int, mark: MarkWrite = NO_MARK
    ) -> bool:
        """Write to the file of `begin` and sync it without blocking; then write `mark` and answer
        `number`.

        Everything else written to the file must be synced already. Returns False without effect
        when the caller has to write itself and `submit`. At most one such write, and no sync, may
        be in flight.
        """
        direct = self._direct
        if direct is None or not self._writable:
            return False
        return direct.write(parts, position, number, mark.fd, mark.position, mark.data)

    def completed(self) -> list[tuple[int, int, float]]:
        """Return number, errno and seconds of each sync that ended since the last call, in the
        order requested.

        Errno is 0 on success, below 0 when the mark could not be written. Makes no system call
        while nothing has ended.
        """
        direct = self._direct
        if direct is None or not direct.under_way:
            return self._helper.completed()
        written = direct.completed()
        if written is None:
            return self._helper.completed()
        self._helper.expect()  # the kernel has woken the event loop, or is about to
        return [written, *self._helper.completed()]

    def wake(self) -> None:
        """Make `fileno` readable once although nothing completed; from any thread."""
        self._helper.wake()

    def close(self) -> None:
        """Finish pending requests and end the thread; answers not fetched are lost."""
        if self._direct is not None:
            self._direct.close()
            self._direct = None
        self._helper.close()

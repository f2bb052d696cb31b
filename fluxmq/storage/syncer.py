"""Makes what is written to files durable away from the event loop, and says when each part is.

Responsible for the order of answers, for writing the mark that a request carries before it is answered, and for passing
on the system's error; what a failed sync means is its user's matter. Where the file system can, a syncer writes itself:
past the page cache, and the kernel says when it is done (see `direct`). Else its user writes, and a thread syncs.
Compiled, the thread is C and never holds the interpreter's lock; uncompiled, it is a Python thread that lets go of it
during the call. One user per syncer: answers are handed out once.

A shard is bound to one core. The thread is not: it would take turns there with the shard it works for.
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

from fluxmq._hot import PURE
from fluxmq.storage.direct import direct_writer
from fluxmq.storage.errors import WriteFailed
from fluxmq.storage.wal_options import NO_MARK, MarkWrite

if TYPE_CHECKING:
    from fluxmq._hot._direct import DirectWriter

DELAY_VARIABLE = "FLUXMQ_SYNC_DELAY"
"""Seconds added to each sync, for benchmarks on disks that flatter (hosts that cache)."""

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Errors of a disk that has no room."""

REQUESTS_MAX = 64
"""Requests under way in one syncer; its user waits for answers, so one or two is usual. The C ring has as many."""


class SyncThread(Protocol):
    """What both forms of the thread do."""

    def fileno(self) -> int:
        """An eventfd, readable when something completed since the last `completed`."""

    def submit(
        self, fd: int, number: int, mark_fd: int = -1, position: int = 0, mark: bytes = b""
    ) -> bool:
        """Ask for a sync, and that `mark` is then written; False when too many are under way."""

    def completed(self) -> list[tuple[int, int, float]]:
        """Number, errno (below 0: of the mark) and seconds of what was done since the last call."""

    def expect(self) -> None:
        """Somebody else makes `fileno` readable once, or has: `completed` reads that away as well."""

    def wake(self) -> None:
        """Make `fileno` readable; from any thread."""

    def close(self) -> None:
        """Finish what was asked for and end the thread."""


def delay_from(environment: Mapping[str, str]) -> float:
    """The delay the environment asks for, in seconds."""
    return max(0.0, float(environment.get(DELAY_VARIABLE) or 0))


def spread(cores: Iterable[int]) -> None:
    """Let the calling thread run on these processors; none, or what the system does not allow: it stays where it is."""
    wanted = set(cores)
    if wanted:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, wanted)


def native_thread(delay: float, cores: Iterable[int] = ()) -> SyncThread | None:
    """The compiled thread, or None where it was not built or uncompiled code is asked for."""
    if PURE:
        return None
    try:
        from fluxmq._hot import _native
    except ImportError:
        return None
    return _native.SyncThread(delay, cores)


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
        """An eventfd, readable when something completed since the last `completed`."""
        if self._stopping:
            raise ValueError("the sync thread was stopped")
        return self._event

    def submit(
        self, fd: int, number: int, mark_fd: int = -1, position: int = 0, mark: bytes = b""
    ) -> bool:
        """Ask for a sync, and that `mark` is then written; False when too many are under way."""
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
        """Number, errno (below 0: of the mark) and seconds of what was done since the last call."""
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
        """Somebody else makes `fileno` readable once, or has: `completed` reads that away as well."""

    def wake(self) -> None:
        """Make `fileno` readable; from any thread."""
        os.eventfd_write(self.fileno(), 1)

    def close(self) -> None:
        """Finish what was asked for and end the thread."""
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
    """Write a request's mark: 0, or the error. A full disk is none: the older mark is as true."""
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
        """`delay`: seconds added to each sync (default: the environment's). `native` False: the Python thread.

        `cores`: processors the thread may run on; none: those of who makes it. `directory`: where the files are, to write
        them here where that can be done without waiting; empty, or with a delay: syncs only.
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
        """Whether the thread is the compiled one."""
        return not isinstance(self._helper, PythonSyncThread)

    @property
    def writes(self) -> bool:
        """Whether `write` writes."""
        return self._direct is not None

    def fileno(self) -> int:
        """An eventfd for the event loop: readable when `completed` has something."""
        return self._helper.fileno()

    def submit(self, fd: int, number: int, mark: MarkWrite = NO_MARK) -> None:
        """Sync what was written to `fd` so far; `fd` stays open until `number` is answered.

        When that has worked `mark` is written, and then it is answered. Raises WriteFailed when REQUESTS_MAX are under
        way: nothing was asked for then.
        """
        if not self._helper.submit(fd, number, mark.fd, mark.position, mark.data):
            raise WriteFailed(f"more than {REQUESTS_MAX} syncs are under way")

    def begin(self, fd: int) -> None:
        """Files are written one after the other: `write` goes to this one, which stays open until there is another.

        No write may be under way.
        """
        self._writable = False
        if self._direct is not None:
            with contextlib.suppress(OSError):  # then it is written like where no file can be
                self._direct.open(fd)
                self._writable = True

    def write(
        self, parts: list[bytes], position: int, number: int, mark: MarkWrite = NO_MARK
    ) -> bool:
        """Write to the file of `begin` and sync that, without waiting; then `mark` is written, and `number` answered.

        Whatever else was written to the file is synced already. False: nothing is done, and whoever asks writes and
        has it synced with `submit`. There are no more than one such write and no syncs under way at a time.
        """
        direct = self._direct
        if direct is None or not self._writable:
            return False
        return direct.write(parts, position, number, mark.fd, mark.position, mark.data)

    def completed(self) -> list[tuple[int, int, float]]:
        """Number, errno and seconds of each sync that ended since the last call, in the order asked.

        Errno is 0 when it worked, below 0 when it was the mark that could not be written. No system call is made while
        nothing has ended.
        """
        direct = self._direct
        if direct is None or not direct.under_way:
            return self._helper.completed()
        written = direct.completed()
        if written is None:
            return self._helper.completed()
        self._helper.expect()  # the kernel has woken whoever looks, or is about to
        return [written, *self._helper.completed()]

    def wake(self) -> None:
        """Make `fileno` readable once although nothing completed; from any thread."""
        self._helper.wake()

    def close(self) -> None:
        """Finish what was asked for and end the thread; answers not fetched are lost."""
        if self._direct is not None:
            self._direct.close()
            self._direct = None
        self._helper.close()

"""Syncs files away from the event loop and says when each is done.

Responsible for the order of answers and for passing on the system's error; what a failed sync means is its user's
matter. Compiled, the thread is C and never holds the interpreter's lock; uncompiled, it is a Python thread that lets go
of it during the call. One user per syncer: answers are handed out once.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import Protocol

from fluxmq._hot import PURE
from fluxmq.storage.errors import WriteFailed

DELAY_VARIABLE = "FLUXMQ_SYNC_DELAY"
"""Seconds added to each sync, for benchmarks on disks that flatter (hosts that cache)."""

REQUESTS_MAX = 64
"""Requests under way in one syncer; its user waits for answers, so one or two is usual. The C ring has as many."""


class SyncThread(Protocol):
    """What both forms of the thread do."""

    def fileno(self) -> int:
        """An eventfd, readable when something completed since the last `completed`."""

    def submit(self, fd: int, number: int) -> bool:
        """Ask for a sync; False when too many are under way."""

    def completed(self) -> list[tuple[int, int, float]]:
        """Number, errno and seconds of what was done since the last call."""

    def close(self) -> None:
        """Finish what was asked for and end the thread."""


def delay_from(environment: Mapping[str, str]) -> float:
    """The delay the environment asks for, in seconds."""
    return max(0.0, float(environment.get(DELAY_VARIABLE) or 0))


def native_thread(delay: float) -> SyncThread | None:
    """The compiled thread, or None where it was not built or uncompiled code is asked for."""
    if PURE:
        return None
    try:
        from fluxmq._hot import _native
    except ImportError:
        return None
    return _native.SyncThread(delay)


class PythonSyncThread:
    """The same thread in Python, for installations without a compiler."""

    def __init__(self, delay: float = 0.0) -> None:
        self._delay = delay
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._changed = threading.Condition()
        self._asked: deque[tuple[int, int]] = deque()
        self._done: deque[tuple[int, int, float]] = deque()
        self._under_way = 0
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="sync", daemon=True)
        self._thread.start()

    def fileno(self) -> int:
        """An eventfd, readable when something completed since the last `completed`."""
        if self._stopping:
            raise ValueError("the sync thread was stopped")
        return self._event

    def submit(self, fd: int, number: int) -> bool:
        """Ask for a sync; False when too many are under way."""
        with self._changed:
            if self._stopping:
                raise ValueError("the sync thread was stopped")
            if self._under_way >= REQUESTS_MAX:
                return False
            self._under_way += 1
            self._asked.append((fd, number))
            self._changed.notify()
        return True

    def completed(self) -> list[tuple[int, int, float]]:
        """Number, errno and seconds of what was done since the last call."""
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

    def close(self) -> None:
        """Finish what was asked for and end the thread."""
        with self._changed:
            if self._stopping:
                return
            self._stopping = True
            self._changed.notify()
        self._thread.join()
        os.close(self._event)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._asked or self._stopping)
                if not self._asked:
                    return
                fd, number = self._asked.popleft()
                numbers = [number]
                while self._asked and self._asked[0][0] == fd:
                    numbers.append(self._asked.popleft()[1])
            failure, seconds = self._sync(fd)
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


class Syncer:
    """fdatasync in the background, compiled where that was built."""

    def __init__(self, delay: float | None = None, *, native: bool = True) -> None:
        """`delay`: seconds added to each sync (default: the environment's). `native` False: the Python thread."""
        delay = delay_from(os.environ) if delay is None else delay
        self._thread = (native_thread(delay) if native else None) or PythonSyncThread(delay)

    @property
    def compiled(self) -> bool:
        """Whether the thread is the compiled one."""
        return not isinstance(self._thread, PythonSyncThread)

    def fileno(self) -> int:
        """An eventfd for the event loop: readable when `completed` has something."""
        return self._thread.fileno()

    def submit(self, fd: int, number: int) -> None:
        """Sync what was written to `fd` so far; `fd` stays open until `number` is answered.

        Raises WriteFailed when REQUESTS_MAX are under way: nothing was asked for then.
        """
        if not self._thread.submit(fd, number):
            raise WriteFailed(f"more than {REQUESTS_MAX} syncs are under way")

    def completed(self) -> list[tuple[int, int, float]]:
        """Number, errno (0: it worked) and seconds of each sync that ended since the last call, in the order asked."""
        return self._thread.completed()

    def wake(self) -> None:
        """Make `fileno` readable once although nothing completed; from any thread."""
        os.eventfd_write(self._thread.fileno(), 1)

    def close(self) -> None:
        """Finish what was asked for and end the thread; answers not fetched are lost."""
        self._thread.close()

"""Numbers that the processes of one run share: a page of memory and one eventfd per worker.

Every word has one writer: the header is the parent's, except ``WRITTEN_OFF`` which is worker 0's; each row is
its worker's. Readers see each word whole (aligned eight bytes) and need no order between words.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass

WORKERS_MAX = 64
"""Rows of a board: more generator processes than this help nobody."""

START, MEASURE_FROM, MEASURE_TO, STOP_AT, WRITTEN_OFF = range(5)
"""Header words: times in nanoseconds of the monotonic clock (0: not set), deliveries given up."""

HEADER_WORDS = 16
ROW_WORDS = 8
STATE, SENT, RECEIVED, ACKNOWLEDGED, WAITING, MISSED = range(6)
"""Words of a worker's row: its state, messages published, deliveries, acknowledgements, asleep for room,
deliveries known to be lost because a later one of the same publisher came."""

CONNECTING, READY, PUBLISHED, FINISHED = range(4)
"""Values of ``STATE``, in order. From ``PUBLISHED`` on, ``SENT`` does not change any more."""


@dataclass(slots=True)
class Board:
    """The shared page; ``fd`` and ``wake_fds`` are inherited by the workers."""

    fd: int
    wake_fds: list[int]
    words: memoryview
    memory: mmap.mmap

    @classmethod
    def create(cls, workers: int) -> Board:
        """A new, zeroed board for this many workers."""
        if not 1 <= workers <= WORKERS_MAX:
            raise ValueError(f"a run has 1 to {WORKERS_MAX} workers")
        fd = os.memfd_create("perf-board", 0)
        os.truncate(fd, 8 * (HEADER_WORDS + ROW_WORDS * WORKERS_MAX))
        wake_fds = [os.eventfd(0, os.EFD_NONBLOCK) for _ in range(workers)]
        return cls.open(fd, wake_fds)

    @classmethod
    def open(cls, fd: int, wake_fds: list[int]) -> Board:
        """The board behind an inherited descriptor."""
        memory = mmap.mmap(fd, 8 * (HEADER_WORDS + ROW_WORDS * WORKERS_MAX))
        return cls(fd, wake_fds, memoryview(memory).cast("q"), memory)

    @property
    def workers(self) -> int:
        """Number of rows in use."""
        return len(self.wake_fds)

    def place(self, worker: int, word: int) -> int:
        """The index of a worker's word."""
        return HEADER_WORDS + worker * ROW_WORDS + word

    def total(self, word: int) -> int:
        """The sum of one word over all workers."""
        words = self.words
        return sum(words[self.place(worker, word)] for worker in range(len(self.wake_fds)))

    def reached(self, state: int) -> bool:
        """Return whether every worker is in this state or beyond."""
        return all(self.words[self.place(w, STATE)] >= state for w in range(self.workers))

    def wake_others(self, worker: int) -> None:
        """Wake the workers that sleep until there is room for more messages."""
        for other, wake_fd in enumerate(self.wake_fds):
            if other != worker and self.words[self.place(other, WAITING)]:
                os.eventfd_write(wake_fd, 1)

    def close(self) -> None:
        """Give back memory and descriptors."""
        self.words.release()
        self.memory.close()
        for fd in (self.fd, *self.wake_fds):
            os.close(fd)

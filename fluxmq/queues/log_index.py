"""Marks in a queue's log: at some offsets, how many bytes lie before and what time it was.

Sizes of single messages are in the segments, which the machine cannot read; retention and limits by
bytes or age are decided at these marks, so that every replica decides alike. There are at most
`MARKS_MAX`: beyond it every second one is dropped and later batches are marked more rarely.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from operator import itemgetter
from typing import Any, Final

from fluxmq.queues.limits import MARKS_MAX

_OFFSET: Final = itemgetter(0)
_BYTES: Final = itemgetter(1)
_TIME: Final = itemgetter(2)

Mark = tuple[int, int, int]
"""Offset, bytes of everything before it since the queue was created, time of the last message
before it in µs."""


class LogIndex:
    """Marks of one log, and its end: `end_bytes` since creation, `last_time` of its last
    message."""

    __slots__ = ("end_bytes", "entries", "last_time", "skipped", "stride")

    def __init__(self) -> None:
        self.entries: list[Mark] = []
        self.end_bytes = 0
        self.last_time = 0
        self.stride = 1
        self.skipped = 0

    def append(self, offset: int, size: int, last_time: int) -> None:
        """Record a batch of `size` bytes stored at `offset`, whose last message is of
        `last_time`."""
        self.skipped += 1
        if self.skipped >= self.stride or not self.entries:
            self.skipped = 0
            self.entries.append((offset, self.end_bytes, self.last_time))
            if len(self.entries) > MARKS_MAX:
                del self.entries[1::2]
                self.stride *= 2
        self.end_bytes += size
        self.last_time = max(self.last_time, last_time)

    def trim(self, start: int) -> None:
        """Drop all but the last mark before `start`, where the log now begins."""
        entries = self.entries
        if len(entries) > 1 and entries[1][0] <= start:
            del entries[: bisect_right(entries, start, key=_OFFSET) - 1]
            if self.stride > 1 and len(entries) < MARKS_MAX // 4:
                self.stride //= 2

    def bytes_from(self, offset: int) -> int:
        """Return the bytes from `offset` to the end, too many by at most one mark's distance."""
        at = bisect_right(self.entries, offset, key=_OFFSET)
        return self.end_bytes - self.entries[at - 1][1] if at else self.end_bytes

    def at_most(self, size: int, next_offset: int) -> int:
        """Return the lowest marked offset from which at most `size` bytes follow; the last mark
        where none is."""
        at = bisect_left(self.entries, self.end_bytes - size, key=_BYTES)
        if at < len(self.entries):
            return self.entries[at][0]
        return self.entries[-1][0] if self.entries else next_offset

    def bytes_before(self, offset: int, next_offset: int) -> int:
        """Return the bytes of everything before `offset` since creation, too few by at most one
        mark's distance."""
        if offset >= next_offset:
            return self.end_bytes
        at = bisect_right(self.entries, offset, key=_OFFSET)
        return self.entries[at - 1][1] if at else 0

    def reach(self, first: int, size: int, next_offset: int) -> int:
        """Return the lowest marked offset at least `size` bytes behind `first`; the end where there
        is none."""
        wanted = self.bytes_before(first, next_offset) + size
        at = bisect_left(self.entries, wanted, key=_BYTES)
        return max(self.entries[at][0], first + 1) if at < len(self.entries) else next_offset

    def older_than(self, time: int, next_offset: int) -> int:
        """Return the highest known offset before which every message is of `time` or older."""
        if not self.entries or self.last_time <= time:
            return next_offset
        at = bisect_right(self.entries, time, key=_TIME)
        return self.entries[at - 1][0] if at else 0

    def next_time(self, start: int) -> int | None:
        """Return the time of the last of the oldest messages that retention by age can cut after
        `start`; None without any."""
        at = bisect_right(self.entries, start, key=_OFFSET)
        if at < len(self.entries):
            return self.entries[at][2]
        return self.last_time if self.entries else None

    def pack(self) -> list[Any]:
        """Return plain values for msgpack."""
        flat = [number for mark in self.entries for number in mark]
        return [self.end_bytes, self.last_time, self.stride, self.skipped, flat]

    @staticmethod
    def unpack(packed: list[Any]) -> LogIndex:
        """Decode the result of `pack`."""
        entries = LogIndex()
        entries.end_bytes, entries.last_time, entries.stride, entries.skipped, flat = packed
        entries.entries = list(zip(flat[::3], flat[1::3], flat[2::3], strict=True))
        return entries

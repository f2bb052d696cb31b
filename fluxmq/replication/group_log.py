"""A group's part of the shard's write-ahead log, as read by its Raft node.

Unapplied entries are kept in memory, since applying them comes next; older ones, which lagging
followers need, are read from the log. Terms are kept as the points where they change.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque

from fluxmq.raft.errors import Compacted
from fluxmq.raft.types import Entry
from fluxmq.storage.wal import WriteAheadLog


class RaftGroupLog:
    """Implements the Raft core's ``LogReader`` over the shared log."""

    def __init__(self, wal: WriteAheadLog, number: int, index: int, term: int) -> None:
        """Begin a log after entry ``index`` of ``term``, the snapshot's."""
        self._wal = wal
        self.number = number
        self._first = index + 1
        self._recent: deque[Entry] = deque()
        """Entries from the first unapplied one on."""
        self._last = index
        self._changes = [(index, term)]
        """Start of each term, ascending; the first is the snapshot."""

    def first_index(self) -> int:
        """Return the index of the first entry after the snapshot."""
        return self._first

    def last_index(self) -> int:
        """Return the index of the last entry written."""
        return self._last

    def term(self, index: int) -> int:
        """Return the term of an entry, or of the snapshot. Raises Compacted below it."""
        if index < self._changes[0][0]:
            raise Compacted(index)
        if index > self._last:
            raise IndexError(index)
        return self._changes[bisect_right(self._changes, (index, 1 << 64)) - 1][1]

    def entries(self, low: int, high: int, max_bytes: int) -> list[Entry]:
        """Return entries ``low`` to ``high`` (exclusive), at least one, about ``max_bytes`` at
        most."""
        if low < self._first:
            raise Compacted(low)
        found: list[Entry] = []
        size = 0
        recent = self._recent
        base = recent[0].index if recent else high
        for index in range(low, high):
            if index >= base:
                entry = recent[index - base]
            else:
                found_entry = self._wal.entry(self.number, index)
                entry = Entry(found_entry.term, index, found_entry.kind, found_entry.body)
            size += len(entry.data)
            if found and size > max_bytes:
                break
            found.append(entry)
        return found

    def append(self, entry: Entry) -> None:
        """Write an entry; it replaces an existing one and all after that."""
        if entry.index <= self._last:
            self._cut(entry.index)
        self._wal.append_entry(self.number, entry.term, entry.index, entry.kind, entry.data)
        self.note(entry)

    def note(self, entry: Entry) -> None:
        """Register an entry that is already in the log (recovery)."""
        if entry.term != self._changes[-1][1]:
            self._changes.append((entry.index, entry.term))
        self._recent.append(entry)
        self._last = entry.index

    def _cut(self, index: int) -> None:
        while self._recent and self._recent[-1].index >= index:
            self._recent.pop()
        while len(self._changes) > 1 and self._changes[-1][0] >= index:
            self._changes.pop()
        self._last = index - 1

    def next_unapplied(self) -> Entry | None:
        """Return the first unapplied entry, if there is one."""
        return self._recent[0] if self._recent else None

    def applied(self, index: int) -> None:
        """Drop entries up to ``index`` from memory."""
        recent = self._recent
        while recent and recent[0].index <= index:
            recent.popleft()

    def compact(self, index: int) -> None:
        """Release entries up to ``index``, whose effect a checkpoint holds."""
        term = self.term(index)
        self._wal.append_checkpoint(self.number, index, term)
        self._wal.release(self.number, index)
        kept = [change for change in self._changes if change[0] > index]
        self._changes = [(index, term), *kept]
        self._first = index + 1

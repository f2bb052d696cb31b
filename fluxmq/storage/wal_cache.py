"""The log's latest entries in memory, so that new entries are not read back from disk.

Responsible for a bound in bytes, oldest out first. Unwritten entries are always here, because they
are nowhere else.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

OVERHEAD_BYTES = 200
"""Bytes of an entry besides its body."""


@dataclass(slots=True, init=False)
class CachedEntry:
    """An entry as the log's reader gets it."""

    term: int
    kind: int
    body: bytes

    def __init__(self, term: int, kind: int, body: bytes) -> None:
        self.term = term
        self.kind = kind
        self.body = body


class RecentEntries:
    """Entries by group and index."""

    def __init__(self) -> None:
        self._groups: dict[int, dict[int, CachedEntry]] = {}
        self._order: deque[tuple[int, int, CachedEntry]] = deque()
        self.bytes = 0

    def add(self, group: int, index: int, entry: CachedEntry) -> None:
        """Add an entry, replacing one with the same index."""
        entries = self._groups.get(group)
        if entries is None:
            entries = self._groups[group] = {}
        entries[index] = entry
        self._order.append((group, index, entry))
        self.bytes += len(entry.body) + OVERHEAD_BYTES

    def get(self, group: int, index: int) -> CachedEntry | None:
        """Return an entry, if it is here."""
        entries = self._groups.get(group)
        return None if entries is None else entries.get(index)

    def truncate(self, group: int, first: int, last: int) -> None:
        """Void entries from `first` to `last`."""
        entries = self._groups.get(group)
        if entries is not None:
            for index in range(first, last + 1):
                entries.pop(index, None)

    def forget(self, group: int) -> None:
        """Forget a group that has left."""
        self._groups.pop(group, None)

    def shrink(self, limit: int) -> None:
        """Evict the oldest entries until at most `limit` bytes are held."""
        order = self._order
        while self.bytes > limit and order:
            group, index, entry = order.popleft()
            self.bytes -= len(entry.body) + OVERHEAD_BYTES
            entries = self._groups.get(group)
            if entries is not None and entries.get(index) is entry:
                del entries[index]

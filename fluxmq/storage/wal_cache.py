"""The log's youngest entries in memory, so that what was just written is not read back.

Responsible for a bound in bytes, oldest out first. Entries that are not written yet are always here, because they are
nowhere else.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

OVERHEAD_BYTES = 200
"""What an entry costs besides its body."""


@dataclass(slots=True, init=False)
class Entry:
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
        self._groups: dict[int, dict[int, Entry]] = {}
        self._order: deque[tuple[int, int, Entry]] = deque()
        self.bytes = 0

    def add(self, group: int, index: int, entry: Entry) -> None:
        """Keep an entry, in place of one with the same index."""
        entries = self._groups.get(group)
        if entries is None:
            entries = self._groups[group] = {}
        entries[index] = entry
        self._order.append((group, index, entry))
        self.bytes += len(entry.body) + OVERHEAD_BYTES

    def get(self, group: int, index: int) -> Entry | None:
        """An entry, if it is here."""
        entries = self._groups.get(group)
        return None if entries is None else entries.get(index)

    def truncate(self, group: int, first: int, last: int) -> None:
        """Entries from `first` to `last` are void."""
        entries = self._groups.get(group)
        if entries is not None:
            for index in range(first, last + 1):
                entries.pop(index, None)

    def forget(self, group: int) -> None:
        """A group has left."""
        self._groups.pop(group, None)

    def shrink(self, limit: int) -> None:
        """Let the oldest go until no more than `limit` bytes are held."""
        order = self._order
        while self.bytes > limit and order:
            group, index, entry = order.popleft()
            self.bytes -= len(entry.body) + OVERHEAD_BYTES
            entries = self._groups.get(group)
            if entries is not None and entries.get(index) is entry:
                del entries[index]

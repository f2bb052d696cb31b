"""The stable part of the ``_meta`` log, as the Raft core reads it: an in-memory mirror of
``raft_log``.

Bounded, so cheap to hold, and readable while the database's thread is busy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fluxmq.raft.errors import Compacted
from fluxmq.raft.types import Entry

ENTRIES_MAX: Final = 10_000
BYTES_MAX: Final = 16 << 20
"""Bytes kept behind the last applied entry: a member that was away briefly gets entries, not a
snapshot."""
_KEPT_NUMERATOR: Final = 3
_KEPT_DENOMINATOR: Final = 4
"""Fraction of the limits kept when the log is cut, so that it is not cut with every entry."""


class MetaLog:
    """Implements `fluxmq.raft.log.StableLog`. `append` is called when entries are durable, in
    order."""

    def __init__(self, base_index: int, base_term: int, entries: Sequence[Entry] = ()) -> None:
        self.base_index = base_index
        self.base_term = base_term
        self._entries = list(entries)
        self._bytes = sum(len(entry.data) for entry in entries)

    def first_index(self) -> int:
        """Return the index of the first entry held."""
        return self.base_index + 1

    def last_index(self) -> int:
        """Return the index of the last entry held, or one less than the first."""
        return self.base_index + len(self._entries)

    def term(self, index: int) -> int:
        """Return the term of an entry held, or of the one before the first. Raises Compacted
        below."""
        if index < self.base_index:
            raise Compacted(f"the log begins at {self.base_index + 1}")
        if index == self.base_index:
            return self.base_term
        return self._entries[index - self.base_index - 1].term

    def entries(self, low: int, high: int, max_bytes: int) -> list[Entry]:
        """Return entries from `low` to below `high`: one, and more as they fit. Raises Compacted
        below the first."""
        if low <= self.base_index:
            raise Compacted(f"the log begins at {self.base_index + 1}")
        found: list[Entry] = []
        size = 0
        for entry in self._entries[low - self.base_index - 1 : high - self.base_index - 1]:
            size += len(entry.data)
            if found and size > max_bytes:
                break
            found.append(entry)
        return found

    def append(self, entries: Sequence[Entry]) -> None:
        """Append entries, replacing those at their indexes and after."""
        if not entries:
            return
        keep = entries[0].index - self.base_index - 1
        self._bytes -= sum(len(entry.data) for entry in self._entries[keep:])
        del self._entries[keep:]
        self._entries.extend(entries)
        self._bytes += sum(len(entry.data) for entry in entries)

    def restart(self, index: int, term: int) -> None:
        """Start over after a snapshot."""
        self._entries.clear()
        self._bytes = 0
        self.base_index, self.base_term = index, term

    def surplus(self, applied: int) -> int | None:
        """Return the index to cut the log at, None when it is short enough. Only applied entries
        may go."""
        count = len(self._entries)
        if count <= ENTRIES_MAX and self._bytes <= BYTES_MAX:
            return None
        entries_kept = ENTRIES_MAX * _KEPT_NUMERATOR // _KEPT_DENOMINATOR
        bytes_kept = BYTES_MAX * _KEPT_NUMERATOR // _KEPT_DENOMINATOR
        size, index = self._bytes, self.base_index
        for entry in self._entries:
            if (count <= entries_kept and size <= bytes_kept) or entry.index > applied:
                break
            count, size, index = count - 1, size - len(entry.data), entry.index
        return index if index > self.base_index else None

    def compact(self, index: int) -> None:
        """Drop entries up to an index that is held."""
        gone = index - self.base_index
        self.base_term = self.term(index)
        self._bytes -= sum(len(entry.data) for entry in self._entries[:gone])
        del self._entries[:gone]
        self.base_index = index

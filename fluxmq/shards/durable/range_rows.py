"""Ranges of numbers as rows of a session: a row for each range, with its first number and count.

Each change writes and removes the few rows that it touches. So a run of packets costs one or two
rows, however many packets it is.
"""

from __future__ import annotations

from collections.abc import Iterable

from fluxmq.protocols.mqtt.identifiers import IdentifierRanges, IdRange
from fluxmq.shards.durable.row_router import RowHome
from fluxmq.storage.state_store import StateTable


class RangeRows:
    """The rows of one session, or of a part of it, in a table. ``ranges``: as they are on disk when
    all changes so far are."""

    __slots__ = ("_client_id", "_home", "_table", "ranges")

    def __init__(self, home: RowHome, table: StateTable, client_id: str) -> None:
        self._home = home
        self._table = table
        self._client_id = client_id
        self.ranges = IdentifierRanges()

    def restore(self, rows: Iterable[IdRange]) -> None:
        """Take over rows that are on disk, and write neighbouring ones as one."""
        found = list(rows)
        for first, count in found:
            self.ranges.add(first, count)
        self._write(found, self.ranges.ranges())

    def add(self, first: int, count: int) -> None:
        """Add ``count`` numbers from ``first`` on."""
        before = self.ranges.near(first, count)
        self.ranges.add(first, count)
        self._write(before, self.ranges.near(first, count))

    def remove(self, first: int, count: int) -> None:
        """Remove ``count`` numbers from ``first`` on, as far as they are there."""
        before = self.ranges.near(first, count)
        if self.ranges.remove(first, count):
            self._write(before, self.ranges.near(first, count))

    def clear(self) -> None:
        """Remove all rows."""
        before = self.ranges.ranges()
        self.ranges = IdentifierRanges()
        self._write(before, [])

    def _write(self, before: list[IdRange], after: list[IdRange]) -> None:
        firsts = {first for first, _ in after}
        for first, _ in before:
            if first not in firsts:
                self._home.remove(self._table, (self._client_id, first))
        known = set(before)
        for each in after:
            if each not in known:
                self._home.put(self._table, (self._client_id, *each))

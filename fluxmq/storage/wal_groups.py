"""State of each group in the write-ahead log: positions of its entries, hard state, checkpoint.

Defines what a sequence of records means, in the order of the log; writing and recovery both use it,
so that they cannot disagree. Knows nothing of files but their numbers. Keeps 8 bytes per entry that
is not yet released.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import NamedTuple

from fluxmq.storage.wal_records import CHECKPOINT, GROUP, HARD_STATE, Record

NAME_BYTES_MAX = 255
GROUPS_MAX = 4096
"""Groups of one log; each is declared again in every file."""


class HardStateRecord(NamedTuple):
    """Raft's hard state: term, vote (0: none), commit."""

    term: int
    vote: int
    commit: int


class Place(NamedTuple):
    """Position of an entry."""

    sequence: int
    position: int


class WalGroup:
    """One group's part of the log, as far as it was given to the file (or read from it)."""

    def __init__(self, number: int, name: str, last: int = 0, term: int = 0) -> None:
        """`last`, `term`: of the entry before the first to come."""
        self.number = number
        self.name = name
        self.hard_record = Record(HARD_STATE, 0, number, 0, 0, bytes(8))
        self.checkpoint = 0
        self.checkpoint_term = 0
        self.checkpoint_durable = 0
        self.checkpoint_appended = 0
        self.declared = False
        """True when the declaration is in the file (or on its way); only then do new files repeat
        it."""
        self.released = 0
        """Index up to which entries are no longer needed."""
        self.appended = last
        """Last index appended, written or not."""
        self.last = last
        """Index of the last entry written, or of the checkpoint when nothing follows it."""
        self._first = last + 1
        self._places: array[int] = array("Q")
        self._runs: list[tuple[int, int]] = [(last, term)]
        """Index from which a term holds, that term; ascending. The first is the entry before all
        others."""

    @property
    def first(self) -> int:
        """Index of the first entry kept; beyond `last` when there is none."""
        return self._first

    @property
    def hard_state(self) -> HardStateRecord:
        """The last hard state written; zeroes when there was none."""
        record = self.hard_record
        return HardStateRecord(record.term, int.from_bytes(record.body, "little"), record.index)

    def place(self, index: int) -> Place | None:
        """Return the position of an entry; None when it is not kept."""
        if not self._first <= index <= self.last:
            return None
        packed = self._places[index - self._first]
        return Place(packed >> 32, packed & 0xFFFFFFFF)

    def term(self, index: int) -> int | None:
        """Return an entry's term, also of the one before the first; None when unknown."""
        if not self._first - 1 <= index <= self.last:
            return None
        return self._runs[bisect_right(self._runs, (index, 1 << 64)) - 1][1]

    # Effects of records

    def add_entry(self, index: int, term: int, place: int) -> None:
        """Add an entry at `place`, voiding those at its index and after it. After a gap, drop
        everything before it."""
        if index != self.last + 1:
            self.truncate(index)
            if index != self.last + 1:
                self._start(index - 1, 0)
        self._places.append(place)
        self.last = index
        if self._runs[-1][1] != term:
            self._runs.append((index, term))

    def truncate(self, index: int) -> None:
        """Void entries from `index` on, even those in files that are gone because of it."""
        if index < self._first:
            self._start(index - 1, 0)
        elif index <= self.last:
            del self._places[index - self._first :]
            self.last = index - 1
            while len(self._runs) > 1 and self._runs[-1][0] >= index:
                self._runs.pop()

    def set_checkpoint(self, index: int, term: int) -> None:
        """Record that a snapshot holds entries up to `index`."""
        if index < self.checkpoint:
            return
        self.checkpoint = index
        self.checkpoint_term = term or self.term(index) or 0
        if index > self.last:
            self._start(index, self.checkpoint_term)

    def forget_before(self, index: int) -> None:
        """Drop the places of entries before `index`."""
        index = min(index, self.last + 1)
        if index > self._first:
            run = bisect_right(self._runs, (index - 1, 1 << 64)) - 1
            self._runs[: run + 1] = [(index - 1, self._runs[run][1])]
            del self._places[: index - self._first]
            self._first = index

    def begin_behind_checkpoint(self) -> None:
        """End recovery: drop entries that the snapshot holds, and take over its term."""
        self.forget_before(self.checkpoint + 1)
        if self._first == self.checkpoint + 1:
            self._runs[0] = (self.checkpoint, self.checkpoint_term)
        self.appended = self.last
        self.declared = True
        self.released = self.checkpoint_durable = self.checkpoint_appended = self.checkpoint

    def _start(self, last: int, term: int) -> None:
        """Start over after an entry that is not here."""
        self.last = last
        self._first = last + 1
        del self._places[:]
        self._runs = [(last, term)]

    def carried(self) -> list[Record]:
        """Return the records that every new file repeats, so that earlier files can be recycled."""
        last = self.last
        declared = Record(
            GROUP, 0, self.number, self.term(last) or 0, last, self.name.encode("utf-8")
        )
        return [
            declared,
            self.hard_record,
            Record(CHECKPOINT, 0, self.number, self.checkpoint_term, self.checkpoint, b""),
        ]

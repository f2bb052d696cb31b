"""A member's disk: a log whose writes are kept only when they have been synced.

Responsible for what a crash leaves: everything up to the last completed sync, and of what was written after it a
prefix of random length, whole records only (a torn record fails its check and ends the log there). Two stores hold
the same kind of thing: `view` is what has been written, `durable` what a crash cannot take. Writing and completing a
sync are apart, so that several writes and cuts may be under way. Bits that flip at rest are found by a record's check
when it is read: then the reader is told (`Damaged`) and gets nothing. It knows nothing of members or of time.
"""

from __future__ import annotations

from random import Random

from fluxmq.raft.errors import Compacted
from fluxmq.raft.memberships import decode_membership
from fluxmq.raft.types import (
    MEMBERSHIP,
    Entry,
    HardState,
    Membership,
    Snapshot,
    SnapshotMark,
)

ENTRIES, HARD_STATE, SNAPSHOT = range(3)
Record = tuple[int, Entry | HardState | Snapshot]


class Damaged(Exception):  # noqa: N818 - says what is the case
    """A record that was read fails its check: bits have flipped since it was written."""


class Store:
    """A log from a snapshot on, with the hard state; what `fluxmq.raft.log.StableLog` asks for."""

    __slots__ = ("base", "base_term", "damaged", "hard_state", "log", "snapshot")

    def __init__(self, membership: Membership) -> None:
        self.snapshot = Snapshot(SnapshotMark(0, 0, membership), b"")
        self.base = 0
        self.base_term = 0
        self.log: list[Entry] = []
        self.hard_state = HardState(0, 0, 0)
        self.damaged: list[int] = []
        """Indexes of entries whose check fails; that of the snapshot's mark stands for the snapshot."""

    def first_index(self) -> int:
        """The first entry held."""
        return self.base + 1

    def last_index(self) -> int:
        """The last entry held, or the snapshot's."""
        return self.base + len(self.log)

    def term(self, index: int) -> int:
        """The term of an entry held, or of the snapshot."""
        place = index - self.base - 1
        if place >= 0:
            return self.log[place].term
        if place == -1:
            return self.base_term
        raise Compacted(f"entry {index} is before {self.base}")

    def entries(self, low: int, high: int, max_bytes: int) -> list[Entry]:
        """Entries from low on below high: one, then as many as fit. Raises Damaged when a check fails."""
        place = low - self.base - 1
        if place < 0:
            raise Compacted(f"entry {low} is before {self.base}")
        found: list[Entry] = []
        for entry in self.log[place : high - self.base - 1]:
            max_bytes -= len(entry.data)
            if max_bytes < 0 and found:
                break
            found.append(entry)
        if self.damaged:
            self.check(low, low + len(found) - 1)
        return found

    def check(self, low: int, high: int) -> None:
        """Raise Damaged when the entry or the snapshot of an index from low to high fails its check."""
        for index in self.damaged:
            if low <= index <= high:
                raise Damaged(f"entry {index}" if index > self.base else "the snapshot")

    def flip(self, index: int) -> None:
        """Bits flip in the entry at `index`, or in the snapshot when it is that of its mark."""
        self.damaged.append(index)

    def holds(self, index: int, term: int) -> bool:
        """Whether the entry of this index and term is here, in the log or in the snapshot."""
        place = index - self.base - 1
        return place < 0 or (place < len(self.log) and self.log[place].term == term)

    def memberships(self, since: int) -> list[Membership]:
        """Those of the entries held behind `since`."""
        behind = self.log[max(since - self.base, 0) :]
        return [decode_membership(entry.data) for entry in behind if entry.kind == MEMBERSHIP]

    def write(self, record: Record) -> None:
        """Take one record."""
        kind, content = record
        if kind == ENTRIES:
            assert isinstance(content, Entry)
            place = content.index - self.base - 1
            log = self.log
            if place == len(log):
                log.append(content)
                return
            assert 0 <= place < len(log), f"entry {content.index} leaves a gap after {self.base}"
            del log[place:]
            if self.damaged:
                self.damaged = [index for index in self.damaged if index < content.index]
            log.append(content)
        elif kind == HARD_STATE:
            assert isinstance(content, HardState)
            self.hard_state = content
        else:
            assert isinstance(content, Snapshot)
            self._install(content)

    def _install(self, snapshot: Snapshot) -> None:
        """A snapshot replaces the log, unless it is of this log: then it replaces the beginning."""
        index, term, _ = snapshot.mark
        if index <= self.base:
            return
        if index <= self.last_index() and self.term(index) == term:
            del self.log[: index - self.base]
        else:
            self.log = []
        if self.damaged:
            kept = index + len(self.log)
            self.damaged = [each for each in self.damaged if index < each <= kept]
        self.base = index
        self.base_term = term
        self.snapshot = snapshot

    def copy(self) -> Store:
        """The same, to be written to apart."""
        other = Store(self.snapshot.mark.membership)
        other.snapshot = self.snapshot
        other.base = self.base
        other.base_term = self.base_term
        other.log = self.log.copy()
        other.hard_state = self.hard_state
        other.damaged = self.damaged.copy()
        return other


class Disk:
    """Both stores of a member, and the records between them."""

    def __init__(self, membership: Membership) -> None:
        self.durable = Store(membership)
        self.view = Store(membership)
        self.pending: list[Record] = []
        """Written and not synced."""
        self.incarnation = 0
        """Raised, here and in the list of members, before every start: an earlier copy has a lower one."""

        self.floor = (0, 0)
        """See `Config`; durable before the member runs again."""

    def write(self, record: Record) -> None:
        """Write without syncing."""
        self.pending.append(record)
        self.view.write(record)

    def synced(self, count: int) -> None:
        """A sync has completed that covers the first `count` pending records."""
        durable = self.durable
        for record in self.pending[:count]:
            durable.write(record)
        del self.pending[:count]

    def crash(self, random: Random, torn: float) -> int:
        """Lose what was not synced, but with probability `torn` a prefix of it; how many records were lost."""
        kept = 0
        if self.pending and random.random() < torn:
            kept = int(random.random() * (len(self.pending) + 1))
        lost = len(self.pending) - kept
        self.synced(kept)
        self.pending.clear()
        self.view = self.durable.copy()
        return lost

    def flip(self, index: int) -> None:
        """Bits of a durable record flip at rest: the entry at `index`, or the snapshot at its mark."""
        self.durable.flip(index)
        if index == self.view.base or (index > self.view.base and self.view.last_index() >= index):
            self.view.flip(index)

    def copy(self) -> Disk:
        """What is durable now, as somebody who makes copies of directories gets it."""
        other = Disk(self.durable.snapshot.mark.membership)
        other.durable = self.durable.copy()
        other.view = self.durable.copy()
        other.incarnation = self.incarnation
        other.floor = self.floor
        return other

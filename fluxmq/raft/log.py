"""The log as the core sees it: a stable part behind a port and an unstable tail in memory.

Responsible for terms of indexes, appending, finding conflicts and cutting there, and for these
indexes::

    base < ... <= handed <= min(commit, persisted) ...  last
    base       everything up to it is in a snapshot
    handed     returned to be applied
    commit     known to be committed
    persisted  durable on this node: what this node may count, or claim, as held
    given      returned to be persisted

The tail holds entries that are not persisted or not handed out; the rest is read through
`StableLog`, so memory is bounded by what is in flight. It knows nothing of the meaning of terms,
roles or messages.

Writes overlap with cuts. A write of (5, term 2) may still be pending when index 5 is overwritten by
term 3 and then by (5, term 2) again, so index and term alone do not tell which write is done.
Writes are therefore kept in order, each with how far it is still valid; a cut lowers that of all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

from fluxmq.raft.errors import Compacted, InconsistentLog
from fluxmq.raft.types import Entry, Snapshot


class StableLog(Protocol):
    """The durable part of the log. Only indexes that `advance` reported as persisted are read."""

    def first_index(self) -> int:
        """Return the first entry's index; one above the snapshot's."""

    def last_index(self) -> int:
        """Return the last entry's index, or `first_index() - 1`. Called when a node is made."""

    def term(self, index: int) -> int:
        """Return the term of a held entry, or of `first_index() - 1` (0 when that is 0). Raises
        Compacted below.
        """

    def entries(self, low: int, high: int, max_bytes: int) -> list[Entry]:
        """Return entries `low` to below `high`: as many as fit, at least one. Raises Compacted."""


class _Write:
    """Entries returned to be persisted: the last one, and the end of those still valid."""

    __slots__ = ("index", "term", "valid")

    def __init__(self, index: int, term: int) -> None:
        self.index = index
        self.term = term
        self.valid = index


class RaftLog:
    """The log of one node. `commit`: known before the restart; `applied`: applied already."""

    __slots__ = (
        "_reader",
        "_writes",
        "base_index",
        "base_term",
        "commit",
        "given",
        "handed",
        "last_index",
        "last_term",
        "offset",
        "persisted",
        "snapshot",
        "snapshot_given",
        "tail",
        "tail_bytes",
    )

    def __init__(self, reader: StableLog, commit: int, applied: int) -> None:
        self._reader = reader
        self._writes: deque[_Write] = deque()
        self.base_index = reader.first_index() - 1
        self.base_term = reader.term(self.base_index)
        self.last_index = reader.last_index()
        self.last_term = reader.term(self.last_index)
        if not self.base_index <= applied <= self.last_index:
            raise InconsistentLog(
                f"applied up to {applied}, but the log holds {self.base_index + 1} to {self.last_index}"
            )
        self.persisted = self.given = self.last_index
        self.handed = applied
        if commit > self.last_index:
            raise InconsistentLog(
                f"committed up to {commit}, but the log ends at {self.last_index}"
            )
        self.commit = max(commit, applied)
        self.tail: list[Entry] = []
        self.tail_bytes = 0
        self.offset = self.last_index + 1
        """The index of the tail's first entry."""
        self.snapshot: Snapshot | None = None
        """Received and not yet durable."""
        self.snapshot_given = False

    # Lookup

    def term(self, index: int) -> int | None:
        """Return the term of the entry at `index`; None if it is compacted, or beyond the end."""
        if index == self.last_index:
            return self.last_term
        if index >= self.offset:
            return self.tail[index - self.offset].term if index < self.last_index else None
        if index == self.base_index:
            return self.base_term
        if index < self.base_index:
            return None
        try:
            return self._reader.term(index)
        except Compacted:
            return None

    def matches(self, index: int, term: int) -> bool:
        """Return whether `index` has this term (the consistency check of paper section 5.3)."""
        return self.term(index) == term

    def last_possible_match(self, index: int, term: int, floor: int) -> tuple[int, int]:
        """Return the last entry at or before `index` whose term is at most `term`, and its term.

        Nothing after it can match a log that has `term` at `index`, for terms never decrease along
        a log. Goes back no further than `floor`, which is known to match. (0, 0) if the terms are
        no longer held.
        """
        while index > floor:
            held = self.term(index)
            if held is None:
                return 0, 0
            if held <= term:
                return index, held
            index -= 1
        return index, self.term(index) or 0

    def slice(self, low: int, max_bytes: int) -> list[Entry]:
        """Return entries from `low` on, as many as fit, but at least one. Raises Compacted."""
        if low <= self.base_index:
            raise Compacted(f"entry {low} is in the snapshot of {self.base_index}")
        if low < self.offset:
            return self._reader.entries(low, self.offset, max_bytes)
        first = low - self.offset
        if self.tail_bytes <= max_bytes:
            return self.tail[first:]
        size = 0
        for place in range(first, len(self.tail)):
            size += len(self.tail[place].data)
            if size > max_bytes and place > first:
                return self.tail[first:place]
        return self.tail[first:]

    # Writing

    def append(self, entries: Sequence[Entry]) -> None:
        """Append entries."""
        self.tail.extend(entries)
        for entry in entries:
            self.tail_bytes += len(entry.data)
        self.last_index = entries[-1].index
        self.last_term = entries[-1].term

    def append_one(self, entry: Entry) -> None:
        """Append one entry: the leader's usual case, without a loop."""
        self.tail.append(entry)
        self.tail_bytes += len(entry.data)
        self.last_index = entry.index
        self.last_term = entry.term

    def accept(self, entries: Sequence[Entry]) -> int | None:
        """Take a leader's entries whose predecessor matches; return the first changed index, or
        None.

        Entries already held stay, and so do those that follow them: only a conflict cuts the log
        (paper figure 2, AppendEntries 3 and 4), for an append may be a late copy of one that was
        answered.
        """
        for place, entry in enumerate(entries):
            if entry.index > self.last_index:
                self.append(entries[place:] if place else entries)
                return entry.index
            if self.term(entry.index) != entry.term:
                assert entry.index > self.commit, (
                    "an append from before the commit is not looked at"
                )
                self._cut(entry.index)
                self.append(entries[place:])
                return entry.index
        return None

    def _cut(self, index: int) -> None:
        """Delete `index` and all entries behind it; pending writes of them no longer count."""
        previous = self.term(index - 1)
        assert previous is not None, (
            "what precedes a conflict is held: it is committed or was compared"
        )
        keep = max(index - self.offset, 0)
        self.tail_bytes -= sum(len(entry.data) for entry in self.tail[keep:])
        del self.tail[keep:]
        self.last_index = index - 1
        self.last_term = previous
        self.offset = min(self.offset, index)
        self.given = min(self.given, index - 1)
        self.persisted = min(self.persisted, index - 1)
        for write in self._writes:
            write.valid = min(write.valid, index - 1)

    def restore(self, snapshot: Snapshot) -> None:
        """Replace the whole log by a snapshot; nothing is persisted until it is."""
        mark = snapshot.mark
        self.tail.clear()
        self.tail_bytes = 0
        self.base_index = self.last_index = self.given = self.handed = self.commit = mark.index
        self.base_term = self.last_term = mark.term
        self.offset = mark.index + 1
        self.persisted = 0
        for write in self._writes:
            write.valid = 0
        self.snapshot = snapshot
        self.snapshot_given = False

    def compact(self, index: int, term: int) -> None:
        """Begin the stable log after `index`. Only what was handed out can be in a snapshot."""
        assert index <= self.handed, "a snapshot holds applied entries only"
        if index > self.base_index and index <= self.persisted:
            self.base_index = index
            self.base_term = term

    # Handing out

    def take_snapshot(self) -> Snapshot | None:
        """Return a snapshot to install that was not handed out yet."""
        if self.snapshot is None or self.snapshot_given:
            return None
        self.snapshot_given = True
        self._writes.append(_Write(self.snapshot.mark.index, self.snapshot.mark.term))
        return self.snapshot

    def take_entries(self) -> list[Entry]:
        """Return the entries to persist that were not handed out yet; there are some."""
        first = self.given + 1 - self.offset
        entries = self.tail[first:] if first else self.tail.copy()
        self._writes.append(_Write(self.last_index, self.last_term))
        self.given = self.last_index
        return entries

    def take_committed(self, max_bytes: int) -> list[Entry]:
        """Return entries to apply that were not handed out yet: committed, and persisted here.

        Those in memory come whole; of those on disk at most `max_bytes` are read at a time, which
        bounds memory during a long replay after a restart.
        """
        high = min(self.commit, self.persisted)
        low = self.handed + 1
        if low > high:
            return []
        first = low - self.offset
        if first >= 0:
            entries = self.tail[first : high + 1 - self.offset]
            self.handed = high
        else:
            entries = self._reader.entries(low, min(high + 1, self.offset), max_bytes)
            assert entries[0].index == low, "the log reader gives what it was asked for"
            self.handed = entries[-1].index
        self._trim()
        return entries

    def persist(self, index: int, term: int) -> bool:
        """Mark the write that ends with this entry, and all earlier ones, as durable; return
        whether that is new.

        Entries overwritten since they were returned do not count.
        """
        for place, write in enumerate(self._writes):
            if write.index == index and write.term == term:
                for _ in range(place + 1):
                    self._writes.popleft()
                return self._persisted_to(write.valid)
        # Part of a write: the host may sync the entries of one Ready in several steps.
        if self._writes and index <= self._writes[0].valid and self.term(index) == term:
            return self._persisted_to(index)
        return False

    def _persisted_to(self, index: int) -> bool:
        # Writes older than the snapshot are valid up to 0, so this one is the snapshot's or came
        # after it.
        if self.snapshot is not None and index >= self.snapshot.mark.index:
            self.snapshot = None
        if index <= self.persisted:
            return False
        self.persisted = index
        self._trim()
        return True

    def _trim(self) -> None:
        """Drop from the tail what is both persisted and handed out."""
        done = min(self.persisted, self.handed) + 1 - self.offset
        if done <= 0:
            return
        if done == len(self.tail):
            self.tail.clear()
            self.tail_bytes = 0
        else:
            self.tail_bytes -= sum(len(entry.data) for entry in self.tail[:done])
            del self.tail[:done]
        self.offset += done

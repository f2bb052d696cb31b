"""Pending ranges: messages that a group has been given and not settled, or that wait for
redelivery.

A range is consecutive offsets with one fate: the same holder, due time, attempts. Neighbours with
the same fate are one range, so memory follows the number of ranges, not of messages. Settling in
order touches only the first range; anywhere else it is a binary search.

``due`` is the one time of a range: for a consumer's messages, when they may be claimed from it; for
waiting ones (holder 0), when they may be claimed at all. The heap of due times serves the leader,
is never in a snapshot and never decides what an entry does.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from operator import attrgetter
from typing import Any, Final, NamedTuple

NOBODY: Final = 0
"""Holder of waiting messages."""

_by_last = attrgetter("last")


class PendingState(NamedTuple):
    """Everything that a range's messages have in common. Times are µs since the epoch."""

    holder: int
    due: int
    attempts: int
    """Deliveries so far."""
    first_time: int
    """Time of the first delivery, 0 for never."""
    last_time: int
    reason: int = 0
    """Reason for dead-lettering; in a group's dead ranges only."""
    text: bytes = b""
    """The consumer's text when it rejected."""


class PendingRange:
    """One range, `first`..`last`. `armed`: in the heap of due times."""

    __slots__ = ("alive", "armed", "first", "last", "state")

    def __init__(self, first: int, last: int, state: PendingState) -> None:
        self.first = first
        self.last = last
        self.state = state
        self.armed = False
        self.alive = True

    def __repr__(self) -> str:
        return f"Pending({self.first}, {self.last}, {self.state})"


Piece = tuple[int, int, PendingState]
"""A part cut out of a ledger."""


class Ledger:
    """Disjoint pending ranges in order of offset.

    It holds `count` messages, `waiting` of them without a holder.
    """

    __slots__ = ("_head", "_number", "_ranges", "_timers", "count", "waiting")

    def __init__(self) -> None:
        self._ranges: list[PendingRange] = []
        self._head = 0  # ranges before it are settled; trimmed now and then, so that settling in order costs O(1)
        self._timers: list[tuple[int, int, PendingRange]] = []
        self._number = 0
        self.count = 0
        self.waiting = 0

    def __len__(self) -> int:
        """Return the number of ranges."""
        return len(self._ranges) - self._head

    def __iter__(self) -> Iterator[PendingRange]:
        ranges = self._ranges
        for index in range(self._head, len(ranges)):
            yield ranges[index]

    @property
    def first(self) -> int | None:
        """The lowest offset; None when there is none."""
        return self._ranges[self._head].first if self._head < len(self._ranges) else None

    def add(self, first: int, last: int, state: PendingState) -> None:
        """Put `first`..`last`, none of which is in the ledger, under `state`."""
        ranges = self._ranges
        size = last - first + 1
        self.count += size
        if state.holder == NOBODY:
            self.waiting += size
        at = len(ranges)
        if at > self._head and ranges[-1].last >= first:
            at = self._find(first)
            assert ranges[at].first > last, "an offset is pending twice"
        before = ranges[at - 1] if at > self._head else None
        if before is not None and before.last == first - 1 and before.state == state:
            before.last = last
            self._join_next(at - 1)
            self._arm(before)
            return
        if at < len(ranges) and ranges[at].first == last + 1 and ranges[at].state == state:
            ranges[at].first = first
            self._arm(ranges[at])
            return
        pending = PendingRange(first, last, state)
        ranges.insert(at, pending)
        self._arm(pending)

    def cut(
        self, first: int, last: int, wanted: Callable[[PendingState], bool] | None = None
    ) -> list[Piece]:
        """Remove the parts of `first`..`last` that are `wanted`; return the pieces in order."""
        ranges = self._ranges
        at = self._find(first)
        taken: list[Piece] = []
        while at < len(ranges) and ranges[at].first <= last:
            pending = ranges[at]
            state = pending.state
            if wanted is not None and not wanted(state):
                at += 1
                continue
            low = max(first, pending.first)
            high = min(last, pending.last)
            taken.append((low, high, state))
            self.count -= high - low + 1
            if state.holder == NOBODY:
                self.waiting -= high - low + 1
            if low > pending.first and high < pending.last:
                rest = PendingRange(high + 1, pending.last, state)
                ranges.insert(at + 1, rest)
                pending.last = low - 1
                if pending.armed:
                    self._arm(rest)
                at += 2
            elif low > pending.first:
                pending.last = low - 1
                at += 1
            elif high < pending.last:
                pending.first = high + 1
                at += 1
            else:
                at = self._remove(at)
        return taken

    def acknowledge(self, first: int, last: int, holder: int) -> int:
        """Remove the holder's messages of `first`..`last`; return how many those were."""
        head = self._head
        ranges = self._ranges
        if head < len(ranges):
            pending = ranges[head]
            if pending.first == first and last <= pending.last and pending.state.holder == holder:
                # In order, as nearly always.
                self.count -= last - first + 1
                if last < pending.last:
                    pending.first = last + 1
                else:
                    self._remove(head)
                return last - first + 1
        pieces = self.cut(first, last, lambda state: state.holder == holder)
        return sum(high - low + 1 for low, high, _ in pieces)

    def overlapping(self, first: int, last: int) -> list[Piece]:
        """Return the parts of `first`..`last` in the ledger, in order, without changes."""
        ranges = self._ranges
        found = []
        for at in range(self._find(first), len(ranges)):
            pending = ranges[at]
            if pending.first > last:
                break
            found.append((max(first, pending.first), min(last, pending.last), pending.state))
        return found

    def clear(self) -> None:
        """Forget every range."""
        for pending in self:
            pending.alive = False
        self._ranges.clear()
        self._timers.clear()
        self._head = self.count = self.waiting = 0

    # --- due times, for the leader -----------------------------------------------------------------------------

    def next_due(self) -> int | None:
        """Return a time not after the next due one; None when nothing is armed."""
        timers = self._timers
        while timers:
            due, _, pending = timers[0]
            if pending.alive and pending.armed:
                return due
            heappop(timers)
        return None

    def pop_due(self, now: int, limit: int) -> list[Piece]:
        """Return at most `limit` due ranges, by due time; each once until armed again."""
        found: list[Piece] = []
        while len(found) < limit:
            due = self.next_due()
            if due is None or due > now:
                break
            _, _, pending = heappop(self._timers)
            pending.armed = False
            found.append((pending.first, pending.last, pending.state))
        return found

    def arm_all(self) -> None:
        """Let `pop_due` return every range again."""
        self._timers.clear()
        for pending in self:
            pending.armed = False
        for pending in self:
            self._arm(pending)

    # --- snapshots ---------------------------------------------------------------------------------------------

    def pack(self, anew: bool = False) -> list[Any]:
        """Return all ranges, flat, for msgpack; ``anew``: of those that were delivered, only that is
        known, not how often."""
        packed: list[Any] = []
        for pending in self:
            state = pending.state
            if anew and state.attempts > 1:
                state = state._replace(attempts=1)
            packed += (pending.first, pending.last, *state)
        return packed

    @staticmethod
    def unpack(packed: list[Any]) -> Ledger:
        """Decode the result of `pack`."""
        ledger = Ledger()
        width = 2 + len(PendingState._fields)
        for at in range(0, len(packed), width):
            ledger.add(packed[at], packed[at + 1], PendingState(*packed[at + 2 : at + width]))
        return ledger

    # --- inside ------------------------------------------------------------------------------------------------

    def _find(self, offset: int) -> int:
        """Return the index of the first range that ends at or after `offset`."""
        ranges = self._ranges
        head = self._head
        if head < len(ranges) and ranges[head].last >= offset:
            return head
        return bisect_left(ranges, offset, lo=head, key=_by_last)

    def _remove(self, at: int) -> int:
        """Remove the range at an index; return the index of the next one."""
        ranges = self._ranges
        ranges[at].alive = False
        if at > self._head:
            del ranges[at]
            return at
        self._head += 1
        if self._head == len(ranges):
            ranges.clear()
            self._timers.clear()
            self._head = 0
        elif self._head > 32 and 2 * self._head > len(ranges):
            del ranges[: self._head]
            self._head = 0
        return self._head

    def _join_next(self, at: int) -> None:
        """Merge the range at an index with the next where they touch and share a fate."""
        ranges = self._ranges
        if at + 1 == len(ranges):
            return
        pending, following = ranges[at], ranges[at + 1]
        if following.first == pending.last + 1 and following.state == pending.state:
            pending.last = following.last
            self._remove(at + 1)

    def _arm(self, pending: PendingRange) -> None:
        """Put a range in the heap unless it is there; rebuild a heap of mostly dead ranges."""
        if pending.armed:
            return
        pending.armed = True
        self._number += 1
        timers = self._timers
        heappush(timers, (pending.state.due, self._number, pending))
        if len(timers) > 64 + 2 * len(self):
            live = [entry for entry in timers if entry[2].alive and entry[2].armed]
            timers[:] = live
            heapify(timers)

"""Packet identifiers as ranges: of received QoS 2 publishes, and of messages that await PUBCOMP.

Clients number their packets consecutively and answer in order, so that a few ranges stand for any
number of packets. Identifiers in any other order are correct as well: every operation finds its
place by bisection. A range does not go round from 65535 to 1; it is two ranges then.

Source: MQTT 3.1.1 and 5.0 sections 2.2.1 (packet identifiers), 3.5 to 3.7, 4.3.3.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Any

import cython

from fluxmq.protocols.mqtt.run import HIGH, LOW

if cython.compiled:
    from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING, PyByteArray_Resize
    from cython.cimports.fluxmq.model.octets import Octets, Writable
else:
    from fluxmq.model.octets import Octets, Writable

IdRange = tuple[int, int]
"""The first of some consecutive identifiers, and how many they are."""


def identifier_ranges(
    buffer: bytearray, start: cython.Py_ssize_t, count: cython.Py_ssize_t
) -> list[IdRange]:
    """Return the identifiers of ``count`` packets of four bytes, at least one, in
    ``buffer[start:]``, in order."""
    data: Octets
    index: cython.Py_ssize_t
    pid: cython.Py_ssize_t
    first: cython.Py_ssize_t = 0
    size: cython.Py_ssize_t = 0
    found: list[IdRange] = []
    if cython.compiled:
        data = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(buffer))
    else:
        data = buffer
        first = (data[start + 2] << 8) | data[start + 3]
        end = start + 4 * count
        if (
            data[start + 2 : end : 4] == HIGH[first : first + count]
            and data[start + 3 : end : 4] == LOW[first : first + count]
        ):
            return [(first, count)]
        first = 0
    for index in range(count):
        pid = (data[start + 4 * index + 2] << 8) | data[start + 4 * index + 3]
        if size and pid == first + size:
            size += 1
        else:
            if size:
                found.append((first, size))
            first = pid
            size = 1
    if size:
        found.append((first, size))
    return found


def append_range(
    out: bytearray, kind: cython.int, first: cython.Py_ssize_t, count: cython.Py_ssize_t
) -> cython.int:
    """Append a packet of four bytes for each of ``count`` identifiers; ``kind`` is its first
    byte."""
    used: cython.Py_ssize_t = len(out)
    index: cython.Py_ssize_t
    target: Writable
    if cython.compiled:
        PyByteArray_Resize(out, used + 4 * count)
        target = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(out)) + used
        for index in range(count):
            target[0] = kind
            target[1] = 2
            target[2] = (first + index) >> 8
            target[3] = (first + index) & 0xFF
            target += 4
        return 0
    out += bytes((kind, 2, 0, 0)) * count
    out[used + 2 :: 4] = HIGH[first : first + count]
    out[used + 3 :: 4] = LOW[first : first + count]
    return 0


class IdentifierRanges:
    """A set of numbers as disjoint ranges, which do not touch. ``count``: how many numbers;
    ``firsts`` and ``lasts``: the ranges' ends, ascending."""

    def __init__(self) -> None:
        self.count = 0
        self.firsts: list[int] = []
        self.lasts: list[int] = []

    def has(self, number: cython.Py_ssize_t) -> cython.bint:
        """Return whether a number is in the set."""
        return self.overlaps(number, 1)

    def overlaps(self, first: cython.Py_ssize_t, count: cython.Py_ssize_t) -> cython.bint:
        """Return whether one of ``count`` numbers from ``first`` on is in the set."""
        place: cython.Py_ssize_t = bisect_left(self.lasts, first)
        return place < len(self.firsts) and self.firsts[place] < first + count

    def near(self, first: cython.Py_ssize_t, count: cython.Py_ssize_t) -> list[IdRange]:
        """Return the ranges, whole, that share a number with a range or touch it."""
        low: cython.Py_ssize_t = bisect_left(self.lasts, first - 1)
        high: cython.Py_ssize_t = bisect_right(self.firsts, first + count, low)
        return self._between(low, high)

    def ranges(self) -> list[IdRange]:
        """Return all ranges."""
        return self._between(0, len(self.firsts))

    def _between(self, low: cython.Py_ssize_t, high: cython.Py_ssize_t) -> list[IdRange]:
        return [
            (self.firsts[place], self.lasts[place] - self.firsts[place] + 1)
            for place in range(low, high)
        ]

    def numbers(self) -> list[int]:
        """Return all numbers, ascending, for callers off the hot path."""
        return [number for first, count in self.ranges() for number in range(first, first + count)]

    def add(self, first: cython.Py_ssize_t, count: cython.Py_ssize_t) -> cython.int:
        """Add ``count`` numbers from ``first`` on, in the set already or not."""
        last: cython.Py_ssize_t = first + count - 1
        low: cython.Py_ssize_t = bisect_left(self.lasts, first - 1)
        high: cython.Py_ssize_t = bisect_right(self.firsts, last + 1, low)
        place: cython.Py_ssize_t
        for place in range(low, high):
            self.count -= self.lasts[place] - self.firsts[place] + 1
        if low < high:
            first = min(first, self.firsts[low])
            last = max(last, self.lasts[high - 1])
        self.firsts[low:high] = [first]
        self.lasts[low:high] = [last]
        self.count += last - first + 1
        return 0

    def remove(self, first: cython.Py_ssize_t, count: cython.Py_ssize_t) -> list[IdRange]:
        """Remove ``count`` numbers from ``first`` on; return those that were in the set."""
        last: cython.Py_ssize_t = first + count - 1
        low: cython.Py_ssize_t = bisect_left(self.lasts, first)
        high: cython.Py_ssize_t = bisect_right(self.firsts, last, low)
        place: cython.Py_ssize_t
        begin: cython.Py_ssize_t
        end: cython.Py_ssize_t
        found: list[IdRange] = []
        firsts: list[int] = []
        lasts: list[int] = []
        for place in range(low, high):
            begin = self.firsts[place]
            end = self.lasts[place]
            if begin < first:
                firsts.append(begin)
                lasts.append(first - 1)
                begin = first
            if end > last:
                firsts.append(last + 1)
                lasts.append(end)
                end = last
            found.append((begin, end - begin + 1))
            self.count -= end - begin + 1
        if found:
            self.firsts[low:high] = firsts
            self.lasts[low:high] = lasts
        return found


class ReleasedRange:
    """Neighbouring messages that await PUBCOMP. ``settle``: the sink of their in-flight range, or
    None; ``base``: the first one's number there; ``turn``: grows in the order of the PUBRECs."""

    def __init__(
        self,
        pid: cython.Py_ssize_t,
        count: cython.Py_ssize_t,
        settle: Any,
        base: cython.Py_ssize_t,
        turn: cython.Py_ssize_t,
    ) -> None:
        self.pid = pid
        self.count = count
        self.settle = settle
        self.base = base
        self.turn = turn

    def part(self, pid: cython.Py_ssize_t, end: cython.Py_ssize_t) -> ReleasedRange:
        """Return the part of it from identifier ``pid`` to before ``end``."""
        return ReleasedRange(pid, end - pid, self.settle, self.base + pid - self.pid, self.turn)


class ReleasedIdentifiers:
    """The identifiers between PUBREC and PUBCOMP of one session. ``count``: how many."""

    def __init__(self) -> None:
        self.count = 0
        self.turns = 0
        self.firsts: list[int] = []
        self.ranges: list[ReleasedRange] = []
        self.newest: ReleasedRange | None = None

    def has(self, pid: cython.Py_ssize_t) -> cython.bint:
        """Return whether an identifier awaits PUBCOMP."""
        found: ReleasedRange
        place: cython.Py_ssize_t = bisect_right(self.firsts, pid)
        if place == 0:
            return False
        found = self.ranges[place - 1]
        return pid < found.pid + found.count

    def add(
        self,
        pid: cython.Py_ssize_t,
        count: cython.Py_ssize_t,
        settle: Any,
        base: cython.Py_ssize_t,
    ) -> cython.int:
        """Add identifiers, none of which is here."""
        place: cython.Py_ssize_t
        newest: ReleasedRange | None = self.newest
        self.count += count
        if (
            newest is not None
            and newest.pid + newest.count == pid
            and newest.settle is settle
            and (settle is None or newest.base + newest.count == base)
        ):
            newest.count += count
            return 0
        newest = ReleasedRange(pid, count, settle, base, self.turns)
        self.turns += 1
        self.newest = newest
        place = bisect_left(self.firsts, pid)
        self.firsts.insert(place, pid)
        self.ranges.insert(place, newest)
        return 0

    def parts(self, pid: cython.Py_ssize_t, count: cython.Py_ssize_t) -> list[ReleasedRange]:
        """Return those of ``count`` identifiers from ``pid`` on that are here, ascending."""
        found: ReleasedRange
        end: cython.Py_ssize_t = pid + count
        place: cython.Py_ssize_t
        those: list[ReleasedRange] = []
        for place in range(self._first_at(pid), len(self.ranges)):
            found = self.ranges[place]
            if found.pid >= end:
                break
            those.append(found.part(max(pid, found.pid), min(end, found.pid + found.count)))
        return those

    def take(self, pid: cython.Py_ssize_t, count: cython.Py_ssize_t) -> list[ReleasedRange]:
        """Remove ``count`` identifiers from ``pid`` on; return those that were here, ascending."""
        found: ReleasedRange
        rest: ReleasedRange
        end: cython.Py_ssize_t = pid + count
        last: cython.Py_ssize_t
        place: cython.Py_ssize_t = self._first_at(pid)
        those: list[ReleasedRange] = self.parts(pid, count)
        for _ in those:
            found = self.ranges[place]
            last = found.pid + found.count
            self.count -= min(end, last) - max(pid, found.pid)
            if found.pid < pid:
                found.count = pid - found.pid
                place += 1
                if end < last:
                    rest = ReleasedRange(
                        end, last - end, found.settle, found.base + end - found.pid, found.turn
                    )
                    self.firsts.insert(place, end)
                    self.ranges.insert(place, rest)
                    if self.newest is found:
                        self.newest = None  # what comes next is not the rest's neighbour in time
            elif end < last:
                found.base += end - found.pid
                found.count = last - end
                found.pid = end
                self.firsts[place] = end
            else:
                del self.firsts[place]
                del self.ranges[place]
                if self.newest is found:
                    self.newest = None
        return those

    def _first_at(self, pid: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Return the place of the first range that ends after ``pid``."""
        place: cython.Py_ssize_t = bisect_right(self.firsts, pid)
        return place - 1 if place and self.has(pid) else place

    def in_order(self) -> list[IdRange]:
        """Return all identifiers in the order of their PUBRECs."""
        those = sorted(self.ranges, key=lambda each: (each.turn, each.pid))
        return [(each.pid, each.count) for each in those]

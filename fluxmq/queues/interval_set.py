"""A set of whole numbers kept as ranges: offsets a consumer holds, sequences a producer has used.

Memory is per range. Adding at the end and removing at the front, the usual operations, touch one
range; elsewhere it is a binary search and one list insertion.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

Range = tuple[int, int]


class IntervalSet:
    """Disjoint ranges in order, with a gap between any two. `count`: numbers in the set."""

    __slots__ = ("count", "firsts", "lasts")

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        self.firsts: list[int] = []
        self.lasts: list[int] = []
        self.count = 0
        for first, last in ranges:
            self.add(first, last)

    def __bool__(self) -> bool:
        return bool(self.firsts)

    def __len__(self) -> int:
        """Return the number of ranges."""
        return len(self.firsts)

    def __iter__(self) -> Iterator[Range]:
        return zip(self.firsts, self.lasts, strict=True)

    def add(self, first: int, last: int) -> int:
        """Add all of `first`..`last`; return how many of them are new."""
        firsts, lasts = self.firsts, self.lasts
        if not lasts or first > lasts[-1] + 1:
            firsts.append(first)
            lasts.append(last)
            fresh = last - first + 1
        elif first == lasts[-1] + 1:
            lasts[-1] = last
            fresh = last - first + 1
        else:
            # Every range that touches or overlaps becomes one.
            low = bisect_left(lasts, first - 1)
            high = bisect_right(firsts, last + 1)
            known = 0
            for index in range(low, high):
                known += lasts[index] - firsts[index] + 1
            if low < high:
                first = min(first, firsts[low])
                last = max(last, lasts[high - 1])
            firsts[low:high] = [first]
            lasts[low:high] = [last]
            fresh = last - first + 1 - known
        self.count += fresh
        return fresh

    def within(self, first: int, last: int) -> list[Range]:
        """Return the parts of `first`..`last` in the set."""
        firsts, lasts = self.firsts, self.lasts
        low = bisect_left(lasts, first)
        found = []
        for index in range(low, len(firsts)):
            if firsts[index] > last:
                break
            found.append((max(first, firsts[index]), min(last, lasts[index])))
        return found

    def missing(self, first: int, last: int) -> list[Range]:
        """Return the parts of `first`..`last` not in the set."""
        found = []
        for low, high in self.within(first, last):
            if first < low:
                found.append((first, low - 1))
            first = high + 1
        if first <= last:
            found.append((first, last))
        return found

    def remove(self, first: int, last: int) -> list[Range]:
        """Remove `first`..`last`; return the parts that were there."""
        firsts, lasts = self.firsts, self.lasts
        if firsts and firsts[0] == first and last <= lasts[0]:
            # In order, as nearly always.
            self.count -= last - first + 1
            if last < lasts[0]:
                firsts[0] = last + 1
            else:
                del firsts[0], lasts[0]
            return [(first, last)]
        low = bisect_left(lasts, first)
        taken: list[Range] = []
        kept: list[Range] = []
        high = low
        while high < len(firsts) and firsts[high] <= last:
            start, end = firsts[high], lasts[high]
            taken.append((max(first, start), min(last, end)))
            if start < first:
                kept.append((start, first - 1))
            if end > last:
                kept.append((last + 1, end))
            high += 1
        if taken:
            firsts[low:high] = [item[0] for item in kept]
            lasts[low:high] = [item[1] for item in kept]
            for start, end in taken:
                self.count -= end - start + 1
        return taken

    def drop_lowest(self) -> None:
        """Forget the lowest range."""
        self.count -= self.lasts.pop(0) - self.firsts.pop(0) + 1

    def clear(self) -> None:
        """Forget everything."""
        self.firsts.clear()
        self.lasts.clear()
        self.count = 0

    def pack(self) -> list[int]:
        """Return all firsts and lasts, for msgpack."""
        return [number for item in self for number in item]

    @staticmethod
    def unpack(numbers: list[int]) -> IntervalSet:
        """Decode the result of `pack`."""
        return IntervalSet(zip(numbers[::2], numbers[1::2], strict=True))

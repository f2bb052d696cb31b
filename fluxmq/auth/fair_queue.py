"""A bounded, fairly shared queue: a key with many items delays only itself."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Generic, TypeVar

Item = TypeVar("Item")


class FairQueue(Generic[Item]):
    """Items by key, taken in turn from each non-empty key, in the order of each key.

    Holds at most ``most`` items, ``most_per_key`` of one key. When it is full, a new item of a key
    with fewer replaces the last one of the key that has most.
    """

    def __init__(self, most: int, most_per_key: int) -> None:
        self.most = most
        self.most_per_key = most_per_key
        self._waiting: OrderedDict[str, deque[Item]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, key: str, item: Item) -> Item | None:
        """Add an item; return the item for which there is no room, this or another, or None."""
        own = self._waiting.get(key)
        have = len(own) if own is not None else 0
        if have >= self.most_per_key:
            return item
        dropped = None
        if self._count >= self.most:
            greatest = max(self._waiting.values(), key=len, default=None)
            if greatest is None or len(greatest) <= have + 1:
                return item
            dropped = greatest.pop()
            self._count -= 1
        if own is None:
            own = self._waiting[key] = deque()
        own.append(item)
        self._count += 1
        return dropped

    def take(self) -> Item | None:
        """Remove and return the next item, None when there is none."""
        if not self._count:
            return None
        key, own = next(iter(self._waiting.items()))
        item = own.popleft()
        self._count -= 1
        if own:
            self._waiting.move_to_end(key)
        else:
            del self._waiting[key]
        return item

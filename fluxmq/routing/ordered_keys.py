"""A sorted set of byte strings: cheap insertion and removal at any size, search by bound.

Keys sit in sorted blocks of bounded length, so an insertion moves a few kilobytes at most and a
search is two bisections. There are no iterators: callers ask for the keys after the last one they
saw, which stays meaningful across changes. A balanced tree would cost a node object per key; this
costs eight bytes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Final

BLOCK_KEYS_MAX: Final = 1024
"""A block is split beyond this many keys and merged below a quarter of it."""


class OrderedKeys:
    """A set of bytes in their natural order."""

    def __init__(self, keys: Iterable[bytes] = ()) -> None:
        ordered = sorted(set(keys))
        half = BLOCK_KEYS_MAX // 2
        self._blocks = [ordered[start : start + half] for start in range(0, len(ordered), half)]
        self._lasts = [block[-1] for block in self._blocks]
        """Last key of each block: no block is ever empty."""
        self._count = len(ordered)

    def __len__(self) -> int:
        return self._count

    def __contains__(self, key: bytes) -> bool:
        return self.first_from(key) == key

    def add(self, key: bytes) -> bool:
        """Insert `key`; False when it was there."""
        blocks = self._blocks
        if not blocks:
            blocks.append([key])
            self._lasts.append(key)
            self._count = 1
            return True
        index = min(bisect_left(self._lasts, key), len(blocks) - 1)
        block = blocks[index]
        if key > block[-1]:
            block.append(key)
            self._lasts[index] = key
        else:
            position = bisect_left(block, key)
            if block[position] == key:
                return False
            block.insert(position, key)
        self._count += 1
        if len(block) > BLOCK_KEYS_MAX:
            middle = len(block) // 2
            blocks.insert(index + 1, block[middle:])
            del block[middle:]
            self._lasts.insert(index, block[-1])
        return True

    def discard(self, key: bytes) -> bool:
        """Remove `key`; False when it was not there."""
        index = bisect_left(self._lasts, key)
        if index == len(self._blocks):
            return False
        block = self._blocks[index]
        position = bisect_left(block, key)
        if block[position] != key:
            return False
        del block[position]
        self._count -= 1
        if not block:
            del self._blocks[index], self._lasts[index]
            return True
        self._lasts[index] = block[-1]
        if len(block) < BLOCK_KEYS_MAX // 4:
            self._merge(index)
        return True

    def first_from(self, bound: bytes) -> bytes | None:
        """Return the smallest key not below `bound`, None when all are."""
        index = bisect_left(self._lasts, bound)
        if index == len(self._blocks):
            return None
        block = self._blocks[index]
        return block[bisect_left(block, bound)]

    def between(self, start: bytes, stop: bytes | None, count: int) -> list[bytes]:
        """Return up to `count` keys from `start` on and below `stop` (None: to the end), in order.

        May return fewer than there are, but none only when there are none.
        """
        index = bisect_left(self._lasts, start)
        if index == len(self._blocks):
            return []
        block = self._blocks[index]
        first = bisect_left(block, start)
        last = len(block) if stop is None else bisect_left(block, stop, first)
        return block[first : min(last, first + count)]

    def _merge(self, index: int) -> None:
        """Join a short block with a neighbour where both fit into half a block's room."""
        left = index - 1 if index else 0
        if left + 1 >= len(self._blocks):
            return
        if len(self._blocks[left]) + len(self._blocks[left + 1]) > BLOCK_KEYS_MAX // 2:
            return
        self._blocks[left] += self._blocks[left + 1]
        del self._blocks[left + 1], self._lasts[left]

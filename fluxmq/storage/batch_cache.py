"""In-memory batches of a shard's logs: the latest appended, and stretches read from disk. Both
bounded.

All logs of a shard share one cache, so that a busy queue may use the space of quiet ones. Appended
batches are evicted oldest first across logs; the cached part of a log is therefore always a
contiguous tail. Stretches read from disk are evicted least recently used first. Knows no files and
no positions in them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict, deque
from typing import Final

from fluxmq.model.batch_format import Batch

RECENT_BYTES_DEFAULT: Final = 64 << 20
"""Appended batches kept by a shard: a second of a fast shard's traffic, so that live consumers read
no files."""

WINDOW_BYTES_DEFAULT: Final = 32 << 20
"""Stretches kept by a shard: enough for a hundred consumers of old messages."""

ENTRY_BYTES: Final = 600
"""Approximate memory of a batch beyond its bytes (its object and list slots); counted with it."""


class RecentBatches:
    """The cached tail of one log. Created by `BatchCache.recent`.

    `messages_max` and `bytes_max`: this log's own limits in the cache, None for none.
    """

    __slots__ = (
        *("_bases", "_batches", "_first", "bytes", "bytes_max", "gone", "messages"),
        "messages_max",
    )

    def __init__(self) -> None:
        self.messages = 0
        self.bytes = 0
        self.messages_max: int | None = None
        self.bytes_max: int | None = None
        self._bases: list[int] = []
        self._batches: list[Batch | None] = []
        self._first = 0
        # Batches dropped early, which the cache's common queue still counts.
        self.gone = 0

    def __len__(self) -> int:
        return len(self._batches) - self._first

    def find(self, offset: int) -> Batch | None:
        """Return the batch that holds an offset, None if it is not cached."""
        at = bisect_right(self._bases, offset, self._first) - 1
        if at < self._first:
            return None
        batch = self._batches[at]
        assert batch is not None, "only those before the first are given up"
        return batch if offset < batch.base_offset + batch.count else None

    def append(self, batch: Batch) -> None:
        """Add the log's next batch."""
        self._bases.append(batch.base_offset)
        self._batches.append(batch)
        self.messages += batch.count
        self.bytes += batch.length

    def is_over(self) -> bool:
        """Return whether the log exceeds its own limits."""
        too_many = self.messages_max is not None and self.messages > self.messages_max
        return too_many or (self.bytes_max is not None and self.bytes > self.bytes_max)

    def pop(self) -> int:
        """Evict the oldest batch and return its bytes."""
        batch = self._batches[self._first]
        assert batch is not None, "it was not given up before"
        self._batches[self._first] = None
        self._first += 1
        self.messages -= batch.count
        self.bytes -= batch.length
        if self._first > 256 and self._first * 2 > len(self._batches):
            del self._batches[: self._first], self._bases[: self._first]
            self._first = 0
        return batch.length + ENTRY_BYTES

    def oldest_end(self) -> int:
        """Return the offset after the oldest batch."""
        batch = self._batches[self._first]
        assert batch is not None, "it was not given up before"
        return batch.base_offset + batch.count


class ReadWindow:
    """A stretch of one segment, read with one call; `batches` are those in it that were checked.

    `position`: where `data` begins in the segment. `bases` and `starts` (in `data`) are of the
    batches walked so far, `end` and `next_offset` where the walk stands.
    """

    __slots__ = ("base", "bases", "batches", "data", "end", "next_offset", "position", "starts")

    def __init__(self, base: int, position: int, data: bytes, first_offset: int) -> None:
        self.base = base
        self.position = position
        self.data = data
        self.bases: list[int] = []
        self.starts: list[int] = []
        self.end = 0
        self.next_offset = first_offset
        self.batches: dict[int, Batch] = {}


class BatchCache:
    """The batches in memory of one shard's logs; `recent_bytes` and `window_bytes` bound it."""

    def __init__(
        self,
        recent_bytes: int = RECENT_BYTES_DEFAULT,
        window_bytes: int = WINDOW_BYTES_DEFAULT,
    ) -> None:
        self.recent_bytes_max = recent_bytes
        self.window_bytes_max = window_bytes
        self.recent_bytes = 0
        self.window_bytes = 0
        self._order: deque[RecentBatches] = deque()
        self._gone = 0
        self._windows: OrderedDict[ReadWindow, list[ReadWindow]] = OrderedDict()

    def recent(self) -> RecentBatches:
        """Return a container for a log's appended batches."""
        return RecentBatches()

    def add(self, recent: RecentBatches, batch: Batch) -> None:
        """Cache a batch just appended to a log, evicting older ones of any log as needed."""
        recent.append(batch)
        self._order.append(recent)
        self.recent_bytes += batch.length + ENTRY_BYTES
        while self.recent_bytes > self.recent_bytes_max:
            oldest = self._order.popleft()
            if oldest.gone:
                oldest.gone -= 1
                self._gone -= 1
            else:
                self.recent_bytes -= oldest.pop()
        if recent.is_over():
            self._drop_surplus(recent)

    def bound(self, recent: RecentBatches, messages_max: int | None, bytes_max: int | None) -> None:
        """Limit a log to this many messages and bytes from now on; None is no limit of its own."""
        recent.messages_max = messages_max
        recent.bytes_max = bytes_max
        self._drop_surplus(recent)

    def _drop_surplus(self, recent: RecentBatches) -> None:
        while recent.is_over():
            self._drop_oldest(recent)
        self._compact_if_due()

    def drop_below(self, recent: RecentBatches, offset: int) -> None:
        """Evict a log's batches that end at or before an offset."""
        while len(recent) and recent.oldest_end() <= offset:
            self._drop_oldest(recent)
        self._compact_if_due()

    def _drop_oldest(self, recent: RecentBatches) -> None:
        self.recent_bytes -= recent.pop()
        recent.gone += 1
        self._gone += 1

    def _compact_if_due(self) -> None:
        # Dropped batches keep their places in the common queue until they are most of it.
        if self._gone > 1024 and self._gone * 2 > len(self._order):
            self._compact()

    def _compact(self) -> None:
        kept: deque[RecentBatches] = deque()
        for recent in self._order:
            if recent.gone:
                recent.gone -= 1
            else:
                kept.append(recent)
        self._order = kept
        self._gone = 0

    def add_window(self, owner: list[ReadWindow], window: ReadWindow) -> None:
        """Cache a stretch just read, in its log's list too, evicting the least recently used."""
        owner.append(window)
        self._windows[window] = owner
        self.window_bytes += len(window.data)
        while self.window_bytes > self.window_bytes_max and len(self._windows) > 1:
            oldest, its_owner = self._windows.popitem(last=False)
            its_owner.remove(oldest)
            self.window_bytes -= len(oldest.data)

    def used(self, window: ReadWindow) -> None:
        """Mark a stretch as just used."""
        self._windows.move_to_end(window)

    def drop_window(self, owner: list[ReadWindow], window: ReadWindow) -> None:
        """Evict one of a log's stretches."""
        owner.remove(window)
        del self._windows[window]
        self.window_bytes -= len(window.data)

    def drop_windows(self, owner: list[ReadWindow], base: int | None = None) -> None:
        """Evict a log's stretches, or only those of the segment with a base offset."""
        for window in [each for each in owner if base is None or each.base == base]:
            self.drop_window(owner, window)

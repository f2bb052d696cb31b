"""In-memory stand-ins for the disk of transient queues: their batches, and their driver."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from fluxmq.model.batch_format import Batch, parse
from fluxmq.model.errors import FluxmqError

if TYPE_CHECKING:
    from fluxmq.engine.group import ReplicationGroup


class OffsetGoneError(FluxmqError):
    """The offset is not stored (any more)."""


class MemoryStore:
    """One ephemeral queue's batches, oldest first."""

    def __init__(self) -> None:
        self.ahead = self.arriving = False
        self._batches: list[Batch] = []
        self._bases: list[int] = []

    def begin_at(self, offset: int) -> None:
        """Do nothing: queues in memory do not move."""

    def append(self, batch: Batch) -> None:
        """Store a batch, without the entry it came in."""
        kept = parse(batch.header() + bytes(batch.body()))
        self._batches.append(kept)
        self._bases.append(kept.base_offset)

    def bound(self, segment_bytes: int, cached_messages: int, cached_bytes: int) -> None:
        """Do nothing: there are no segments, and everything is in memory."""

    def flush(self) -> None:
        """Do nothing: there is no file."""

    @property
    def incomplete(self) -> bool:
        """Always False: `flush` has no work."""
        return False

    def read(self, offset: int) -> Batch:
        """Return the batch that holds an offset. Raises OffsetGoneError."""
        place = bisect_right(self._bases, offset) - 1
        if place < 0 or offset > self._batches[place].last_offset:
            raise OffsetGoneError(str(offset))
        return self._batches[place]

    def trim(self, start: int, *, purge: bool = False) -> None:
        """Delete batches wholly below ``start``."""
        place = bisect_right(self._bases, start) - 1
        if place > 0:
            del self._batches[:place]
            del self._bases[:place]
        if self._batches and self._batches[0].last_offset < start:
            del self._batches[0]
            del self._bases[0]

    def offset_at(self, time_us: int) -> int:
        """Return the first offset stored at or after a time."""
        for batch in self._batches:
            if batch.last_time >= time_us:
                for index in range(batch.count):
                    if batch.time(index) >= time_us:
                        return batch.base_offset + index
        return self._batches[-1].last_offset + 1 if self._batches else 0


class MemoryStores:
    """The stores of a shard's ephemeral queues."""

    def open(self, queue_id: int, name: str) -> MemoryStore:
        """Return a new queue's store."""
        return MemoryStore()

    def delete(self, queue_id: int, name: str) -> None:
        """Do nothing: the store has no other copy."""


class MemoryDriver:
    """Commits at once, for queues in memory that end with the shard."""

    leading = True
    writable = True

    def __init__(self, group: ReplicationGroup) -> None:
        self._group = group
        self._index = 0
        self._applied = 0
        self._taken: list[bytes] = []
        self._pumping = False

    def propose(self, data: bytes) -> tuple[int, int]:
        """Accept an entry."""
        self._index += 1
        self._taken.append(data)
        return self._index, 1

    def in_sync(self, members: int) -> int:
        """Return the last entry accepted: there are no members."""
        return self._index

    def damaged(self, why: str) -> None:
        """Do nothing: there are no files."""

    def catch_up(self) -> None:
        """Do nothing: no entry ever waits."""

    def pump(self) -> None:
        """Apply accepted entries."""
        if self._pumping:
            return  # the outer call continues until nothing is left
        self._pumping = True
        try:
            while self._taken:
                self._applied += 1
                self._group.apply(self._applied, 1, self._taken.pop(0))
        finally:
            self._pumping = False

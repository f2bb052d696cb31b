"""When the stores of a group's queues are written: soon, not with every entry.

The log of entries has every batch durably, and what a store has taken can be read from it at once. So a file is written
when much waits or a little time has passed, not as often as the log is synced. For want of space or descriptors it waits as
well, and appends are refused meanwhile. Where as many queues are written to as files may be open, a queue is `held` until
others are synced: nothing is refused for that, but publishers are not read while much is held.
"""

from __future__ import annotations

from typing import Final

from fluxmq._hot.batches import Batch
from fluxmq.shards.queues.keeping import Store
from fluxmq.storage.errors import AwaitsSync, Exhausted

WAITING_BYTES_MAX = 65_536
"""Bytes of a queue that may wait: beyond them a write costs little beside what it writes."""
WAITING_US_MAX = 20_000
"""How long they may wait while entries are applied; with none, housekeeping writes them. Readers of the files see
messages by so much later."""
HELD_TRIES: Final = 64
"""Queues in a row that find no place for their files, after which the others are not tried: their turn comes first next time."""


class StoreWrites:
    """The stores of one group's queues, by queue id, and what of them is to be written."""

    def __init__(self, stores: dict[int, Store]) -> None:
        self._stores = stores
        self._waiting: dict[int, int] = {}
        """Bytes taken and not written, by queue."""
        self._large: dict[int, None] = {}
        """Queues of which so much waits that it is written with the next entry."""
        self._since = 0
        self.refused: dict[int, None] = {}
        """Queues whose store waits for space, or a descriptor, to do what it has to."""
        self.problem: Exhausted | None = None
        """What was used up when a store was refused last."""
        self.held = 0
        """Queues that waited, when all were written last, for files of others to be synced."""
        self.held_bytes = 0
        """Bytes that waited then: publishers are faster than the disk syncs what they begin."""

    def append(self, queue_id: int, batch: Batch) -> None:
        """Give a queue's store a batch."""
        self._stores[queue_id].append(batch)
        size = self._waiting.get(queue_id, 0) + batch.length
        self._waiting[queue_id] = size
        if size >= WAITING_BYTES_MAX:
            self._large[queue_id] = None

    def applied(self, time: int) -> None:
        """An entry of that time (µs) was applied: write what is due. Raises StorageError, but not Exhausted."""
        waiting = self._waiting
        if not waiting:
            return
        if not self._since:
            self._since = time
        if time - self._since >= WAITING_US_MAX:
            self.write()
            return
        if self._large:
            for queue_id in list(self._large):
                self._write(queue_id)

    def write(self) -> None:
        """Write everything that waits, also what waits for space. Raises StorageError, but not Exhausted."""
        self.held = in_a_row = 0
        for queue_id in [*self._waiting, *self.refused]:
            if self._write(queue_id):
                in_a_row = 0
                continue
            self.held += 1
            in_a_row += 1
            if in_a_row == HELD_TRIES:
                break
        self.held_bytes = sum(self._waiting.values()) if self.held else 0
        self._since = 0

    def _write(self, queue_id: int) -> bool:
        """Whether it was written, or refused; else it waits on, behind the others."""
        size = self._waiting.pop(queue_id, 0)
        self._large.pop(queue_id, None)
        try:
            self._stores[queue_id].flush()
        except AwaitsSync:
            self._waiting[queue_id] = size
            self.refused.pop(queue_id, None)
            return False
        except Exhausted as problem:
            self._refuse(queue_id, problem)
        else:
            self.refused.pop(queue_id, None)
        return True

    def _refuse(self, queue_id: int, problem: Exhausted) -> None:
        self.refused[queue_id] = None
        self.problem = problem

    def opened(self, queue_id: int) -> None:
        """A queue has a store; if that could not be made for want of something, it is made with what is written next."""
        if self._stores[queue_id].incomplete:
            self._waiting.setdefault(queue_id, 0)

    def trim(self, queue_id: int, start: int, *, purge: bool) -> None:
        """Have a queue's store forget what lies below. Raises StorageError, but not Exhausted."""
        try:
            self._stores[queue_id].trim(start, purge=purge)
        except AwaitsSync:
            self._waiting.setdefault(queue_id, 0)
        except Exhausted as problem:
            self._refuse(queue_id, problem)

    @property
    def waiting(self) -> bool:
        """Whether something is to be written."""
        return bool(self._waiting)

    def forget(self, queue_id: int) -> None:
        """A queue is gone."""
        self._waiting.pop(queue_id, None)
        self._large.pop(queue_id, None)
        self.refused.pop(queue_id, None)

    def clear(self) -> None:
        """Nothing is written any more."""
        self._waiting.clear()
        self._large.clear()
        self.refused.clear()
        self.held = self.held_bytes = 0

"""Schedules writes of a group's stores: soon, not with every entry.

The log of entries holds every batch durably, and a store serves appended batches from memory. So a
file is written when much has accumulated or some time has passed, less often than the log is
synced. Writes also wait for disk space or descriptors; appends are refused meanwhile. If more
queues are written to than files may be open, a queue is `held` until others are synced: appends are
not refused for that, but publishers are paused while much is held.
"""

from __future__ import annotations

from typing import Final

from fluxmq.engine.state_ports import QueueStore
from fluxmq.model.batch_format import Batch
from fluxmq.storage.errors import AwaitsSync, Exhausted

WAITING_BYTES_MAX = 65_536
"""Bytes of a queue that may wait: beyond them a write's fixed cost hardly matters."""
WAITING_US_MAX = 20_000
"""Time for which they may wait while entries are applied; otherwise housekeeping writes them.
Readers of the files see messages later by as much."""
HELD_TRIES: Final = 64
"""Number of queues in a row without a place for their files after which a pass stops; it resumes
there."""


class StoreWrites:
    """The stores of one group's queues, by queue id, and their pending writes."""

    def __init__(self, stores: dict[int, QueueStore]) -> None:
        self._stores = stores
        self._waiting: dict[int, int] = {}
        """Bytes appended but not written, by queue."""
        self._large: dict[int, None] = {}
        """Queues with so many pending bytes that they are written with the next entry."""
        self._since = 0
        self.refused: dict[int, None] = {}
        """Queues whose store waits for space or a descriptor."""
        self.problem: Exhausted | None = None
        """Exhausted resource of the last refused write."""
        self.held = 0
        """Number of queues that waited for syncs of others' files at the last full write."""
        self.held_bytes = 0
        """Bytes that waited then: publishers outpace the disk's syncs."""

    def append(self, queue_id: int, batch: Batch) -> None:
        """Append a batch to a queue's store."""
        self._stores[queue_id].append(batch)
        size = self._waiting.get(queue_id, 0) + batch.length
        self._waiting[queue_id] = size
        if size >= WAITING_BYTES_MAX:
            self._large[queue_id] = None

    def applied(self, time: int) -> None:
        """Write what is due after an entry of that time (µs). Raises StorageError, but not
        Exhausted."""
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
        """Write everything pending, also where space was lacking. Raises StorageError, but not
        Exhausted."""
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
        """Return True if it was written or refused; otherwise it waits behind the others."""
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
        """Register a queue's store; if it could not be created, the next write retries."""
        if self._stores[queue_id].incomplete:
            self.due(queue_id)

    def due(self, queue_id: int) -> None:
        """Have the next write complete a queue's files, though nothing was appended."""
        self._waiting.setdefault(queue_id, 0)

    def trim(self, queue_id: int, start: int, *, purge: bool) -> None:
        """Trim a queue's store below ``start``. Raises StorageError, but not Exhausted."""
        try:
            self._stores[queue_id].trim(start, purge=purge)
        except AwaitsSync:
            self._waiting.setdefault(queue_id, 0)
        except Exhausted as problem:
            self._refuse(queue_id, problem)

    @property
    def waiting(self) -> bool:
        """True while writes are pending."""
        return bool(self._waiting)

    def forget(self, queue_id: int) -> None:
        """Drop a deleted queue."""
        self._waiting.pop(queue_id, None)
        self._large.pop(queue_id, None)
        self.refused.pop(queue_id, None)

    def clear(self) -> None:
        """Drop all pending writes for good."""
        self._waiting.clear()
        self._large.clear()
        self.refused.clear()
        self.held = self.held_bytes = 0

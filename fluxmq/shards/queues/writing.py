"""When the stores of a group's queues are written: soon, not with every entry.

The log of entries has every batch durably, and what a store has taken can be read from it at once. So a file is written
when much waits or a little time has passed, not as often as the log is synced. For want of space it waits as well, and
appends are refused meanwhile.
"""

from __future__ import annotations

from fluxmq._hot.batches import Batch
from fluxmq.shards.queues.keeping import Store
from fluxmq.storage.errors import DiskFull

WAITING_BYTES_MAX = 65_536
"""Bytes of a queue that may wait: beyond them a write costs little beside what it writes."""
WAITING_US_MAX = 20_000
"""How long they may wait while entries are applied; with none, housekeeping writes them. Readers of the files see
messages by so much later."""


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
        """Queues whose store waits for space to write what it has taken."""

    def append(self, queue_id: int, batch: Batch) -> None:
        """Give a queue's store a batch."""
        self._stores[queue_id].append(batch)
        size = self._waiting.get(queue_id, 0) + batch.length
        self._waiting[queue_id] = size
        if size >= WAITING_BYTES_MAX:
            self._large[queue_id] = None

    def applied(self, time: int) -> None:
        """An entry of that time (µs) was applied: write what is due. Raises StorageError, but not for want of space."""
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
        """Write everything that waits, also what waits for space. Raises StorageError, but not for want of space."""
        for queue_id in [*self._waiting, *self.refused]:
            self._write(queue_id)
        self._since = 0

    def _write(self, queue_id: int) -> None:
        self._waiting.pop(queue_id, None)
        self._large.pop(queue_id, None)
        try:
            self._stores[queue_id].flush()
        except DiskFull:
            self.refused[queue_id] = None
        else:
            self.refused.pop(queue_id, None)

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

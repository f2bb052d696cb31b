"""Ports by which a group stores the batches of its queues: in files, or in memory for ephemeral
queues; the group does not know which."""

from __future__ import annotations

from typing import Protocol

from fluxmq.model.batch_format import Batch


class QueueStore(Protocol):
    """One queue's batches. ``ahead``: the log of entries may not hold everything that was appended
    and trimmed, so files only get more: readers are not shown the new messages, nothing is
    removed. ``arriving``: it is being copied from elsewhere, and nobody reads it."""

    ahead: bool
    arriving: bool

    def begin_at(self, offset: int) -> None:
        """Set the offset of the first batch. Called before that; a repeated call has no effect."""

    def append(self, batch: Batch) -> None:
        """Store a batch."""

    def bound(self, segment_bytes: int, cached_messages: int, cached_bytes: int) -> None:
        """Set the size of segments from the next one on, and the limits of the in-memory cache.

        0 means the shard's setting, or no limit of the queue's own. Called before the first batch
        and at each change.
        """

    def flush(self) -> None:
        """Write appended batches to the file (without a sync). Raises Exhausted; may be called
        again."""

    @property
    def incomplete(self) -> bool:
        """True while `flush` has work to do although nothing was appended."""

    def read(self, offset: int) -> Batch:
        """Return the batch that holds an offset."""

    def trim(self, start: int, *, purge: bool = False) -> None:
        """Delete everything below ``start``; ``purge``: at once, even if that is all there is.

        Raises Exhausted when `flush` has to continue it.
        """

    def offset_at(self, time_us: int) -> int:
        """Return the first offset stored at or after a time."""


class QueueStores(Protocol):
    """The batches of a group's queues."""

    def open(self, queue_id: int, name: str) -> QueueStore:
        """Open a queue's store; create it if it does not exist."""

    def delete(self, queue_id: int, name: str) -> None:
        """Delete a queue's batches."""

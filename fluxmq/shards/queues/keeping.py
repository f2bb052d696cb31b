"""What a replication group is kept by: something that makes its entries durable, something that holds its batches.

On disk both are files, for ephemeral queues memory; a group does not know which.
"""

from __future__ import annotations

from typing import Protocol

from fluxmq._hot.batches import Batch


class Store(Protocol):
    """One queue's batches."""

    def begin_at(self, offset: int) -> None:
        """The first batch has this offset. Called before it, and for what was begun so already without effect."""

    def append(self, batch: Batch) -> None:
        """Keep a batch."""

    def bound(self, segment_bytes: int, cached_messages: int, cached_bytes: int) -> None:
        """How large segments become that begin from now on, and what is kept in memory beside the disk.

        0 is what the shard says, or no limit of the queue's own. Called before the first batch and whenever it changes.
        """

    def flush(self) -> None:
        """What was appended reaches the file (not yet the disk). Raises Exhausted; it may be called again."""

    @property
    def incomplete(self) -> bool:
        """Whether `flush` has something to do although nothing was appended."""

    def read(self, offset: int) -> Batch:
        """The batch that holds an offset."""

    def trim(self, start: int, *, purge: bool = False) -> None:
        """Forget what lies below; ``purge``: at once, also where that is everything there is.

        Raises Exhausted when `flush` has to go on with it.
        """

    def offset_at(self, time_us: int) -> int:
        """The first offset stored at or after a time."""


class Stores(Protocol):
    """The batches of a group's queues."""

    def open(self, queue_id: int, name: str) -> Store:
        """The store of a queue, made if it is not there."""

    def delete(self, queue_id: int, name: str) -> None:
        """Remove a queue's batches."""


class Keeper(Protocol):
    """What makes entries durable and committed."""

    def propose(self, data: bytes) -> tuple[int, int] | None:
        """Take an entry; its index and term, None when it cannot be taken now."""

    def pump(self) -> None:
        """Go on with what was proposed."""

    def catch_up(self) -> None:
        """Apply what has waited for the log to be written, where this node follows."""

    @property
    def writable(self) -> bool:
        """Whether an entry proposed now would be written with this tick."""

    @property
    def leading(self) -> bool:
        """Whether this group takes commands here."""

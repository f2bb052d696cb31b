"""Handle of a consumer of a group on this shard."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fluxmq.engine.ports import Answer, Range, Taken
from fluxmq.queues.consumers import Consumer

if TYPE_CHECKING:
    from fluxmq.engine.consuming import Consuming


class LocalHeld:
    """A consumer of a group of this shard."""

    def __init__(self, group: Consuming, consumer: Consumer) -> None:
        self._group = group
        self._consumer = consumer

    def settle(
        self, verb: int, ranges: Sequence[Range], delay: int, reason: bytes, done: Answer | None
    ) -> None:
        """Settle messages."""
        self._group.settle(self._consumer, verb, ranges, delay, reason, done)

    def commit(self, offset: int, done: Answer | None) -> None:
        """Commit a stream's offset."""
        self._group.commit(self._consumer, offset, done)

    def set_limit(self, limit: int) -> None:
        """Set the maximum number of unacked messages."""
        self._group.set_limit(self._consumer, limit)

    def take(self, done: Taken) -> None:
        """Get one message."""
        self._group.take(self._consumer, done)

    def stop(self) -> None:
        """Stop deliveries."""
        self._group.stop(self._consumer)

    def detach(self) -> None:
        """Detach."""
        self._group.detach(self._consumer)

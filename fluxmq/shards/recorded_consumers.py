"""Consumers whose coming and going is recorded in the cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fluxmq.engine.ports import (
    AppendCallback,
    Attached,
    Attaching,
    AttachRequest,
    ConsumerHandle,
    ConsumerPort,
    GetCallback,
    Range,
)
from fluxmq.model.batch_format import Batch

ConsumerKey = tuple[str, str, str]
"""Names of a queue, of the consumer's group, and of the consumer."""


class RecordedConsumer:
    """Stands between a consumer and its group: ``ConsumerPort`` of the group, and ``ConsumerHandle``
    of the consumer's client."""

    def __init__(
        self,
        wanted: AttachRequest,
        port: ConsumerPort,
        done: Attaching,
        came: Callable[[ConsumerKey], None],
        went: Callable[[ConsumerKey], None],
    ) -> None:
        self._wanted = wanted
        self._port = port
        self._done = done
        self._came = came
        self._went = went
        self._handle: ConsumerHandle
        self._key: ConsumerKey | None = None

    def attached(self, answer: Attached, handle: ConsumerHandle | None) -> None:
        """Take the group's answer."""
        if handle is None:
            self._done(answer, None)
            return
        self._handle = handle
        self._key = self._wanted.queue, answer.group or self._wanted.group, self._wanted.member
        self._came(self._key)
        self._done(answer, self)

    def _end(self) -> None:
        key, self._key = self._key, None
        if key is not None:
            self._went(key)

    # Called by the group

    def deliver(
        self, batch: Batch, first: int, count: int, attempts: int, committed: int = -1
    ) -> None:
        """Deliver messages to the client."""
        self._port.deliver(batch, first, count, attempts, committed)

    def cancelled(self) -> None:
        """Handle the end of the queue."""
        self._end()
        self._port.cancelled()

    # Called by the client

    def settle(
        self,
        verb: int,
        ranges: Sequence[Range],
        delay: int,
        reason: bytes,
        done: AppendCallback | None,
    ) -> None:
        """Settle messages."""
        self._handle.settle(verb, ranges, delay, reason, done)

    def commit(self, offset: int, done: AppendCallback | None) -> None:
        """Commit a stream's offset."""
        self._handle.commit(offset, done)

    def set_limit(self, limit: int) -> None:
        """Set the maximum number of unacked messages."""
        self._handle.set_limit(limit)

    def take(self, done: GetCallback) -> None:
        """Get one message now."""
        self._handle.take(done)

    def stop(self) -> None:
        """Stop deliveries."""
        self._handle.stop()

    def detach(self) -> None:
        """Detach."""
        self._end()
        self._handle.detach()

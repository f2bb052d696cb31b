"""The group of a shard's ephemeral queues, created by their first use and kept in memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from fluxmq.engine.answers import reason_of
from fluxmq.engine.group import ReplicationGroup
from fluxmq.engine.ports import (
    AppendCallback,
    Attached,
    AttachRequest,
    ConsumerHandle,
    ConsumerPort,
)
from fluxmq.model.outcomes import Outcome
from fluxmq.queues.config import QueueConfig
from fluxmq.queues.origins import Identity
from fluxmq.queues.results import Result

WAITING_MAX = 65_536
"""Maximum number of requests that wait for their queue's creation, until the end of the tick."""


class EphemeralGroup(ReplicationGroup):
    """A group whose queues need no declaration. ``config``: returns a new queue's configuration."""

    config: Callable[[str], QueueConfig]
    queues_max: int

    def make(self, config: Callable[[str], QueueConfig], queues_max: int) -> None:
        """Set the configuration of new queues and their maximum number."""
        self.config = config
        self.queues_max = queues_max
        self._waiting: dict[str, deque[Callable[[int], None]]] = {}

    def append(
        self,
        queue: str,
        batch: bytes,
        done: AppendCallback | None,
        identity: Identity | None = None,
        by_address: bool = False,
    ) -> bool:
        """Append a batch, creating the queue if necessary."""
        if self._is_made(queue):
            return super().append(queue, batch, done, identity, by_address)
        if by_address and self.migration_fence.is_closed_to(queue, ""):
            self._refuse_stranger(done)
            return True

        def made(reason: int) -> None:
            if not reason:
                self._append(queue, batch, done, identity, by_address)
            elif done is not None:
                done(reason)

        self._when_made(queue, made)
        return True

    def attach(
        self,
        wanted: AttachRequest,
        port: ConsumerPort,
        done: Callable[[Attached, ConsumerHandle | None], None],
    ) -> None:
        """Attach a consumer, creating the queue if necessary."""
        if self._is_made(wanted.queue) or self.migration_fence.is_closed_to(
            wanted.queue, wanted.asker
        ):
            super().attach(wanted, port, done)
            return

        def made(reason: int) -> None:
            if reason:
                done(Attached(reason), None)
            else:
                self._attach(wanted, port, done)

        self._when_made(wanted.queue, made)

    def _append(
        self,
        queue: str,
        batch: bytes,
        done: AppendCallback | None,
        identity: Identity | None,
        by_address: bool,
    ) -> None:
        super().append(queue, batch, done, identity, by_address)

    def _attach(
        self,
        wanted: AttachRequest,
        port: ConsumerPort,
        done: Callable[[Attached, ConsumerHandle | None], None],
    ) -> None:
        super().attach(wanted, port, done)

    def _is_made(self, queue: str) -> bool:
        """Return whether the queue exists and no earlier request waits for it."""
        return queue not in self._waiting and self.machine.queue(queue) is not None

    def _when_made(self, queue: str, action: Callable[[int], None]) -> None:
        waiting = self._waiting.get(queue)
        if waiting is not None:
            if len(waiting) >= WAITING_MAX:
                action(Outcome.FAILED)
            else:
                waiting.append(action)
            return
        if len(self.machine.queues) + len(self._waiting) >= self.queues_max:
            action(Outcome.OVER_LIMIT)
            return
        self._waiting[queue] = deque((action,))

        def declared(result: Result) -> None:
            reason = reason_of(result)
            waiting = self._waiting[queue]
            while waiting:
                waiting.popleft()(reason)
            del self._waiting[queue]

        self.declare(self.config(queue), declared)

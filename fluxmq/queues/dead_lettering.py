"""The leader's side of a group's dead messages: each is handed out once, until all are asked for
again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from fluxmq.model.batch_format import Batch
from fluxmq.queues.consumers import DeadLetter, Step
from fluxmq.queues.groups import ConsumerGroup
from fluxmq.queues.pending_ledger import PendingState, Piece
from fluxmq.queues.states import QueueState

_DUE_MAX: Final = 1_024
"""Ranges taken from the timers in one run."""


class DeadLettering:
    """Dead messages of one group."""

    def __init__(self, queue: QueueState, group: ConsumerGroup) -> None:
        self._queue = queue
        self._group = group
        self._dead_letter_ids: deque[Piece] = deque()
        group.dead.arm_all()

    def hand_out(self, step: Step, now: int, budget: int, batch_at: Callable[[int], Batch]) -> int:
        """Hand out messages for dead-lettering, each once until `retry`; return how many.

        `batch_at` returns the batch that holds an offset. It is not stored: as a method of the
        dispatcher that owns this object, it would make a reference cycle that outlives their queue.
        """
        dead = self._group.dead
        due = dead.next_due()
        if due is not None and due <= now:
            self._dead_letter_ids.extend(dead.pop_due(now, _DUE_MAX))
        handed = 0
        while self._dead_letter_ids and handed < budget:
            first, last, state = self._dead_letter_ids.popleft()
            end = min(last, first + budget - handed - 1)
            if end < last:
                self._dead_letter_ids.appendleft((end + 1, last, state))
            for low, high, _ in dead.overlapping(first, end):
                for offset in range(low, high + 1):
                    step.dead.append(self._letter(offset, state, batch_at(offset)))
                handed += high - low + 1
        if self._dead_letter_ids:
            step.more = True
        return handed

    def retry(self) -> None:
        """Hand out every dead message again."""
        self._dead_letter_ids.clear()
        self._group.dead.arm_all()

    def _letter(self, offset: int, state: PendingState, batch: Batch) -> DeadLetter:
        return DeadLetter(
            self._queue.id,
            self._group.id,
            self._group.name,
            self._queue.config.target,
            batch,
            offset - batch.base_offset,
            offset,
            state.reason,
            state.text,
            state.attempts,
            state.first_time,
            state.last_time,
            state.due,
            self._queue.transfer_producer(self._group),
        )

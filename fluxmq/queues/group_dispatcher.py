"""The leader's side of one group: consumers with room, served in turn.

The children know which messages wait, and whether handing them out is claimed (``work_dispatcher``,
``priorities``) or only read (``stream_dispatcher``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import insort
from collections import deque
from collections.abc import Callable, Iterator

from fluxmq.model.batch_format import Batch
from fluxmq.queues.consumers import GroupConsumer, Step
from fluxmq.queues.filters import Filter
from fluxmq.queues.groups import ConsumerGroup
from fluxmq.queues.states import QueueState

Read = Callable[[int, int], Batch]
"""Reads the batch of a queue (id) that holds an offset."""


class RoundRobin:
    """The ready consumers of a group. The first of the highest priority present is next."""

    __slots__ = ("_by_priority", "_ranks")

    def __init__(self) -> None:
        self._by_priority: dict[int, deque[GroupConsumer]] = {}
        self._ranks: list[int] = []
        """Priorities present, negated, so that the first is the highest."""

    def __bool__(self) -> bool:
        return bool(self._ranks)

    def __iter__(self) -> Iterator[GroupConsumer]:
        """Yield all of them, in no particular order."""
        for line in self._by_priority.values():
            yield from line

    def __contains__(self, consumer: GroupConsumer) -> bool:
        return consumer in self._by_priority.get(consumer.priority, ())

    def append(self, consumer: GroupConsumer) -> None:
        """Queue the consumer behind its equals."""
        self._line(consumer.priority).append(consumer)

    def appendleft(self, consumer: GroupConsumer) -> None:
        """Queue the consumer before its equals."""
        self._line(consumer.priority).appendleft(consumer)

    def popleft(self) -> GroupConsumer:
        """Remove and return the next consumer."""
        priority = -self._ranks[0]
        line = self._by_priority[priority]
        consumer = line.popleft()
        if not line:
            self._drop(priority)
        return consumer

    def remove(self, consumer: GroupConsumer) -> None:
        """Remove a waiting consumer."""
        line = self._by_priority[consumer.priority]
        line.remove(consumer)
        if not line:
            self._drop(consumer.priority)

    def rivals(self, consumer: GroupConsumer) -> bool:
        """Return whether others of the consumer's priority wait."""
        return consumer.priority in self._by_priority

    def _line(self, priority: int) -> deque[GroupConsumer]:
        line = self._by_priority.get(priority)
        if line is None:
            line = self._by_priority[priority] = deque()
            insort(self._ranks, -priority)
        return line

    def _drop(self, priority: int) -> None:
        del self._by_priority[priority]
        self._ranks.remove(-priority)


class GroupDispatcher(ABC):
    """One group of one queue, as its leader serves it."""

    def __init__(self, queue: QueueState, group: ConsumerGroup, read: Read) -> None:
        self.queue = queue
        self.group = group
        self.consumers: dict[int, GroupConsumer] = {}
        self.waiting = RoundRobin()
        self.wanted = Filter(group.filter, queue.name) if group.filter else None
        self._read = read
        self._batch: Batch | None = None

    @property
    def under_way(self) -> bool:
        """True while claims are proposed and not yet applied."""
        return False

    def feed(self, consumer: GroupConsumer) -> bool:
        """Queue a consumer for messages if it has room; return whether it does."""
        if not consumer.active or self._available_credit(consumer) <= 0:
            return False
        if not consumer.waiting:
            consumer.waiting = True
            self.waiting.append(consumer)
        return True

    def remove(self, consumer: GroupConsumer) -> None:
        """Remove a consumer that is gone."""
        self.consumers.pop(consumer.holder, None)
        # It is not queued while it is served, and an error may have ended that.
        if consumer in self.waiting:
            self.waiting.remove(consumer)
        consumer.active = consumer.waiting = False
        consumer.unacked.clear()
        consumer.overdue.clear()

    def moved(self) -> None:
        """Follow a seek: the cursor was set and everything pending forgotten."""
        for consumer in self.consumers.values():
            consumer.unacked.clear()
            consumer.overdue.clear()
            self.feed(consumer)

    def run(self, step: Step, now: int, budget: int) -> int:
        """Hand out at most `budget` messages; return how many."""
        given = 0
        waiting = self.waiting
        while waiting and given < budget and step.bytes_left:
            consumer = waiting.popleft()  # and stays marked as ready while it is served
            available_credit = self._available_credit(consumer)
            if available_credit <= 0:
                consumer.waiting = False
                continue
            share = min(available_credit, budget - given)
            if waiting.rivals(consumer):
                share = min(share, self.queue.config.claim_batch)
            got = self._serve(step, consumer, share, now)
            given += got
            if got < share:
                if got:
                    waiting.append(consumer)  # the next one belongs to another member
                else:
                    waiting.appendleft(consumer)
                break
            consumer.waiting = False
            self.feed(consumer)
        if not step.bytes_left:
            step.more = step.more or self.can_give()
        return given

    @abstractmethod
    def next_due(self) -> int | None:
        """Return when something is due."""

    def rest(self) -> None:
        """End the run: a waiting group keeps no batch in memory."""
        self._batch = None

    @abstractmethod
    def can_give(self) -> bool:
        """Return whether a consumer has room and there may be something to give at once."""

    def spare(self) -> int:
        """Return how many messages beyond those present would be handed out at once."""
        return 0

    def _available_credit(self, consumer: GroupConsumer) -> int:
        """Return how many messages a consumer may be given now."""
        return consumer.available_credit

    @abstractmethod
    def _serve(self, step: Step, consumer: GroupConsumer, share: int, now: int) -> int:
        """Give one consumer up to `share` messages; return how many."""

    def batch_at(self, offset: int) -> Batch:
        """Return the batch that holds an offset."""
        batch = self._batch
        if batch is None or not batch.base_offset <= offset < batch.base_offset + batch.count:
            batch = self._batch = self._read(self.queue.id, offset)
        return batch

"""The leader's side of one browser: it reads the ready messages of a work queue, and takes none.

Nothing is claimed and nothing replicated: the position is the browser's own, in memory, and only
moves up. Each message is shown at most once, in the order of offsets: one that returns to the queue
behind the position is not. The shown messages are those that a consumer without a group would be
given: held, delayed and expired ones are passed over.
"""

from __future__ import annotations

from collections.abc import Iterator

from fluxmq.queues.consumers import ConsumerDelivery, GroupConsumer, Step
from fluxmq.queues.group_dispatcher import GroupDispatcher, Read
from fluxmq.queues.limits import SCANNED_MAX
from fluxmq.queues.pending_ledger import NOBODY
from fluxmq.queues.states import QueueState
from fluxmq.queues.verdicts import GIVE, slices

_OWN_GROUP = ""
"""The group of consumers that name none."""


class BrowseDispatcher(GroupDispatcher):
    """One browser. ``cursor``: the offset that it looks at next."""

    def __init__(self, queue: QueueState, read: Read, cursor: int) -> None:
        super().__init__(queue, queue.nobodys, read)
        self.cursor = cursor

    def can_give(self) -> bool:
        """Return whether it has room and there may be something to show."""
        return bool(self.waiting) and self.unseen() > 0

    def next_due(self) -> int | None:
        """Return None: it waits for messages, not for times."""
        return None

    def unseen(self) -> int:
        """Return how many messages it has yet to look at, settled ones among them."""
        return max(0, self.queue.next_offset - max(self.cursor, self.queue.start))

    def _serve(self, step: Step, consumer: GroupConsumer, share: int, now: int) -> int:
        """Show up to `share` messages."""
        self.cursor = max(self.cursor, self.queue.start)
        end = min(self.queue.next_offset, self.cursor + SCANNED_MAX)
        given = 0
        for first, last, attempts in self._ready(end - 1, now):
            given += self._show(step, consumer, (first, last), attempts, share - given, now)
            if given == share or not step.bytes_left:
                return given
        self.cursor = end
        step.more = step.more or end < self.queue.next_offset
        return given

    def _ready(self, last: int, now: int) -> Iterator[tuple[int, int, int]]:
        """Yield the ranges from the cursor to ``last`` that are ready, with their deliveries."""
        group = self.queue.group(_OWN_GROUP) or self.queue.nobodys
        fresh = max(group.cursor, self.queue.start)
        start = self.cursor
        if start < fresh:
            for low, high, state in group.pending.overlapping(start, min(last, fresh - 1)):
                if state.holder == NOBODY and state.due <= now:
                    yield low, high, state.attempts
        if fresh <= last:
            yield max(start, fresh), last, 0

    def _show(
        self,
        step: Step,
        consumer: GroupConsumer,
        ready: tuple[int, int],
        attempts: int,
        share: int,
        now: int,
    ) -> int:
        """Show up to `share` messages of a range, and move the cursor behind what was looked at."""
        first, last = ready
        ttl = self.queue.config.message_ttl
        given = 0
        while first <= last and given < share and step.bytes_left:
            batch = self.batch_at(first)
            base = batch.base_offset
            for low, high, verdict in slices(batch, first - base, now, ttl, None):
                if base + low > last:
                    break
                high = min(high, last - base)
                if verdict == GIVE:
                    count = step.fit(batch, min(high - low + 1, share - given))
                    high = low + count - 1
                    step.deliveries.append(
                        ConsumerDelivery(consumer, batch, low, count, attempts + 1)
                    )
                    consumer.unacked.add(base + low, base + high)
                    consumer.credit -= count
                    given += count
                first = self.cursor = base + high + 1
                if given == share or not step.bytes_left:
                    break
        return given

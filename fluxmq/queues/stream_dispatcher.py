"""The leader's side of one stream group: a shared read cursor, and messages read but unacked.

Only the committed offset is replicated, and lazily: it is the lowest offset that a consumer of the
group may still need. After a restart or a change of leader the group resumes there, so that some
messages come twice and none is missed.
"""

from __future__ import annotations

from heapq import heappop, heappush

from fluxmq.model.batch_format import Batch
from fluxmq.queues import commands
from fluxmq.queues.commands import Range, Verb
from fluxmq.queues.consumers import ConsumerDelivery, GroupConsumer, Step
from fluxmq.queues.group_dispatcher import GroupDispatcher, Read
from fluxmq.queues.groups import ConsumerGroup
from fluxmq.queues.limits import PENDING_RANGES_MAX, SCANNED_MAX
from fluxmq.queues.states import QueueState
from fluxmq.queues.verdicts import EXPIRED, GIVE, PASS, slices


class StreamDispatcher(GroupDispatcher):
    """One stream group. It claims nothing, and has no room to spare: a stream has no such limit."""

    def __init__(self, queue: QueueState, group: ConsumerGroup, read: Read, interval: int) -> None:
        super().__init__(queue, group, read)
        self._interval = interval
        self.cursor = group.cursor
        self._committed = group.cursor
        self._commit_at: int | None = None
        # A heap of due, first, last, and 1 if it was read before: further attempts are not counted.
        self._waiting: list[tuple[int, int, int, int]] = []

    def remove(self, consumer: GroupConsumer) -> None:
        """Remove a consumer that is gone; the others read its unacked messages again."""
        for first, last in consumer.unacked:
            heappush(self._waiting, (0, first, last, 1))
        super().remove(consumer)

    def settle(self, verb: int, pieces: list[Range], now: int, delay: int) -> None:
        """Settle messages of a consumer: refused ones are read again, later or at once."""
        if verb in (Verb.NACK, Verb.RELEASE):
            later = self.queue.config.backoff(1) if delay < 0 else delay
            due = now + later if verb == Verb.NACK else now
            for first, last in pieces:
                heappush(self._waiting, (due, first, last, 1))
        if self._commit_at is None and self.automatic:
            self._commit_at = now + self._interval

    @property
    def automatic(self) -> bool:
        """True while acknowledgements move the committed offset: no consumer commits explicitly."""
        return all(consumer.auto_commit for consumer in self.consumers.values())

    def floor(self) -> int:
        """Return the lowest offset the group may still need."""
        floor = self.cursor
        for consumer in self.consumers.values():
            if consumer.unacked:
                floor = min(floor, consumer.unacked.firsts[0])
        for _, first, _, _ in self._waiting:
            floor = min(floor, first)
        return floor

    def moved(self) -> None:
        """Follow a seek: read on from the new cursor."""
        super().moved()
        self._waiting.clear()
        self.cursor = self._committed = self.group.cursor

    def commit(self, step_commands: list[bytes]) -> None:
        """Propose the floor as the committed offset if it is higher."""
        self._commit_at = None
        floor = self.floor()
        if floor > max(self._committed, self.group.cursor):
            self._committed = floor
            step_commands.append(commands.commit(self.queue.id, self.group.id, floor))

    def run(self, step: Step, now: int, budget: int) -> int:
        """Hand out at most `budget` messages; return how many."""
        self.cursor = max(self.cursor, self.queue.start)
        if self._commit_at is not None and self._commit_at <= now:
            self.commit(step.commands)
        return super().run(step, now, budget)

    def next_due(self) -> int | None:
        """Return when something is due: a commit, or messages to read again."""
        due = self._commit_at
        if self._waiting and self.waiting and (due is None or self._waiting[0][0] < due):
            due = self._waiting[0][0]
        return due

    def can_give(self) -> bool:
        """Return whether a consumer has room and there may be something to give at once."""
        return bool(self.waiting) and bool(self._waiting or self.cursor < self.queue.next_offset)

    def _serve(self, step: Step, consumer: GroupConsumer, share: int, now: int) -> int:
        given = 0
        while given < share and step.bytes_left and self._waiting and self._waiting[0][0] <= now:
            _, first, last, attempts = heappop(self._waiting)
            first = max(first, self.queue.start)
            while given < share and first <= last and step.bytes_left:
                batch = self.batch_at(first)
                end = min(last, batch.base_offset + batch.count - 1, first + share - given - 1)
                end = first + step.fit(batch, end - first + 1) - 1
                self._give(step, consumer, batch, first, end, attempts + 1)
                given += end - first + 1
                first = end + 1
            if first <= last:
                heappush(self._waiting, (0, first, last, attempts))
        return given + self._give_new(step, consumer, share - given, now)

    def _give(
        self,
        step: Step,
        consumer: GroupConsumer,
        batch: Batch,
        first: int,
        last: int,
        attempts: int,
    ) -> None:
        count = last - first + 1
        index = first - batch.base_offset
        step.deliveries.append(ConsumerDelivery(consumer, batch, index, count, attempts))
        consumer.unacked.add(first, last)
        consumer.credit -= count

    def _give_new(self, step: Step, consumer: GroupConsumer, share: int, now: int) -> int:
        """Read from the cursor on; set delayed messages aside, pass over expired ones."""
        given = 0
        end = min(self.queue.next_offset, self.cursor + SCANNED_MAX)
        while given < share and self.cursor < end and step.bytes_left:
            if len(self._waiting) >= PENDING_RANGES_MAX:
                break
            batch = self.batch_at(self.cursor)
            base = batch.base_offset
            for first, last, verdict in slices(batch, self.cursor - base, now, 0, self.wanted):
                if verdict == GIVE:
                    last = min(last, first + share - given - 1)
                    last = first + step.fit(batch, last - first + 1) - 1
                    self._give(step, consumer, batch, base + first, base + last, 1)
                    given += last - first + 1
                elif verdict not in (PASS, EXPIRED):
                    heappush(self._waiting, (verdict, base + first, base + last, 0))
                self.cursor = base + last + 1
                if given == share or not step.bytes_left:
                    break
        return given

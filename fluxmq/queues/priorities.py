"""The leader's side of one work group of a queue with priorities: the highest ready one goes first.

Messages are stored in the order they came. When consumers with room are not given all there is, the
cursor moves over the rest, as if delayed until now: it waits in the machine's pending ranges, which
the leader scans by priority. So no entry and no snapshot holds priorities, and a new leader reads
them from the messages again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from fluxmq.model.batch_format import Batch
from fluxmq.model.properties import PropertyError, PropertyKind, decode
from fluxmq.queues.commands import Range
from fluxmq.queues.consumers import ConsumerDelivery, GroupConsumer, Step
from fluxmq.queues.group_dispatcher import Read
from fluxmq.queues.groups import EXPIRED_AT, ConsumerGroup
from fluxmq.queues.interval_set import IntervalSet
from fluxmq.queues.limits import SCANNED_MAX
from fluxmq.queues.states import QueueState
from fluxmq.queues.verdicts import EXPIRED, GIVE, PASS, slices
from fluxmq.queues.work_dispatcher import WorkDispatcher

READY_MAX: Final = 32_768
"""Ready messages sorted by priority; those behind them wait in the order they came. Bounds one
group's memory and, as each may become a pending range, leaves most of those to consumers."""

_PIECES_MAX: Final = 2_048
"""Ranges of one priority that one run handles: a claim has at most twice as many ranges."""
_KNOWN_MAX: Final = 4_096
"""Property blocks whose priority is cached; publishers use few."""


def priority_of(block: bytes) -> int:
    """Return the priority in a property block, 0 for none."""
    try:
        for kind, value, _ in decode(block):
            if kind is PropertyKind.PRIORITY and isinstance(value, int):
                return value
    except PropertyError:
        return 0  # its consumer will report the malformed block
    return 0


class Bands:
    """Offsets by priority."""

    def __init__(self) -> None:
        self._intervals: dict[int, IntervalSet] = {}
        self.count = 0

    def __bool__(self) -> bool:
        return self.count > 0

    def add(self, priority: int, first: int, last: int) -> None:
        """Add messages of one priority."""
        intervals = self._intervals.get(priority)
        if intervals is None:
            intervals = self._intervals[priority] = IntervalSet()
        self.count += intervals.add(first, last)

    def highest(self) -> tuple[int, Range]:
        """Return the highest priority and its first range. There must be one."""
        priority = max(self._intervals)
        return priority, next(iter(self._intervals[priority]))

    def remove(self, priority: int, first: int, last: int) -> None:
        """Remove messages that were handled."""
        intervals = self._intervals[priority]
        self.count -= sum(high - low + 1 for low, high in intervals.remove(first, last))
        if not intervals:
            del self._intervals[priority]

    def ranges(self) -> IntervalSet:
        """Return all of them, without their priorities."""
        together = IntervalSet()
        for intervals in self._intervals.values():
            for first, last in intervals:
                together.add(first, last)
        return together

    def clear(self) -> None:
        """Forget everything."""
        self._intervals.clear()
        self.count = 0


class PriorityDispatcher(WorkDispatcher):
    """One work group of one queue with priorities, as its leader serves it."""

    def __init__(self, queue: QueueState, group: ConsumerGroup, read: Read) -> None:
        self._bands = Bands()
        self._known: dict[bytes, int] = {}
        self._moving_to = 0
        """Target of an in-flight claim that moves the cursor over messages without delivering them."""
        self._moving = 0
        """Number of those messages that are then ready."""
        super().__init__(queue, group, read)

    def begin_again(self) -> None:
        """Rebuild the sets of waiting messages."""
        self._bands.clear()
        self._moving_to = self._moving = 0
        super().begin_again()

    def may_give(self) -> bool:
        """Return whether there may be something to give, now or once in-flight claims are
        applied."""
        return self._is_moving or super().may_give()

    def _some_wait(self) -> bool:
        """Return whether messages wait for a consumer with room."""
        return bool(self._bands) or self._cursor < self.queue.next_offset

    def ready(self) -> int:
        """Return how many messages are neither held nor being claimed."""
        return super().ready() + (self._moving if self._is_moving else 0)

    @property
    def _is_moving(self) -> bool:
        return self.group.cursor < self._moving_to

    def _take_up(self, first: int, last: int, attempts: int) -> None:
        """Sort messages that wait for ready consumers by priority."""
        for low, high, priority in self._sorted(first, last):
            self._bands.add(priority, low, high)

    def _sorted(self, first: int, last: int) -> Iterator[tuple[int, int, int]]:
        """Yield messages in ranges of one priority."""
        while first <= last:
            batch = self.batch_at(first)
            end = min(last, batch.base_offset + batch.count - 1)
            if batch.uniform_properties:
                yield first, end, self._priority(batch, 0)
            else:
                for offset in range(first, end + 1):
                    yield offset, offset, self._priority(batch, offset - batch.base_offset)
            first = end + 1

    def _priority(self, batch: Batch, index: int) -> int:
        block = batch.properties(index)
        priority = self._known.get(block)
        if priority is None:
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            priority = self._known[block] = priority_of(block)
        return min(priority, self.queue.config.max_priority)

    def _serve(self, step: Step, consumer: GroupConsumer, share: int, now: int) -> int:
        """Give one consumer up to `share` messages, the highest priority first."""
        new = _New(self._cursor)
        fresh = self._cursor < self.queue.next_offset and not self._is_moving
        if fresh and self._bands.count < READY_MAX and self._may_claim() and self._may_run_ahead():
            self._look_at_new(new, now)
        given = 0
        while given < share and step.bytes_left and (self._bands or new.ready):
            old = self._bands.highest() if self._bands else None
            if old is not None and (not new.ready or old[0] >= new.ready.highest()[0]):
                priority, hint = old  # first come, first served among equals
                count, done = self._give_again(step, consumer, hint, share - given, now)
                self._bands.remove(priority, hint[0], done)
            else:
                priority, (first, last) = new.ready.highest()
                batch = self.batch_at(first)
                last = min(last, batch.last_offset, first + share - given - 1)
                count = step.fit(batch, last - first + 1)
                last = first + count - 1
                new.ready.remove(priority, first, last)
                new.given.add(first, last)
                self._give(step, consumer, batch, first, count)
            given += count
        if new.position > self._cursor:
            self._pass_over(step, consumer, new)
        return given

    def _look_at_new(self, new: _New, now: int) -> None:
        """Sort messages from the cursor on."""
        end = min(self.queue.next_offset, new.position + SCANNED_MAX)
        ttl = self.queue.config.message_ttl
        while new.position < end and new.pieces < _PIECES_MAX and new.ready.count < READY_MAX:
            batch = self.batch_at(new.position)
            base = batch.base_offset
            index = new.position - base
            for first, last, verdict in slices(batch, index, now, ttl, self.wanted, True):
                new.pieces += 1
                new.position = base + last + 1
                if verdict == GIVE:
                    for low, high, priority in self._sorted(base + first, base + last):
                        new.ready.add(priority, low, high)
                        new.pieces += 1
                        if new.pieces >= _PIECES_MAX:
                            new.position = high + 1
                            break
                elif verdict != PASS:
                    when = EXPIRED_AT if verdict == EXPIRED else verdict
                    new.others.append((base + first, base + last, when))
                if new.pieces >= _PIECES_MAX:
                    break

    def _give(
        self, step: Step, consumer: GroupConsumer, batch: Batch, first: int, count: int
    ) -> None:
        """Give new messages to a consumer."""
        consumer.credit -= count
        if not (consumer.automatic and consumer.taking):
            consumer.unacked.add(first, first + count - 1)
        step.deliveries.append(
            ConsumerDelivery(consumer, batch, first - batch.base_offset, count, 1)
        )

    def _pass_over(self, step: Step, consumer: GroupConsumer, new: _New) -> None:
        """Claim the new messages given; the others wait, and are taken up when that is applied."""
        waiting = new.ready.ranges()
        if waiting:
            self._moving_to, self._moving = new.position, new.ready.count
            new.others += [(first, last, 0) for first, last in waiting]
        ranges = list(new.given)
        holder = consumer.holder if ranges else 0
        others = sorted(new.others)
        self._propose_new(step, holder, new.position, ranges, others, consumer.automatic)
        if new.position < self.queue.next_offset:
            step.more = True


class _New:
    """Messages that one run found beyond the cursor. `pieces`: ranges examined."""

    def __init__(self, position: int) -> None:
        self.position = position
        self.ready = Bands()
        self.given = IntervalSet()
        self.others: list[tuple[int, int, int]] = []
        self.pieces = 0

"""The leader's side of one work group: consumers with room, redeliveries, in-flight claims.

The dispatcher runs ahead of the machine: its cursor includes claims that are proposed but not yet
applied, so that nothing is handed out twice in between. It learns a claim's outcome when it is
applied; after one that failed in part (a limit dropped the messages, a seek came first), the
dispatcher waits until no claim is in flight, and then starts again from the machine's state.

Offsets to redeliver are only hints: each is looked up in the machine's pending ranges before it is
claimed, so a stale hint does no harm.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Final

from fluxmq.model.batch_format import EXPIRY, Batch
from fluxmq.queues import commands
from fluxmq.queues.commands import DeadLetterReason, Range
from fluxmq.queues.consumers import ConsumerDelivery, GroupConsumer, Step
from fluxmq.queues.dead_lettering import DeadLettering
from fluxmq.queues.group_dispatcher import GroupDispatcher, Read
from fluxmq.queues.groups import EXPIRED_AT, ConsumerGroup
from fluxmq.queues.inflight_claims import InflightClaims
from fluxmq.queues.interval_set import IntervalSet
from fluxmq.queues.limits import (
    DEAD_RANGES_MAX,
    PENDING_RANGES_MAX,
    SCANNED_MAX,
    UNSETTLED_MAX,
)
from fluxmq.queues.pending_ledger import NOBODY, PendingState, Piece
from fluxmq.queues.states import NOBODYS_GROUP, QueueState
from fluxmq.queues.verdicts import EXPIRED, GIVE, PASS, expired, expires_at, slices

_DUE_MAX: Final = 1_024
"""Ranges taken from the timers in one run."""
_ASKED_MAX: Final = 256
"""Waiting consumers whose room an append counts: more would make no real difference."""
_COMMAND_RANGES: Final = 4_096
"""Ranges in one claim; a run makes several commands rather than a larger one."""


class WorkDispatcher(GroupDispatcher):
    """One work group. In-flight claims are known; the children keep what waits to be given."""

    def __init__(self, queue: QueueState, group: ConsumerGroup, read: Read) -> None:
        super().__init__(queue, group, read)
        self._head = (-1, 0, 0)  # a cursor, a time to live, and when the message there expires
        self._cursor = group.cursor
        self._inflight_claims = InflightClaims()
        self._refused = False
        self._told: dict[GroupConsumer, bool] = {}
        """Consumers that know whether they are the single active one."""
        self._told_consumers = -1
        """Number of consumers at the last telling; -1 since one has gone or stopped."""
        self.dead_lettering = DeadLettering(queue, group)
        group.pending.arm_all()

    # --- consumers ---------------------------------------------------------------------------------------------

    def remove(self, consumer: GroupConsumer) -> None:
        """Remove a consumer that is gone."""
        super().remove(consumer)
        self._told.pop(consumer, None)
        self.pass_on()

    def pass_on(self) -> None:
        """Serve the next consumer after one has gone or stopped, with a single active consumer."""
        if self.queue.config.single_active_consumer:
            self._told_consumers = -1
            active = self.active
            if active is not None:
                self.feed(active)

    @property
    def active(self) -> GroupConsumer | None:
        """The active consumer under single active consumer: the oldest that still counts."""
        return next((each for each in self.consumers.values() if each.counts), None)

    def _tell_activity(self, step: Step) -> None:
        """Tell consumers that ask for it whether they are the active one, when that has changed."""
        self._told_consumers = len(self.consumers)
        active = self.active
        for consumer in self.consumers.values():
            is_active = consumer is active
            if consumer.terms.activity and self._told.get(consumer) is not is_active:
                self._told[consumer] = is_active
                step.activity.append((consumer, is_active))

    def _available_credit(self, consumer: GroupConsumer) -> int:
        """Return how many messages a consumer may be given now."""
        if not self.queue.config.single_active_consumer or consumer.taking:
            return consumer.available_credit
        return consumer.available_credit if consumer is self.active else 0

    # --- the machine's results ----------------------------------------------------------------------------------

    def applied_claim(self, whole: bool) -> None:
        """Note that the oldest in-flight claim or dead-lettering, always the dispatcher's, was
        applied."""
        self._inflight_claims.applied()
        if not whole:
            self._refused = True
        if not self._inflight_claims:
            if self._refused:
                self.begin_again()
            self._cursor = self.group.cursor

    def joined_claims(self, target: int) -> None:
        """Note that the claim up to `target` was merged with the one before; both were new."""
        self._inflight_claims.join(target)

    def begin_again(self) -> None:
        """Rebuild the set of redeliveries from the machine's ranges."""
        self._refused = False
        self.group.pending.arm_all()
        self._let_go_of_lost()

    def _let_go_of_lost(self) -> None:
        """Take messages of refused claims from their consumers, whose room they no longer use."""
        owned = {holder: IntervalSet() for holder in self.consumers}
        for first, last, state in self.group.pending.overlapping(0, self.queue.next_offset):
            if state.holder in owned:
                owned[state.holder].add(first, last)
        for consumer in self.consumers.values():
            if consumer.automatic:
                continue  # the machine knows nothing of what it was given
            for unacked_first, unacked_last in list(consumer.unacked):
                for first, last in owned[consumer.holder].missing(unacked_first, unacked_last):
                    consumer.unacked.remove(first, last)
                    consumer.overdue.remove(first, last)
            self.feed(consumer)

    def moved(self) -> None:
        """Follow a seek: the cursor was set and everything pending forgotten."""
        super().moved()
        self._refused = True
        if not self._inflight_claims:
            self.begin_again()
            self._cursor = self.group.cursor

    # --- one run -----------------------------------------------------------------------------------------------

    def run(self, step: Step, now: int, budget: int) -> int:
        """Hand out at most `budget` messages; return how many."""
        if self.queue.config.single_active_consumer and len(self.consumers) != self._told_consumers:
            self._tell_activity(step)
        self._collect_due(now)
        if self._refused:
            return 0
        self._catch_up()
        given = super().run(step, now, budget)
        all_given = step.bytes_left and not (given >= budget and self.waiting)
        if all_given and self._cursor < self.queue.next_offset:
            self._pass_head(step, now)
        return given

    def next_due(self) -> int | None:
        """Return when something is due: an overdue claim, a delayed message, the head's expiry."""
        due = self.group.pending.next_due()
        dead = self.group.dead.next_due()
        if dead is not None and (due is None or dead < due):
            due = dead
        head = self._head_expires_at()
        if head and (due is None or head < due):
            due = head
        return due

    def can_give(self) -> bool:
        """Return whether a consumer has room and there may be something to give."""
        return bool(self.waiting) and not self._refused and self._some_wait()

    def _some_wait(self) -> bool:
        """Return whether messages wait for a consumer with room."""
        return self._cursor < self.queue.next_offset

    @property
    def under_way(self) -> bool:
        """True while claims are proposed and not yet applied."""
        return bool(self._inflight_claims)

    def spare(self) -> int:
        """Return how many messages beyond those present would be handed out at once."""
        if self._refused or not self.waiting:
            return 0
        available_credit = sum(
            self._available_credit(consumer) for consumer in islice(self.waiting, _ASKED_MAX)
        )
        return min(max(0, available_credit - self.ready()), UNSETTLED_MAX)

    def may_give(self) -> bool:
        """Return whether anything may be given, now or once in-flight claims are applied."""
        if self._refused:
            return True
        return self._some_wait() and self._may_claim()

    def ready(self) -> int:
        """Return how many messages are neither held nor being claimed."""
        group = self.group
        waiting = group.pending.waiting
        if self._inflight_claims and waiting:
            waiting = 0
            for low, high, state in group.pending.overlapping(0, self._cursor):
                if state.holder == NOBODY:
                    free = self._inflight_claims.unclaimed(low, high)
                    waiting += sum(last - first + 1 for first, last in free)
        return max(0, self.queue.next_offset - max(self._cursor, group.cursor)) + waiting

    def _catch_up(self) -> None:
        """Follow the machine's cursor, which moves by itself when messages are dropped."""
        if self.group.id == NOBODYS_GROUP and not self._inflight_claims:
            self._cursor = self.queue.start
        self._cursor = max(self._cursor, self.group.cursor, self.queue.start)

    def _collect_due(self, now: int) -> None:
        """Take from the timers what may be redelivered."""
        due = self.group.pending.next_due()
        if due is None or due > now:
            return
        for first, last, state in self.group.pending.pop_due(now, _DUE_MAX):
            if state.attempts:
                self._let_run_out(state.holder, first, last)
            self._take_up(first, last, state.attempts)

    @abstractmethod
    def _take_up(self, first: int, last: int, attempts: int) -> None:
        """Queue messages for ready consumers: returned ones, and delayed ones (no attempts)."""

    def _may_run_ahead(self) -> bool:
        return self._inflight_claims.may_reach(
            self._cursor - max(self.group.cursor, self.queue.start)
        )

    def _may_claim(self) -> bool:
        ranges = len(self.group.pending) + self._inflight_claims.ranges + _COMMAND_RANGES
        return ranges <= PENDING_RANGES_MAX and len(self.group.dead) < DEAD_RANGES_MAX

    # --- new messages ------------------------------------------------------------------------------------------

    def _propose_new(
        self,
        step: Step,
        holder: int,
        target: int,
        ranges: list[Range],
        others: list[tuple[int, int, int]],
        automatic: bool = False,
    ) -> None:
        queue, group = self.queue.id, self.group.id
        step.commands.append(
            commands.claim(queue, group, holder, self._cursor, target, ranges, others, automatic)
        )
        self._cursor = target
        self._inflight_claims.add_new(len(ranges) + len(others), target)

    def _pass_head(self, step: Step, now: int) -> None:
        """Pass expired or filtered-out messages at the head, when there are no consumers."""
        if len(self.group.dead) >= DEAD_RANGES_MAX:
            return
        position = self._cursor
        end = min(self.queue.next_offset, position + SCANNED_MAX)
        ttl = self.queue.config.message_ttl
        others: list[tuple[int, int, int]] = []
        stopped = False
        while position < end and not stopped and len(others) < _COMMAND_RANGES:
            batch = self.batch_at(position)
            base = batch.base_offset
            for first, last, verdict in slices(batch, position - base, now, ttl, self.wanted):
                if verdict not in (PASS, EXPIRED) or len(others) == _COMMAND_RANGES:
                    stopped = True
                    break
                if verdict == EXPIRED:
                    others.append((base + first, base + last, EXPIRED_AT))
                position = base + last + 1
        if position > self._cursor:
            self._propose_new(step, 0, position, [], others)
            step.more = step.more or (not stopped and position < self.queue.next_offset)

    def _head_expires_at(self) -> int:
        """Return when the message at the cursor expires; 0 for never, or when all were given."""
        if self._cursor >= self.queue.next_offset or self._refused:
            return 0
        ttl = self.queue.config.message_ttl
        if self._head[:2] != (self._cursor, ttl):
            batch = self.batch_at(self._cursor)
            when = 0
            if ttl or batch.flags & EXPIRY:
                when = expires_at(batch, self._cursor - batch.base_offset, ttl)
            self._head = (self._cursor, ttl, when)
        return self._head[2]

    # --- messages given before, or delayed ---------------------------------------------------------------------

    def _give_again(
        self, step: Step, consumer: GroupConsumer, hint: Range, share: int, now: int
    ) -> tuple[int, int]:
        """Claim what can be of a hint; return how many messages, and the last offset used."""
        limit = self.queue.config.delivery_limit
        ranges: list[Range] = []
        dead_lettered: dict[int, list[Range]] = {}
        given = 0
        done = hint[1]
        for low, high, state in self._claimable(hint, now):
            if limit and state.attempts >= limit:
                dead_lettered.setdefault(DeadLetterReason.DELIVERY_LIMIT, []).append((low, high))
                self._take_from(state, low, high)
                continue
            for first, last, batch, verdict in self._redelivered_slices(low, high, now):
                if verdict == EXPIRED:
                    dead_lettered.setdefault(DeadLetterReason.EXPIRED, []).append((first, last))
                    self._take_from(state, first, last)
                    continue
                count = step.fit(batch, min(last - first + 1, share - given))
                last = first + count - 1
                index = first - batch.base_offset
                self._take_from(state, first, last)
                step.deliveries.append(
                    ConsumerDelivery(consumer, batch, index, count, state.attempts + 1)
                )
                if not (consumer.automatic and consumer.taking):
                    consumer.unacked.add(first, last)
                _extend(ranges, first, last)
                given += count
                if given == share or len(ranges) == _COMMAND_RANGES or not step.bytes_left:
                    done = last
                    break
            if given == share or len(ranges) == _COMMAND_RANGES or not step.bytes_left:
                break
        consumer.credit -= given
        self._propose_again(step, consumer, ranges, dead_lettered)
        return given, done

    def _claimable(self, hint: Range, now: int) -> Iterator[Piece]:
        """Yield the parts of a hint that are due and not already being claimed."""
        for low, high, state in self.group.pending.overlapping(*hint):
            if state.due <= now:
                for first, last in self._inflight_claims.unclaimed(low, high):
                    yield first, last, state

    def _redelivered_slices(
        self, low: int, high: int, now: int
    ) -> Iterator[tuple[int, int, Batch, int]]:
        """Yield offsets `low` to `high` by batch and verdict."""
        ttl = self.queue.config.message_ttl
        while low <= high:
            batch = self.batch_at(low)
            base = batch.base_offset
            end = min(high, base + batch.count - 1)
            for first, last, verdict in expired(batch, low - base, end - base, now, ttl):
                yield base + first, base + last, batch, verdict
            low = end + 1

    def _take_from(self, state: PendingState, first: int, last: int) -> None:
        """Take these messages from their holder, if any."""
        if state.holder != NOBODY:
            holder = self.consumers.get(state.holder)
            if holder is not None:
                holder.unacked.remove(first, last)
                holder.overdue.remove(first, last)
                self.feed(holder)

    def _let_run_out(self, holder: int, first: int, last: int) -> None:
        """Mark messages overdue: their timeout has passed, and they use no more room."""
        consumer = self.consumers.get(holder)
        if consumer is not None:
            for low, high in consumer.unacked.within(first, last):
                consumer.overdue.add(low, high)
            self.feed(consumer)

    def _propose_again(
        self,
        step: Step,
        consumer: GroupConsumer,
        ranges: list[Range],
        dead_lettered: dict[int, list[Range]],
    ) -> None:
        queue, group = self.queue.id, self.group.id
        for reason, gone in dead_lettered.items():
            step.commands.append(commands.dead_letter(queue, group, reason, gone))
            self._inflight_claims.add_again(gone)
        if ranges:
            cursor = self._cursor
            step.commands.append(
                commands.claim(
                    *(queue, group, consumer.holder, cursor, cursor, ranges),
                    automatic=consumer.automatic,
                )
            )
            self._inflight_claims.add_again(ranges)


class FifoDispatcher(WorkDispatcher):
    """One work group of a queue without priorities: redeliveries, then delayed messages, then new
    ones."""

    def __init__(self, queue: QueueState, group: ConsumerGroup, read: Read) -> None:
        self._again = IntervalSet()
        self._delayed: deque[Range] = deque()
        super().__init__(queue, group, read)

    def begin_again(self) -> None:
        """Rebuild the set of redeliveries from the machine's ranges."""
        self._again.clear()
        self._delayed.clear()
        super().begin_again()

    def _some_wait(self) -> bool:
        """Return whether messages wait for a consumer with room."""
        return bool(self._again or self._delayed or self._cursor < self.queue.next_offset)

    def _take_up(self, first: int, last: int, attempts: int) -> None:
        """Queue messages for ready consumers: returned ones, and delayed ones (no attempts)."""
        if attempts:
            self._again.add(first, last)
        else:
            self._delayed.append((first, last))

    def _serve(self, step: Step, consumer: GroupConsumer, share: int, now: int) -> int:
        """Give one consumer up to `share` messages: redeliveries, then delayed, then new ones."""
        given = 0
        while self._again and given < share and step.bytes_left:
            first, last = next(iter(self._again))
            done = self._give_again(step, consumer, (first, last), share - given, now)
            self._again.remove(first, done[1])
            given += done[0]
        while self._delayed and given < share and step.bytes_left:
            first, last = self._delayed.popleft()
            count, done_last = self._give_again(step, consumer, (first, last), share - given, now)
            if done_last < last:
                self._delayed.appendleft((done_last + 1, last))
            given += count
        if not step.bytes_left or given == share:
            return given
        if self._cursor < self.queue.next_offset and self._may_claim() and self._may_run_ahead():
            given += self._give_new(step, consumer, share - given, now)
        return given

    def _give_new(self, step: Step, consumer: GroupConsumer, share: int, now: int) -> int:
        """Claim new messages from the cursor on."""
        cursor = position = self._cursor
        end = min(self.queue.next_offset, cursor + SCANNED_MAX)
        ttl = self.queue.config.message_ttl
        ranges: list[Range] = []
        others: list[tuple[int, int, int]] = []
        given = 0
        wanted = self.wanted
        while (
            given < share
            and position < end
            and len(ranges) + len(others) < _COMMAND_RANGES
            and step.bytes_left
        ):
            batch = self.batch_at(position)
            base = batch.base_offset
            for first, last, verdict in slices(batch, position - base, now, ttl, wanted, True):
                if verdict == GIVE:
                    count = step.fit(batch, min(last - first + 1, share - given))
                    step.deliveries.append(ConsumerDelivery(consumer, batch, first, count, 1))
                    last = first + count - 1
                    _extend(ranges, base + first, base + last)
                    given += count
                elif verdict != PASS:
                    when = EXPIRED_AT if verdict == EXPIRED else verdict
                    others.append((base + first, base + last, when))
                position = base + last + 1
                if given == share or len(ranges) + len(others) >= _COMMAND_RANGES:
                    break
                if not step.bytes_left:
                    break
        if not (consumer.automatic and consumer.taking):
            for first, last in ranges:
                consumer.unacked.add(first, last)
        consumer.credit -= given
        holder = consumer.holder if ranges else 0
        self._propose_new(step, holder, position, ranges, others, consumer.automatic)
        if given < share and position < self.queue.next_offset:
            step.more = True
        return given


def _extend(ranges: list[Range], first: int, last: int) -> None:
    """Append a range to ordered ranges, merging it with the last where they touch."""
    if ranges and ranges[-1][1] + 1 == first:
        ranges[-1] = (ranges[-1][0], last)
    else:
        ranges.append((first, last))

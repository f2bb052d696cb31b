"""The leader's volatile side of one replication group: consumers, credit, in-flight claims, timers.

It decides which commands to propose and hands out messages at once, before their claims are
applied; the machine's results (`applied`) are then merged. Everything here is lost with the
leadership and rebuilt from the machine: no promise depends on it.

The host calls ``due`` each tick for the queues to `run`: because of a timer, an applied entry, a
settlement that made room, or work left over.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Final

from fluxmq.queues import commands
from fluxmq.queues.attachments import Attachments
from fluxmq.queues.consumers import Step
from fluxmq.queues.group_dispatcher import GroupDispatcher, Read
from fluxmq.queues.groups import TEMPORARY
from fluxmq.queues.limits import RUN_BYTES_MAX
from fluxmq.queues.machine import RAISED_VERSION, Machine
from fluxmq.queues.possibly_delivered import PossiblyDelivered
from fluxmq.queues.results import Applied
from fluxmq.queues.states import NOBODYS_GROUP, QueueState
from fluxmq.queues.work_dispatcher import WorkDispatcher

AUTO_COMMIT_INTERVAL: Final = 5_000_000
"""Default µs between a stream consumer's acknowledgement and its commit."""

SWEEP_INTERVAL: Final = 1_000_000
"""Minimum µs between two sweeps of one queue, which apply what time alone decides."""


SHORTEN_DELAY: Final = 10_000
"""Microseconds before a queue that is too long is checked again, when claims are in flight."""

TIMER_GRANULE: Final = 1_000
"""Minimum µs between two runs of a queue for its timers alone, so that failures are not retried in
a loop."""

STALE_TIMERS_MAX: Final = 1_024
"""Stale timers kept besides as many as are live: those of deleted queues would stay until they are
due, maybe days later."""


class Dispatch:
    """Hands the messages of a group's queues to its `consumers`; used by the leader only.

    `read` returns the batch of a queue (id) that holds an offset and may raise the errors of the
    host's log. `auto_commit_interval` in µs is for streams.
    """

    def __init__(
        self, machine: Machine, read: Read, auto_commit_interval: int = AUTO_COMMIT_INTERVAL
    ) -> None:
        self.consumers = Attachments(machine, read, auto_commit_interval)
        self._machine = machine
        self._woken = self.consumers.woken
        self._term = 0
        self._alarms: dict[int, int] = {}
        self._timers: list[tuple[int, int]] = []
        self._swept: dict[int, int] = {}
        self._dead_retry: dict[int, int] = {}
        self._possibly_delivered = PossiblyDelivered()
        self._shortened: dict[int, int] = {}
        """By queue id: its next offset when it was last found too long."""

    # --- leadership --------------------------------------------------------------------------------------------

    def lead(self, term: int, others: int = 0) -> list[bytes]:
        """Start leading in `term`, with all earlier entries applied. `others`: the time in µs where
        another node may have led until now and handed out messages that no entry shows; 0 where
        this one is alone.

        Return the commands that remove the members of earlier leaders, so that their messages are
        redelivered at once. Every queue is due then.
        """
        self.reset()
        self._term = term
        self.consumers.reset(term)
        left: list[bytes] = []
        if others:
            self._possibly_delivered.begin(self._machine, others)
        if self._machine.version < RAISED_VERSION:
            left.append(commands.raise_version(RAISED_VERSION))
        for queue in self._machine.queues.values():
            self._woken[queue.id] = None
            for group in queue.groups.values():
                if group.name.startswith(TEMPORARY):
                    left.append(commands.delete_group(queue.id, group.id))
                    continue
                left += [commands.leave(queue.id, group.name, holder) for holder in group.members]
        return left

    def reset(self) -> None:
        """Stop leading: forget every consumer and everything volatile."""
        self._term = 0
        self.consumers.reset(0)
        self._alarms.clear()
        self._timers.clear()
        self._swept.clear()
        self._dead_retry.clear()
        self._shortened.clear()
        self._possibly_delivered.clear()

    # --- running -----------------------------------------------------------------------------------------------

    def run(
        self, queue_id: int, now: int, messages_max: int, bytes_max: int = RUN_BYTES_MAX
    ) -> Step:
        """Hand out all that can be, at most `messages_max` messages and as many dead ones.

        Their bytes are at most `bytes_max`, unless a single message is larger.

        `now` in µs, not after the time of the entry that will hold the step's commands.
        """
        step = Step(bytes_left=bytes_max)
        queue = self._machine.queues.get(queue_id)
        if queue is None or queue.closed:
            return step
        now = max(now, self._machine.time)  # the host's clock may have been set back
        self.consumers.activate(queue)
        retry = self._dead_retry.get(queue_id) if self._dead_retry else None
        if retry is not None and retry <= now:
            del self._dead_retry[queue_id]
        else:
            retry = None
        given = dead = 0
        served = self.consumers.served(queue)
        ownerless = queue.owns_itself()
        for id_, dispatcher in served.items():
            if dispatcher.group.dead.count and isinstance(dispatcher, WorkDispatcher):
                if retry is not None:
                    dispatcher.dead_lettering.retry()
                dead += dispatcher.dead_lettering.hand_out(
                    step, now, messages_max - dead, dispatcher.batch_at
                )
            if id_ == NOBODYS_GROUP and not ownerless:
                continue
            if given < messages_max:
                at = len(step.deliveries)
                given += dispatcher.run(step, now, messages_max - given)
                if self._possibly_delivered:
                    self._possibly_delivered.mark(queue_id, id_, step, at)
            step.more = step.more or (given >= messages_max and dispatcher.can_give())
        self._sweep(queue, step, now)
        if step.more:
            self._woken[queue_id] = None
        self._set_alarm(queue, served, ownerless, now)
        if queue.bounded:
            self._shorten(queue, step, now)
        return step

    def due(self, now: int) -> list[int]:
        """Return the queue ids to run now; each is named once until it is due again."""
        timers, alarms = self._timers, self._alarms
        while timers and timers[0][0] <= now:
            time, queue_id = heappop(timers)
            if alarms.get(queue_id) == time:
                del alarms[queue_id]
                self._woken[queue_id] = None
        woken = [queue_id for queue_id in self._woken if queue_id in self._machine.queues]
        self._woken.clear()
        return woken

    def next_due(self) -> int | None:
        """Return the time of the next timer in µs; 0 when something is due at once, None without
        any."""
        if self._woken:
            return 0
        timers, alarms = self._timers, self._alarms
        while timers and alarms.get(timers[0][1]) != timers[0][0]:
            heappop(timers)
        return timers[0][0] if timers else None

    def applied(self, applied: Applied) -> list[int]:
        """Merge the results of an entry applied to the machine. Return the queues to run."""
        for queue_id, _ in applied.deleted:
            self._forget_queue(queue_id)
        for queue_id in applied.voided:
            self._forget_queue(queue_id)
        ours = applied.term == self._term
        for queue_id, group_id, whole in applied.claims:
            dispatcher = self.consumers.dispatcher(queue_id, group_id)
            if isinstance(dispatcher, WorkDispatcher) and ours:
                dispatcher.applied_claim(whole)
                due = dispatcher.group.pending.next_due()
                if due is not None:
                    self._alarm(queue_id, due)
                if dispatcher.can_give():
                    self._woken[queue_id] = None
        for queue_id, group_id in applied.moved:
            moved = self.consumers.dispatcher(queue_id, group_id)
            if moved is not None:
                moved.moved()
        self._woken.update(applied.woken)
        return list(applied.woken)

    def joined(self, queue_id: int, group_id: int, target: int) -> None:
        """Note that a group's claim up to `target` was merged with the one before: both apply at
        once."""
        dispatcher = self.consumers.dispatcher(queue_id, group_id)
        if isinstance(dispatcher, WorkDispatcher):
            dispatcher.joined_claims(target)

    def retry_dead(self, queue_id: int, at: int) -> None:
        """Hand out all dead messages of the queue again at `at` µs: they could not be appended."""
        self._dead_retry[queue_id] = at
        self._alarm(queue_id, at)

    # --- inside ------------------------------------------------------------------------------------------------

    def _forget_queue(self, queue_id: int) -> None:
        self.consumers.forget(queue_id)
        self._possibly_delivered.forget(queue_id)
        for table in (self._alarms, self._swept, self._dead_retry, self._shortened):
            table.pop(queue_id, None)

    def _sweep(self, queue: QueueState, step: Step, now: int) -> None:
        """Propose a sweep when one is due."""
        at = self._sweep_at(queue)
        if at is not None and at <= now:
            step.commands.append(commands.sweep(queue.id))
            self._swept[queue.id] = now

    def _shorten(self, queue: QueueState, step: Step, now: int) -> None:
        """Drop messages stored beyond a length limit for waiting consumers that then did not take
        them.

        The machine knows what was taken when no claim is in flight.
        """
        limited = queue.length_limited or queue.config.max_length_bytes
        if not limited or step.more or self._shortened.get(queue.id) == queue.next_offset:
            return
        if not queue.exact or not queue.is_too_long():
            return
        if any(dispatcher.under_way for dispatcher in self.consumers.served(queue).values()):
            self._alarm(queue.id, now + SHORTEN_DELAY)
        else:
            self._shortened[queue.id] = queue.next_offset
            step.commands.append(commands.sweep(queue.id))

    def _sweep_at(self, queue: QueueState) -> int | None:
        """Return when the queue is to be swept next."""
        config = queue.config
        if not (config.expires or config.group_expires or config.retention_age):
            return None
        times = [time for time in (queue.expires_at(),) if time is not None]
        if queue.config.group_expires:
            wait = queue.config.group_expires
            idle = [group for group in queue.groups.values() if not group.members]
            times += [group.idle_since + wait for group in idle]
        if queue.config.retention_age and queue.start < queue.next_offset:
            oldest = queue.log_index.next_time(queue.start)
            if oldest is not None:
                times.append(oldest + queue.config.retention_age)
        if not times:
            return None
        swept = self._swept.get(queue.id)
        return min(times) if swept is None else max(min(times), swept + SWEEP_INTERVAL)

    def _set_alarm(
        self, queue: QueueState, served: dict[int, GroupDispatcher], ownerless: bool, now: int
    ) -> None:
        """Set the queue's next timer after a run."""
        due = self._sweep_at(queue)
        retry = self._dead_retry.get(queue.id)
        if retry is not None and (due is None or retry < due):
            due = retry
        for id_, dispatcher in served.items():
            if id_ != NOBODYS_GROUP or ownerless:
                own = dispatcher.next_due()
                if own is not None and (due is None or own < due):
                    due = own
            dispatcher.rest()
        self._alarms.pop(queue.id, None)
        if due is not None:
            self._alarm(queue.id, due if due > now else now + TIMER_GRANULE)

    def _alarm(self, queue_id: int, time: int) -> None:
        """Run a queue at `time` at the latest."""
        known = self._alarms.get(queue_id)
        if known is not None and known <= time:
            return
        self._alarms[queue_id] = time
        heappush(self._timers, (time, queue_id))
        if len(self._timers) > 2 * len(self._alarms) + STALE_TIMERS_MAX:
            self._timers = [(when, of) for of, when in self._alarms.items()]
            heapify(self._timers)

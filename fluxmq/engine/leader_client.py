"""A replicated group as seen by its clients on this shard, whichever node leads it.

Requests go to the leader. Appends are kept until they are answered: when leadership moves they are
resent, in order, since their outcome is unknown; they are refused when no leader has answered
within the group's `ack_timeout`. Consumers are reattached when another node leads; their unacked
messages are redelivered, and what they settle in between is refused, never applied here.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet

from fluxmq.engine.leader_handle import Attaching, LeaderHandle
from fluxmq.engine.ports import (
    AppendCallback,
    AttachRequest,
    ConsumerPort,
    GroupClient,
    QueueStats,
    StatusCallback,
)
from fluxmq.model.outcomes import Outcome, QueueOutcome
from fluxmq.queues.origins import Identity
from fluxmq.replication.leaders import Leader

NUMBERS_APART = 1 << 20
"""Distance between the numbers of two appends: the pieces that an append may be split into take the
numbers between.
"""
WAITING_BYTES_MAX = 16 << 20
"""Bytes of batches kept for a leader that has not answered; publishers pause above it, and are
refused above four times as much.
"""

_PARKED = -1


class _Append:
    """An unanswered append, with the deadline at which it is given up. ``sent``: the number of its
    valid sending, 0 while it is unsent, `_PARKED` while its queue moves to another group.
    ``identity``: the one that it came with, if any. ``by_address``: as in `GroupClient.append`.
    """

    __slots__ = ("batch", "by_address", "deadline", "done", "identity", "queue", "sent")

    def __init__(
        self,
        queue: str,
        batch: bytes,
        done: AppendCallback | None,
        deadline: float,
        identity: Identity | None,
        by_address: bool,
    ) -> None:
        self.queue = queue
        self.identity = identity
        self.by_address = by_address
        self.batch = batch
        self.done = done
        self.deadline = deadline
        self.sent = 0


class LeaderClient:
    """Implements ``GroupClient`` for one replicated group.

    ``target`` returns the group's leader, None while it is unknown: a host that answers `MOVED`
    when it cannot tell the outcome of a request, and keeps nothing itself. ``reader`` returns the
    host that delivers a queue's messages to consumers here. ``ack_timeout`` returns how long a
    queue's appends wait, in seconds, ``refusal`` the reason to refuse appends now, 0 if there is
    none (``write_policy: reject``). ``origin`` is a number of this shard's life, which ``numbers``
    completes to names of appends: hosts with one origin share one ``numbers``, so that an append
    keeps its name when its queue moves.
    """

    def __init__(
        self,
        leader: Leader,
        target: Callable[[Leader], GroupClient | None],
        reader: Callable[[Leader, str], GroupClient | None],
        ack_timeout: Callable[[str], float],
        refusal: Callable[[], int] | None,
        origin: int,
        now: Callable[[], float],
        numbers: Iterator[int] | None = None,
    ) -> None:
        self._leader = leader
        self._target_of = target
        self._reader_of = reader
        self._ack_timeout = ack_timeout
        self._refusal = refusal
        self.now = now
        self._origin = origin
        self._numbers = numbers or itertools.count(NUMBERS_APART, NUMBERS_APART)
        self._appends: dict[int, _Append] = {}
        """Unanswered appends, in the order they were made."""
        self._deadlines: dict[float, deque[tuple[float, int]]] = {}
        """Deadlines and numbers of appends, by how long they wait."""
        self._sendings = itertools.count(1)
        self._bytes = 0
        self._unsent = 0
        """Number of unsent appends."""
        self._fenced: dict[str, None] = {}
        """Queues that move to another group: their first appends are retried, the others parked."""
        self._away: dict[str, LeaderClient] = {}
        """Queues that have moved to another group, and that group's host."""
        self._consumers: dict[LeaderHandle, None] = {}
        self.timeouts = 0
        """Number of appends refused because no leader answered in time."""
        leader.listeners.append(self._led)

    @property
    def target(self) -> GroupClient | None:
        """The leader of the group."""
        return self._target_of(self._leader)

    def reader(self, queue: str) -> GroupClient | None:
        """Return the host that delivers a queue's messages here: the leader, or a copy on this
        node.
        """
        return self._reader_of(self._leader, queue)

    @property
    def led(self) -> bool:
        """True while the group has a known leader."""
        return self._leader.peer is not None

    @property
    def above_high_watermark(self) -> bool:
        """True while unacknowledged appends exceed the high watermark."""
        return self._bytes > WAITING_BYTES_MAX

    @property
    def idle(self) -> bool:
        """True when all appends are answered."""
        return not self._appends

    def has_pending(self, queue: str) -> bool:
        """Return whether appends to a queue are unanswered."""
        return any(append.queue == queue for append in self._appends.values())

    # Appends

    def append(
        self,
        queue: str,
        batch: bytes,
        done: AppendCallback | None,
        identity: Identity | None = None,
        by_address: bool = False,
    ) -> bool:
        """Append a batch, under an identity of this shard unless it has one: resent, it counts
        once.
        """
        if self._away and queue in self._away:
            return self._away[queue].append(queue, batch, done, identity, by_address)
        refused = self._refusal() if self._refusal is not None else 0
        if refused:
            if done is not None:
                done(refused)
            return True
        if self._bytes > 4 * WAITING_BYTES_MAX:
            if done is not None:
                done(Outcome.OVER_LIMIT)
            return True
        number = next(self._numbers)
        timeout = self._ack_timeout(queue)
        append = _Append(queue, batch, done, self.now() + timeout, identity, by_address)
        self._deadlines.setdefault(timeout, deque()).append((append.deadline, number))
        behind = self._unsent > 0
        self._appends[number] = append
        self._bytes += len(batch)
        if self._fenced and queue in self._fenced:
            append.sent = _PARKED
            return self._bytes <= WAITING_BYTES_MAX
        self._unsent += 1
        target = None if behind else self.target
        if target is not None and not self._send(target, number, append):
            return False
        return self._bytes <= WAITING_BYTES_MAX

    def _send(self, target: GroupClient, number: int, append: _Append) -> bool:
        sending = append.sent = next(self._sendings)
        self._unsent -= 1

        def answered(reason: int) -> None:
            self._answered(number, sending, reason)

        own = append.identity
        if own is None:
            floor = next(iter(self._appends))
            identity = Identity(self._origin, number, min(floor, number), self._leader.term)
        else:
            identity = Identity(own.origin, own.number, own.floor, self._leader.term)
        return target.append(append.queue, append.batch, answered, identity, append.by_address)

    def _answered(self, number: int, sending: int, reason: int) -> None:
        append = self._appends.get(number)
        if append is None or (reason and append.sent != sending):
            return  # acknowledgements count from any leader, anything else from the current one
        if reason == Outcome.MOVED:
            append.sent = 0
            self._unsent += 1
            return
        if reason == Outcome.FENCED:
            append.sent = _PARKED
            self._fenced[append.queue] = None
            return
        self._drop(number, append)
        if self._fenced and append.queue in self._fenced:
            self._unpark(append.queue)
        if append.done is not None:
            append.done(reason)

    def _unpark(self, queue: str) -> None:
        """Send the parked appends of a queue that accepts appends again, in order."""
        del self._fenced[queue]
        for append in self._appends.values():
            if append.sent == _PARKED and append.queue == queue:
                append.sent = 0
                self._unsent += 1
        self._send_again()

    def _probe(self) -> None:
        """Retry the first append of every moving queue: the move may have been called off."""
        for queue in list(self._fenced):
            number = self._first_of(queue)
            target = self.target
            if not number:
                self._fenced.pop(queue, None)
            elif self._appends[number].sent == _PARKED and target is not None:
                self._unsent += 1  # `_send` subtracts it again
                self._send(target, number, self._appends[number])

    def _first_of(self, queue: str) -> int:
        for number, append in self._appends.items():
            if append.queue == queue:
                return number
        return 0

    def withdraw(self, queue: str, origins: AbstractSet[int]) -> None:
        """Drop the appends to a queue with names of these origins without calling back."""
        for number, append in list(self._appends.items()):
            own = append.identity
            if own is not None and own.origin in origins and append.queue == queue:
                self._drop(number, append)

    def _drop(self, number: int, append: _Append) -> None:
        del self._appends[number]
        self._bytes -= len(append.batch)
        if not append.sent:
            self._unsent -= 1

    def _send_again(self) -> None:
        """Send the unsent appends to the current leader, in the order they were made."""
        for number, append in list(self._appends.items()):
            target = self.target
            if target is None or not self._unsent:
                return
            if append.sent or number not in self._appends:
                continue
            if self._fenced and append.queue in self._fenced:
                append.sent = _PARKED
                self._unsent -= 1
                continue
            unsent = self._unsent
            self._send(target, number, append)
            if self._unsent >= unsent:
                return  # it came back at once; later appends stay behind it

    def _give_up(self) -> None:
        """Refuse appends that were not answered in time; they may still take effect."""
        now = self.now()
        for waiting in self._deadlines.values():
            while waiting and (waiting[0][0] <= now or waiting[0][1] not in self._appends):
                number = waiting.popleft()[1]
                append = self._appends.get(number)
                if append is None:
                    continue
                self._drop(number, append)
                self.timeouts += 1
                if append.done is not None:
                    append.done(Outcome.FAILED)

    # Consumers

    def attach(self, wanted: AttachRequest, port: ConsumerPort, done: Attaching) -> None:
        """Attach a consumer to the leader; ``done`` is called once it is accepted or refused."""
        if self._away and wanted.queue in self._away:
            self._away[wanted.queue].attach(wanted, port, done)
            return
        deadline = self.now() + self._ack_timeout(wanted.queue)
        consumer = LeaderHandle(self, wanted, port, done, deadline)
        self._consumers[consumer] = None
        target = self.reader(wanted.queue)
        if target is not None:
            consumer.attach(target)

    def forget(self, consumer: LeaderHandle) -> None:
        """Forget a consumer that has gone."""
        self._consumers.pop(consumer, None)

    # Queues

    def status(self, queue: str, done: StatusCallback) -> None:
        """Count a queue's messages and consumers."""
        target = self._target_for(queue)
        if target is None:
            done(QueueStats(QueueOutcome.UNAVAILABLE))
        else:
            target.status(queue, done)

    def purge(self, queue: str, done: StatusCallback) -> None:
        """Drop the ready messages."""
        target = self._target_for(queue)
        if target is None:
            done(QueueStats(QueueOutcome.UNAVAILABLE))
        else:
            target.purge(queue, done)

    def delete(self, queue: str, if_unused: bool, if_empty: bool, done: StatusCallback) -> None:
        """Delete a queue."""
        target = self._target_for(queue)
        if target is None:
            done(QueueStats(QueueOutcome.UNAVAILABLE))
        else:
            target.delete(queue, if_unused, if_empty, done)

    def _target_for(self, queue: str) -> GroupClient | None:
        return self._away.get(queue) or self.target

    # Moving to another group

    def hand_over(self, queue: str, other: LeaderClient) -> None:
        """Hand a queue's unanswered appends and its consumers to the host of the group that it is
        in now.

        That group knows the names of the appends that took effect here.
        """
        self._fenced.pop(queue, None)
        other._away.pop(queue, None)
        self._away[queue] = other
        moved = {n: append for n, append in self._appends.items() if append.queue == queue}
        for number, append in moved.items():
            self._drop(number, append)
        other._take_over(queue, moved)
        for consumer in [each for each in self._consumers if each.queue == queue]:
            del self._consumers[consumer]
            other._consumers[consumer] = None
            consumer.rehost(other)
        other._retry()

    def forget_queue(self, queue: str) -> None:
        """Forget where a deleted queue went: one declared again may be in this group."""
        self._away.pop(queue, None)

    def _take_over(self, queue: str, appends: dict[int, _Append]) -> None:
        """Adopt these appends and keep all in the order in which they were made."""
        timeout = self._ack_timeout(queue)
        deadlines = [*self._deadlines.get(timeout, ())]
        for number, append in appends.items():
            append.sent = 0
            self._bytes += len(append.batch)
            deadlines.append((append.deadline, number))
        self._unsent += len(appends)
        self._appends = dict(sorted({**self._appends, **appends}.items()))
        self._deadlines[timeout] = deque(sorted(deadlines))

    # Leadership and time

    def _led(self) -> None:
        """Handle a new leader, or the loss of one."""
        for consumer in list(self._consumers):
            consumer.ask_anew()
        if self.led:
            # Resend what a former leader left unanswered as well: behind newer appends it would be
            # out of order.
            for append in self._appends.values():
                append.sent = 0
            self._unsent = len(self._appends)
            self._fenced.clear()
        self._retry()

    def _retry(self) -> None:
        self._send_again()
        for consumer in list(self._consumers):
            target = self.reader(consumer.queue) if consumer.waiting else None
            if target is not None:
                consumer.attach(target)

    def housekeeping(self) -> None:
        """Run periodic work; called every tenth of a second."""
        self._give_up()
        if self._fenced:
            self._probe()
        now = self.now()
        for consumer in [each for each in self._consumers if each.overdue(now)]:
            consumer.give_up()
        self._retry()

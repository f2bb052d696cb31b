"""A replication group as seen by its clients on this shard, wherever it is served.

Requests go to the shard that serves the group, which a `GroupRoute` finds. Appends are kept until
they are answered, under an identity by which the group knows them: when another shard serves the
group and their outcome is unknown, they are resent, in order, and take effect once. They are
refused when no answer has come within the group's `ack_timeout`. Consumers are reattached to the
shard that serves the group next; their unacked messages are redelivered, and what they settle in
between is refused, never applied here.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from typing import Protocol

from fluxmq.engine.leader_handle import UNREACHABLE, LeaderHandle
from fluxmq.engine.ports import (
    AppendCallback,
    Attaching,
    AttachRequest,
    ConsumerPort,
    GroupTarget,
    QueueStats,
    StatusCallback,
)
from fluxmq.model.outcomes import Outcome, QueueOutcome
from fluxmq.queues.origins import Identity

NUMBERS_APART = 1 << 20
"""Distance between the numbers of two appends: the pieces that an append may be split into take the
numbers between."""
WAITING_BYTES_MAX = 16 << 20
"""Bytes of unanswered batches of a group above which publishers pause; at four times as many,
appends are refused."""

_PARKED = -1


class GroupRoute(Protocol):
    """Finds the shard that serves a group."""

    @property
    def term(self) -> int:
        """Term of the group's leader; 0 if any may answer, as in a group of one member."""

    @property
    def of_node(self) -> bool:
        """Whether the group is this node's own.

        A shard that such a group leaves answers all earlier requests, and later ones wait for its
        answers. Its consumers do not follow it: they are attached to the shard, which cancels them.
        """

    @property
    def given_up(self) -> bool:
        """Whether the group's shard has been away for so long that requests are refused."""

    def target(self) -> GroupTarget | None:
        """Return the shard that serves the group; None while it is unknown or cannot be reached.

        It answers `MOVED` when it cannot tell the outcome of a request.
        """

    def reader(self, queue: str) -> GroupTarget | None:
        """Return the target that delivers a queue's messages here: `target`, or a copy on this
        node."""

    def ack_timeout(self, queue: str) -> float:
        """Return how long a queue's appends wait, in seconds."""


class WritePolicy(Protocol):
    """Decides about appends to a group that another node leads, before they are sent."""

    def intercept(
        self, queue: str, batch: bytes, done: AppendCallback | None, by_address: bool
    ) -> bool | None:
        """Refuse an append or keep it here, and return the result of `GroupTarget.append`; None to
        send it."""


class _Append:
    """An unanswered append, with the deadline at which it is given up. ``sent``: the number of its
    valid sending, 0 while it is unsent, `_PARKED` while its queue moves to another group.
    ``identity``: the one that it came with, if any. ``by_address``: as in `GroupTarget.append`.
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

    @property
    def retried(self) -> bool:
        """True unless its caller asked for the leader of one term, and retries by itself."""
        return self.identity is None or not self.identity.term


class GroupClient:
    """Implements ``GroupTarget`` for one replication group.

    ``origin`` is a number of this shard's life, which ``numbers`` completes to names of appends:
    clients with one origin share one ``numbers``, so that an append keeps its name when its queue
    moves. ``policy`` decides about appends first, if there is one.
    """

    def __init__(
        self,
        route: GroupRoute,
        origin: int,
        now: Callable[[], float],
        numbers: Iterator[int] | None = None,
        policy: WritePolicy | None = None,
    ) -> None:
        self.of_node = route.of_node
        self._route = route
        self._policy = policy
        self._now = now
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
        self._target: GroupTarget | None = None
        """The target to which appends were sent last."""
        self._fenced: dict[str, None] = {}
        """Queues that move to another group: their first appends are retried, the others parked."""
        self._away: dict[str, GroupClient] = {}
        """Queues that have moved to another group, and that group's client."""
        self._consumers: dict[LeaderHandle, None] = {}
        self.timeouts = 0
        """Number of appends refused because no leader answered in time."""

    @property
    def target(self) -> GroupTarget | None:
        """The shard that may be sent appends: none while another one still owes answers."""
        target = self._route.target()
        if target is not self._target:
            if self.of_node and any(each.sent > 0 for each in self._appends.values()):
                return None
            self._target = target
        return target

    def now(self) -> float:
        """Return the time in seconds."""
        return self._now()

    @property
    def above_high_watermark(self) -> bool:
        """True while unacknowledged appends exceed the high watermark."""
        return self._bytes > WAITING_BYTES_MAX

    @property
    def idle(self) -> bool:
        """True when all appends are answered."""
        return not self._appends

    @property
    def waits(self) -> bool:
        """True while appends or consumers wait for a target."""
        return self._unsent > 0 or any(each.waiting for each in self._consumers)

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
        if self._policy is not None:
            intercepted = self._policy.intercept(queue, batch, done, by_address)
            if intercepted is not None:
                return intercepted
        target = self.target
        above = self._bytes > 4 * WAITING_BYTES_MAX
        if above or (target is None and self._route.given_up):
            if done is not None:
                done(Outcome.OVER_LIMIT if above else Outcome.FAILED)
            return True
        number = next(self._numbers)
        timeout = self._route.ack_timeout(queue)
        append = _Append(queue, batch, done, self.now() + timeout, identity, by_address)
        self._deadlines.setdefault(timeout, deque()).append((append.deadline, number))
        behind = self._unsent > 0
        self._appends[number] = append
        self._bytes += len(batch)
        if self._fenced and queue in self._fenced:
            append.sent = _PARKED
            return self._bytes <= WAITING_BYTES_MAX
        self._unsent += 1
        if target is not None and not behind and not self._send(target, number, append):
            return False
        return self._bytes <= WAITING_BYTES_MAX

    def _send(self, target: GroupTarget, number: int, append: _Append) -> bool:
        sending = append.sent = next(self._sendings)
        self._unsent -= 1

        def answered(reason: int) -> None:
            self._answered(number, sending, reason)

        own = append.identity
        if own is None:
            floor = next(iter(self._appends))
            identity = Identity(self._origin, number, min(floor, number), self._route.term)
        else:
            identity = Identity(own.origin, own.number, own.floor, own.term or self._route.term)
        return target.append(append.queue, append.batch, answered, identity, append.by_address)

    def _answered(self, number: int, sending: int, reason: int) -> None:
        append = self._appends.get(number)
        if append is None or (reason and append.sent != sending):
            return  # acknowledgements count from any leader, anything else from the current one
        if reason == Outcome.MOVED and append.retried:
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
        now = math.inf if self._route.given_up else self.now()
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

    @property
    def term(self) -> int:
        """Term of the group's leader."""
        return self._route.term

    def attach(self, wanted: AttachRequest, port: ConsumerPort, done: Attaching) -> None:
        """Attach a consumer to the leader; ``done`` is called once it is accepted or refused."""
        if self._away and wanted.queue in self._away:
            self._away[wanted.queue].attach(wanted, port, done)
            return
        if self._route.given_up:
            done(UNREACHABLE, None)
            return
        deadline = self.now() + self._route.ack_timeout(wanted.queue)
        consumer = LeaderHandle(self, wanted, port, done, deadline)
        self._consumers[consumer] = None
        target = self._reader(wanted.queue)
        if target is not None:
            consumer.attach(target)

    def _reader(self, queue: str) -> GroupTarget | None:
        return None if self.target is None else self._route.reader(queue)

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

    def _target_for(self, queue: str) -> GroupTarget | None:
        return self._away.get(queue) or self.target

    # Moving to another group

    def hand_over(self, queue: str, other: GroupClient, quorum: bool = False) -> None:
        """Hand a queue's unanswered appends and its consumers to the client of the group that it is
        in now. ``quorum``: it is a quorum queue there.

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
            consumer.follow(other, quorum)
        other.retry()

    def forget_queue(self, queue: str) -> None:
        """Forget where a deleted queue went: one declared again may be in this group."""
        self._away.pop(queue, None)

    def _take_over(self, queue: str, appends: dict[int, _Append]) -> None:
        """Adopt these appends and keep all in the order in which they were made."""
        timeout = self._route.ack_timeout(queue)
        deadlines = [*self._deadlines.get(timeout, ())]
        for number, append in appends.items():
            append.sent = 0
            self._bytes += len(append.batch)
            append.deadline = min(append.deadline, self.now() + timeout)
            deadlines.append((append.deadline, number))
        self._unsent += len(appends)
        self._appends = dict(sorted({**self._appends, **appends}.items()))
        self._deadlines[timeout] = deque(sorted(deadlines))

    # Leadership and time

    def leader_changed(self, known: bool) -> None:
        """Handle a new leader, or the loss of one (``known``: False)."""
        for consumer in list(self._consumers):
            consumer.ask_anew()
        if known:
            # Resend what a former leader left unanswered as well: behind newer appends it would be
            # out of order.
            for append in self._appends.values():
                append.sent = 0
            self._unsent = len(self._appends)
            self._fenced.clear()
        self.retry()

    def retry(self) -> None:
        """Send what waits to the shard that serves the group now, if any."""
        self._send_again()
        for consumer in list(self._consumers):
            target = self._reader(consumer.queue) if consumer.waiting else None
            if target is not None:
                consumer.attach(target)

    def housekeeping(self) -> None:
        """Run periodic work; called by the shard's timer."""
        self._give_up()
        if self._fenced:
            self._probe()
        now = math.inf if self._route.given_up else self.now()
        for consumer in [each for each in self._consumers if each.overdue(now)]:
            consumer.give_up()
        self.retry()

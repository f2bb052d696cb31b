"""A replicated group as its clients on this shard see it, whichever node leads it.

What is asked goes to the leader. Appends are kept until they are answered: when leadership moves they are sent again, in
order, since nobody can say what became of them; they are refused when nobody has answered within the group's
`ack_timeout`. Consumers are attached anew when another node leads; what they held is given again, and what they settle
meanwhile is refused, never applied here.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

from fluxmq._hot.batches import Batch
from fluxmq.protocols.mqtt.reasons import Reason
from fluxmq.queues.origins import Identity
from fluxmq.shards.cluster.leaders import Leader
from fluxmq.shards.queues.ports import (
    MOVED,
    Answer,
    Attached,
    ConsumerPort,
    Held,
    Outcome,
    QueueHost,
    Range,
    Status,
    Taken,
    Told,
    Wanted,
)

NUMBERS_APART = 1 << 20
"""From one append's number to the next: the pieces it may be taken apart into have the numbers between."""
WAITING_BYTES_MAX = 16 << 20
"""Batches kept for a leader that has not answered; publishers pause above it, and are refused at four times as much."""
_REFUSED = Reason.IMPLEMENTATION_SPECIFIC_ERROR

Attaching = Callable[[Attached, Held | None], None]


class _Append:
    """An append that is not answered. ``sent``: which sending of it counts, 0 while it is with nobody."""

    __slots__ = ("batch", "done", "queue", "sent")

    def __init__(self, queue: str, batch: bytes, done: Answer | None) -> None:
        self.queue = queue
        self.batch = batch
        self.done = done
        self.sent = 0


class LeaderHost:
    """Implements ``QueueHost`` for one replicated group.

    ``reader`` gives who hands messages of a queue to consumers here. ``target`` gives who leads it now, None when nobody is
    known: a host that answers `MOVED` when it cannot say what became of what it was asked, and keeps nothing itself.
    ``ack_timeout`` tells how long a queue's appends wait, in seconds, ``refusal`` the reason for which appends are not
    taken now, 0 when they are (``write_policy: reject``). ``origin``: a number of this shard's life.
    """

    def __init__(
        self,
        leader: Leader,
        target: Callable[[Leader], QueueHost | None],
        reader: Callable[[Leader, str], QueueHost | None],
        ack_timeout: Callable[[str], float],
        refusal: Callable[[], int] | None,
        origin: int,
        now: Callable[[], float],
    ) -> None:
        self._leader = leader
        self._target_of = target
        self._reader_of = reader
        self._ack_timeout = ack_timeout
        self._refusal = refusal
        self._now = now
        self._origin = origin
        self._numbers = itertools.count(NUMBERS_APART, NUMBERS_APART)
        self._appends: dict[int, _Append] = {}
        """Not answered, in the order made."""
        self._deadlines: dict[float, deque[tuple[float, int]]] = {}
        """When appends are given up and their numbers, by how long they wait."""
        self._sendings = itertools.count(1)
        self._bytes = 0
        self._unsent = 0
        """How many of them are with nobody."""
        self._consumers: dict[FollowingHeld, None] = {}
        self.timeouts = 0
        """Appends refused because nobody had answered in time."""
        leader.listeners.append(self._led)

    @property
    def target(self) -> QueueHost | None:
        """Who leads the group now."""
        return self._target_of(self._leader)

    def reader(self, queue: str) -> QueueHost | None:
        """Who gives a queue's messages to consumers of this shard: who leads, or a copy on this node."""
        return self._reader_of(self._leader, queue)

    @property
    def led(self) -> bool:
        """Whether anybody is known to lead it."""
        return self._leader.peer is not None

    @property
    def crowded(self) -> bool:
        """Whether more is unanswered than is good."""
        return self._bytes > WAITING_BYTES_MAX

    @property
    def idle(self) -> bool:
        """Whether everything is answered."""
        return not self._appends

    # Appends

    def append(
        self, queue: str, batch: bytes, done: Answer | None, identity: Identity | None = None
    ) -> bool:
        """Store a batch. It gets an identity of this shard's own, so that it takes effect once when it is sent again."""
        refused = self._refusal() if self._refusal is not None else 0
        if refused:
            if done is not None:
                done(refused)
            return True
        if self._bytes > 4 * WAITING_BYTES_MAX:
            if done is not None:
                done(Reason.QUOTA_EXCEEDED)
            return True
        number = next(self._numbers)
        append = _Append(queue, batch, done)
        patience = self._ack_timeout(queue)
        deadlines = self._deadlines.setdefault(patience, deque())
        deadlines.append((self._now() + patience, number))
        behind = self._unsent > 0
        self._appends[number] = append
        self._bytes += len(batch)
        self._unsent += 1
        target = None if behind else self.target
        if target is not None and not self._send(target, number, append):
            return False
        return self._bytes <= WAITING_BYTES_MAX

    def _send(self, target: QueueHost, number: int, append: _Append) -> bool:
        sending = append.sent = next(self._sendings)
        self._unsent -= 1

        def answered(reason: int) -> None:
            self._answered(number, sending, reason)

        floor = next(iter(self._appends))
        identity = Identity(self._origin, number, min(floor, number), self._leader.term)
        return target.append(append.queue, append.batch, answered, identity)

    def _answered(self, number: int, sending: int, reason: int) -> None:
        append = self._appends.get(number)
        if append is None or (reason and append.sent != sending):
            return  # that it is durable counts whoever says so; what else a former leader says does not
        if reason == MOVED:
            append.sent = 0
            self._unsent += 1
            return
        self._drop(number, append)
        if append.done is not None:
            append.done(reason)

    def _drop(self, number: int, append: _Append) -> None:
        del self._appends[number]
        self._bytes -= len(append.batch)
        if not append.sent:
            self._unsent -= 1

    def _send_again(self) -> None:
        """What is with nobody goes to who leads now, in the order it was made."""
        for number, append in list(self._appends.items()):
            target = self.target
            if target is None or not self._unsent:
                return
            if append.sent or number not in self._appends:
                continue
            unsent = self._unsent
            self._send(target, number, append)
            if self._unsent >= unsent:
                return  # it came back at once, and what was made later stays behind it

    def _give_up(self) -> None:
        """Refuse what nobody has answered in time; it may still take effect."""
        now = self._now()
        for waiting in self._deadlines.values():
            while waiting and (waiting[0][0] <= now or waiting[0][1] not in self._appends):
                number = waiting.popleft()[1]
                append = self._appends.get(number)
                if append is None:
                    continue
                self._drop(number, append)
                self.timeouts += 1
                if append.done is not None:
                    append.done(_REFUSED)

    # Consumers

    def attach(self, wanted: Wanted, port: ConsumerPort, done: Attaching) -> None:
        """Attach a consumer, to whoever leads; ``done`` is called when somebody has taken it."""
        deadline = self._now() + self._ack_timeout(wanted.queue)
        consumer = FollowingHeld(self, wanted, port, done, deadline)
        self._consumers[consumer] = None
        target = self.reader(wanted.queue)
        if target is not None:
            consumer.attach(target)

    def forget(self, consumer: FollowingHeld) -> None:
        """A consumer has gone."""
        self._consumers.pop(consumer, None)

    # Queues

    def status(self, queue: str, done: Told) -> None:
        """Count a queue's messages and consumers."""
        target = self.target
        if target is None:
            done(Status(Outcome.UNAVAILABLE))
        else:
            target.status(queue, done)

    def purge(self, queue: str, done: Told) -> None:
        """Drop what is ready."""
        target = self.target
        if target is None:
            done(Status(Outcome.UNAVAILABLE))
        else:
            target.purge(queue, done)

    def delete(self, queue: str, if_unused: bool, if_empty: bool, done: Told) -> None:
        """Delete a queue."""
        target = self.target
        if target is None:
            done(Status(Outcome.UNAVAILABLE))
        else:
            target.delete(queue, if_unused, if_empty, done)

    # Leadership and time

    def _led(self) -> None:
        """Somebody else leads, or nobody."""
        for consumer in list(self._consumers):
            consumer.ask_anew()
        if self.led:
            # Also what a former leader has not answered: behind what comes now it would be out of order.
            for append in self._appends.values():
                append.sent = 0
            self._unsent = len(self._appends)
        self._retry()

    def _retry(self) -> None:
        self._send_again()
        for consumer in list(self._consumers):
            target = self.reader(consumer.queue) if consumer.waiting else None
            if target is not None:
                consumer.attach(target)

    def housekeeping(self) -> None:
        """A tenth of a second has passed."""
        self._give_up()
        now = self._now()
        for consumer in [each for each in self._consumers if each.overdue(now)]:
            consumer.give_up()
        self._retry()


class FollowingHeld:
    """A consumer that stays attached while leadership moves: ``Held`` to who asked, ``ConsumerPort`` to who leads."""

    def __init__(
        self,
        host: LeaderHost,
        wanted: Wanted,
        port: ConsumerPort,
        done: Attaching,
        deadline: float,
    ) -> None:
        self._host = host
        self._wanted = wanted
        self._port = port
        self._done: Attaching | None = done
        self._deadline = deadline
        self._held: Held | None = None
        self._limit: int | None = None
        self._life = 0
        """Counts attachments: what an earlier one says does not concern this one."""
        self._stopped = False
        self._last = -1
        """The highest offset that was delivered."""
        self.waiting = True
        """Whether nobody has it, or is asked to take it."""

    @property
    def queue(self) -> str:
        """The queue it consumes."""
        return self._wanted.queue

    def overdue(self, now: float) -> bool:
        """Whether who asked has waited long enough for a first answer."""
        return self.waiting and self._done is not None and now >= self._deadline

    def give_up(self) -> None:
        """Nobody has taken it in time."""
        self._host.forget(self)
        done, self._done = self._done, None
        if done is not None:
            done(Attached(_REFUSED, outcome=Outcome.UNAVAILABLE), None)

    def attach(self, target: QueueHost) -> None:
        """Ask who leads now."""
        self.waiting = False
        self._life += 1
        life = self._life
        link = _LeaderPort(self, life)

        def attached(answer: Attached, held: Held | None) -> None:
            if life == self._life:
                self._attached(answer, held)
            elif held is not None:
                held.detach()

        wanted = self._wanted
        if wanted.temporary and self._last >= 0:
            # Its group went with the leader that it was attached to.
            wanted = replace(wanted, start=("offset", self._last + 1))
        target.attach(wanted, link, attached)

    def ask_anew(self) -> None:
        """Leadership has moved: whoever was asked to take it may never answer."""
        if self._held is None and not self.waiting:
            self._life += 1
            self.waiting = True

    def _attached(self, answer: Attached, held: Held | None) -> None:
        if held is None and answer.outcome == Outcome.UNAVAILABLE and self._host_may_change():
            self.waiting = True
            return
        done, self._done = self._done, None
        if held is None:
            self._host.forget(self)
            if done is not None:
                done(replace(answer, reason=_told(answer.reason)), None)
            else:
                self._port.cancelled()  # it was there, and the new leader does not take it
            return
        self._held = held
        if self._limit is not None:
            held.set_limit(self._limit)
        if done is not None:
            done(answer, self)

    def _host_may_change(self) -> bool:
        return self._done is None or self._host._now() < self._deadline

    # From who leads

    def deliver(
        self, life: int, batch: Batch, first: int, count: int, attempts: int, committed: int
    ) -> None:
        """Messages have come."""
        if life == self._life:
            self._last = max(self._last, batch.base_offset + first + count - 1)
            self._port.deliver(batch, first, count, attempts, committed)

    def cancelled(self, life: int) -> None:
        """Who had it has let it go."""
        if life != self._life:
            return
        self._life += 1
        self._held = None
        if self._stopped:
            self._host.forget(self)
            self._port.cancelled()
            return
        self.waiting = True  # if the queue is gone, the next answer says so

    # From who asked

    def settle(
        self, verb: int, ranges: Sequence[Range], delay: int, reason: bytes, done: Answer | None
    ) -> None:
        """Settle messages: refused while nobody leads, since what is settled is decided there."""
        if self._held is not None:
            self._held.settle(verb, ranges, delay, reason, _telling(done))
        elif done is not None:
            done(_REFUSED)

    def commit(self, offset: int, done: Answer | None) -> None:
        """Commit a stream's offset."""
        if self._held is not None:
            self._held.commit(offset, _telling(done))
        elif done is not None:
            done(_REFUSED)

    def set_limit(self, limit: int) -> None:
        """At most so many unsettled messages from now on."""
        self._limit = limit
        if self._held is not None:
            self._held.set_limit(limit)

    def take(self, done: Taken) -> None:
        """One message now."""
        if self._held is not None:
            self._held.take(done)
        else:
            done(False, 0)

    def stop(self) -> None:
        """Be given nothing more."""
        self._stopped = True
        if self._held is not None:
            self._held.stop()

    def detach(self) -> None:
        """Go."""
        self._life += 1
        self.waiting = False
        self._host.forget(self)
        held, self._held = self._held, None
        if held is not None:
            held.detach()


def _told(reason: int) -> int:
    """What a client is told: nobody can say what became of what it asked, and it is not asked again."""
    return _REFUSED if reason == MOVED else reason


def _telling(done: Answer | None) -> Answer | None:
    return None if done is None else lambda reason: done(_told(reason))


class _LeaderPort:
    """Where one leader delivers."""

    __slots__ = ("_consumer", "_life")

    def __init__(self, consumer: FollowingHeld, life: int) -> None:
        self._consumer = consumer
        self._life = life

    def deliver(
        self, batch: Batch, first: int, count: int, attempts: int, committed: int = -1
    ) -> None:
        """Messages have come."""
        self._consumer.deliver(self._life, batch, first, count, attempts, committed)

    def cancelled(self) -> None:
        """The consumer was let go of."""
        self._consumer.cancelled(self._life)

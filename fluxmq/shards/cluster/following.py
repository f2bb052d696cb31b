"""A consumer that stays attached to a replicated group while leadership moves, and while its queue moves to another group.

It is attached anew to whoever leads; what it held is given again, and what it settles meanwhile is refused, never applied
here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from fluxmq._hot.batches import Batch
from fluxmq.protocols.mqtt.reasons import Reason
from fluxmq.shards.queues.ports import (
    FENCED,
    MOVED,
    Answer,
    Attached,
    ConsumerPort,
    Held,
    Outcome,
    QueueHost,
    Range,
    Taken,
    Wanted,
)

if TYPE_CHECKING:
    from fluxmq.shards.cluster.leader_host import LeaderHost

_REFUSED = Reason.IMPLEMENTATION_SPECIFIC_ERROR

Attaching = Callable[[Attached, Held | None], None]


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

    def rehost(self, host: LeaderHost) -> None:
        """The queue is in another group now."""
        self._life += 1
        self._host = host
        self.waiting = True
        held, self._held = self._held, None
        if held is not None:
            held.detach()

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
        return self._done is None or self._host.now() < self._deadline

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
    return _REFUSED if reason in (MOVED, FENCED) else reason


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

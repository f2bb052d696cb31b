"""A consumer that stays attached to a replicated group while leadership moves, and while its queue
moves to another group.

It is reattached to each new leader, or cancelled if its client has asked for that. Its unacked
messages are redelivered, and what it settles in between is refused, never applied here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol, cast

from fluxmq.engine.ports import (
    BROWSE,
    ActivityPort,
    AppendCallback,
    Attached,
    Attaching,
    AttachRequest,
    ConsumerHandle,
    ConsumerPort,
    GetCallback,
    GroupTarget,
    Range,
    is_browser,
)
from fluxmq.model.batch_format import Batch
from fluxmq.model.outcomes import Outcome, QueueOutcome

UNREACHABLE = Attached(Outcome.FAILED, outcome=QueueOutcome.UNAVAILABLE)
"""Answer to a consumer that no shard can attach now."""


class HandleOwner(Protocol):
    """The client of the group whose consumer a `LeaderHandle` is."""

    @property
    def of_node(self) -> bool:
        """Whether the group is this node's own: its consumers do not follow it."""

    @property
    def term(self) -> int:
        """Term of the group's leader."""

    def now(self) -> float:
        """Return the time in seconds."""

    def forget(self, consumer: LeaderHandle) -> None:
        """Forget a consumer that has gone, or needs its handle no longer."""


class LeaderHandle:
    """A consumer that follows leadership.

    Its client has it as ``ConsumerHandle``, its leader as ``ConsumerPort``.
    """

    def __init__(
        self,
        client: HandleOwner,
        wanted: AttachRequest,
        port: ConsumerPort,
        done: Attaching,
        deadline: float,
    ) -> None:
        self._client = client
        self._wanted = wanted
        self._port = port
        self._done: Attaching | None = done
        self._deadline = deadline
        self._handle: ConsumerHandle | None = None
        self._limit: int | None = None
        self._life = 0
        """Number of attachments so far: calls from an earlier one are ignored."""
        self._stopped = False
        self._term = -1
        """Term of the leader of this group that attached it last, -1 for none."""
        self._last = -1
        """The highest offset that was delivered."""
        self.waiting = True
        """True while it is neither attached nor asking a leader to attach it."""

    @property
    def queue(self) -> str:
        """The queue it consumes."""
        return self._wanted.queue

    def overdue(self, now: float) -> bool:
        """Return whether the client has waited long enough for a first answer."""
        return self.waiting and self._done is not None and now >= self._deadline

    def give_up(self) -> None:
        """Refuse the attachment, which no leader has accepted in time."""
        self._client.forget(self)
        done, self._done = self._done, None
        if done is not None:
            done(UNREACHABLE, None)

    def attach(self, target: GroupTarget) -> None:
        """Ask the current leader to attach it, unless it is to be cancelled by a failover."""
        self.waiting = False
        self._life += 1
        life, term = self._life, self._client.term
        if self._wanted.cancel_on_failover and self._term >= 0 and self._term != term:
            self._client.forget(self)
            self._port.cancelled()
            return
        port = self._port if self._client.of_node else _LeaderPort(self, life)

        def attached(answer: Attached, handle: ConsumerHandle | None) -> None:
            if life == self._life:
                self._term = self._term if handle is None else term
                self._attached(answer, handle)
            elif handle is not None:
                handle.detach()

        wanted = self._wanted
        if wanted.temporary and self._last >= 0:
            # Its group went away with the leader that it was attached to.
            wanted = replace(wanted, start=("offset", self._last + 1))
        elif is_browser(wanted):
            wanted = replace(wanted, start=(BROWSE, self._last + 1))
        elif not wanted.temporary and self._done is None:
            # Its group was moved to the start once; now it goes on from where it is.
            wanted = replace(wanted, start=None)
        target.attach(wanted, port, attached)

    def ask_anew(self) -> None:
        """Ask again after a change of leadership: the former leader may never answer."""
        if self._handle is None and not self.waiting:
            self._life += 1
            self.waiting = True

    def follow(self, client: HandleOwner, stays: bool) -> None:
        """Follow the queue into another group. ``stays``: it is attached to each new leader from now
        on, as it has become the consumer of a quorum queue."""
        self._life += 1
        self._term = -1
        if stays and self._wanted.cancel_on_failover:
            self._wanted = replace(self._wanted, cancel_on_failover=False)
        self._client = client
        self.waiting = True
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.detach()

    def _attached(self, answer: Attached, handle: ConsumerHandle | None) -> None:
        if handle is None and answer.outcome == QueueOutcome.UNAVAILABLE and self._may_reattach():
            self.waiting = True
            return
        done, self._done = self._done, None
        if handle is None:
            self._client.forget(self)
            if done is not None:
                done(replace(answer, reason=_told(answer.reason)), None)
            else:
                self._port.cancelled()  # it was attached before, and the new leader refuses it
            return
        if done is not None and self._client.of_node:
            self._client.forget(self)
            done(answer, handle)
            return
        self._handle = handle
        if self._limit is not None:
            handle.set_limit(self._limit)
        if done is not None:
            done(answer, self)

    def _may_reattach(self) -> bool:
        return self._done is None or self._client.now() < self._deadline

    # Called by the leader

    def deliver(
        self, life: int, batch: Batch, first: int, count: int, attempts: int, committed: int
    ) -> None:
        """Deliver messages to the client, unless they come from an earlier attachment."""
        if life == self._life:
            self._last = max(self._last, batch.base_offset + first + count - 1)
            self._port.deliver(batch, first, count, attempts, committed)

    def activity(self, life: int, active: bool) -> None:
        """Pass on whether it is the active consumer, unless an earlier attachment says so."""
        if life == self._life:
            cast(ActivityPort, self._port).activity(active)

    def cancelled(self, life: int) -> None:
        """Handle a cancellation by the leader: reattach, unless the client has stopped."""
        if life != self._life:
            return
        self._life += 1
        self._handle = None
        if self._stopped:
            self._client.forget(self)
            self._port.cancelled()
            return
        self.waiting = True  # if the queue is gone, the next answer says so

    # Called by the client

    def settle(
        self,
        verb: int,
        ranges: Sequence[Range],
        delay: int,
        reason: bytes,
        done: AppendCallback | None,
    ) -> None:
        """Settle messages; refused while there is no leader, which alone decides about them."""
        if self._handle is not None:
            self._handle.settle(verb, ranges, delay, reason, _telling(done))
        elif done is not None:
            done(Outcome.FAILED)

    def commit(self, offset: int, done: AppendCallback | None) -> None:
        """Commit a stream's offset."""
        if self._handle is not None:
            self._handle.commit(offset, _telling(done))
        elif done is not None:
            done(Outcome.FAILED)

    def set_limit(self, limit: int) -> None:
        """Set the maximum number of unacked messages."""
        self._limit = limit
        if self._handle is not None:
            self._handle.set_limit(limit)

    def take(self, done: GetCallback) -> None:
        """Take one message now."""
        if self._handle is not None:
            self._handle.take(done)
        else:
            done(False, 0)

    def stop(self) -> None:
        """Stop deliveries."""
        self._stopped = True
        if self._handle is not None:
            self._handle.stop()

    def detach(self) -> None:
        """Detach."""
        self._life += 1
        self.waiting = False
        self._client.forget(self)
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.detach()


def _told(reason: int) -> int:
    """Return the reason for the client: an unknown outcome is a refusal, as nothing is retried."""
    return Outcome.FAILED if reason in (Outcome.MOVED, Outcome.FENCED) else reason


def _telling(done: AppendCallback | None) -> AppendCallback | None:
    return None if done is None else lambda reason: done(_told(reason))


class _LeaderPort:
    """The port that one leader delivers to."""

    __slots__ = ("_consumer", "_life")

    def __init__(self, consumer: LeaderHandle, life: int) -> None:
        self._consumer = consumer
        self._life = life

    def deliver(
        self, batch: Batch, first: int, count: int, attempts: int, committed: int = -1
    ) -> None:
        """Pass messages on."""
        self._consumer.deliver(self._life, batch, first, count, attempts, committed)

    def activity(self, active: bool) -> None:
        """Pass an activity on."""
        self._consumer.activity(self._life, active)

    def cancelled(self) -> None:
        """Pass a cancellation on."""
        self._consumer.cancelled(self._life)

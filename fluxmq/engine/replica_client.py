"""Local replica of a group led on another node: consumers here read messages from it.

The leader still decides which messages a consumer gets, and receives its settlements; it sends
references instead of the messages (`distribution_mode: replicate`). A message that has not reached
the replica yet is awaited: it was committed before its delivery, so it is on its way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from fluxmq.engine.ports import (
    ActivityPort,
    AppendCallback,
    Attached,
    AttachRequest,
    ConsumerHandle,
    ConsumerPort,
    GetCallback,
    GroupTarget,
    QueueStats,
    Range,
    StatusCallback,
)
from fluxmq.model.errors import FluxmqError
from fluxmq.model.outcomes import Outcome, QueueOutcome
from fluxmq.queues.commands import Verb
from fluxmq.queues.origins import Identity
from fluxmq.storage.errors import Corruption

if TYPE_CHECKING:
    from fluxmq.engine.group import ReplicationGroup

ASTRAY = Attached(Outcome.MOVED, outcome=QueueOutcome.UNAVAILABLE)


class ReplicaClient:
    """Implements ``GroupTarget`` for consumers of a replica. ``leader`` returns the group's leader,
    or None while unknown."""

    def __init__(self, group: ReplicationGroup, leader: Callable[[], GroupTarget | None]) -> None:
        self._group = group
        self._leader = leader
        self._waiting: dict[ReplicaPort, None] = {}
        self._ports: dict[ReplicaPort, None] = {}
        """All consumers of this replica."""
        self._closed = False
        self._forwarding = False
        """True once the replica is damaged: consumers get messages from the leader."""

    def append(
        self,
        queue: str,
        batch: bytes,
        done: AppendCallback | None,
        identity: Identity | None = None,
        by_address: bool = False,
    ) -> bool:
        """Refuse: appends go to the leader."""
        if done is not None:
            done(Outcome.MOVED)
        return True

    def attach(
        self,
        wanted: AttachRequest,
        port: ConsumerPort,
        done: Callable[[Attached, ConsumerHandle | None], None],
    ) -> None:
        """Attach a consumer to the leader; it gets messages from the replica."""
        leader = None if self._closed else self._leader()
        if leader is None:
            done(ASTRAY, None)
            return
        if self._forwarding:
            leader.attach(wanted, port, done)
            return
        reading = ReplicaPort(self, wanted.queue, port)
        self._ports[reading] = None

        def attached(answer: Attached, handle: ConsumerHandle | None) -> None:
            if handle is not None and reading not in self._ports:
                # It was let go meanwhile: this replica is closed, or damaged.
                handle.detach()
                done(ASTRAY, None)
                return
            reading.handle = handle
            if handle is None:
                self.leave(reading)
            done(answer, None if handle is None else ReplicaHandle(handle, reading))

        # The port receives no batches, only references.
        leader.attach(replace(wanted, references=True), reading, attached)

    def status(self, queue: str, done: StatusCallback) -> None:
        """Refuse: the leader answers this."""
        done(QueueStats(QueueOutcome.UNAVAILABLE))

    def purge(self, queue: str, done: StatusCallback) -> None:
        """Refuse: the leader answers this."""
        done(QueueStats(QueueOutcome.UNAVAILABLE))

    def delete(self, queue: str, if_unused: bool, if_empty: bool, done: StatusCallback) -> None:
        """Refuse: the leader answers this."""
        done(QueueStats(QueueOutcome.UNAVAILABLE))

    def applied(self) -> None:
        """Deliver what the replica has received meanwhile."""
        for port in list(self._waiting):
            if port.pump():
                self.forget(port)

    def wait(self, port: ReplicaPort) -> None:
        """Register a consumer with references to messages that are not here yet."""
        self._waiting[port] = None

    def forget(self, port: ReplicaPort) -> None:
        """Unregister a consumer that no longer waits."""
        self._waiting.pop(port, None)

    def leave(self, port: ReplicaPort) -> None:
        """Remove a consumer."""
        self._ports.pop(port, None)
        self.forget(port)

    def close(self) -> None:
        """Close for a new replica, or none: cancel every consumer, which then attaches anew."""
        self._closed = True
        self._let_go()

    def damaged(self, why: str) -> None:
        """Mark the replica as damaged: cancel consumers, which then get messages from the
        leader."""
        self._forwarding = True
        self._let_go()
        self._group.driver.damaged(why)

    def _let_go(self) -> None:
        for port in list(self._ports):
            port.let_go()

    @property
    def group(self) -> ReplicationGroup:
        """The replica."""
        return self._group


class ReplicaPort:
    """A consumer that reads from the replica. ``handle``: its handle at the leader."""

    def __init__(self, replica: ReplicaClient, queue: str, port: ConsumerPort) -> None:
        self._replica = replica
        self._queue = queue
        self._port = port
        self._told: deque[tuple[int, int, int, int]] = deque()
        """References to messages that are not here yet; bounded by the consumer's limit."""
        self._behind: deque[tuple[GetCallback, int]] = deque()
        """Gets whose message is not here yet, with the number of ready messages behind."""
        self._missed = False
        """True if a referenced message does not exist any more."""
        self.handle: ConsumerHandle | None = None

    def refer(self, offset: int, count: int, attempts: int, committed: int) -> None:
        """Accept references to the consumer's messages."""
        self._told.append((offset, count, attempts, committed))
        if not self.pump():
            self._replica.wait(self)

    def pump(self) -> bool:
        """Deliver the messages that are here; return whether none is missing."""
        state = self._replica.group.machine.queue(self._queue)
        while self._told:
            offset, count, attempts, committed = self._told[0]
            if state is None or state.next_offset < offset + count:
                return False
            self._told.popleft()
            self._hand_on(state.id, offset, count, attempts, committed)
        behind, self._behind = self._behind, deque()
        for done, ready in behind:
            self.taken(done, True, ready)
        return True

    def taken(self, done: GetCallback, found: bool, ready: int) -> None:
        """Handle the leader's answer to a get: pass it on once the message is delivered."""
        if found and self._told:
            self._behind.append((done, ready))
            return
        missed, self._missed = self._missed, False
        done(found and not missed, ready)

    def end(self) -> None:
        """Stop deliveries and answer waiting gets with nothing."""
        self._told.clear()
        self._replica.leave(self)
        behind, self._behind = self._behind, deque()
        for done, _ in behind:
            done(False, 0)

    def _hand_on(
        self, queue_id: int, offset: int, count: int, attempts: int, committed: int
    ) -> None:
        log = self._replica.group.logs[queue_id]
        end = offset + count
        while offset < end:
            try:
                batch = log.read(offset)
            except Corruption as damage:
                self._replica.damaged(str(damage))
                return
            except FluxmqError:
                # Retention has removed it meanwhile: release what is left to others.
                self._missed = True
                if self.handle is not None:
                    span = [(offset, end - 1)]
                    self.handle.settle(Verb.RELEASE, span, 0, b"", None)
                return
            first = offset - batch.base_offset
            here = min(batch.count - first, end - offset)
            self._port.deliver(batch, first, here, attempts, committed)
            offset += here

    def deliver(
        self, batch: object, first: int, count: int, attempts: int, committed: int = -1
    ) -> None:
        """Fail: a leader that was asked for references must not send messages."""
        raise AssertionError("a leader that was asked for references sends no messages")

    def activity(self, active: bool) -> None:
        """Pass an activity on, which the leader decides."""
        cast(ActivityPort, self._port).activity(active)

    def cancelled(self) -> None:
        """Handle the cancellation by the leader."""
        self.end()
        self._port.cancelled()

    def let_go(self) -> None:
        """Cancel the consumer: undelivered messages return to the leader, and the consumer attaches
        elsewhere."""
        handle, self.handle = self.handle, None
        self.end()
        if handle is not None:
            handle.detach()
            self._port.cancelled()


class ReplicaHandle:
    """Handle of a consumer that reads from the replica, for the side that attached it."""

    def __init__(self, handle: ConsumerHandle, port: ReplicaPort) -> None:
        self._handle = handle
        self._port = port

    def settle(
        self,
        verb: int,
        ranges: Sequence[Range],
        delay: int,
        reason: bytes,
        done: AppendCallback | None,
    ) -> None:
        """Settle messages at the leader."""
        self._handle.settle(verb, ranges, delay, reason, done)

    def commit(self, offset: int, done: AppendCallback | None) -> None:
        """Commit a stream's offset at the leader."""
        self._handle.commit(offset, done)

    def set_limit(self, limit: int) -> None:
        """Set the maximum number of unacked messages."""
        self._handle.set_limit(limit)

    def take(self, done: GetCallback) -> None:
        """Get one message now; its reference may arrive before the message itself."""
        self._handle.take(lambda found, ready: self._port.taken(done, found, ready))

    def stop(self) -> None:
        """Stop deliveries."""
        self._handle.stop()

    def detach(self) -> None:
        """Detach; messages that have not arrived yet are dropped."""
        self._port.end()
        self._handle.detach()

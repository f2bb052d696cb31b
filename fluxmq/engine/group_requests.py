"""Consumers' and clients' requests of a group: attach, settle, get, purge, count, delete.

A get or a count sees the effect of everything requested before it: it waits for publishes and
requeues that are still in flight.

Longer than 500 lines because attaching, settling, taking and deleting decide by the same few fields
of a group.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence

from fluxmq.engine.answers import ResultCallback, answering, outcome_of, reason_of
from fluxmq.engine.counts import QueueCounts
from fluxmq.engine.group_time import GroupTime
from fluxmq.engine.migration_fence import MigrationFence
from fluxmq.engine.ports import (
    NOTHING,
    AppendCallback,
    Attached,
    AttachRequest,
    ConsumerHandle,
    ConsumerPort,
    GetCallback,
    QueueStats,
    Range,
    StatusCallback,
    is_browser,
    wants_activity,
)
from fluxmq.engine.state_ports import QueueStore
from fluxmq.model.outcomes import Outcome, QueueOutcome
from fluxmq.queues import commands, migration
from fluxmq.queues.attachments import AttachError, CommitError, ExclusiveError
from fluxmq.queues.commands import CommandKind, Mode, Verb
from fluxmq.queues.config import QueueType
from fluxmq.queues.consumers import ConsumerTerms, GroupConsumer
from fluxmq.queues.dispatch import Dispatch
from fluxmq.queues.machine import Machine
from fluxmq.queues.origins import Identity
from fluxmq.queues.results import Code, Result
from fluxmq.queues.states import QueueState
from fluxmq.replication.ports import Driver
from fluxmq.storage.errors import StorageError

EARLY_MAX = 65_536
"""Maximum number of consumers that wait for a leader; further ones are refused and retry."""


class GroupRequests(ABC):
    """A group as its consumers see it. ``uncommitted``: bytes of appends not yet applied."""

    time: GroupTime
    driver: Driver
    machine: Machine
    dispatch: Dispatch
    logs: dict[int, QueueStore]
    counts: QueueCounts
    uncommitted: int
    failed: str
    replicated: bool
    batch_max: int
    applied_term: int

    def __init__(self) -> None:
        self.ports: dict[GroupConsumer, ConsumerPort] = {}
        self._early: list[
            tuple[AttachRequest, ConsumerPort, Callable[[Attached, ConsumerHandle | None], None]]
        ] = []
        """Consumers that asked to attach before the group had a leader."""
        self._takes: list[tuple[GroupConsumer, GetCallback]] = []
        """Pending gets, in order of arrival."""
        self._statuses: list[tuple[str, StatusCallback]] = []
        self._early_statuses: list[tuple[str, StatusCallback]] = []
        """Status requests that arrived before the group had a leader."""
        self._changing = 0
        """Number of unapplied commands, except appends, that change ready counts."""
        self.migration_fence = MigrationFence()

    @property
    def absent(self) -> bool:
        """True while this node does not lead the group."""
        return self.replicated and not self.driver.leading

    @property
    def closed(self) -> bool:
        """True while this node accepts no commands for the group."""
        return bool(self.failed) or self.absent

    def clock(self) -> int:
        """Return the group's time, in µs, which is that of its next entry."""
        return self.time.now(self.machine.time)

    @property
    def next_due(self) -> int | None:
        """Time of the next timer in µs of the node's steady clock; None unless this node leads."""
        return None if self.closed else self.time.of_node(self.dispatch.next_due())

    @abstractmethod
    def _unused(self, queue: str) -> None:
        """Report a queue whose last consumer has left."""

    @abstractmethod
    def submit(
        self, pieces: Sequence[bytes], done: ResultCallback | None = None, weight: int = 0
    ) -> bool:
        """Add one command to the next entry."""

    @abstractmethod
    def submit_quietly(self, needed: Iterable[bytes]) -> None:
        """Add commands that no caller waits for to an entry within the next few milliseconds."""

    @abstractmethod
    def wake(self) -> None:
        """Schedule the group's work for the end of this tick."""

    @abstractmethod
    def _hand_out(self, queue_id: int) -> bool:
        """Deliver a queue's messages; return whether more can be delivered at once."""

    def _submit_all(self, needed: Sequence[bytes], done: ResultCallback | None) -> None:
        """Submit commands; ``done`` gets the result of the last one, at once if there is none."""
        if done is None:
            self.submit_quietly(needed)
            return
        for command in needed[:-1]:
            self.submit((command,))
        if needed:
            self.submit((needed[-1],), done)
        else:
            done(Result(Code.OK))

    def _change(self, needed: Sequence[bytes], done: ResultCallback | None = None) -> None:
        """Submit commands that gets and counts have to wait for."""
        self._changing += 1

        def applied(result: Result) -> None:
            self._changing -= 1
            if done is not None:
                done(result)

        self._submit_all(needed, applied)

    # Attaching

    def attach(
        self,
        wanted: AttachRequest,
        port: ConsumerPort,
        done: Callable[[Attached, ConsumerHandle | None], None],
    ) -> None:
        """Attach a consumer, once the group leads: a new leader drops earlier consumers."""
        if self.absent and not self.failed:
            done(Attached(Outcome.MOVED, outcome=QueueOutcome.UNAVAILABLE), None)
            return
        if self.migration_fence.is_closed_to(wanted.queue, wanted.asker):
            done(Attached(Outcome.DENIED, outcome=QueueOutcome.LOCKED), None)
            return
        if not self.failed and not self.driver.leading and len(self._early) < EARLY_MAX:
            self._early.append((wanted, port, done))
            return
        state = self.machine.queue(wanted.queue)
        if self.failed or state is None or not self.driver.leading:
            gone = (
                state is None
                and not self.failed
                and not self.migration_fence.moved_away(wanted.queue)
            )
            outcome = QueueOutcome.NO_QUEUE if gone else QueueOutcome.UNAVAILABLE
            done(Attached(Outcome.FAILED, outcome=outcome), None)
            return
        if state.closed:
            done(Attached(Outcome.MOVED, outcome=QueueOutcome.UNAVAILABLE), None)
            return
        stream = state.config.type == QueueType.STREAM
        if is_browser(wanted) and not stream:
            self._browse(state.id, wanted, port, done)
            return
        if not stream and wanted.qos == 0:
            done(Attached(Outcome.FAILED, outcome=QueueOutcome.REFUSED), None)
            return
        try:
            terms = self._terms(state, wanted)
            consumer, needed = self.dispatch.consumers.attach(state.id, terms)
        except (AttachError, StorageError) as error:
            in_use = isinstance(error, ExclusiveError)
            outcome = QueueOutcome.EXCLUSIVE if in_use else QueueOutcome.REFUSED
            done(Attached(Outcome.FAILED, outcome=outcome), None)
            return
        self.ports[consumer] = port
        handle = LocalHandle(self, consumer)
        primary = state.config.primary_group if stream else ""
        answer = Attached(0, consumer.group_name, stream, primary)

        def applied(result: Result) -> None:
            if result.ok:
                done(answer, handle)
            else:
                self.ports.pop(consumer, None)
                self._submit_all(self.dispatch.consumers.detach(consumer), None)
                done(Attached(reason_of(result), outcome=outcome_of(result)), None)

        self._submit_all(needed, applied)

    def _browse(
        self,
        queue_id: int,
        wanted: AttachRequest,
        port: ConsumerPort,
        done: Callable[[Attached, ConsumerHandle | None], None],
    ) -> None:
        """Attach a browser, which no entry of the log knows."""
        assert wanted.start is not None
        terms = ConsumerTerms(
            wanted.group,
            wanted.member,
            limit=wanted.limit,
            automatic=True,
            browsing=True,
            abroad=wanted.abroad,
        )
        consumer = self.dispatch.consumers.browse(queue_id, terms, wanted.start[1])
        self.ports[consumer] = port
        self._touch(queue_id)
        self.wake()
        done(Attached(0), LocalHandle(self, consumer))

    def _terms(self, state: QueueState, wanted: AttachRequest) -> ConsumerTerms:
        """Return the terms of a consumer that is no browser. Raises `StorageError`."""
        return ConsumerTerms(
            wanted.group,
            wanted.member,
            Mode.STREAM if state.is_stream else Mode.WORK,
            wanted.pattern,
            self._start(state.id, wanted.start),
            wanted.limit,
            auto_commit=not wanted.explicit,
            priority=wanted.priority,
            exclusive=wanted.exclusive,
            automatic=wanted.automatic,
            taking=wanted.taking,
            temporary=wanted.temporary,
            timeout=wanted.timeout,
            activity=wants_activity(wanted),
            abroad=wanted.abroad,
        )

    def _start(self, queue_id: int, start: tuple[str, int] | None) -> commands.Start | None:
        if start is None:
            return None
        word, number = start
        if word == "interval":
            word, number = "timestamp", max(self.clock() - number, 0)
        if word == "timestamp":
            return (commands.StartPosition.OFFSET, self.logs[queue_id].offset_at(number))
        if word == "offset":
            return (commands.StartPosition.OFFSET, number)
        return {"first": commands.FIRST, "last": commands.LAST, "next": commands.NEXT}[word]

    def _attach_early(self) -> None:
        early, self._early = self._early, []
        for wanted, port, done in early:
            self.attach(wanted, port, done)

    # Settlements and credit

    def settle(
        self,
        consumer: GroupConsumer,
        verb: int,
        ranges: Sequence[Range],
        delay: int,
        reason: bytes,
        done: AppendCallback | None,
    ) -> None:
        """Settle messages that a consumer holds."""
        if self.closed:
            if done is not None:
                done(Outcome.FAILED)
            return
        settlement = self.dispatch.consumers.settle(
            consumer, verb, ranges, self.clock(), delay, reason
        )
        self.counts.settled[verb] += settlement.settled
        acknowledged = verb == Verb.ACK
        if acknowledged:
            self.machine.traffic.of(consumer.queue_id).acked += settlement.settled
        self.wake()
        answer: ResultCallback | None = None
        if done is not None:
            asked = done
            missing = settlement.missing

            def applied(result: Result) -> None:
                asked(Outcome.NOT_PENDING if missing else reason_of(result))

            answer = applied
        if acknowledged or not settlement.commands:
            self._submit_all(settlement.commands, answer)
        else:
            self._change(settlement.commands, answer)

    def commit(self, consumer: GroupConsumer, offset: int, done: AppendCallback | None) -> None:
        """Commit a stream group's position: nothing below ``offset`` is needed any more."""
        answer = None if done is None else answering(done)
        if self.closed:
            if done is not None:
                done(Outcome.FAILED)
            return
        try:
            needed = self.dispatch.consumers.commit(consumer, offset)
        except CommitError:
            if done is not None:
                done(Outcome.NOT_PENDING)
            return
        self._submit_all(needed, answer)

    def set_limit(self, consumer: GroupConsumer, limit: int) -> None:
        """Set a consumer's prefetch limit (maximum number of unacked messages)."""
        if self.closed:
            return
        self.dispatch.consumers.set_limit(consumer, limit)
        self.wake()

    def stop(self, consumer: GroupConsumer) -> None:
        """Stop deliveries to a consumer and no longer count it; it may still settle messages."""
        if consumer in self.ports and not self.closed:
            self._submit_all(self.dispatch.consumers.stop(consumer), None)
            self.wake()
            self._perhaps_unused(consumer)

    def detach(self, consumer: GroupConsumer) -> None:
        """Detach a consumer and requeue what it holds."""
        if self.ports.pop(consumer, None) is not None and not self.closed:
            stopped = consumer.stopped
            self._change(self.dispatch.consumers.detach(consumer))
            if not stopped:
                self._perhaps_unused(consumer)

    def _perhaps_unused(self, consumer: GroupConsumer) -> None:
        """Report the queue as unused if this was its last consumer."""
        state = self.machine.queues.get(consumer.queue_id)
        if state is None or consumer.taking or consumer.terms.browsing:
            return
        if not self.dispatch.consumers.in_use(consumer.queue_id):
            self._unused(state.config.name)

    # Getting and counting

    def take(self, consumer: GroupConsumer, done: GetCallback) -> None:
        """Get one message for a consumer; ``done`` also gets the number of ready ones behind it."""
        if self.closed or consumer not in self.ports:
            done(False, 0)
            return

        def asked(_result: Result) -> None:
            self._takes.append((consumer, done))
            self.wake()

        self._after_changes(asked)

    def status(self, queue: str, done: StatusCallback) -> None:
        """Count a queue's messages and consumers; counts as a use. Waits until the group leads."""
        if self.closed:
            done(QueueStats(QueueOutcome.UNAVAILABLE))
            return
        if not self.driver.leading and len(self._early_statuses) < EARLY_MAX:
            self._early_statuses.append((queue, done))
            return

        def asked(_result: Result) -> None:
            self._statuses.append((queue, done))
            self.wake()

        self._after_changes(asked)

    def _ask_early(self) -> None:
        """Answer status requests that waited for the group to lead."""
        early, self._early_statuses = self._early_statuses, []
        for queue, done in early:
            self.status(queue, done)

    def _after_changes(self, action: ResultCallback) -> None:
        """Run ``action`` once earlier requests that may change the counts are applied."""
        if (self.uncommitted or self._changing) and not self.failed:
            self.submit((commands.raise_version(self.machine.version),), action)
        else:
            action(Result(Code.OK))

    def serve(self) -> bool:
        """Answer pending gets and status requests; return whether more can be done at once."""
        more = False
        takes, self._takes = self._takes, []
        for consumer, done in takes:
            if consumer not in self.ports:
                done(False, 0)
                continue
            if consumer.terms.browsing:
                more |= self._hand_out(consumer.queue_id)
                done(True, self.dispatch.consumers.unseen(consumer))
                continue
            self.dispatch.consumers.credit(consumer, 1)
            more |= self._hand_out(consumer.queue_id)
            if not consumer.credit:
                self._touch(consumer.queue_id)
                done(True, self.dispatch.consumers.counts(consumer.queue_id)[0])
                continue
            self.dispatch.consumers.credit(consumer, -1)
            if self.dispatch.consumers.may_give(consumer):
                self._takes.append((consumer, done))
            else:
                self._touch(consumer.queue_id)
                done(False, 0)
        statuses, self._statuses = self._statuses, []
        for queue, told in statuses:
            told(self._status(queue))
        return more

    @property
    def asked_to_serve(self) -> bool:
        """True while a get or a status request is pending."""
        return bool(self._takes or self._statuses)

    def _status(self, queue: str) -> QueueStats:
        state = self.machine.queue(queue)
        if self.failed or not self.driver.leading:
            return QueueStats(QueueOutcome.UNAVAILABLE)
        if state is None or state.closed:
            moves = state is not None or self.migration_fence.moved_away(queue)
            return QueueStats(QueueOutcome.UNAVAILABLE) if moves else NOTHING
        self._touch(state.id)
        return QueueStats(QueueOutcome.OK, *self.dispatch.consumers.counts(state.id))

    def _touch(self, queue_id: int) -> None:
        state = self.machine.queues.get(queue_id)
        if state is not None and state.config.expires and state.idle_since:
            self.submit_quietly([commands.touch(queue_id)])

    def _refuse_waiting(self) -> None:
        """Answer pending gets with nothing and status requests with UNAVAILABLE."""
        takes, self._takes = self._takes, []
        statuses = [*self._statuses, *self._early_statuses]
        self._statuses, self._early_statuses = [], []
        for _, taken in takes:
            taken(False, 0)
        for _, told in statuses:
            told(QueueStats(QueueOutcome.UNAVAILABLE))

    # Removing

    def purge(self, queue: str, done: StatusCallback) -> None:
        """Drop a queue's ready messages; ``done`` gets their number."""
        state = self._named(queue, done)
        if state is not None:
            self._change((commands.purge(state),), self._telling(done))

    def delete(self, queue: str, if_unused: bool, if_empty: bool, done: StatusCallback) -> None:
        """Delete a queue; ``done`` gets the number of ready messages, or the error."""
        state = self._named(queue, done)
        if state is not None:
            self._change((commands.delete(state, if_unused, if_empty),), self._telling(done))

    def _named(self, queue: str, done: StatusCallback) -> int | None:
        """Return a queue's id, or None after ``done`` got the reason why it is unavailable here."""
        state = self.machine.queue(queue)
        if self.failed or not self.driver.leading:
            done(QueueStats(QueueOutcome.UNAVAILABLE))
        elif state is None:
            moved = self.migration_fence.moved_away(queue)
            done(QueueStats(QueueOutcome.UNAVAILABLE) if moved else NOTHING)
        else:
            return state.id
        return None

    @staticmethod
    def _telling(done: StatusCallback) -> ResultCallback:
        def applied(result: Result) -> None:
            outcome = outcome_of(result)
            if outcome is QueueOutcome.IN_USE:
                done(QueueStats(outcome, consumers=result.value))
            else:
                done(QueueStats(outcome, result.value))

        return applied

    # Moving a queue to another group

    def fence(self, queue: str, done: ResultCallback) -> None:
        """Fence a queue that will move, holding up appends; ``done`` gets the fence's number."""
        state = self.machine.queue(queue)
        if state is None or self.closed:
            done(Result(Code.NO_QUEUE if state is None else Code.LOST))
            return
        self.migration_fence.fencing.add(queue)

        def applied(result: Result) -> None:
            self.migration_fence.fencing.discard(queue)
            done(result)

        self._change((commands.fence(state.id),), applied)

    def _holds(
        self,
        queue: str,
        state: QueueState | None,
        identity: Identity | None,
        done: AppendCallback | None,
    ) -> bool:
        """Return whether an append must wait because its queue moves; ``done`` gets FENCED."""
        if self.closed or not self.migration_fence.holds(queue, state, identity):
            return False
        if done is not None:
            done(Outcome.FENCED)
        return True

    def _is_of_another_term(self, identity: Identity) -> bool:
        """Return whether an append was sent to an earlier term of this leader: those before it were
        lost with that term and will be retried after it."""
        term = identity.term
        return self.replicated and not self.absent and term not in (0, self.applied_term)

    def _is_fencing(self, queue_id: int) -> bool:
        """Return whether a fence is in flight: a delivery made now would be repeated."""
        return self.machine.queues[queue_id].name in self.migration_fence.fencing

    def unfence(self, queue: str, done: ResultCallback) -> None:
        """Reopen a queue whose move was cancelled."""
        state = self.machine.queue(queue)
        if state is None or self.closed:
            done(Result(Code.NO_QUEUE if state is None else Code.LOST))
            return
        self._change((commands.unfence(state.id),), done)

    def carry(self, queue: str, kind: int, body: bytes, done: ResultCallback) -> None:
        """Carry out a command (of `migration.CARRIED`) about a queue from another group."""
        state = self.machine.queue(queue)
        if self.closed or not self.driver.leading:
            done(Result(Code.LOST))
        elif kind not in migration.CARRIED or len(body) > self.batch_max:
            done(Result(Code.TOO_LARGE))
        elif state is None and kind != CommandKind.ADOPT:
            done(Result(Code.NO_QUEUE))
        else:
            queue_id = 0 if state is None else state.id
            self.submit(migration.command(kind, queue_id, body), done, len(body))

    # The end

    def dismiss_consumers(self) -> None:
        """Detach every consumer: commit what it has read, requeue what it holds."""
        for consumer in self.ports:
            self._submit_all(self.dispatch.consumers.detach(consumer), None)
        self.cancel_consumers()

    def cancel_consumers(self) -> None:
        """Cancel every consumer."""
        ports, self.ports = self.ports, {}
        for port in ports.values():
            port.cancelled()


class LocalHandle:
    """A consumer of a group of this shard."""

    def __init__(self, group: GroupRequests, consumer: GroupConsumer) -> None:
        self._group = group
        self._consumer = consumer

    def settle(
        self,
        verb: int,
        ranges: Sequence[Range],
        delay: int,
        reason: bytes,
        done: AppendCallback | None,
    ) -> None:
        """Settle messages."""
        self._group.settle(self._consumer, verb, ranges, delay, reason, done)

    def commit(self, offset: int, done: AppendCallback | None) -> None:
        """Commit a stream's offset."""
        self._group.commit(self._consumer, offset, done)

    def set_limit(self, limit: int) -> None:
        """Set the maximum number of unacked messages."""
        self._group.set_limit(self._consumer, limit)

    def take(self, done: GetCallback) -> None:
        """Get one message."""
        self._group.take(self._consumer, done)

    def stop(self) -> None:
        """Stop deliveries."""
        self._group.stop(self._consumer)

    def detach(self) -> None:
        """Detach."""
        self._group.detach(self._consumer)

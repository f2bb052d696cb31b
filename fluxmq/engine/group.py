"""A replication group on its host shard; batches its commands into one entry per tick.

Requests become commands, which are collected during a tick and proposed as one entry at its end.
Once committed, the entry is applied: the state machine returns each command's result for its
caller, and reports what to store and deliver. Deliveries do not await their claim's entry. Entries
of queues that deliver before the sync are applied earlier (`AheadOfSync`).

The group touches no file or socket: ``driver`` makes entries durable, ``stores`` holds batches, and
consumers are ports. The driver of an in-memory group (ephemeral queues) commits at once.

Longer than 500 lines because every change to a group goes through one entry and answers come back
by the same fields.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, cast

from fluxmq.engine.ahead_of_sync import AheadOfSync, Requested
from fluxmq.engine.answers import ResultCallback, answering, worst_of
from fluxmq.engine.batch_slices import apart, is_timed, shifted
from fluxmq.engine.counts import LOCKED, REFUSALS, QueueCounts
from fluxmq.engine.group_requests import GroupRequests
from fluxmq.engine.group_time import GroupTime
from fluxmq.engine.ports import ActivityPort, AppendCallback
from fluxmq.engine.proposal_buffer import ProposalBuffer
from fluxmq.engine.state_ports import QueueStores
from fluxmq.engine.store_writes import StoreWrites
from fluxmq.engine.waiting_answers import WaitingAnswers, is_early
from fluxmq.logs import get_logger
from fluxmq.model.batch_format import Batch
from fluxmq.model.outcomes import Outcome
from fluxmq.queues import commands, migration
from fluxmq.queues.config import Overflow, QueueConfig
from fluxmq.queues.consumers import DeadLetter
from fluxmq.queues.dispatch import Dispatch
from fluxmq.queues.machine import Machine, NewerSnapshotError, SnapshotError
from fluxmq.queues.origins import Identity
from fluxmq.queues.results import Applied, Code, Result
from fluxmq.queues.states import QueueState
from fluxmq.replication.ports import Driver
from fluxmq.storage.errors import Corruption, Misfit, StorageError

ENTRY_BYTES_MAX = 4 << 20
"""Maximum bytes of commands per entry, unless one command is larger; bounds writes and recovery."""
RUN_MESSAGES_MAX = 4096
"""Maximum number of messages delivered from one queue before others get their turn."""

_log = get_logger("fluxmq.queues")


class GroupEvents(Protocol):
    """Follows a group and its queues."""

    def leads(self, group: ReplicationGroup, /) -> None:
        """Note that the group leads here."""

    def declared(self, group: ReplicationGroup, config: QueueConfig, /) -> None:
        """Note a queue that is declared, or declared again with other arguments."""

    def deleted(self, group: ReplicationGroup, queue: str, /) -> None:
        """Note a queue that is deleted."""

    def refused(self, config: QueueConfig, batch: bytes, /) -> None:
        """Take a batch that a full queue rejected, for its dead-letter exchange."""

    def unused(self, queue: str, /) -> None:
        """Note a queue whose last consumer has left."""


class UnobservedGroup:
    """Implements ``GroupEvents`` for a group that nothing follows."""

    def leads(self, group: ReplicationGroup, /) -> None:
        """Ignore."""

    def declared(self, group: ReplicationGroup, config: QueueConfig, /) -> None:
        """Ignore."""

    def deleted(self, group: ReplicationGroup, queue: str, /) -> None:
        """Ignore."""

    def refused(self, config: QueueConfig, batch: bytes, /) -> None:
        """Ignore."""

    def unused(self, queue: str, /) -> None:
        """Ignore."""


UNOBSERVED_GROUP = UnobservedGroup()


class ReplicationGroup(GroupRequests):
    """A replication group hosted by this shard."""

    def __init__(
        self,
        name: str,
        stores: QueueStores,
        mark: Callable[[ReplicationGroup], None],
        dead_letter: Callable[[ReplicationGroup, DeadLetter], None],
        clock: Callable[[], int],
        auto_commit_us: int,
        uncommitted_max: int,
        entry_max: int = ENTRY_BYTES_MAX,
    ) -> None:
        super().__init__()
        self.name = name
        self.time = GroupTime(clock)
        self.is_timed: Callable[[], bool] = lambda: True
        """Returns whether the time of day is known; no leader acts before."""
        self.stores = stores
        self.machine = Machine()
        self.dispatch = Dispatch(self.machine, self._read, auto_commit_us)
        self.logs = {}
        self.uncommitted = 0
        """Bytes of appends that are not yet applied."""
        self.applied_index = 0
        self.applied_term = 0
        self.applied_bytes = 0
        """Bytes of entries applied since the last checkpoint."""
        self.batch_max = 1 << 30
        """Maximum bytes of a batch that the log and the segments can hold."""
        self.full = False
        """True while the disk has no room for appends; everything else continues."""
        self.writes = StoreWrites(self.logs)
        self.failed = ""
        """Reason for which this group accepts nothing any more; empty while it works."""
        self.replicated = False
        """True if other nodes have replicas too; commands are then accepted on the leader only."""
        self.answers = WaitingAnswers(
            AheadOfSync(
                self.machine,
                self.dispatch.consumers,
                self.logs,
                self.writes,
                self._answer,
                self.write,
            )
        )
        self.on_applied: Callable[[], None] = lambda: None
        """Called after an entry is applied and its effects on queues are carried out."""
        self.leaving = False
        """True while the group prepares to move to another shard; nothing is delivered any more."""
        self.counts = QueueCounts()
        self.events: GroupEvents = UNOBSERVED_GROUP
        self._mark = mark
        self._dead_letter = dead_letter
        self._uncommitted_max = uncommitted_max
        self._entry_max = entry_max
        self.asked = ProposalBuffer(clock, self.dispatch.joined)
        self._proposed: deque[tuple[int, int, list[tuple[ResultCallback | None, int]]]] = deque()

    # Requests

    def submit(
        self, pieces: Sequence[bytes], done: ResultCallback | None = None, weight: int = 0
    ) -> bool:
        """Add one command, given in pieces, to the next entry. ``weight``: uncommitted bytes.

        Return False above the high watermark.
        """
        if self.closed:
            if done is not None:
                done(Result(Code.CONFLICT if self.failed else Code.LOST))
            return True
        self.asked.add(pieces, done, weight)
        self.uncommitted += weight
        self._mark(self)
        return not self.above_high_watermark

    def submit_quietly(self, needed: Iterable[bytes]) -> None:
        """Add commands that no caller waits for to an entry within the next few milliseconds."""
        if not self.closed:
            for command in needed:
                self.asked.add_quietly(command)
            self._mark(self)

    def append(
        self,
        queue: str,
        batch: bytes,
        done: AppendCallback | None,
        identity: Identity | None = None,
        by_address: bool = False,
    ) -> bool:
        """Append a batch to a queue; call ``done`` with 0 once it is durable, else with a reason
        code. An append with an ``identity`` takes effect once, however often it is retried.
        ``by_address``: reject it if the queue is closed to MQTT clients."""
        if identity is not None and self._is_of_another_term(identity):
            if done is not None:
                done(Outcome.MOVED)
            return True
        if by_address and self.migration_fence.is_closed_to(queue, ""):
            self._refuse_stranger(done)
            return True
        state = self.machine.queue(queue)
        if (state is None or state.closed or self.migration_fence.busy) and self._holds(
            queue, state, identity, done
        ):
            return True
        refusal = self.refusal(state, batch)
        if refusal or state is None:
            self.counts.refused[self._refused_for(state)] += 1
            if done is not None:
                done(refusal)
            return True
        if state.config.overflow != Overflow.DROP_HEAD and state.bounded:
            pieces = apart(batch)
            if len(pieces) > 1:
                return self._append_apart(queue, pieces, done, identity)
        answer = None if done is None else answering(done)
        if state.config.overflow == Overflow.REJECT_PUBLISH_DLX:
            answer = self._or_dead_letter(state.config, batch, answer)
        answer = self.answers.marked(state.config, answer)
        depth_max = state.config.max_depth
        if state.bounded or (depth_max and state.depth > depth_max // 2):
            self.asked.close()  # what has been settled makes room
        spare = self.dispatch.consumers.spare(state) if state.bounded else 0
        batch = self._in_own_time(batch)
        if identity is None:
            header = commands.append_header(state.id, len(batch), spare)
        else:
            header = commands.append_header_once(state.id, len(batch), spare, identity)
        return self.submit((header, batch), answer, len(batch))

    def _in_own_time(self, batch: bytes) -> bytes:
        """Return the batch with its timestamps, if any, shifted to the group's time."""
        ahead = self.time.shift(self.machine.time) if is_timed(batch) else 0
        return shifted(batch, ahead) if ahead else batch

    def _append_apart(
        self,
        queue: str,
        pieces: list[bytes],
        done: AppendCallback | None,
        identity: Identity | None,
    ) -> bool:
        """Append messages that were batched by chance to a bounded queue one by one.

        If only some fit, the answer is "full": some are stored, and a retry may duplicate them.
        """
        answered = worst_of(len(pieces), done)
        room = True
        for at, piece in enumerate(pieces):
            own = None if identity is None else identity.numbered(identity.number + at)
            room &= self.append(queue, piece, answered, own)
        return room

    def _refuse_stranger(self, done: AppendCallback | None) -> None:
        """Reject a publish by an MQTT client to the address of a queue that is closed to it."""
        self.counts.refused[LOCKED] += 1
        if done is not None:
            done(Outcome.DENIED)

    def _or_dead_letter(
        self, config: QueueConfig, batch: bytes, done: ResultCallback | None
    ) -> ResultCallback:
        """Return a callback that dead-letters the batch if the queue is full."""

        def applied(result: Result) -> None:
            if result.code == Code.FULL:
                self.events.refused(config, batch)
            if done is not None:
                done(result)

        return applied

    def _unused(self, queue: str) -> None:
        """Report a queue whose last consumer has left."""
        self.events.unused(queue)

    def refusal(self, state: QueueState | None, batch: bytes) -> int:
        """Return the outcome of an append that is rejected up front; 0 to accept it."""
        if self.failed:
            return Outcome.FAILED
        if self.absent:
            return Outcome.MOVED
        if state is None:
            return Outcome.FAILED
        if self.full:
            return Outcome.OVER_LIMIT
        return Outcome.OVER_LIMIT if len(batch) > self.batch_max else 0

    def _refused_for(self, state: QueueState | None) -> str:
        if self.failed or state is None:
            return "failed" if self.failed else "no_queue"
        return "disk_full" if self.full else "too_large"

    def declare(self, config: QueueConfig, done: ResultCallback | None = None) -> None:
        """Declare a queue or change its configuration, at once since publishes may follow."""
        self._change((commands.declare(config),), done)

    def lead(self) -> None:
        """Start to accept commands as the leader."""
        now = self.clock()
        others = now if self.replicated else 0
        self.submit_quietly(self.dispatch.lead(self.applied_term, others))
        self._attach_early()
        self._mark(self)
        self.events.leads(self)
        self._ask_early()

    def when_applied(self, done: Callable[[], None]) -> None:
        """Call ``done`` when everything requested so far is applied, or never will be."""
        # A command about no queue changes nothing.
        self.submit((commands.touch(0),), lambda _result: done())

    def wake(self) -> None:
        """Schedule this group's work for the end of the tick."""
        self._mark(self)

    # The tick

    def work(self) -> bool:
        """Deliver messages and propose pending commands; return whether more can be done at once.

        An internal or disk error fails this group and no other: nothing may build on half a tick.
        """
        if self.failed:
            return False
        if not self.driver.leading:
            self.driver.catch_up()
            return False
        return self.is_timed() and self._guarded(self._work)

    def propose(self) -> bool:
        """Propose pending commands if possible; return whether it was. Errors as in `work`."""
        driver = self.driver
        if self.failed or not driver.leading:
            return False
        if not driver.writable and not self._need_not_wait():
            return False
        return self.is_timed() and self._guarded(self._propose_all)

    def _need_not_wait(self) -> bool:
        """Return whether the next command is proposed while a sync is in flight."""
        ahead = self.answers.ahead
        return ahead.wanted and not ahead.settling and self.asked.leading(ahead.accepts) > 0

    def _guarded(self, action: Callable[[], bool]) -> bool:
        try:
            return action()
        except Exception as error:  # noqa: BLE001 (the group's outermost frame)
            _log.exception("a group has failed", extra={"group": self.name})
            self.fail(repr(error))
            if isinstance(error, Corruption):
                self.driver.damaged(str(error))
            return False

    def _work(self) -> bool:
        more = False
        if not self.leaving:
            for queue_id in self.dispatch.due(self.clock()):
                if not self.migration_fence.fencing or not self._is_fencing(queue_id):
                    more |= self._hand_out(queue_id)
            if self.asked_to_serve:
                more |= self.serve()
        for consumer in self.dispatch.consumers.cancelled():
            port = self.ports.pop(consumer, None)
            if port is not None:
                port.cancelled()
        if self.driver.writable and (self.asked.ready or not self.asked.linger_us):
            self._propose_all()  # `propose` has already considered pending commands
        return more

    def _propose_all(self) -> bool:
        asked = self.asked
        if not self.driver.writable:
            while self._need_not_wait() and self._propose():
                pass
            return True
        if not asked.due(at_once=self.leaving):
            return False
        while self._propose() and asked.ready:
            pass
        return True

    def _hand_out(self, queue_id: int) -> bool:
        step = self.dispatch.run(queue_id, self.clock(), RUN_MESSAGES_MAX)
        for command in step.commands:
            self.asked.add_quietly(command)  # the caller checks for pending commands next
        for consumer, active in step.activity:
            watcher = self.ports.get(consumer)
            if watcher is not None:
                cast(ActivityPort, watcher).activity(active)
        committed = self.machine.queues[queue_id].primary_progress() if step.deliveries else -1
        for each in step.deliveries:
            port = self.ports.get(each.consumer)
            if port is not None:
                self.counts.delivered += each.count
                taker = each.consumer
                self.machine.traffic.delivered(
                    queue_id, each.count, each.attempts > 1, taker.taking, taker.automatic
                )
                port.deliver(each.batch, each.first, each.count, each.attempts, committed)
        for dead in step.dead:
            self._dead_letter(self, dead)
        return step.more

    def _propose(self) -> bool:
        """Propose one entry of pending commands; return False if too many are in flight."""
        ahead = self.answers.ahead
        apart = self.asked.leading(ahead.accepts) if ahead.wanted else 0
        pieces, answers = self.asked.entry(self._entry_max, apart)
        proposed = self.driver.propose(commands.encode_entry(self.clock(), pieces))
        if proposed is None:
            return False
        self.asked.proposed(len(answers))
        self._proposed.append((*proposed, answers))
        self.driver.pump()
        return True

    # State

    def join(self, driver: Driver, replicated: bool) -> None:
        """Use this driver. ``replicated``: other nodes have replicas too."""
        self.driver = driver
        self.replicated = replicated
        self.answers.in_sync = driver.in_sync
        self.answers.ahead.alone = not replicated

    def restore(self, index: int, term: int, snapshot: bytes, origin: str) -> None:
        """Begin with the state after an entry, and open the stores of its queues.

        Raises Corruption, Misfit if a newer version wrote the snapshot, and other StorageErrors.
        """
        try:
            self.machine.restore(snapshot)
        except NewerSnapshotError as error:
            raise Misfit(origin, 0, str(error)) from error
        except (ValueError, SnapshotError) as error:
            raise Corruption(origin, 0, str(error)) from error
        for queue_id, queue in self.machine.queues.items():
            self._open(queue_id, queue.config.name)
        self.applied_index, self.applied_term = index, term

    def snapshot(self) -> bytes:
        """Return the state after the last entry applied."""
        self.applied_bytes = 0
        return self.machine.snapshot()

    def digest(self) -> int:
        """Return a hash of everything applied so far."""
        return self.machine.state_hash()

    def recovered(self) -> None:
        """Have stores that are incomplete for lack of disk space completed by their next write."""
        for queue_id in self.logs:
            self.writes.opened(queue_id)

    def flush(self) -> bool:
        """Write buffered data; return False if some waits for space or a descriptor."""
        self.answers.ahead.settle()
        if self.writes.waiting:
            self.write()
        return not (self.writes.refused or self.writes.held)

    # Committed entries

    def apply(self, index: int, term: int, data: bytes | None) -> None:
        """Apply a committed entry; None: one of the driver's own, without commands."""
        answers = self._answers_of(index, term)
        ahead = self.answers.ahead
        if data is None:
            self.applied_index, self.applied_term = index, term
            self.on_applied()
            return
        try:
            applied = self.machine.apply(index, term, data)
            if ahead.is_ahead(index):
                ahead.carries_out(applied)
            self._carry_out(applied)
        except BaseException:
            # The group fails now, and answers the callers that it still knows.
            self._proposed.appendleft((index, term, answers))
            raise
        self.applied_index, self.applied_term = index, term
        self.applied_bytes += len(data)
        self.on_applied()
        if ahead.is_ahead(index):
            ahead.hold(index, answers, applied.results)
        else:
            self._answer(index, answers, applied.results)
        woken = self.dispatch.applied(applied)
        if not self.driver.leading:
            return  # followers deliver nothing, and a new leader looks at every queue
        if woken or self.asked or self.asked_to_serve or applied.deleted or applied.voided:
            self._mark(self)

    def _answer(self, index: int, answers: Requested, results: Sequence[Result]) -> None:
        """Answer the commands of an applied entry."""
        for (done, weight), result in zip(answers, results, strict=False):
            self.uncommitted -= weight
            if weight and result.code in REFUSALS:
                self.counts.refused[REFUSALS[Code(result.code)]] += 1
            if done is not None:
                self.answers.answer(index, done, result)

    def _answers_of(self, index: int, term: int) -> list[tuple[ResultCallback | None, int]]:
        proposed = self._proposed
        while proposed and proposed[0][0] < index:
            self._lose(proposed.popleft()[2])
        if proposed and proposed[0][0] == index:
            _, proposed_term, answers = proposed.popleft()
            if proposed_term == term:
                return answers
            self._lose(answers)
        return []

    def _lose(self, answers: list[tuple[ResultCallback | None, int]]) -> None:
        """Answer commands that will never be applied."""
        for done, weight in answers:
            self.uncommitted -= weight
            if done is not None:
                done(Result(Code.LOST))

    def answer_written(self, index: int) -> None:
        """Answer appends that wait only for this node's disk, which has the log up to ``index``."""
        for proposed, _, answers in self._proposed:
            if proposed > index:
                break
            for at, (done, weight) in enumerate(answers):
                if done is not None and is_early(done):
                    answers[at] = (None, weight)
                    done(Result(Code.OK))

    def _carry_out(self, applied: Applied) -> None:
        gone: set[int] = set()
        if applied.deleted or applied.declared or applied.configured:
            gone = self._change_queues(applied)
        leading = self.driver.leading
        for queue_id, batch in applied.batches:
            self.counts.appended += batch.count
            if queue_id not in gone:
                if leading:
                    self.machine.traffic.of(queue_id).published += batch.count
                self.writes.append(queue_id, batch)
        self.writes.applied(applied.time)
        for queue_id, start in applied.trims:
            if queue_id not in gone:
                # Retention by age can empty a stream: delete the data without waiting for the next
                # message.
                stream = self.machine.queues[queue_id].is_stream
                self.writes.trim(queue_id, start, purge=stream)
        if self.writes.refused:
            self.full = True

    def _change_queues(self, applied: Applied) -> set[int]:
        """Carry out declarations, changes and deletions; return ids of deleted queues."""
        # Deletions go first: a queue declared in the same entry may reuse the name, hence the
        # directory.
        gone = {queue_id for queue_id, _ in applied.deleted}
        for queue_id, name in applied.deleted:
            self._delete(queue_id, name)
        for queue_id in applied.declared:
            if queue_id not in gone:
                state = self.machine.queues[queue_id]
                self._open(queue_id, state.name)
                self.logs[queue_id].arriving = migration.is_arriving(state)
                if self.logs[queue_id].arriving:
                    self.logs[queue_id].begin_at(state.kept)
                else:
                    self.events.declared(self, state.config)
        for queue_id in applied.configured:
            if queue_id not in gone:
                self._bound(queue_id)
        return gone

    def _delete(self, queue_id: int, name: str) -> None:
        """Delete a queue's store; a queue declared by the same entry has none."""
        if self.logs.pop(queue_id, None) is not None:
            self.writes.forget(queue_id)
            self.stores.delete(queue_id, name)
        if self.migration_fence.busy:
            self.migration_fence.forget(name)
        self.events.deleted(self, name)

    def write(self) -> bool:
        """Write buffered data; return False if some waits for space. A disk error fails the
        group."""
        try:
            self.writes.write()
        except StorageError as error:
            _log.exception("a group has failed", extra={"group": self.name})
            self.fail(repr(error))
        self.full = self.full or bool(self.writes.refused)
        return not self.writes.refused

    def _open(self, queue_id: int, name: str) -> None:
        """Open a queue's store."""
        if queue_id not in self.logs:
            self.logs[queue_id] = self.stores.open(queue_id, name)
            self._bound(queue_id)
            self.writes.opened(queue_id)

    def _bound(self, queue_id: int) -> None:
        """Apply the configured limits to a queue's store, before any batch of the same entry."""
        config = self.machine.queues[queue_id].config
        limits = (config.max_segment_bytes, config.max_in_memory_length, config.max_in_memory_bytes)
        self.logs[queue_id].bound(*limits)

    def _read(self, queue_id: int, offset: int) -> Batch:
        return self.logs[queue_id].read(offset)

    # The end

    def fail(self, why: str) -> None:
        """Stop acknowledging: reject pending requests and cancel consumers."""
        self.failed = why
        self.writes.clear()
        self._end(Result(Code.CONFLICT))
        self._attach_early()

    def follow(self) -> None:
        """Step down; pending requests may or may not take effect."""
        self._end(Result(Code.LOST))

    def _end(self, result: Result) -> None:
        """Answer all pending requests with ``result`` and drop all consumers."""
        answers = self.answers.ahead.end()
        answers += [answer for _, _, some in self._proposed for answer in some]
        answers += self.asked.clear()
        self._proposed.clear()
        self.dispatch.reset()
        for done, weight in answers:
            self.uncommitted -= weight
            if done is not None:
                done(result)
        self.answers.end(result)
        self.migration_fence.clear()
        self._refuse_waiting()
        self.cancel_consumers()

    @property
    def above_high_watermark(self) -> bool:
        """True while appends in flight exceed the high watermark."""
        return self.uncommitted + self.writes.held_bytes > self._uncommitted_max

    @property
    def below_low_watermark(self) -> bool:
        """True below the low watermark, so that paused publishers may resume."""
        under_way = self.uncommitted + self.writes.held_bytes
        return under_way * 2 <= self._uncommitted_max or bool(self.failed)

    @property
    def idle(self) -> bool:
        """True while nothing is in flight."""
        return not self._proposed and not self.asked and self.answers.ahead.idle

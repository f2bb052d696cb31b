"""Moves queues to other replication groups as the topology demands, carried out by the leader of
the source group.

A move is a fact of the topology (`routing/topology/migrations`): the queue's row names the target.
Nothing about it is only in memory, so the next leader continues it::

    copying    batches are imported by the target at their own offsets; the queue stays in use
    fencing    once all batches are there or in flight, the queue is closed; clients wait
    draining   what came meanwhile is copied, no more than a window
    installing the rest of the queue's state: settlements, x-death, cursors, producers
    deciding   the row names the target: one owner before and one after, and no way back
    over       waiting appends and consumers go there (`engine/clients`); the rest is deleted

Until the decision the source queue is whole, so an abort, or a fence that lasts too long, just
reopens it. The target owns the copied data only once the row says so, and deletes it when no row
mentions it. Writing publishes to both groups would keep the pause as short, but is not
needed: what remains to be copied behind the fence is bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Protocol

from fluxmq.engine.answers import ResultCallback
from fluxmq.engine.batch_slices import cut
from fluxmq.engine.group import ReplicationGroup
from fluxmq.logs import get_logger
from fluxmq.model.errors import FluxmqError
from fluxmq.queues import migration
from fluxmq.queues.commands import CommandKind
from fluxmq.queues.results import Code, Result
from fluxmq.queues.states import QueueState as State
from fluxmq.routing.topology.changes import AbortMigration, Change, DropOwner, FinishMigration
from fluxmq.routing.topology.queue_config import TYPES
from fluxmq.routing.topology.records import QUEUE, QueueRecord
from fluxmq.routing.topology.refusals import PRECONDITION_FAILED, Refusal
from fluxmq.routing.topology.topology import Topology, TopologyRow
from fluxmq.shards.amqp.declared import is_meant_to_arrive
from fluxmq.shards.amqp.sync_limits import WINDOW_BYTES, CopyWindow, SyncLimits

STATE_BYTES_MAX: Final = 3 << 20
"""Maximum size of a queue's state without its batches (unsettled ranges, producers): it is one
command, and has to fit into an entry. A queue with more is not moved, and stays as it is.
"""
FENCED_SECONDS_MAX: Final = 0.4
"""Time after which a fenced queue that could not be handed over is reopened: publishers and
consumers wait half a second at most.
"""
AGAIN_SECONDS: Final = 1.0
"""Time before a failed step is retried."""
LATER_SECONDS: Final = 5.0
"""Time before a queue that had to be reopened is fenced again."""

_log = get_logger("fluxmq.queues")


class QueueMover(Protocol):
    """The leader of the target group."""

    def carry(self, group: str, queue: str, kind: int, body: bytes, done: ResultCallback) -> None:
        """Carry out a command about the queue there."""


class OutgoingMove:
    """One queue's move, as far as it is led from here. Everything may be forgotten at any time."""

    def __init__(
        self,
        row: QueueRecord,
        group: ReplicationGroup,
        led: int,
        mover: Callable[[str], QueueMover | ReplicationGroup | None],
        change: Callable[[list[Change], Callable[[Refusal | None], None]], None],
        now: Callable[[], float],
        window: CopyWindow,
        wait: Callable[[float], None],
    ) -> None:
        self.row = row
        self.group = group
        self.led = led
        """The election by which the group came to be led here."""
        self.phase = "copying"
        self.position: int = -1
        """Offset of the next batch to send; -1 until the target's content is known."""
        self._name = row.internal_name
        self._number = int(row.migration, 16)
        self._mover = mover
        self._change = change
        self._now = now
        self.window = window
        self._wait = wait
        self._asking = False
        """True while a request is pending of which there is one at a time."""
        self._failed = False
        self._not_before = 0.0
        self._calm_until = 0.0
        """Time from which it may be fenced again."""
        self._fenced_at: float | None = None
        """Time at which it was fenced from here."""
        self._decided = False
        """True once the decision was requested: then the queue is not reopened from here."""

    @property
    def progress(self) -> str:
        """Progress, for display."""
        state = self._state
        if state is None or self.position < 0:
            return self.phase
        left = state.next_offset - max(self.position, state.start)
        return f"{self.phase}, {left} messages left"

    @property
    def over(self) -> bool:
        """True if this node no longer leads the source group, or the group has failed."""
        return not self.group.driver.leading or bool(self.group.failed)

    @property
    def _state(self) -> State | None:
        return self.group.machine.queue(self._name)

    def step(self) -> None:
        """Take every step that is possible now."""
        state, now = self._state, self._now()
        if state is None or self.over or self._decided or migration.is_arriving(state):
            return  # a queue still arriving by an earlier move is closed, but not by a fence
        if self._is_late(now):
            self._open(now)
            return
        if self._asking or now < self._not_before:
            return
        if self._failed or self.position < 0:
            if not self.window.batches:
                self._adopt(state)
            return
        self._copy(state)
        self._hand_over(state, now)

    def _hand_over(self, state: State, now: float) -> None:
        """Fence or install when everything was copied, or is in flight."""
        # Answers may have come at once, and the move may have advanced.
        if self._asking or self._failed or self.position < state.next_offset:
            return
        if not state.closed:
            if now >= self._calm_until:
                self._fence()
        elif not self.window.batches:
            self._install(state)

    # Copying

    def _adopt(self, state: State) -> None:
        """Ask for the target's content, and begin where it ends."""
        try:
            base = self._first(state)
        except FluxmqError as problem:
            self._fail(str(problem))
            return
        body = migration.adopt_body(state.config, base, self._number)

        def adopted(result: Result) -> None:
            self._failed = not result.ok
            if result.ok:
                self.position = result.value
                self.step()
            else:
                self._fail(f"the destination group refused it: {Code(result.code).name.lower()}")

        self._ask(CommandKind.ADOPT, body, adopted)

    def _first(self, state: State) -> int:
        """Return the base offset of the oldest batch of which anything is needed."""
        if state.kept >= state.next_offset:
            return state.next_offset
        return self.group.logs[state.id].read(state.kept).base_offset

    def _copy(self, state: State) -> None:
        """Send batches while the window has room; what is left behind the fence at any rate."""
        mover = self._mover(self.row.moving_to)
        if mover is None:
            self._fail("the destination group has no leader")
            return
        while self.position < state.next_offset:
            room = self.window.room(self._now(), paced=not state.closed)
            if not room:
                self._wait(self.window.wait(self._now()))
                return
            try:
                first = self._first(state)
                if first > self.position:
                    self._skip(state)
                    return
                batch = self.group.logs[state.id].read(max(self.position, state.kept))
            except FluxmqError as problem:
                self._fail(str(problem))
                return
            first = self.position - batch.base_offset
            count = min(batch.count - first, room)
            self.position += count
            whole = count == batch.count
            parts = (batch.header(), batch.body()) if whole else (cut(batch, first, count),)
            self._send(mover, migration.import_body(self._number, *parts), count)
            if self._failed:
                return

    def _skip(self, state: State) -> None:
        """Begin behind messages consumed meanwhile; fence if little is left, as that may recur."""
        self._failed = True
        little = state.size <= WINDOW_BYTES
        if little and not state.closed and self._now() >= self._calm_until:
            self._fence()

    def _send(self, mover: QueueMover | ReplicationGroup, body: bytes, count: int) -> None:
        size = len(body)
        self.window.sent(size, count, self._now())

        def imported(result: Result) -> None:
            self.window.answered(size, count)
            if not result.ok and not self._failed:
                self._fail(
                    f"the destination group refused a batch: {Code(result.code).name.lower()}"
                )
            self.step()

        _carry(mover, self.row, CommandKind.IMPORT, body, imported)

    # Handing over

    def _fence(self) -> None:
        self.phase = "fencing"
        self._asking = True

        def fenced(result: Result) -> None:
            self._asking = False
            if result.ok:
                self.phase = "draining"
                self._fenced_at = self._now()
                self.step()
            else:
                self._fail("it could not be fenced")

        self.group.fence(self._name, fenced)

    def _is_late(self, now: float) -> bool:
        """Return whether publishers and consumers have waited for too long."""
        at = self._fenced_at
        return at is not None and now - at > FENCED_SECONDS_MAX

    def _open(self, now: float) -> None:
        """Reopen the queue, and try again later. Earlier requests decide nothing any more."""
        self._fenced_at, self.phase = None, "copying"
        self._calm_until = now + LATER_SECONDS
        self._failed = True
        _log.warning(
            "a moving queue was reopened: the destination group takes too long",
            extra={"queue": self._name, "group": self.group.name, "to": self.row.moving_to},
        )
        self.group.unfence(self._name, _ignore)

    def _install(self, state: State) -> None:
        """Send everything but the batches."""
        self.phase = "installing"
        fence = migration.fenced_at(state)
        origins = self.group.machine.origins()
        becomes = TYPES.get(self.row.becomes, -1)
        body = migration.install_body(self._number, fence, state, origins, becomes)
        if len(body) > STATE_BYTES_MAX:
            _log.error(
                "a queue cannot be moved: it has too many unsettled messages or known producers",
                extra={"queue": self._name, "bytes": len(body)},
            )
            self._asking = True
            self._change([AbortMigration(self.row.vhost, self.row.name)], self._aborted)
            return

        def installed(result: Result) -> None:
            if not result.ok or self.over:
                self._fail(f"the destination group refused it: {Code(result.code).name.lower()}")
            elif self._fenced_at is not None and self._is_late(self._now()):
                self.step()
            elif migration.fenced_at(state) == fence:
                self._decide()

        self._ask(CommandKind.INSTALL, body, installed)

    def _aborted(self, refusal: Refusal | None) -> None:
        self._asking = False
        if refusal is not None:
            self._fail(refusal.text)

    def _decide(self) -> None:
        """Request that the row name the target group. From here on only that outcome counts."""
        self.phase = "deciding"
        self._decided = True
        row = self.row

        def decided(refusal: Refusal | None) -> None:
            if refusal is not None and refusal.code != PRECONDITION_FAILED:
                self._decided = (
                    False  # outcome unknown: a repeated request installs the state again, unchanged
                )
                self._fenced_at = None
                self._fail(refusal.text)

        self._change([FinishMigration(row.vhost, row.name, row.migration)], decided)

    # Requests

    def _ask(self, kind: int, body: bytes, done: ResultCallback) -> None:
        mover = self._mover(self.row.moving_to)
        if mover is None:
            self._fail("the destination group has no leader")
            return
        self._asking = True

        def answered(result: Result) -> None:
            self._asking = False
            done(result)

        _carry(mover, self.row, kind, body, answered)

    def _fail(self, why: str) -> None:
        """Ask again for the target's content, after a while."""
        self._failed = True
        wait = FENCED_SECONDS_MAX / 8 if self._fenced_at is not None else AGAIN_SECONDS
        self._not_before = self._now() + wait
        _log.info(
            "moving a queue is delayed",
            extra={"queue": self._name, "to": self.row.moving_to, "problem": why},
        )


def _carry(
    mover: QueueMover | ReplicationGroup,
    row: QueueRecord,
    kind: int,
    body: bytes,
    done: ResultCallback,
) -> None:
    if isinstance(mover, ReplicationGroup):
        mover.carry(row.internal_name, kind, body, done)
    else:
        mover.carry(row.moving_to, row.internal_name, kind, body, done)


class QueueMigrations:
    """All moves of queues whose groups this shard leads, and their remnants.

    ``led``: the groups led here for which the topology here is certainly as new as the
    leadership, with the election; ``declare`` declares a queue of the topology if its group is
    here; ``own_name`` returns the name that a group of the topology has here.
    """

    def __init__(
        self,
        topology: Callable[[], Topology],
        change: Callable[[list[Change], Callable[[Refusal | None], None]], None],
        led: Callable[[bool], Iterable[tuple[ReplicationGroup, int]]],
        mover: Callable[[str], QueueMover | ReplicationGroup | None],
        declare: Callable[[QueueRecord], None],
        own_name: Callable[[str], str],
        now: Callable[[], float],
        limits: SyncLimits,
    ) -> None:
        self._own_name = own_name
        self._limits = limits
        self._topology = topology
        self._change = change
        self._led = led
        self._mover = mover
        self._declare = declare
        self._now = now
        self._moving: dict[tuple[str, str], None] = {}
        """Queues that the topology has moving, by vhost and name."""
        self._moves: dict[str, OutgoingMove] = {}
        self.call_later: Callable[[float, Callable[[], None]], None] | None = None
        """Sets a timer; without one, moves that wait for their rate advance with `step` alone."""
        self._timed = False
        self._clearing: set[tuple[str, int]] = set()
        """Queues being reopened or deleted, by group and queue id."""

    def changed(self, rows: Iterable[TopologyRow]) -> None:
        """Follow rows of the topology that have changed."""
        told = False
        for row in rows:
            if row.kind == QUEUE:
                key = (str(row.key[0]), str(row.key[1]))
                if row.row is not None and row.row.get("moving_to"):
                    self._moving[key] = None
                    told = True
                else:
                    told = self._moving.pop(key, key) is None or told
        if told:
            self.step()

    def progress(self, queue: str) -> str:
        """Return a queue's progress, as far as this shard knows; empty if it is not moving."""
        move = self._moves.get(queue)
        return "" if move is None else move.progress

    @property
    def idle(self) -> bool:
        """True if no queue is moving."""
        return not self._moving and not self._moves

    def step(self) -> None:
        """Advance all moves; called every tenth of a second while there are any, and when the
        topology changes."""
        idle = self.idle
        led = list(self._led(idle))
        for group, _ in led:
            for queue_id in list(group.machine.closed):
                self._clear(group, queue_id)
        if idle:
            return
        groups = {group.name: (group, election) for group, election in led}
        wanted: dict[str, QueueRecord] = {}
        for key in self._moving:
            row = self._topology().queue(*key)
            if row is not None and row.moving_to and self._own_name(row.group) in groups:
                wanted[row.internal_name] = row
        for name in [name for name in self._moves if name not in wanted]:
            del self._moves[name]
        for name, row in wanted.items():
            group, election = groups[self._own_name(row.group)]
            move = self._moves.get(name)
            if move is None or (move.row.migration, move.led) != (row.migration, election):
                move = self._moves[name] = OutgoingMove(
                    *(row, group, election, self._mover, self._change, self._now),
                    *(CopyWindow(self._limits.rate), self._wait),
                )
                extra = {"queue": name, "group": group.name, "to": row.moving_to}
                _log.info("moving a queue", extra=extra)
            move.window.limit = self._limits.batch_messages(self._topology(), row)
            move.step()

    def _wait(self, seconds: float) -> None:
        """Advance moves once the rate of copying lets more be sent, in so many seconds."""
        if seconds > 0 and self.call_later is not None and not self._timed:
            self._timed = True
            self.call_later(seconds, self._waited)

    def _waited(self) -> None:
        self._timed = False
        self.step()

    def _clear(self, group: ReplicationGroup, queue_id: int) -> None:
        """Reopen a closed queue without a move if it belongs here, and delete it if not.

        The topology here has to be as new as that finding first: the row may have changed since.
        """
        state = group.machine.queues.get(queue_id)
        key = (group.name, queue_id)
        if state is None or key in self._clearing or self._belongs(group, state):
            return
        self._clearing.add(key)

        def current(refusal: Refusal | None) -> None:
            gone = group.closed or group.machine.queues.get(queue_id) is not state
            if refusal is not None or gone or self._belongs(group, state):
                self._clearing.discard(key)
            else:
                self._end(group, state, lambda _answer: self._clearing.discard(key))

        # No owner has this name: nothing changes, and the answer means that the copy here is
        # current.
        self._change([DropOwner("")], current)

    def _belongs(self, group: ReplicationGroup, state: State) -> bool:
        """Return whether a queue is closed because of a move, or is about to be declared."""
        row = self._topology().queue_called(state.name)
        if row is None:
            return False
        here = self._own_name(row.group) == group.name
        if not migration.is_arriving(state):
            return here and bool(row.moving_to)
        if here and is_meant_to_arrive(row, state):
            self._declare(row)
            return True
        return self._own_name(row.moving_to) == group.name and is_meant_to_arrive(row, state)

    def _end(self, group: ReplicationGroup, state: State, done: Callable[[object], None]) -> None:
        """Reopen a queue that stays, delete one that belongs to no move."""
        row = self._topology().queue_called(state.name)
        here = row is not None and self._own_name(row.group) == group.name
        if here and not migration.is_arriving(state):
            group.unfence(state.name, done)
            return

        def deleted(answer: object) -> None:
            done(answer)
            row = self._topology().queue_called(state.name)
            if row is not None:
                self._declare(row)

        group.delete(state.name, False, False, deleted)


def _ignore(_answer: object) -> None:
    """Ignore an answer."""

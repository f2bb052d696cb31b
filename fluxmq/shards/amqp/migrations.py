"""Moves queues to other replication groups, as the topology says: carried out by the shard that leads the group a queue is in.

A move is a fact of the topology (`routing/topology/migrations`): the queue's row says where to. Nothing of it is only in memory,
so that whoever leads next goes on with it::

    copying    the batches are imported there, at their own offsets, while the queue is used here as ever
    fencing    as soon as all are there or on their way, the queue is closed here; appends and consumers wait
    draining   what came meanwhile is copied, no more than a window
    installing everything else that the queue is: what is settled, who died, cursors, producers
    deciding   the row names the other group; there is one owner before and one after, and no way back
    over       appends and consumers that waited go there (`cluster/leader_host`); what is left here is deleted

Until it is decided the queue here is whole, so an abort, or a fence that lasts too long, just opens it again. What arrives there
is nobody's until the row says so, and is deleted when no row speaks of it. A second write of publishes to both groups, which
would keep the pause as short, is not needed: what is left to be copied behind the fence is bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Protocol

from fluxmq.logs import get_logger
from fluxmq.model.errors import FluxmqError
from fluxmq.queues import migration
from fluxmq.queues.commands import Kind
from fluxmq.queues.results import Code, Result
from fluxmq.queues.states import Queue as State
from fluxmq.routing.topology.changes import AbortMigration, Change, DropOwner, FinishMigration
from fluxmq.routing.topology.records import QUEUE, Queue
from fluxmq.routing.topology.refusals import PRECONDITION_FAILED, Refusal
from fluxmq.routing.topology.topology import Row, Topology
from fluxmq.shards.amqp.declared import is_meant_to_arrive
from fluxmq.shards.queues.answers import Done
from fluxmq.shards.queues.cutting import cut
from fluxmq.shards.queues.group import Group

WINDOW_BYTES: Final = 1 << 20
"""Batches on their way to the other group: what has to be copied behind the fence is no more than this and what comes until
it is closed, some milliseconds' worth."""
STATE_BYTES_MAX: Final = 3 << 20
"""What is known of a queue beside its batches (unsettled ranges, producers): it is one command, and so has to fit into an
entry. A queue with more is not moved, and stays as it is."""
FENCED_SECONDS_MAX: Final = 0.4
"""After which a queue that could not be handed over is opened again: publishers and consumers wait half a second at most."""
AGAIN_SECONDS: Final = 1.0
"""Time until a step that failed is tried again."""
LATER_SECONDS: Final = 5.0
"""Time until a queue is fenced again that had to be opened."""

_log = get_logger("fluxmq.queues")


class Carrier(Protocol):
    """Who leads the group that a queue goes to."""

    def carry(self, group: str, queue: str, kind: int, body: bytes, done: Done) -> None:
        """Carry out a command about the queue there."""


class Move:
    """One queue's move, as far as it is led from here. Everything may be forgotten at any time."""

    def __init__(
        self,
        row: Queue,
        group: Group,
        led: int,
        carrier: Callable[[str], Carrier | Group | None],
        change: Callable[[list[Change], Callable[[Refusal | None], None]], None],
        now: Callable[[], float],
    ) -> None:
        self.row = row
        self.group = group
        self.led = led
        """In which election the group came to be led here."""
        self.phase = "copying"
        self.position: int = -1
        """The offset of the next batch to send; -1 until it is known what is there."""
        self._name = row.internal_name
        self._number = int(row.migration, 16)
        self._carrier = carrier
        self._change = change
        self._now = now
        self._sent_bytes = 0
        self._sent = 0
        """Batches not answered, and their bytes."""
        self._asking = False
        """Whether something is asked of which there is one at a time."""
        self._failed = False
        self._not_before = 0.0
        self._calm_until = 0.0
        """When it may be fenced again."""
        self._fenced_at: float | None = None
        """When it was fenced, from here."""
        self._decided = False
        """Whether the decision was asked for: then the queue is not opened again from here."""

    @property
    def progress(self) -> str:
        """How far it is, for people."""
        state = self._state
        if state is None or self.position < 0:
            return self.phase
        left = state.next_offset - max(self.position, state.start)
        return f"{self.phase}, {left} messages left"

    @property
    def over(self) -> bool:
        """Whether the group is led elsewhere, or has been since."""
        return not self.group.keeper.leading or bool(self.group.failed)

    @property
    def _state(self) -> State | None:
        return self.group.machine.queue(self._name)

    def step(self) -> None:
        """Do what can be done now."""
        state, now = self._state, self._now()
        if state is None or self.over or self._decided or migration.is_arriving(state):
            return  # one that has not arrived by the move before is closed, and not by a fence
        if self._is_late(now):
            self._open(now)
            return
        if self._asking or now < self._not_before:
            return
        if self._failed or self.position < 0:
            if not self._sent:
                self._adopt(state)
            return
        self._copy(state)
        self._hand_over(state, now)

    def _hand_over(self, state: State, now: float) -> None:
        """Go on when everything was copied, or is on its way."""
        # What was sent may have been answered at once, and that may have led on.
        if self._asking or self._failed or self.position < state.next_offset:
            return
        if not state.closed:
            if now >= self._calm_until:
                self._fence()
        elif not self._sent:
            self._install(state)

    # Copying

    def _adopt(self, state: State) -> None:
        """Find out what is there, and begin where it ends."""
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
                self._fail(f"it is not taken there: {Code(result.code).name.lower()}")

        self._ask(Kind.ADOPT, body, adopted)

    def _first(self, state: State) -> int:
        """Where the oldest batch begins of which something is needed."""
        if state.kept >= state.next_offset:
            return state.next_offset
        return self.group.logs[state.id].read(state.kept).base_offset

    def _copy(self, state: State) -> None:
        """Send batches while there is room for them."""
        carrier = self._carrier(self.row.moving_to)
        if carrier is None:
            self._fail("nobody leads the other group")
            return
        while self._sent_bytes < WINDOW_BYTES and self.position < state.next_offset:
            try:
                first = self._first(state)
                if first > self.position:
                    self._skip(state)
                    return
                batch = self.group.logs[state.id].read(max(self.position, state.kept))
            except FluxmqError as problem:
                self._fail(str(problem))
                return
            self.position = batch.base_offset + batch.count
            body = migration.import_body(self._number, cut(batch, 0, batch.count))
            self._send(carrier, body)
            if self._failed:
                return

    def _skip(self, state: State) -> None:
        """What comes next was consumed meanwhile: begin behind it; fenced, if it is little, since that might go on so."""
        self._failed = True
        little = state.size <= WINDOW_BYTES
        if little and not state.closed and self._now() >= self._calm_until:
            self._fence()

    def _send(self, carrier: Carrier | Group, body: bytes) -> None:
        self._sent += 1
        self._sent_bytes += len(body)

        def imported(result: Result) -> None:
            self._sent -= 1
            self._sent_bytes -= len(body)
            if not result.ok and not self._failed:
                self._fail(f"a batch is not taken there: {Code(result.code).name.lower()}")
            self.step()

        _carry(carrier, self.row, Kind.IMPORT, body, imported)

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
        """Whether publishers and consumers have waited for too long."""
        at = self._fenced_at
        return at is not None and now - at > FENCED_SECONDS_MAX

    def _open(self, now: float) -> None:
        """Let the queue go on, and try again later. Nothing is decided, nor will be by what was asked so far."""
        self._fenced_at, self.phase = None, "copying"
        self._calm_until = now + LATER_SECONDS
        self._failed = True
        _log.warning(
            "a queue that moves was opened again: the other group takes too long",
            extra={"queue": self._name, "group": self.group.name, "to": self.row.moving_to},
        )
        self.group.unfence(self._name, _ignore)

    def _install(self, state: State) -> None:
        """Send everything but the batches."""
        self.phase = "installing"
        fence = migration.fenced_at(state)
        origins = self.group.machine.origins()
        body = migration.install_body(self._number, fence, state, origins)
        if len(body) > STATE_BYTES_MAX:
            _log.error(
                "a queue is not moved: too much is unsettled, or known of its producers",
                extra={"queue": self._name, "bytes": len(body)},
            )
            self._asking = True
            self._change([AbortMigration(self.row.vhost, self.row.name)], self._aborted)
            return

        def installed(result: Result) -> None:
            if not result.ok or self.over:
                self._fail(f"it is not taken there: {Code(result.code).name.lower()}")
            elif self._fenced_at is not None and self._is_late(self._now()):
                self.step()
            elif migration.fenced_at(state) == fence:
                self._decide()

        self._ask(Kind.INSTALL, body, installed)

    def _aborted(self, refusal: Refusal | None) -> None:
        self._asking = False
        if refusal is not None:
            self._fail(refusal.text)

    def _decide(self) -> None:
        """Have the row name the other group. From here on only what becomes of that counts."""
        self.phase = "deciding"
        self._decided = True
        row = self.row

        def decided(refusal: Refusal | None) -> None:
            if refusal is not None and refusal.code != PRECONDITION_FAILED:
                self._decided = (
                    False  # nobody knows: what is asked again is installed again, as it is
                )
                self._fenced_at = None
                self._fail(refusal.text)

        self._change([FinishMigration(row.vhost, row.name, row.migration)], decided)

    # Asking

    def _ask(self, kind: int, body: bytes, done: Done) -> None:
        carrier = self._carrier(self.row.moving_to)
        if carrier is None:
            self._fail("nobody leads the other group")
            return
        self._asking = True

        def answered(result: Result) -> None:
            self._asking = False
            done(result)

        _carry(carrier, self.row, kind, body, answered)

    def _fail(self, why: str) -> None:
        """Find out anew what is there, after a while."""
        self._failed = True
        wait = FENCED_SECONDS_MAX / 8 if self._fenced_at is not None else AGAIN_SECONDS
        self._not_before = self._now() + wait
        _log.info(
            "a queue's move is held up",
            extra={"queue": self._name, "to": self.row.moving_to, "problem": why},
        )


def _carry(carrier: Carrier | Group, row: Queue, kind: int, body: bytes, done: Done) -> None:
    if isinstance(carrier, Group):
        carrier.carry(row.internal_name, kind, body, done)
    else:
        carrier.carry(row.moving_to, row.internal_name, kind, body, done)


class Migrations:
    """All moves of queues whose groups are led by this shard, and what they have left behind.

    ``led``: the replicated groups led here, of which it is certain that the topology here is as new as their lead, and by
    which election; ``declare`` declares a queue of the topology where its group is here.
    """

    def __init__(
        self,
        topology: Callable[[], Topology],
        change: Callable[[list[Change], Callable[[Refusal | None], None]], None],
        led: Callable[[], Iterable[tuple[Group, int]]],
        carrier: Callable[[str], Carrier | Group | None],
        declare: Callable[[Queue], None],
        now: Callable[[], float],
    ) -> None:
        self._topology = topology
        self._change = change
        self._led = led
        self._carrier = carrier
        self._declare = declare
        self._now = now
        self._moving: dict[tuple[str, str], None] = {}
        """Queues that the topology has moving, by vhost and name."""
        self._moves: dict[str, Move] = {}
        self._clearing: set[tuple[str, int]] = set()
        """What is being opened or deleted, by group and queue id."""

    def changed(self, rows: Iterable[Row]) -> None:
        """The topology has these rows now."""
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
        """How far a queue's move is, as far as this shard knows; empty for none."""
        move = self._moves.get(queue)
        return "" if move is None else move.progress

    def step(self) -> None:
        """Look after everything that moves: a tenth of a second has passed, or the topology is another."""
        led = list(self._led())
        for group, _ in led:
            for queue_id in list(group.machine.closed):
                self._clear(group, queue_id)
        if not self._moving and not self._moves:
            return
        groups = {group.name: (group, election) for group, election in led}
        wanted: dict[str, Queue] = {}
        for key in self._moving:
            row = self._topology().queue(*key)
            if row is not None and row.moving_to and row.group in groups:
                wanted[row.internal_name] = row
        for name in [name for name in self._moves if name not in wanted]:
            del self._moves[name]
        for name, row in wanted.items():
            group, election = groups[row.group]
            move = self._moves.get(name)
            if move is None or (move.row.migration, move.led) != (row.migration, election):
                move = self._moves[name] = Move(
                    row, group, election, self._carrier, self._change, self._now
                )
                _log.info(
                    "a queue moves",
                    extra={"queue": name, "group": group.name, "to": row.moving_to},
                )
            move.step()

    def _clear(self, group: Group, queue_id: int) -> None:
        """See to what is closed, and of no move: it is opened where the queue is, and deleted where it is not.

        That is not believed before the topology here is as new as what was found: the row may have changed since.
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

        # Nobody is called so: nothing changes, and it is answered when this copy has what there was at the time.
        self._change([DropOwner("")], current)

    def _belongs(self, group: Group, state: State) -> bool:
        """Whether what is closed is so because of a move, or else is about to be declared."""
        row = self._topology().queue_called(state.name)
        if row is None:
            return False
        here = row.group == group.name
        if not migration.is_arriving(state):
            return here and bool(row.moving_to)
        if here and is_meant_to_arrive(row, state):
            self._declare(row)
            return True
        return row.moving_to == group.name and is_meant_to_arrive(row, state)

    def _end(self, group: Group, state: State, done: Callable[[object], None]) -> None:
        """Open a queue that stays, delete what is of none."""
        row = self._topology().queue_called(state.name)
        here = row is not None and row.group == group.name
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
    """Nobody waits for this."""

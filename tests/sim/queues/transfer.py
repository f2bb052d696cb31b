"""A snapshot on its way from one node to another: asked for, read in pieces, installed; or given up in between.

Does with the program's two ends (`SnapshotSource`, `SnapshotTarget`) what its asynchronous calls do, one step per event,
so that either side may die, fall behind or be overtaken between any two. A transfer belongs to one life of either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from fluxmq.storage.errors import Corruption, StorageError
from fluxmq.storage.snapshots import GroupSnapshot
from fluxmq.storage.transfer import Piece
from fluxmq.storage.transfer_source import SnapshotSource
from fluxmq.storage.transfer_target import SnapshotTarget
from tests.sim.queues.host import GROUP, Host

if TYPE_CHECKING:
    from tests.sim.queues.world import World

STEP_US = 10_000
"""Longest time between two steps."""
PIECES = 2
"""Pieces in a step."""
TRIES_MAX = 200
"""Steps that may wait for a checkpoint or for the log."""


class Transfer:
    """One transfer. `step` does what comes next, and schedules the step after it."""

    def __init__(self, world: World, source: Host, target: Host, least: int) -> None:
        self._world = world
        self._source = source
        self._target = target
        self._least = least
        self._lives = (source.life, target.life)
        self._openings = (source.opening, target.opening)
        self._made: SnapshotSource | None = None
        self._taken: SnapshotTarget | None = None
        self._pieces: Iterator[Piece] = iter(())
        self._next: Callable[[], bool] = self._ask
        self._tries = 0
        self._problem: StorageError | None = None
        target.fetching = True
        world.seen["snapshots asked for"] += 1
        self._later()

    @property
    def ends(self) -> tuple[Host, Host]:
        """Source and target."""
        return self._source, self._target

    def _later(self) -> None:
        self._world.carry_later(self, int(STEP_US * self._world.chance()) + 1)

    def step(self) -> None:
        """Do the next step, unless one side is not what it was."""
        source, target = self._source, self._target
        if not source.listens or (source.life, source.opening) != (
            self._lives[0],
            self._openings[0],
        ):
            self._end(0)
            return
        if not target.listens or (target.life, target.opening) != (
            self._lives[1],
            self._openings[1],
        ):
            self._release()
            return
        source.is_fetched(target.number)
        self._tries += 1
        try:
            going_on = self._next() and self._tries < TRIES_MAX
        except StorageError as problem:
            self._world.trace_line(f"transfer to {target.number}: {problem}")
            self._damage(problem)
            going_on = False
            self._next = self._ask
        if going_on:
            self._later()
        elif self._next == self._install:
            assert self._taken is not None, "it was installed"
            self._end(self._taken.index)
        else:
            self._end(0)

    def _damage(self, problem: StorageError) -> None:
        """What the program says of a damaged segment: whoever has it will be filled anew."""
        cause: BaseException | None = problem
        while cause is not None:
            if isinstance(cause, Corruption):
                for host in (self._source, self._target):
                    if host.damaged:
                        self._world.damage_found(host)
                return
            cause = cause.__cause__

    # Steps; each returns whether another follows

    def _ask(self) -> bool:
        source = self._source
        hosted = source.hosted
        assert hosted is not None, "it listens"
        if hosted.group.applied_index < self._least:
            return False
        if source.begin_checkpoint(self._captured):
            self._next = self._begin
        return True

    def _captured(self, snapshot: GroupSnapshot) -> None:
        source = self._source
        try:
            self._made = SnapshotSource(source.files, source.paths, GROUP, snapshot)
        except StorageError as problem:
            self._problem = problem

    def _begin(self) -> bool:
        source, target, made = self._source, self._target, self._made
        hosted = source.hosted
        assert hosted is not None, "it listens"
        if made is None:
            assert self._problem is not None, "otherwise it was made"
            raise self._problem
        if hosted.checkpointing:
            return True
        if hosted.snapshot_index < made.index:
            return False
        hosted.keep_behind = made.index
        taken = SnapshotTarget(
            target.files, target.paths, GROUP, made.manifest(), sleep=lambda _seconds: None
        )
        self._taken = taken
        while questions := taken.questions():
            for piece in questions:
                taken.matches(piece, made.digest(piece.queue, piece.file, piece.length))
        taken.begin()
        self._pieces = taken.pieces()
        self._next = self._read
        return True

    def _read(self) -> bool:
        made, taken = self._made, self._taken
        assert made is not None, "it has been asked for"
        assert taken is not None, "it has begun"
        for _ in range(PIECES):
            piece = next(self._pieces, None)
            if piece is None:
                taken.prepare()
                self._next = self._install
                return True
            taken.write(piece, made.read(*piece))
        return True

    def _install(self) -> bool:
        target, taken = self._target, self._taken
        assert taken is not None, "it has been fetched"
        if not target.is_at_rest():
            target.marked = True
            return True
        target.close()
        try:
            taken.install()
        finally:
            if not target.files.dead:
                self._world.reopen(target)
        self._world.seen["snapshots installed"] += 1
        return False

    def _release(self) -> None:
        if self._taken is not None and not self._target.files.dead:
            try:
                if self._target.up and self._target.life == self._lives[1]:
                    self._taken.close()
            except StorageError as problem:
                self._world.trace_line(str(problem))
        self._taken = None
        source, made = self._source, self._made
        self._made = None
        if source.up and source.life == self._lives[0]:
            if source.hosted is not None:
                source.hosted.keep_behind = 0
            if made is not None and not source.files.dead:
                try:
                    made.close()
                except StorageError as problem:
                    self._world.trace_line(str(problem))

    def _end(self, index: int) -> None:
        target = self._target
        self._release()
        if target.life == self._lives[1]:
            target.fetching = False
        if not index:
            self._world.seen["snapshots given up"] += 1
        self._world.report_later(self._source, target, index)

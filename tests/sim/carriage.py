"""Snapshots on their way, in pieces: lost and sent again, given up, overtaken by crashes and other leaders.

Responsible for the stream between two members that the core leaves to its host: it gets one message with a snapshot
from the leader's core, and the peer's core gets it whole, late, or not at all. A stream belongs to one life of either
side; what came before a restart is gone. Its source goes on although it does not lead any more: hosts notice late.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fluxmq.raft.types import Message
from tests.sim.events import CARRIED, PIECE
from tests.sim.member import Member

if TYPE_CHECKING:
    from tests.sim.world import World

TRIES = 5
"""A piece is sent so often before the stream is given up."""
AGAIN_US = 50_000
PIECE_US = 30_000
"""Longest time of a piece on its way."""
FORGOTTEN = 0.1
"""Streams whose end the source never hears of, and takes for failed."""


class Carriage:
    """One stream. `lives` are those of the source and of the target in which it began."""

    def __init__(self, world: World, source: Member, message: Message) -> None:
        self._world = world
        self._source = source
        self._target = world.members[message.target]
        self._message = message
        self._lives = source.life, self._target.life
        self._left = 1 + int(world.chance() * world.swarm.pieces)
        self._tries = 0
        world.seen["snapshots sent"] += 1
        self._later()

    def _later(self, delay_us: int = PIECE_US) -> None:
        world = self._world
        world.at(int(delay_us * world.chance()) + 1, PIECE, self)

    def piece(self) -> None:
        """A piece comes to the target, or is lost."""
        world = self._world
        source, target = self._source, self._target
        world.note(PIECE, source.id, target.id, self._left)
        if source.node is None or source.life != self._lives[0]:
            world.seen["snapshots interrupted"] += 1
            return
        if target.node is None or target.life != self._lives[1]:
            self._end(arrived=False)
        elif self._is_lost():
            self._tries += 1
            if self._tries == TRIES:
                self._end(arrived=False)
            else:
                self._later(AGAIN_US)
        else:
            self._left -= 1
            if self._left:
                self._later()
            else:
                world.deliver(target, self._message)
                self._end(arrived=world.calm or world.chance() >= FORGOTTEN)

    def _is_lost(self) -> bool:
        world = self._world
        if world.calm:
            return False
        link = (self._source.id, self._target.id)
        paused = self._target.paused_until > world.now_us
        return paused or link in world.cuts or world.chance() < world.swarm.drop

    def _end(self, *, arrived: bool) -> None:
        """The source hears of it a little later."""
        if not arrived:
            self._world.seen["snapshots interrupted"] += 1
        delay = int(PIECE_US * self._world.chance())
        self._world.at(delay, CARRIED, self, arrived)

    def carried(self, arrived: bool) -> None:
        """The source is told how it ended."""
        source = self._source
        self._world.note(CARRIED, source.id, self._target.id, arrived)
        if source.node is not None and source.life == self._lives[0]:
            source.node.report_snapshot(self._target.id, arrived)
            source.pump()

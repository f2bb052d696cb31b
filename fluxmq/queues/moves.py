"""State of a queue's moves between replication groups (`migration`)."""

from __future__ import annotations

from typing import Any

from fluxmq.queues.origins import Origins


class QueueMoves:
    """Moves of one queue that is moving, or has moved here; other queues have none."""

    __slots__ = ("arriving", "came_with", "fenced", "installed")

    def __init__(self, fenced: int = 0, arriving: int = 0) -> None:
        self.fenced = fenced
        """Index of the entry that closed it to move to another group; 0 while it does not move."""
        self.arriving = arriving
        """Number of the move by which it arrives from another group; 0 once it is here."""
        self.installed = 0
        """The fence at which it was complete, while arriving; 0 for none, or when more has come
        since."""
        self.came_with = Origins()
        """Appends that had taken effect before it came from another group."""

    @property
    def closed(self) -> bool:
        """True while the queue takes and gives nothing."""
        return bool(self.fenced or self.arriving)

    def pack(self) -> list[Any]:
        """Return plain values for msgpack."""
        return [self.fenced, self.arriving, self.installed, self.came_with.pack()]

    @staticmethod
    def unpack(packed: list[Any]) -> QueueMoves:
        """Decode the result of `pack`."""
        fenced, arriving, installed, came_with = packed
        move = QueueMoves(fenced, arriving)
        move.installed = installed
        move.came_with = Origins.unpack(came_with)
        return move

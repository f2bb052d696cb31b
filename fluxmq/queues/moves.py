"""What a queue knows of its moves between replication groups (`migration`)."""

from __future__ import annotations

from typing import Any

from fluxmq.queues.origins import Origins


class Move:
    """Of one queue that moves, or has moved here; others have none."""

    __slots__ = ("arriving", "came_with", "fenced", "installed")

    def __init__(self, fenced: int = 0, arriving: int = 0) -> None:
        self.fenced = fenced
        """Index of the entry that closed it, since it moves to another group; 0 while it does not."""
        self.arriving = arriving
        """Number of the move by which it comes from another group; 0 once it is here."""
        self.installed = 0
        """The fence behind which it was whole, while it arrives; 0 for none, or when more has come since."""
        self.came_with = Origins()
        """Appends that had taken effect before it came from another group."""

    @property
    def closed(self) -> bool:
        """Whether nothing is taken or given now."""
        return bool(self.fenced or self.arriving)

    def pack(self) -> list[Any]:
        """As plain values for msgpack."""
        return [self.fenced, self.arriving, self.installed, self.came_with.pack()]

    @staticmethod
    def unpack(packed: list[Any]) -> Move:
        """The inverse of `pack`."""
        fenced, arriving, installed, came_with = packed
        move = Move(fenced, arriving)
        move.installed = installed
        move.came_with = Origins.unpack(came_with)
        return move

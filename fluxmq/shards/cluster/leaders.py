"""Where each replicated group is led, as far as this shard knows.

Whoever begins to lead says so to every shard of every node, with its term; who ends says that as well. Of several the one
of the greatest term is believed. A shard that cannot be reached any more leads nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

OWN = -1
"""Stands for this shard where others have their number."""


@dataclass(slots=True)
class Leader:
    """Who leads a group: in which term, and which shard; None while nobody is known."""

    term: int = 0
    peer: int | None = None
    listeners: list[Callable[[], None]] = field(default_factory=list)
    """Told when it is somebody else, or nobody."""


class Leaders:
    """The leaders of groups."""

    def __init__(self) -> None:
        self._leaders: dict[str, Leader] = {}

    def of(self, group: str) -> Leader:
        """The leader of a group; it changes."""
        return self._leaders.setdefault(group, Leader())

    def leads(self, group: str, term: int, peer: int) -> None:
        """A shard leads a group from now on."""
        leader = self.of(group)
        if term > leader.term or (term == leader.term and leader.peer is None):
            leader.term, leader.peer = term, peer
            _tell(leader)

    def ends(self, group: str, term: int, peer: int) -> None:
        """A shard leads a group no longer."""
        leader = self.of(group)
        if leader.peer == peer and term >= leader.term:
            leader.peer = None
            _tell(leader)

    def lost(self, peer: int) -> None:
        """A shard cannot be reached any more."""
        for leader in list(self._leaders.values()):
            if leader.peer == peer:
                leader.peer = None
                _tell(leader)

    def all(self) -> dict[str, Leader]:
        """Every group that was heard of, and its leader."""
        return self._leaders


def _tell(leader: Leader) -> None:
    for listener in list(leader.listeners):
        listener()

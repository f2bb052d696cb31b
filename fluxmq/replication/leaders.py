"""The leader of each replicated group, as far as this shard knows.

A new leader announces itself to every shard of every node, with its term, and so does one that
steps down. The leader of the highest term wins. A shard that can no longer be reached leads
nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from fluxmq.net.links import FrameLink
from fluxmq.replication.shard_links import ShardLinks

OWN = -1
"""Stands for this shard in place of a peer number."""


@dataclass(slots=True)
class Leader:
    """The leader of a group: its term and its shard; None while it is unknown."""

    term: int = 0
    peer: int | None = None
    listeners: list[Callable[[], None]] = field(default_factory=list)
    """Called when the leader changes or is lost."""


class Leaders:
    """The leaders of groups."""

    def __init__(self) -> None:
        self._leaders: dict[str, Leader] = {}

    def of(self, group: str) -> Leader:
        """Return the leader of a group; the object changes with it."""
        return self._leaders.setdefault(group, Leader())

    def leads(self, group: str, term: int, peer: int) -> None:
        """Record that a shard leads a group."""
        leader = self.of(group)
        if term > leader.term or (term == leader.term and leader.peer is None):
            leader.term, leader.peer = term, peer
            _tell(leader)

    def ends(self, group: str, term: int, peer: int) -> None:
        """Record that a shard no longer leads a group."""
        leader = self.of(group)
        if leader.peer == peer and term >= leader.term:
            leader.peer = None
            _tell(leader)

    def lost(self, peer: int) -> None:
        """Drop the leaderships of a shard that can no longer be reached."""
        for leader in list(self._leaders.values()):
            if leader.peer == peer:
                leader.peer = None
                _tell(leader)

    def all(self) -> dict[str, Leader]:
        """Return every group seen so far with its leader."""
        return self._leaders


def _tell(leader: Leader) -> None:
    for listener in list(leader.listeners):
        listener()


class LeaderNews:
    """Tells all shards which groups lead here, and learns from them which lead there."""

    def __init__(self, leaders: Leaders, links: ShardLinks) -> None:
        self.leaders = leaders
        self._links = links

    def handlers(self) -> dict[str, Callable[..., None]]:
        """Return the handlers of control frames by name."""
        return {"leads": self._on_leads, "follows": self._on_follows}

    def leads(self, group: str, term: int) -> None:
        """Announce that a group leads here."""
        self.leaders.leads(group, term, OWN)
        self._links.say("leads", group, term)

    def follows(self, group: str, term: int) -> None:
        """Announce that a group leads here no longer."""
        self.leaders.ends(group, term, OWN)
        self._links.say("follows", group, term)

    def is_own(self, group: str) -> bool:
        """Return whether a group is known to lead here."""
        return self.leaders.of(group).peer == OWN

    def tell(self, link: FrameLink) -> None:
        """Tell a shard that has connected which groups lead here."""
        for name, leader in self.leaders.all().items():
            if leader.peer == OWN:
                link.send_control("leads", name, leader.term)

    def _on_leads(self, link: FrameLink, group: str, term: int) -> None:
        self.leaders.leads(group, term, link.peer)

    def _on_follows(self, link: FrameLink, group: str, term: int) -> None:
        self.leaders.ends(group, term, link.peer)

"""Comparison of one group's copy with those on other nodes.

Each follower sends the leader its rolling hash at the newest index it has noted, once a second. A
copy that differs from the majority's is quarantined: it neither accepts nor delivers messages until
it has been fetched anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from fluxmq.logs import get_logger
from fluxmq.net.links import FrameLink
from fluxmq.replication.comparison import Comparison, Hashes
from fluxmq.replication.open_group import AnyHosted

_log = get_logger("fluxmq.cluster")


class Audit:
    """One group's audit on this shard. ``quarantine`` gets the reason not to trust this copy."""

    def __init__(self, hosted: AnyHosted, own: int, quarantine: Callable[[str], None]) -> None:
        self.hashes = Hashes()
        self.comparison = Comparison()
        self.mismatches = 0
        """Number of times a copy was found to differ."""
        self._hosted = hosted
        self._own = own
        self._quarantine = quarantine
        self._links: dict[int, FrameLink] = {}

    def applied(self) -> None:
        """Note the hash after an entry was applied."""
        group = self._hosted.group
        self.hashes.note(group.applied_index, group.digest())

    def tell(self, leader: FrameLink) -> None:
        """Send this copy's hash to the leader."""
        newest = self.hashes.newest
        rolling = self.hashes.at(newest)
        if rolling is not None:
            leader.send_control("audit", self._hosted.group.name, self._own, newest, rolling)

    def told(self, link: FrameLink, member: int, index: int, rolling: int) -> None:
        """Record a member's hash."""
        self._links[member] = link
        self.comparison.told(member, index, rolling)

    def compare(self, voters: Iterable[int]) -> None:
        """Quarantine the members whose copies differ, as leader."""
        for member in self.comparison.deviating(self._own, self.hashes, voters):
            self.comparison.forget(member)
            self.found(member, self._links.get(member))
            if member == self._own:
                return

    def found(self, member: int, link: FrameLink | None) -> None:
        """Quarantine a member whose copy differs, over a link to its node."""
        name = self._hosted.group.name
        self.mismatches += 1
        _log.error("replicas of a group differ", extra={"group": name, "member": member})
        if member == self._own:
            self._quarantine("it differs from what a majority holds")
        elif link is not None:
            link.send_control("quarantine", name)

    def at(self, index: int) -> int | None:
        """Return this copy's hash at an index; None if it is not there yet, or has forgotten it."""
        group = self._hosted.group
        if group.applied_index == index:
            return group.digest()
        return self.hashes.recent(index)

    def lose(self) -> None:
        """Discard members' reports to this node, which no longer leads."""
        self.comparison = Comparison()
        self._links.clear()

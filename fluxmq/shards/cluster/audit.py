"""Comparing the copies of the groups of one shard with those of other nodes, as long as they run.

Who follows tells the leader its rolling hash at the newest index noted, once a second. A copy that differs from the majority's is
quarantined: it takes and gives nothing any more, until it has been fetched anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from fluxmq.logs import get_logger
from fluxmq.queues.audits import Comparison, Hashes
from fluxmq.shards.links import FrameLink
from fluxmq.shards.queues.hosted import Hosted

AUDIT_SECONDS = 1.0
"""Time between two comparisons of a group."""

_log = get_logger("fluxmq.cluster")


class Audit:
    """One group's audit on this shard. ``quarantine`` is told why this copy is not to be trusted."""

    def __init__(self, hosted: Hosted, own: int, quarantine: Callable[[str], None]) -> None:
        self.hashes = Hashes()
        self.comparison = Comparison()
        self.mismatches = 0
        """How often a copy was found to differ."""
        self._hosted = hosted
        self._own = own
        self._quarantine = quarantine
        self._links: dict[int, FrameLink] = {}

    def applied(self) -> None:
        """An entry was applied."""
        group = self._hosted.group
        self.hashes.note(group.applied_index, group.machine.state_hash())

    def tell(self, leader: FrameLink) -> None:
        """Tell who leads."""
        newest = self.hashes.newest
        rolling = self.hashes.at(newest)
        if rolling is not None:
            leader.send_control("audit", self._hosted.group.name, self._own, newest, rolling)

    def told(self, link: FrameLink, member: int, index: int, rolling: int) -> None:
        """A member tells its hash."""
        self._links[member] = link
        self.comparison.told(member, index, rolling)

    def compare(self, voters: Iterable[int]) -> None:
        """This node leads: have those quarantined that differ."""
        name = self._hosted.group.name
        for member in self.comparison.deviating(self._own, self.hashes, voters):
            self.mismatches += 1
            _log.error("copies of a group differ", extra={"group": name, "member": member})
            if member == self._own:
                self._quarantine("it differs from what a majority holds")
                return
            link = self._links.get(member)
            self.comparison.forget(member)
            if link is not None:
                link.send_control("quarantine", name)

    def lose(self) -> None:
        """This node leads no longer: what others told belongs to that leadership."""
        self.comparison = Comparison()
        self._links.clear()

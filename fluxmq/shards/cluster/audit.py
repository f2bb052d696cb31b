"""Comparing the copies of the groups of one shard with those of other nodes, as long as they run.

Who follows tells the leader its rolling hash at the newest index noted, once a second. A copy that differs from the majority's is
quarantined: it takes and gives nothing any more, until it has been fetched anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from fluxmq.ipc.clusters import AUDIT, HASH
from fluxmq.logs import get_logger
from fluxmq.net.links import FrameLink
from fluxmq.queues.audits import Comparison, Hashes
from fluxmq.shards.cluster.leaders import OWN
from fluxmq.shards.cluster.ordered_audit import Audited, OrderedAudits
from fluxmq.shards.queues.hosted import Hosted

if TYPE_CHECKING:
    from fluxmq.shards.cluster.replica import Replica

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
        for member in self.comparison.deviating(self._own, self.hashes, voters):
            self.comparison.forget(member)
            self.found(member, self._links.get(member))
            if member == self._own:
                return

    def found(self, member: int, link: FrameLink | None) -> None:
        """A member's copy differs: it is quarantined, over a link to its node."""
        name = self._hosted.group.name
        self.mismatches += 1
        _log.error("copies of a group differ", extra={"group": name, "member": member})
        if member == self._own:
            self._quarantine("it differs from what a majority holds")
        elif link is not None:
            link.send_control("quarantine", name)

    def at(self, index: int) -> int | None:
        """This copy's hash at an index; None when it is not there yet, or is forgotten."""
        group = self._hosted.group
        if group.applied_index == index:
            return group.machine.state_hash()
        return self.hashes.recent(index)

    def lose(self) -> None:
        """This node leads no longer: what others told belongs to that leadership."""
        self.comparison = Comparison()
        self._links.clear()


class Audits:
    """The audits of all replicated groups of one shard."""

    def __init__(self, cluster: Audited) -> None:
        self.of: dict[str, Audit] = {}
        self._cluster = cluster
        self._next = 0.0
        ordered = OrderedAudits(cluster, self.of)
        cluster.orders.serve(AUDIT, ordered.audit)
        cluster.orders.serve_member(HASH, ordered.hash)

    def handlers(self) -> dict[str, Callable[..., None]]:
        """Who takes which control frame."""
        return {"audit": self._on_audit, "quarantine": self._on_quarantine}

    def add(self, hosted: Hosted, own: int) -> Audit:
        """A group was opened, of which this node is member `own`."""
        name = hosted.group.name
        audit = self.of[name] = Audit(hosted, own, lambda why: self.quarantine(name, why))
        return audit

    def remove(self, group: str) -> None:
        """A group is hosted here no longer."""
        self.of.pop(group, None)

    def lose(self, group: str) -> None:
        """A group is led here no longer."""
        audit = self.of.get(group)
        if audit is not None:
            audit.lose()

    def housekeeping(self, now: float) -> None:
        """A tenth of a second has passed; once in a while every group is compared, or tells who leads what it is."""
        if now < self._next:
            return
        self._next = now + AUDIT_SECONDS
        for name, audit in list(self.of.items()):
            replica = self._cluster.replicas.get(name)
            if replica is None or replica.hosted.group.failed:
                continue
            if replica.hosted.keeper.leading:
                audit.compare(replica.hosted.keeper.node.status().membership.voters)
                continue
            leader = self._cluster.leaders.of(name)
            link = None if leader.peer is None else self._cluster.links.links.get(leader.peer)
            if link is not None and link.up:
                audit.tell(link)

    def _on_audit(self, link: FrameLink, group: str, member: int, index: int, rolling: int) -> None:
        audit, replica = self.of.get(group), self._cluster.replicas.get(group)
        if audit is not None and replica is not None and replica.hosted.keeper.leading:
            audit.told(link, member, index, rolling)

    def _on_quarantine(self, link: FrameLink, group: str) -> None:
        cluster = self._cluster
        if group not in cluster.replicas and link.peer in cluster.links.links:
            there = cluster.link_to(cluster.place_of(group))
            if there is not None and there.up:
                there.send_control("quarantine", group)
            return
        self.quarantine(group, "it differs from what who leads holds")

    def quarantine(self, group: str, why: str) -> None:
        """A copy here is not to be trusted: it takes and gives nothing any more."""
        replica = self._cluster.replicas.get(group)
        if replica is not None and not replica.hosted.group.failed:
            self.give_up(replica, why)
            self._cluster.snapshots.refetch(group)

    def give_up(self, replica: Replica, why: str) -> None:
        """Have a copy take and give nothing until it was replaced; if it led, nobody is known to lead."""
        hosted = replica.hosted
        name = hosted.group.name
        _log.error("a copy is quarantined", extra={"group": name, "why": why})
        hosted.keeper.log_failed(f"quarantined: {why}")
        if self._cluster.leaders.of(name).peer == OWN:
            hosted.group.on_following(hosted.group)

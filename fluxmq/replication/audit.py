"""Continuous comparison of the copies of a shard's groups with those on other nodes.

Each follower sends the leader its rolling hash at the newest index it has noted, once a second. A
copy that differs from the majority's is quarantined: it neither accepts nor delivers messages until
it has been fetched anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from fluxmq.ipc.clusters import AUDIT, HASH
from fluxmq.logs import get_logger
from fluxmq.net.links import FrameLink
from fluxmq.queues.audits import Comparison, Hashes
from fluxmq.replication.hosted import Hosted
from fluxmq.replication.leaders import OWN
from fluxmq.replication.ordered_audit import Audited, OrderedAudits

if TYPE_CHECKING:
    from fluxmq.replication.replica import Replica

AUDIT_SECONDS = 1.0
"""Interval between two comparisons of a group."""

_log = get_logger("fluxmq.cluster")


class Audit:
    """One group's audit on this shard. ``quarantine`` gets the reason not to trust this copy."""

    def __init__(self, hosted: Hosted, own: int, quarantine: Callable[[str], None]) -> None:
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
        self.hashes.note(group.applied_index, group.machine.state_hash())

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
        _log.error("copies of a group differ", extra={"group": name, "member": member})
        if member == self._own:
            self._quarantine("it differs from what a majority holds")
        elif link is not None:
            link.send_control("quarantine", name)

    def at(self, index: int) -> int | None:
        """Return this copy's hash at an index; None if it is not there yet, or has forgotten it."""
        group = self._hosted.group
        if group.applied_index == index:
            return group.machine.state_hash()
        return self.hashes.recent(index)

    def lose(self) -> None:
        """Discard what members reported to this node as leader, which it no longer is."""
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
        """Return the handlers of control frames by name."""
        return {"audit": self._on_audit, "quarantine": self._on_quarantine}

    def add(self, hosted: Hosted, own: int) -> Audit:
        """Start auditing a group that was opened; this node is its member `own`."""
        name = hosted.group.name
        audit = self.of[name] = Audit(hosted, own, lambda why: self.quarantine(name, why))
        return audit

    def remove(self, group: str) -> None:
        """Stop auditing a group that is no longer hosted here."""
        self.of.pop(group, None)

    def lose(self, group: str) -> None:
        """Discard what members reported about a group that is no longer led here."""
        audit = self.of.get(group)
        if audit is not None:
            audit.lose()

    def housekeeping(self, now: float) -> None:
        """Compare groups led here and report hashes to other leaders; called every tenth of a
        second.
        """
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
        """Stop using a copy here that is not to be trusted, and fetch it anew."""
        replica = self._cluster.replicas.get(group)
        if replica is not None and not replica.hosted.group.failed:
            self.give_up(replica, why)
            self._cluster.snapshots.refetch(group)

    def give_up(self, replica: Replica, why: str) -> None:
        """Stop using a copy until it is replaced; if it led, announce that it no longer does."""
        hosted = replica.hosted
        name = hosted.group.name
        _log.error("a copy is quarantined", extra={"group": name, "why": why})
        hosted.keeper.log_failed(f"quarantined: {why}")
        if self._cluster.leaders.of(name).peer == OWN:
            hosted.group.on_following(hosted.group)

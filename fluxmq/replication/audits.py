"""Continuous comparison of the copies of a shard's groups with those on other nodes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from fluxmq.ipc.clusters import AUDIT, HASH
from fluxmq.net.links import FrameLink
from fluxmq.replication.audit import Audit
from fluxmq.replication.group_commands import GroupCommands
from fluxmq.replication.leaders import Leaders
from fluxmq.replication.open_group import AnyHosted
from fluxmq.replication.replica import Replica
from fluxmq.replication.requested_audit import RequestedAudits
from fluxmq.replication.shard_links import ShardLinks

AUDIT_SECONDS = 1.0
"""Interval between two comparisons of a group."""


class Audits:
    """The audits of all replicated groups of one shard. ``refetch`` replaces a copy by the
    leader's."""

    def __init__(
        self,
        replicas: Mapping[str, Replica],
        leaders: Leaders,
        links: ShardLinks,
        commands: GroupCommands,
        refetch: Callable[[str], object],
        now: Callable[[], float],
    ) -> None:
        self.of: dict[str, Audit] = {}
        self._replicas = replicas
        self._leaders = leaders
        self._links = links
        self._refetch = refetch
        self._next = 0.0
        ordered = RequestedAudits(replicas, links, commands, self.of, now)
        commands.serve(AUDIT, ordered.audit)
        commands.serve_member(HASH, ordered.hash)

    def handlers(self) -> dict[str, Callable[..., None]]:
        """Return the handlers of control frames by name."""
        return {"audit": self._on_audit, "quarantine": self._on_quarantine}

    def add(self, hosted: AnyHosted, own: int) -> Audit:
        """Start auditing a group that was opened; this node is its member `own`."""
        name = hosted.group.name
        audit = self.of[name] = Audit(hosted, own, lambda why: self.quarantine(name, why))
        return audit

    def remove(self, group: str) -> None:
        """Stop auditing a group that is no longer hosted here."""
        self.of.pop(group, None)

    def housekeeping(self, now: float, attended: Collection[str]) -> None:
        """Compare groups led here and report hashes to other leaders, of the groups ``attended``;
        called by the shard's timer.
        """
        if now < self._next:
            return
        self._next = now + AUDIT_SECONDS
        for name in list(attended):
            audit = self.of.get(name)
            if audit is None:
                continue
            replica = self._replicas.get(name)
            if replica is None or replica.hosted.group.failed:
                continue
            if replica.hosted.driver.leading:
                audit.compare(replica.hosted.driver.node.status().membership.voters)
                continue
            leader = self._leaders.of(name)
            link = None if leader.peer is None else self._links.abroad.get(leader.peer)
            if link is not None and link.up:
                audit.tell(link)

    def _on_audit(self, link: FrameLink, group: str, member: int, index: int, rolling: int) -> None:
        audit, replica = self.of.get(group), self._replicas.get(group)
        if audit is not None and replica is not None and replica.hosted.driver.leading:
            audit.told(link, member, index, rolling)

    def _on_quarantine(self, link: FrameLink, group: str) -> None:
        if group not in self._replicas and link.peer in self._links.abroad:
            self._links.forward(group, "quarantine", group)
            return
        self.quarantine(group, "it differs from the leader's replica")

    def quarantine(self, group: str, why: str) -> None:
        """Quarantine this node's copy, which cannot be trusted, and fetch it again."""
        replica = self._replicas.get(group)
        if replica is not None and replica.acquaintances.record.diverged is not None:
            return  # it differs, and is counted before it is replaced
        if replica is not None and not replica.hosted.group.failed:
            replica.give_up(why)
            self._refetch(group)

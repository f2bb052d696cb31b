"""Status and metrics of a shard's replicated groups and of its streams to other nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from fluxmq.cluster.guard import REASONS, Guard
from fluxmq.engine.listing import role_of
from fluxmq.ipc.clusters import LEARNER, UNKNOWN, VOTER, MemberRow, RaftRow
from fluxmq.metrics.registry import GROUP_SERIES_MAX, Sample
from fluxmq.raft.types import Status

if TYPE_CHECKING:
    from fluxmq.replication.replica import Replica
    from fluxmq.replication.wiring import Cluster


def raft_row(cluster: Cluster, replica: Replica) -> RaftRow:
    """Return a group's status, seen from this shard's copy."""
    hosted = replica.hosted
    group, status = hosted.group, hosted.keeper.node.status()
    leader = leader_of(replica, status)
    return RaftRow(
        group=group.name,
        node=cluster.node,
        shard=cluster.shard,
        role=role_of(hosted),
        problem=group.failed,
        term=status.term,
        leader=leader,
        commit=status.commit,
        applied=group.applied_index,
        last=status.last_index,
        snapshot=hosted.snapshot_index,
        elections=hosted.keeper.elections,
        fsync_p99=hosted.shared.times.p99,
        members=tuple(_members(cluster, replica, status, leader)),
    )


def leader_of(replica: Replica, status: Status | None = None) -> str:
    """Return the node that leads a group, as far as its Raft node knows; empty for none."""
    known = status or replica.hosted.keeper.node.status()
    return "" if replica.hosted.group.failed else name_of(replica, known.leader)


def name_of(replica: Replica, number: int) -> str:
    """Return a member's node; its number if the settings know no such node; empty for 0."""
    if not number:
        return ""
    names = (member.node for member in replica.plan.nodes if member.number == number)
    return next(names, f"#{number}")


def contact_seconds(cluster: Cluster, replica: Replica, number: int) -> float | None:
    """Return the seconds since a member was last heard from; None if it never was."""
    heard = replica.carrier.heard.get(number)
    return None if heard is None else max(0.0, cluster.now() - heard)


def _members(
    cluster: Cluster, replica: Replica, status: Status, leader: str
) -> Iterator[MemberRow]:
    membership = status.membership
    for number in sorted((*membership.voters, *membership.learners)):
        node, own = name_of(replica, number), number == status.id
        peer = status.progress.get(number)
        match = UNKNOWN if peer is None else peer.match
        if own and node == leader:
            match = status.persisted
        contact = contact_seconds(cluster, replica, number)
        yield MemberRow(
            node=node,
            number=number,
            kind=VOTER if number in membership.voters else LEARNER,
            leads=node == leader,
            seen_by=cluster.node,
            match=match,
            lag=UNKNOWN if match == UNKNOWN else max(0, status.last_index - match),
            state="" if peer is None else peer.state.value,
            connected=own or replica.carrier.reaches(number),
            contact=UNKNOWN if own or contact is None else round(contact * 1000),
            doubt=replica.acquaintances.doubt(number),
        )


class ClusterReports:
    """Reads one shard's part in the cluster on demand."""

    def __init__(self, cluster: Cluster, guard: Guard) -> None:
        self._cluster = cluster
        self._guard = guard

    def samples(self) -> Iterator[Sample]:
        """Yield every metric of replicated groups and of streams to other nodes."""
        cluster = self._cluster
        replicas = list(cluster.replicas.values())
        for replica in replicas[:GROUP_SERIES_MAX]:
            yield from self._group(replica)
        yield "fluxmq_raft_groups_not_shown", {}, max(0, len(replicas) - GROUP_SERIES_MAX)
        malformed = cluster.links.malformed.events
        malformed += sum(replica.carrier.malformed.events for replica in replicas)
        yield "fluxmq_cluster_malformed_messages_total", {}, malformed
        for reason in REASONS:
            yield "fluxmq_cluster_refused_total", {"reason": reason}, self._guard.refused[reason]
        yield "fluxmq_cluster_unread_bytes", {}, self._guard.unread_bytes
        yield "fluxmq_raft_snapshots_installed_total", {}, cluster.snapshots.installed
        yield "fluxmq_raft_scrubbed_bytes_total", {}, cluster.scrub.bytes
        yield "fluxmq_cluster_append_timeouts_total", {}, cluster.append_timeouts
        waiting, counts = self.outboxes(), cluster.hosts.outboxes.counts
        yield "fluxmq_outboxes", {}, len(waiting)
        yield "fluxmq_outbox_batches", {}, sum(waiting)
        yield "fluxmq_outbox_kept_total", {}, counts.kept
        yield "fluxmq_outbox_carried_total", {}, counts.carried
        yield "fluxmq_outbox_refused_total", {}, counts.refused
        yield from cluster.clocks.samples()
        yield from self._links()

    @property
    def clocks_apart(self) -> int:
        """Number of nodes whose wall clocks differ from this one's by too much."""
        return self._cluster.clocks.apart

    def outboxes(self) -> list[int]:
        """Return the number of batches in each outbox of this shard."""
        return self._cluster.hosts.outboxes.depths()

    def _group(self, replica: Replica) -> Iterator[Sample]:
        hosted, carrier = replica.hosted, replica.carrier
        status = hosted.keeper.node.status()
        name = hosted.group.name
        labels = {"group": name}
        yield "fluxmq_raft_term", labels, status.term
        yield "fluxmq_raft_leader", labels, int(hosted.keeper.leading)
        yield "fluxmq_raft_leader_known", labels, int(bool(leader_of(replica, status)))
        yield "fluxmq_raft_commit_index", labels, status.commit
        yield "fluxmq_raft_applied_index", labels, hosted.group.applied_index
        yield "fluxmq_raft_snapshot_index", labels, hosted.snapshot_index
        yield "fluxmq_raft_elections_total", labels, hosted.keeper.elections
        yield "fluxmq_raft_mismatches_total", labels, self._cluster.audits.of[name].mismatches
        yield "fluxmq_raft_damaged_total", labels, self._cluster.damages.found[name]
        yield "fluxmq_raft_bytes_sent_total", labels, carrier.sent_bytes
        yield "fluxmq_raft_bytes_received_total", labels, carrier.received_bytes
        membership = status.membership
        for number in (*membership.voters, *membership.learners):
            if number == status.id:
                continue
            labels = {"group": name, "member": name_of(replica, number)}
            peer = status.progress.get(number)
            if peer is not None:
                lag = max(0, status.last_index - peer.match)
                yield "fluxmq_raft_lag_entries", labels, lag
            contact = contact_seconds(self._cluster, replica, number)
            if contact is not None and (peer is not None or number == status.leader):
                yield "fluxmq_raft_last_contact_seconds", labels, contact

    def _links(self) -> Iterator[Sample]:
        sent: Counter[str] = Counter()
        received: Counter[str] = Counter()
        up: Counter[str] = Counter()
        waiting: Counter[str] = Counter()
        for link in self._cluster.links.links.values():
            sent[link.node] += link.sent_bytes
            received[link.node] += link.received_bytes
            up[link.node] += link.up
            waiting[link.node] += link.backlog_bytes
        for node in self._cluster.peers:
            labels = {"node": node}
            yield "fluxmq_node_links_up", labels, up[node]
            yield "fluxmq_node_link_bytes", labels, waiting[node]
            yield "fluxmq_node_link_bytes_sent_total", labels, sent[node]
            yield "fluxmq_node_link_bytes_received_total", labels, received[node]

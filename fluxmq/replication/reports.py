"""Status and metrics of a shard's replicated groups and of its streams to other nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from fluxmq.cluster.guard import REASONS, Guard
from fluxmq.cluster.node_links import NodeLink
from fluxmq.ipc.clusters import LEARNER, UNKNOWN, VOTER, MemberRow, RaftRow
from fluxmq.metrics.registry import Sample
from fluxmq.raft.types import RaftStatus
from fluxmq.replication.replica import Replica, contact_seconds, leader_of, name_of
from fluxmq.replication.shard_links import ShardLinks


def raft_row(links: ShardLinks, replica: Replica, now: float) -> RaftRow:
    """Return a group's status, seen from this shard's copy."""
    hosted = replica.hosted
    group, status = hosted.group, hosted.driver.node.status()
    leader = leader_of(replica, status)
    return RaftRow(
        group=group.name,
        node=links.node,
        shard=links.shard,
        role=hosted.role,
        problem=group.failed,
        term=status.term,
        leader=leader,
        commit=status.commit,
        applied=group.applied_index,
        last=status.last_index,
        snapshot=hosted.snapshot_index,
        elections=hosted.driver.elections,
        fsync_p99=hosted.shared.times.p99,
        members=tuple(_members(links.node, replica, status, now)),
    )


def _members(seen_by: str, replica: Replica, status: RaftStatus, now: float) -> Iterator[MemberRow]:
    membership, leader = status.membership, leader_of(replica, status)
    for number in sorted((*membership.voters, *membership.learners)):
        node, own = name_of(replica, number), number == status.id
        peer = status.progress.get(number)
        match = UNKNOWN if peer is None else peer.match
        if own and node == leader:
            match = status.persisted
        contact = contact_seconds(replica, number, now)
        yield MemberRow(
            node=node,
            number=number,
            kind=VOTER if number in membership.voters else LEARNER,
            leads=node == leader,
            seen_by=seen_by,
            match=match,
            lag=UNKNOWN if match == UNKNOWN else max(0, status.last_index - match),
            state="" if peer is None else peer.state.value,
            connected=own or replica.raft_transport.reaches(number),
            contact=UNKNOWN if own or contact is None else round(contact * 1000),
            doubt=replica.acquaintances.doubt(number),
        )


def group_samples(replica: Replica, damaged: int, now: float) -> Iterator[Sample]:
    """Yield the metrics of a replicated group. ``damaged``: how often its copy here was."""
    hosted, raft_transport = replica.hosted, replica.raft_transport
    status = hosted.driver.node.status()
    labels = {"group": hosted.group.name}
    yield "fluxmq_raft_term", labels, status.term
    yield "fluxmq_raft_leader", labels, int(hosted.driver.leading)
    yield "fluxmq_raft_leader_known", labels, int(bool(leader_of(replica, status)))
    yield "fluxmq_raft_commit_index", labels, status.commit
    yield "fluxmq_raft_applied_index", labels, hosted.group.applied_index
    yield "fluxmq_raft_snapshot_index", labels, hosted.snapshot_index
    yield "fluxmq_raft_elections_total", labels, hosted.driver.elections
    yield "fluxmq_raft_mismatches_total", labels, replica.audit.mismatches
    yield "fluxmq_raft_damaged_total", labels, damaged
    yield "fluxmq_raft_bytes_sent_total", labels, raft_transport.sent_bytes
    yield "fluxmq_raft_bytes_received_total", labels, raft_transport.received_bytes
    membership = status.membership
    for number in (*membership.voters, *membership.learners):
        if number == status.id:
            continue
        labels = {"group": hosted.group.name, "member": name_of(replica, number)}
        peer = status.progress.get(number)
        if peer is not None:
            yield "fluxmq_raft_lag_entries", labels, max(0, status.last_index - peer.match)
        contact = contact_seconds(replica, number, now)
        if contact is not None and (peer is not None or number == status.leader):
            yield "fluxmq_raft_last_contact_seconds", labels, contact


def link_samples(nodes: Iterable[str], links: Iterable[NodeLink]) -> Iterator[Sample]:
    """Yield the metrics of the streams to each of the other nodes."""
    sent: Counter[str] = Counter()
    received: Counter[str] = Counter()
    up: Counter[str] = Counter()
    waiting: Counter[str] = Counter()
    for link in links:
        sent[link.node] += link.sent_bytes
        received[link.node] += link.received_bytes
        up[link.node] += link.up
        waiting[link.node] += link.backlog_bytes
    for node in nodes:
        labels = {"node": node}
        yield "fluxmq_node_links_up", labels, up[node]
        yield "fluxmq_node_link_bytes", labels, waiting[node]
        yield "fluxmq_node_link_bytes_sent_total", labels, sent[node]
        yield "fluxmq_node_link_bytes_received_total", labels, received[node]


def guard_samples(guard: Guard) -> Iterator[Sample]:
    """Yield the metrics of connections that were refused."""
    for reason in REASONS:
        yield "fluxmq_cluster_refused_total", {"reason": reason}, guard.refused[reason]
    yield "fluxmq_cluster_unread_bytes", {}, guard.unread_bytes

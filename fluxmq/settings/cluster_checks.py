"""Checks of ``cluster`` against itself and the other sections: problems, refusals, notes. Pure.

Called by ``checks``. Groups are checked as ``plans`` resolves them, so what is checked is what
runs.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from typing import Final

from fluxmq.model.limits import PORT_MAX
from fluxmq.settings.clustering import (
    DEFAULT_GROUP,
    OWN_GROUP_PREFIXES,
    ClusterSettings,
    Etcd,
    Raft,
    RaftGroup,
    TransportSettings,
    address_of,
)
from fluxmq.settings.listen_addresses import SHARD_PORTS
from fluxmq.settings.plans import GroupPlan, GroupPlans, UnknownGroup
from fluxmq.settings.problems import SettingsProblem
from fluxmq.settings.queue_checks import OWN_GROUP_NAME, replicas
from fluxmq.settings.queues import ReplicationSettings
from fluxmq.settings.schema import Settings
from fluxmq.settings.values import format_duration, is_loopback, split_address

GROUPS_PER_SHARD: Final = 8
"""Replication groups per shard above which the node warns: each has its own connections, elections
and snapshots, which cost something even while nothing is published."""

_INHERITED: Final = (
    "replication_factor",
    "min_in_sync_replicas",
    "heartbeat_timeout",
    "election_timeout",
)
OLDER_META: Final = "_meta"
"""The group in which the nodes of a cluster of version 0.1.0 agreed on topology and users."""
_OF_MEMBER: Final = frozenset(
    {"data_dir", "bind_addr", "client_addr", "initial_cluster", "bootstrap", "binary"}
)
"""Keys of the member that this node runs."""
_NOT_NEEDED: Final = ("route_batch_max_delay", "route_batch_flush_workers")
"""Settings that a transport needs if it collects messages before it routes them."""


# --- problems --------------------------------------------------------------------------------------------------------


def cluster_problems(settings: Settings) -> Iterator[SettingsProblem]:
    """Yield every problem between the values of the cluster."""
    cluster = settings.cluster
    yield from _transport(cluster)
    yield from _raft(cluster.raft)
    if cluster.enabled and cluster.etcd is not None:
        yield from _etcd(cluster, cluster.etcd)
    elif cluster.enabled and cluster.raft.enabled:
        yield SettingsProblem(
            "cluster.etcd",
            "is required: the nodes of a cluster keep topology, users and sessions in it."
            " For a member of etcd on this node, set bind_addr, client_addr and initial_cluster;"
            " for one that runs elsewhere, endpoints",
        )
    if cluster.enabled:
        yield from _nodes(cluster)
        yield from _joining(cluster)
    elif cluster.raft.enabled:
        yield from _alone(cluster.raft)


def plan_problems(settings: Settings) -> Iterator[SettingsProblem]:
    """Yield the problems of the groups as they would run; only called on a file without simpler
    problems."""
    if not (settings.cluster.enabled and settings.cluster.raft.enabled):
        return
    plans, made = GroupPlans(settings), list[GroupPlan]()
    for group in plans.configured():
        try:
            plan = plans.of(group)
        except UnknownGroup as error:
            yield SettingsProblem(_path(settings, group, "bind_addr"), str(error))
            continue
        made.append(plan)
        if plan.heartbeat_timeout >= plan.election_timeout:
            yield SettingsProblem(
                _path(settings, group, "election_timeout"),
                f"of group {group}, including its queues' overrides, is"
                f" {format_duration(plan.election_timeout)}, and must be above heartbeat_timeout,"
                f" which is {format_duration(plan.heartbeat_timeout)}",
            )
    if not settings.cluster.join:  # the cluster names the nodes that have the groups
        yield from _in_sync(settings, made)
        yield from _queues(settings, {plan.name: plan for plan in made})
    yield from _directories(settings, made)


def _path(settings: Settings, group: str, key: str) -> str:
    """Return the path at which the file sets, or would set, this key of a group."""
    raft = settings.cluster.raft
    if group in raft.groups:
        return f"cluster.raft.groups.{group}.{key}"
    for index, queue in enumerate(settings.queues):
        if group != DEFAULT_GROUP and queue.replication_group(raft) == group:
            return f"queues[{index}].replication.{key if key in ReplicationSettings.model_fields else 'group'}"
    return f"cluster.raft.{key}"


def _transport(cluster: ClusterSettings) -> Iterator[SettingsProblem]:
    transport = cluster.transport
    if transport.tls_enabled:
        for name in ("tls_cert_file", "tls_key_file", "tls_ca_file"):
            if getattr(transport, name) is None:
                yield SettingsProblem(
                    f"cluster.transport.{name}", "is required, since tls_enabled is true"
                )
    last = split_address(transport.bind_addr)[1] + SHARD_PORTS - 1
    if cluster.enabled and last > PORT_MAX:
        yield SettingsProblem(
            "cluster.transport.bind_addr",
            f"needs {SHARD_PORTS} ports, one for each shard, but port {last} does not exist",
        )


def _timings(path: str, heartbeat: float, election: float) -> Iterator[SettingsProblem]:
    if heartbeat >= election:
        yield SettingsProblem(
            f"{path}.election_timeout",
            f"must be above heartbeat_timeout, which is {format_duration(heartbeat)}",
        )


def _raft(raft: Raft) -> Iterator[SettingsProblem]:
    yield from replicas("cluster.raft", raft.replication_factor, raft.min_in_sync_replicas)
    yield from _timings("cluster.raft", raft.heartbeat_timeout, raft.election_timeout)
    directories: dict[str, str] = {}
    if raft.data_dir is not None:
        directories[posixpath.normpath(raft.data_dir)] = "cluster.raft.data_dir"
    for name, group in raft.groups.items():
        path = f"cluster.raft.groups.{name}"
        yield from _group(path, name, group, raft)
        if group.data_dir is None:
            continue
        place = posixpath.normpath(group.data_dir)
        if name == DEFAULT_GROUP and directories.get(place) == "cluster.raft.data_dir":
            continue
        if place in directories:
            yield SettingsProblem(
                f"{path}.data_dir",
                f"{group.data_dir} is also {directories[place]}; every group has its own",
            )
        directories.setdefault(place, f"{path}.data_dir")


def _group(path: str, name: str, group: RaftGroup, raft: Raft) -> Iterator[SettingsProblem]:
    if name == DEFAULT_GROUP and not group.enabled:
        yield SettingsProblem(
            f"{path}.enabled", "must be true: the default group cannot be disabled"
        )
    if name.startswith(OWN_GROUP_PREFIXES):
        yield SettingsProblem(path, OWN_GROUP_NAME)
    if name == OLDER_META:
        yield SettingsProblem(
            path, "is not a group any more: topology and users are in etcd, see cluster.etcd"
        )
    elif name != DEFAULT_GROUP and group.enabled and group.bind_addr is None:
        yield SettingsProblem(f"{path}.bind_addr", "is required")
    merged = {
        key: getattr(raft if getattr(group, key) is None else group, key) for key in _INHERITED
    }
    if group.model_fields_set & {"replication_factor", "min_in_sync_replicas"}:
        yield from replicas(path, merged["replication_factor"], merged["min_in_sync_replicas"])
    if group.model_fields_set & {"heartbeat_timeout", "election_timeout"}:
        yield from _timings(path, merged["heartbeat_timeout"], merged["election_timeout"])


def _named_peers(cluster: ClusterSettings) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yield every mapping of peers in force, with its path."""
    yield "cluster.transport.peers", cluster.transport.peers
    if cluster.raft.enabled:
        yield "cluster.raft.peers", cluster.raft.peers
        for name, group in cluster.raft.groups.items():
            if group.peers:  # otherwise they are derived
                yield f"cluster.raft.groups.{name}.peers", group.peers


def _etcd(cluster: ClusterSettings, etcd: Etcd) -> Iterator[SettingsProblem]:
    urls = [(f"endpoints[{index}]", url) for index, url in enumerate(etcd.endpoints)]
    if not urls:
        members = cluster.members(etcd)
        if etcd.initial_cluster is not None:
            urls = [("initial_cluster", url) for url in members.values()]
        if cluster.node_id not in members:
            yield SettingsProblem(
                "cluster.etcd.initial_cluster",
                f"names {_listed(members)}, and not this node, {cluster.node_id}: name it, or set"
                " cluster.etcd.endpoints for a node without a member",
            )
        if etcd.initial_cluster is None and cluster.transport.peers:
            yield SettingsProblem(
                "cluster.etcd.initial_cluster",
                f"is required, since there are other nodes: {_listed(cluster.transport.peers)}",
            )
    tls = "true" if cluster.transport.tls_enabled else "false"
    for key, url in urls:
        if not url.startswith(f"{cluster.url_scheme}://"):
            yield SettingsProblem(
                f"cluster.etcd.{key}",
                f"{url} must begin with {cluster.url_scheme}://, since cluster.transport.tls_enabled"
                f" is {tls}",
            )


def _alone(raft: Raft) -> Iterator[SettingsProblem]:
    """Yield groups with peers on a node without a cluster: it may not contact them, so they cannot
    elect a leader."""
    named = [("cluster.raft", raft.peers)]
    for name, group in raft.groups.items():
        if group.enabled:
            named.append((f"cluster.raft.groups.{name}", group.peers))
    for path, peers in named:
        if peers:
            yield SettingsProblem(
                f"{path}.peers",
                f"names {', '.join(peers)}, but cluster.enabled is false: this node is on its own",
            )


def _nodes(cluster: ClusterSettings) -> Iterator[SettingsProblem]:
    """Check that the same other nodes are named everywhere, and that this node is not among
    them."""
    known = cluster.transport.peers
    for path, peers in _named_peers(cluster):
        if cluster.node_id in peers:
            yield SettingsProblem(
                f"{path}.{cluster.node_id}",
                "is this node itself (cluster.node_id); peers are the other nodes",
            )
        taken: dict[str, str] = {}
        for node, address in peers.items():
            if address in taken:
                yield SettingsProblem(
                    f"{path}.{node}", f"{address} is also that of {taken[address]}"
                )
            taken.setdefault(address, node)
        every = path == "cluster.raft.peers"
        if not set(peers) <= set(known) or (every and len(peers) < len(known)):
            yield SettingsProblem(
                path,
                f"names {_listed(peers)}, and cluster.transport.peers {_listed(known)}:"
                " the nodes of a group must be peers of the transport",
            )


def _joining(cluster: ClusterSettings) -> Iterator[SettingsProblem]:
    """Check that a node that joins a cluster leaves it to the cluster to name the nodes."""
    unknown = set(cluster.initial_nodes) - {cluster.node_id, *cluster.transport.peers}
    if unknown and not cluster.join:
        yield SettingsProblem(
            "cluster.initial_nodes",
            f"names {', '.join(sorted(unknown))}, which is neither this node nor one of"
            " cluster.transport.peers",
        )
    if not cluster.join:
        return
    text = "must be left out, since cluster.join is true: the cluster names its nodes"
    for path, peers in _named_peers(cluster):
        if peers:
            yield SettingsProblem(path, text)
    if cluster.initial_nodes:
        yield SettingsProblem("cluster.initial_nodes", text)
    if cluster.etcd is not None and cluster.etcd.initial_cluster is not None:
        yield SettingsProblem("cluster.etcd.initial_cluster", text)
    if not cluster.raft.enabled:
        yield SettingsProblem("cluster.raft.enabled", "must be true, since cluster.join is true")


def _listed(peers: Mapping[str, str]) -> str:
    return ", ".join(sorted(peers)) or "nobody"


def _in_sync(settings: Settings, made: list[GroupPlan]) -> Iterator[SettingsProblem]:
    """Check that no group requires more in-sync replicas than it has."""
    raft = settings.cluster.raft
    for plan in made:
        members, section = len(plan.members), raft.groups.get(plan.name, RaftGroup())
        asked = section.min_in_sync_replicas
        path = f"cluster.raft.groups.{plan.name}"
        if asked is None and plan.name == DEFAULT_GROUP:
            given = "min_in_sync_replicas" in raft.model_fields_set
            path, asked = "cluster.raft", raft.min_in_sync_replicas if given else None
        if asked is not None and asked > members:
            yield SettingsProblem(
                f"{path}.min_in_sync_replicas",
                f"may not be above the number of nodes that have the group, which is {members}",
            )


def _queues(settings: Settings, plans: Mapping[str, GroupPlan]) -> Iterator[SettingsProblem]:
    for index, queue in enumerate(settings.queues):
        plan = plans.get(queue.replication_group(settings.cluster.raft) or "")
        if plan is None:
            continue
        for key in ("replication_factor", "min_in_sync_replicas"):
            asked = getattr(queue.replication, key)
            if asked is not None and asked > len(plan.members):
                yield SettingsProblem(
                    f"queues[{index}].replication.{key}",
                    f"may not be above the copies of its group {plan.name}, of which there are"
                    f" {len(plan.members)}",
                )


def _directories(settings: Settings, made: list[GroupPlan]) -> Iterator[SettingsProblem]:
    """Check that groups' directories, derived ones included, differ from each other and from those
    of storage.data_dir."""
    root = posixpath.normpath(settings.storage.data_dir)
    reserved = (f"{root}/groups", f"{root}/shards")
    taken: dict[str, str] = {}
    for plan in made:
        if plan.data_dir is None:
            continue
        path, place = (
            _path(settings, plan.name, "data_dir"),
            posixpath.normpath(plan.data_dir),
        )
        if place in taken:
            yield SettingsProblem(
                path,
                f"{place} is also the directory of group {taken[place]}; every group has its own",
            )
        taken.setdefault(place, plan.name)
        if place == root or f"{place}/".startswith(tuple(f"{each}/" for each in reserved)):
            yield SettingsProblem(
                path,
                f"{place} is taken by storage.data_dir, {root}; leave it out to keep the group there",
            )


# --- refusals and notes ----------------------------------------------------------------------------------------------


def cluster_refusals(settings: Settings, workers: int) -> Iterator[str]:
    """Yield requests of the cluster section that this version cannot meet. ``workers``: number of
    shards, 0 when unknown."""
    cluster = settings.cluster
    if not cluster.enabled:
        return
    if workers > SHARD_PORTS:
        yield (
            f"cluster.enabled is true: a node of a cluster has at most {SHARD_PORTS} shards, and --workers asks for"
            f" {workers}."
        )
    exposed = list(_exposed(cluster))
    if exposed and not (cluster.transport.tls_enabled or cluster.transport.allow_plaintext):
        yield (
            f"{', '.join(exposed)}: between nodes, plaintext is allowed on loopback addresses only, since others"
            " could read and forge their messages: set cluster.transport.tls_enabled with tls_cert_file,"
            " tls_key_file and tls_ca_file, or cluster.transport.allow_plaintext: true for a network that you"
            " trust."
        )


def _exposed(cluster: ClusterSettings) -> Iterator[str]:
    """Yield the paths of cluster addresses that other machines can reach, or that are on other
    machines."""

    def beyond(path: str, address: str | None) -> Iterator[str]:
        if address is not None and not is_loopback(split_address(address)[0]):
            yield path

    yield from beyond("cluster.transport.bind_addr", cluster.transport.bind_addr)
    etcd = cluster.etcd
    if etcd is not None and etcd.endpoints:
        for index, endpoint in enumerate(etcd.endpoints):
            yield from beyond(f"cluster.etcd.endpoints[{index}]", address_of(endpoint))
    elif etcd is not None:
        yield from beyond("cluster.etcd.bind_addr", etcd.bind_addr)
        yield from beyond("cluster.etcd.client_addr", etcd.client_addr)
    if cluster.raft.enabled:
        yield from beyond("cluster.raft.bind_addr", cluster.raft.bind_addr)
        for name, group in cluster.raft.groups.items():
            yield from beyond(f"cluster.raft.groups.{name}.bind_addr", group.bind_addr)
    for path, peers in _named_peers(cluster):
        for node, address in peers.items():
            yield from beyond(f"{path}.{node}", address)


def cluster_notes(settings: Settings, workers: int) -> Iterator[str]:
    """Yield notes for the operator on a valid cluster section. ``workers``: number of shards, 0
    when unknown."""
    cluster = settings.cluster
    given = sorted(cluster.model_fields_set - {"enabled", "node_id"})
    if not cluster.enabled:
        if cluster.raft.enabled:
            given = [name for name in given if name != "raft"]
            yield (
                "cluster.raft: every replication group is this node alone, since cluster.enabled is false;"
                " no address is opened, and there is one copy of everything."
            )
        if given:
            names = ", ".join(f"cluster.{name}" for name in given)
            yield f"{names}: accepted and not used, since cluster.enabled is false."
    else:
        if cluster.cluster_partition_handling != "pause_minority":
            yield (
                f"cluster.cluster_partition_handling is {cluster.cluster_partition_handling}: a partition of the"
                " network may lose confirmed messages of mirrored queues; with pause_minority none are lost."
                " Quorum queues do not follow it."
            )
        yield from _of_transport(cluster.transport)
        if cluster.confined:
            yield (
                "cluster: no other node is named, and there is no TLS: the cluster's addresses are opened on"
                " loopback only."
            )
        if cluster.etcd is not None:
            yield from _of_etcd(cluster, cluster.etcd)
        if cluster.join and not cluster.transport.peers:
            yield "cluster.join: the nodes, and the members of groups, are those of the cluster that it joins."
        elif cluster.raft.enabled:
            yield from _of_groups(settings)
        else:
            yield (
                "cluster.raft.enabled is false: nothing is replicated, and every node has exchanges, queues"
                " and users of its own."
            )
    groups = len(GroupPlans(settings).configured())
    if workers and groups > GROUPS_PER_SHARD * workers:
        yield (
            f"cluster.raft: {groups} replication groups on {workers} shards, more than {GROUPS_PER_SHARD} on each:"
            " every group has connections, elections and snapshots of its own. Groups isolate queues that would"
            " slow each other down; do not create one for each queue."
        )


def _of_transport(transport: TransportSettings) -> Iterator[str]:
    unused = [name for name in _NOT_NEEDED if name in transport.model_fields_set]
    if unused:
        yield (
            f"cluster.transport.{', '.join(unused)}: not used: a shard routes what one turn of its loop has"
            " received, without waiting for more, over one stream."
        )
    if transport.allow_plaintext and transport.tls_enabled:
        yield "cluster.transport.allow_plaintext: not used, since tls_enabled is true."
    elif transport.allow_plaintext:
        yield (
            "cluster.transport.allow_plaintext: traffic between nodes is neither encrypted nor"
            " authenticated; anyone who can reach these addresses can read and change every replicated queue."
        )


def _of_etcd(cluster: ClusterSettings, etcd: Etcd) -> Iterator[str]:
    unused = sorted(etcd.model_fields_set & _OF_MEMBER) if etcd.endpoints else []
    if unused:
        where = ", ".join(f"cluster.etcd.{name}" for name in unused)
        yield f"{where}: not used, since this node runs no member: cluster.etcd.endpoints is given."
    members = len(cluster.members(etcd))
    if not etcd.endpoints and members % 2 == 0:
        yield (
            f"cluster.etcd.initial_cluster: {members} members stand the loss of {(members - 1) // 2},"
            f" no more than {members - 1} would."
        )


def _of_groups(settings: Settings) -> Iterator[str]:
    plans = GroupPlans(settings)
    made = {group: plans.of(group) for group in plans.configured()}
    single = [group for group, plan in made.items() if len(plan.members) == 1]
    if single:
        yield (
            f"replication groups {', '.join(single)}: one copy, because they have one node; they are lost"
            " with it."
        )
    if settings.cluster.raft.write_policy == "local":
        yield (
            "cluster.raft.write_policy is local: a message published to a node that does not lead its queue is acknowledged"
            " when it is on this node's disk alone. It is lost if that disk fails before the queue's leader has the message."
        )
    even = {group: len(plan.members) for group, plan in made.items() if len(plan.members) % 2 == 0}
    for group, copies in even.items():
        yield (
            f"replication group {group}: {copies} copies stand the loss of {(copies - 1) // 2},"
            f" no more than {copies - 1} would."
        )
    for index, queue in enumerate(settings.queues):
        plan = made.get(queue.replication_group(settings.cluster.raft) or "")
        asked = queue.replication.replication_factor
        if plan is not None and asked is not None and asked < len(plan.members):
            yield (
                f"queues[{index}].replication.replication_factor is {asked}; the queue has {len(plan.members)}"
                f" copies, as its group {plan.name} has."
            )

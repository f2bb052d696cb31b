"""Rules for nodes that join a cluster: the reason to refuse one. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from fluxmq.ipc.cluster_nodes import AdmitNode
from fluxmq.settings.clustering import DEFAULT_GROUP, ClusterSettings, address_of, check_name
from fluxmq.settings.listen_addresses import SHARD_PORTS, ListenAddress, clash
from fluxmq.settings.membership import NODES_MAX, ClusterNode, check_node, peers_of
from fluxmq.settings.values import is_loopback, split_address

_EVERYWHERE: Final = frozenset(("", "0.0.0.0", "::"))
"""Hosts of addresses that stand for every interface, at which no other node reaches this one."""


def refusal(
    asked: AdmitNode, cluster: ClusterSettings, version: str, nodes: Mapping[str, ClusterNode]
) -> str:
    """Return why a node is not admitted, with what to do about it; empty if it is. ``cluster``: the
    settings of the node that is asked, whose ``version`` is given; ``nodes``: those that the cluster
    knows, this one among them."""
    known = nodes.get(asked.node)
    if asked.cluster != cluster.name:
        return (
            f"cluster.name is {asked.cluster} there, and this is cluster {cluster.name}: set it, or"
            " ask a node of the other cluster"
        )
    if line_of(asked.version) != line_of(version):
        return f"it has version {asked.version}, and this cluster {version}: install that one"
    if asked.tls != cluster.transport.tls_enabled:
        text = "with" if cluster.transport.tls_enabled else "without"
        return f"the nodes of this cluster talk {text} TLS: set cluster.transport.tls_enabled alike"
    if known is not None and not known.left and not known.joined:
        return (
            f"{asked.node} is a node of this cluster by its settings files: start it with its own, or"
            " choose another cluster.node_id"
        )
    if known is not None and not known.left and known != of_joined(asked, nodes):
        return (
            f"{asked.node} has joined already, with other addresses: choose another cluster.node_id,"
            f" or run fluxmqctl forget_node {asked.node} if that one is gone for good"
        )
    there = sum(not node.left for node in nodes.values())
    if known is None and (len(nodes) >= NODES_MAX or there >= NODES_MAX):
        return f"this cluster has, or has had, {NODES_MAX} nodes, and may not have more"
    return next(_of_addresses(asked, cluster, nodes), "")


def of_joined(asked: AdmitNode, nodes: Mapping[str, ClusterNode]) -> ClusterNode:
    """Return what the cluster keeps of a node that it admits."""
    known, at = nodes.get(asked.node), asked.addresses
    if known is None:
        times = 1
    else:  # the answer may have been lost: then it asks again, and has not joined again
        times = known.joins + 1 if known.left or not known.joined else known.times
    return ClusterNode(
        transport=at.transport,
        raft=at.raft,
        groups=at.groups,
        etcd=at.etcd,
        initial=known is not None and known.initial,
        joined=True,
        times=times,
    )


def line_of(version: str) -> str:
    """Return the part of a version in which nodes must agree: all but the last number."""
    return ".".join(version.split(".")[:2])


def _of_addresses(
    asked: AdmitNode, cluster: ClusterSettings, nodes: Mapping[str, ClusterNode]
) -> Iterator[str]:
    """Yield what is wrong with the addresses of a node."""
    at = asked.addresses
    try:
        check_name(asked.node)
        check_node(at)
        if at.etcd:
            split_address(address_of(at.etcd))
    except ValueError as problem:
        yield str(problem)
        return
    exposed = cluster.transport.tls_enabled or cluster.transport.allow_plaintext
    for path, address in _named(at):
        host = split_address(address)[0]
        if host in _EVERYWHERE:
            yield f"{path} is {address}, which no other node can connect to: give --address HOST"
        elif not exposed and not is_loopback(host):
            yield (
                f"{path} is {address}, and between nodes, plaintext is allowed on loopback addresses"
                " only: set cluster.transport.tls_enabled on all nodes, or allow_plaintext"
            )
    listed = {name for name, group in cluster.raft.groups.items() if group.bind_addr is not None}
    if set(at.groups) != listed - {DEFAULT_GROUP}:
        yield (
            "cluster.raft.groups must list the groups that it lists on the other nodes, each with"
            f" bind_addr: {', '.join(sorted(listed - {DEFAULT_GROUP})) or 'none'}"
        )
    if at.etcd and cluster.member is None:
        yield (
            "this cluster's etcd is no member of its nodes: name its URLs in cluster.etcd.endpoints"
        )
    others = {name: node for name, node in nodes.items() if name != asked.node and not node.left}
    taken = [each for name, node in others.items() for each in _listening(name, node)]
    for each in _listening("", at):
        if found := clash(each, taken):
            yield f"{each.path}, {each.address}: {found}"


def _named(node: ClusterNode) -> Iterator[tuple[str, str]]:
    yield "cluster.transport.bind_addr", node.transport
    yield "cluster.raft.bind_addr", node.raft
    for group, address in node.groups.items():
        yield f"cluster.raft.groups.{group}.bind_addr", address
    if node.etcd:
        yield "cluster.etcd.bind_addr", address_of(node.etcd)


def _listening(name: str, node: ClusterNode) -> Iterator[ListenAddress]:
    """Yield the addresses of a node, as claims."""
    for path, address in _named(node):
        ports = SHARD_PORTS if path == "cluster.transport.bind_addr" else 1
        yield ListenAddress(f"{path} of {name}" if name else path, address, ports)


def named_in(cluster: ClusterSettings) -> dict[str, ClusterNode]:
    """Return the nodes that a settings file names, with their addresses there; of this node itself
    the addresses at which it listens."""
    initial = set(cluster.initial_nodes or (cluster.node_id, *cluster.transport.peers))
    raft, member = cluster.raft, cluster.member
    members = {} if member is None else cluster.members(member)
    listed = {
        name: {cluster.node_id: group.bind_addr, **peers_of(raft, group)}
        for name, group in raft.groups.items()
        if name != DEFAULT_GROUP
    }
    found = {}
    for name, transport in {
        cluster.node_id: cluster.transport.bind_addr,
        **cluster.transport.peers,
    }.items():
        own = name == cluster.node_id
        found[name] = ClusterNode(
            transport=transport,
            raft=raft.bind_addr if own else raft.peers.get(name, ""),
            groups={group: at for group, each in listed.items() if (at := each.get(name))},
            etcd=members.get(name, ""),
            initial=name in initial,
        )
    return found


def reachable_elsewhere(node: ClusterNode) -> bool:
    """Return whether other nodes can connect to these addresses: none stands for every interface."""
    return all(split_address(address)[0] not in _EVERYWHERE for _, address in _named(node))

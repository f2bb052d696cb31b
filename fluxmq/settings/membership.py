"""The nodes of a cluster beyond what a settings file names: those that have joined, and those that
have left.

The cluster keeps them in etcd, and each node keeps a copy in its data directory, so that it knows
them when it starts. `effective` returns the settings with them: every process of a node, and the
programs that work on a stopped one, work by these.

A cluster begins with the nodes of its files, and so do the groups that the files name
(``cluster.initial_nodes``): all nodes have to choose a new group's members alike, whether or not they
have heard of a node that is just joining. Groups that are made on demand may begin on later nodes too,
those of a node set (see `node_sets`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from fluxmq.settings.clustering import DEFAULT_GROUP, ClusterSettings, Raft, RaftGroup
from fluxmq.settings.listen_addresses import shifted
from fluxmq.settings.node_sets import NodeHistory, NodeSet, check_set
from fluxmq.settings.schema import Settings
from fluxmq.settings.values import split_address

FILE_NAME: Final = "nodes.json"
"""Name of the copy in the data directory."""
NODES_MAX: Final = 255
"""Nodes that a cluster may have or have had: each has streams to all others."""


class ClusterNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node as others reach it. Addresses are "host:port", the host may be a name.

    ``transport``: of its first shard; ``raft``: the base of its groups' addresses; ``groups``: the
    addresses of groups that the files list; ``etcd``: the URL of its member for the other members,
    empty if it has none. ``initial``: the cluster began with it; ``joined``: it has come later, or
    again, so that its addresses are these, and not those in files; ``left``: it is no node any more;
    ``times``: how often it has joined.
    """

    transport: str
    raft: str
    groups: dict[str, str] = {}
    etcd: str = ""
    initial: bool = False
    joined: bool = False
    left: bool = False
    times: int = 0

    @property
    def joins(self) -> int:
        """Number of times that it has joined. An earlier version did not count: it is 1 there."""
        return max(self.times, int(self.joined))


class KnownNodes(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the file. ``left``: this node has left the cluster, and must not start; ``sets``:
    the node sets by identifier."""

    nodes: dict[str, ClusterNode] = {}
    left: bool = False
    sets: dict[str, NodeSet] = {}


def encode_nodes(known: KnownNodes) -> bytes:
    """Return the content of the file."""
    return msgspec.json.format(msgspec.json.encode(known)) + b"\n"


def decode_node(data: bytes) -> ClusterNode:
    """Decode the value of a node's key in etcd. Raises ValueError."""
    found = msgspec.json.decode(data, type=ClusterNode)
    check_node(found)
    return found


def check_node(node: ClusterNode) -> None:
    """Raise ValueError for addresses that are none."""
    for address in (node.transport, node.raft, *node.groups.values()):
        split_address(address)


def read_nodes(data_dir: str | Path) -> KnownNodes:
    """Read the copy in a data directory; nothing if there is none. Raises ValueError, which says
    what to do."""
    path = Path(data_dir) / FILE_NAME
    try:
        known = msgspec.json.decode(path.read_bytes(), type=KnownNodes)
        for node in known.nodes.values():
            check_node(node)
        for identifier, node_set in known.sets.items():
            check_set(identifier, node_set)
    except FileNotFoundError:
        return KnownNodes()
    except (OSError, ValueError) as problem:
        raise ValueError(
            f"{path}: {problem}; copy this file from another node of the cluster"
        ) from problem
    return known


def settings_of(raw: bytes, data_dir: str | Path) -> Settings:
    """Return the settings that a process works by: the supervisor's, as JSON, with the nodes in the
    data directory. Raises ValueError."""
    known = read_nodes(data_dir)
    return effective(Settings.model_validate_json(raw), known.nodes, known.sets)


def initial_nodes(cluster: ClusterSettings) -> frozenset[str]:
    """Return the nodes that the cluster began with, by its settings."""
    return frozenset(cluster.initial_nodes or (cluster.node_id, *cluster.transport.peers))


def set_of(nodes: Mapping[str, ClusterNode]) -> dict[str, int] | None:
    """Return the nodes of a set that there are now; None if they are those that the cluster began
    with."""
    there = {name: node.joins for name, node in nodes.items() if not node.left}
    changed = any(node.joined or node.left or not node.initial for node in nodes.values())
    return there if there and changed else None


def effective(
    settings: Settings, nodes: Mapping[str, ClusterNode], sets: Mapping[str, NodeSet] = {}
) -> Settings:
    """Return the settings of a file with the nodes that have joined and without those that have
    left, and with the node sets."""
    cluster = settings.cluster
    if not (cluster.enabled and nodes):
        return settings
    own = cluster.node_id
    others = {name: node for name, node in nodes.items() if name != own}
    if cluster.join:
        initial = {name for name, node in nodes.items() if node.initial}
    else:
        initial = set(initial_nodes(cluster))
    there = {name: node.transport for name, node in others.items() if not node.left}
    named = cluster.transport.peers
    peers = {name: at for name, at in named.items() if name not in others or name in there}
    peers |= {name: at for name, at in there.items() if _moved(others[name], name, named)}
    raft = _raft(cluster.raft, others)
    update: dict[str, Any] = {
        "initial_nodes": tuple(sorted(initial)),
        "transport": cluster.transport.model_copy(update={"peers": peers}),
        "raft": raft,
    }
    if cluster.member is not None:
        update["etcd"] = cluster.member.model_copy(
            update={"initial_cluster": _members(cluster, nodes)}
        )
    times = {name: nodes[name].joins if name in nodes else 0 for name in (own, *peers)}
    history = NodeHistory(sets, times, cluster.history.mirrors)
    return settings.model_copy(update={"cluster": cluster.with_history(history, update)})


def with_mirrors(settings: Settings, mirrors: Mapping[str, tuple[str, ...]]) -> Settings:
    """Return the settings with the nodes that mirrored groups begin on."""
    cluster = settings.cluster
    history = cluster.history._replace(mirrors=mirrors)
    return settings.model_copy(update={"cluster": cluster.with_history(history, {})})


def _moved(node: ClusterNode, name: str, named: Mapping[str, str]) -> bool:
    """Return whether a node is where it says, and not where the file says."""
    return node.joined or name not in named


def _raft(raft: Raft, others: Mapping[str, ClusterNode]) -> Raft:
    """Return the addresses of groups. Nodes that have left keep theirs: they may be members of
    groups until those have removed them."""
    moved = {name: n.raft for name, n in others.items() if n.raft and _moved(n, name, raft.peers)}
    groups = {}
    for group, section in raft.groups.items():
        more = {
            name: node.groups[group]
            for name, node in others.items()
            if group in node.groups and _moved(node, name, section.peers)
        }
        if group != DEFAULT_GROUP and more and section.bind_addr is not None:
            known = peers_of(raft, section)
            section = section.model_copy(update={"peers": known | more})
        groups[group] = section
    return raft.model_copy(update={"peers": raft.peers | moved, "groups": groups})


def peers_of(raft: Raft, section: RaftGroup) -> dict[str, str]:
    """Return the addresses of a listed group on the nodes that a file names: those given, or else
    shifted as this node's own is. Raises ValueError for a port that does not exist."""
    if section.peers or section.bind_addr is None:
        return section.peers
    ports = split_address(section.bind_addr)[1] - split_address(raft.bind_addr)[1]
    return {name: shifted(base, ports) for name, base in raft.peers.items()}


def _members(cluster: ClusterSettings, nodes: Mapping[str, ClusterNode]) -> str:
    """Return the members of etcd that the file and the nodes name."""
    assert cluster.member is not None, "this node runs a member"
    named = cluster.members(cluster.member)
    members = {
        name: url for name, url in named.items() if name not in nodes or not nodes[name].left
    }
    for name, node in nodes.items():
        if node.etcd and not node.left and _moved(node, name, named):
            members[name] = node.etcd
    return ",".join(f"{name}={url}" for name, url in members.items())

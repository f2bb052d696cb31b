"""Messages about the nodes of a cluster: which there are, and those that join or leave.

::

    control -> shard         cluster_nodes: all that have ever joined or left, at every change
    fluxmqctl -> control     admit_node, for a node that wants to join; leave

Pure, like `messages`.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, field

from fluxmq.ipc.messages import MessageBody, Name, Text, Word
from fluxmq.settings.membership import NODES_MAX, ClusterNode
from fluxmq.settings.node_sets import NODE_SETS_MAX, NodeSet

CLUSTER_NODES: Final = "cluster_nodes"
ADMIT_NODE: Final = "admit_node"
LEAVE: Final = "leave"

NodesByName = Annotated[dict[Name, ClusterNode], Meta(max_length=NODES_MAX)]
SetsById = Annotated[dict[Name, NodeSet], Meta(max_length=NODE_SETS_MAX + NODES_MAX)]
"""Nodes may put the last ones at the same time."""


class ClusterNodes(MessageBody, frozen=True):
    """The nodes that the cluster keeps, by name, and its node sets by identifier. Also the answer to a
    node that is admitted."""

    nodes: NodesByName
    sets: SetsById = field(default_factory=dict)


class AdmitNode(MessageBody, frozen=True):
    """Request to admit a node to the cluster. ``cluster``: the cluster's name in the node's settings;
    ``groups`` of ``addresses``: those of its settings; ``tls``: whether it uses TLS between nodes.
    """

    node: Name
    cluster: Name
    version: Word
    tls: bool
    addresses: ClusterNode


class Leave(MessageBody, frozen=True):
    """Request that this node leaves the cluster. ``check``: only say what is against it; ``force``:
    give up queues and sessions that only this node has; ``moves``: other nodes get its copies first."""

    check: bool
    force: bool
    moves: bool = False


class Obstacles(MessageBody, frozen=True):
    """Reasons for which a node cannot leave, and what would be lost. ``others``: the other nodes of the
    cluster."""

    obstacles: Annotated[tuple[Text, ...], Meta(max_length=1024)]
    losses: Annotated[tuple[Text, ...], Meta(max_length=1024)]
    others: Annotated[tuple[Name, ...], Meta(max_length=NODES_MAX)] = ()

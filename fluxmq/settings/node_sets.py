"""Node sets: the nodes that a cluster had at one time, on which new groups begin.

Whenever nodes join or leave, the cluster keeps the nodes that there are then, under an identifier that
follows from them. A set never changes, and a group that begins on one has the identifier in its name:
all nodes that know the set compute the same members, however many nodes have come or gone since, and
a node that does not know it does not begin the group.

A node that has left and comes back is another member: it has forgotten what it promised. So a set has
with each node how often that one had joined. Pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

NODE_SETS_MAX: Final = 1000
"""Sets that a cluster keeps: every process has them all, at some hundred bytes each."""
_ID_CHARACTERS: Final = 8


class NodeSet(msgspec.Struct, frozen=True):
    """The nodes, each with how often it had joined. ``number``: sets that there were before; of several
    that will do, the earliest is used, so that there are few groups."""

    number: int
    nodes: dict[str, int]


class NodeHistory(NamedTuple):
    """The sets by identifier, how often each node that there is now has joined, and the nodes that each
    mirrored group begins on, its first leader before the others."""

    sets: Mapping[str, NodeSet] = {}
    times: Mapping[str, int] = {}
    mirrors: Mapping[str, tuple[str, ...]] = {}

    def is_whole(self, node_set: NodeSet, nodes: tuple[str, ...]) -> bool:
        """Return whether these nodes of a set are in the cluster, and have been since."""
        return all(self.times.get(node, -1) == node_set.nodes[node] for node in nodes)

    def earliest(self) -> list[tuple[str, NodeSet]]:
        """Return the sets, the earliest first."""
        return sorted(self.sets.items(), key=lambda each: (each[1].number, each[0]))


def id_of_set(nodes: Mapping[str, int]) -> str:
    """Return the identifier of a set: part of a hash of its nodes."""
    text = "\0".join(f"{node}={times}" for node, times in sorted(nodes.items()))
    return hashlib.sha256(text.encode()).hexdigest()[:_ID_CHARACTERS]


def check_set(identifier: str, node_set: NodeSet) -> None:
    """Raise ValueError for a set that is not the one of this identifier."""
    if id_of_set(node_set.nodes) != identifier:
        raise ValueError(f"the node set {identifier} is another one than its identifier says")


def decode_set(identifier: str, data: bytes) -> NodeSet:
    """Decode the value of a set's key in etcd. Raises ValueError."""
    found = msgspec.json.decode(data, type=NodeSet)
    check_set(identifier, found)
    return found

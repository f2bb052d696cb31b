"""The control process's view of its cluster: the nodes of the settings, and those that have joined."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fluxmq.control.mirrored_queues import MirroredQueues
from fluxmq.control.peers import RequestError
from fluxmq.ipc.messages import ERROR_NOT_FOUND
from fluxmq.settings.membership import ClusterNode, effective, read_nodes, with_mirrors
from fluxmq.settings.node_sets import NodeSet
from fluxmq.settings.schema import Settings

if TYPE_CHECKING:
    from fluxmq.control.etcd.cluster_nodes import NodeKeys
    from fluxmq.control.etcd.shared_metadata import SharedMetadata


class ClusterView:
    """The settings in force, ``settings``, and the names of the ``others`` that there are now.

    ``file``: the settings of the file; ``keys``: the nodes in etcd, once they are followed.
    """

    def __init__(self, file: Settings, data_dir: str) -> None:
        """Raises ValueError for a damaged copy of the nodes."""
        self.file = file
        known = read_nodes(data_dir)
        self.known: Mapping[str, ClusterNode] = known.nodes
        self.sets: Mapping[str, NodeSet] = known.sets
        self._mirrors: Mapping[str, tuple[str, ...]] = {}
        self.settings = self._effective()
        self.others = self._others()
        self.keys: NodeKeys | None = None
        self.mirroring = MirroredQueues()

    def _effective(self) -> Settings:
        return with_mirrors(effective(self.file, self.known, self.sets), self._mirrors)

    def _others(self) -> set[str]:
        cluster = self.settings.cluster
        return set(cluster.transport.peers if cluster.enabled else ())

    def reload(self, file: Settings) -> None:
        """Use other settings of the file."""
        self.file = file
        self.settings = self._effective()

    def mirrored(self, mirrors: Mapping[str, tuple[str, ...]]) -> None:
        """Know the mirrored groups, each with the nodes that it begins on."""
        self._mirrors = mirrors
        self.settings = self._effective()

    def changed(self, nodes: Mapping[str, ClusterNode], sets: Mapping[str, NodeSet]) -> None:
        """Work by the nodes that there are now, and these node sets."""
        self.known, self.sets = nodes, sets
        self.settings = self._effective()
        self.others.clear()  # others hold the set
        self.others.update(self._others())

    def mirrors(self) -> bool:
        """Return whether all nodes know mirrored groups."""
        return self.keys is not None and self.keys.mirrors

    def changes_types(self) -> bool:
        """Return whether all nodes know queues that change their type."""
        return self.keys is not None and self.keys.changes_types

    def members(self) -> Mapping[str, str]:
        """Return the addresses of the members of etcd that there are now, by node."""
        member = self.settings.cluster.member
        return {} if member is None else self.settings.cluster.members(member)

    async def lives(self, node: str) -> bool | None:
        """Return whether a node runs; None for one that is none of this cluster. Raises
        RequestError."""
        known = None if self.keys is None else self.keys.nodes.get(node)
        if self.keys is None or known is None or known.left:
            return None
        return await self.keys.lives(node)

    async def forget(self, node: str, shared: SharedMetadata | None) -> None:
        """Forget a node that is gone for good. Raises RequestError."""
        if shared is None:
            return
        await self.mirroring.forget(node)
        try:
            await shared.forget(node)
        except RequestError as problem:
            # A node that was admitted and has never started has left nothing there.
            known = self.keys is not None and node in self.keys.nodes
            if not known or problem.code != ERROR_NOT_FOUND:
                raise
        if self.keys is not None:
            await self.keys.mark_left(node)

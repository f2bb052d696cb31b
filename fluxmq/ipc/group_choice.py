"""Choice of the group of a declared queue: in memory, one of a node's own, or one of the cluster's.

A group that every node has of its own is written with the node's name behind it
(``local-3@node1``), since all nodes read the row: the queue is on that node, by default the one to
which its declarer is connected. `QueueNames.own_name` strips the name again on that node.

A replicated queue is in a group that the node should lead which the queue's locator chooses
(`queue_locators`), if there can be such a group.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from fluxmq.ipc.placements import number_of
from fluxmq.ipc.queue_locators import DefaultLocators, loads, located, locator_of
from fluxmq.routing.topology.arguments import (
    BEFORE_SYNC_KEY,
    CLASSIC,
    GROUP_KEY,
    QUORUM,
    STREAM,
)
from fluxmq.routing.topology.records import QueueRecord
from fluxmq.routing.topology.refusals import named, precondition
from fluxmq.routing.topology.topology import Topology
from fluxmq.settings.clustering import BUFFERED, DEFAULT_GROUP, EPHEMERAL, LOCAL
from fluxmq.settings.group_names import preferred_leader
from fluxmq.settings.plans import GroupPlans, UnknownGroup
from fluxmq.settings.schema import Settings

SIZE_KEYS: Final = {QUORUM: "x-quorum-initial-group-size", STREAM: "x-initial-cluster-size"}
"""Arguments for the number of copies, by type."""


class ClusterMap(Protocol):
    """The nodes of a cluster that can be reached, and which of them leads what."""

    plans: GroupPlans

    def nodes(self) -> Mapping[str, int]:
        """Return the nodes that can be reached, this one among them, each with its number of shards."""

    def leader_of(self, group: str) -> str:
        """Return the node that leads a group; empty if that is unknown."""


@dataclass(frozen=True, slots=True)
class GroupChoice:
    """Chooses the groups of queues that are declared on a node.

    ``shard``: the declarer's; ``local_groups``: number of the node's own groups; ``buffered``: whether
    they confirm before the disk has synced; ``locators``: the settings; ``cluster``: None on a single
    node.
    """

    node: str
    shard: int
    local_groups: int
    buffered: bool
    locators: DefaultLocators
    cluster: ClusterMap | None

    def of(self, topology: Topology, queue: QueueRecord, also: Iterable[QueueRecord] = ()) -> str:
        """Return the group of a new queue, whose arguments are valid. ``also``: queues that the
        topology does not have yet, and that count as well. Raises `Refusal` 406 for an unknown group.

        Durable queues of the types quorum and stream are replicated, and so are those that name a
        group. One that wants a number of copies is in a group that has so many, or as many as there
        are nodes; one that wants a single copy is not replicated.
        """
        wanted = queue.arguments.get(GROUP_KEY, "")
        lasting = queue.durable and not queue.exclusive
        if wanted and not lasting:
            raise precondition(f"{GROUP_KEY} is for durable queues that are not exclusive")
        if self.cluster is None:
            if wanted:
                raise precondition(f"{GROUP_KEY} is for nodes of a cluster")
            return self._own_group(queue, self.shard)
        plans = self.cluster.plans
        if wanted:
            if queue.arguments.get(BEFORE_SYNC_KEY):
                name = named("queue", queue.name, queue.vhost)
                raise precondition(f"invalid arg '{BEFORE_SYNC_KEY}' for {name}: it is replicated")
            return _replicated(plans, wanted if isinstance(wanted, str) else "")
        if lasting and queue.type != CLASSIC:
            copies = queue.arguments.get(SIZE_KEYS[queue.type])
            group = plans.sized(copies) if isinstance(copies, int) else DEFAULT_GROUP
            if group:
                return self._led(self.cluster, topology, queue, also, group)
        nodes = self.cluster.nodes()
        home = self._node(self.cluster, topology, queue, also, dict.fromkeys(nodes, ""))
        shard = self.shard if home == self.node else number_of(queue.internal_name, nodes[home])
        return f"{self._own_group(queue, shard)}@{home}"

    def _own_group(self, queue: QueueRecord, shard: int) -> str:
        """Return the group of a node's own for a queue; in the memory of a shard if it does not last."""
        if not queue.durable or queue.exclusive:
            return f"{EPHEMERAL}-{shard}"
        prefix = BUFFERED if self.buffered else LOCAL
        return f"{prefix}-{number_of(queue.name, self.local_groups)}"

    def _led(
        self,
        cluster: ClusterMap,
        topology: Topology,
        queue: QueueRecord,
        also: Iterable[QueueRecord],
        group: str,
    ) -> str:
        """Return the group with the copies of ``group`` that the node should lead which is chosen;
        ``group`` if there can be none. Raises `Refusal` if there cannot be that either."""
        found = {node: cluster.plans.led_by(node, group) for node in cluster.nodes()}
        groups = {node: name for node, name in found.items() if name}
        if not groups:
            return _replicated(cluster.plans, cluster.plans.fallback(group))
        return groups[self._node(cluster, topology, queue, also, groups)]

    def _node(
        self,
        cluster: ClusterMap,
        topology: Topology,
        queue: QueueRecord,
        also: Iterable[QueueRecord],
        nodes: Mapping[str, str],
    ) -> str:
        def node_of(other: QueueRecord) -> str:
            _, at, home = other.group.partition("@")
            # Not where a leader is for the moment: it returns, or an operator has moved it.
            return home if at else preferred_leader(other.group) or cluster.leader_of(other.group)

        return located(
            locator_of(topology, queue, self.locators),
            queue.internal_name,
            self.node,
            nodes,
            lambda: loads(topology, also, queue.type, node_of),
        )


def choice_of(
    settings: Settings, shard: int, local_groups: int, cluster: ClusterMap | None
) -> GroupChoice:
    """Return the choice that a node's settings say."""
    queues = settings.queue_manager
    return GroupChoice(
        settings.cluster.node_id,
        shard,
        local_groups,
        settings.storage.queue_ack_durability == "buffered",
        DefaultLocators(queues.queue_leader_locator, queues.queue_master_locator),
        cluster,
    )


def _replicated(plans: GroupPlans, wanted: str) -> str:
    group = wanted or DEFAULT_GROUP
    try:
        plans.for_queue(group)
    except UnknownGroup as problem:
        raise precondition(f"replication group {problem.group!r} {problem.why}") from None
    return group

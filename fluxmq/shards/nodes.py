"""The other nodes of the cluster, as a shard's protocols ask for them; and the node without any."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from fluxmq.settings.plans import GroupPlans
    from fluxmq.shards.cluster.wiring import Cluster
    from fluxmq.shards.queues.group import Group
    from fluxmq.shards.queues.once import Once


class Nodes(Protocol):
    """The other nodes, from the side of one shard."""

    @property
    def group_plans(self) -> GroupPlans | None:
        """The cluster's replication groups; None on a node alone."""

    def explain(self, outcome: int) -> str:
        """Return the text that goes with an outcome; empty for none."""

    def carrier(self, group: str) -> Group | Once | None:
        """Return the target for the content of a queue that moves to a replicated group; None while
        the group has no leader."""

    async def start(self) -> None:
        """Listen and dial. Raises ClusterError."""


class ClusterNodes:
    """The nodes of a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    @property
    def group_plans(self) -> GroupPlans | None:
        """The cluster's replication groups."""
        return self._cluster.plans

    def explain(self, outcome: int) -> str:
        """Return the text that goes with an outcome; empty for none."""
        return self._cluster.hosts.explanations.text(outcome)

    def carrier(self, group: str) -> Group | Once | None:
        """Return the leader of a replicated group; None while it has none."""
        return self._cluster.hosts.carrier(group)

    async def start(self) -> None:
        """Listen and dial. Raises ClusterError."""
        await self._cluster.start()


class NoNodes:
    """A node alone."""

    @property
    def group_plans(self) -> GroupPlans | None:
        """Return None: a node alone replicates nothing."""
        return None

    def explain(self, outcome: int) -> str:
        """Return no text: nothing is refused in the name of another node."""
        return ""

    def carrier(self, group: str) -> Group | Once | None:
        """Return None: there are no replicated groups."""
        return None

    async def start(self) -> None:
        """Do nothing."""

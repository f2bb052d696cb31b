"""The groups of queues that a file of definitions declares: as if a client of this node's first shard
had declared them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping

from fluxmq.control.current_plans import CurrentPlans
from fluxmq.control.peers import RequestError
from fluxmq.ipc.clusters import RaftListing, RaftRow
from fluxmq.ipc.group_choice import GroupChoice, choice_of
from fluxmq.settings.plans import GroupPlans
from fluxmq.settings.schema import Settings


class ListedCluster:
    """Implements ``ClusterMap`` from a list of the cluster's groups. A node has one shard or more; only
    the first is used for what it keeps in memory."""

    def __init__(self, plans: GroupPlans, own: str, rows: Iterable[RaftRow]) -> None:
        self.plans = plans
        self._nodes = {own: 1}
        self._leaders: dict[str, str] = {}
        for row in rows:
            self._leaders[row.group] = row.leader
            self._nodes |= {each.node: 1 for each in row.members if each.connected or each.leads}

    def nodes(self) -> Mapping[str, int]:
        """Return the nodes that can be reached, this one among them, each with one shard."""
        return self._nodes

    def leader_of(self, group: str) -> str:
        """Return the node that leads a group; empty if that is unknown."""
        return self._leaders.get(group, "")


class DeclaringNode:
    """The node that declares. ``current`` returns the settings in force; ``replicas`` lists the groups
    of the cluster, and is None on a single node."""

    def __init__(
        self,
        current: Callable[[], Settings],
        replicas: Callable[[], Awaitable[RaftListing]] | None,
    ) -> None:
        self._current = current
        self._replicas = replicas
        self._plans = CurrentPlans(current)

    async def choice(self) -> GroupChoice:
        """Return the choice of groups for queues that are declared now."""
        return choice_of(
            self._current(), 0, self._current().queue_manager.local_groups, await self._cluster()
        )

    async def _cluster(self) -> ListedCluster | None:
        cluster = self._current().cluster
        if self._replicas is None or not cluster.raft.enabled:
            return None
        try:
            rows = (await self._replicas()).groups
        except RequestError:
            rows = ()  # no shard answers: the queues are led from here
        return ListedCluster(self._plans(), cluster.node_id, rows)

"""The nodes of a cluster that a shard can reach, and which of them leads a group; implements
``ClusterMap``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from fluxmq.replication.leaders import OWN, Leaders
from fluxmq.replication.shard_links import ShardLinks
from fluxmq.settings.plans import GroupPlans


class NodeMap:
    """A shard's view of the nodes."""

    def __init__(self, plans: GroupPlans, links: ShardLinks, leaders: Leaders) -> None:
        self.plans = plans
        self._links = links
        self._leaders = leaders

    def nodes(self) -> Mapping[str, int]:
        """Return the nodes that can be reached, this one among them, each with its number of shards."""
        links = self._links
        shards = Counter(link.node for link in links.abroad.values() if link.up)
        shards[links.node] = len(links.own) + 1
        return shards

    def leader_of(self, group: str) -> str:
        """Return the node that leads a group; empty if that is unknown."""
        leader = self._leaders.all().get(group)
        if leader is None or leader.peer is None:
            return ""
        return self._links.node if leader.peer == OWN else self._links.node_of(leader.peer)

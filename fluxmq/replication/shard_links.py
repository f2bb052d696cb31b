"""The other shards, of this node and of others, and the shards of this node that groups are on."""

from __future__ import annotations

from collections.abc import Mapping

from fluxmq.cluster.node_links import NodeLink
from fluxmq.net.links import FrameLink
from fluxmq.replication.placement import Places


class ShardLinks:
    """This shard's links to all others. ``node`` and ``shard``: where this one is."""

    def __init__(self, node: str, shard: int, places: Places) -> None:
        self.node = node
        self.shard = shard
        self.places = places
        self.own: Mapping[int, FrameLink] = {}
        """Links to shards of this node, by number."""
        self.abroad: Mapping[int, NodeLink] = {}
        """Links to shards of other nodes, by a number of this node's own."""

    def to(self, peer: int) -> FrameLink | None:
        """Return the link to a shard of this node, or of another."""
        return self.own.get(peer) or self.abroad.get(peer)

    def of(self, node: str) -> list[NodeLink]:
        """Return the links to another node that are up."""
        return [link for link in self.abroad.values() if link.node == node and link.up]

    def node_of(self, peer: int) -> str:
        """Return a shard's node: this one for its own shards, empty for one never connected."""
        if peer in self.own:
            return self.node
        link = self.abroad.get(peer)
        return "" if link is None else link.node

    def place_of(self, group: str) -> int:
        """Return the shard of this node that hosts a group, or would."""
        return self.places.shard_of(group)

    def say(self, what: str, *arguments: object) -> None:
        """Send a control frame to all shards that can be reached."""
        links: list[FrameLink] = [*self.own.values(), *self.abroad.values()]
        for link in links:
            if link.up:
                link.send_control(what, *arguments)

    def forward(self, group: str, what: str, *arguments: object) -> bool:
        """Send a control frame to the shard of this node that hosts a group, unless it is this one;
        return whether it is another."""
        shard = self.place_of(group)
        if shard == self.shard:
            return False
        link = self.to(shard)
        if link is not None and link.up:
            link.send_control(what, *arguments)
        return True

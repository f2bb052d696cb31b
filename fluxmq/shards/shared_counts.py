"""Counts that all shards of all nodes share: connections per vhost, connections and channels per
user. A limit is the vhost's or the user's, not the shard's, nor the node's.

A shard sends the others its present count with each change, and all counts to a shard that has just
started. The others' counts are a moment old: connections opened on several shards at the same
moment may exceed the limit by one per shard, as on nodes of a RabbitMQ cluster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from fluxmq.net.links import Link
from fluxmq.shards.node_connections import CONNECTIONS, NodeConnections

ENTERED = "amqp entered"
"""Name of the control frame for vhosts: connections by vhost, and whether these are all of them."""


class SharedCounts:
    """Counts by name, of this shard and, as reported, of the others.

    ``frame`` and ``node_frame`` are the names of the control frames to other shards and nodes.
    """

    def __init__(
        self, links: Mapping[int, Link], frame: str = ENTERED, node_frame: str = CONNECTIONS
    ) -> None:
        self._links = links
        self._frame = frame
        self._own: Counter[str] = Counter()
        self._others: dict[int, tuple[int, dict[str, int]]] = {}
        """By peer: the life in which it reported, and its counts."""
        self._told: dict[int, int] = {}
        """By peer: the life that received all counts."""
        self.nodes = NodeConnections(self.on_node, node_frame)

    def count(self, name: str) -> int:
        """Return the count of a name, on this node and others."""
        here = self._own[name] + sum(
            self._said_by(link).get(name, 0) for link in self._links.values() if link.up
        )
        return here + self.nodes.count(name)

    def on_node(self) -> Counter[str]:
        """Return the counts of this node by name."""
        total = Counter(self._own)
        for link in self._links.values():
            if link.up:
                total.update(self._said_by(link))
        return total

    def _said_by(self, link: Link) -> dict[str, int]:
        epoch, counts = self._others.get(link.peer, (0, {}))
        return counts if epoch == link.epoch else {}

    def enter(self, name: str) -> None:
        """Count one more on this shard."""
        self.set(name, self._own[name] + 1)

    def leave(self, name: str) -> None:
        """Count one less on this shard."""
        self.set(name, self._own[name] - 1)

    def set(self, name: str, count: int) -> None:
        """Set the count of this shard."""
        if self._own.get(name, 0) == count:
            return
        if count:
            self._own[name] = count
        else:
            del self._own[name]
        for link in self._links.values():
            if link.up:
                link.send_control(self._frame, {name: count}, False)

    def tick(self) -> None:
        """Send all counts to peers that have started. Called ten times a second."""
        for peer, link in self._links.items():
            if link.up and self._told.get(peer) != link.epoch:
                self._told[peer] = link.epoch
                if self._own:  # otherwise the peer knows of none anyway
                    link.send_control(self._frame, dict(self._own), True)

    def handlers(self) -> dict[str, Callable[..., None]]:
        """Return the handlers of control frames by name."""
        return {self._frame: self._on_counts}

    def _on_counts(self, link: Link, counts: dict[str, int], everything: bool) -> None:
        known = {} if everything else self._said_by(link)
        self._others[link.peer] = (link.epoch, known)
        for name, count in counts.items():
            if count:
                known[name] = count
            else:
                known.pop(name, None)

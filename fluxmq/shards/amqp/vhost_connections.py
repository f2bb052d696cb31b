"""Number of connections per vhost: the limit is the vhost's, not the shard's, nor the node's.

A shard sends the others its present count with each connection that enters or leaves a vhost, and
all counts to a shard that has just started. The others' counts are a moment old: connections opened
on several shards at the same moment may exceed the limit by one per shard, as on nodes of a
RabbitMQ cluster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from fluxmq.net.links import Link
from fluxmq.shards.node_connections import NodeConnections

ENTERED = "amqp entered"
"""Name of the control frame: connections by vhost, and whether these are all of them."""


class VhostConnections:
    """Connections by vhost, of this shard and, as reported, of the others."""

    def __init__(self, links: Mapping[int, Link]) -> None:
        self._links = links
        self._own: Counter[str] = Counter()
        self._others: dict[int, tuple[int, dict[str, int]]] = {}
        """By peer: the life in which it reported, and its counts."""
        self._told: dict[int, int] = {}
        """By peer: the life that received all counts."""
        self.nodes = NodeConnections(self.on_node)

    def count(self, vhost: str) -> int:
        """Return the number of connections of a vhost, on this node and others."""
        here = self._own[vhost] + sum(
            self._said_by(link).get(vhost, 0) for link in self._links.values() if link.up
        )
        return here + self.nodes.count(vhost)

    def on_node(self) -> Counter[str]:
        """Return the connections of this node by vhost."""
        total = Counter(self._own)
        for link in self._links.values():
            if link.up:
                total.update(self._said_by(link))
        return total

    def _said_by(self, link: Link) -> dict[str, int]:
        epoch, counts = self._others.get(link.peer, (0, {}))
        return counts if epoch == link.epoch else {}

    def enter(self, vhost: str) -> None:
        """Count a connection of this shard that has entered a vhost."""
        self._own[vhost] += 1
        self._tell(vhost)

    def leave(self, vhost: str) -> None:
        """Count a connection of this shard that has left its vhost."""
        self._own[vhost] -= 1
        self._tell(vhost)
        if not self._own[vhost]:
            del self._own[vhost]

    def _tell(self, vhost: str) -> None:
        for link in self._links.values():
            if link.up:
                link.send_control(ENTERED, {vhost: self._own[vhost]}, False)

    def tick(self) -> None:
        """Send all counts to peers that have started. Called ten times a second."""
        for peer, link in self._links.items():
            if link.up and self._told.get(peer) != link.epoch:
                self._told[peer] = link.epoch
                link.send_control(ENTERED, dict(self._own), True)

    def handlers(self) -> dict[str, Callable[..., None]]:
        """Return the handlers of control frames by name."""
        return {ENTERED: self._on_entered}

    def _on_entered(self, link: Link, counts: dict[str, int], everything: bool) -> None:
        known = {} if everything else self._said_by(link)
        self._others[link.peer] = (link.epoch, known)
        for vhost, count in counts.items():
            if count:
                known[vhost] = count
            else:
                known.pop(vhost, None)

"""How many connections each vhost has on the node: a limit of connections is the vhost's, not the shard's.

A shard tells the others of each connection that enters or leaves a vhost, as the count it has now, and a shard that has
just started of all of them. What is known of the others is a moment old: connections that are opened on several shards at
the same moment may be one more per shard than the limit allows, as on nodes of a RabbitMQ cluster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from fluxmq.net.links import Link

ENTERED = "amqp entered"
"""Name of the control frame: connections by vhost, and whether that is all of them."""


class Entered:
    """Connections by vhost, of this shard and, as they say, of the others."""

    def __init__(self, links: Mapping[int, Link]) -> None:
        self._links = links
        self._own: Counter[str] = Counter()
        self._others: dict[int, tuple[int, dict[str, int]]] = {}
        """What each peer said in which of its lives."""
        self._told: dict[int, int] = {}
        """Which life of each peer was told everything."""

    def count(self, vhost: str) -> int:
        """Connections of a vhost on the node."""
        return self._own[vhost] + sum(
            self._said_by(link).get(vhost, 0) for link in self._links.values() if link.up
        )

    def _said_by(self, link: Link) -> dict[str, int]:
        epoch, counts = self._others.get(link.peer, (0, {}))
        return counts if epoch == link.epoch else {}

    def enter(self, vhost: str) -> None:
        """A connection of this shard has entered a vhost."""
        self._own[vhost] += 1
        self._tell(vhost)

    def leave(self, vhost: str) -> None:
        """A connection of this shard has left its vhost."""
        self._own[vhost] -= 1
        self._tell(vhost)
        if not self._own[vhost]:
            del self._own[vhost]

    def _tell(self, vhost: str) -> None:
        for link in self._links.values():
            if link.up:
                link.send_control(ENTERED, {vhost: self._own[vhost]}, False)

    def tick(self) -> None:
        """Tell peers that have started what there is here. Called ten times a second."""
        for peer, link in self._links.items():
            if link.up and self._told.get(peer) != link.epoch:
                self._told[peer] = link.epoch
                link.send_control(ENTERED, dict(self._own), True)

    def handlers(self) -> dict[str, Callable[..., None]]:
        """Who takes which control frame."""
        return {ENTERED: self._on_entered}

    def _on_entered(self, link: Link, counts: dict[str, int], everything: bool) -> None:
        known = {} if everything else self._said_by(link)
        self._others[link.peer] = (link.epoch, known)
        for vhost, count in counts.items():
            if count:
                known[vhost] = count
            else:
                known.pop(vhost, None)

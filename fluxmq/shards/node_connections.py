"""Number of connections per vhost on other nodes: the limit is the vhost's, not the node's.

A shard tells its counterparts on other nodes how many connections its whole node has, when that has
changed. What it knows of other nodes is a fraction of a second old: connections opened on several
nodes at the same moment may exceed the limit by one per node, as in a RabbitMQ cluster. Those of a
node that cannot be reached do not count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fluxmq.shards.node_paths import PublishLink

CONNECTIONS = "connections"
"""Name of the control frame: connections of a node by vhost, all of them."""


class NodeConnections:
    """Connections by vhost of other nodes. ``own`` returns those of this one."""

    def __init__(self, own: Callable[[], Mapping[str, int]]) -> None:
        self._own = own
        self._links: dict[int, PublishLink] = {}
        self._told: dict[int, Mapping[str, int]] = {}
        """Counts last sent over each link."""
        self._others: dict[str, dict[str, int]] = {}

    def count(self, vhost: str) -> int:
        """Return the number of connections of a vhost on other nodes."""
        return sum(counts.get(vhost, 0) for counts in self._others.values())

    def came(self, link: PublishLink) -> None:
        """Tell the number of connections over a new stream."""
        self._links[link.peer] = link
        self._told[link.peer] = {}
        self.housekeeping()

    def gone(self, link: PublishLink) -> None:
        """Forget the connections of a node that cannot be reached."""
        self._links.pop(link.peer, None)
        if all(other.node != link.node for other in self._links.values()):
            self._others.pop(link.node, None)

    def handlers(self) -> dict[str, Callable[..., None]]:
        """Return the handlers of control frames by name."""
        return {CONNECTIONS: self._on_connections}

    def frame_handlers(self) -> dict[int, Callable[[PublishLink, bytes], None]]:
        """Return nothing: control frames are enough."""
        return {}

    def _on_connections(self, link: PublishLink, counts: dict[str, int]) -> None:
        self._others[link.node] = counts

    def housekeeping(self) -> None:
        """Tell what has changed; called every tenth of a second."""
        if not self._links:
            return
        own = dict(self._own())
        for peer, link in self._links.items():
            if self._told[peer] != own:
                self._told[peer] = own
                link.send_control(CONNECTIONS, own)

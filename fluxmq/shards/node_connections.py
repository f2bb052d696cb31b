"""Counts of other nodes, such as connections per vhost: a limit is the vhost's, not the node's.

A shard tells its counterparts on other nodes the counts of its whole node, when they have changed.
Its knowledge of other nodes is a fraction of a second old: connections opened on several nodes at the
same moment may exceed the limit by one per node, as in a RabbitMQ cluster. Those of a
node that cannot be reached do not count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fluxmq.shards.node_paths import PublishLink

CONNECTIONS = "connections"
"""Name of the control frame for vhosts: connections of a node by vhost, all of them."""


class NodeConnections:
    """Counts of other nodes by name. ``own`` returns those of this one, ``frame`` names the control
    frame."""

    def __init__(self, own: Callable[[], Mapping[str, int]], frame: str = CONNECTIONS) -> None:
        self._own = own
        self._frame = frame
        self._links: dict[int, PublishLink] = {}
        self._told: dict[int, Mapping[str, int]] = {}
        """Counts last sent over each link."""
        self._others: dict[str, dict[str, int]] = {}

    def count(self, name: str) -> int:
        """Return the count of a name on other nodes."""
        return sum(counts.get(name, 0) for counts in self._others.values())

    def came(self, link: PublishLink) -> None:
        """Tell the counts over a new stream."""
        self._links[link.peer] = link
        self._told[link.peer] = {}
        self.housekeeping()

    def gone(self, link: PublishLink) -> None:
        """Forget the counts of a node that cannot be reached."""
        self._links.pop(link.peer, None)
        if all(other.node != link.node for other in self._links.values()):
            self._others.pop(link.node, None)

    def handlers(self) -> dict[str, Callable[..., None]]:
        """Return the handlers of control frames by name."""
        return {self._frame: self._on_counts}

    def frame_handlers(self) -> dict[int, Callable[[PublishLink, bytes], None]]:
        """Return nothing: control frames are enough."""
        return {}

    def _on_counts(self, link: PublishLink, counts: dict[str, int]) -> None:
        self._others[link.node] = counts

    def housekeeping(self) -> None:
        """Tell what has changed; called by the shard's timer."""
        if not self._links:
            return
        own = dict(self._own())
        for peer, link in self._links.items():
            if self._told[peer] != own:
                self._told[peer] = own
                link.send_control(self._frame, own)

"""Limits of users: connections of all protocols, and AMQP channels, in all vhosts of all nodes.

Each shard counts the connections and channels of every user, but tells the others only the counts
of users that have limits. A limit that is set later counts what is there, and closes nothing.

Source: RabbitMQ's per-user limits (``max-connections``, ``max-channels``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from fluxmq.metrics.registry import Sample
from fluxmq.net.links import Link
from fluxmq.routing.topology.records import USER_LIMITS
from fluxmq.routing.topology.topology import Delta, Topology
from fluxmq.shards.node_connections import NodeConnections
from fluxmq.shards.shared_counts import SharedCounts

MAX_CONNECTIONS = "max-connections"
MAX_CHANNELS = "max-channels"


class UserLimitChecks:
    """Counts of one shard, and whether the next connection or channel of a user is allowed.

    ``topology`` has the limits; it is set once the shard's copy exists.
    """

    def __init__(self, links: Mapping[int, Link]) -> None:
        self.topology = Topology()
        self.refused: Counter[str] = Counter()
        """Refused connections and channels, by the limit's name."""
        self._connections: Counter[str] = Counter()
        self._channels: Counter[str] = Counter()
        self._users: dict[object, str] = {}
        """Users of connections that have been counted, by connection."""
        self._shared = {
            MAX_CONNECTIONS: SharedCounts(links, "user entered", "user connections"),
            MAX_CHANNELS: SharedCounts(links, "user opened", "user channels"),
        }

    def enter(self, connection: object, user: str) -> int | None:
        """Count a connection of a user, or return the user's limit if it is reached.

        Clients without a user are not counted.
        """
        if not user:
            return None
        limit = self._reached(user, MAX_CONNECTIONS)
        if limit is None:
            self._users[connection] = user
            self._count(self._connections, MAX_CONNECTIONS, user, 1)
        return limit

    def leave(self, connection: object) -> None:
        """Count the end of a connection; a no-op for one that was not counted."""
        user = self._users.pop(connection, "")
        if user:
            self._count(self._connections, MAX_CONNECTIONS, user, -1)

    def open_channel(self, user: str) -> int | None:
        """Count a channel of a user, or return the user's limit if it is reached."""
        limit = self._reached(user, MAX_CHANNELS)
        if limit is None:
            self._count(self._channels, MAX_CHANNELS, user, 1)
        return limit

    def close_channel(self, user: str) -> None:
        """Count the end of a channel."""
        self._count(self._channels, MAX_CHANNELS, user, -1)

    def _reached(self, user: str, name: str) -> int | None:
        limit = self.topology.limits_of_user(user).get(name, -1)
        if not 0 <= limit <= self._shared[name].count(user):
            return None
        self.refused[name] += 1
        return int(limit)

    def _count(self, own: Counter[str], name: str, user: str, change: int) -> None:
        own[user] += change
        count = own[user]
        if not count:
            del own[user]
        if self.topology.limits_of_user(user):
            self._shared[name].set(user, count)

    def changed(self, delta: Delta) -> None:
        """Follow a change of the topology: share the counts of users that now have limits."""
        if delta.previous is not None and all(row.kind != USER_LIMITS for row in delta.rows):
            return
        for name, own in ((MAX_CONNECTIONS, self._connections), (MAX_CHANNELS, self._channels)):
            for user, count in own.items():
                limited = bool(self.topology.limits_of_user(user))
                self._shared[name].set(user, count if limited else 0)

    def samples(self) -> Iterator[Sample]:
        """Yield this shard's metrics."""
        for name in (MAX_CONNECTIONS, MAX_CHANNELS):
            yield "fluxmq_user_limit_refused_total", {"limit": name}, self.refused[name]

    def tick(self) -> None:
        """Send all counts to peers that have started. Called ten times a second."""
        for counts in self._shared.values():
            counts.tick()

    def handlers(self) -> dict[str, Callable[..., None]]:
        """Return the handlers of control frames by name."""
        return {
            frame: handler
            for counts in self._shared.values()
            for frame, handler in counts.handlers().items()
        }

    @property
    def nodes(self) -> tuple[NodeConnections, ...]:
        """The exchange of counts with other nodes."""
        return tuple(counts.nodes for counts in self._shared.values())

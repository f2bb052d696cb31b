"""Access to a group's queues, and appends held up because their queue is moving to another group.

The sender keeps a held-up append and retries it. If the queue stays after all, appends of one shard
are accepted in their original order: those behind a held-up one wait until that one is retried.
"""

from __future__ import annotations

from collections.abc import Callable

from fluxmq.queues.origins import Identity
from fluxmq.queues.states import QueueState
from fluxmq.routing.topology.names import is_reserved


class MigrationFence:
    """Gate of one group, on its leader. ``moved_away``: returns whether a queue unknown here is in
    another group now. ``owner_of``: returns the id of the only connection that may consume from a
    queue, or empty."""

    def __init__(self) -> None:
        self.moved_away: Callable[[str], bool] = lambda _queue: False
        self.owner_of: Callable[[str], str] = lambda _queue: ""
        self.fencing: set[str] = set()
        """Queues with a fence in flight: nothing may slip between it and earlier requests."""
        self._held: dict[tuple[str, int], int] = {}
        """Lowest number, by queue and origin, of an append that was held up and not retried yet."""

    def is_closed_to(self, queue: str, asker: str) -> bool:
        """Return whether ``asker`` has no access: the queue is another connection's, or
        server-named and requested by an MQTT client (no `asker`). AMQP messages reveal such names
        to repliers."""
        owner = self.owner_of(queue)
        return owner != asker if owner else not asker and is_reserved(queue)

    @property
    def busy(self) -> bool:
        """True while there are fences or held-up appends."""
        return bool(self.fencing or self._held)

    def holds(self, queue: str, state: QueueState | None, identity: Identity | None) -> bool:
        """Return whether an append is held up; ``state``: the queue, None if it is not here."""
        if state is None:
            return self.moved_away(queue)
        key = (queue, 0 if identity is None else identity.origin)
        if state.closed or queue in self.fencing:
            if identity is not None:
                self._held[key] = min(self._held.get(key, identity.number), identity.number)
            return True
        first = self._held.get(key)
        if first is None or identity is None:
            return False
        if identity.number > first and identity.floor <= first:
            return True
        del self._held[key]
        return False

    def forget(self, queue: str) -> None:
        """Forget held-up appends to a deleted queue."""
        for key in [key for key in self._held if key[0] == queue]:
            del self._held[key]

    def clear(self) -> None:
        """Forget everything when another node leads the group: appends are retried there, in
        order."""
        self.fencing.clear()
        self._held.clear()

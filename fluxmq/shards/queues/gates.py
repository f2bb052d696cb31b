"""Who may get at a group's queues, and which appends it holds up because their queue is being moved to another group.

Who asked keeps such an append and asks again. When the queue goes on here after all, appends of one shard are taken in the
order in which it made them: those behind one that was held up wait until that one has come again.
"""

from __future__ import annotations

from collections.abc import Callable

from fluxmq.queues.origins import Identity
from fluxmq.queues.states import Queue
from fluxmq.routing.topology.names import is_reserved


class Gate:
    """Of one group, where it is led. ``moved_away``: whether a queue that is not here is in another group now. ``owner_of``:
    id of the only connection that may consume from a queue, empty for none."""

    def __init__(self) -> None:
        self.moved_away: Callable[[str], bool] = lambda _queue: False
        self.owner_of: Callable[[str], str] = lambda _queue: ""
        self.fencing: set[str] = set()
        """Queues of which a fence is under way: nothing is to come between it and what was asked before."""
        self._held: dict[tuple[str, int], int] = {}
        """By queue and origin: the lowest number of an append that was held up and has not come again."""

    def is_closed_to(self, queue: str, asker: str) -> bool:
        """Whether a queue is not for who asks: it is another connection's, or asked for by an MQTT client (no `asker`) and named
        by the broker. Those names are told in messages of AMQP, to whoever is to reply."""
        owner = self.owner_of(queue)
        return owner != asker if owner else not asker and is_reserved(queue)

    @property
    def busy(self) -> bool:
        """Whether there is anything to look at."""
        return bool(self.fencing or self._held)

    def holds(self, queue: str, state: Queue | None, identity: Identity | None) -> bool:
        """Whether an append is held up; ``state`` is the queue's, None when there is none here."""
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
        """A queue has been deleted: who held an append to it comes again, or not."""
        for key in [key for key in self._held if key[0] == queue]:
            del self._held[key]

    def clear(self) -> None:
        """The group is led elsewhere: everything is asked again there, in order."""
        self.fencing.clear()
        self._held.clear()

"""Waits of queues whose new mirrors are not to be given older messages (``ha-sync-mode: manual``).

A mirror of RabbitMQ counts as synchronised once the messages are gone that are older than it is, even if
newer ones are there. So the position that a queue has got to is remembered when it begins to wait, and the
wait is over when the queue's oldest message is not before that position. Control that starts again begins anew to
wait: later than it could, but never too early.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from fluxmq.ipc.row_messages import QueueExtent
from fluxmq.routing.topology.mirror_keys import AUTOMATIC
from fluxmq.routing.topology.mirroring import MirrorPolicy
from fluxmq.routing.topology.records import QueueRecord

GONE_SECONDS: Final = 5.0
"""Interval between two looks whether older messages have gone."""

Key = tuple[str, str]
"""Virtual host and name of a queue."""


@dataclass(frozen=True, slots=True)
class WantedNodes:
    """A queue, and the nodes that it should be on, its leader first. ``policy``: None for one that should
    be on one node, without mirrors; ``added``: nodes that would be new; ``meanwhile``: those that it should be
    on while it waits for these, its leader first, empty if it is as it should be then."""

    queue: QueueRecord
    policy: MirrorPolicy | None
    nodes: tuple[str, ...]
    added: tuple[str, ...]
    meanwhile: tuple[str, ...] = ()

    @property
    def key(self) -> Key:
        """The queue's virtual host and name."""
        return self.queue.vhost, self.queue.name

    @property
    def waits(self) -> bool:
        """True if it moves only when older messages are gone, or when that is asked for."""
        return bool(self.added) and self.policy is not None and self.policy.sync_mode != AUTOMATIC


class MirrorWait:
    """The wait of one queue for its new mirrors on the nodes ``added``."""

    __slots__ = ("_began", "added", "over", "queue")

    def __init__(self, queue: QueueRecord, added: frozenset[str]) -> None:
        self.queue = queue
        self.added = added
        self._began: QueueExtent | None = None
        self.over = False
        """True once every message is gone that is older than the mirrors."""

    @property
    def begun(self) -> bool:
        """True once it is known how far the queue had got when the mirrors began."""
        return self._began is not None

    def reached(self, position: QueueExtent) -> None:
        """Take note of how far the queue has got; the first time, the mirrors begin there."""
        if self._began is None or self._began.identity != position.identity:
            self._began = position
        self.over = position.oldest >= self._began.following


class MirrorWaits:
    """Those of one node's queues. ``positions`` returns how far queues here have got, as far as that is
    known."""

    def __init__(
        self,
        positions: Callable[[Sequence[QueueRecord]], Awaitable[dict[Key, QueueExtent]]],
    ) -> None:
        self._positions = positions
        self._waits: dict[Key, MirrorWait] = {}
        self._begun: set[Key] = set()
        """Those that no look has been at."""
        self._look_at = 0.0

    def __len__(self) -> int:
        """Return the number of queues that wait."""
        return sum(not each.over for each in self._waits.values())

    def added(self, queue: QueueRecord) -> frozenset[str]:
        """Return the nodes for which a queue here waits."""
        wait = self._waits.get((queue.vhost, queue.name))
        return frozenset() if wait is None else wait.added

    def begun(self, queue: QueueRecord, node: str) -> bool:
        """Return whether a queue here has begun to wait for its new mirror on a node."""
        wait = self._waits.get((queue.vhost, queue.name))
        return wait is not None and wait.begun and node in wait.added

    def ready(self, those: Sequence[WantedNodes]) -> list[WantedNodes]:
        """Begin or go on to wait with those queues that have to, and forget all others; return those that are to
        move now. A queue that gets one more new mirror begins anew to wait."""
        former, self._waits = self._waits, {}
        ready = []
        for each in those:
            wait = former.get(each.key)
            if each.waits:
                if wait is None or not wait.added.issuperset(each.added):
                    wait = MirrorWait(each.queue, frozenset(each.added))
                    self._begun.add(each.key)
                self._waits[each.key] = wait
            if not each.waits or (wait is not None and wait.over):
                ready.append(each)
            elif each.meanwhile:
                ready.append(WantedNodes(each.queue, each.policy, each.meanwhile, ()))
        return ready

    async def look(self, time: float) -> bool:
        """See whether queues need not wait any longer, now and then; return whether there are new ones."""
        due = time >= self._look_at
        if due:
            self._look_at = time + GONE_SECONDS
        looked = [
            each
            for key, each in self._waits.items()
            if not each.over and (due or key in self._begun)
        ]
        self._begun.clear()
        if not looked:
            return False
        positions = await self._positions([each.queue for each in looked])
        for each in looked:
            position = positions.get((each.queue.vhost, each.queue.name))
            if position is not None:
                each.reached(position)
        return any(each.over for each in looked)

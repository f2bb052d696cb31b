"""Ends mirrored groups that no queue is in any more, on the node that coordinates the cluster.

Policies leave groups behind: their queues have moved or were deleted. Each has an address and a log on
every one of its nodes. A group ends by one transaction, on the condition that neither its record nor any queue
has changed since this node has seen that no queue is in it or moves to it. Queues are put into a
group on the condition that its record is there, so neither can overtake the other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import Final, Protocol

from fluxmq.control.etcd.client import EtcdError
from fluxmq.control.etcd.messages import Compare, Operation
from fluxmq.control.ports import ConflictError
from fluxmq.logs import RateLimited, get_logger
from fluxmq.metrics.registry import Sample
from fluxmq.routing.topology.topology import Topology

LOOK_SECONDS: Final = 10.0
"""Interval between two looks which groups queues are in."""
UNUSED_SECONDS: Final = 60.0
"""Time for which a group has had no queue when it ends: policies that change do so more than once."""

GroupEnd = tuple[tuple[Compare, ...], tuple[Operation, ...]]
"""Further conditions, and the operations."""

_log = get_logger(__name__)


class EndingGroups(Protocol):
    """The records of mirrored groups."""

    known: bool
    """True once they have been read."""

    def coordinates(self) -> bool:
        """Return whether this node ends groups."""

    def groups(self) -> Iterator[str]:
        """Yield the groups that there are."""

    def ending(self, group: str) -> GroupEnd | None:
        """Return how a group ends, unless its record changes; None if there is none."""


class MirrorEndings:
    """``while_unchanged`` carries out what may be done by the topology, if that does not change meanwhile;
    ``able`` returns whether all nodes know that groups end: others would put queues into them all the same."""

    def __init__(
        self,
        store: EndingGroups,
        topology: Callable[[], Topology],
        while_unchanged: Callable[[Callable[[Topology], GroupEnd | None]], Awaitable[bool]],
        able: Callable[[], bool],
    ) -> None:
        self._store = store
        self._topology = topology
        self._while_unchanged = while_unchanged
        self._able = able
        self._unused: dict[str, float] = {}
        """Groups without a queue, and since when."""
        self._task: asyncio.Task[None] | None = None
        self._said = RateLimited(_log, per_second=0.1, burst=3)
        self.ended = 0

    def start(self) -> None:
        """End groups until ``stop``."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Do nothing more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def samples(self) -> Iterator[Sample]:
        """Yield the samples of the metrics."""
        yield "fluxmq_mirrored_groups_ended_total", {}, float(self.ended)

    async def _run(self) -> None:
        """End groups; outermost frame of its task."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if not (self._store.coordinates() and self._store.known and self._able()):
                self._unused.clear()
                continue
            try:
                await self._look()
            except (EtcdError, ValueError, ConflictError) as problem:
                self._said.event(logging.WARNING, "endings", "mirrored groups: %s", problem)
            except Exception:  # noqa: BLE001 - a task's outermost frame
                _log.exception("mirrored groups cannot be ended")

    async def _look(self) -> None:
        now, used = asyncio.get_running_loop().time(), _used(self._topology())
        unused = (group for group in self._store.groups() if group not in used)
        self._unused = {group: self._unused.get(group, now) for group in unused}
        for group, since in self._unused.items():
            if now - since >= UNUSED_SECONDS and await self._is_ended(group):
                self.ended += 1
                _log.info("a mirrored group without queues ends", extra={"group": group})

    async def _is_ended(self, group: str) -> bool:
        """End a group, unless a queue is in it after all; return whether it has ended."""

        def decide(topology: Topology) -> GroupEnd | None:
            return None if group in _used(topology) else self._store.ending(group)

        return await self._while_unchanged(decide)


def _used(topology: Topology) -> set[str]:
    """Return the groups that queues are in, or move to."""
    found: set[str] = set()
    for queue in topology.queues():
        found.update((queue.group, queue.moving_to))
    return found

"""Waits until every live shard, here and on other nodes, has applied a change, within a time
limit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol

from fluxmq.control.node_revisions import NodeRevisions

REPLY_SECONDS: Final = 2.0
"""Time for which a node waits for its shards before it answers another one."""


class RevisionBarrier:
    """Wakes waiters at each confirmation to check again. Lives on control's loop.

    ``live`` names the shards that must apply a revision, ``held`` the revision of each connected
    one.
    """

    def __init__(
        self, live: Callable[[], Iterable[str]], held: Callable[[], Mapping[str, int]]
    ) -> None:
        self._live = live
        self._held = held
        self._others: NodeRevisions | None = None
        self._confirmed = asyncio.Event()

    def join(self, others: NodeRevisions) -> None:
        """Wait for the other nodes of a cluster, too."""
        self._others = others
        others.news = self._confirmed.set

    def confirmed(self) -> None:
        """Note that a shard confirmed something, or that there is a new revision to confirm."""
        self._confirmed.set()

    async def missing(self, revision: int, seconds: float) -> tuple[str, ...]:
        """Wait until all have applied a revision; return the names still missing after
        ``seconds``."""
        deadline = asyncio.get_running_loop().time() + seconds
        while missing := self._missing(revision):
            remaining = deadline - asyncio.get_running_loop().time()
            self._confirmed.clear()
            try:
                async with asyncio.timeout(remaining):
                    await self._confirmed.wait()
            except TimeoutError:
                missing = self._missing(revision)
                if self._others is not None:
                    self._others.give_up(revision)
                return missing
        return ()

    async def here(self, revision: int) -> None:
        """Return when this node's shards have applied a revision."""
        while self._missing_here(revision):
            self._confirmed.clear()
            await self._confirmed.wait()

    def _missing_here(self, revision: int) -> list[str]:
        held = self._held()
        return sorted(name for name in self._live() if held.get(name, -1) < revision)

    def _missing(self, revision: int) -> tuple[str, ...]:
        return (
            *self._missing_here(revision),
            *(self._others.lagging(revision) if self._others is not None else ()),
        )


class RevisedThing(Protocol):
    """A service with revisions: that of the topology, or of the users."""

    revision_barrier: RevisionBarrier

    async def reached(self, revision: int) -> None:
        """Return when this node has a revision."""


async def confirmed(thing: RevisedThing, revision: int) -> int:
    """Return a revision once all live shards of this node have it; one before it if they do not
    within `REPLY_SECONDS`."""
    try:
        async with asyncio.timeout(REPLY_SECONDS):
            await thing.reached(revision)
            await thing.revision_barrier.here(revision)
    except TimeoutError:
        return max(revision - 1, 0)
    return revision

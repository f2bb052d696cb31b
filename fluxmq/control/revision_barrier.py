"""Waits until every live shard, here and on other nodes, has applied a change, within a time
limit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol


class OtherRevisions(Protocol):
    """Progress of the other nodes. ``news`` is called when one of them has advanced, or is no longer
    waited for."""

    news: Callable[[], None]

    def reached(self, live: Iterable[str], held: Mapping[str, int], revision: int) -> None:
        """Take this node's progress: the revision of each connected shard, the names of those that
        count, and the revision in force."""

    def lagging(self, revision: int) -> tuple[str, ...]:
        """Return the nodes still to wait for until they reach this revision."""

    def give_up(self, revision: int) -> None:
        """Stop waiting for these nodes, now and next time."""


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
        self._remote_revisions: OtherRevisions | None = None
        self._confirmed = asyncio.Event()

    def join(self, remote_revisions: OtherRevisions) -> None:
        """Wait for the other nodes of a cluster, too."""
        self._remote_revisions = remote_revisions
        remote_revisions.news = self._confirmed.set

    def confirmed(self, revision: int) -> None:
        """Note that a shard confirmed something, or that there is a new ``revision`` to confirm."""
        self._confirmed.set()
        if self._remote_revisions is not None:
            self._remote_revisions.reached(self._live(), self._held(), revision)

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
                if self._remote_revisions is not None:
                    self._remote_revisions.give_up(revision)
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
            *(
                self._remote_revisions.lagging(revision)
                if self._remote_revisions is not None
                else ()
            ),
        )

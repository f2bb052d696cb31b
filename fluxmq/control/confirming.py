"""Waiting until every live shard works by a change, of this node and of the others, for as long as that is worth."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

from fluxmq.control.meta.elsewhere import Elsewhere


class Confirming:
    """Who waits is woken by each confirmation and looks again. Lives on control's loop.

    ``live`` names the shards that are to work by it, ``held`` says by which revision each that is connected does.
    """

    def __init__(
        self, live: Callable[[], Iterable[str]], held: Callable[[], Mapping[str, int]]
    ) -> None:
        self._live = live
        self._held = held
        self._elsewhere: Elsewhere | None = None
        self._confirmed = asyncio.Event()

    def join(self, elsewhere: Elsewhere) -> None:
        """There are other nodes, too."""
        self._elsewhere = elsewhere
        elsewhere.news = self._confirmed.set

    def confirmed(self, revision: int) -> None:
        """Note that some shard confirmed something, or that there is another ``revision`` to be confirmed."""
        self._confirmed.set()
        if self._elsewhere is not None:
            self._elsewhere.reached(self._live(), self._held(), revision)

    async def missing(self, revision: int, seconds: float) -> tuple[str, ...]:
        """Wait until nobody is missing that should work by a revision; return who still is after ``seconds``."""
        deadline = asyncio.get_running_loop().time() + seconds
        while missing := self._missing(revision):
            remaining = deadline - asyncio.get_running_loop().time()
            self._confirmed.clear()
            try:
                async with asyncio.timeout(remaining):
                    await self._confirmed.wait()
            except TimeoutError:
                missing = self._missing(revision)
                if self._elsewhere is not None:
                    self._elsewhere.give_up(revision)
                return missing
        return ()

    def _missing(self, revision: int) -> tuple[str, ...]:
        held = self._held()
        here = sorted(name for name in self._live() if held.get(name, -1) < revision)
        return (*here, *(self._elsewhere.lagging(revision) if self._elsewhere is not None else ()))

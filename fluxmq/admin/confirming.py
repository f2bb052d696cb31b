"""Waiting until every live shard works by a change, for as long as that is worth."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Confirming:
    """Who waits is woken by each confirmation and looks again. Lives on control's loop."""

    def __init__(self) -> None:
        self._confirmed = asyncio.Event()

    def confirmed(self) -> None:
        """Note that some shard confirmed something."""
        self._confirmed.set()

    async def missing(self, look: Callable[[], tuple[str, ...]], seconds: float) -> tuple[str, ...]:
        """Wait until `look()` finds nobody missing; return who still is after `seconds`."""
        deadline = asyncio.get_running_loop().time() + seconds
        while True:
            missing = look()
            remaining = deadline - asyncio.get_running_loop().time()
            if not missing or remaining <= 0:
                return missing
            self._confirmed.clear()
            try:
                async with asyncio.timeout(remaining):
                    await self._confirmed.wait()
            except TimeoutError:
                return look()

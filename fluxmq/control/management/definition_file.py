"""The file of definitions that a node declares when it starts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Final

from fluxmq.control.management.definitions import decoded
from fluxmq.control.management.list_query import JsonRow
from fluxmq.control.management.requests import ApiError
from fluxmq.logs import get_logger
from fluxmq.metrics.registry import Sample

RETRY_SECONDS: Final = 2.0
"""Pause after an attempt that the cluster refused, perhaps because it has no leader yet."""
ATTEMPTS_MAX: Final = 30

_log = get_logger(__name__)


class DefinitionFile:
    """The file at ``path``. Raises OSError or ApiError when it cannot be read. ``declare`` declares
    definitions."""

    def __init__(
        self,
        path: str,
        declare: Callable[[JsonRow], Awaitable[object]],
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        self._retry_seconds = retry_seconds
        self._path = path
        self._definitions = decoded(Path(path).read_bytes())
        self._declare = declare
        self._task: asyncio.Task[None] | None = None

    async def load(self) -> None:
        """Declare what the file contains. Raises ApiError."""
        await self._declare(self._definitions)

    def start(self) -> None:
        """Declare it in the background, as soon as the cluster takes it."""
        self._task = asyncio.get_running_loop().create_task(self._try())

    async def _try(self) -> None:
        """Try until it succeeds; outermost frame of its task."""
        for attempt in range(1, ATTEMPTS_MAX + 1):
            try:
                await self.load()
            except ApiError as refusal:
                last = attempt == ATTEMPTS_MAX
                say = _log.error if last else _log.debug
                say("definitions not loaded: %s", refusal.reason, extra={"file": self._path})
                await asyncio.sleep(self._retry_seconds)
            else:
                return

    async def stop(self) -> None:
        """End the attempts."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def samples(self) -> Iterator[Sample]:
        """Yield nothing."""
        return iter(())

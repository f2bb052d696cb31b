"""Following of a range of keys in etcd that is small enough to be read anew."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from fluxmq.control.etcd.client import CompactedError, EtcdClient, EtcdError
from fluxmq.control.etcd.messages import Get, KeyValue
from fluxmq.logs import RateLimited, get_logger

RETRY_SECONDS: Final = 0.5
"""Pause after a failure."""

_log = get_logger(__name__)


async def _nothing() -> None:
    """Begin without anything to do before."""


class FollowedKeys:
    """The keys from ``start`` up to, but without, ``end``. ``take`` gets all of them, at first and after each
    change, with the revision of the store; ``begin`` is awaited before they are read. Failures are logged
    under ``name``."""

    def __init__(
        self,
        client: EtcdClient,
        name: str,
        start: bytes,
        end: bytes,
        take: Callable[[Mapping[bytes, KeyValue], int], Awaitable[None]],
        begin: Callable[[], Awaitable[None]] = _nothing,
    ) -> None:
        self._client = client
        self._name = name
        self._start = start
        self._end = end
        self._take = take
        self._begin = begin
        self._said = RateLimited(_log, per_second=0.1, burst=3)
        self.failures = 0

    def failed(self, what: str, problem: Exception) -> None:
        """Count and log a failure."""
        self.failures += 1
        self._said.event(logging.WARNING, self._name, "etcd: %s: %s", what, problem)

    async def run(self) -> None:
        """Follow the keys, again and again; outermost frame of its task."""
        while True:
            try:
                await self._follow()
            except CompactedError:
                continue
            except (EtcdError, ValueError) as problem:
                self.failed(f"following {self._name}", problem)
                await asyncio.sleep(RETRY_SECONDS)

    async def _follow(self) -> None:
        """Read everything, and follow. Raises EtcdError, or ValueError for a malformed answer."""
        await self._begin()
        result = await self._client.transact((), (Get(self._start, self._end),))
        ((*entries,),) = result.entries
        found = {entry.key: entry for entry in entries}
        await self._take(found, result.revision)
        watch = self._client.watch(self._start, self._end, result.revision + 1)
        async with contextlib.aclosing(watch) as watching:
            async for message in watching:
                for change in message.changes:
                    if change.deleted:
                        found.pop(change.entry.key, None)
                    else:
                        found[change.entry.key] = change.entry
                if message.changes and not message.more:
                    await self._take(found, message.changes[-1].entry.revision)

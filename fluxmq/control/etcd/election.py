"""The node that coordinates, and what it does for all: ``/mqtt/leader``.

The key belongs to a lease of five seconds, whose holder gives up by its own clock one second
earlier: etcd counts from the moment at which it received the last keep-alive, which is later than
the moment at which it was sent. So no two nodes lead at once while clocks run alike within a fifth.
The others watch the key, and compete for it when it is gone.

The leader drops what keys were more than a minute ago, since a store that never does grows without
end.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import logging
import time
from collections.abc import Iterator
from typing import Final

from fluxmq.control.etcd.client import EtcdClient, EtcdError
from fluxmq.control.etcd.messages import Created, Get, Put
from fluxmq.logs import RateLimited, get_logger
from fluxmq.metrics.registry import Sample

LEADER_KEY: Final = b"/mqtt/leader"
LEASE_SECONDS: Final = 5
HOLD_SECONDS: Final = 4.0
"""Time after the last keep-alive that was answered, from when it was sent, for which this node
leads."""
KEEP_ALIVE_SECONDS: Final = 1.25
RETRY_SECONDS: Final = 0.5
"""Pause after a failure."""
COMPACT_SECONDS: Final = 30.0
"""Interval of compaction."""
HISTORY_SECONDS: Final = 60.0
"""Age of changes that are dropped: far longer than a watch needs to begin again."""

_log = get_logger(__name__)


class Election:
    """This node's part in the election. ``leader`` is the name of the node that leads, as far as
    this one knows; empty if none does, or etcd cannot be reached."""

    def __init__(self, client: EtcdClient, node: str) -> None:
        self._client = client
        self._node = node
        self._task: asyncio.Task[None] | None = None
        self._lease = 0
        self._until = 0.0
        """Moment until which this node leads, unless a keep-alive is answered before."""
        self._seen: collections.deque[tuple[float, int]] = collections.deque()
        """Moments, and the store's revisions then; a compaction takes the oldest."""
        self._said = RateLimited(_log, per_second=0.1, burst=3)
        self.leader = ""
        self.revision = 0
        """The store's revision, when it was last heard of."""
        self.failures = 0
        """Attempts to compete or to follow that have failed."""

    @property
    def leads(self) -> bool:
        """True while this node leads. A process that was stopped meanwhile leads no longer."""
        return time.monotonic() < self._until

    def start(self) -> None:
        """Compete, and go on until ``stop``."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """End; a leader gives up its lease, so that another node need not wait for its end."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self._give_up()
        await self._client.close()

    def samples(self) -> Iterator[Sample]:
        """Yield the samples of the metrics."""
        yield "fluxmq_etcd_reachable", {}, float(bool(self.leader))
        yield "fluxmq_etcd_leader", {}, float(self.leads)
        yield "fluxmq_etcd_revision", {}, float(self.revision)
        yield "fluxmq_etcd_failures_total", {}, float(self.failures)

    async def _run(self) -> None:
        while True:
            try:
                await self._compete()
            except (EtcdError, ValueError) as problem:  # or an answer that cannot be one
                self.failures += 1
                self._said.event(logging.WARNING, "etcd", "etcd: %s", problem)
                await self._give_up()
                await asyncio.sleep(RETRY_SECONDS)

    async def _give_up(self) -> None:
        """Lead no longer. A lease whose end etcd is not told of ends by itself."""
        self._until = 0.0
        self._lead("")
        lease, self._lease = self._lease, 0
        if lease:
            with contextlib.suppress(EtcdError):
                await self._client.revoke(lease)

    async def _compete(self) -> None:
        """Take the key or, if it is another node's, wait until it is free. Raises EtcdError."""
        result = await self._client.transact((), (Get(LEADER_KEY),))
        self.revision = result.revision
        ((*holders,),) = result.entries
        if holders:
            ((_, leader, _, lease),) = holders
            if leader == self._node.encode():  # from before a failure, or a restart
                await self._client.revoke(lease)
            else:
                await self._follow(leader.decode("utf-8", "replace"), result.revision)
            return
        sent = time.monotonic()
        self._lease = await self._client.grant(LEASE_SECONDS)
        result = await self._client.transact(
            (Created(LEADER_KEY, 0),), (Put(LEADER_KEY, self._node.encode(), self._lease),)
        )
        if result.succeeded:
            await self._hold(sent)
        await self._give_up()

    async def _hold(self, sent: float) -> None:
        """Lead until the lease is over. Raises EtcdError."""
        self._until = sent + HOLD_SECONDS
        self._lead(self._node)
        compact_at = time.monotonic() + COMPACT_SECONDS
        while True:
            await asyncio.sleep(min(KEEP_ALIVE_SECONDS, self._until - time.monotonic()))
            now = time.monotonic()
            if now >= self._until:
                break
            try:
                async with asyncio.timeout(self._until - now):
                    seconds, self.revision = await self._client.keep_alive(self._lease)
            except TimeoutError:
                break
            except EtcdError:
                continue  # until the time is over
            if not seconds:
                break
            self._until = now + HOLD_SECONDS
            self._seen.append((now, self.revision))
            if now >= compact_at:
                compact_at = now + COMPACT_SECONDS
                await self._compact(now - HISTORY_SECONDS)
        raise EtcdError("the lease of the node that coordinates the cluster is over")

    async def _compact(self, before: float) -> None:
        revision = 0
        while self._seen and self._seen[0][0] <= before:
            revision = self._seen.popleft()[1]
        if revision:
            with contextlib.suppress(EtcdError):  # another leader may have done it
                await self._client.compact(revision)

    async def _follow(self, leader: str, revision: int) -> None:
        """Wait until the leader has gone. Raises EtcdError."""
        self._lead(leader)
        async with contextlib.aclosing(
            self._client.watch(LEADER_KEY, b"", revision + 1)
        ) as watching:
            async for found in watching:
                self.revision = found.revision
                if any(change.deleted for change in found.changes):
                    return

    def _lead(self, leader: str) -> None:
        if leader != self.leader:
            self.leader = leader
            if leader:
                _log.info("node that coordinates the cluster", extra={"node": leader})

"""The bans of a cluster in etcd.

``/fluxmq/bans/<kind>/<value>`` is a ban; one for a time is under a lease that ends a little later,
so that it vanishes by itself. ``/fluxmq/bans/`` is put with each change, so that every change is a
revision that each node reaches. Nodes follow the keys, and apply all of them (`Bans.take`).
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from fluxmq.auth.bans import BANS_MAX, Ban, ban_problem
from fluxmq.control.bans import Bans, Key
from fluxmq.control.etcd.client import EtcdClient, EtcdError
from fluxmq.control.etcd.fence import Fence
from fluxmq.control.etcd.followed_keys import FollowedKeys
from fluxmq.control.etcd.messages import (
    Created,
    Delete,
    EtcdTransaction,
    KeyValue,
    Operation,
    Put,
    end_of,
)
from fluxmq.control.peers import RequestError
from fluxmq.ipc.messages import ERROR_FAILED
from fluxmq.logs import get_logger
from fluxmq.metrics.registry import Sample

PREFIX: Final = b"/fluxmq/bans/"
LEASE_EXTRA_SECONDS: Final = 60
"""Time for which a key outlives its ban: nodes end it by their own clocks, which may be late."""
LEASE_SECONDS_MAX: Final = 10 * 365 * 86_400
"""Longest lease; the key of a longer ban is deleted by hand, if ever."""
CHANGES_MAX: Final = 50
"""Bans that a node brings with it put at once: etcd takes 128 operations."""

_log = get_logger(__name__)


class StoredBan(msgspec.Struct, frozen=True, omit_defaults=True):
    """A key's value, in JSON: as in `Ban`."""

    until: float | None = None
    reason: str = ""


def key_of(key: Key) -> bytes:
    """Return the key of a ban."""
    kind, value = key
    return PREFIX + kind.encode() + b"/" + value.encode()


def ban_of(entry: KeyValue) -> Ban:
    """Return the ban in a key. Raises ValueError."""
    kind, _, value = entry.key.removeprefix(PREFIX).decode().partition("/")
    problem = ban_problem(kind, value)
    if problem is not None:
        raise ValueError(problem)
    stored = msgspec.json.decode(entry.value, type=StoredBan)
    return Ban(kind, value, stored.until, stored.reason)


class BanKeys:
    """Changes and follows the cluster's bans, for one node."""

    def __init__(self, client: EtcdClient, node: str, bans: Bans) -> None:
        self._client = client
        self._fence = Fence(client, f"{node}/bans")
        self._node = node
        self._bans = bans
        self._followed = FollowedKeys(
            *(client, "bans", PREFIX, end_of(PREFIX), self._tell, self._bring)
        )
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Follow the keys until ``stop``."""
        self._task = asyncio.get_running_loop().create_task(self._followed.run())

    async def stop(self) -> None:
        """End."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self._client.close()

    def samples(self) -> Iterator[Sample]:
        """Yield the samples of the metrics."""
        yield "fluxmq_bans_failures_total", {}, float(self._followed.failures)

    async def commit(self, key: Key, ban: Ban | None) -> int:
        """Implement `SharedBans`."""
        try:
            change = Delete(key_of(key)) if ban is None else await self._put(ban)
            changed: tuple[Operation, ...] = (self._mark(), change)
            return (await self._fence.transact(changed)).revision
        except (EtcdError, ValueError) as problem:
            self._followed.failed("a ban", problem)
            text = f"etcd: {problem}: the change may or may not be applied; see list_bans, and"
            raise RequestError(ERROR_FAILED, f"{text} repeat it once etcd answers") from problem

    def _mark(self) -> Put:
        return Put(PREFIX, self._node.encode())

    async def _put(self, ban: Ban) -> Put:
        """Return what sets a ban. Raises EtcdError."""
        lease = 0
        if ban.until is not None:
            seconds = max(0, math.ceil(ban.until - time.time())) + LEASE_EXTRA_SECONDS
            if seconds <= LEASE_SECONDS_MAX:
                lease = await self._client.grant(seconds)
        value = msgspec.json.encode(StoredBan(ban.until, ban.reason))
        return Put(key_of((ban.kind, ban.value)), value, lease)

    async def _bring(self) -> None:
        """Put the bans that this node had before it joined, unless the cluster has such ones. Raises
        EtcdError."""
        own = self._bans.own
        for start in range(0, len(own), CHANGES_MAX):
            puts = [await self._put(ban) for ban in own[start : start + CHANGES_MAX]]
            missing = (EtcdTransaction((Created(put.key, 0),), (put,)) for put in puts)
            await self._client.transact((), (self._mark(), *missing))

    async def _tell(self, entries: Mapping[bytes, KeyValue], revision: int) -> None:
        """Apply the bans in the keys; of too many, the oldest."""
        found: dict[Key, Ban] = {}
        for entry in sorted(entries.values(), key=lambda each: (each.revision, each.key)):
            if entry.key == PREFIX:
                continue
            try:
                ban = ban_of(entry)
            except (ValueError, msgspec.DecodeError) as problem:
                self._followed.failed(f"key {entry.key!r}", problem)
                continue
            if len(found) == BANS_MAX:
                text = f"there are more than {BANS_MAX}: the latest do not hold; lift some"
                self._followed.failed("bans", ValueError(text))
                break
            found[ban.kind, ban.value] = ban
        await self._bans.take(revision, found)

"""Leases for many keys of a node, and which key is under which of them.

etcd deletes the keys of a lease that has ended in one go, so each lease has up to `POOL_KEYS` keys.
This node counts a lease from the moment when it sent the keep-alive, a second less than it lasts;
etcd counts from its receipt. So this node knows that its keys may be gone before they are.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import Final, Generic, TypeVar

from fluxmq.control.etcd.client import EtcdClient, EtcdError

LEASE_SECONDS: Final = 10
MARGIN_SECONDS: Final = 1.0
"""Time by which this node considers a lease over before etcd can."""
KEEP_ALIVE_SECONDS: Final = 2.0
"""Interval of keep-alives: three may fail."""
POOL_KEYS: Final = 1000
"""Keys of a lease: to delete so many delays other writes by some 20 ms."""
ALIVE_OF_STREAM: Final = 8
"""Leases prolonged over one stream, which costs as much as some twenty of them. A member that does not
lead asks the leader for one after the other: more of them would take too long when it is slow."""
ALIVE_AT_ONCE: Final = 16
"""Such streams under way."""

Key = TypeVar("Key", str, bytes)

FailedCallback = Callable[[str, Exception], None]
"""Called with what has failed, and why."""


class LeasePool(Generic[Key]):
    """A lease, the keys under it, and until when it lasts for certain."""

    def __init__(self, lease: int, until: float) -> None:
        self.lease = lease
        self.until = until
        self.keys: set[Key] = set()

    @property
    def lasts(self) -> bool:
        """True while the lease is not over for certain."""
        return time.monotonic() < self.until


class LeasePools(Generic[Key]):
    """The leases of one kind of keys; these may have names of their own here."""

    def __init__(self, client: EtcdClient, failed: FailedCallback) -> None:
        self._client = client
        self._failed = failed
        self._pools: list[LeasePool[Key]] = []
        """The last one takes further keys."""
        self._pool_of: dict[Key, LeasePool[Key]] = {}
        self._granting = asyncio.Lock()

    def __len__(self) -> int:
        """Return the number of keys."""
        return len(self._pool_of)

    @property
    def until(self) -> float:
        """Moment until which all leases last for certain; 0 if there are none. Leases that may be over
        do not count: the users of their keys have been told of the end."""
        return min((pool.until for pool in self._pools if pool.lasts), default=0.0)

    def of(self, key: Key) -> LeasePool[Key] | None:
        """Return the pool that a key is in; None if it is in none."""
        return self._pool_of.get(key)

    def enter(self, key: Key, pool: LeasePool[Key]) -> None:
        """Note that a key is under a pool's lease, and under no other."""
        self.leave(key)
        self._pool_of[key] = pool
        pool.keys.add(key)

    def leave(self, key: Key) -> None:
        """Note that a key has been deleted."""
        pool = self._pool_of.pop(key, None)
        if pool is not None:
            pool.keys.discard(key)

    async def take(self, keys: int) -> LeasePool[Key]:
        """Return the pool for so many further keys. One whose lease may be over takes none: it is not
        known whether it is before the next keep-alive. Raises EtcdError."""
        async with self._granting:
            last = self._pools[-1] if self._pools else None
            if last is None or not last.lasts or len(last.keys) + keys > POOL_KEYS:
                sent = time.monotonic()
                lease = await self._client.grant(LEASE_SECONDS)
                last = LeasePool[Key](lease, sent + LEASE_SECONDS - MARGIN_SECONDS)
                self._pools.append(last)
            return last

    async def keep_alive(self) -> list[Key]:
        """Prolong all leases, and end those without keys; return the keys of leases that were over."""
        lost: list[Key] = []
        for pool in [each for each in self._pools[:-1] if not each.keys]:
            self._pools.remove(pool)
            await self._revoke(pool)
        pools = list(self._pools)
        parts = [pools[at : at + ALIVE_OF_STREAM] for at in range(0, len(pools), ALIVE_OF_STREAM)]
        for at in range(0, len(parts), ALIVE_AT_ONCE):
            found = await asyncio.gather(*map(self._prolong, parts[at : at + ALIVE_AT_ONCE]))
            lost += itertools.chain.from_iterable(found)
        return lost

    async def _revoke(self, pool: LeasePool[Key]) -> None:
        try:
            await self._client.revoke(pool.lease)
        except (EtcdError, ValueError) as problem:
            self._failed("a lease", problem)

    async def _prolong(self, pools: Sequence[LeasePool[Key]]) -> list[Key]:
        sent = time.monotonic()
        lost: list[Key] = []
        left = iter(pools)
        try:
            async with aclosing(
                self._client.keep_all_alive([each.lease for each in pools])
            ) as found:
                async for seconds, _ in found:
                    pool = next(left)
                    if seconds:
                        pool.until = sent + seconds - MARGIN_SECONDS
                    else:
                        lost += self._drop(pool)
        except (EtcdError, ValueError) as problem:
            self._failed("a lease", problem)
        return lost

    def _drop(self, pool: LeasePool[Key]) -> list[Key]:
        """Forget a pool whose lease is over; return its keys."""
        self._pools.remove(pool)
        lost = list(pool.keys)
        for key in lost:
            self.leave(key)
        return lost

"""The owners of client ids in etcd: on which node a client may be connected.

``/mqtt/sessions/<client>/owner`` names the node, and which life of it. A node becomes the owner by a
transaction on the condition that the key is of the revision that it knows, or is not there: of two
nodes one succeeds. The keys are under leases of ten seconds, each of up to `POOL_KEYS` keys, since
etcd deletes the keys of a lease that has ended in one go. This node counts a lease from the moment
when it sent the keep-alive, a second less than it lasts; etcd counts from its receipt. So shards
know that they have lost their ids before another node can have them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from typing import Final

from fluxmq.control.etcd.client import EtcdClient, EtcdError
from fluxmq.control.etcd.fence import Fence
from fluxmq.control.etcd.messages import (
    Changed,
    Created,
    Delete,
    EtcdTransaction,
    Get,
    Put,
    TransactionResult,
)
from fluxmq.control.peers import Peer, PeerError, RequestError
from fluxmq.ipc.messages import ERROR_FAILED, Body, ControlMessage, MessageError
from fluxmq.ipc.owner_messages import (
    OWNER_CLAIM,
    OWNER_RELEASE,
    OWNER_TERM,
    FoundOwner,
    FoundOwners,
    OwnerKey,
    OwnerKeys,
    OwnerTerm,
    OwnerValue,
    decode_owner,
    encode_owner,
)
from fluxmq.logs import RateLimited, get_logger
from fluxmq.metrics.registry import Sample

LEASE_SECONDS: Final = 10
MARGIN_SECONDS: Final = 1.0
"""Time by which this node considers a lease over before etcd can."""
KEEP_ALIVE_SECONDS: Final = 2.0
"""Interval of keep-alives: three may fail."""
POOL_KEYS: Final = 1000
"""Keys of a lease: to delete so many delays other writes by some 20 ms."""
ALIVE_AT_ONCE: Final = 16
"""Keep-alives under way."""
TERM_SECONDS: Final = 1.0
"""Time for a shard to answer."""
KINDS: Final = (OWNER_CLAIM, OWNER_RELEASE)

_log = get_logger(__name__)


def key_of(client: str) -> bytes:
    """Return the key that names a client id's owner."""
    return b"/mqtt/sessions/%s/owner" % client.encode()


class _Pool:
    """A lease, the keys under it, and until when it lasts for certain."""

    def __init__(self, lease: int, until: float) -> None:
        self.lease = lease
        self.until = until
        self.clients: set[str] = set()


class OwnerIds:
    """The client ids that this node owns. ``life`` differs each time that the node starts; ``shards``
    returns its connected shards."""

    def __init__(
        self, client: EtcdClient, node: str, life: str, shards: Callable[[], list[Peer]]
    ) -> None:
        self._client = client
        self._fence = Fence(client, f"{node}/owners")
        self._node = node
        self._life = life
        self._value = encode_owner(OwnerValue(node, life))
        self._shards = shards
        self._task: asyncio.Task[None] | None = None
        self._pools: list[_Pool] = []
        """The last one takes further keys."""
        self._pool_of: dict[str, _Pool] = {}
        self._granting = asyncio.Lock()
        self._said = RateLimited(_log, per_second=0.1, burst=3)
        self.failures = 0

    def start(self) -> None:
        """Keep the leases alive until ``stop``."""
        self._task = asyncio.get_running_loop().create_task(self._keep())

    async def stop(self) -> None:
        """End. The leases end by themselves: this process may be back before."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self._client.close()

    def samples(self) -> Iterator[Sample]:
        """Yield the samples of the metrics."""
        yield "fluxmq_cluster_owned_client_ids", {}, float(len(self._pool_of))
        yield "fluxmq_cluster_owned_client_ids_failures_total", {}, float(self.failures)

    # Requests of shards

    async def answer(self, message: ControlMessage) -> Body:
        """Answer a shard. Raises RequestError or MessageError."""
        keys = OwnerKeys.from_body(message.body).keys
        try:
            if message.kind == OWNER_CLAIM:
                found = await self._claim(keys)
                return FoundOwners(found, self._until).to_body()
            await self._release(keys)
        except (EtcdError, ValueError) as problem:
            self._failed("the owner of a client id", problem)
            raise RequestError(ERROR_FAILED, f"etcd: {problem}") from problem
        return {}

    async def _claim(self, keys: tuple[OwnerKey, ...]) -> tuple[FoundOwner, ...]:
        pool = await self._pool(len(keys))
        operations = []
        for each in keys:
            key, revision = key_of(each.client), each.revision
            compare = Changed(key, revision) if revision else Created(key, 0)
            put = Put(key, self._value, pool.lease)
            operations.append(EtcdTransaction((compare,), (put,), (Get(key),)))
        result = await self._fence.transact(tuple(operations))
        if len(result.nested) != len(keys):
            raise ValueError("the server has answered something else")
        found = []
        for each, done in zip(keys, result.nested, strict=True):
            if done.succeeded:
                self._enter(each.client, pool)
                found.append(FoundOwner(self._node, self._life, result.revision, ours=True))
            else:
                found.append(self._found(each.client, done))
        return tuple(found)

    def _found(self, client: str, result: TransactionResult) -> FoundOwner:
        """Return the owner that a failed claim has found."""
        entry = next((each for part in result.entries for each in part), None)
        if entry is None:
            return FoundOwner()
        try:
            owner = decode_owner(entry.value)
        except MessageError as problem:
            self._failed(f"key {entry.key!r}", problem)
            return FoundOwner("?", "", entry.revision)
        # A claim of which no answer came may have succeeded. Its lease is alive or known to be over.
        pool = next((each for each in self._pools if each.lease == entry.lease), None)
        ours = pool is not None and (owner.node, owner.life) == (self._node, self._life)
        if pool is not None and ours:
            self._enter(client, pool)
        return FoundOwner(owner.node, owner.life, entry.revision, ours)

    async def _release(self, keys: tuple[OwnerKey, ...]) -> None:
        operations = [
            EtcdTransaction(
                (Changed(key_of(each.client), each.revision),), (Delete(key_of(each.client)),)
            )
            for each in keys
        ]
        await self._fence.transact(tuple(operations))
        for each in keys:
            self._leave(each.client)

    def _enter(self, client: str, pool: _Pool) -> None:
        self._leave(client)
        self._pool_of[client] = pool
        pool.clients.add(client)

    def _leave(self, client: str) -> None:
        pool = self._pool_of.pop(client, None)
        if pool is not None:
            pool.clients.discard(client)

    # Leases

    @property
    def _until(self) -> float:
        """Moment until which all leases last."""
        return min((pool.until for pool in self._pools), default=0.0)

    async def _pool(self, keys: int) -> _Pool:
        """Return the pool for so many further keys. Raises EtcdError."""
        async with self._granting:
            last = self._pools[-1] if self._pools else None
            if last is None or len(last.clients) + keys > POOL_KEYS:
                sent = time.monotonic()
                lease = await self._client.grant(LEASE_SECONDS)
                last = _Pool(lease, sent + LEASE_SECONDS - MARGIN_SECONDS)
                self._pools.append(last)
            return last

    async def _keep(self) -> None:
        """Keep all leases alive, and tell the shards; outermost frame of its task."""
        while True:
            try:
                await self._pool(0)
            except (EtcdError, ValueError) as problem:
                self._failed("a lease", problem)
            pools = list(self._pools)
            for at in range(0, len(pools), ALIVE_AT_ONCE):
                await asyncio.gather(*map(self._prolong, pools[at : at + ALIVE_AT_ONCE]))
            if self._pools:
                await self._tell(self._until)
            await asyncio.sleep(KEEP_ALIVE_SECONDS)

    async def _prolong(self, pool: _Pool) -> None:
        sent = time.monotonic()
        try:
            if not pool.clients and pool is not self._pools[-1]:
                self._pools.remove(pool)
                await self._client.revoke(pool.lease)
                return
            seconds, _ = await self._client.keep_alive(pool.lease)
        except (EtcdError, ValueError) as problem:
            self._failed("a lease", problem)
            return
        if seconds:
            pool.until = sent + seconds - MARGIN_SECONDS
            return
        # Its keys are gone. The shards have noticed by themselves that their time was over.
        self._pools.remove(pool)
        for client in list(pool.clients):
            self._leave(client)

    async def _tell(self, until: float) -> None:
        """Tell the shards until when all keys last."""
        body = OwnerTerm(until).to_body()

        async def one(shard: Peer) -> None:
            with contextlib.suppress(PeerError, TimeoutError):
                await shard.ask(OWNER_TERM, body, TERM_SECONDS)

        await asyncio.gather(*map(one, self._shards()))

    def _failed(self, what: str, problem: Exception) -> None:
        self.failures += 1
        self._said.event(logging.WARNING, "owners", "etcd: %s: %s", what, problem)

"""The owners of client ids in etcd: on which node a client may be connected.

``/mqtt/sessions/<client>/owner`` names the node, and which life of it. A node becomes the owner by a
transaction on the condition that the key is of the revision that it knows, or is not there: of two
nodes one succeeds. Shards are told until when the keys last, so that they know that they have lost
their ids before another node can have them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Final

from fluxmq.control.etcd.client import EtcdClient, EtcdError
from fluxmq.control.etcd.fence import Fence
from fluxmq.control.etcd.lease_pools import KEEP_ALIVE_SECONDS, LeasePools
from fluxmq.control.etcd.messages import (
    Changed,
    Created,
    Delete,
    EtcdTransaction,
    Get,
    KeyValue,
    Put,
    key_part,
)
from fluxmq.control.peers import Peer, PeerError, RequestError
from fluxmq.ipc.messages import ERROR_FAILED, Body, ControlMessage, MessageError
from fluxmq.ipc.owner_messages import (
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

TERM_SECONDS: Final = 1.0
"""Time for a shard to answer."""

_log = get_logger(__name__)


def key_of(client: str) -> bytes:
    """Return the key that names a client id's owner."""
    return b"/mqtt/sessions/%s/owner" % key_part(client)


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
        self._pools: LeasePools[str] = LeasePools(client, self._failed)
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
        yield "fluxmq_cluster_owned_client_ids", {}, float(len(self._pools))
        yield "fluxmq_cluster_owned_client_ids_failures_total", {}, float(self.failures)

    # Requests of shards

    async def answer(self, message: ControlMessage) -> Body:
        """Answer a shard. Raises RequestError or MessageError."""
        asked = OwnerKeys.from_body(message.body)
        try:
            found = await self._change(asked.claims, asked.releases)
        except (EtcdError, ValueError) as problem:
            self._failed("the owner of a client id", problem)
            raise RequestError(ERROR_FAILED, f"etcd: {problem}") from problem
        return FoundOwners(found, self._pools.until).to_body()

    async def _change(
        self, claims: tuple[OwnerKey, ...], releases: tuple[OwnerKey, ...]
    ) -> tuple[FoundOwner, ...]:
        """Claim ids, but for those whose key was to be read first and is another node's; release
        others."""
        found = await self._look([each.client for each in claims if each.look])
        left = [each for each in claims if each.client not in found]
        if left or releases:
            owners = await self._transact(left, releases)
            found |= zip((each.client for each in left), owners, strict=True)
        return tuple(found[each.client] for each in claims)

    async def _look(self, clients: list[str]) -> dict[str, FoundOwner]:
        """Return the owners of those ids that have one."""
        if not clients:
            return {}
        gets = tuple(Get(key_of(client)) for client in clients)
        result = await self._client.transact((), gets)
        return {
            client: self._found(entries[0])
            for client, entries in zip(clients, result.entries, strict=True)
            if entries
        }

    async def _transact(
        self, claims: list[OwnerKey], releases: tuple[OwnerKey, ...]
    ) -> list[FoundOwner]:
        pool = await self._pools.take(len(claims))
        operations = []
        for each in claims:
            key, revision = key_of(each.client), each.revision
            compare = Changed(key, revision) if revision else Created(key, 0)
            put = Put(key, self._value, pool.lease)
            operations.append(EtcdTransaction((compare,), (put,), (Get(key),)))
        for each in releases:
            key = key_of(each.client)
            operations.append(EtcdTransaction((Changed(key, each.revision),), (Delete(key),)))
        result = await self._fence.transact(tuple(operations))
        if len(result.nested) != len(operations):
            raise ValueError("the server has answered something else")
        for each in releases:
            self._pools.leave(each.client)
        found = []
        for each, done in zip(claims, result.nested, strict=False):
            if done.succeeded:
                self._pools.enter(each.client, pool)
                found.append(FoundOwner(self._node, self._life, result.revision, ours=True))
            else:
                entry = next((entry for part in done.entries for entry in part), None)
                found.append(FoundOwner() if entry is None else self._found(entry))
        return found

    def _found(self, entry: KeyValue) -> FoundOwner:
        """Return the owner that a key names."""
        try:
            owner = decode_owner(entry.value)
        except MessageError as problem:
            self._failed(f"key {entry.key!r}", problem)
            return FoundOwner("?", "", entry.revision)
        return FoundOwner(owner.node, owner.life, entry.revision)

    # Leases

    async def _keep(self) -> None:
        """Keep all leases alive, and tell the shards; outermost frame of its task."""
        while True:
            try:
                await self._pools.take(0)
            except (EtcdError, ValueError) as problem:
                self._failed("a lease", problem)
            # The shards have noticed by themselves when the time of lost keys was over.
            await self._pools.keep_alive()
            if self._pools.until:
                await self._tell(self._pools.until)
            await asyncio.sleep(KEEP_ALIVE_SECONDS)

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

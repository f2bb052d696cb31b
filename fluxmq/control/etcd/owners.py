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
import time
from collections import deque
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

COMMITS_MAX: Final = 8
"""Transactions under way."""
PAUSE_OF_KEY: Final = 0.0004
PAUSE_MAX: Final = 0.008
"""Seconds from one transaction's beginning to the next one's, by the number of its keys, and at most.
A transaction costs the members as much as some eighty keys, so in a crowd it pays to wait for more;
a client that comes alone is not delayed."""
RETRY_SECONDS: Final = 0.5
"""Pause between two attempts while no lease lasts."""
TERM_SECONDS: Final = 1.0
"""Time for a shard to answer."""

_log = get_logger(__name__)


def key_of(client: str) -> bytes:
    """Return the key that names a client id's owner."""
    return b"/mqtt/sessions/%s/owner" % key_part(client)


class _Changes:
    """Claims (with True) and releases of one shard that are committed together. ``done``: the owners
    of the ids that were claimed."""

    def __init__(self, changes: list[tuple[OwnerKey, bool]]) -> None:
        self.changes = changes
        self.clients = {each.client for each, _ in changes}
        self.done: asyncio.Future[dict[str, FoundOwner]] = (
            asyncio.get_running_loop().create_future()
        )

    def __len__(self) -> int:
        return len(self.changes)

    def succeed(self, found: dict[str, FoundOwner]) -> None:
        """Answer the shard, unless it has gone."""
        if not self.done.done():
            self.done.set_result(
                {client: found[client] for client in self.clients if client in found}
            )

    def fail(self, problem: Exception) -> None:
        """Answer that it has failed."""
        if not self.done.done():
            self.done.set_exception(problem)


class OwnerIds:
    """The client ids that this node owns. ``life`` differs each time that the node starts; ``shards``
    returns its connected shards; ``operations_max``: of a transaction."""

    def __init__(
        self,
        client: EtcdClient,
        node: str,
        life: str,
        shards: Callable[[], list[Peer]],
        operations_max: int,
    ) -> None:
        self._client = client
        self._operations_max = operations_max
        self._waiting: deque[_Changes] = deque()
        self._committing: set[asyncio.Task[None]] = set()
        self._pause_ends = 0.0
        self._delayed: asyncio.TimerHandle | None = None
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
        tasks = [*self._committing, *(() if self._task is None else (self._task,))]
        self._waiting.clear()
        if self._delayed is not None:
            self._delayed.cancel()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
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
        found: dict[str, FoundOwner] = {}
        size = self._operations_max
        looked = [each.client for each in claims if each.look]
        for at in range(0, len(looked), size):
            found |= await self._look(looked[at : at + size])
        left = [(each, True) for each in claims if each.client not in found]
        left += [(each, False) for each in releases]
        parts = [_Changes(left[at : at + size]) for at in range(0, len(left), size)]
        self._waiting += parts
        self._commit()
        for owners in await asyncio.gather(*(part.done for part in parts)):
            found |= owners
        return tuple(found[each.client] for each in claims)

    async def _look(self, clients: list[str]) -> dict[str, FoundOwner]:
        """Return the owners of those ids that have one."""
        gets = tuple(Get(key_of(client)) for client in clients)
        result = await self._client.transact((), gets)
        return {
            client: self._found(entries[0])
            for client, entries in zip(clients, result.entries, strict=True)
            if entries
        }

    def _commit(self) -> None:
        """Commit what waits, all shards' together. The more keys a transaction has, the less each of
        them costs: so while one is under way, and for a while after it has begun, others begin only
        when they are full."""
        loop, now = asyncio.get_running_loop(), time.monotonic()
        while self._waiting and len(self._committing) < COMMITS_MAX:
            if sum(map(len, self._waiting)) < self._operations_max:
                if self._committing:
                    break
                if now < self._pause_ends:
                    if self._delayed is None:
                        self._delayed = loop.call_later(self._pause_ends - now, self._go_on)
                    break
            parts = self._next()
            self._pause_ends = now + min(PAUSE_MAX, PAUSE_OF_KEY * sum(map(len, parts)))
            task = loop.create_task(self._commit_together(parts))
            self._committing.add(task)
            task.add_done_callback(self._committed)

    def _go_on(self) -> None:
        self._delayed = None
        self._commit()

    def _committed(self, task: asyncio.Task[None]) -> None:
        self._committing.discard(task)
        self._commit()

    def _next(self) -> list[_Changes]:
        """Take what goes into one transaction, which has a key only once."""
        taken: list[_Changes] = []
        clients: set[str] = set()
        size = 0
        while self._waiting and size + len(self._waiting[0]) <= self._operations_max:
            if not clients.isdisjoint(self._waiting[0].clients):
                break  # a shard that is connected again asks anew
            taken.append(self._waiting.popleft())
            size += len(taken[-1])
            clients |= taken[-1].clients
        return taken

    async def _commit_together(self, parts: list[_Changes]) -> None:
        """Answer all of these, or fail all of them; outermost frame of its task."""
        try:
            found = await self._transact([each for part in parts for each in part.changes])
        except Exception as problem:  # noqa: BLE001 - it is raised by those that wait
            for part in parts:
                part.fail(problem)
            return
        for part in parts:
            part.succeed(found)

    async def _transact(self, changes: list[tuple[OwnerKey, bool]]) -> dict[str, FoundOwner]:
        """Claim and release ids in one transaction; return the owners of those that were claimed."""
        pool = await self._pools.take(sum(claimed for _, claimed in changes))
        operations = []
        for each, claimed in changes:
            key, revision = key_of(each.client), each.revision
            if claimed:
                compare = Changed(key, revision) if revision else Created(key, 0)
                put = Put(key, self._value, pool.lease)
                operations.append(EtcdTransaction((compare,), (put,), (Get(key),)))
            else:
                operations.append(EtcdTransaction((Changed(key, revision),), (Delete(key),)))
        results = await self._fence.each(operations)
        found = {}
        for (each, claimed), done in zip(changes, results, strict=True):
            if not claimed:
                self._pools.leave(each.client)
            elif done.succeeded:
                self._pools.enter(each.client, pool)
                found[each.client] = FoundOwner(self._node, self._life, done.revision, ours=True)
            else:
                entry = next((entry for part in done.entries for entry in part), None)
                found[each.client] = FoundOwner() if entry is None else self._found(entry)
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
            else:
                await asyncio.sleep(RETRY_SECONDS)

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

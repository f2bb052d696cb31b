"""The record of subscriptions and consumers in etcd.

``/mqtt/subscriptions/<client>/<filter>`` is a subscription of an MQTT client, and
``/mqtt/queue-consumers/<queue>/<group>/<consumer>`` a consumer, whose client is connected to the
node in the value. Keys are under the leases of that node, so they vanish when it ends. A node puts
the subscriptions of the client ids that it owns: on the condition that the owner's key has its value.
It deletes a key on the condition that it is under the lease that this node has put it under. Nothing
waits for the record, and nothing is routed by it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Final

from fluxmq.control.etcd.client import EtcdClient, EtcdError
from fluxmq.control.etcd.fence import Fence
from fluxmq.control.etcd.lease_pools import KEEP_ALIVE_SECONDS, LeasePool, LeasePools
from fluxmq.control.etcd.messages import (
    Delete,
    EtcdTransaction,
    Leased,
    Put,
    Valued,
    key_part,
)
from fluxmq.control.etcd.owners import key_of
from fluxmq.control.peers import Peer, PeerError, RequestError
from fluxmq.ipc.messages import ERROR_FAILED, Body, ControlMessage
from fluxmq.ipc.owner_messages import OwnerValue, encode_owner
from fluxmq.ipc.record_messages import (
    RECORD_AGAIN,
    ConsumerChange,
    RecordChanges,
    RefusedRecords,
    SubscriptionChange,
    encode_record,
)
from fluxmq.logs import RateLimited, get_logger
from fluxmq.metrics.registry import Sample

AGAIN_SECONDS: Final = 1.0
"""Time for a shard to answer."""

_log = get_logger(__name__)


def subscription_key(client: str, written: str) -> bytes:
    """Return the key of a subscription."""
    return b"/mqtt/subscriptions/%s/%s" % (key_part(client), written.encode())


def consumer_key(change: ConsumerChange) -> bytes:
    """Return the key of a consumer."""
    names = change.queue, change.group, change.consumer
    return b"/mqtt/queue-consumers/" + b"/".join(map(key_part, names))


def gone_in(changes: RecordChanges) -> list[bytes]:
    """Return the keys of what has ended or gone."""
    subscriptions = [each for each in changes.subscriptions if each.value is None]
    consumers = [each for each in changes.consumers if each.value is None]
    return [
        *(subscription_key(each.client, each.filter) for each in subscriptions),
        *(consumer_key(each) for each in consumers),
    ]


class RecordKeys:
    """The subscriptions and consumers of this node's clients. ``life`` is that of `OwnerIds`;
    ``shards`` returns its connected shards; ``operations_max``: of a transaction."""

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
        self._fence = Fence(client, f"{node}/records")
        self._owner = encode_owner(OwnerValue(node, life))
        self._shards = shards
        self._pools: LeasePools[bytes] = LeasePools(client, self._failed)
        self._putters: dict[bytes, int] = {}
        """Shards that have put the keys: one may delete a session's keys when it is elsewhere."""
        self._task: asyncio.Task[None] | None = None
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
        yield "fluxmq_cluster_records", {}, float(len(self._pools))
        yield "fluxmq_cluster_records_failures_total", {}, float(self.failures)

    async def answer(self, message: ControlMessage) -> Body:
        """Answer a shard. Raises RequestError or MessageError."""
        try:
            return (await self._change(RecordChanges.from_body(message.body))).to_body()
        except (EtcdError, ValueError) as problem:
            self._failed("subscriptions and consumers", problem)
            raise RequestError(ERROR_FAILED, f"etcd: {problem}") from problem

    async def _change(self, changes: RecordChanges) -> RefusedRecords:
        candidates = list(self._putters) if changes.anew else gone_in(changes)
        gone = [key for key in candidates if self._putters.get(key) == changes.shard]
        size = self._operations_max
        for at in range(0, len(gone), size):
            await self._delete(gone[at : at + size])
        refused: dict[str, None] = {}
        come = [each for each in changes.subscriptions if each.value is not None]
        for at in range(0, len(come), size):
            refused |= dict.fromkeys(await self._put(come[at : at + size], changes.shard))
        consumers = [each for each in changes.consumers if each.value is not None]
        for at in range(0, len(consumers), size):
            await self._put_consumers(consumers[at : at + size], changes.shard)
        return RefusedRecords(tuple(refused))

    async def _put(self, changes: list[SubscriptionChange], shard: int) -> list[str]:
        """Put subscriptions; return the clients whose ids this node does not own."""
        pool = await self._pools.take(len(changes))
        clients: dict[str, list[Put]] = {}
        for change in changes:
            assert change.value is not None, "it has come"
            key = subscription_key(change.client, change.filter)
            put = Put(key, encode_record(change.value), pool.lease)
            clients.setdefault(change.client, []).append(put)
        results = await self._fence.each(
            [
                EtcdTransaction((Valued(key_of(client), self._owner),), tuple(of_client))
                for client, of_client in clients.items()
            ]
        )
        refused = []
        for (client, of_client), done in zip(clients.items(), results, strict=True):
            if done.succeeded:
                self._enter(of_client, pool, shard)
            else:
                refused.append(client)
        return refused

    async def _put_consumers(self, changes: list[ConsumerChange], shard: int) -> None:
        """Put consumers."""
        pool = await self._pools.take(len(changes))
        puts = [
            Put(consumer_key(each), encode_record(each.value), pool.lease)
            for each in changes
            if each.value is not None
        ]
        await self._fence.transact(tuple(puts))
        self._enter(puts, pool, shard)

    def _enter(self, puts: list[Put], pool: LeasePool[bytes], shard: int) -> None:
        for put in puts:
            self._pools.enter(put.key, pool)
            self._putters[put.key] = shard

    async def _delete(self, keys: list[bytes]) -> None:
        """Delete keys of this node, unless another one has put them meanwhile."""
        operations = [
            EtcdTransaction((Leased(key, pool.lease),), (Delete(key),))
            for key in keys
            if (pool := self._pools.of(key)) is not None
        ]
        await self._fence.each(operations)
        for key in keys:
            self._pools.leave(key)
            self._putters.pop(key, None)

    async def _keep(self) -> None:
        """Keep all leases alive; outermost frame of its task."""
        while True:
            await asyncio.sleep(KEEP_ALIVE_SECONDS)
            lost = await self._pools.keep_alive()
            if lost:
                for key in lost:
                    self._putters.pop(key, None)
                await self._ask_again()

    async def _ask_again(self) -> None:
        """Have the shards tell everything: keys were lost with their lease."""

        async def one(shard: Peer) -> None:
            with contextlib.suppress(PeerError, TimeoutError):
                await shard.ask(RECORD_AGAIN, {}, AGAIN_SECONDS)

        await asyncio.gather(*map(one, self._shards()))

    def _failed(self, what: str, problem: Exception) -> None:
        self.failures += 1
        self._said.event(logging.WARNING, "records", "etcd: %s: %s", what, problem)

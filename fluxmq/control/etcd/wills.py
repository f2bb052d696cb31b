"""Wills in etcd, and those of nodes that have ended.

``/mqtt/will-data/<client>`` is the will of a client that is connected, or was until a moment ago.
Its node publishes it, after it has claimed it: by deleting the key. ``/fluxmq/nodes/<node>`` says
which life of a node there is, under a lease of ten seconds. The node that coordinates the cluster
claims the wills of all other lives, after their delay, and has one of its shards publish them. It
leaves ``/mqtt/will-index/<client>``, by which the client's node, should it come back with the
client's session, finds that the will was published.

The coordinator's claim is on the condition that the key is what was read. So a will is published
once, even if several nodes find that it is due, and not at all if the client has connected again.
While etcd cannot be reached, nodes publish the wills of their own clients unclaimed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from typing import Final

from msgspec.structs import replace

from fluxmq.control.etcd.client import EtcdClient, EtcdError
from fluxmq.control.etcd.fence import Fence
from fluxmq.control.etcd.messages import (
    Changed,
    Created,
    Delete,
    EtcdTransaction,
    Get,
    KeyValue,
    Operation,
    Put,
    end_of,
)
from fluxmq.control.peers import Peer, PeerError, RequestError
from fluxmq.ipc.messages import ERROR_FAILED, Body, ControlMessage, MessageError
from fluxmq.ipc.will_messages import (
    WILL_CHANGE,
    WILL_CLAIM,
    WILL_PUBLISH,
    ClaimedWills,
    WillChange,
    WillChanges,
    WillClaims,
    WillToPublish,
    WillValue,
    decode_will,
    encode_will,
)
from fluxmq.logs import RateLimited, get_logger
from fluxmq.metrics.registry import Sample

DATA: Final = b"/mqtt/will-data/"
PUBLISHED: Final = b"/mqtt/will-index/"
NODES: Final = b"/fluxmq/nodes/"

LEASE_SECONDS: Final = 10
KEEP_ALIVE_SECONDS: Final = 2.5
REMEMBERED_SECONDS: Final = 7 * 24 * 3600
"""Time for which it is remembered that a will was published, in case that its node comes back with
the client's session."""
LOOK_SECONDS: Final = 1.0
"""Interval at which the coordinator looks which nodes there are, and which wills are due."""
RETRY_SECONDS: Final = 0.5
"""Pause after a failure."""
PAGE_KEYS: Final = 32
"""Keys read at once: a will is shorter than 256 KiB."""
PUBLISH_SECONDS: Final = 5.0
"""Time for a shard to publish a will."""
KINDS: Final = (WILL_CHANGE, WILL_CLAIM)

_log = get_logger(__name__)


class WillKeys:
    """The wills of this node's clients and, on the coordinator, those of nodes that have ended.

    ``life`` differs each time that the node starts; ``coordinates`` returns whether this node is the
    one to see to others' wills; ``shards`` returns its connected shards.
    """

    def __init__(
        self,
        client: EtcdClient,
        node: str,
        life: str,
        coordinates: Callable[[], bool],
        shards: Callable[[], list[Peer]],
    ) -> None:
        self._client = client
        self._fence = Fence(client, f"{node}/wills")
        self._node = node
        self._life = life
        self._coordinates = coordinates
        self._shards = shards
        self._put: dict[str, int] = {}
        """Revisions of the keys that this process has put, by client."""
        self._tasks: list[asyncio.Task[None]] = []
        self._lease = 0
        self._nodes: dict[str, str] | None = None
        """Lives of the nodes when the wills were last looked through; None: not since this node
        coordinates."""
        self._due: dict[str, tuple[float, KeyValue]] = {}
        """Wills of other lives by client: when they are due, and their keys."""
        self._said = RateLimited(_log, per_second=0.1, burst=3)
        self.published = 0
        self.failures = 0

    def start(self) -> None:
        """Say that this node is there, and go on until ``stop``."""
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._live()), loop.create_task(self._look())]

    async def stop(self) -> None:
        """End. The lease ends by itself: this process may be back before the others think that the
        node has ended."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._client.close()

    def samples(self) -> Iterator[Sample]:
        """Yield the samples of the metrics."""
        yield "fluxmq_wills_of_ended_nodes_total", {}, float(self.published)
        yield "fluxmq_wills_failures_total", {}, float(self.failures)

    # Requests of shards

    async def answer(self, message: ControlMessage) -> Body:
        """Answer a shard. Raises RequestError or MessageError."""
        try:
            if message.kind == WILL_CLAIM:
                return (await self._claim(WillClaims.from_body(message.body).clients)).to_body()
            await self._change(WillChanges.from_body(message.body).changes)
        except (EtcdError, ValueError) as problem:
            self._failed("a will", problem)
            raise RequestError(ERROR_FAILED, f"etcd: {problem}") from problem
        return {}

    async def _change(self, changes: tuple[WillChange, ...]) -> None:
        operations: list[Operation] = []
        for change in changes:
            client, will = change.client.encode(), change.will
            operations.append(Delete(PUBLISHED + client))
            if will is None:
                operations.append(Delete(DATA + client))
            else:
                own = replace(will, node=self._node, life=self._life)
                operations.append(Put(DATA + client, encode_will(own)))
        result = await self._fence.transact(tuple(operations))
        for change in changes:
            if change.will is None:
                self._put.pop(change.client, None)
            else:
                self._put[change.client] = result.revision

    async def _claim(self, clients: tuple[str, ...]) -> ClaimedWills:
        """Claim wills of this node's clients; one that another node has published is not granted. The
        will of a client that has connected to another node meanwhile stays."""
        claims = []
        for client in clients:
            name = client.encode()
            delete: Operation = Delete(DATA + name)
            if client in self._put:
                delete = EtcdTransaction((Changed(DATA + name, self._put[client]),), (delete,))
            claims.append(
                EtcdTransaction(
                    (Created(PUBLISHED + name, 0),), (delete,), (Delete(PUBLISHED + name),)
                )
            )
        result = await self._fence.transact(tuple(claims))
        for client in clients:
            self._put.pop(client, None)
        if len(result.nested) != len(clients):
            raise ValueError("the server has answered something else")
        return ClaimedWills(tuple(done.succeeded for done in result.nested))

    # The life of this node

    async def _live(self) -> None:
        """Keep this node's key; outermost frame of its task."""
        while True:
            try:
                self._lease = await self._client.grant(LEASE_SECONDS)
                put = Put(NODES + self._node.encode(), self._life.encode(), self._lease)
                await self._client.transact((), (put,))
                seconds = LEASE_SECONDS
                while seconds:
                    await asyncio.sleep(KEEP_ALIVE_SECONDS)
                    seconds, _ = await self._client.keep_alive(self._lease)
            except (EtcdError, ValueError) as problem:
                self._failed("the key of this node", problem)
                await asyncio.sleep(RETRY_SECONDS)

    # Wills of nodes that have ended

    async def _look(self) -> None:
        """See to the wills of other lives while this node coordinates; outermost frame of its
        task."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if not self._coordinates():
                self._nodes = None
                self._due.clear()
                continue
            try:
                await self._look_once()
            except (EtcdError, ValueError) as problem:
                self._failed("wills of nodes that have ended", problem)

    async def _look_once(self) -> None:
        """Look through the wills if other nodes are there than before; publish what is due."""
        ((*entries,),) = (await self._client.transact((), (Get(NODES, end_of(NODES)),))).entries
        nodes = {
            each.key.removeprefix(NODES).decode("utf-8", "replace"): each.value.decode(
                "utf-8", "replace"
            )
            for each in entries
        }
        if nodes != self._nodes:
            await self._find(nodes)
            self._nodes = nodes
        now = time.monotonic()
        for client in [client for client, (due, _) in self._due.items() if due <= now]:
            await self._publish(client, self._due.pop(client)[1])

    async def _find(self, nodes: dict[str, str]) -> None:
        """Find the wills of lives that are not among those of the nodes."""
        before, self._due = self._due, {}
        now = time.monotonic()
        start = DATA
        while True:
            result = await self._client.transact((), (Get(start, end_of(DATA), PAGE_KEYS),))
            ((*entries,),) = result.entries
            for entry in entries:
                will = self._will(entry)
                if will is None or nodes.get(will.node) == will.life:
                    continue
                client = entry.key.removeprefix(DATA).decode("utf-8", "replace")
                due, known = before.get(client, (now + will.delay, entry))
                if known.revision != entry.revision:
                    due = now + will.delay
                self._due[client] = due, entry
            if len(entries) < PAGE_KEYS:
                return
            start = entries[-1].key + b"\0"

    async def _publish(self, client: str, entry: KeyValue) -> None:
        """Claim a will, unless it is another one by now, and have it published."""
        will = self._will(entry)
        name = entry.key.removeprefix(DATA)
        lease = await self._client.grant(REMEMBERED_SECONDS)
        claimed = await self._client.transact(
            (Changed(entry.key, entry.revision),),
            (Delete(entry.key), Put(PUBLISHED + name, self._node.encode(), lease)),
        )
        if will is None or not claimed.succeeded:
            return
        body = WillToPublish(client, will).to_body()
        while True:
            for shard in sorted(self._shards(), key=lambda each: each.name):
                with contextlib.suppress(PeerError, TimeoutError):
                    await shard.ask(WILL_PUBLISH, body, PUBLISH_SECONDS)
                    self.published += 1
                    _log.info(
                        "will of a client whose node has ended",
                        extra={"client": client, "node": will.node},
                    )
                    return
            await asyncio.sleep(RETRY_SECONDS)  # they are being restarted

    def _will(self, entry: KeyValue) -> WillValue | None:
        try:
            return decode_will(entry.value)
        except MessageError as problem:
            self._failed(f"key {entry.key!r}", problem)
            return None

    def _failed(self, what: str, problem: Exception) -> None:
        self.failures += 1
        self._said.event(logging.WARNING, "wills", "etcd: %s: %s", what, problem)

"""The nodes of the cluster in etcd: ``/fluxmq/cluster/<node>``, a `ClusterNode` as JSON, and the node
sets that new groups begin on: ``/fluxmq/cluster-sets/<identifier>``, a `NodeSet`.

A node that starts puts the nodes that its file names, unless they are there. Nodes that join are put
when another node admits them, and nodes that leave are marked. All follow the keys by a watch. Each
keeps a copy on its disk, works by it from then on, and has its shards do so: they connect with nodes
that have joined, and with those that have left no longer. A node that sees a set of nodes of which
there is no key puts one; a set's key is never changed.

Nodes of the last release know no sets, and could begin a group on one differently. So each node says
which version it has, ``/fluxmq/cluster-versions/<node>``, and a set is put once all of its nodes know
sets.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

import fluxmq
from fluxmq.control.etcd.client import EtcdClient, EtcdError
from fluxmq.control.etcd.membership import remove_member
from fluxmq.control.etcd.messages import (
    Changed,
    Created,
    Delete,
    Get,
    KeyValue,
    Operation,
    Put,
    Valued,
    end_of,
)
from fluxmq.control.etcd.wills import NODES as LIVES
from fluxmq.control.metadata import StoreThread
from fluxmq.control.node_admission import named_in, of_joined, reachable_elsewhere, refusal
from fluxmq.control.peers import Peer, RequestError, answers_of
from fluxmq.ipc.cluster_nodes import CLUSTER_NODES, AdmitNode, ClusterNodes
from fluxmq.ipc.messages import ERROR_FAILED, ERROR_INVALID, Body, ControlMessage, MessageBody
from fluxmq.logs import RateLimited, get_logger
from fluxmq.metrics.registry import Sample
from fluxmq.settings.clustering import ClusterSettings
from fluxmq.settings.membership import (
    FILE_NAME,
    ClusterNode,
    KnownNodes,
    decode_node,
    effective,
    encode_nodes,
    set_of,
)
from fluxmq.settings.node_sets import NODE_SETS_MAX, NodeSet, decode_set, id_of_set
from fluxmq.settings.schema import Settings
from fluxmq.storage.errors import StorageError
from fluxmq.storage.files import Files

PREFIX: Final = b"/fluxmq/cluster/"
SETS: Final = b"/fluxmq/cluster-sets/"
VERSIONS: Final = b"/fluxmq/cluster-versions/"
"""These three are beside each other, ``SETS`` first and ``PREFIX`` last: one watch follows all."""
VERSION: Final = 3
"""Of the keys that a node knows, raised when it has to be known which nodes know others: 1 has sets, 2
mirrored groups, 3 queues that change their type, and mirrored groups that end."""
MIRRORING_VERSION: Final = 2
TYPES_VERSION: Final = 3
RETRY_SECONDS: Final = 0.5
"""Pause after a failure."""
SHARD_SECONDS: Final = 2.0
"""Time for a shard to confirm what it was told."""
HEALTH_SECONDS: Final = 6.0
"""Time after which members of etcd that have just connected count as healthy, as they have to before
others are admitted or removed (5 s in etcd)."""
FAREWELL_SECONDS: Final = 1.0
"""Time after which a node that leaves is known to have left: it hears before that it may go, over the
streams that then end."""

_log = get_logger(__name__)


class ToldNodes(MessageBody, frozen=True):
    """The empty answer of a shard."""


class NodeKeys:
    """Follows the nodes of the cluster, and admits others.

    ``settings``: those of the file; ``known``: what is on disk; ``changed`` is called with the nodes
    and the node sets at every change; ``shards`` returns the connected shards.
    """

    def __init__(
        self,
        client: EtcdClient,
        settings: Settings,
        data_dir: str,
        known: KnownNodes,
        thread: StoreThread,
        shards: Callable[[], list[Peer]],
        changed: Callable[[Mapping[str, ClusterNode], Mapping[str, NodeSet]], None],
    ) -> None:
        self._client = client
        self._settings = settings
        self._path = str(Path(data_dir) / FILE_NAME)
        self.nodes: Mapping[str, ClusterNode] = known.nodes
        self.sets: Mapping[str, NodeSet] = known.sets
        self._versions: Mapping[str, int] = {}
        self._thread = thread
        self._shards = shards
        self._changed = changed
        self._tasks: set[asyncio.Task[None]] = set()
        self._admitting = asyncio.Lock()
        self._reading = asyncio.Lock()
        self._left = False
        """True once this node has left, or was forgotten: then it must not start again."""
        self._said = RateLimited(_log, per_second=0.1, burst=3)

    @property
    def _cluster(self) -> ClusterSettings:
        """The settings with the nodes that there are."""
        return effective(self._settings, self.nodes).cluster

    def start(self) -> None:
        """Follow the keys, until ``stop``."""
        self._run(self._follow())

    async def stop(self) -> None:
        """End."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._client.close()

    def samples(self) -> Iterator[Sample]:
        """Yield the samples of the metrics."""
        yield "fluxmq_cluster_nodes", {}, float(1 + len(self._cluster.transport.peers))

    def greeted(self, peer: Peer) -> None:
        """Tell a shard that has connected: it may have started with an older copy."""
        if self.nodes:
            self._run(self._tell([peer]))

    def gone(self, _peer: Peer) -> None:
        """Do nothing: a shard that connects again is told again."""

    def _run(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Following

    async def _follow(self) -> None:
        """Follow the keys; outermost frame of its task."""
        while True:
            try:
                entries, revision = await self._read()
                await self._put_named()
                await self._put_version(entries)
                await self._put_sets(entries)
                watch = self._client.watch(SETS, end_of(PREFIX), revision + 1)
                async for found in watch:
                    if found.changes:
                        entries, _ = await self._read()
                        await self._put_sets(entries)
            except (EtcdError, StorageError, ValueError) as problem:
                self._said.event(logging.WARNING, "nodes", "etcd: nodes: %s", problem)
                await asyncio.sleep(RETRY_SECONDS)

    async def _entries(self) -> tuple[tuple[KeyValue, ...], int]:
        result = await self._client.transact((), (Get(SETS, end_of(PREFIX)),))
        (entries,) = result.entries
        return entries, result.revision

    async def _read(self) -> tuple[tuple[KeyValue, ...], int]:
        """Work by what etcd has; return that, and its revision. Raises EtcdError, StorageError,
        ValueError."""
        async with self._reading:  # or an older answer could be taken after a newer one
            entries, revision = await self._entries()
            self._versions = _versions_of(entries)
            await self._take(_nodes_of(entries), _sets_of(entries))
        return entries, revision

    async def _take(self, nodes: Mapping[str, ClusterNode], found: Mapping[str, NodeSet]) -> None:
        """Keep nodes and sets on disk, and have everybody work by them. Raises StorageError."""
        sets = {**self.sets, **found}  # none ends, though etcd may have lost all
        if not nodes or (nodes == self.nodes and sets == self.sets):
            return
        own = nodes.get(self._settings.cluster.node_id)
        self._left = self._left or (own is not None and own.left)
        await self._write(nodes, sets)
        for name, node in nodes.items():
            before = self.nodes.get(name)
            if node.joined and not node.left and (before is None or before.left):
                _log.info("a node has joined the cluster", extra={"node": name})
            elif node.left and (before is None or not before.left):
                _log.info("a node has left the cluster", extra={"node": name})
        self.nodes, self.sets = nodes, sets
        self._changed(nodes, sets)
        await self._tell(self._shards())

    async def _write(self, nodes: Mapping[str, ClusterNode], sets: Mapping[str, NodeSet]) -> None:
        text = encode_nodes(KnownNodes(nodes=dict(nodes), left=self._left, sets=dict(sets)))
        await self._thread.run(lambda: Files().write_whole(self._path, text))

    async def _tell(self, shards: list[Peer]) -> None:
        await answers_of(
            shards,
            CLUSTER_NODES,
            self._all().to_body(),
            SHARD_SECONDS,
            ToldNodes,
        )

    async def _put_named(self) -> None:
        """Put the nodes that the file names, unless they are there or have joined; each node knows the
        addresses of the others."""
        cluster = self._settings.cluster
        named = named_in(cluster)
        own = named.pop(cluster.node_id)
        if not named and not cluster.join and reachable_elsewhere(own):
            named[cluster.node_id] = own  # nobody else names it
        for name, node in named.items():
            known, key = self.nodes.get(name), PREFIX + name.encode()
            if known is None:
                await self._client.transact((Created(key, 0),), (_put(name, node),))
            elif known != node and not (known.joined or known.left):
                same = Valued(key, msgspec.json.encode(known))
                await self._client.transact((same,), (_put(name, node),))

    async def _put_version(self, entries: tuple[KeyValue, ...]) -> None:
        """Put this node's version, unless it is there."""
        own = self._settings.cluster.node_id
        if _versions_of(entries).get(own) != VERSION:
            put = Put(VERSIONS + own.encode(), b"%d" % VERSION)
            await self._client.transact((), (put,))

    async def _put_sets(self, entries: tuple[KeyValue, ...]) -> None:
        """Put the sets of nodes that this node knows and etcd does not have, and that of the nodes that
        there are now. Nodes may do so at once, and put the same."""
        there, versions = _sets_of(entries), _versions_of(entries)
        wanted = {**self.sets}
        now = set_of(_nodes_of(entries))
        if now is not None:
            unable = sorted(node for node in now if not versions.get(node))
            if not unable:
                wanted.setdefault(id_of_set(now), NodeSet(len(there), now))
            elif id_of_set(now) not in wanted:
                text = "new groups begin on the present nodes once these have run this version: %s"
                self._said.event(logging.INFO, "versions", text, ", ".join(unable))
        missing = {each: wanted[each] for each in wanted if each not in there}
        if len(there) + len(missing) > NODE_SETS_MAX:
            text = "%s sets of nodes are known: new groups begin on those, or on the first nodes"
            self._said.event(logging.WARNING, "sets", text, len(there))
            return
        for identifier, node_set in missing.items():
            key = SETS + identifier.encode()
            await self._client.transact(
                (Created(key, 0),), (Put(key, msgspec.json.encode(node_set)),)
            )

    @property
    def mirrors(self) -> bool:
        """True once all nodes have said that they know mirrored groups; others would begin them differently."""
        return self._all_have(MIRRORING_VERSION)

    @property
    def changes_types(self) -> bool:
        """True once all nodes have said that they know queues that change their type, and groups that end;
        others cannot read the rows of these, and put queues into those."""
        return self._all_have(TYPES_VERSION)

    def _all_have(self, version: int) -> bool:
        there = [name for name, node in self.nodes.items() if not node.left]
        return bool(there) and all(self._versions.get(name, 0) >= version for name in there)

    def _all(self) -> ClusterNodes:
        return ClusterNodes(dict(self.nodes), dict(self.sets))

    # Joining and leaving

    async def answer(self, message: ControlMessage) -> Body:
        """Admit a node. Raises RequestError or MessageError."""
        asked = AdmitNode.from_body(message.body)
        try:
            async with self._admitting:
                nodes = await self._admit(asked)
                return ClusterNodes(nodes, dict(self.sets)).to_body()
        except EtcdError as problem:
            # Two members need each other: the store stands still until the second one has started.
            if self.nodes.get(asked.node) == of_joined(asked, self.nodes):
                return self._all().to_body()
            raise RequestError(ERROR_FAILED, f"etcd: {problem}") from problem
        except ValueError as problem:
            raise RequestError(ERROR_FAILED, f"etcd: {problem}") from problem

    async def _admit(self, asked: AdmitNode) -> dict[str, ClusterNode]:
        """Return the nodes of the cluster, with the one that is admitted."""
        entries, _ = await self._entries()
        nodes = _nodes_of(entries)
        own = self._settings.cluster.node_id
        more: list[Operation] = []
        if own not in nodes:
            nodes[own] = named_in(self._settings.cluster)[own]
            if not reachable_elsewhere(nodes[own]):
                text = "others cannot connect to the addresses of this node's settings, which stand"
                text += " for every interface: ask another node, or name addresses in its settings"
                raise RequestError(ERROR_INVALID, text)
            more.append(_put(own, nodes[own]))
        why = refusal(asked, self._cluster, fluxmq.__version__, nodes)
        if not why:
            why = await self._in_use(asked)
        if why:
            raise RequestError(ERROR_INVALID, why)
        key = PREFIX + asked.node.encode()
        revision = {each.key: each.revision for each in entries}.get(key, 0)
        node = nodes[asked.node] = of_joined(asked, nodes)
        result = await self._client.transact(
            (Changed(key, revision),), (_put(asked.node, node), *more)
        )
        if not result.succeeded:
            raise RequestError(ERROR_FAILED, "another node was asked at the same time: try again")
        await self._read()
        await self._admit_member(node.etcd)
        _log.info("node admitted to the cluster", extra={"node": asked.node})
        return nodes

    async def _in_use(self, asked: AdmitNode) -> str:
        """Return why etcd shows that the node exists, or that it cannot be admitted now."""
        life = LIVES + asked.node.encode()
        ((*lives,),) = (await self._client.transact((), (Get(life),))).entries
        if lives:
            return (
                f"a node {asked.node} runs, or has run ten seconds ago: choose another"
                " cluster.node_id, or wait"
            )
        if not asked.addresses.etcd:
            return ""
        for member in await self._client.members():
            if asked.addresses.etcd in member.urls:
                if member.started:
                    return (
                        f"a member of etcd has run at {asked.addresses.etcd}: run fluxmqctl"
                        f" forget_node {member.name} if it is gone for good"
                    )
            elif not member.started:
                return (
                    f"the member of etcd at {', '.join(member.urls)} has been admitted and has not"
                    " started yet: start its node first"
                )
        return ""

    async def _admit_member(self, url: str) -> None:
        """Admit a node's member of etcd, unless that has been done."""
        if not url or any(url in each.urls for each in await self._client.members()):
            return
        deadline = time.monotonic() + HEALTH_SECONDS
        while True:
            try:
                await self._client.add_member(url)
            except EtcdError:
                if time.monotonic() >= deadline:
                    raise
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return

    async def remove_member_of(self, node: str) -> None:
        """Remove the member of etcd of a node that leaves. Raises RequestError."""
        known = self.nodes.get(node)
        deadline = time.monotonic() + HEALTH_SECONDS
        while True:
            try:
                await remove_member(self._client, node, "" if known is None else known.etcd)
            except RequestError:
                if time.monotonic() >= deadline:
                    raise
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return

    def mark_left_soon(self, node: str, left: Callable[[], Awaitable[None]]) -> None:
        """Have a node known as one that has left, a moment after it has heard that it may go; ``left`` is
        called then."""

        async def mark() -> None:
            await asyncio.sleep(FAREWELL_SECONDS)
            while True:
                try:
                    await self.mark_left(node)
                except RequestError as problem:
                    self._said.event(logging.WARNING, "left", "%s: %s", node, problem)
                    await asyncio.sleep(RETRY_SECONDS)
                else:
                    await left()
                    return

        self._run(mark())

    async def mark_left(self, node: str) -> None:
        """Have a node known as one that has left, without a member of etcd. Raises RequestError."""
        try:
            entries, _ = await self._entries()
            nodes = _nodes_of(entries)
            known = nodes.get(node) or named_in(self._settings.cluster).get(node)
            if known is not None and not known.left:
                await remove_member(self._client, node, known.etcd)
                put = _put(node, msgspec.structs.replace(known, left=True))
                await self._client.transact((), (put, Delete(VERSIONS + node.encode())))
                await self._read()
        except (EtcdError, StorageError, ValueError) as problem:
            raise RequestError(ERROR_FAILED, f"etcd: {problem}") from problem

    async def lives(self, node: str) -> bool:
        """Return whether a node has said within ten seconds that it runs. Raises RequestError."""
        try:
            result = await self._client.transact((), (Get(LIVES + node.encode()),))
        except (EtcdError, ValueError) as problem:
            raise RequestError(ERROR_FAILED, f"etcd: {problem}") from problem
        return bool(result.entries[0])

    async def close_door(self) -> None:
        """Note on disk that this node has left, so that it does not start again. Raises
        StorageError."""
        self._left = True
        await self._write(self.nodes, self.sets)


def _put(name: str, node: ClusterNode) -> Put:
    return Put(PREFIX + name.encode(), msgspec.json.encode(node))


def _nodes_of(entries: tuple[KeyValue, ...]) -> dict[str, ClusterNode]:
    """Return the nodes in keys of etcd. Raises ValueError."""
    return {
        each.key.removeprefix(PREFIX).decode(): decode_node(each.value)
        for each in entries
        if each.key.startswith(PREFIX)
    }


def _sets_of(entries: tuple[KeyValue, ...]) -> dict[str, NodeSet]:
    """Return the node sets in keys of etcd. Raises ValueError."""
    found = {}
    for each in entries:
        if each.key.startswith(SETS):
            identifier = each.key.removeprefix(SETS).decode()
            found[identifier] = decode_set(identifier, each.value)
    return found


def _versions_of(entries: tuple[KeyValue, ...]) -> dict[str, int]:
    """Return the versions that nodes have said. Raises ValueError."""
    return {
        each.key.removeprefix(VERSIONS).decode(): int(each.value)
        for each in entries
        if each.key.startswith(VERSIONS)
    }

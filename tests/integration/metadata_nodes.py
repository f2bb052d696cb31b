"""Nodes of a cluster of which only topology and users are there, with a real etcd."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from fluxmq.control.directory import Directory
from fluxmq.control.etcd.client import EtcdClient
from fluxmq.control.etcd.shared_metadata import SharedMetadata
from fluxmq.control.metadata import FILE_NAME, MetadataStore, StoreThread
from fluxmq.control.node_revisions import NodeRevisions
from fluxmq.control.node_starts import NodeStart
from fluxmq.control.other_nodes import ControlOfNodes
from fluxmq.control.peers import Peer, RequestError
from fluxmq.control.revision_barrier import confirmed
from fluxmq.control.topology_service import TopologyService
from fluxmq.ipc.messages import ERROR_AWAY, Body, ControlMessage
from fluxmq.ipc.node_messages import RevisionWanted
from fluxmq.ipc.user_messages import Confirmed, Users
from fluxmq.routing.topology.changes import Change, DeleteQueue
from fluxmq.routing.topology.records import QueueRecord
from fluxmq.routing.topology.refusals import Refusal
from tests.etcd import Server, eventually, is_true, run
from tests.unit.control.topology_node import GUEST, queue

NAMES = ("node1", "node2", "node3")


class Directly(ControlOfNodes):
    """Asks nodes of this process, as far as they are up."""

    def __init__(self, own: str, nodes: Mapping[str, MetadataNode]) -> None:
        super().__init__([name for name in nodes if name != own], list)
        self._all = nodes

    async def ask(self, node: str, kind: str, body: Body, seconds: float) -> Body:
        other = self._all[node]
        if not other.up:
            raise RequestError(ERROR_AWAY, "away")
        wanted = RevisionWanted.from_body(body)
        thing = other.topology_service if wanted.what == "topology" else other.directory
        return Confirmed(await confirmed(thing, wanted.revision)).to_body()


class MetadataNode:
    """What a control process has of a cluster's topology and users. ``coordinates``: whether it sees to nodes that have
    ended."""

    def __init__(self, nodes: Mapping[str, MetadataNode], name: str, path: Path) -> None:
        self._nodes = nodes
        self.name = name
        self.path = path
        self.queues: tuple[QueueRecord, ...] = ()
        self.life = 0
        self.up = False
        self.coordinates = False
        self.thread: StoreThread
        self.store: MetadataStore
        self.topology_service: TopologyService
        self.directory: Directory
        self.metadata: SharedMetadata

    async def start(self, client: EtcdClient, *, anew: bool = True) -> None:
        """``anew``: the whole node, rather than its control process alone."""
        self.path.mkdir(exist_ok=True)
        self.life += anew
        self.thread = StoreThread()
        self.store = await self.thread.run(lambda: MetadataStore(self.path / FILE_NAME))
        shards: list[Peer] = []
        self.topology_service = TopologyService(
            self.store, self.thread, lambda: shards, list, lambda _: None, self.name
        )
        self.metadata = SharedMetadata(
            NodeStart(self.name, f"{self.name}/{self.life}", self.queues),
            len(self._nodes),
            *(self.store, self.thread, lambda: GUEST),
        )
        self.topology_service.decider = self.metadata
        await self.metadata.open()
        await self.topology_service.load_shared()
        users = await self.thread.run(self.store.users) if self.metadata.known else Users(0, ())
        self.directory = Directory(self.store, self.thread, users, lambda: shards, list)
        self.metadata.join(self.topology_service, self.directory)
        nodes = Directly(self.name, self._nodes)
        self.topology_service.revision_barrier.join(NodeRevisions("topology", nodes))
        self.directory.revision_barrier.join(NodeRevisions("users", nodes))
        self.up = True
        self.metadata.start(client, lambda: self.coordinates)

    async def stop(self) -> None:
        self.up = False
        await self.metadata.stop()
        await self.thread.run(self.store.close)
        self.thread.close()

    async def change(self, *changes: Change) -> Refusal | None:
        changed = await self.topology_service.change([changes])
        return changed.results[0]

    async def announced(self) -> None:
        """Wait until this node has said that it runs: it makes no change before."""
        assert await self.change(queue("q")) is None
        assert await self.change(DeleteQueue("/", "q")) is None

    async def user(self, kind: str, body: Body) -> None:
        await self.directory.answer(ControlMessage(kind, 1, body))

    def queues_of(self) -> list[str]:
        return sorted(queue.name for queue in self.topology_service.topology.queues())

    def rows(self) -> list[str]:
        return sorted(map(repr, self.topology_service.topology.snapshot().rows))


class MetadataNodes:
    """Nodes by name."""

    def __init__(self, server: Server, path: Path) -> None:
        self._server = server
        self._nodes: dict[str, MetadataNode] = {}
        for name in NAMES:
            self._nodes[name] = MetadataNode(self._nodes, name, path / name)

    def __getitem__(self, name: str) -> MetadataNode:
        return self._nodes[name]

    @property
    def up(self) -> list[MetadataNode]:
        return [node for node in self._nodes.values() if node.up]

    async def start(self, *names: str, anew: bool = True) -> None:
        starts = (
            self._nodes[name].start(EtcdClient.of(self._server.cluster), anew=anew)
            for name in names or NAMES
        )
        await asyncio.gather(*starts)

    async def well(self) -> None:
        """Until all that are up serve."""
        await is_true(lambda: all(node.metadata.problem is None for node in self.up))

    async def all_alike(self) -> None:
        """Until all that are up have the same, in memory and on disk."""

        async def alike() -> bool:
            for node in self.up:
                stored = await node.thread.run(node.store.topology.rows)
                kept = node.topology_service.topology.snapshot().rows
                if {(kind, *key) for kind, key, _ in stored} != {(k, *key) for k, key, _ in kept}:
                    return False
                if await node.thread.run(node.store.users) != node.directory.users:
                    return False
            first, *others = ((node.rows(), node.directory.users) for node in self.up)
            return all(other == first for other in others)

        await eventually(alike)


def play(
    server: Server, path: Path, scenario: Callable[[MetadataNodes, EtcdClient], Awaitable[None]]
) -> None:
    """Run a scenario with nodes, none of which has been started."""

    async def whole(client: EtcdClient) -> None:
        nodes = MetadataNodes(server, path)
        try:
            await scenario(nodes, client)
        finally:
            for node in nodes.up:
                await node.stop()

    run(server, whole)

"""Control processes of a cluster in one event loop: real databases, and streams that can be cut."""

import asyncio
import shutil
import time
from dataclasses import replace
from unittest.mock import patch

import uvloop

from fluxmq.control.directory import Directory
from fluxmq.control.meta import service
from fluxmq.control.meta.replica import TICKS_PER_ELECTION
from fluxmq.control.meta.service import Meta
from fluxmq.control.metadata import FILE_NAME, MetadataStore, StoreThread
from fluxmq.control.peers import Peer
from fluxmq.control.topology_service import TopologyService
from fluxmq.ipc.messages import ControlMessage
from fluxmq.ipc.user_messages import Users
from fluxmq.settings import Settings
from fluxmq.settings.plans import GroupPlans
from tests.unit.control.topology_node import GUEST, until

NAMES = ("node1", "node2", "node3")
ELECTION_SECONDS = 0.2
TEND_SECONDS = 0.05


def plan_of(node, names=NAMES):
    others = [name for name in names if name != node]

    def addresses(port):
        return {other: f"127.0.0.1:{port + 100 * names.index(other)}" for other in others}

    settings = Settings.model_validate(
        {
            "cluster": {
                "enabled": True,
                "node_id": node,
                "transport": {
                    "bind_addr": f"127.0.0.1:{22000 + 100 * names.index(node)}",
                    "peers": addresses(22000),
                },
                "raft": {
                    "enabled": True,
                    "bind_addr": f"127.0.0.1:{25000 + 100 * names.index(node)}",
                    "peers": addresses(25000),
                },
            }
        }
    )
    plan = GroupPlans(settings).meta()
    assert plan is not None
    return replace(plan, heartbeat_timeout=0.03, election_timeout=ELECTION_SECONDS)


class Links:
    """A node's streams to the others: frames arrive in order, in a later turn of the loop."""

    def __init__(self, cluster, node):
        self.heard = {}
        self.cluster = cluster
        self.node = node
        self.started = False
        self.ends: dict[int, Links] = {}
        self.epoch = 0

    async def start(self):
        self.started = True
        self.cluster.connect()

    async def stop(self):
        self.started = False
        for number in list(self.ends):
            self.close(number)

    def reaches(self, number):
        return number in self.ends

    def send(self, number, frame):
        other = self.ends.get(number)
        if other is None:
            return False
        loop = asyncio.get_running_loop()
        loop.call_soon(self._arrive, number, other, self.epoch, frame)
        return True

    def _arrive(self, number, other: "Links", epoch, frame):
        own = self.node.meta.plan.own
        if self.ends.get(number) is other and other.ends.get(own) is self:
            other.heard[own] = time.monotonic()
            self.cluster.frames += 1
            other.node.meta.neighbours.said(own, frame)

    def close(self, number):
        other = self.ends.pop(number, None)
        if other is not None:
            self.node.meta.neighbours.parted(number)
            own = self.node.meta.plan.own
            if other.ends.pop(own, None) is not None:
                other.node.meta.neighbours.parted(own)


class ControlNode:
    """What a control process has of a cluster's topology and users."""

    def __init__(self, cluster, name, path, queues=()):
        self.cluster = cluster
        self.name = name
        self.path = path
        self.queues = queues
        self.life = 0
        self.up = False

    async def start(self, life=True):
        self.path.mkdir(exist_ok=True)
        self.life += life
        self.thread = StoreThread()
        self.store = await self.thread.run(lambda: MetadataStore(self.path / FILE_NAME))
        self.shards: list[Peer] = []
        self.topology_service = TopologyService(
            *(self.store, self.thread, lambda: self.shards, list, lambda _: None), self.name
        )
        plan = plan_of(self.name, self.cluster.names)
        life = f"{self.name}/{self.life}"
        self.meta = Meta(
            *(plan, self.name, life, self.queues, self.store, self.thread), lambda: GUEST
        )
        self.topology_service.decider = self.meta
        await self.meta.open()
        await self.topology_service.load_shared()
        users = await self.thread.run(self.store.users) if self.meta.known else Users(0, ())
        self.directory = Directory(self.store, self.thread, users, lambda: self.shards, list)
        self.meta.join(self.topology_service, self.directory)
        self.links = Links(self.cluster, self)
        self.up = True
        await self.meta.start(self.links)

    async def stop(self):
        self.up = False
        await self.meta.stop()
        await self.thread.run(self.store.close)
        self.thread.close()

    async def kill(self):
        """Ends without a word: nothing is handed over."""
        self.up = False
        await self.links.stop()
        self.meta.replica.problem = "killed"
        await self.stop()

    def wipe(self):
        shutil.rmtree(self.path)

    @property
    def replica(self):
        return self.meta.replica

    @property
    def well(self):
        return self.up and self.meta.problem is None

    @property
    def leads(self):
        return self.up and self.replica.leading

    async def change(self, *changes):
        changed = await self.topology_service.change([changes])
        return changed.results[0]

    async def user(self, kind, **body):
        return await self.directory.answer(ControlMessage(kind, 1, body))

    def queues_of(self):
        return sorted(queue.name for queue in self.topology_service.topology.queues())


class Cluster:
    """Nodes by name, and which of them hear each other."""

    def __init__(self, path, names=NAMES, queues=()):
        self.path = path
        self.names = names
        self.frames = 0
        self.apart = set()
        self.nodes = {name: ControlNode(self, name, path / name, queues) for name in names}

    def __getitem__(self, name):
        return self.nodes[name]

    @property
    def up(self):
        return [node for node in self.nodes.values() if node.up]

    @property
    def leader(self):
        """Who leads, to others' knowledge, too."""
        leaders = [node for node in self.up if node.leads]
        return max(leaders, key=lambda node: node.replica.node.term) if leaders else None

    def followers(self):
        return [node for node in self.up if node is not self.leader]

    def connect(self):
        nodes = [node for node in self.up if node.links.started]
        for one in nodes:
            for other in nodes:
                number = other.meta.plan.own
                pair = {one.name, other.name}
                apart = self.apart & pair or one.name >= other.name
                if not apart and number not in one.links.ends:
                    one.links.ends[number] = other.links
                    other.links.ends[one.meta.plan.own] = one.links
                    one.meta.neighbours.met(number)
                    other.meta.neighbours.met(one.meta.plan.own)

    def cut_off(self, node):
        self.apart.add(node.name)
        for number in list(node.links.ends):
            node.links.close(number)

    def join_again(self, node):
        self.apart.discard(node.name)
        self.connect()

    async def start(self, *names):
        await asyncio.gather(*(self.nodes[name].start() for name in names or self.names))

    async def well(self, *nodes):
        """Until these nodes, or all that are up, serve and have applied the same."""
        nodes = nodes or self.up

        def settled():
            applied = {node.replica.applied_index for node in nodes}
            return all(node.well for node in nodes) and len(applied) == 1

        await until(settled)

    async def stop(self):
        """Stop all; who leads comes last, and has nobody to hand over to."""
        for node in sorted(self.up, key=lambda node: node.leads):
            await node.stop()

    async def dump(self, node):
        """Everything that is agreed on, as it is on a node's disk."""

        def read():
            execute = node.store._database.execute
            tables = ("users", "permissions", "topic_permissions", "topology", "shared", "state")
            return {table: sorted(execute(f"SELECT * FROM {table}").fetchall()) for table in tables}

        return await node.thread.run(read)


async def pass_elections(count, *nodes):
    """Let the clocks of these nodes go on by so many election timeouts, with all that this causes."""
    for _ in range(count * 2 * TICKS_PER_ELECTION):
        for node in nodes:
            timer = node.replica._timer
            assert timer is not None, "its clock runs"
            timer.cancel()
            node.replica._tick()
            await node.thread.run(lambda: None)  # votes are on disk before they are answered
        await asyncio.sleep(0)


def run(cluster, scenario, *names):
    async def main():
        async with asyncio.timeout(30):
            await cluster.start(*names)
            try:
                await scenario(cluster)
            finally:
                await cluster.stop()

    quicker = patch.object(service, "TEND_SECONDS", TEND_SECONDS)
    with quicker, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())

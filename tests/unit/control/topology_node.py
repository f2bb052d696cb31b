"""A topology service of the topology with its database and control socket, and shards that connect to it."""

import asyncio
import contextlib
import os

import uvloop

from fluxmq.auth.credentials import HashParameters, hash_password
from fluxmq.auth.users import User, VhostPermission
from fluxmq.control.metadata import FILE_NAME, MetadataStore, StoreThread
from fluxmq.control.peers import ControlListener, Service
from fluxmq.control.topology_service import TopologyService
from fluxmq.ipc import unix_socket
from fluxmq.ipc.client import ControlClient
from fluxmq.ipc.conversation import Handlers
from fluxmq.ipc.messages import ProcessHello, ProcessNumbers
from fluxmq.ipc.topology_client import TopologyClient
from fluxmq.ipc.topology_messages import (
    TOPOLOGY_CHANGE,
)
from fluxmq.routing.topology.changes import (
    DeclareQueue,
)
from fluxmq.routing.topology.records import QueueRecord
from fluxmq.routing.topology.topology import Delta

HASH = hash_password("p", b"s" * 16, HashParameters(1, 64, 1))
GUEST = User("guest", HASH, None, (), (), True, permissions=(VhostPermission("/", "", "", ""),))


def queue(name, durable=True, **fields):
    return DeclareQueue(QueueRecord("/", name, durable=durable, **fields))


class Shard:
    """A shard's part: a copy of the topology on a connection of its own."""

    def __init__(self, path, index, pid, commands):
        self.changed: list[Delta] = []
        self.topics = TopologyClient(asyncio.get_running_loop().time, self.changed.append)
        handlers = Handlers(
            lambda: (),
            ProcessNumbers,
            commands=commands or self.topics.commands,
            established=self.topics.established,
        )
        self.control = ControlClient(path, ProcessHello("shard", index, pid), handlers)
        self.topics.connect(self.control)
        self.task = asyncio.create_task(self.control.run())

    @property
    def topology(self):
        return self.topics.topology

    async def change(self, *changes):
        done = asyncio.get_running_loop().create_future()
        self.topics.change(changes, done.set_result)
        async with asyncio.timeout(5):
            return await done

    async def stop(self):
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task


class Node:
    """A topology service with its database and control socket, and the shards that connect to it."""

    def __init__(self, path, name="first", configured=()):
        self.path = path
        self.name = name
        self.configured = configured
        self.live = []
        self.shards = []
        self.users = []

    async def __aenter__(self):
        self.thread = StoreThread()
        self.store = await self.thread.run(lambda: MetadataStore(self.path / FILE_NAME))
        service = Service(self._answer, self._greeted, lambda _: None)
        self.listener = ControlListener(service, os.geteuid())
        self.topology_service = TopologyService(
            self.store,
            self.thread,
            lambda: self.listener.processes,
            lambda: self.live,
            self.users.append,
        )
        await self.topology_service.load(self.name, self.configured, lambda: GUEST)
        await self.listener.start(unix_socket.bind(self.path / "s"))
        return self

    async def __aexit__(self, *_exception):
        for shard in self.shards:
            await shard.stop()
        await self.listener.stop()
        await self.thread.run(self.store.close)
        self.thread.close()

    def _greeted(self, peer):
        self.topology_service.greeted(peer)

    async def _answer(self, message):
        assert message.kind == TOPOLOGY_CHANGE
        return await self.topology_service.answer(message.body)

    async def shard(self, index=0, pid=1, commands=None):
        made = Shard(self.path / "s", index, pid, commands)
        self.shards.append(made)
        self.live.append(f"shard-{index}")
        if commands is None:
            await until(lambda: made.topics.known)
        return made

    async def change(self, *changes):
        return await self.topology_service.change([changes])

    async def stored(self):
        rows = await self.thread.run(self.store.topology.rows)
        return {(kind, *key[:2]) for kind, key, _ in rows}

    @property
    def topology(self):
        return self.topology_service.topology


async def until(condition):
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - what is waited for tells nobody
            await asyncio.sleep(0.005)


def run(node, scenario):
    async def main():
        async with asyncio.timeout(30), node:
            await scenario(node)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())

"""Whole shards in one process, stepped by hand.

A `Node` is what the supervisor makes of several processes: shards put together as in their processes
(`fluxmq.shards.composition`), joined by transports in memory whose records can be let through one at a time, on a
clock that moves when told. Clients are sockets; the conformance suite's client talks over them, and every wait of it
runs the shards until nothing is left to do. So a test decides every interleaving and sleeps nowhere.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import socket
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fluxmq.auth.users import User
from fluxmq.ipc import handoff
from fluxmq.net.links import Blocked, Link, Received
from fluxmq.net.reactor import Reactor
from fluxmq.protocols.sniff import shard_of
from fluxmq.replication.disk import Disk as QueueDisk
from fluxmq.settings.schema import Settings
from fluxmq.shards import composition
from fluxmq.shards.durable.rows import group_members
from fluxmq.shards.groups import GroupTable
from fluxmq.shards.intake import TCP
from fluxmq.shards.routes import RouteTable
from fluxmq.shards.surroundings import Surroundings, Times
from fluxmq.shards.system_topics import SystemTopics
from fluxmq.storage.directory import Placement
from tests.broker import merged
from tests.conformance import wire
from tests.conformance.client import Client
from tests.conformance.received import Packet
from tests.unit.shards.disk import Disk, MemoryStore
from tests.unit.shards.memory import Memory
from tests.unit.shards.pipes import Clock, MemoryTransport, Pipe

LOOPBACK = "127.0.0.1:50000"
BASE = {
    "server": {"mqtt": {"tcp": {"addr": "127.0.0.1:1883"}}},
    # Never the directory of a broker that somebody runs where the tests are started.
    "storage": {"data_dir": str(Path(tempfile.gettempdir()) / "fluxmq-tests-no-such-directory")},
}
QUIET_ROUNDS_MAX = 100_000
MOMENT = 0.06
"""A little more than changes wait for company on their way to the disk, and publishers for prompt subscribers."""


class Shard(composition.Shard):
    """One shard without its process."""

    def __init__(self, node: Node, index: int, epoch: int) -> None:
        settings = node.settings
        self.node = node
        self.index = index
        self.again = False
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self.store = MemoryStore(node.disks[index])
        self.acceptor, ours = handoff.pair()
        self.published: deque[bool | int] = deque(maxlen=3)
        """The latest of its counts of connections, and of whether it takes some."""
        super().__init__(
            settings,
            Surroundings(
                index=index,
                workers=node.workers,
                epoch=epoch,
                loop=node.loop,
                placement=Placement(node.workers, settings.queue_manager.local_groups),
                times=Times(
                    node.clock,
                    node.clock.wall_seconds,
                    node.clock.wall_ns,
                    lambda: round(node.clock() * 1_000_000),
                    self.call_later,
                ),
                disk=node.queue_disk(),
                store=self.store,
                expect_others=self._expect_others,
                connect=self._connect,
                is_alive=node.is_alive,
                handoff_fd=ours.detach(),
                schedule=self._again,
                count_connections=self._count,
                take_connections=self.published.append,
                connected=lambda: sum(self.broker.connections.open_now),
            ),
        )
        self.ownership = self.peers.ownership
        self.permissions.set_users(1, node.users)
        self.resources = node.memory.watch(
            index, settings, self.broker.alarms, self.reactor, lambda: self.queues.service.full
        )
        self.system = SystemTopics(
            index, self.broker, self.peers, lambda: sum(self.broker.connections.open_now)
        )
        self.queues.open(lambda: None)
        self.intake.start()
        self.peers.start()

    def _count(self, listener: int, count: int, _received: int) -> None:
        if listener == TCP:
            self.published.append(count)

    def _expect_others(self, routes: RouteTable, groups: GroupTable) -> None:
        for other in range(self.node.workers):
            if other != self.index:
                theirs = MemoryStore(self.node.disks[other])
                routes.expect(other, theirs.filters())
                groups.expect(other, group_members(theirs.others()))

    def _connect(self, reactor: Reactor, received: Received, blocked: Blocked) -> dict[int, Link]:
        links = {}
        for peer in range(self.node.workers):
            if peer != self.index:
                transport = MemoryTransport(
                    self.node.pipes[self.index, peer], self.node.pipes[peer, self.index]
                )
                transport.reset()
                links[peer] = Link(peer, transport, reactor, received, blocked)
        return links

    def _again(self) -> None:
        self.again = True

    def call_later(self, seconds: float, action: Callable[[], None]) -> None:
        """Call `action` when the clock says so."""
        heapq.heappush(self._later, (self.node.clock() + seconds, next(self._order), action))

    def next_moment(self) -> float:
        """When something is to be done next."""
        return self._later[0][0] if self._later else float("inf")

    def step(self) -> bool:
        """One tick; whether there was anything to do."""
        self.again = False
        worked = self.reactor.tick() > 0
        while self._later and self._later[0][0] <= self.node.clock():
            heapq.heappop(self._later)[2]()
            worked = True
        return worked or self.again or bool(self.reactor.dirty)

    def timer(self) -> None:
        """What the worker does ten times a second."""
        self.reactor.tally.now = self.node.clock()
        self.resources.step(self.node.clock())
        self.broker.run_timers()
        self.durable.housekeeping()
        self.queues.housekeeping()
        for user in self.control_users:
            user.housekeeping()
        self.peers.check()
        self.broker.retained.housekeeping()

    def session(self, client_id: str) -> Any:
        """A session of this shard, None when it is not here."""
        return self.broker.sessions.by_id.get(client_id)

    def close(self) -> None:
        """The process ends: its sockets close, its records stay under way."""
        for connection in list(self.reactor.connections.values()):
            self.reactor.discard(connection)
        self.authentication.close()
        self.queues.service.executor.shutdown()
        self.queues.service.durable.open_files.close_spares()
        self.intake.stop()
        self.intake._socket.close()
        self.acceptor.close()
        self.reactor.poller.close()


class Stream:
    """A client's end. Waiting for something to arrive runs the node until nothing is left to do."""

    def __init__(self, node: Node, sock: socket.socket) -> None:
        self.node = node
        self.sock = sock

    def sendall(self, data: bytes, /) -> None:
        """Send, letting the shards read when the socket is full."""
        view = memoryview(data)
        while view:
            try:
                view = view[self.sock.send(view) :]
            except BlockingIOError:
                assert self.node.run(), "nobody reads what this client sends"

    def recv(self, size: int, /) -> bytes:
        """What has come; TimeoutError when nothing will unless somebody does something."""
        end = self.node.clock.now + 2 * MOMENT
        while True:
            self.node.run()
            try:
                return self.sock.recv(size)
            except BlockingIOError:
                if not self.node.wait(end):
                    raise TimeoutError("the node is at rest and nothing has come") from None

    def settimeout(self, seconds: float | None, /) -> None:
        """Time does not pass by itself."""

    def close(self) -> None:
        """Close the socket and let the shards notice."""
        self.sock.close()
        self.node.run()


class Node:
    """The shards of a node. `pipes[source, target]` carry what they say to each other."""

    queue_disk: Callable[[], QueueDisk] = QueueDisk
    """Makes what a shard that starts keeps its queues on."""

    def __init__(
        self,
        workers: int,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        settings: dict[str, Any] | None = None,
        users: tuple[User, ...] = (),
    ) -> None:
        self.workers = workers
        self.clock = clock
        self.loop = loop
        self.users = users
        self.settings = Settings.model_validate(merged(BASE, settings or {}))
        self.shards: list[Shard | None] = [None] * workers
        self.disks = [Disk() for _ in range(workers)]
        self.memory = Memory(workers)
        self.hung: set[int] = set()
        self.unseen: set[int] = set()
        """Shards that live and are not yet shown by the process table."""
        self._epochs = itertools.count(1)
        self._clients: list[Stream] = []
        indexes = range(workers)
        self.pipes = {
            (source, target): Pipe() for source in indexes for target in indexes if source != target
        }
        for index in indexes:
            self.start(index)
        self.run()
        for shard in self:
            shard.timer()

    def __getitem__(self, index: int) -> Shard:
        shard = self.shards[index]
        assert shard is not None, f"shard {index} is down"
        return shard

    def __iter__(self) -> Iterator[Shard]:
        return (shard for shard in self.shards if shard is not None)

    # Processes

    def start(self, index: int) -> Shard:
        """Start a shard, new or again."""
        assert self.shards[index] is None
        shard = self.shards[index] = Shard(self, index, next(self._epochs))
        return shard

    def kill(self, index: int) -> None:
        """SIGKILL: what it has put on its links is still there."""
        self[index].close()
        self.memory.table.clear_readings(index)
        self.shards[index] = None

    def is_alive(self, index: int) -> bool:
        """What the process table says."""
        return self.shards[index] is not None and index not in self.unseen

    def close(self) -> None:
        """End everything."""
        for stream in self._clients:
            stream.sock.close()
        for shard in self:
            shard.close()
        self.memory.close()

    # Time and steps

    def run(self) -> bool:
        """Let all shards work until nothing is left to do; whether there was anything."""
        worked = False
        for _ in range(QUIET_ROUNDS_MAX):
            busy = [shard.step() for shard in self if shard.index not in self.hung]
            if not any(busy) and not self._under_way():
                return worked
            worked = True
        raise AssertionError("the shards never come to rest")

    def _under_way(self) -> bool:
        """Whether somebody will take a record that is on its way."""
        return any(
            self.shards[target] is not None
            and target not in self.hung
            and self.pipes[source, target].allowed != 0
            for source, target in self.waiting()
        )

    def advance(self, seconds: float) -> None:
        """Let time pass, in steps no timer can miss the order of."""
        end = self.clock.now + seconds
        while True:
            for shard in self:
                shard.timer()
            self.run()
            if self.clock.now >= end:
                return
            self.clock.now = min(end, self.clock.now + max(0.1, seconds / 50))

    def wait(self, end: float) -> bool:
        """Let time pass until something is to be done before `end`; False when nothing is.

        The disk is given a moment to gather changes, and prompt subscribers one to answer.
        """
        due = [shard.next_moment() for shard in self]
        moments = [each for each in due if self.clock.now < each <= end]
        if not moments:
            return False
        self.clock.now = min(moments)
        return True

    def hold(self) -> None:
        """From now on records pass from shard to shard only when let."""
        for pipe in self.pipes.values():
            pipe.allowed = 0

    def let(self, source: int, target: int, count: int = 1) -> None:
        """Let records pass from one shard to another, and let it deal with them."""
        pipe = self.pipes[source, target]
        assert len(pipe.records) >= count, f"{len(pipe.records)} records from {source} to {target}"
        pipe.allowed = count
        self.run()
        assert pipe.allowed == 0

    def release(self) -> None:
        """Everything passes again."""
        for pipe in self.pipes.values():
            pipe.allowed = None
        self.run()

    def waiting(self) -> list[tuple[int, int]]:
        """The pipes with records that some living shard will take."""
        return [
            pair
            for pair, pipe in self.pipes.items()
            if pipe.records and self.shards[pair[1]] is not None
        ]

    # Clients

    def client(
        self,
        shard: int,
        version: int = wire.V5,
        peer: str = LOOPBACK,
        buffer: int = 0,
        listener: int = TCP,
    ) -> Client:
        """A network connection that the acceptor gave to `shard`. `buffer`: bytes its socket holds."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        if buffer:
            theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer)
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        with theirs:
            sent = handoff.send(
                self[shard].acceptor, [handoff.Handoff(theirs.fileno(), listener, peer, b"")]
            )
            assert sent == 1
        stream = Stream(self, ours)
        self._clients.append(stream)
        self.run()
        return Client(stream, version)

    def connect(
        self, shard: int, client_id: str = "", version: int = wire.V5, **fields: Any
    ) -> Client:
        """A client with an accepted CONNECT, and no keep-alive unless asked for."""
        fields.setdefault("keep_alive", 0)
        client = self.client(shard, version)
        answer = client.connect(client_id, **fields)
        assert answer.reason == 0, str(answer)
        return client

    def id_of(self, home: int, name: str = "client") -> str:
        """A client id whose home is a given shard."""
        for number in itertools.count():
            candidate = f"{name}{number}"
            if (shard_of(candidate.encode(), self.workers) or 0) == home:
                return candidate
        raise AssertionError

    def holders(self, client_id: str) -> list[int]:
        """The shards that have a session of a client id."""
        return [shard.index for shard in self if shard.session(client_id) is not None]


def stream_of(client: Client) -> Stream:
    """The end of a client that the node gave it."""
    assert isinstance(client.stream, Stream)
    return client.stream


def drain(client: Client) -> list[Packet]:
    """Everything that has come for a client; nothing is answered."""
    found = list(client._packets)
    client._packets.clear()
    while True:
        try:
            packet = client._read(float("inf"))
        except TimeoutError:
            return found
        if packet is None:
            return found
        found.append(packet)


def messages(client: Client) -> list[bytes]:
    """Payloads of the messages that have come for a client, acknowledged."""
    found: list[bytes] = []
    while True:
        try:
            packet = client._packets.popleft() if client._packets else client._read(float("inf"))
        except TimeoutError:
            return found
        if packet is None:
            return found
        assert packet.kind == wire.PUBLISH, str(packet)
        client.acknowledge(packet)
        found.append(packet.payload)


__all__ = [
    "LOOPBACK",
    "Clock",
    "MemoryTransport",
    "Node",
    "Pipe",
    "Shard",
    "drain",
    "messages",
    "stream_of",
]

"""Several nodes whose shards exchange messages as between nodes, over streams that a test rules."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from fluxmq.net import frames
from fluxmq.shards.node_peers import NodePeers
from tests.conformance.client import Client
from tests.unit.shards.node import Node
from tests.unit.shards.pipes import Clock

SHARDS_MAX = 256
TIMEOUT = 15.0


def settings_of(name: str, names: list[str], more: dict[str, Any]) -> dict[str, Any]:
    """The settings of a node of the cluster; ``more``: of its section ``cluster``."""
    peers = {
        each: f"127.0.0.1:{7000 + number}" for number, each in enumerate(names) if each != name
    }
    own = f"127.0.0.1:{7000 + names.index(name)}"
    return {
        "cluster": {
            "enabled": True,
            "node_id": name,
            "raft": {"enabled": True},
            "transport": {"bind_addr": own, "peers": peers},
            **more,
        }
    }


class FakeLink:
    """One end of a stream between two shards of two nodes."""

    def __init__(
        self,
        peer: int,
        node: str,
        shard: int,
        owner: NodePeers,
        arrived: Callable[[], None],
    ) -> None:
        """``arrived`` is called before the owner is told anything."""
        self.peer = peer
        self.node = node
        self.shard = shard
        self.owner = owner
        self._arrived = arrived
        self.epoch = 0
        self.up = False
        self.backlog_bytes = 0
        self.inbox: deque[bytes] = deque()
        self.other: FakeLink
        self.added = False
        """Its owner knows it: it has had a stream."""
        self.closed = 0
        self.held = False
        """Nothing that was sent to this end arrives."""

    def send_control(self, name: str, *arguments: object) -> None:
        """Send a control frame."""
        self.send_frame(frames.encode_control(name, *arguments))

    def send_frame(self, frame: bytes) -> None:
        """Send a frame."""
        if self.up:
            self.other.inbox.append(frame)

    def close(self) -> None:
        """Note it: the test cuts the stream."""
        self.closed += 1

    def came(self) -> None:
        """Tell the owner of a new stream."""
        self._arrived()
        self.owner.came(self)

    def gone(self) -> None:
        """Tell the owner of the stream's end."""
        self._arrived()
        self.owner.gone(self)

    def take(self) -> bool:
        """Handle what has arrived."""
        worked = False
        while self.inbox and not self.held:
            self._arrived()
            frame = self.inbox.popleft()
            worked = True
            if frame[0] == frames.CONTROL:
                name, *arguments = frames.decode_control(frame)
                self.owner.handlers()[str(name)](self, *arguments)
            else:
                self.owner.received(self, frame)
        return worked


class NetNode(Node):
    """A node whose work goes on with that of the others."""

    net: Net | None = None

    def run(self) -> bool:
        """Let all nodes work until nothing is left to do."""
        worked = super().run()
        if self.net is not None and not self.net.running:
            self.net.run()
        return worked


class Net:
    """A cluster of nodes, each with so many shards."""

    def __init__(
        self, clock: Clock, loop: asyncio.AbstractEventLoop, *workers: int, **cluster: Any
    ) -> None:
        """``cluster``: settings of all nodes."""
        self.clock = clock
        self.names = [f"n{number}" for number in range(len(workers))]
        self.nodes = [
            NetNode(count, clock, loop, settings_of(name, self.names, cluster))
            for name, count in zip(self.names, workers, strict=True)
        ]
        self.running = False
        self.besides: Callable[[], bool] = lambda: False
        """Works beside the nodes; returns whether there was anything to do."""
        self._lives = [100] * len(workers)
        for node in self.nodes:
            node.net = self
        self.links: dict[tuple[int, int, int, int], FakeLink] = {}
        for number in range(len(workers)):
            self._introduce(number)
        for one in range(len(workers)):
            for other in range(len(workers)):
                for a in range(workers[one]):
                    for b in range(workers[other]):
                        if one != other and (b == a % workers[other] or a == b % workers[one]):
                            self._add(one, a, other, b)
        for (one, a, other, b), link in self.links.items():
            link.other = self.links[other, b, one, a]
        self.connect()

    def peers(self, node: int, shard: int) -> NodePeers:
        """The other nodes, as a shard sees them."""
        found = self.nodes[node][shard].nodes
        assert isinstance(found, NodePeers)
        return found

    def _introduce(self, number: int) -> None:
        """Tell a node's shards how many the others have."""
        for shard in self.nodes[number]:
            self.peers(number, shard.index).shards_of = self._workers_of

    def _workers_of(self, name: str) -> int:
        return self.nodes[self.names.index(name)].workers

    def _add(self, one: int, a: int, other: int, b: int) -> None:
        owner = self.peers(one, a)
        arrived = partial(self._arrived, one, a)
        link = FakeLink(SHARDS_MAX * (other + 1) + b, self.names[other], b, owner, arrived)
        self.links[one, a, other, b] = link

    def _arrived(self, node: int, shard: int) -> None:
        """Have a shard know the time, as it does when a stream has something for it."""
        running = self.nodes[node].shards[shard]
        if running is not None:
            running.reactor.tally.now = self.clock()

    def ends(self, one: int, other: int) -> list[FakeLink]:
        """The ends of all streams between two nodes."""
        return [
            link
            for (here, _, there, _), link in self.links.items()
            if {here, there} == {one, other}
        ]

    def connect(self, *pair: int) -> None:
        """Begin every stream that is not there, or those of a pair of nodes."""
        links = self.ends(*pair) if pair else self.links.values()
        fresh = [link for link in links if not link.up]
        for link in fresh:
            link.up = True
            node = self.names.index(link.node)
            # Of a shard and its life alone.
            link.epoch = (self._lives[node] * SHARDS_MAX + node) * SHARDS_MAX + link.shard
            link.inbox.clear()
            if not link.added:
                link.added = True
                link.owner.added(link)
        for link in fresh:
            link.came()
        self.run()

    def met(self, number: int) -> bool:
        """Whether a node's shards and all of the others know each other's interest: then it lets clients in."""
        ends = [(key, link) for key, link in self.links.items() if key[0] == number]
        return all(link.up and self.peers(number, a).knows(link) for (_, a, _, _), link in ends)

    def cut(self, one: int, other: int, lost: bool = True) -> None:
        """End the streams between two nodes; ``lost``: with what is on its way."""
        ends = [link for link in self.ends(one, other) if link.up]
        for link in ends:
            if not lost:
                link.take()
        for link in ends:
            link.up = False
            link.inbox.clear()
        for link in ends:
            link.gone()
        self.run()

    def restart(self, number: int, *shards: int) -> None:
        """SIGKILL of shards of a node, all unless named, and their start; the node's streams are not
        there yet."""
        node = self.nodes[number]
        killed = shards or range(node.workers)
        for other in range(len(self.nodes)):
            if other != number:
                self.cut(number, other)
        self._lives[number] += 1
        for index in killed:
            node.kill(index)
        for index in killed:
            node.start(index)
        self._introduce(number)
        for (one, a, _, _), link in self.links.items():
            if one == number and a in killed:
                link.owner = self.peers(one, a)
                link.added = False
        self.advance(0.3)

    def run(self) -> None:
        """Let everything work until nothing is left to do."""
        self.running = True
        working = True
        while working:
            worked = [node.run() for node in self.nodes]
            worked += [link.take() for link in self.links.values()]
            worked.append(self.besides())
            working = any(worked)
        self.running = False

    def advance(self, seconds: float) -> None:
        """Let time pass on all nodes."""
        end = self.clock.now + seconds
        while self.clock.now < end:
            self.clock.now = min(end, self.clock.now + 0.1)
            for node in self.nodes:
                for shard in node:
                    shard.timer()
            self.run()

    def client(self, node: int, shard: int = 0, name: str = "", **fields: Any) -> Client:
        """A connected client of a shard."""
        return self.nodes[node].connect(shard, name, **fields)

    def close(self) -> None:
        """End everything."""
        for node in self.nodes:
            node.close()

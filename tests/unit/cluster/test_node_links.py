"""Shards of two nodes and their streams, over sockets of the loopback address."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial

import grpc
import grpc.aio
import pytest
import uvloop

from fluxmq.cluster import channels, greeting
from fluxmq.cluster.connection import StreamHello
from fluxmq.cluster.guard import STREAM
from fluxmq.cluster.node_links import NodeLink, NodeLinks, SilentLinks, greetings
from fluxmq.cluster.security import Security
from fluxmq.cluster.shard_endpoint import PUBLISH, SHARD, ShardEndpoint
from fluxmq.cluster.shard_pairs import Pairs, counterparts, every_shard
from fluxmq.net import frames
from fluxmq.net.links import SHARDS_MAX
from tests.broker import HOST, free_ports, is_free

LONG = 20.0
"""Seconds that no test takes unless it fails."""
SHARDS_HERE = 5
"""The most that a node of these tests has."""
PEERS = ("node1", "node2")


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(LONG):
            await scenario()

    uvloop.run(bounded())


def first_ports() -> dict[str, int]:
    """The first of a port for each shard of each node."""
    while True:
        firsts = free_ports(len(PEERS))
        wanted = {port + shard for port in firsts for shard in range(SHARDS_HERE)}
        if len(wanted) == len(PEERS) * SHARDS_HERE and all(map(is_free, wanted)):
            return dict(zip(PEERS, firsts, strict=True))


class Seen:
    """An observer that keeps what it is told, and tells who waits for it."""

    def __init__(self, changed: asyncio.Event) -> None:
        self.events: list[tuple[str, str, int]] = []
        self.frames: list[bytes] = []
        self._changed = changed
        self.calls: list[str] = []
        """Calls of `arrived` and `wake`."""

    def added(self, link: NodeLink) -> None:
        self._note("added", link)

    def came(self, link: NodeLink) -> None:
        self._note("came", link)

    def gone(self, link: NodeLink) -> None:
        self._note("gone", link)

    def handlers(self) -> Mapping[str, Callable[..., None]]:
        return {
            "hello": lambda link, _word: self._note("greeted", link),
            "beat": lambda link: self._note("beaten", link),
        }

    def received(self, link: NodeLink, frame: bytes) -> None:
        self.frames.append(frame)
        self._note("received", link)

    def _note(self, what: str, link: NodeLink) -> None:
        self.events.append((what, link.node, link.shard))
        self._changed.set()


class Side:
    """One life of one shard, with links for queues or for greetings alone, and links for publishing."""

    def __init__(
        self, own: StreamHello, ports: Mapping[str, int], changed: asyncio.Event, queues: bool
    ) -> None:
        peers = {node: f"{HOST}:{port}" for node, port in ports.items() if node != own.node}
        address = f"{HOST}:{ports[own.node]}"
        self.endpoint = ShardEndpoint(Security(own.node, PEERS), address, own, peers)
        self.seen = {SHARD: Seen(changed), PUBLISH: Seen(changed)}
        # The other one's numbers of shards are known from either of these.
        self.links = {
            SHARD: self._links(SHARD, every_shard) if queues else greetings(self.endpoint)
        }
        self.links[PUBLISH] = self._links(PUBLISH, counterparts)

    def _links(self, purpose: str, pairs: Pairs) -> NodeLinks:
        seen = self.seen[purpose]
        wake, arrived = (partial(seen.calls.append, each) for each in ("wake", "arrived"))
        return NodeLinks(self.endpoint, purpose, pairs, seen, wake, ("beat",), arrived)

    async def start(self) -> None:
        await self.endpoint.start()
        for links in self.links.values():
            links.start()

    async def stop(self) -> None:
        await self.endpoint.stop()
        for links in self.links.values():
            await links.stop()

    def link(self, purpose: str) -> NodeLink:
        """The only one of a purpose."""
        (link,) = self.links[purpose].links.values()
        return link


class Pair:
    """Two nodes, whose shards come and go."""

    def __init__(self, queues: bool) -> None:
        self.changed = asyncio.Event()
        self.ports = first_ports()
        self.nodes: dict[str, list[Side]] = {node: [] for node in PEERS}
        self._queues = queues
        self._lives = 0

    async def start(self, node: str, shards: int) -> None:
        """A node starts."""
        for shard in range(shards):
            self._lives += 1
            own = StreamHello(node, shard, shards, self._lives, "")
            side = Side(own, self.ports, self.changed, self._queues)
            self.nodes[node].append(side)
            await side.start()

    async def stop(self, node: str) -> None:
        """A node stops."""
        sides, self.nodes[node] = self.nodes[node], []
        await asyncio.gather(*(side.stop() for side in sides))

    async def until(self, reached: Callable[[], bool]) -> None:
        """Wait for something that comes of events."""
        while not reached():
            self.changed.clear()
            await self.changed.wait()

    async def saw(self, seen: Seen, events: int) -> None:
        """Wait until so many events have reached an observer, and no more."""
        await self.until(lambda: len(seen.events) == events)

    async def settled(self, expected: set[tuple[int, int]]) -> None:
        """Wait until both nodes see streams for publishing between these shards alone."""
        await self.until(lambda: all(self.up(node) == expected for node in PEERS))

    def up(self, node: str) -> set[tuple[int, int]]:
        """Pairs of shards, of node1 and node2, that have a stream for publishing, as a node sees them."""
        found = {
            (side.endpoint.own.shard, link.shard)
            for side in self.nodes[node]
            for link in side.links[PUBLISH].links.values()
            if link.up
        }
        return found if node == "node1" else {(other, own) for own, other in found}


@asynccontextmanager
async def two_nodes(first: int, second: int, queues: bool = True) -> AsyncIterator[Pair]:
    """Two nodes with so many shards."""
    pair = Pair(queues)
    await pair.start("node1", first)
    await pair.start("node2", second)
    try:
        yield pair
    finally:
        await asyncio.gather(*map(pair.stop, PEERS))


def test_a_quiet_frame_leaves_a_tick_nothing_to_do() -> None:
    """The time is taken before each frame: the last tick may be long ago. Only news end in a tick."""

    async def scenario() -> None:
        async with two_nodes(1, 1) as pair:
            near, far = pair.nodes["node1"][0], pair.nodes["node2"][0]
            seen = near.seen[SHARD]
            await pair.saw(seen, 2)
            await pair.saw(far.seen[SHARD], 2)
            assert seen.calls == ["arrived", "wake"], "for the stream"
            seen.calls.clear()
            far.link(SHARD).send_control("beat")
            await pair.saw(seen, 3)
            assert seen.calls == ["arrived"]
            far.link(SHARD).send_control("hello", "there")
            await pair.until(lambda: len(seen.calls) == 3)
            assert seen.calls == ["arrived", "arrived", "wake"]

    run(scenario)


def test_streams_of_two_purposes_arrive_at_one_address() -> None:
    async def scenario() -> None:
        async with two_nodes(1, 1) as pair:
            (near,), (far,) = pair.nodes["node1"], pair.nodes["node2"]
            for purpose in (SHARD, PUBLISH):
                here, there = near.seen[purpose], far.seen[purpose]
                await pair.saw(there, 2)
                await pair.saw(here, 2)
                assert here.events == [("added", "node2", 0), ("came", "node2", 0)]
                assert there.events == [("added", "node1", 0), ("came", "node1", 0)]
                frame = bytes([frames.APPEND]) + purpose.encode()
                near.link(purpose).send_frame(frame)
                await pair.saw(there, 3)
                assert there.frames == [frame]
                far.link(purpose).send_control("hello", "there")
                await pair.saw(here, 3)
                assert here.events[2] == ("greeted", "node2", 0)
            assert near.link(SHARD).connection is not near.link(PUBLISH).connection
            assert {near.link(each).epoch for each in (SHARD, PUBLISH)} == {2}
            assert far.link(PUBLISH).epoch == 1

    run(scenario)


@pytest.mark.parametrize(("broken", "whole"), [(SHARD, PUBLISH), (PUBLISH, SHARD)])
def test_a_stream_that_is_lost_takes_none_of_another_purpose_with_it(
    broken: str, whole: str
) -> None:
    async def scenario() -> None:
        async with two_nodes(1, 1) as pair:
            (near,), (far,) = pair.nodes["node1"], pair.nodes["node2"]
            sides = [near.seen[broken], far.seen[broken], near.seen[whole], far.seen[whole]]
            for seen in sides:
                await pair.saw(seen, 2)
            kept = near.link(whole).connection
            lost = far.link(broken).connection
            assert lost is not None
            lost.close()
            for seen in sides[:2]:
                await pair.saw(seen, 4)
                assert [what for what, _, _ in seen.events[2:]] == ["gone", "came"]
            near.link(whole).send_frame(bytes([frames.APPEND]))
            await pair.saw(far.seen[whole], 3)
            assert near.link(whole).connection is kept
            assert [what for what, _, _ in near.seen[whole].events] == ["added", "came"]

    run(scenario)


def test_a_link_without_a_stream_has_no_epoch_and_drops_frames() -> None:
    link = NodeLink(SHARDS_MAX, "node2", 0)
    link.send_frame(b"nobody takes it")
    assert (link.epoch, link.sent_bytes, link.up) == (0, 0, False)


@pytest.mark.parametrize("queues", [True, False])
def test_pairs_follow_the_number_of_shards_of_a_node_that_returns(queues: bool) -> None:
    """It is known from the streams of queues, or from those of greetings."""

    async def scenario() -> None:
        async with two_nodes(3, 2, queues) as pair:
            await pair.settled({(0, 0), (1, 1), (2, 0)})
            for node, shards, expected in (
                ("node2", 5, {(0, 0), (1, 1), (2, 2), (0, 3), (1, 4)}),
                ("node2", 1, {(0, 0), (1, 0), (2, 0)}),
                ("node1", 1, {(0, 0)}),
                ("node2", 3, {(0, 0), (0, 1), (0, 2)}),
                ("node1", 4, {(0, 0), (1, 1), (2, 2), (3, 0)}),
            ):
                await pair.stop(node)
                await pair.start(node, shards)
                await pair.settled(expected)

    run(scenario)


HELLO = StreamHello("node1", 0, 2, 1, PUBLISH)
UNWELCOME = [
    ({"purpose": "group:orders"}, "this is the address of publish and shard, not of group:orders"),
    ({"purpose": ""}, "this is the address of publish and shard, not of "),
    ({"shard": 1}, "no stream of publish between shard 1 of 2 and shard 0 of 2"),
    ({"shard": 2, "purpose": SHARD}, "no stream of shard between shard 2 of 2 and shard 0 of 2"),
    ({"shard": -1}, "there is no shard -1"),
    ({"shard": SHARDS_MAX, "workers": SHARDS_MAX + 1}, f"there is no shard {SHARDS_MAX}"),
    ({"node": "node3"}, "node3 is not among cluster.transport.peers"),
    ({"node": "node4"}, "node2 dials node4, not the other way round"),
]


@pytest.mark.parametrize(("change", "problem"), UNWELCOME)
def test_an_unwelcome_stream_is_refused_with_the_reason(
    change: Mapping[str, str | int], problem: str
) -> None:
    async def scenario() -> None:
        (port,) = free_ports(1)
        own = StreamHello("node2", 0, 2, 2, "")
        peers = {"node1": f"{HOST}:1", "node4": f"{HOST}:1"}
        security = Security("node2", ("node1", "node3", "node4"))
        endpoint = ShardEndpoint(security, f"{HOST}:{port}", own, peers)
        seen = Seen(asyncio.Event())
        NodeLinks(endpoint, SHARD, every_shard, seen, lambda: None)
        NodeLinks(endpoint, PUBLISH, counterparts, seen, lambda: None)
        await endpoint.start()
        async with grpc.aio.insecure_channel(endpoint.address) as channel:
            sent = HELLO._replace(**change)  # type: ignore[arg-type]  # each is of its field's type
            connect = channel.stream_stream(channels.CONNECT)
            call = connect(metadata=greeting.as_metadata(sent))
            assert await call.code() is grpc.StatusCode.PERMISSION_DENIED
            assert problem in await call.details()
        await endpoint.stop()
        assert security.guard.refused[STREAM] == 1
        assert seen.events == []

    run(scenario)


def test_connections_that_arrive_as_the_endpoint_stops_are_closed() -> None:
    async def scenario() -> None:
        for turns in range(6):
            (port,) = free_ports(1)
            own = StreamHello("node1", 0, 1, 1, "")
            address = f"{HOST}:{port}"
            endpoint = ShardEndpoint(Security("node1", PEERS), address, own, {"node2": f"{HOST}:1"})
            await endpoint.start()
            arriving = [socket.create_connection((HOST, port)) for _ in range(8)]
            for _ in range(turns):
                await asyncio.sleep(0)
            await endpoint.stop()
            gc.collect()  # warns of a connection that was lost
            for each in arriving:
                with each, suppress(ConnectionResetError):
                    each.setblocking(False)
                    while await asyncio.get_running_loop().sock_recv(each, 1 << 12):
                        pass

    run(scenario)


def endpoint_alone() -> ShardEndpoint:
    own = StreamHello("node1", 0, 1, 1, "")
    return ShardEndpoint(Security("node1", PEERS), f"{HOST}:1", own, {"node2": f"{HOST}:1"})


def test_a_purpose_has_one_listener() -> None:
    endpoint = endpoint_alone()
    greetings(endpoint)
    with pytest.raises(ValueError, match="greeting have a listener already"):
        greetings(endpoint)


def test_a_node_has_at_most_as_many_shards_as_there_are_numbers() -> None:
    endpoint = endpoint_alone()
    assert endpoint.shards_of("node2") == 0
    endpoint.met(StreamHello("node2", 0, (1 << 32) - 1, 1, SHARD))
    assert endpoint.shards_of("node2") == SHARDS_MAX


def test_a_frame_that_nobody_handles_ends_its_stream_alone() -> None:
    async def scenario() -> None:
        async with two_nodes(1, 1) as pair:
            (near,), (far,) = pair.nodes["node1"], pair.nodes["node2"]
            for purpose in (SHARD, PUBLISH):
                await pair.saw(near.seen[purpose], 2)
            near.link(PUBLISH).send_control("unheard of")
            await pair.saw(near.seen[PUBLISH], 4)
            assert [what for what, _, _ in near.seen[PUBLISH].events[2:]] == ["gone", "came"]
            assert len(near.seen[SHARD].events) == 2
            assert [far.links[each].malformed.events for each in (SHARD, PUBLISH)] == [0, 1]

    run(scenario)


def test_a_stream_of_greetings_carries_no_frames() -> None:
    observer, link = SilentLinks(), NodeLink(SHARDS_MAX, "node2", 0)
    assert observer.handlers() == {}
    with pytest.raises(ValueError, match="no frames"):
        observer.received(link, bytes([frames.APPEND]))

"""Streams to nodes that join, leave, and move to another address while a shard runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from fluxmq.cluster.connection import StreamHello
from fluxmq.cluster.door import Door
from fluxmq.cluster.node_links import NodeLinks
from fluxmq.cluster.security import Security
from fluxmq.cluster.shard_endpoint import SHARD, ShardEndpoint
from fluxmq.cluster.shard_pairs import every_shard
from fluxmq.settings.clustering import ClusterSettings
from tests.broker import HOST, free_ports
from tests.unit.cluster.test_node_links import LONG, Seen

NAME = "moved.example"
"""A name that the tests' resolver knows."""


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    """Run on asyncio's own loop, whose resolver a test can replace."""

    async def bounded() -> None:
        async with asyncio.timeout(LONG):
            await scenario()

    asyncio.run(bounded())


class ShardOfNode:
    """The only shard of a node."""

    def __init__(self, name: str, addresses: dict[str, str], known: Sequence[str]) -> None:
        self.name = name
        self._addresses = addresses
        cluster = self._settings(known)
        own = StreamHello(name, 0, 1, 1, "")
        security = Security.of(cluster)
        self.endpoint = ShardEndpoint(security, addresses[name], own, cluster.transport.peers)
        self.changed = asyncio.Event()
        self.seen = Seen(self.changed)
        self.links = NodeLinks(self.endpoint, SHARD, every_shard, self.seen, lambda: None)

    def _settings(self, known: Sequence[str]) -> ClusterSettings:
        peers = {each: self._addresses[each] for each in known}
        transport = {"peers": peers, "allow_plaintext": True}
        return ClusterSettings.model_validate(
            {"enabled": True, "node_id": self.name, "transport": transport}
        )

    def follow(self, *known: str) -> None:
        self.endpoint.follow(self._settings(known))

    async def start(self) -> None:
        await self.endpoint.start()
        self.links.start()

    async def stop(self) -> None:
        await self.endpoint.stop()
        await self.links.stop()

    async def until(self, connected: set[str]) -> None:
        """Wait until there are streams to these nodes alone."""
        while {link.node for link in self.links.links.values() if link.up} != connected:
            self.changed.clear()
            await self.changed.wait()


@pytest.mark.parametrize("newcomer", ["a", "z"])
def test_a_node_that_joins_is_connected_and_one_that_leaves_is_not(newcomer: str) -> None:
    """Of two nodes the one whose name is smaller dials: both ways."""

    async def scenario() -> None:
        names = ("m", "n", newcomer)
        addresses = {
            name: f"{HOST}:{port}" for name, port in zip(names, free_ports(3), strict=True)
        }
        first = ShardOfNode("m", addresses, ("n",))
        second = ShardOfNode("n", addresses, ("m",))
        third = ShardOfNode(newcomer, addresses, ("m", "n"))
        shards = (first, second, third)
        await asyncio.gather(*(each.start() for each in shards))
        await first.until({"n"})
        numbers = {link.node: peer for peer, link in first.links.links.items()}
        first.follow("n", newcomer)
        second.follow("m", newcomer)
        await first.until({"n", newcomer})
        await third.until({"m", "n"})
        later = {link.node: peer for peer, link in first.links.links.items()}
        assert later["n"] == numbers["n"], "a node keeps its number"
        assert len(set(later.values())) == 2
        first.follow("n")
        second.follow("m")
        await first.until({"n"})
        await third.until(set())
        assert first.endpoint.security.members == {"n"}
        await asyncio.gather(*(each.stop() for each in shards))

    run(scenario)


def test_a_name_is_resolved_at_every_attempt_so_that_a_node_that_moves_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        hosts = [HOST]
        asked: list[str] = []
        resolve = loop.getaddrinfo

        async def getaddrinfo(host: str, *more: Any, **fields: Any) -> list[Any]:
            asked.append(host)
            return list(await resolve(hosts[0] if host == NAME else host, *more, **fields))

        monkeypatch.setattr(loop, "getaddrinfo", getaddrinfo)
        near_port, far_port = free_ports(2)
        dialled = {"a": f"{HOST}:{near_port}", "b": f"{NAME}:{far_port}"}
        near = ShardOfNode("a", dialled, ("b",))
        far = ShardOfNode("b", {**dialled, "b": f"{HOST}:{far_port}"}, ("a",))
        await asyncio.gather(near.start(), far.start())
        await near.until({"b"})
        await far.stop()
        hosts[0] = "127.0.0.2"
        elsewhere = ShardOfNode("b", {**dialled, "b": f"127.0.0.2:{far_port}"}, ("a",))
        await elsewhere.start()
        await near.until(set())
        await near.until({"b"})
        assert asked.count(NAME) >= 2
        await asyncio.gather(near.stop(), elsewhere.stop())

    run(scenario)


def test_an_address_knows_members_that_have_joined() -> None:
    async def scenario() -> None:
        door = Door(["10.0.0.1", "localhost"])
        door.look()
        assert door._resolving is not None
        await door._resolving
        assert door.knows(HOST)
        door.follow(["10.0.0.2", "localhost"])
        assert door.knows("10.0.0.2")
        assert not door.knows("10.0.0.1")
        assert door.knows(HOST), "a name's addresses are known until it is resolved again"
        await door.close()

    run(scenario)

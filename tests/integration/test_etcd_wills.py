"""The control process's part in wills, with a real server: those of nodes that have ended are published once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fluxmq.control.etcd import wills
from fluxmq.control.etcd.client import EtcdClient
from fluxmq.control.etcd.messages import Get, Put, end_of
from fluxmq.control.etcd.wills import DATA, NODES, PUBLISHED, WillKeys
from fluxmq.control.peers import Peer, RequestError
from fluxmq.ipc.conversation import Answered
from fluxmq.ipc.messages import Body, ControlMessage
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
)
from tests.control_part import alone
from tests.etcd import Server, eventually, is_true, run, serving

pytestmark = pytest.mark.once


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(wills, "LEASE_SECONDS", 4)
    monkeypatch.setattr(wills, "KEEP_ALIVE_SECONDS", 0.5)
    monkeypatch.setattr(wills, "LOOK_SECONDS", 0.1)
    with serving(tmp_path) as running:
        yield running


def will(payload: bytes = b"gone", delay: int = 0) -> WillValue:
    return WillValue(b"will", payload, 1, False, b"", delay, None, "anna", False)


class Node:
    """A node of which only this part is there, and what its shard publishes."""

    def __init__(self, coordinates: bool) -> None:
        self.coordinates = coordinates
        self.published: list[tuple[str, bytes]] = []
        self.keys: WillKeys

    def publish(self, body: Body, answered: Answered) -> None:
        wanted = WillToPublish.from_body(body)
        self.published.append((wanted.client, wanted.will.payload))
        answered({})

    async def change(self, client: str, value: WillValue | None) -> None:
        body = WillChanges((WillChange(client, value),)).to_body()
        await self.keys.answer(ControlMessage(WILL_CHANGE, 1, body))

    async def claim(self, *clients: str) -> tuple[bool, ...]:
        body = await self.keys.answer(ControlMessage(WILL_CLAIM, 1, WillClaims(clients).to_body()))
        return ClaimedWills.from_body(body).granted


@asynccontextmanager
async def node(
    server: Server, folder: Path, name: str, life: str = "1", coordinates: bool = False
) -> AsyncIterator[Node]:
    made = Node(coordinates)

    def make(shards: Callable[[], list[Peer]]) -> WillKeys:
        client = EtcdClient.of(server.cluster)
        return WillKeys(client, name, life, lambda: made.coordinates, shards)

    async with alone(folder / f"{name}-{life}", make, {WILL_PUBLISH: made.publish}) as made.keys:
        yield made


async def stored(client: EtcdClient, prefix: bytes) -> list[bytes]:
    ((*entries,),) = (await client.transact((), (Get(prefix, end_of(prefix)),))).entries
    return [each.key.removeprefix(prefix) for each in entries]


def test_a_will_is_kept_until_its_node_claims_it(server: Server, tmp_path: Path) -> None:
    """S2-09."""

    async def scenario(client: EtcdClient) -> None:
        async with node(server, tmp_path, "node1", coordinates=True) as one:
            await is_true(lambda: one.keys._nodes == {"node1": "1"})
            await one.change("a", will())
            await one.change("b", will())
            await one.change("b", None)
            assert await stored(client, DATA) == [b"a"]
            assert await one.claim("a", "never heard of") == (True, True)
            assert await stored(client, DATA) == []
            assert one.published == []

    run(server, scenario)


def test_a_claim_leaves_the_will_of_the_clients_next_connection(
    server: Server, tmp_path: Path
) -> None:
    """The client has moved to another node, which was faster."""

    async def scenario(client: EtcdClient) -> None:
        async with (
            node(server, tmp_path, "node1") as one,
            node(server, tmp_path, "node2") as two,
        ):
            await one.change("a", will(b"of the former connection"))
            await two.change("a", will(b"of the next one"))
            assert await one.claim("a") == (True,)
            assert await stored(client, DATA) == [b"a"]
            assert await two.claim("a") == (True,)
            assert await stored(client, DATA) == []

    run(server, scenario)


def test_wills_of_a_node_that_has_ended_are_published_once(server: Server, tmp_path: Path) -> None:
    """S2-23: by one that is there; and not again when the node returns with the sessions."""

    async def scenario(client: EtcdClient) -> None:
        async with node(server, tmp_path, "node2", coordinates=True) as other:
            async with node(server, tmp_path, "node1") as one:
                await one.change("a", will(b"a"))
                await one.change("late", will(b"late", delay=2))
                await is_true(lambda: other.keys._nodes == {"node1": "1", "node2": "1"})
            assert other.published == []
            await is_true(lambda: other.published == [("a", b"a")])
            await is_true(lambda: len(other.published) == 2)
            assert other.published[1] == ("late", b"late")
            assert other.keys.published == 2
            async with node(server, tmp_path, "node1", "2") as again:
                assert await again.claim("a", "late", "c") == (False, False, True)
                assert await stored(client, PUBLISHED) == []
                await again.change("a", will(b"again"))
                assert await again.claim("a") == (True,)
            assert len(other.published) == 2

    run(server, scenario)


def test_a_client_that_has_connected_again_has_not_ended(server: Server, tmp_path: Path) -> None:
    async def scenario(client: EtcdClient) -> None:
        async with node(server, tmp_path, "node2", coordinates=True) as other:
            async with node(server, tmp_path, "node1") as one:
                for name in ("here", "without", "gone"):
                    await one.change(name, will(delay=5))
            await is_true(lambda: len(other.keys._due) == 3)
            # Nothing has it look through the wills again.
            await other.change("here", will(b"new"))
            await other.change("without", None)
            await is_true(lambda: not other.keys._due)
            await is_true(lambda: other.published == [("gone", b"gone")])
            assert await stored(client, DATA) == [b"here"]

    run(server, scenario)


def test_wills_of_a_former_life_are_published(server: Server, tmp_path: Path) -> None:
    """The node was killed, and is back before its lease has ended."""

    async def scenario(client: EtcdClient) -> None:
        async with node(server, tmp_path, "node1") as one:
            await one.change("a", will(b"a"))
        async with node(server, tmp_path, "node1", "2", coordinates=True) as again:
            await again.change("b", will(b"b"))
            await is_true(lambda: again.published == [("a", b"a")])
            assert await stored(client, DATA) == [b"b"]

    run(server, scenario)


def test_a_node_that_only_lost_its_control_process_has_not_ended(
    server: Server, tmp_path: Path
) -> None:
    async def scenario(client: EtcdClient) -> None:
        async with node(server, tmp_path, "node2", coordinates=True) as other:
            for _ in range(3):
                async with node(server, tmp_path, "node1") as one:
                    await one.change("a", will())
                    await is_true(lambda: other.keys._nodes is not None)
                (tmp_path / "node1-1").unlink(missing_ok=True)
            assert other.published == []
            assert await stored(client, NODES) == [b"node1", b"node2"]

    run(server, scenario)


def test_a_new_coordinator_sees_to_what_the_former_has_left(server: Server, tmp_path: Path) -> None:
    async def scenario(client: EtcdClient) -> None:
        async with node(server, tmp_path, "node1") as one:
            await one.change("a", will())
        await client.transact((), (Put(DATA + b"bad", b"\xff"),))
        async with node(server, tmp_path, "node2") as other:
            await is_true(lambda: not other.coordinates)

            async def is_alone() -> bool:
                return await stored(client, NODES) == [b"node2"]

            await eventually(is_alone)
            assert other.published == []
            other.coordinates = True
            await is_true(lambda: other.published == [("a", b"gone")])
            assert other.keys.failures == 1, "the value that makes no sense"

    run(server, scenario)


def test_a_request_without_a_server_fails(server: Server, tmp_path: Path) -> None:
    async def scenario(_: EtcdClient) -> None:
        async with node(server, tmp_path, "node1") as one:
            server.kill()
            with pytest.raises(RequestError, match="etcd: "):
                await one.claim("a")

    run(server, scenario)

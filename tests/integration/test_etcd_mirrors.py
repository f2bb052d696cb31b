"""The control process's part in mirrored groups, with a real server: a leader whose process has ended is replaced while
its node still counts as running."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from fluxmq.control.etcd.client import EtcdClient
from fluxmq.control.etcd.messages import Get, Put
from fluxmq.control.etcd.mirrors import PREFIX, MirrorCoordinator, MirrorKeys
from fluxmq.control.etcd.wills import NODES
from fluxmq.control.peers import Peer
from fluxmq.ipc.conversation import Answered, RequestHandler
from fluxmq.ipc.messages import Body, ControlMessage, MessageBody
from fluxmq.ipc.mirrored_groups import (
    LOST,
    MIRROR_CHANGE,
    MIRROR_ENDED,
    MIRROR_LEAD,
    MIRRORS,
    MirrorChange,
    MirrorEnded,
    MirrorEpoch,
    MirrorLead,
)
from fluxmq.routing.topology.mirror_records import MirrorRecord, begun, removed
from tests.control_part import alone
from tests.etcd import Server, is_true, run, serving

pytestmark = pytest.mark.once

EVERYWHERE = ("node1", "node2", "node3")
GROUP = "mirrors-0123456789abcdef"
EPOCH = 5
RECORD = replace(begun(EVERYWHERE, 1, "always", "when-synced"), epoch=EPOCH)
"""Node1 leads, and all have everything."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("etcd")) as running:
        yield running


class Node:
    """A node of which only this part is there, and which does not coordinate."""

    def __init__(self, server: Server, name: str) -> None:
        self.name = name
        self._cluster = server.cluster
        self.keys: MirrorKeys

    def make(self, shards: Callable[[], list[Peer]]) -> MirrorKeys:
        """Make the part."""
        client = EtcdClient.of(self._cluster)
        coordinated = MirrorCoordinator(lambda: False, 0.0)
        return MirrorKeys(client, self.name, coordinated, shards, lambda _first: None)

    async def ask(self, kind: str, body: MessageBody) -> int:
        """Ask as its shard does; return the epoch of the answer."""
        answer = await self.keys.answer(ControlMessage(kind, 1, body.to_body()))
        return MirrorEpoch.from_body(answer).epoch

    async def ended(self, *reached: str, epoch: int = EPOCH, leader: str = "node1") -> int:
        """Say that the process of the leader has ended."""
        named = MirrorEnded(GROUP, epoch, leader, (self.name, *reached))
        return await self.ask(MIRROR_ENDED, named)


def told(_body: Body, answered: Answered) -> None:
    """Take the records, as a shard."""
    answered({})


@asynccontextmanager
async def nodes(
    server: Server, client: EtcdClient, folder: Path, record: MirrorRecord = RECORD
) -> AsyncIterator[list[Node]]:
    """All nodes, whose keys are there throughout, and the record of a group."""
    puts = [Put(NODES + name.encode(), b"1") for name in EVERYWHERE]
    await client.transact((), (*puts, Put(PREFIX + GROUP.encode(), record.encode())))
    one, two, three = made = [Node(server, name) for name in EVERYWHERE]
    commands: dict[str, RequestHandler] = {MIRRORS: told}
    async with (
        alone(folder / "1", one.make, commands) as one.keys,
        alone(folder / "2", two.make, commands) as two.keys,
        alone(folder / "3", three.make, commands) as three.keys,
    ):
        await is_true(lambda: all(each.keys.records.get(GROUP) == record for each in made))
        yield made


async def stored(client: EtcdClient) -> MirrorRecord:
    """The record as it is stored."""
    ((entry,),) = (await client.transact((), (Get(PREFIX + GROUP.encode()),))).entries
    return MirrorRecord.decode(entry.value)


def test_the_oldest_synchronised_mirror_leads_instead_of_a_leader_that_has_ended(
    server: Server, tmp_path: Path
) -> None:
    """S4-06: only once, however many nodes report it."""

    async def scenario(client: EtcdClient) -> None:
        async with nodes(server, client, tmp_path) as (_, two, three):
            assert await three.ended("node2") == EPOCH + 1
            after = await stored(client)
            assert after.leader == "node2"
            assert {each.node for each in after.members if each.synchronised} == {"node2", "node3"}
            assert await two.ended("node3") == 0
            assert await stored(client) == after
            assert (three.keys.promotions, two.keys.promotions) == (1, 0)

    run(server, scenario)


def test_a_mirror_that_cannot_be_reached_does_not_lead(server: Server, tmp_path: Path) -> None:
    async def scenario(client: EtcdClient) -> None:
        async with nodes(server, client, tmp_path) as (_, _, three):
            assert await three.ended() == EPOCH + 1
            assert (await stored(client)).leader == "node3"

    run(server, scenario)


def test_a_leader_that_was_replaced_does_without_no_mirror_and_leads_no_more(
    server: Server, tmp_path: Path
) -> None:
    """It may be there all the same: what it confirms is on every mirror that can lead."""

    async def scenario(client: EtcdClient) -> None:
        async with nodes(server, client, tmp_path) as (one, two, _):
            await two.ended("node3")
            after = await stored(client)
            lost = MirrorChange(GROUP, EPOCH, "node2", LOST)
            assert await one.ask(MIRROR_CHANGE, lost) == 0
            assert await one.ask(MIRROR_LEAD, MirrorLead(GROUP, EPOCH, False)) == 0
            assert await stored(client) == after

    run(server, scenario)


def test_a_mirror_that_the_leader_does_without_has_nobody_lead(
    server: Server, tmp_path: Path
) -> None:
    """The leader is there, or was when it confirmed what this mirror lacks."""

    async def scenario(client: EtcdClient) -> None:
        async with nodes(server, client, tmp_path) as (one, two, _):
            lost = MirrorChange(GROUP, EPOCH, "node2", LOST)
            assert await one.ask(MIRROR_CHANGE, lost) == EPOCH
            assert await two.ended("node3") == 0
            assert await stored(client) == removed(RECORD, "node2")

    run(server, scenario)


def test_a_leader_that_leads_again_is_not_replaced(server: Server, tmp_path: Path) -> None:
    """Its shard was started again, and has another epoch than the one that has ended."""

    async def scenario(client: EtcdClient) -> None:
        async with nodes(server, client, tmp_path) as (one, two, _):
            assert await one.ask(MIRROR_LEAD, MirrorLead(GROUP, EPOCH, False)) == EPOCH + 1
            after = await stored(client)
            assert await two.ended("node3") == 0
            assert await two.ended("node3", epoch=EPOCH + 1, leader="node3") == 0
            assert await stored(client) == after

    run(server, scenario)


def test_a_node_whose_key_is_not_there_does_not_lead(server: Server, tmp_path: Path) -> None:
    """Or the coordinator would take it for one that has ended, and have another one lead."""

    async def scenario(client: EtcdClient) -> None:
        async with nodes(server, client, tmp_path) as (_, two, three):
            two.keys.lives = three.keys.lives = frozenset({"node1", "node3"})
            assert await two.ended() == 0
            assert await three.ended("node2") == EPOCH + 1
            assert (await stored(client)).leader == "node3"

    run(server, scenario)

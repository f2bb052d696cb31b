"""The control process's part in mirrored groups, with a real server: what a leader gets that went on alone in a partition."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from fluxmq.control.etcd import mirrors
from fluxmq.control.etcd.client import EtcdClient
from fluxmq.control.etcd.messages import Changed, Get, Put
from fluxmq.control.etcd.mirrors import PREFIX, MirrorCoordinator, MirrorKeys, coordinator
from fluxmq.control.etcd.wills import NODES
from fluxmq.control.peers import Peer, RequestError
from fluxmq.ipc.conversation import Answered
from fluxmq.ipc.messages import ERROR_UNREACHABLE, Body, ControlMessage
from fluxmq.ipc.mirrored_groups import (
    ALONE,
    MIRROR_CHANGE,
    MIRROR_LEAD,
    MIRRORS,
    MirrorChange,
    MirrorEpoch,
    MirrorLead,
)
from fluxmq.routing.topology.mirror_records import MirrorRecord, begun
from fluxmq.settings.clustering import ClusterSettings
from tests.control_part import alone
from tests.etcd import Server, is_true, run, serving

pytestmark = pytest.mark.once

GROUP = "mirrors-0123456789abcdef"
KEY = PREFIX + GROUP.encode()
EPOCH = 4
BEGUN = replace(begun(("node1", "node2", "node3"), 1, "when-synced", "when-synced"), epoch=EPOCH)
SECONDS = 2.5


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path) as running:
        yield running


@asynccontextmanager
async def keys(
    server: Server, folder: Path, coordinates: bool = False, seconds: float = 0.0
) -> AsyncIterator[MirrorKeys]:
    """The part of node1."""

    def told(_body: Body, answered: Answered) -> None:
        answered({})

    def make(shards: Callable[[], list[Peer]]) -> MirrorKeys:
        client = EtcdClient.of(server.cluster)
        coordinated = MirrorCoordinator(lambda: coordinates, seconds)
        return MirrorKeys(client, "node1", coordinated, shards, lambda _first: None)

    async with alone(folder / "control", make, {MIRRORS: told}) as part:
        yield part


async def stored(client: EtcdClient) -> tuple[MirrorRecord, int]:
    """The record, and its revision."""
    ((*entries,),) = (await client.transact((), (Get(KEY),))).entries
    return MirrorRecord.decode(entries[0].value), entries[0].revision


async def asked(part: MirrorKeys, kind: str, body: MirrorChange | MirrorLead) -> int:
    """The epoch that a shard's request is answered with."""
    return MirrorEpoch.from_body(await part.answer(ControlMessage(kind, 1, body.to_body()))).epoch


def synchronised(record: MirrorRecord) -> list[str]:
    return [each.node for each in record.members if each.synchronised]


def test_a_leader_that_was_alone_does_without_all_others_by_one_change(
    server: Server, tmp_path: Path
) -> None:
    """S3-09: no earlier change of the record succeeds after it."""

    async def scenario(client: EtcdClient) -> None:
        before = await client.transact((), (Put(KEY, BEGUN.encode()),))
        async with keys(server, tmp_path) as part:
            wanted = MirrorChange(GROUP, EPOCH, "node1", ALONE)
            assert await asked(part, MIRROR_CHANGE, wanted) == EPOCH
            record, revision = await stored(client)
            assert synchronised(record) == ["node1"]
            assert record.epoch == EPOCH
            late = await client.transact(
                (Changed(KEY, before.revision),), (Put(KEY, BEGUN.encode()),)
            )
            assert not late.succeeded
            assert await asked(part, MIRROR_CHANGE, wanted) == EPOCH
            again, later = await stored(client)
            assert again == record
            assert later > revision, "it is put anew"

    run(server, scenario)


@pytest.mark.parametrize(
    "record", [replace(BEGUN, epoch=EPOCH + 1), replace(BEGUN, leader="node2", epoch=EPOCH + 1)]
)
def test_a_leader_that_was_replaced_is_refused(
    server: Server, tmp_path: Path, record: MirrorRecord
) -> None:
    async def scenario(client: EtcdClient) -> None:
        await client.transact((), (Put(KEY, record.encode()),))
        async with keys(server, tmp_path) as part:
            wanted = MirrorChange(GROUP, EPOCH, "node1", ALONE)
            assert await asked(part, MIRROR_CHANGE, wanted) == 0
            assert (await stored(client))[0] == record

    run(server, scenario)


def test_a_leader_that_was_alone_and_ended_leads_again_without_the_others(
    server: Server, tmp_path: Path
) -> None:
    """S3-09: unless a copy was declared the truth meanwhile."""

    async def scenario(client: EtcdClient) -> None:
        async with keys(server, tmp_path) as part:
            for forced, epoch in ((1, 0), (0, EPOCH + 1)):
                await client.transact((), (Put(KEY, replace(BEGUN, forced=forced).encode()),))
                wanted = MirrorLead(GROUP, EPOCH, False, True, 0)
                assert await asked(part, MIRROR_LEAD, wanted) == epoch
                expected = ["node1"] if epoch else ["node1", "node2", "node3"]
                assert synchronised((await stored(client))[0]) == expected

    run(server, scenario)


def test_a_shard_hears_that_etcd_cannot_be_reached(server: Server, tmp_path: Path) -> None:
    async def scenario(client: EtcdClient) -> None:
        await client.transact((), (Put(KEY, BEGUN.encode()),))
        async with keys(server, tmp_path) as part:
            await is_true(lambda: part.known)
            server.kill()
            with pytest.raises(RequestError) as refusal:
                await asked(part, MIRROR_CHANGE, MirrorChange(GROUP, EPOCH, "node1", ALONE))
            assert refusal.value.code == ERROR_UNREACHABLE

    run(server, scenario)


@pytest.mark.parametrize("seconds", [0.0, SECONDS])
def test_a_leader_gets_time_to_return_before_another_takes_its_place(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    """S3-09: only where leaders go on alone."""
    monkeypatch.setattr(mirrors, "LOOK_SECONDS", 0.1)

    async def scenario(client: EtcdClient) -> None:
        led = replace(BEGUN, leader="node2")
        await client.transact((), (Put(KEY, led.encode()), Put(NODES + b"node1", b"{}")))
        began = time.monotonic()
        async with keys(server, tmp_path, coordinates=True, seconds=seconds) as part:
            await is_true(lambda: part.known and part.records[GROUP].leader == "node1")
            assert time.monotonic() - began >= seconds

    run(server, scenario)
    for handling, expected in (("pause_minority", 0.0), ("autoheal", mirrors.RETURN_SECONDS)):
        cluster = ClusterSettings.model_validate({"cluster_partition_handling": handling})
        assert coordinator(cluster, lambda: True).seconds == expected

"""Bans of a cluster, with a real server of etcd: what holds on one node holds on all."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from fluxmq.auth.bans import Ban
from fluxmq.control.bans import Bans
from fluxmq.control.etcd import bans as of_etcd
from fluxmq.control.etcd.bans import BanKeys, key_of
from fluxmq.control.etcd.client import EtcdClient
from fluxmq.control.etcd.messages import Delete, Get, Put, end_of
from fluxmq.control.peers import RequestError
from fluxmq.ipc.door_messages import BanChanged
from fluxmq.ipc.messages import ERROR_AWAY, ControlMessage
from tests.etcd import Server, eventually, is_true, run, serving
from tests.unit.control.test_bans import Node, Process

pytestmark = pytest.mark.once


def failures_of(keys: BanKeys) -> float:
    """The value of the metric."""
    ((_, _, value),) = keys.samples()
    return value


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("etcd")) as running:
        yield running


class OtherNodes:
    """The other nodes of a cluster that are reached."""

    def __init__(self) -> None:
        self.bans: dict[str, Bans] = {}
        self.away: tuple[str, ...] = ()

    @property
    def nodes(self) -> Sequence[str]:
        return sorted(self.bans)

    async def ask_all(self, kind: str, body: Any, _seconds: float) -> list[Any]:
        found: list[Any] = []
        for name in self.nodes:
            if name in self.away:
                found.append(RequestError(ERROR_AWAY, "cannot be reached"))
            else:
                found.append(await self.bans[name].answer(ControlMessage(kind, 1, body)))
        return found


@asynccontextmanager
async def node(
    server: Server, folder: Path, name: str, others: OtherNodes, closes: int = 0
) -> AsyncIterator[tuple[Node, BanKeys]]:
    """A node of which only bans are there."""
    directory = folder / name
    directory.mkdir(exist_ok=True)
    made = Node(directory, Process("shard", closes=closes))
    await made.bans.load()
    keys = BanKeys(EtcdClient.of(server.cluster), name, made.bans)
    made.bans.share(keys, others)  # type: ignore[arg-type]
    keys.start()
    yield made, keys
    await keys.stop()
    made.thread.close()


async def told(of: Node, *expected: tuple[str, str]) -> None:
    """Wait until the processes of a node enforce these bans."""
    shard = of.processes[0]
    await is_true(lambda: bool(shard.lists) and sorted(shard.lists[-1]) == sorted(expected))


async def clear(client: EtcdClient) -> None:
    """Delete all bans."""
    ((*entries,),) = (
        await client.transact((), (Get(of_etcd.PREFIX, end_of(of_etcd.PREFIX)),))
    ).entries
    await client.transact((), tuple(Delete(each.key) for each in entries))


def test_a_ban_on_one_node_holds_on_all(server: Server, tmp_path: Path) -> None:
    """Its author is answered when it does; also when a node is away, which reads it later."""

    async def scenario(client: EtcdClient) -> None:
        await clear(client)
        others, none = OtherNodes(), OtherNodes()
        async with (
            node(server, tmp_path, "one", others, closes=2) as (one, _),
            node(server, tmp_path, "two", none, closes=3) as (two, _),
        ):
            others.bans = {"two": two.bans, "three": two.bans}
            others.away = ("three",)
            await told(one)
            await told(two)
            assert await one.ban("user", "eve") == BanChanged(5, ())
            assert two.processes[0].lists[-1] == [("user", "eve")]
            assert await two.list() == await one.list() == [Ban("user", "eve")]
            assert await two.unban("user", "eve") == BanChanged(3, ())
            await told(one)
            with pytest.raises(RequestError, match="is not banned"):
                await one.unban("user", "eve")
            await two.ban("client_id", "a/b")
            await told(one, ("client_id", "a/b"))
        assert json.loads(one.path.read_text()) == {
            "cluster": [{"kind": "client_id", "value": "a/b", "until": None, "reason": ""}]
        }

    run(server, scenario)


def test_a_node_starts_by_its_copy_and_catches_up(server: Server, tmp_path: Path) -> None:
    """A ban that was lifted meanwhile does not come back with it."""

    async def scenario(client: EtcdClient) -> None:
        await clear(client)
        others = OtherNodes()
        async with node(server, tmp_path, "one", others) as (one, _):
            await told(one)
            await one.ban("user", "eve")
            await one.ban("user", "bob")
        await client.transact((), (Delete(key_of(("user", "eve"))),))
        async with node(server, tmp_path, "one", others) as (one, _):
            assert one.bans.own == ()
            assert "bob" in {ban.value for ban in await one.list()}
            await told(one, ("user", "bob"))

    run(server, scenario)


def test_a_node_brings_its_bans_into_the_cluster(server: Server, tmp_path: Path) -> None:
    """Those that the cluster has already stay as they are there."""

    async def scenario(client: EtcdClient) -> None:
        await clear(client)
        key = key_of(("user", "eve"))
        await client.transact((), (Put(key, b'{"reason": "of the cluster"}'),))
        (tmp_path / "one").mkdir()
        alone = Node(tmp_path / "one", Process("shard"))
        await alone.bans.load()
        await alone.ban("user", "eve")
        await alone.ban("address", "192.0.2.0/24")
        alone.thread.close()
        others = OtherNodes()
        async with node(server, tmp_path, "one", others) as (one, _):
            await is_true(lambda: one.bans.own == ())
            found = {ban.value: ban.reason for ban in await one.list()}
            assert found == {"eve": "of the cluster", "192.0.2.0/24": ""}
        ((entry,),) = (
            await client.transact((), (Get(key_of(("address", "192.0.2.0/24"))),))
        ).entries
        assert (entry.value, entry.lease) == (b"{}", 0)

    run(server, scenario)


def test_a_ban_for_a_time_is_under_a_lease(server: Server, tmp_path: Path) -> None:
    """It vanishes with it, on all nodes."""

    async def scenario(client: EtcdClient) -> None:
        await clear(client)
        async with node(server, tmp_path, "one", OtherNodes()) as (one, _):
            one.now = 4_000_000_000.0
            await told(one)
            await one.ban("user", "eve", 50.0)
            ((entry,),) = (await client.transact((), (Get(key_of(("user", "eve"))),))).entries
            assert entry.value == b'{"until":4000000050.0}'
            assert entry.lease == 0, "that is too far away"
            one.now = time.time()
            await one.ban("user", "eve", 50.0)
            ((entry,),) = (await client.transact((), (Get(key_of(("user", "eve"))),))).entries
            remaining, _ = await client.keep_alive(entry.lease)
            assert 50 < remaining <= 51 + of_etcd.LEASE_EXTRA_SECONDS
            await client.revoke(entry.lease)
            await told(one)

    run(server, scenario)


def test_keys_that_make_no_sense_are_passed_over(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And of too many the oldest hold, on all nodes alike."""
    monkeypatch.setattr(of_etcd, "BANS_MAX", 2)

    async def scenario(client: EtcdClient) -> None:
        await clear(client)
        for wrong in (b"user/", b"host/a", b"user/\xff", b"address/eve"):
            await client.transact((), (Put(of_etcd.PREFIX + wrong, b"{}"),))
        await client.transact((), (Put(key_of(("user", "x")), b"["),))
        async with node(server, tmp_path, "one", OtherNodes()) as (one, keys):
            await told(one)
            for name in ("c", "b", "a"):
                await client.transact((), (Put(key_of(("user", name)), b"{}"),))
            await told(one, ("user", "b"), ("user", "c"))
            assert failures_of(keys) >= 5

    run(server, scenario)


def test_without_etcd_a_ban_is_refused(tmp_path: Path) -> None:
    """Not half made; what was known is enforced."""
    with serving(tmp_path) as server:

        async def scenario(client: EtcdClient) -> None:
            others = OtherNodes()
            async with node(server, tmp_path, "one", others) as (one, keys):
                await told(one)
                await one.ban("user", "eve")
                server.kill()
                with pytest.raises(RequestError, match="may or may not be applied"):
                    await one.ban("user", "bob")
                assert await one.list() == [Ban("user", "eve")]
                await is_true(lambda: failures_of(keys) > 1)
            async with node(server, tmp_path, "one", others) as (one, _):
                assert await one.list() == [Ban("user", "eve")]
                with pytest.raises(RequestError, match="not known yet") as refused:
                    await one.ban("user", "bob")
                assert refused.value.code == ERROR_AWAY
                server.start()
                await eventually(lambda: _banned(one))

        run(server, scenario)


async def _banned(one: Node) -> bool:
    try:
        await one.ban("user", "bob")
    except RequestError:
        return False
    return True

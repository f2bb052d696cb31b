"""The control process's part in the owners of client ids, with a real server: there is one at a time."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fluxmq.control.etcd import lease_pools, owners
from fluxmq.control.etcd.client import EtcdClient
from fluxmq.control.etcd.lease_pools import LeasePools
from fluxmq.control.etcd.messages import Get
from fluxmq.control.etcd.owners import OwnerIds, key_of
from fluxmq.control.peers import Peer, RequestError
from fluxmq.ipc.conversation import Answered
from fluxmq.ipc.messages import Body, ControlMessage
from fluxmq.ipc.owner_messages import (
    CLAIMS_MAX,
    OWNER_CLAIM,
    OWNER_TERM,
    FoundOwner,
    FoundOwners,
    OwnerKey,
    OwnerKeys,
    OwnerTerm,
    OwnerValue,
    decode_owner,
)
from tests.control_part import alone
from tests.etcd import PATIENCE, Server, eventually, is_true, run, serving

OPERATIONS_MAX = 300
"""Operations of a transaction: fewer than a shard asks for, claims and releases together."""

pytestmark = pytest.mark.once


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(lease_pools, "LEASE_SECONDS", 3)
    monkeypatch.setattr(owners, "KEEP_ALIVE_SECONDS", 0.3)
    with serving(tmp_path) as running:
        yield running


class Node:
    """A node of which only this part is there, and its shard's terms."""

    def __init__(self, ids: OwnerIds, terms: list[float]) -> None:
        self.ids = ids
        self.terms = terms

    async def claim(self, **fences: int) -> dict[str, FoundOwner]:
        keys = OwnerKeys(tuple(OwnerKey(*each) for each in fences.items()))
        body = await self.ids.answer(ControlMessage(OWNER_CLAIM, 1, keys.to_body()))
        found = FoundOwners.from_body(body)
        assert found.until > time.monotonic()
        return dict(zip(fences, found.owners, strict=True))

    async def release(self, **fences: int) -> None:
        keys = OwnerKeys((), tuple(OwnerKey(*each) for each in fences.items()))
        await self.ids.answer(ControlMessage(OWNER_CLAIM, 1, keys.to_body()))


@asynccontextmanager
async def node(server: Server, folder: Path, name: str, life: str = "1") -> AsyncIterator[Node]:
    terms: list[float] = []

    def term(body: Body, answered: Answered) -> None:
        terms.append(OwnerTerm.from_body(body).until)
        answered({})

    def make(shards: Callable[[], list[Peer]]) -> OwnerIds:
        return OwnerIds(EtcdClient.of(server.cluster), name, life, shards, OPERATIONS_MAX)

    async with alone(folder / f"{name}-{life}", make, {OWNER_TERM: term}) as ids:
        yield Node(ids, terms)


async def stored(client: EtcdClient, name: str) -> OwnerValue | None:
    ((*entries,),) = (await client.transact((), (Get(key_of(name)),))).entries
    return decode_owner(entries[0].value) if entries else None


def test_of_two_nodes_one_is_the_owner(server: Server, tmp_path: Path) -> None:
    """S2-05, S2-12: the key names it, as documented."""

    async def scenario(client: EtcdClient) -> None:
        async with node(server, tmp_path, "node1") as one, node(server, tmp_path, "node2") as two:
            found = await asyncio.gather(one.claim(a=0, b=0), two.claim(a=0, b=0))
            for name in ("a", "b"):
                first, second = found[0][name], found[1][name]
                assert [first.ours, second.ours].count(True) == 1
                assert first.revision == second.revision
                assert await stored(client, name) == OwnerValue(first.node, "1")

    run(server, scenario)


def test_an_owner_is_replaced_if_nothing_has_changed(server: Server, tmp_path: Path) -> None:
    async def scenario(client: EtcdClient) -> None:
        async with node(server, tmp_path, "node1") as one, node(server, tmp_path, "node2") as two:
            first = (await one.claim(a=0))["a"]
            again = (await one.claim(a=first.revision))["a"]
            assert (again.ours, again.revision > first.revision) == (True, True)
            assert (await two.claim(a=first.revision))["a"] == FoundOwner(
                "node1", "1", again.revision
            )
            taken = (await two.claim(a=again.revision))["a"]
            assert taken.ours
            assert not (await one.claim(a=again.revision))["a"].ours
            await one.release(a=again.revision)
            assert await stored(client, "a") == OwnerValue("node2", "1")
            await two.release(a=taken.revision)
            assert await stored(client, "a") is None
            assert (await two.claim(a=taken.revision))["a"] == FoundOwner()

    run(server, scenario)


def test_an_owner_may_be_looked_up_first(server: Server, tmp_path: Path) -> None:
    """S2-14: that costs no commit, and an id without an owner is claimed all the same."""

    async def scenario(client: EtcdClient) -> None:
        async with node(server, tmp_path, "node1") as one, node(server, tmp_path, "node2") as two:
            first = (await one.claim(a=0))["a"]
            await two.claim(b=0)
            keys = OwnerKeys((OwnerKey("a", 0, look=True),))
            before = (await client.transact((), (Get(b"x"),))).revision
            answer = await two.ids.answer(ControlMessage(OWNER_CLAIM, 1, keys.to_body()))
            assert FoundOwners.from_body(answer).owners == (
                FoundOwner("node1", "1", first.revision),
            )
            assert (await client.transact((), (Get(b"x"),))).revision == before
            keys = OwnerKeys(
                (OwnerKey("c", 0, look=True), OwnerKey("d", 0), OwnerKey("a", 0, look=True)),
                (OwnerKey("b", (await two.claim(b=0))["b"].revision),),
            )
            answer = await two.ids.answer(ControlMessage(OWNER_CLAIM, 1, keys.to_body()))
            assert await stored(client, "b") is None
            assert [each.ours for each in FoundOwners.from_body(answer).owners] == [
                True,
                True,
                False,
            ]

    run(server, scenario)


def test_claims_of_several_shards_share_a_transaction(server: Server, tmp_path: Path) -> None:
    """The one under way is finished first; as many as a transaction may have go together."""

    async def scenario(_client: EtcdClient) -> None:
        async with node(server, tmp_path, "node1") as one:
            await one.claim(warm=0)
            shards = [dict.fromkeys((f"{n}-{key}" for key in range(40)), 0) for n in range(8)]
            found = await asyncio.gather(*(one.claim(**each) for each in shards))
            owners = [owner for each in found for owner in each.values()]
            assert all(owner.ours for owner in owners)
            counts = Counter(owner.revision for owner in owners)
            assert sorted(counts.values()) == [40, 280]

    run(server, scenario)


def test_many_claims_succeed_but_for_those_that_fail(server: Server, tmp_path: Path) -> None:
    """Of many that are tried as one."""

    async def scenario(client: EtcdClient) -> None:
        async with node(server, tmp_path, "node1") as one, node(server, tmp_path, "node2") as two:
            names = [f"c{number}" for number in range(CLAIMS_MAX)]
            first = await one.claim(**dict.fromkeys(names[:3], 0))
            found = await two.claim(**dict.fromkeys(names, 0))
            assert [name for name in names if not found[name].ours] == names[:3]
            assert [found[name] for name in names[:3]] == [
                FoundOwner("node1", "1", first[name].revision) for name in names[:3]
            ]
            assert await stored(client, names[-1]) == OwnerValue("node2", "1")
            fences = {name: found[name].revision for name in names[3:]}
            await one.claim(**{names[3]: fences[names[3]]})
            await two.release(**fences)
            assert await stored(client, names[3]) == OwnerValue("node1", "1")
            assert await stored(client, names[4]) is None

    run(server, scenario)


def test_a_request_of_one_id_waits_for_another_one(server: Server, tmp_path: Path) -> None:
    """A shard is connected again while its former request is under way."""

    async def scenario(_client: EtcdClient) -> None:
        async with node(server, tmp_path, "node1") as one:
            found = await asyncio.gather(*(one.claim(a=0, b=0) for _ in range(3)))
            assert [each["a"].ours for each in found].count(True) == 1
            assert {each["a"].revision for each in found} == {found[0]["a"].revision}

    run(server, scenario)


def test_a_key_that_is_ours_is_put_anew(server: Server, tmp_path: Path) -> None:
    """The shard that put it has died, or an answer was lost."""

    async def scenario(_client: EtcdClient) -> None:
        async with node(server, tmp_path, "node1") as one:
            first = (await one.claim(a=0))["a"]
            found = (await one.claim(a=0))["a"]
            assert (found.ours, found.node, found.revision) == (False, "node1", first.revision)
            again = (await one.claim(a=found.revision))["a"]
            assert (again.ours, again.revision > first.revision) == (True, True)

    run(server, scenario)


def test_the_keys_of_a_node_that_has_ended_vanish(server: Server, tmp_path: Path) -> None:
    """S2-13: not before it knows that itself; and a later life does not take them for its own."""

    async def scenario(client: EtcdClient) -> None:
        async with node(server, tmp_path, "node1") as one:
            await one.claim(a=0)
            await is_true(lambda: bool(one.terms))
        until = one.terms[-1]
        async with node(server, tmp_path, "node1", "2") as again:
            found = (await again.claim(a=0))["a"]
            assert (found.ours, found.node, found.life) == (False, "node1", "1")

            async def vanished() -> bool:
                return await stored(client, "a") is None

            await eventually(vanished)
            assert time.monotonic() > until
            assert (await again.claim(a=0))["a"].ours

    run(server, scenario)


def test_terms_end_when_etcd_cannot_be_reached(server: Server, tmp_path: Path) -> None:
    async def scenario(_client: EtcdClient) -> None:
        async with node(server, tmp_path, "node1") as one:
            await one.claim(a=0)
            await is_true(lambda: len(one.terms) >= 3)
            assert one.terms == sorted(one.terms)
            server.kill()
            ended = time.monotonic()
            await is_true(lambda: time.monotonic() > max(one.terms))
            assert max(one.terms) < ended + 3
            with pytest.raises(RequestError, match="etcd"):
                await one.claim(b=0)
            server.start()

    run(server, scenario)


def test_a_lease_that_is_over_takes_no_keys(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first claim after that succeeds, and lasts."""
    monkeypatch.setattr(owners, "KEEP_ALIVE_SECONDS", 2 * PATIENCE)

    async def scenario(client: EtcdClient) -> None:
        async with node(server, tmp_path, "node1") as one:
            await one.claim(a=0)

            async def vanished() -> bool:
                return await stored(client, "a") is None

            await eventually(vanished)
            assert (await one.claim(b=0))["b"].ours
            assert [pool.lasts for pool in one.ids._pools._pools] == [False, True]

    run(server, scenario)


def test_a_node_serves_soon_after_etcd_is_back(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While no lease lasts, it does not wait for as long as between two keep-alives."""
    monkeypatch.setattr(owners, "KEEP_ALIVE_SECONDS", 2 * PATIENCE)

    async def scenario(_client: EtcdClient) -> None:
        server.kill()
        async with node(server, tmp_path, "node1") as one:
            await is_true(lambda: one.ids.failures > 0)
            assert not one.terms
            server.start()
            await is_true(lambda: bool(one.terms))

    run(server, scenario)


def test_a_lease_has_a_bounded_number_of_keys(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a lease that has ended are deleted at once, while others wait."""
    monkeypatch.setattr(lease_pools, "POOL_KEYS", CLAIMS_MAX)

    async def scenario(client: EtcdClient) -> None:
        async with node(server, tmp_path, "node1") as one:
            names = [f"c{number}" for number in range(3 * CLAIMS_MAX)]
            revisions: dict[str, int] = {}
            for at in range(0, len(names), CLAIMS_MAX):
                part = dict.fromkeys(names[at : at + CLAIMS_MAX], 0)
                revisions |= {
                    name: found.revision for name, found in (await one.claim(**part)).items()
                }
            assert [len(pool.keys) for pool in one.ids._pools._pools] == [CLAIMS_MAX] * 3
            await one.release(**{name: revisions[name] for name in names[:CLAIMS_MAX]})
            await is_true(lambda: len(one.ids._pools._pools) == 2)
            assert await stored(client, names[0]) is None
            assert await stored(client, names[-1]) is not None
            samples = {name: value for name, _, value in one.ids.samples()}
            assert samples["fluxmq_cluster_owned_client_ids"] == 2 * CLAIMS_MAX

    run(server, scenario)


def test_many_leases_are_kept_alive(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over few streams; of one that is over the keys are known, and the others last."""
    monkeypatch.setattr(lease_pools, "POOL_KEYS", 1)
    monkeypatch.setattr(lease_pools, "ALIVE_OF_STREAM", 4)

    async def scenario(client: EtcdClient) -> None:
        failures: list[str] = []
        pools: LeasePools[str] = LeasePools(client, lambda what, _: failures.append(what))
        for number in range(10):
            pools.enter(f"c{number}", await pools.take(1))
        before, over = pools.until, pools.of("c5")
        assert over is not None
        await client.revoke(over.lease)
        assert await pools.keep_alive() == ["c5"]
        assert (len(pools), failures) == (9, [])
        assert pools.until > before

    run(server, scenario)

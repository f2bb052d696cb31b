"""The client of etcd and the election of the node that coordinates, with a real server."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from pathlib import Path

import pytest

from fluxmq.control.etcd import election
from fluxmq.control.etcd.client import CompactedError, EtcdClient, EtcdError, credentials_of
from fluxmq.control.etcd.election import HOLD_SECONDS, LEADER_KEY, LEASE_SECONDS, Election
from fluxmq.control.etcd.messages import Change, Changed, Created, Delete, Get, Put, Watched, end_of
from fluxmq.settings.clustering import reachable
from tests.broker import HOST, free_ports
from tests.chaos.settings import make_certificates
from tests.etcd import Server, answers, eventually, is_true, run, serving

pytestmark = pytest.mark.once


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path) as running:
        yield running


def elector(server: Server, node: str) -> Election:
    return Election(EtcdClient.of(server.cluster), node)


def test_a_transaction_depends_on_what_keys_are(server: Server) -> None:
    async def scenario(client: EtcdClient) -> None:
        absent = Created(b"key", 0)
        made = await client.transact((absent,), (Put(b"key", b"one"),), (Get(b"key"),))
        assert (made.succeeded, made.entries) == (True, ())
        found = await client.transact((absent,), (Put(b"key", b"two"),), (Get(b"key"),))
        ((entry,),) = found.entries
        assert not found.succeeded
        assert entry == (b"key", b"one", made.revision, 0)
        changed = Changed(b"key", entry.revision)
        both = (Put(b"key", b"three"), Put(b"kez", b""), Get(b"k", end_of(b"k")))
        after = await client.transact((changed,), both)
        assert after.succeeded
        assert [(each.key, each.value) for each in after.entries[0]] == [
            (b"key", b"three"),
            (b"kez", b""),
        ]
        assert not (await client.transact((changed,), both)).succeeded

    run(server, scenario)


def test_a_key_vanishes_with_its_lease(server: Server) -> None:
    async def scenario(client: EtcdClient) -> None:
        revoked, forgotten = await client.grant(60), await client.grant(1)
        puts = Put(b"revoked", b"", revoked), Put(b"forgotten", b"", forgotten)
        made = await client.transact((), puts)
        seconds, revision = await client.keep_alive(revoked)
        assert 0 < seconds <= 60
        assert revision == made.revision
        await client.revoke(revoked)
        gone = []
        async with aclosing(client.watch(b"a", b"z", made.revision + 1)) as watching:
            async for found in watching:
                gone += [(each.deleted, each.entry.key) for each in found.changes]
                if len(gone) == 2:
                    break
        assert gone == [(True, b"revoked"), (True, b"forgotten")]
        assert (await client.keep_alive(forgotten))[0] == 0
        with pytest.raises(EtcdError, match="requested lease not found"):
            await client.revoke(forgotten)

    run(server, scenario)


def test_a_watch_yields_all_changes_from_a_revision_on(server: Server) -> None:
    async def scenario(client: EtcdClient) -> None:
        first = (await client.transact((), (Put(b"key", b"0"),))).revision
        for number in range(1, 10):
            await client.transact((), (Put(b"key", b"%d" % number),))
        seen: list[tuple[bytes, int]] = []
        async with aclosing(client.watch(b"key", b"", first)) as watching:
            async for found in watching:
                seen += [(each.entry.value, each.entry.revision) for each in found.changes]
                if len(seen) == 10:
                    await client.transact((), (Put(b"key", b"last"),))
                if len(seen) == 11:
                    break
        expected = [*(b"%d" % number for number in range(10)), b"last"]
        assert seen == [(value, first + at) for at, value in enumerate(expected)]
        await client.compact(first + 5)
        late = client.watch(b"key", b"", first)
        assert not (await anext(late)).changes  # it says first that the watch is there
        with pytest.raises(CompactedError, match=str(first + 5)):
            await anext(late)

    run(server, scenario)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_member_and_node_show_each_other_certificates(tmp_path: Path) -> None:
    make_certificates(tmp_path, 2)
    files = {
        "tls_cert_file": str(tmp_path / "node1.pem"),
        "tls_key_file": str(tmp_path / "node1.key"),
        "tls_ca_file": str(tmp_path / "ca.pem"),
    }

    async def scenario(client: EtcdClient) -> None:
        assert (await client.transact((), (Get(b"x"),))).succeeded
        elsewhere = trusted.cluster.model_copy(update={"node_id": "node2"})
        for other in (EtcdClient.of(elsewhere), EtcdClient([trusted.address])):
            assert not await answers(other)
            await other.close()

    with serving(tmp_path, tls_enabled=True, **files) as trusted:
        run(trusted, scenario)


async def next_change(watching: AsyncIterator[Watched]) -> Change:
    """The next change that a watch tells of."""
    async for found in watching:
        if found.changes:
            return found.changes[0]
    raise AssertionError("the watch has ended")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_new_certificates_are_for_new_requests(tmp_path: Path) -> None:
    """What is under way goes on, also while the new certificates are no good."""
    for folder in ("ours", "other"):
        (tmp_path / folder).mkdir()
        make_certificates(tmp_path / folder, 1)

    def files(of_certificate: str) -> dict[str, str]:
        return {
            "tls_cert_file": str(tmp_path / of_certificate / "node1.pem"),
            "tls_key_file": str(tmp_path / of_certificate / "node1.key"),
            "tls_ca_file": str(tmp_path / "ours" / "ca.pem"),
        }

    async def scenario(client: EtcdClient) -> None:
        ours = credentials_of(trusted.cluster)
        transport = trusted.cluster.transport.model_copy(update=files("other"))
        other = credentials_of(trusted.cluster.model_copy(update={"transport": transport}))
        assert ours is not None
        assert other is not None
        revision = (await client.transact((), (Put(b"a", b""),))).revision
        second = EtcdClient.of(trusted.cluster)
        async with aclosing(client.watch(b"a", b"b", revision)) as watching:
            assert (await next_change(watching)).entry.key == b"a"
            client.renew(other)
            assert not await answers(client)
            await second.transact((), (Put(b"aa", b""),))
            assert (await next_change(watching)).entry.key == b"aa"
            client.renew(ours)
            assert await answers(client)
            await second.transact((), (Delete(b"aa"),))
            assert (await next_change(watching)).deleted
        await second.close()

    with serving(tmp_path, tls_enabled=True, **files("ours")) as trusted:
        run(trusted, scenario)


def test_an_endpoint_that_fails_is_left_for_the_next(server: Server) -> None:
    async def scenario(_: EtcdClient) -> None:
        (port,) = free_ports(1)
        client = EtcdClient([f"{HOST}:{port}", server.address])
        with pytest.raises(EtcdError):
            await client.transact((), (Get(b"x"),))
        assert (await client.transact((), (Get(b"x"),))).succeeded
        await client.close()

    run(server, scenario)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("0.0.0.0:2379", "127.0.0.1:2379"),
        (":2379", "127.0.0.1:2379"),
        ("[::]:2379", "[::1]:2379"),
        ("10.0.0.1:2379", "10.0.0.1:2379"),
    ],
)
def test_an_address_for_all_interfaces_is_reached_on_loopback(address: str, expected: str) -> None:
    assert reachable(address) == expected


def test_one_node_leads_until_it_stops(server: Server) -> None:
    """S2-10."""

    async def scenario(client: EtcdClient) -> None:
        first, second = elector(server, "node1"), elector(server, "node2")
        first.start()
        await is_true(lambda: first.leads)
        second.start()
        await is_true(lambda: second.leader == "node1")
        assert not second.leads
        ((entry,),) = (await client.transact((), (Get(LEADER_KEY),))).entries
        assert entry.value == b"node1"
        assert entry.lease
        began = time.monotonic()
        await first.stop()
        assert first.leader == ""
        await is_true(lambda: second.leads)
        assert time.monotonic() < began + LEASE_SECONDS / 2  # it need not wait for a lease to end
        await second.stop()

    run(server, scenario)


def test_of_nodes_that_compete_at_once_one_leads(server: Server) -> None:
    async def scenario(client: EtcdClient) -> None:
        for _ in range(5):
            nodes = [elector(server, f"node{number}") for number in range(3)]
            for each in nodes:
                each.start()
            await is_true(lambda: all(each.leader for each in nodes))  # noqa: B023 - of this round
            assert [each.leads for each in nodes].count(True) == 1
            assert len({each.leader for each in nodes}) == 1
            for each in nodes:
                await each.stop()

    run(server, scenario)


def test_a_node_that_restarts_need_not_wait_for_its_own_lease(server: Server) -> None:
    async def scenario(client: EtcdClient) -> None:
        lease = await client.grant(60)  # that of an earlier process, which was killed
        await client.transact((), (Put(LEADER_KEY, b"node1", lease),))
        other, again = elector(server, "node2"), elector(server, "node1")
        other.start()
        await is_true(lambda: other.leader == "node1")
        again.start()
        await is_true(lambda: again.leads != other.leads)
        await other.stop()
        await again.stop()

    run(server, scenario)


def test_the_leader_compacts(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(election, "KEEP_ALIVE_SECONDS", 0.05)
    monkeypatch.setattr(election, "COMPACT_SECONDS", 0.1)
    monkeypatch.setattr(election, "HISTORY_SECONDS", 0.2)

    async def scenario(client: EtcdClient) -> None:
        first = (await client.transact((), (Put(b"key", b"0"),))).revision
        await client.transact((), (Put(b"key", b"1"),))
        leader = elector(server, "node1")
        leader.start()

        async def is_compacted() -> bool:
            async with aclosing(client.watch(b"key", b"", first)) as watching:
                try:
                    async for found in watching:
                        if found.changes:
                            break
                except CompactedError:
                    return True
            return False

        await eventually(is_compacted)
        ((entry,),) = (await client.transact((), (Get(b"key"),))).entries
        assert entry.value == b"1"
        await leader.stop()

    run(server, scenario)


def test_a_leader_that_etcd_does_not_hear_from_gives_up_before_its_lease_ends(
    server: Server,
) -> None:
    async def scenario(client: EtcdClient) -> None:
        leader = elector(server, "node1")
        leader.start()
        await is_true(lambda: leader.leads)
        stopped = time.monotonic()
        server.signal(signal.SIGSTOP)
        await is_true(lambda: not leader.leads)
        assert time.monotonic() < stopped + (HOLD_SECONDS + LEASE_SECONDS) / 2
        await is_true(lambda: leader.failures > 0)
        assert {name: value for name, _, value in leader.samples()} == {
            "fluxmq_etcd_reachable": 0.0,
            "fluxmq_etcd_leader": 0.0,
            "fluxmq_etcd_revision": float(leader.revision),
            "fluxmq_etcd_failures_total": 1.0,
        }
        server.signal(signal.SIGCONT)
        await is_true(lambda: leader.leads)
        await leader.stop()

    run(server, scenario)


def test_an_election_goes_on_when_etcd_is_back(server: Server) -> None:
    async def scenario(client: EtcdClient) -> None:
        first, second = elector(server, "node1"), elector(server, "node2")
        first.start()
        await is_true(lambda: first.leads)
        second.start()
        await is_true(lambda: second.leader == "node1")
        server.kill()
        await is_true(lambda: not first.leader and not second.leader)
        server.start()
        await is_true(lambda: first.leader == second.leader != "" and first.leads != second.leads)
        await first.stop()
        await second.stop()

    run(server, scenario)

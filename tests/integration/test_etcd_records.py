"""The control process's part in the record of subscriptions and consumers, with a real server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fluxmq.control.etcd import lease_pools, records
from fluxmq.control.etcd.client import EtcdClient
from fluxmq.control.etcd.messages import Delete, Get, Put, end_of
from fluxmq.control.etcd.metadata_keys import FLAT_MAX
from fluxmq.control.etcd.owners import key_of
from fluxmq.control.etcd.records import RecordKeys
from fluxmq.control.peers import Peer, RequestError
from fluxmq.ipc.conversation import Answered
from fluxmq.ipc.messages import Body, ControlMessage
from fluxmq.ipc.owner_messages import OwnerValue, encode_owner
from fluxmq.ipc.record_messages import (
    RECORD_AGAIN,
    RECORD_CHANGE,
    RECORDS_MAX,
    ConsumerChange,
    ConsumerValue,
    RecordChanges,
    RefusedRecords,
    SubscriptionChange,
    SubscriptionValue,
)
from tests.control_part import alone
from tests.etcd import Server, eventually, is_true, run, serving

pytestmark = pytest.mark.once


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(lease_pools, "LEASE_SECONDS", 3)
    monkeypatch.setattr(records, "KEEP_ALIVE_SECONDS", 0.3)
    with serving(tmp_path) as running:
        yield running


class Node:
    """A node of which only this part is there, and how often its shard was asked to tell everything."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.asked = 0
        self.keys: RecordKeys

    def again(self, _body: Body, answered: Answered) -> None:
        self.asked += 1
        answered({})

    async def tell(
        self,
        *subscriptions: tuple[str, str],
        gone: tuple[tuple[str, str], ...] = (),
        consumers: tuple[ConsumerChange, ...] = (),
        shard: int = 0,
        anew: bool = False,
    ) -> tuple[str, ...]:
        """Tell of subscriptions that have come and gone; return the clients that were refused."""
        value = SubscriptionValue(self.name, 1)
        changes = [SubscriptionChange(*each, value) for each in subscriptions]
        changes += [SubscriptionChange(*each) for each in gone]
        body = RecordChanges(shard, anew, tuple(changes), consumers).to_body()
        answer = await self.keys.answer(ControlMessage(RECORD_CHANGE, 1, body))
        return RefusedRecords.from_body(answer).clients


@asynccontextmanager
async def node(server: Server, folder: Path, name: str, life: str = "1") -> AsyncIterator[Node]:
    made = Node(name)

    def make(shards: Callable[[], list[Peer]]) -> RecordKeys:
        return RecordKeys(EtcdClient.of(server.cluster), name, life, shards, FLAT_MAX)

    async with alone(folder / f"{name}-{life}", make, {RECORD_AGAIN: made.again}) as made.keys:
        yield made


async def own(client: EtcdClient, node: str, *names: str, life: str = "1") -> None:
    """Make a node the owner of client ids."""
    value = encode_owner(OwnerValue(node, life))
    await client.transact((), tuple(Put(key_of(name), value) for name in names))


async def stored(client: EtcdClient) -> dict[str, bytes]:
    """Everything that is recorded."""
    found = await client.transact((), (Get(b"/mqtt/q", end_of(b"/mqtt/s")),))
    ((*entries,),) = found.entries
    return {
        each.key.decode(): each.value
        for each in entries
        if not each.key.startswith(b"/mqtt/sessions/")
    }


def test_subscriptions_have_the_documented_keys(server: Server, tmp_path: Path) -> None:
    """S1-06, S2-02, S2-06: a client id is one part of the key, whatever is in it."""

    async def scenario(client: EtcdClient) -> None:
        async with node(server, tmp_path, "node1") as one:
            await own(client, "node1", "c", "a/b%")
            assert await one.tell(("c", "t/#"), ("c", "$share/g/+/é"), ("a/b%", "t")) == ()
            assert await stored(client) == {
                "/mqtt/subscriptions/c/t/#": b'{"node":"node1","qos":1}',
                "/mqtt/subscriptions/c/$share/g/+/é": b'{"node":"node1","qos":1}',
                "/mqtt/subscriptions/a%2Fb%25/t": b'{"node":"node1","qos":1}',
            }
            await one.tell(gone=(("c", "t/#"), ("a/b%", "t"), ("a/b%", "never")))
            assert list(await stored(client)) == ["/mqtt/subscriptions/c/$share/g/+/é"]
            samples = {name: value for name, _, value in one.keys.samples()}
            assert samples["fluxmq_cluster_records"] == 1

    run(server, scenario)


def test_only_the_owner_records_subscriptions(server: Server, tmp_path: Path) -> None:
    """S2-12: of the life in which it is the owner."""

    async def scenario(client: EtcdClient) -> None:
        async with node(server, tmp_path, "node1") as one, node(server, tmp_path, "node2") as two:
            await own(client, "node1", "c")
            await own(client, "node1", "d", life="0")
            assert await two.tell(("c", "t"), ("e", "t")) == ("c", "e")
            assert await one.tell(("c", "t"), ("d", "t")) == ("d",)
            assert list(await stored(client)) == ["/mqtt/subscriptions/c/t"]

    run(server, scenario)


def test_a_former_owner_deletes_nothing_of_the_next_one(server: Server, tmp_path: Path) -> None:
    async def scenario(client: EtcdClient) -> None:
        async with node(server, tmp_path, "node1") as one, node(server, tmp_path, "node2") as two:
            await own(client, "node1", "c")
            await one.tell(("c", "t"), ("c", "u"))
            await own(client, "node2", "c")
            await two.tell(("c", "t"))
            await one.tell(gone=(("c", "t"), ("c", "u")))
            assert await stored(client) == {
                "/mqtt/subscriptions/c/t": b'{"node":"node2","qos":1}',
            }
            await two.tell(("c", "u"), shard=1)
            await two.tell(gone=(("c", "u"),), shard=0)
            assert len(await stored(client)) == 2

    run(server, scenario)


def test_consumers_have_the_documented_keys(server: Server, tmp_path: Path) -> None:
    """S2-07, S2-25: consumers of all nodes are found by the queue."""

    async def scenario(client: EtcdClient) -> None:
        async with node(server, tmp_path, "node1") as one, node(server, tmp_path, "node2") as two:
            first = ConsumerChange("vhost/orders", "billing", "c", ConsumerValue("node1", 0))
            second = ConsumerChange("vhost/orders", "", "1:2:tag", ConsumerValue("node2", 1))
            await one.tell(consumers=(first,))
            await two.tell(consumers=(second,))
            assert await stored(client) == {
                "/mqtt/queue-consumers/vhost%2Forders/billing/c": b'{"node":"node1","shard":0}',
                "/mqtt/queue-consumers/vhost%2Forders//1:2:tag": b'{"node":"node2","shard":1}',
            }
            await two.tell(consumers=(ConsumerChange("vhost/orders", "billing", "c"),))
            await one.tell(consumers=(ConsumerChange("vhost/orders", "billing", "c"),))
            assert len(await stored(client)) == 1

    run(server, scenario)


def test_a_shard_that_begins_anew_has_told_nothing(server: Server, tmp_path: Path) -> None:
    """Sessions without a disk have ended with it."""

    async def scenario(client: EtcdClient) -> None:
        async with node(server, tmp_path, "node1") as one:
            await own(client, "node1", "c", "d")
            many = [("c", f"t/{number}") for number in range(2 * RECORDS_MAX)]
            await one.tell(*many[:RECORDS_MAX])
            await one.tell(*many[RECORDS_MAX:])
            await one.tell(("d", "t"), shard=1)
            await one.tell(("c", "again"), anew=True)
            assert set(await stored(client)) == {
                "/mqtt/subscriptions/c/again",
                "/mqtt/subscriptions/d/t",
            }

    run(server, scenario)


def test_the_record_of_a_node_that_has_ended_vanishes(server: Server, tmp_path: Path) -> None:
    """S2-13."""

    async def scenario(client: EtcdClient) -> None:
        async with node(server, tmp_path, "node1") as one, node(server, tmp_path, "node2") as two:
            await own(client, "node1", "c")
            await own(client, "node2", "d")
            await one.tell(("c", "t"))
            await two.tell(("d", "t"))
            await one.keys.stop()

            async def vanished() -> bool:
                return list(await stored(client)) == ["/mqtt/subscriptions/d/t"]

            await eventually(vanished)

    run(server, scenario)


def test_shards_tell_everything_when_leases_were_lost(server: Server, tmp_path: Path) -> None:
    async def scenario(client: EtcdClient) -> None:
        async with node(server, tmp_path, "node1") as one:
            await own(client, "node1", "c")
            await one.tell(("c", "t"))
            lease = (
                (await client.transact((), (Get(b"/mqtt/subscriptions/c/t"),))).entries[0][0].lease
            )
            await client.revoke(lease)
            assert await stored(client) == {}
            await is_true(lambda: one.asked == 1)
            assert not len(one.keys._pools)
            await one.tell(("c", "t"))
            assert len(await stored(client)) == 1

    run(server, scenario)


def test_a_failure_is_answered_and_counted(server: Server, tmp_path: Path) -> None:
    async def scenario(client: EtcdClient) -> None:
        async with node(server, tmp_path, "node1") as one:
            await own(client, "node1", "c")
            await one.tell(("c", "t"))
            await client.transact((), (Delete(b"/mqtt/subscriptions/c/t"),))
            server.kill()
            with pytest.raises(RequestError, match="etcd"):
                await one.tell(("c", "u"))
            assert one.keys.failures >= 1
            server.start()

            async def told() -> bool:
                try:
                    return await one.tell(("c", "u")) == ()
                except RequestError:
                    return False

            await eventually(told)
            assert list(await stored(client)) == ["/mqtt/subscriptions/c/u"]

    run(server, scenario)

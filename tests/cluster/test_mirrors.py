"""Mirrored classic queues on three nodes: what is confirmed is on every mirror, another node leads when the
leader's has ended, and a node that returns is a mirror again.

Longer than 500 lines because all cases share one cluster, which takes long to start."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from pika.adapters.blocking_connection import (  # type: ignore[import-untyped]
    BlockingChannel,
)

from fluxmq.control.etcd.client import EtcdClient
from fluxmq.control.etcd.messages import Change, Get, end_of
from fluxmq.control.etcd.mirrors import PREFIX
from fluxmq.control.etcd.wills import NODES as LIVES
from fluxmq.routing.topology.mirror_records import MirrorMember, MirrorRecord
from fluxmq.storage.directory import DataPaths
from tests.broker import HOST
from tests.cluster.nodes import NODES, Cluster, Node
from tests.cluster.sides import channel_of
from tests.conformance.client import eventually

pytestmark = pytest.mark.once

SETTINGS: dict[str, Any] = {}
SECONDS = 60.0
HA_ALL = ("set_policy", "ha-all", r"^ha\.", '{"ha-mode":"all"}')


def records(node: Node) -> dict[str, MirrorRecord]:
    """The records of mirrored groups, as a node's member of etcd has them."""

    async def read() -> dict[str, MirrorRecord]:
        client = EtcdClient([f"{HOST}:{node.etcd_port}"])
        try:
            ((*found,),) = (await client.transact((), (Get(PREFIX, end_of(PREFIX)),))).entries
        finally:
            await client.close()
        return {
            each.key.removeprefix(PREFIX).decode(): MirrorRecord.decode(each.value)
            for each in found
        }

    return asyncio.run(read())


def revision_of(node: Node) -> int:
    """The number of the last change of anything in etcd."""

    async def read() -> int:
        client = EtcdClient([f"{HOST}:{node.etcd_port}"])
        try:
            return (await client.transact((), (Get(PREFIX),))).revision
        finally:
            await client.close()

    return asyncio.run(read())


def ended_before(node: Node, group: str, leader: str, revision: int) -> list[str]:
    """The nodes whose keys have gone since then before another node than ``leader`` came to lead a group."""

    async def changes() -> AsyncGenerator[Change]:
        client = EtcdClient([f"{HOST}:{node.etcd_port}"])
        watch = client.watch(PREFIX, end_of(LIVES), revision + 1)
        try:
            async with asyncio.timeout(SECONDS), contextlib.aclosing(watch) as watching:
                async for message in watching:
                    for each in message.changes:
                        yield each
        finally:
            await client.close()

    async def read() -> list[str]:
        ended: list[str] = []
        async with contextlib.aclosing(changes()) as found:
            async for deleted, (key, value, *_) in found:
                if deleted:
                    ended.append(key.removeprefix(LIVES).decode())
                    continue
                of_group = key == PREFIX + group.encode()
                if of_group and MirrorRecord.decode(value).leader != leader:
                    return ended
        raise AssertionError("no other node leads")

    return asyncio.run(read())


def on_all(node: Node) -> MirrorRecord:
    """The record of the only group on all nodes."""
    (found,) = [each for each in records(node).values() if len(each.members) == len(NODES)]
    return found


class Traffic(threading.Thread):
    """A client that publishes with confirms and consumes what it has published, until ``finish``."""

    def __init__(self, node: Node, queue: str, **arguments: int) -> None:
        super().__init__(daemon=True)
        self._node = node
        self._queue = queue
        self._arguments = {name.replace("_", "-"): each for name, each in arguments.items()}
        self._ended = threading.Event()
        self.confirmed = 0
        self.got: list[int] = []
        self.longest = 0.0
        """Seconds between two confirmations, at most."""
        self.cancelled = False

    def run(self) -> None:
        """Publish and consume."""
        with channel_of(self._node) as channel:
            channel.basic_qos(prefetch_count=50)
            channel.basic_consume(self._queue, self._take, arguments=self._arguments)
            channel.add_on_cancel_callback(lambda _frame: setattr(self, "cancelled", True))
            last = time.monotonic()
            while not self._ended.is_set():
                channel.basic_publish("", self._queue, b"%d" % self.confirmed)
                self.confirmed += 1
                now = time.monotonic()
                self.longest, last = max(self.longest, now - last), now
                channel.connection.process_data_events(0)
            deadline = time.monotonic() + SECONDS
            while len(set(self.got)) < self.confirmed and time.monotonic() < deadline:
                channel.connection.process_data_events(0.05)

    def _take(self, channel: BlockingChannel, method: Any, _properties: Any, body: bytes) -> None:
        number = int(body)
        if number in self.got[-200:]:
            assert method.redelivered, number
        else:
            self.got.append(number)
        channel.basic_ack(method.delivery_tag)

    def finish(self) -> None:
        """End, and check that every message has come, in order, and again only if it was not
        acknowledged in time."""
        self._ended.set()
        self.join(2 * SECONDS)
        assert not self.is_alive()
        assert not self.cancelled
        assert self.got == list(range(self.confirmed))


def taken(channel: BlockingChannel, queue: str) -> tuple[int, bytes] | None:
    """A message that basic.get has returned, with its number; None if there was none."""
    method, _properties, body = channel.basic_get(queue)
    return None if method is None else (method.delivery_tag, body)


def row_of(node: Node, queue: str) -> dict[str, Any]:
    """The row of a queue as a node lists it."""
    columns = ("name", "policy", "pid", "mirror_pids", "synchronised_mirror_pids", "messages")
    rows = json.loads(node.broker.control("list_queues", "--formatter", "json", *columns))
    (found,) = [row for row in rows if row["name"] == queue]
    return dict(found)


def test_policies_mirror_queues_in_use_and_end_that(cluster: Cluster) -> None:
    """S3-05, S4-08, S4-09, S4-20, S4-34, S4-53, S4-54, S4-74, S4-76: the queue is in use meanwhile."""
    first, *_ = cluster.nodes
    name = "two.used"
    with channel_of(first) as channel:
        channel.queue_declare(name, durable=True)
    here = Traffic(first, name)
    here.start()
    eventually(lambda: here.confirmed > 20, "it is used", SECONDS)
    assert row_of(first, name)["mirror_pids"] in (None, "")
    definition = '{"ha-mode":"exactly","ha-params":2,"ha-sync-mode":"automatic"}'
    first.broker.control("set_policy", "ha-two", r"^two\.", definition)

    def mirrored() -> bool:
        row = row_of(first, name)
        return bool(row["synchronised_mirror_pids"])

    eventually(mirrored, "it has a mirror", SECONDS)
    assert row_of(first, name)["policy"] == "ha-two"
    confirmed = here.confirmed
    eventually(lambda: here.confirmed > confirmed + 20, "it is used", SECONDS)
    first.broker.control("clear_policy", "ha-two")
    eventually(lambda: not mirrored(), "it has no mirror any more", SECONDS)
    confirmed = here.confirmed
    eventually(lambda: here.confirmed > confirmed + 20, "it is used", SECONDS)
    here.finish()
    print(f"{here.confirmed} confirmed, longest pause {here.longest * 1000:.0f} ms")


def test_a_queue_that_is_never_empty_gets_its_mirror_once_older_messages_are_consumed(
    cluster: Cluster,
) -> None:
    """S4-51, S4-52, S4-75: nobody asks for it, and new messages are there all the time."""
    first, *_ = cluster.nodes
    name, older = "manual.used", 300

    def mirrors() -> tuple[int, int]:
        row = row_of(first, name)
        assert row["messages"] >= older
        return len(row["mirror_pids"] or ()), len(row["synchronised_mirror_pids"] or ())

    with channel_of(first) as channel:
        channel.queue_declare(name, durable=True)
        for number in range(older):
            channel.basic_publish("", name, b"%d" % number)
        first.broker.control(
            "set_policy", "ha-manual", r"^manual\.", '{"ha-mode":"exactly","ha-params":2}'
        )
        eventually(lambda: mirrors() == (1, 0), "its mirror lacks messages", SECONDS)
        consumed: list[bytes] = []

        def synchronised() -> bool:
            for _ in range(older // 10):
                channel.basic_publish("", name, b"%d" % (older + len(consumed)))
                # For a moment, while the queue changes its group, the answer is that it is empty.
                got = eventually(lambda: taken(channel, name), "a message", SECONDS)
                consumed.append(got[1])
                channel.basic_ack(got[0])
            return mirrors() == (1, 1)

        eventually(synchronised, "its mirror is synchronised", SECONDS)
        assert len(consumed) >= older
        assert consumed == [b"%d" % number for number in range(len(consumed))]
        print(f"synchronised when {len(consumed)} of {len(consumed) + older} were consumed")


def test_what_was_confirmed_survives_the_leader_and_it_returns_as_a_mirror(
    cluster: Cluster,
) -> None:
    """S4-02, S4-06, S4-14, S4-35, S4-44, S4-45, S4-47, S4-61, S3-03."""
    first, second, third = cluster.nodes
    first.broker.control(*HA_ALL)
    with channel_of(first) as channel:
        channel.queue_declare("ha.kept", durable=True)
        for number in range(500):
            channel.basic_publish("", "ha.kept", b"%d" % number)
    record = on_all(second)
    assert record.leader == first.name
    assert {each.node for each in record.members} == set(NODES)
    assert all(each.synchronised for each in record.members)
    first.kill()
    with channel_of(second) as channel:

        def promoted() -> bool:
            return on_all(second).leader != first.name

        eventually(promoted, "another node leads", SECONDS)
        for number in range(500, 600):
            channel.basic_publish("", "ha.kept", b"%d" % number)
        count = channel.queue_declare("ha.kept", passive=True).method.message_count
        assert count == 600
    first.start()
    first.broker.wait_ready(SECONDS)

    def whole() -> bool:
        return all(each.synchronised for each in on_all(second).members)

    eventually(whole, "all mirrors are synchronised", SECONDS)
    with channel_of(third) as channel:
        taken = []
        for method, _, body in channel.consume("ha.kept", inactivity_timeout=5):
            assert method is not None
            taken.append(int(body))
            channel.basic_ack(method.delivery_tag)
            if len(taken) == 600:
                break
        assert taken == list(range(600))


def test_an_unsynchronised_mirror_leads_if_there_is_no_other_and_the_policy_lets_it(
    cluster: Cluster,
) -> None:
    """S4-33, S4-40, S4-58, S4-62, S4-64, S4-67."""
    first, second, third = cluster.nodes
    names = json.dumps([first.name, third.name])
    definition = f'{{"ha-mode":"nodes","ha-params":{names}}}'
    first.broker.control("set_policy", "ha-pair", r"^pair\.", definition)
    with channel_of(first) as channel:
        channel.queue_declare("pair.kept", durable=True)
        channel.basic_publish("", "pair.kept", b"0")

    def record() -> MirrorRecord:
        found = records(second).values()
        (each,) = [each for each in found if {*each.first} == {first.name, third.name}]
        return each

    def member(node: Node) -> MirrorMember:
        found = record().member(node.name)
        assert found is not None
        return found

    assert record().leader == first.name
    third.kill()
    with channel_of(first) as channel:
        channel.basic_publish("", "pair.kept", b"1")
    assert not member(third).synchronised
    third.start()
    eventually(lambda: member(third).since, "the mirror is back", SECONDS)
    assert not member(third).synchronised
    first.kill()
    eventually(lambda: record().leader == third.name, "the mirror leads", SECONDS)
    assert record().forced == 1
    third.broker.wait_ready(SECONDS)
    with channel_of(third) as channel:
        channel.basic_publish("", "pair.kept", b"2")
        count = channel.queue_declare("pair.kept", passive=True).method.message_count
        assert 1 <= count <= 3
    first.start()
    first.broker.wait_ready(SECONDS)
    eventually(lambda: member(first).synchronised, "the former leader is a mirror", SECONDS)
    assert record().leader == third.name


def test_mirrors_follow_the_listed_nodes_and_the_leader_stays_until_others_have_everything(
    cluster: Cluster,
) -> None:
    """S4-15, S4-16, S4-19, S4-26, S4-28, S4-36, S4-55, S4-56, S4-75."""
    first, second, third = cluster.nodes
    control = first.broker.control

    def policy(*nodes: str) -> None:
        definition = json.dumps({"ha-mode": "nodes", "ha-params": nodes})
        control("set_policy", "ha-nodes", r"^nodes\.", definition)

    def nodes() -> tuple[str, set[str], set[str]]:
        row = row_of(first, "nodes.listed")
        pids = row["mirror_pids"] or [], row["synchronised_mirror_pids"] or []
        mirrors, synchronised = ({pid[1:].split(".")[0] for pid in each} for each in pids)
        return row["pid"][1:].split(".")[0], mirrors, synchronised

    policy(first.name)
    with channel_of(first) as channel:
        channel.queue_declare("nodes.listed", durable=True)
        for number in range(10):
            channel.basic_publish("", "nodes.listed", b"%d" % number)
    assert nodes() == (first.name, set(), set())
    # By default mirrors of a queue that has messages wait for somebody to ask.
    policy(second.name, third.name)
    wanted = {second.name, third.name}
    eventually(lambda: nodes() == (first.name, wanted, set()), "mirrors lack messages", SECONDS)
    control("sync_queue", "nodes.listed")

    def moved() -> bool:
        leader, mirrors, synchronised = nodes()
        return {leader, *mirrors} == wanted and {leader, *synchronised} == wanted

    eventually(moved, "the listed nodes have it", SECONDS)
    said = "Mirrored queue 'nodes.listed' in vhost '/': Adding mirror on node node2"
    assert said in first.broker.log()
    with channel_of(first) as channel:
        declared = channel.queue_declare("nodes.listed", passive=True)
        assert declared.method.message_count == 10


def test_a_listed_mirror_leads_though_another_is_not_synchronised(cluster: Cluster) -> None:
    """S4-16, S4-26: from [A B] to [C B], by way of [B A]."""
    first, second, third = cluster.nodes
    control, name = first.broker.control, "turned.q"

    def policy(*nodes: Node) -> None:
        definition = {"ha-mode": "nodes", "ha-params": [each.name for each in nodes]}
        control("set_policy", "ha-turned", r"^turned\.", json.dumps(definition))

    def nodes() -> tuple[str, set[str], set[str]]:
        row = row_of(first, name)
        pids = row["mirror_pids"] or [], row["synchronised_mirror_pids"] or []
        mirrors, synchronised = ({pid[1:].split(".")[0] for pid in each} for each in pids)
        return row["pid"][1:].split(".")[0], mirrors, synchronised

    policy(first, second)
    with channel_of(first) as channel:
        channel.queue_declare(name, durable=True)
        for number in range(10):
            channel.basic_publish("", name, b"%d" % number)
        assert nodes() == (first.name, {second.name}, {second.name})
        policy(third, second)
        turned = second.name, {first.name, third.name}, {first.name}
        eventually(lambda: nodes() == turned, "the listed mirror leads", SECONDS)
        channel.basic_publish("", name, b"10")
        control("sync_queue", name)
        over = second.name, {third.name}, {third.name}
        eventually(lambda: nodes() == over, "the listed nodes have it", SECONDS)
        assert channel.queue_declare(name, passive=True).method.message_count == 11


def test_a_leader_that_stops_hands_over_to_a_synchronised_mirror_and_to_no_other(
    cluster: Cluster,
) -> None:
    """S4-39, S4-61, S4-63, S4-68."""
    first, second, third = cluster.nodes
    first.broker.control(*HA_ALL)
    with channel_of(first) as channel:
        channel.queue_declare("ha.stopping", durable=True)
        channel.basic_publish("", "ha.stopping", b"0")

    (group,) = [
        group
        for group, each in records(second).items()
        if len(each.members) == len(NODES) and each.leader == first.name
    ]

    def record() -> MirrorRecord:
        return records(second)[group]

    assert record().leader == first.name
    began = time.monotonic()
    first.stop()
    eventually(lambda: record().leader != first.name, "another node leads", SECONDS)
    with channel_of(second) as channel:
        channel.basic_publish("", "ha.stopping", b"1")
    print(f"handed over in {time.monotonic() - began:.1f} s")
    assert first.name in [each.node for each in record().stopped]
    first.start()
    first.broker.wait_ready(SECONDS)
    eventually(
        lambda: all(each.synchronised for each in record().members), "it is a mirror", SECONDS
    )
    assert record().stopped == ()
    with channel_of(third) as channel:
        declared = channel.queue_declare("ha.stopping", passive=True)
        assert declared.method.message_count == 2


def test_a_shard_that_is_started_again_leads_its_groups_in_another_term(cluster: Cluster) -> None:
    """S4-44, S4-45: nobody else leads them meanwhile."""
    first, *_ = cluster.nodes
    first.broker.control(*HA_ALL)
    with channel_of(first) as channel:
        channel.queue_declare("ha.restarted", durable=True)
        channel.basic_publish("", "ha.restarted", b"0")
    epochs = {group: each.epoch for group, each in records(first).items()}
    (shard,) = [each for each in first.processes() if "shard-0" in " ".join(each.cmdline())]
    shard.kill()

    def led_again() -> bool:
        found = records(first)
        mine = [group for group, each in found.items() if each.leader == first.name]
        return bool(mine) and all(found[group].epoch > epochs[group] for group in mine)

    eventually(led_again, "it leads again", SECONDS)
    first.broker.wait_ready(SECONDS)
    with channel_of(first) as channel:
        channel.basic_publish("", "ha.restarted", b"1")
        declared = channel.queue_declare("ha.restarted", passive=True)
        assert declared.method.message_count == 2


def test_a_leader_whose_process_has_ended_is_replaced_while_its_lease_lasts(
    cluster: Cluster,
) -> None:
    """S4-06, S4-40, S4-44, S4-45, S4-46: its machine refuses connections; it returns as a mirror."""
    first, second, third = cluster.nodes
    first.broker.control(*HA_ALL)
    with channel_of(first) as channel:
        channel.queue_declare("ha.ended", durable=True)
    led = [
        group
        for group, each in records(second).items()
        if each.leader == first.name and len(each.members) == len(NODES)
    ]
    assert led
    traffic = Traffic(second, "ha.ended")
    traffic.start()
    eventually(lambda: traffic.confirmed > 100, "it is used", SECONDS)
    revision, confirmed = revision_of(second), traffic.confirmed
    first.kill()
    for group in led:
        assert first.name not in ended_before(third, group, first.name, revision)
    eventually(lambda: traffic.confirmed > confirmed + 100, "it is used again", SECONDS)
    first.start()
    first.broker.wait_ready(SECONDS)

    def whole() -> bool:
        found = records(second)
        return all(member.synchronised for group in led for member in found[group].members)

    eventually(whole, "it is a mirror", SECONDS)
    traffic.finish()
    assert all(each.leader != first.name for group, each in records(second).items() if group in led)
    print(f"{traffic.confirmed} confirmed, longest pause {traffic.longest:.1f} s")


def test_a_group_without_queues_ends_and_a_node_that_was_away_removes_it_too(
    cluster: Cluster,
) -> None:
    """S4-09: policies that change leave groups behind."""
    first, second, third = cluster.nodes
    definition = {
        "ha-mode": "nodes",
        "ha-params": [second.name, third.name],
        "ha-promote-on-shutdown": "always",
    }
    first.broker.control("set_policy", "ha-ended", r"^ended\.", json.dumps(definition))
    with channel_of(first) as channel:
        channel.queue_declare("ended.q", durable=True)
        channel.basic_publish("", "ended.q", b"0")
    (group,) = [
        group
        for group, each in records(first).items()
        if each.promote_on_shutdown == "always" and each.promote_on_failure == "always"
    ]

    def there() -> list[bool]:
        """Whether each of its nodes has a directory of it."""
        nodes = (second, third)
        return [Path(DataPaths(str(each.folder / "data")).group(group)).exists() for each in nodes]

    assert there() == [True, True]
    third.stop()
    with channel_of(first) as channel:
        channel.queue_delete("ended.q")
        eventually(lambda: group not in records(first), "the group ends", 3 * SECONDS)
        eventually(lambda: there() == [False, True], "its node has removed it", SECONDS)
        channel.queue_declare("ended.q", durable=True)
        channel.basic_publish("", "ended.q", b"1")
        assert group not in records(first)
    third.start()
    third.broker.wait_ready(SECONDS)
    eventually(lambda: there() == [False, False], "the other one has removed it too", SECONDS)
    with channel_of(third) as channel:
        assert channel.queue_declare("ended.q", passive=True).method.message_count == 1


def test_a_queue_waits_for_its_leader_if_the_policy_says_so_and_until_that_is_forgotten(
    cluster: Cluster,
) -> None:
    """S4-59, S4-63, S4-66, S4-69. The last test: a node does not come back."""
    first, second, third = cluster.nodes
    definition = json.dumps(
        {
            "ha-mode": "nodes",
            "ha-params": [first.name, third.name],
            "ha-promote-on-failure": "when-synced",
            "ha-promote-on-shutdown": "always",
        }
    )
    first.broker.control("set_policy", "ha-careful", r"^careful\.", definition)
    with channel_of(first) as channel:
        channel.queue_declare("careful.q", durable=True)
        channel.basic_publish("", "careful.q", b"0")
        channel.queue_declare("alone.q", durable=True)

    def record() -> MirrorRecord:
        found = [
            each for each in records(second).values() if each.promote_on_failure == "when-synced"
        ]
        (each,) = found
        return each

    third.kill()
    with channel_of(first) as channel:
        channel.basic_publish("", "careful.q", b"1")
    first.stop()
    third.start()
    third.broker.wait_ready(SECONDS)
    assert record().leader == first.name
    first.start()
    first.broker.wait_ready(SECONDS)
    with channel_of(second) as channel:

        def counted() -> int:
            declared = channel.queue_declare("careful.q", passive=True)
            return int(declared.method.message_count)

        eventually(lambda: counted() == 2, "everything is there", SECONDS)
    eventually(
        lambda: all(each.synchronised for each in record().members), "it is a mirror", SECONDS
    )
    first.kill()

    def forgotten() -> bool:
        try:
            second.broker.control("forget_node", first.name)
        except AssertionError as refusal:
            print(str(refusal)[:300])
        return record().member(first.name) is None

    eventually(forgotten, "the node is forgotten", SECONDS)
    assert record().leader == third.name
    with channel_of(second) as channel:
        channel.basic_publish("", "careful.q", b"2")
        declared = channel.queue_declare("careful.q", passive=True)
        assert declared.method.message_count == 3
        channel.queue_declare("alone.q", durable=True)  # what the node alone had is gone with it
        assert f"<{second.name}." in second.broker.control("list_queues", "name", "pid")

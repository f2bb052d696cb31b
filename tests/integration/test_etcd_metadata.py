"""Topology and users in a real etcd: what a cluster begins with, changes on any node, and nodes that come and go."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from fluxmq.auth.users import User, VhostPermission
from fluxmq.control import revision_barrier, topology_service
from fluxmq.control.etcd import (
    metadata_follower,
    metadata_keys,
    metadata_seed,
    shared_metadata,
)
from fluxmq.control.etcd.client import EtcdClient
from fluxmq.control.etcd.messages import Delete, Get, Put, end_of
from fluxmq.control.etcd.metadata_keys import PREFIX, ROOT
from fluxmq.control.etcd.wills import NODES
from fluxmq.control.metadata import (
    FILE_NAME,
    ChangeError,
    MetadataError,
    MetadataStore,
    StoreThread,
)
from fluxmq.control.peers import RequestError
from fluxmq.control.topology_service import TopologyService
from fluxmq.ipc.messages import USER_ADD, USER_DELETE, USER_PASSWORD, USER_UPGRADE
from fluxmq.ipc.permission_messages import PERMISSION_SET, PermissionSet
from fluxmq.ipc.user_messages import UserAdd, UserDelete, UserPassword, UserUpgrade
from fluxmq.routing.topology.changes import AddVhost, Bind, Change, DeleteQueue, DeleteVhost
from fluxmq.routing.topology.configured import configured_queue
from fluxmq.routing.topology.records import Binding, Vhost
from fluxmq.settings.queues import QueueSettings
from tests.etcd import Server, is_true, serving
from tests.integration.metadata_nodes import MetadataNode, MetadataNodes, play
from tests.unit.auth.test_hash_upgrades import upgrade
from tests.unit.control.topology_node import GUEST, queue

pytestmark = pytest.mark.once
UPGRADE = upgrade("ann")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path) as running:
        yield running


def alone(path: Path, *changes: Change, users: Sequence[User] = (), ran: bool = True) -> None:
    """Let a node run by itself in a directory, with changes. ``ran``: False for a directory that has users only."""

    path.mkdir()

    async def main() -> None:
        thread = StoreThread()
        store = await thread.run(lambda: MetadataStore(path / FILE_NAME))
        for user in users:
            await thread.run(partial(store.add, user))
        if ran:
            service = TopologyService(store, thread, list, list, lambda _: None)
            await service.load("life", (), lambda: GUEST)
            for change in changes:
                assert (await service.change([(change,)])).results == (None,)
        await thread.run(store.close)
        thread.close()

    asyncio.run(main())


def test_three_nodes_begin_with_one_topology_and_a_change_on_one_is_on_all(
    server: Server, tmp_path: Path
) -> None:
    """S2-01."""

    async def scenario(nodes: MetadataNodes, client: EtcdClient) -> None:
        await nodes.start()
        await nodes.well()
        for number, node in enumerate(nodes.up):
            assert await node.change(queue(f"q{number}")) is None
            assert f"q{number}" in node.queues_of()
        await nodes.all_alike()
        assert nodes["node1"].queues_of() == ["q0", "q1", "q2"]
        assert [user.name for user in nodes["node3"].directory.users.users] == ["guest"]
        # Nothing to be changed: the revision stays.
        before = nodes["node1"].topology_service.revision
        assert await nodes["node2"].change(queue("q0")) is None
        refusal = await nodes["node3"].change(Bind(Binding("/", "nowhere", "q0")))
        assert refusal is not None
        assert refusal.code == 404
        assert nodes["node1"].topology_service.revision == before
        assert b"/fluxmq/metadata/topology/queue/%2F/q0" in await keys(client)

    play(server, tmp_path, scenario)


async def keys(client: EtcdClient) -> list[bytes]:
    ((*entries,),) = (await client.transact((), (Get(PREFIX, end_of(PREFIX)),))).entries
    return [entry.key for entry in entries]


def test_changes_at_once_on_all_nodes_are_all_made(server: Server, tmp_path: Path) -> None:
    """Each is decided by what is committed: of two nodes that declare a queue, one finds that it is there."""

    async def scenario(nodes: MetadataNodes, client: EtcdClient) -> None:
        await nodes.start()
        await nodes.well()
        changes = [
            each.change(queue(f"{each.name}-{n}"), queue(f"shared-{n}"))
            for n in range(30)
            for each in nodes.up
        ]
        assert await asyncio.gather(*changes) == [None] * len(changes)
        await nodes.all_alike()
        assert len(nodes["node1"].queues_of()) == 4 * 30
        assert sum(node.metadata.conflicts for node in nodes.up) > 0

    play(server, tmp_path, scenario)


def test_a_change_that_etcd_does_not_take_is_refused_at_once(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata_keys, "FLAT_MAX", 2000)  # more than a member accepts side by side

    async def scenario(nodes: MetadataNodes, client: EtcdClient) -> None:
        await nodes.start()
        await nodes.well()
        with pytest.raises(
            RequestError, match=r"too many operations.*make the change in parts"
        ) as refused:
            await nodes["node1"].change(*(queue(f"q{n}") for n in range(1100)))
        assert refused.value.code == "limit"
        assert await nodes["node1"].change(queue("one")) is None
        await nodes.all_alike()
        assert nodes["node2"].queues_of() == ["one"]

    play(server, tmp_path, scenario)


def test_who_changes_something_is_answered_when_all_nodes_have_it(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(nodes: MetadataNodes, client: EtcdClient) -> None:
        await nodes.start()
        await nodes.well()
        one, other = nodes["node1"], nodes["node2"]
        async with other.topology_service._writing:  # it is slow to take changes
            change = asyncio.create_task(one.change(queue("q")))
            await is_true(lambda: one.queues_of() == ["q"])
            assert not change.done()
            assert other.queues_of() == []
        assert await change is None
        assert other.queues_of() == ["q"]
        # It is waited for once.
        monkeypatch.setattr(topology_service, "CONFIRM_SECONDS", 0.3)
        monkeypatch.setattr(revision_barrier, "REPLY_SECONDS", 60.0)
        async with other.topology_service._writing, asyncio.timeout(10):
            changed = await one.topology_service.change([(queue("r"),)])
            assert changed.unconfirmed == (other.name,)
            monkeypatch.setattr(topology_service, "CONFIRM_SECONDS", 30.0)
            changed = await one.topology_service.change([(queue("s"),)])
            assert changed.unconfirmed == ()
        await is_true(lambda: other.queues_of() == ["q", "r", "s"])
        # A node that is not there is not waited for.
        await other.stop()
        assert await one.change(queue("later")) is None

    play(server, tmp_path, scenario)


def test_users_are_changed_on_any_node(server: Server, tmp_path: Path) -> None:
    async def scenario(nodes: MetadataNodes, client: EtcdClient) -> None:
        await nodes.start()
        await nodes.well()
        one, other = nodes["node1"], nodes["node2"]
        ann = UserAdd(replace(GUEST, name="ann", permissions=())).to_body()
        await one.user(USER_ADD, ann)
        assert [user.name for user in other.directory.users.users] == ["ann", "guest"]
        with pytest.raises(RequestError, match="exists already") as refused:
            await other.user(USER_ADD, ann)
        assert refused.value.code == "exists"
        # An imported hash is replaced once, unless another password was set.
        await one.user(USER_PASSWORD, UserPassword("ann", UPGRADE.verified, None).to_body())
        upgraded = UserUpgrade((UPGRADE,)).to_body()
        await other.user(USER_UPGRADE, upgraded)
        assert one.directory.users.users[0].hash == UPGRADE.hash
        with pytest.raises(RequestError, match="no user has a hash"):
            await one.user(USER_UPGRADE, upgraded)
        await other.change(AddVhost(Vhost("v")))
        permission = VhostPermission("v", "a", "b", "c")
        await other.user(PERMISSION_SET, PermissionSet("ann", permission).to_body())
        assert permission in one.directory.users.users[0].permissions
        # What a user may do in a virtual host goes with it.
        await one.change(DeleteVhost("v"))
        await nodes.all_alike()
        assert permission not in other.directory.users.users[0].permissions
        await one.user(USER_DELETE, UserDelete("ann").to_body())
        await nodes.all_alike()
        assert [user.name for user in other.directory.users.users] == ["guest"]

    play(server, tmp_path, scenario)


def test_a_node_that_was_away_is_given_what_it_missed(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when etcd has it no more, and when its directory was lost."""
    monkeypatch.setattr(metadata_follower, "PAGE_KEYS", 4)

    async def scenario(nodes: MetadataNodes, client: EtcdClient) -> None:
        await nodes.start()
        await nodes.well()
        away = nodes["node3"]
        await away.stop()
        for number in range(5):
            assert await nodes["node1"].change(queue(f"q{number}")) is None
        await nodes.start("node3")
        await nodes.all_alike()
        await away.stop()
        assert await nodes["node1"].change(DeleteQueue("/", "q0")) is None
        assert await nodes["node1"].change(queue("more")) is None
        ((root,),) = (await client.transact((), (Get(ROOT),))).entries
        await client.compact(root.revision)
        await nodes.start("node3")
        await nodes.all_alike()
        assert away.queues_of() == ["more", "q1", "q2", "q3", "q4"]
        await away.stop()
        (away.path / FILE_NAME).unlink()
        await nodes.start("node3")
        await nodes.well()
        await nodes.all_alike()
        assert await away.change(queue("after")) is None

    play(server, tmp_path, scenario)


def test_a_node_works_by_its_copy_while_etcd_cannot_be_reached(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Changes are refused, and nothing of them stays."""

    async def scenario(nodes: MetadataNodes, client: EtcdClient) -> None:
        await nodes.start()
        await nodes.well()
        node = nodes["node1"]
        assert await node.change(queue("before")) is None
        await nodes["node2"].stop()
        monkeypatch.setattr(shared_metadata, "REQUEST_SECONDS", 0.5)
        server.signal(signal.SIGSTOP)
        with pytest.raises(RequestError, match="etcd cannot be reached"):
            await node.change(queue("lost"))
        with pytest.raises(RequestError, match="may or may not be applied"):
            await node.user(USER_DELETE, UserDelete("guest").to_body())
        await is_true(lambda: node.queues_of() == ["before"])
        assert node.metadata.problem is None
        await nodes.start("node2")
        assert nodes["node2"].queues_of() == ["before"]
        assert nodes["node2"].metadata.problem == metadata_follower.UNREACHABLE
        monkeypatch.undo()
        server.signal(signal.SIGCONT)
        await nodes.well()
        assert await nodes["node2"].change(queue("after")) is None
        await nodes.all_alike()

    play(server, tmp_path, scenario)


def test_the_node_that_has_something_begins_the_cluster(server: Server, tmp_path: Path) -> None:
    """Its durable queues stay on it, under the name that all nodes know them by; what ended with it does not come along."""
    alone(
        tmp_path / "node3",
        queue("mine", group="local-4"),
        queue("gone", durable=False, group="ephemeral-0"),
        Bind(Binding("/", "amq.topic", "mine", routing_key="a")),
        users=[replace(GUEST, name="admin", permissions=())],
    )
    alone(tmp_path / "node1")

    async def scenario(nodes: MetadataNodes, client: EtcdClient) -> None:
        await nodes.start()
        await nodes.well()
        await nodes.all_alike()
        for node in nodes.up:
            mine = node.topology_service.topology.queue("/", "mine")
            assert mine is not None
            assert mine.group == "local-4@node3"
            assert len(node.topology_service.topology.bindings("/")) == 1
            assert [user.name for user in node.directory.users.users] == ["admin"]
        assert await nodes["node1"].change(queue("more")) is None

    play(server, tmp_path, scenario)


def test_users_made_before_the_first_start_are_the_clusters(server: Server, tmp_path: Path) -> None:
    alone(tmp_path / "node2", users=[replace(GUEST, name="root", permissions=())], ran=False)

    async def scenario(nodes: MetadataNodes, client: EtcdClient) -> None:
        await nodes.start()
        await nodes.well()
        await nodes.all_alike()
        assert [user.name for user in nodes["node1"].directory.users.users] == ["root"]
        assert nodes["node1"].topology_service.topology.vhost("/") is not None

    play(server, tmp_path, scenario)


def test_what_would_be_lost_keeps_a_node_out(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cluster began without it: it says so and touches nothing, and the others go on."""
    monkeypatch.setattr(metadata_seed, "SEED_SECONDS", 0.1)
    alone(tmp_path / "node3", queue("mine", group="local-1"))

    async def scenario(nodes: MetadataNodes, client: EtcdClient) -> None:
        await nodes.start("node1", "node2")
        await nodes.well()
        await nodes.start("node3")
        late = nodes["node3"]
        await is_true(lambda: "users or a topology from before" in (late.metadata.problem or ""))
        assert not late.topology_service.known
        assert await nodes["node1"].change(queue("theirs")) is None
        await is_true(lambda: nodes["node2"].queues_of() == ["theirs"])
        kept = await late.thread.run(late.store.topology.rows)
        assert ["/", "mine"] in [key for _, key, _ in kept]

    play(server, tmp_path, scenario)


def test_a_copy_of_a_cluster_is_not_changed_beside_it(server: Server, tmp_path: Path) -> None:
    async def scenario(nodes: MetadataNodes, client: EtcdClient) -> None:
        await nodes.start()
        await nodes.well()
        node = nodes["node1"]
        await node.stop()
        store = MetadataStore(node.path / FILE_NAME)
        with pytest.raises(ChangeError, match="on a running node"):
            store.delete("guest")
        assert store.of_cluster
        store.close()
        other = nodes["node2"]
        await other.stop()
        other.path = node.path
        with pytest.raises(MetadataError, match="this is the directory of node 'node1'"):
            await nodes.start("node2")
        await other.thread.run(other.store.close)
        other.thread.close()

    play(server, tmp_path, scenario)


def test_a_cluster_whose_etcd_is_lost_begins_anew_with_the_copy_that_is_left(
    server: Server, tmp_path: Path
) -> None:
    """As after the loss of all nodes, of which one comes back from a backup."""
    place = tmp_path / "nodes"
    place.mkdir()

    async def before(nodes: MetadataNodes, client: EtcdClient) -> None:
        await nodes.start()
        await nodes.well()
        for number in range(20):  # beyond the revisions of the next etcd
            assert await nodes["node1"].change(queue(f"q{number}")) is None

    play(server, place, before)
    for name in ("node1", "node3"):
        (place / name / FILE_NAME).unlink()

    async def after(nodes: MetadataNodes, client: EtcdClient) -> None:
        await nodes.start()
        await nodes.well()
        await nodes.all_alike()
        assert len(nodes["node3"].queues_of()) == 20
        assert await nodes["node3"].change(queue("more")) is None
        await nodes.all_alike()

    anew = tmp_path / "anew"
    anew.mkdir()
    with serving(anew) as another:
        play(another, place, after)


def test_what_ended_with_a_node_goes_when_it_begins_anew(server: Server, tmp_path: Path) -> None:
    async def scenario(nodes: MetadataNodes, client: EtcdClient) -> None:
        await nodes.start()
        await nodes.well()
        node, other = nodes["node1"], nodes["node2"]
        assert await node.change(in_memory("mine", node)) is None
        assert await other.change(in_memory("theirs", other)) is None
        await node.stop()
        await nodes.start("node1", anew=False)  # its control process alone was restarted
        await nodes.well()
        assert await node.change(queue("q")) is None
        assert other.queues_of() == ["mine", "q", "theirs"]
        await node.stop()
        await nodes.start("node1")
        await is_true(lambda: other.queues_of() == ["q", "theirs"])
        await nodes.all_alike()

    play(server, tmp_path, scenario)


def in_memory(name: str, node: MetadataNode) -> Change:
    """Declare a queue in the memory of a node."""
    declared: Change = queue(name, durable=False, group=f"ephemeral-0@{node.name}")
    return declared


def test_what_was_in_the_memory_of_a_node_that_has_ended_goes(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another client may then declare a queue of that name elsewhere."""
    monkeypatch.setattr(shared_metadata, "LOOK_SECONDS", 0.05)

    async def scenario(nodes: MetadataNodes, client: EtcdClient) -> None:
        for name in ("node1", "node2", "node3"):
            await client.transact((), (Put(NODES + name.encode(), b"life"),))
        await nodes.start()
        await nodes.well()
        node, other = nodes["node1"], nodes["node2"]
        other.coordinates = True
        kept = queue("kept", group=f"local-0@{node.name}")
        assert await node.change(in_memory("mine", node), kept) is None
        assert await other.change(in_memory("theirs", other)) is None
        await node.stop()
        await client.transact((), (Delete(NODES + b"node1"),))  # its lease is over
        await is_true(lambda: other.queues_of() == ["kept", "theirs"])
        assert await other.change(in_memory("mine", other)) is None
        await nodes.start("node1")
        await nodes.well()
        await nodes.all_alike()
        assert node.queues_of() == ["kept", "mine", "theirs"]

    play(server, tmp_path, scenario)


def test_queues_of_the_settings_are_there_as_long_as_a_node_has_them(
    server: Server, tmp_path: Path
) -> None:
    orders = configured_queue(QueueSettings(name="orders"))
    events = configured_queue(QueueSettings(name="events", type="stream"))

    async def scenario(nodes: MetadataNodes, client: EtcdClient) -> None:
        for name in ("node1", "node2", "node3"):
            nodes[name].queues = (orders, events)
        await nodes.start()
        for node in nodes.up:
            await node.announced()
        assert all(node.queues_of() == ["events", "orders"] for node in nodes.up)
        for name, left in (("node1", True), ("node2", True), ("node3", False)):
            node = nodes[name]
            await node.stop()
            node.queues = (orders,)
            await nodes.start(name)
            await node.announced()
            assert ("events" in node.queues_of()) is left
            await nodes.all_alike()

    play(server, tmp_path, scenario)


def test_a_node_that_is_gone_is_forgotten(server: Server, tmp_path: Path) -> None:
    async def scenario(nodes: MetadataNodes, client: EtcdClient) -> None:
        await nodes.start()
        await nodes.well()
        gone, other = nodes["node3"], nodes["node1"]
        assert await gone.change(in_memory("mine", gone)) is None
        await gone.stop()
        await other.metadata.forget("node3")
        assert b"/fluxmq/metadata/nodes/node3" not in await keys(client)
        assert other.queues_of() == []
        with pytest.raises(RequestError, match="node3 is not a node of this cluster"):
            await other.metadata.forget("node3")

    play(server, tmp_path, scenario)


def test_what_something_else_has_changed_is_not_followed_by_halves(
    server: Server, tmp_path: Path
) -> None:
    """etcdctl put, say: it is counted, and everything is as the keys say after the next start of the node."""

    async def scenario(nodes: MetadataNodes, client: EtcdClient) -> None:
        await nodes.start()
        await nodes.well()
        node = nodes["node1"]
        await client.transact((), (Put(PREFIX + b"topology/queue/%2F/q", b"nonsense"),))
        assert await node.change(queue("r")) is None
        await nodes.all_alike()
        assert node.queues_of() == ["r"]

    play(server, tmp_path, scenario)

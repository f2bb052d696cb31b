"""What a cluster begins with, and who may be in it."""

import asyncio
from dataclasses import replace
from functools import partial

import pytest

from fluxmq.control.meta import service
from fluxmq.control.metadata import (
    FILE_NAME,
    ChangeError,
    MetadataError,
    MetadataStore,
    StoreThread,
)
from fluxmq.control.topology_rows import unpack
from fluxmq.control.topology_service import TopologyService
from fluxmq.routing.topology.changes import Bind
from fluxmq.routing.topology.records import Binding
from tests.unit.control.meta.three_nodes import Cluster, pass_elections, run
from tests.unit.control.topology_node import GUEST, queue, until


def alone(path, *changes, users=()):
    """A node that ran by itself in a directory, and what was done there."""

    async def main():
        path.mkdir()
        thread = StoreThread()
        store = await thread.run(lambda: MetadataStore(path / FILE_NAME))
        for user in users:
            await thread.run(partial(store.add, user))
        if changes:
            topology_service = TopologyService(store, thread, list, list, lambda _: None)
            await topology_service.load("life", (), lambda: GUEST)
            for change in changes:
                if change != "nothing":
                    assert (await topology_service.change([(change,)])).results == (None,)
        await thread.run(store.close)
        thread.close()

    asyncio.run(main())


def stored(path):
    store = MetadataStore(path / FILE_NAME)
    try:
        rows = [
            (kind, *unpack(key)[:2])
            for kind, key in store._database.execute("SELECT kind, key FROM topology")
        ]
        return rows, [user.name for user in store.users().users]
    finally:
        store.close()


def test_the_node_that_has_something_begins_the_cluster(tmp_path):
    """Its durable queues stay on it, under the name that all nodes know them by; what ended with it does not come along."""
    alone(
        tmp_path / "node3",
        queue("mine", group="local-4"),
        queue("gone", durable=False, group="ephemeral-0"),
        Bind(Binding("/", "amq.topic", "mine", routing_key="a")),
        users=[replace(GUEST, name="admin", permissions=())],
    )
    alone(tmp_path / "node1", "nothing")

    async def scenario(cluster):
        await cluster.well()
        for node in cluster.up:
            await until(lambda node=node: node.queues_of() == ["mine"])
            assert node.topology_service.topology.queue("/", "mine").group == "local-4@node3"
            assert len(node.topology_service.topology.bindings("/")) == 1
            assert [user.name for user in node.directory.users.users] == ["admin"]
        assert await cluster["node1"].change(queue("more")) is None

    run(Cluster(tmp_path), scenario)


def test_users_made_before_the_first_start_are_the_clusters(tmp_path):
    alone(tmp_path / "node2", users=[replace(GUEST, name="root", permissions=())])

    async def scenario(cluster):
        await cluster.well()
        for node in cluster.up:
            await until(lambda node=node: node.topology_service.known)
            assert [user.name for user in node.directory.users.users] == ["root"]
            assert node.topology_service.topology.vhost("/") is not None

    run(Cluster(tmp_path), scenario)


def test_what_would_be_lost_keeps_a_node_out(tmp_path, monkeypatch):
    """The cluster began without it: it says so and touches nothing, and the others go on."""
    monkeypatch.setattr(service, "SEED_SECONDS", 0)
    alone(tmp_path / "node3", queue("mine", group="local-1"))

    async def scenario(cluster):
        await cluster.well()
        late = cluster["node3"]
        await late.start()
        await until(lambda: "users or a topology from before" in (late.meta.problem or ""))
        assert not late.topology_service.known
        assert await cluster["node1"].change(queue("theirs")) is None
        await until(lambda: cluster["node2"].queues_of() == ["theirs"])

    run(Cluster(tmp_path), scenario, "node1", "node2")
    rows, users = stored(tmp_path / "node3")
    assert ("queue", "/", "mine") in rows
    assert users == ["guest"]


def test_a_node_that_comes_later_is_made_a_member(tmp_path, monkeypatch):
    monkeypatch.setattr(service, "SEED_SECONDS", 0.1)

    async def scenario(cluster):
        await cluster.well()
        assert await cluster["node1"].change(queue("q")) is None
        late = cluster["node3"]
        await late.start()
        await until(lambda: late.replica.standing == "returning")
        assert not late.leads
        await until(lambda: late.well and late.queues_of() == ["q"])
        assert late.replica.standing == "member"
        assert await late.change(queue("r")) is None

    run(Cluster(tmp_path), scenario, "node1", "node2")


def test_a_single_new_node_waits_for_others(tmp_path, monkeypatch):
    monkeypatch.setattr(service, "SEED_SECONDS", 0.1)

    async def scenario(cluster):
        node = cluster["node1"]
        await pass_elections(2, node)
        assert node.replica.standing == "new"
        assert node.replica.node.term == 0
        assert "its directory is new" in node.meta.problem
        assert not node.topology_service.known
        await cluster.start("node2")
        await cluster.well()

    run(Cluster(tmp_path), scenario, "node1")


def test_a_directory_of_a_cluster_is_not_changed_beside_it(tmp_path):
    async def scenario(cluster):
        await cluster.well()

    run(Cluster(tmp_path), scenario)
    store = MetadataStore(tmp_path / "node1" / FILE_NAME)
    with pytest.raises(ChangeError, match="on a running node"):
        store.delete("guest")
    assert store.cluster_store == "_meta"
    store.close()

    async def other(cluster):
        cluster["node2"].path = tmp_path / "node1"
        with pytest.raises(MetadataError, match="this is the directory of node 'node1'"):
            await cluster["node2"].start()
        cluster["node2"].up = False
        await cluster["node2"].thread.run(cluster["node2"].store.close)
        cluster["node2"].thread.close()

    run(Cluster(tmp_path), other, "node3")


def test_two_clusters_do_not_mix(tmp_path):
    async def scenario(cluster):
        await cluster.well()

    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        run(Cluster(tmp_path / name), scenario)
    (tmp_path / "a" / "node3").rename(tmp_path / "old")
    (tmp_path / "b" / "node3").rename(tmp_path / "a" / "node3")

    async def mixed(cluster):
        one, two, stranger = (cluster[name] for name in cluster.names)
        await cluster.well(one, two)
        assert await one.change(queue("q")) is None
        assert stranger.queues_of() == []
        assert stranger.meta.problem == "no leader in _meta"
        assert len(one.links.ends) == len(two.links.ends) == 1

    run(Cluster(tmp_path / "a"), mixed)

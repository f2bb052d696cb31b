"""The management interface of a cluster: the same from every node."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fluxmq.cli.main import run as fluxmqctl
from tests.broker import HOST
from tests.cluster.nodes import Cluster
from tests.conformance import wire
from tests.conformance.client import Client, eventually, tcp
from tests.management import ManagementSite

pytestmark = pytest.mark.once


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes."""
    cluster = Cluster(tmp_path_factory.mktemp("management"), {})
    try:
        cluster.start()
        yield cluster
        cluster.stop()
    finally:
        print(cluster.log())
        cluster.end()


@pytest.fixture(scope="module")
def sites(cluster: Cluster) -> list[ManagementSite]:
    """The interface of each node."""
    return [ManagementSite(node.http_port, node.amqp_port) for node in cluster.nodes]


def test_a_queue_is_the_same_from_every_node(sites: list[ManagementSite]) -> None:
    first, second, third = sites
    arguments = {"x-queue-type": "quorum"}
    assert first.status("PUT", "queues/%2F/shared", {"arguments": arguments}) == 201
    message = {"routing_key": "shared", "payload": "m", "properties": {"delivery_mode": 2}}
    answer = second.ask("POST", "exchanges/%2F/amq.default/publish", message)
    assert answer.body == {"routed": True}
    for site in sites:

        def listed(site: ManagementSite = site) -> bool:
            row = site.get("queues/%2F/shared")
            return len(row["online"]) == 3 and row["leader"] in row["members"]

        eventually(listed, "every node knows where it is", 20)
    (got,) = third.ask("POST", "queues/%2F/shared/get", {"ackmode": "ack_requeue_false"}).body
    assert got["payload"] == "m"
    assert third.status("DELETE", "queues/%2F/shared") == 204
    assert first.status("GET", "queues/%2F/shared") == 404


def test_a_queue_is_backed_up_where_it_is_led_and_restored_from_any_node(
    cluster: Cluster, sites: list[ManagementSite], tmp_path: Path
) -> None:
    assert (
        sites[0].status("PUT", "queues/%2F/kept", {"arguments": {"x-queue-type": "quorum"}}) == 201
    )
    message = {"routing_key": "kept", "payload": "m", "properties": {"delivery_mode": 2}}
    for _ in range(3):
        assert sites[1].ask("POST", "exchanges/%2F/amq.default/publish", message).body["routed"]
    backup = str(tmp_path / "kept")

    def done(number: int, *arguments: str) -> bool:
        return fluxmqctl(["--config", str(cluster.nodes[number].file), *arguments]) == 0

    found = [number for number in range(3) if done(number, "backup-queue", "kept", backup)]
    assert len(found) == 1, "the others are told that another node leads it, and write nothing"
    elsewhere = (found[0] + 1) % 3
    assert done(elsewhere, "restore-queue", backup, "--name", "again")
    body = {"count": 5, "ackmode": "ack_requeue_false"}
    got = sites[found[0]].ask("POST", "queues/%2F/again/get", body).body
    assert [each["payload"] for each in got] == ["m"] * 3
    for name in ("kept", "again"):
        assert sites[0].status("DELETE", f"queues/%2F/{name}") == 204


def test_every_node_lists_the_nodes_and_their_connections(
    cluster: Cluster, sites: list[ManagementSite]
) -> None:
    names = {"node1", "node2", "node3"}
    for site in sites:
        nodes = site.get("nodes")
        assert {each["name"] for each in nodes} == names
        assert all(each["running"] and each["mem_used"] > 0 for each in nodes)
        assert len({each["os_pid"] for each in nodes}) == 3
        assert site.get("vhosts/%2F")["cluster_state"] == dict.fromkeys(names, "running")
    with sites[1].connect() as connection:
        del connection
        for site in sites:
            (row,) = [each for each in site.get("connections") if each["protocol"] == "AMQP 0-9-1"]
            assert row["node"] == "node2"
    cluster.nodes[1].broker.control("suspend_listeners")
    assert [each["being_drained"] for each in sites[0].get("nodes")] == [False, True, False]
    cluster.nodes[1].broker.control("resume_listeners")
    assert not sites[0].get("nodes/node2")["being_drained"]


def test_a_ban_on_one_node_closes_connections_of_all(cluster: Cluster) -> None:
    """And refuses them, until it is lifted on another one."""
    first, second, third = cluster.nodes
    with Client(tcp(HOST, third.port), 5) as client:
        assert client.connect("eve").reason == 0
        said = first.broker.control("ban", "client_id", "eve", "--for", "1h")
        assert said.splitlines()[1] == "Closed 1 connections"
        assert client.expect(wire.DISCONNECT).reason == 0x98
    for node in cluster.nodes:
        with Client(tcp(HOST, node.port), 5) as client:
            assert client.connect("eve").reason == 0x8A
        assert "\teve\t" in node.broker.control("list_bans")
    second.broker.control("unban", "client_id", "eve")
    for node in cluster.nodes:
        with Client(tcp(HOST, node.port), 5) as client:
            assert client.connect("eve").reason == 0


def test_users_and_definitions_are_the_clusters(sites: list[ManagementSite]) -> None:
    first, second, _ = sites
    assert first.status("PUT", "users/ann", {"password": "pw", "tags": "monitoring"}) == 201
    assert second.get("whoami", user="ann", password="pw")["name"] == "ann"
    definitions = {
        "vhosts": [{"name": "more"}],
        "queues": [
            {"name": name, "vhost": "more", "durable": True, "arguments": {"x-queue-type": kind}}
            for name, kind in (("c", "classic"), ("q", "quorum"))
        ],
    }
    assert second.status("POST", "definitions", definitions) == 204
    rows = {each["name"]: each for each in first.get("queues/more")}
    assert rows["c"]["node"] == "node2", "its home is the node that was asked"

    def everywhere() -> bool:
        return len(first.get("queues/more/q")["members"]) == 3

    eventually(everywhere, "its group, which is new, is on all nodes", 20)


def test_a_node_that_others_need_is_critical(sites: list[ManagementSite]) -> None:
    assert sites[0].get("health/checks/node-is-quorum-critical") == {"status": "ok"}


def test_rates_are_those_of_the_leader_and_of_all_nodes(sites: list[ManagementSite]) -> None:
    assert (
        sites[0].status("PUT", "queues/%2F/rated", {"arguments": {"x-queue-type": "quorum"}}) == 201
    )
    with sites[1].connect() as connection:
        channel = connection.channel()

        def rated() -> bool:
            for _ in range(20):
                channel.basic_publish("", "rated", b"x")
            connection.sleep(0.1)
            rows = [each.get("queues/%2F/rated") for each in sites]
            rows += [each.get("overview") for each in sites]
            rates = [row.get("message_stats", {}).get("publish_details") for row in rows]
            return all(each is not None and each["rate"] > 0 for each in rates)

        eventually(rated, "every node tells the rates of the leader and of all nodes", 30)
        vhosts = [each.get("vhosts/%2F")["message_stats"]["publish"] for each in sites]
        assert all(each > 0 for each in vhosts)
    assert sites[0].status("DELETE", "queues/%2F/rated") == 204


def test_groups_are_listed_and_audited_and_led_where_they_are_told(
    sites: list[ManagementSite],
) -> None:
    first = sites[0]
    groups = first.get("fluxmq/v1/raft")
    group = next(each["name"] for each in groups if not each["name"].startswith("_"))
    members = [each for each in first.get("fluxmq/v1/members") if each["group"] == group]
    assert {each["node"] for each in members} == {"node1", "node2", "node3"}
    rows = first.ask("POST", f"fluxmq/v1/raft/{group}/audit").body["rows"]
    assert [each["verdict"] for each in rows] == ["equal"] * 3
    follower = next(each["node"] for each in members if not each["leads"])
    moved = first.ask("POST", f"fluxmq/v1/raft/{group}/transfer", {"node": follower})
    assert moved.body == {"group": group, "node": follower}
    eventually(
        lambda: first.get("fluxmq/v1/can-stop")["can_stop"], "the new leader hears from all", 20
    )
    refused = first.ask("POST", "fluxmq/v1/raft/none/audit")
    assert (refused.status, set(refused.body)) in (
        (404, {"error", "reason"}),
        (400, {"error", "reason"}),
    )


def test_sessions_of_all_nodes_are_listed_by_each(
    cluster: Cluster, sites: list[ManagementSite]
) -> None:
    with Client(tcp(HOST, cluster.nodes[1].port), wire.V5) as client:
        client.connect("roamer")
        client.subscribe("r/#")
        for site in sites:
            (session,) = site.get("fluxmq/v1/sessions")
            assert (session["name"], session["node"]) == ("roamer", "node2")
            (subscription,) = site.get("fluxmq/v1/sessions/roamer/subscriptions")
            assert subscription["name"] == "r/#"
        assert sites[2].status("DELETE", "fluxmq/v1/sessions/roamer") == 204

"""The management interface of a cluster: the same from every node."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.nodes import Cluster
from tests.conformance.client import eventually
from tests.management import ManagementSite

pytestmark = pytest.mark.once


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ManagementSite]]:
    """The interface of each of three nodes."""
    cluster = Cluster(tmp_path_factory.mktemp("management"), {})
    try:
        cluster.start()
        yield [ManagementSite(node.http_port, node.amqp_port) for node in cluster.nodes]
        cluster.stop()
    finally:
        print(cluster.log())
        cluster.end()


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


def test_every_node_lists_the_nodes_and_their_connections(sites: list[ManagementSite]) -> None:
    names = {"node1", "node2", "node3"}
    for site in sites:
        nodes = site.get("nodes")
        assert {each["name"] for each in nodes} == names
        assert all(each["running"] for each in nodes)
    with sites[1].connect() as connection:
        del connection
        for site in sites:
            (row,) = [each for each in site.get("connections") if each["protocol"] == "AMQP 0-9-1"]
            assert row["node"] == "node2"


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
    assert len(rows["q"]["members"]) == 3


def test_a_node_that_others_need_is_critical(sites: list[ManagementSite]) -> None:
    assert sites[0].get("health/checks/node-is-quorum-critical") == {"status": "ok"}

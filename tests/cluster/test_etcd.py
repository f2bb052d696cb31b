"""Three nodes, each with a member of etcd: one of them coordinates, whichever of them are lost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import psutil
import pytest

from tests.broker import HOST
from tests.cluster.etcd_state import coordinator
from tests.cluster.nodes import Cluster, Node
from tests.cluster.test_publish import Subscriber
from tests.conformance.client import Client, eventually, tcp

PATIENCE = 60


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("etcd"), {})
    try:
        made.start()
        yield made
        made.stop()
    finally:
        made.end()
        print(made.log())


def member(node: Node) -> psutil.Process:
    """The process of a node's member."""
    return next(each for each in node.processes() if each.name() == "etcd")


def test_a_member_runs_beside_each_node(cluster: Cluster) -> None:
    """S1-01, S1-07."""
    assert len({member(node).pid for node in cluster.nodes}) == len(cluster.nodes)
    for node in cluster.nodes:
        assert (node.folder / "data" / "etcd" / "member").is_dir()
    coordinator(cluster)


def test_another_node_coordinates_when_that_one_is_killed_and_all_serve(cluster: Cluster) -> None:
    """S2-10."""
    first = coordinator(cluster)
    first.kill()
    second = coordinator(cluster)
    assert second is not first
    third = next(node for node in cluster.nodes if node not in (first, second))
    subscriber = Subscriber(second)
    subscriber.subscribe("a/b", 1)
    with Client(tcp(HOST, third.port), 5) as publisher:
        publisher.connect("publisher")
        assert publisher.publish("a/b", b"m", qos=1) == 0
    subscriber.expect(1)
    subscriber.close()
    first.start()
    cluster.wait_ready()
    assert coordinator(cluster) is second


def test_a_member_that_is_killed_runs_again(cluster: Cluster) -> None:
    node = coordinator(cluster)
    process = member(node)
    process.kill()

    def again() -> bool:
        with suppress(psutil.NoSuchProcess, StopIteration):  # while it is replaced
            return bool(member(node).pid != process.pid)
        return False

    eventually(again, "the member runs again", PATIENCE)
    coordinator(cluster)

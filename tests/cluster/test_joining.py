"""Nodes that join a running cluster, leave it, and are replaced, with real clients."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

import pytest

from fluxmq.cli.remote import PASSWORD_VARIABLE
from tests.broker import HOST
from tests.cluster.nodes import GROUPS, Cluster, Node
from tests.cluster.sides import Amqp, Mqtt, side
from tests.cluster.test_members import GROUP, Control
from tests.cluster.test_publish import subscriber
from tests.conformance.client import eventually

pytestmark = pytest.mark.once

SECONDS = 60.0
EVERY = ["node1", "node2", "node3", "node4"]
SETTINGS = {"queues": [{"name": "kept", "replication": {"enabled": True, "group": GROUP}}]}


@pytest.fixture
def control(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Control:
    monkeypatch.setenv(PASSWORD_VARIABLE, "guest")
    return Control(capsys)


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("joined"), SETTINGS)
    try:
        made.start()
        yield made
        made.stop()
    finally:
        print(made.log())
        made.end()


def join(control: Control, asked: Node, node: Node, *options: str) -> tuple[int, str]:
    """Have a node join, over the management interface of another."""
    url = f"http://{HOST}:{asked.http_port}"
    before = ("--config", str(node.file), "--user", "guest")
    return control.run(*before, "join", url, *options)


def knows(control: Control, node: Node, names: list[str]) -> bool:
    """Whether these are the nodes of the cluster, as a node knows."""
    code, text = control(node, "cluster_status", "--formatter", "json")
    assert code == 0, text
    return sorted(json.loads(text)["disk_nodes"]) == names


def has_joined(control: Control, cluster: Cluster) -> Node:
    """A node that has waited until it was part of the cluster, and is one that all know."""
    node = cluster.newcomer("node4")
    node.start()
    eventually(lambda: "waiting for fluxmqctl join" in node.broker.log(), "it waits", SECONDS)
    code, text = join(control, cluster.nodes[0], node, "--address", "localhost")
    assert code == 0, text
    assert text.startswith("node4 is part of cluster fluxmq, with node1, node2, node3\n")
    cluster.nodes.append(node)
    cluster.wait_ready()
    for each in cluster.nodes:
        eventually(partial(knows, control, each, EVERY), "all know it", SECONDS)
    return node


def messages_go_both_ways(stack: ExitStack, old: Node, new: Node) -> None:
    """Subscribers on both nodes get messages of either; a queue that one has is reached from the other."""
    with subscriber(old, "news") as here, subscriber(new, "news") as there:
        for node in (new, old):
            assert Mqtt(node, stack).client().publish("news", b"m", qos=1) == 0
        here.expect(2)
        there.expect(2)
    assert Amqp(new, stack).publish("before", b"one")
    consumer = Amqp(old, stack).consume("before")
    assert consumer.ack(consumer.next()) == 0


def leaves(control: Control, cluster: Cluster, node: Node) -> None:
    """A node leaves in order, once the sessions that it has are elsewhere, and does not come back by itself."""
    with subscriber(node, "later", name="roamer", expiry=600):
        pass
    code, text = control(node, "leave", "--wait", "1")
    assert code == 1
    assert "still has the sessions of roamer" in text
    with subscriber(cluster.nodes[0], name="roamer", expiry=600):
        code, text = control(node, "leave", "--wait", f"{SECONDS:g}")
        assert code == 0, text
    assert f"{node.name} is no longer a member of group 'default'" in text
    cluster.nodes.remove(node)
    for code in (0, 3):
        process = node.broker.process
        assert process is not None
        assert process.wait(SECONDS) == code
        if code == 0:
            node.start()
    node.up = False
    assert "this node has left its cluster" in node.broker.log()
    for each in cluster.nodes:
        eventually(partial(knows, control, each, EVERY[:3]), "all know", SECONDS)


def grows(control: Control, asked: Node, group: str, name: str) -> bool:
    """Whether a node has become a voter of a group."""
    return control(asked, "grow", group, name)[0] == 0


def is_replaced(control: Control, cluster: Cluster, lost: Node, name: str) -> None:
    """A node is lost and forgotten, and another one takes its place in all groups."""
    lost.kill()
    cluster.nodes.remove(lost)
    first = cluster.nodes[0]
    eventually(lambda: control(first, "forget_node", lost.name)[0] == 0, "it is gone", SECONDS)
    node = cluster.newcomer(name)
    code, text = join(control, first, node)
    assert code == 0, text
    assert text.endswith("start it now\n")
    node.start()
    cluster.nodes.append(node)
    cluster.wait_ready()
    for group in GROUPS:  # once its leader has dialled the node
        eventually(partial(grows, control, first, group, name), "it is a voter", SECONDS)
    code, text = control(first, "can-stop")
    assert code == 0, text


def test_a_node_joins_has_copies_and_leaves_and_another_replaces_a_lost_one(
    cluster: Cluster, control: Control
) -> None:
    first, second, third = cluster.nodes
    with ExitStack() as stack:
        Amqp(first, stack).declare("before", {"x-queue-type": "classic"})
        publisher = side("mqtt", first, stack)
        for number in range(20):
            assert publisher.publish("kept", b"%d" % number)
        fourth = has_joined(control, cluster)
        messages_go_both_ways(stack, first, fourth)
        eventually(partial(grows, control, first, GROUP, "node4"), "it is a voter", SECONDS)
        eventually(lambda: control.is_voter_with_all(first, fourth), "it has all", SECONDS)
        assert control(fourth, "transfer", GROUP, "node4")[0] == 0
        consumer = side("amqp", fourth, stack).consume("kept", limit=20)
        came = [consumer.next() for _ in range(10)]
        assert [int(got.body) for got in came] == list(range(10))
        assert [consumer.ack(got) for got in came] == [0] * 10
    leaves(control, cluster, fourth)
    is_replaced(control, cluster, third, "node5")
    # All know each other after a restart, before etcd has a majority.
    for node in cluster.nodes:
        node.kill()
    for node in cluster.nodes:
        node.start()
    cluster.wait_ready()
    with ExitStack() as stack:
        consumer = side("amqp", second, stack).consume("kept", limit=20)
        assert [int(consumer.next().body) for _ in range(10)] == list(range(10, 20))

"""Groups that begin on a node which has joined: it leads them, others go on without it, and it leaves them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial

import pytest
from pika.exceptions import AMQPError  # type: ignore[import-untyped]

from tests.cluster.nodes import NODES, OF_FOURTH, Cluster, Node
from tests.cluster.test_joining import control, has_joined  # noqa: F401 - a fixture
from tests.cluster.test_locators import channel_of, declare
from tests.cluster.test_members import Control
from tests.conformance.client import eventually

pytestmark = pytest.mark.once

SECONDS = 60.0
MESSAGES = 50


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    three = {"cluster": {"raft": {"replication_factor": 3}}}
    made = Cluster(tmp_path_factory.mktemp("joined-groups"), three)
    try:
        made.start()
        yield made
        made.stop()
    finally:
        print(made.log())
        made.end()


def group_of(control: Control, node: Node) -> tuple[str, set[str]]:  # noqa: F811
    """The leader and the members of the group that the fourth node should lead, as a node knows them."""
    code, text = control(node, "members", OF_FOURTH, "--json")
    rows = json.loads(text)["groups"] if code == 0 else []
    members = {each["node"]: each["leads"] for row in rows for each in row["members"]}
    return next((name for name, leads in members.items() if leads), ""), {*members}


def is_led_by_it(control: Control, node: Node) -> bool:  # noqa: F811
    """Whether the fourth node leads its group, with two others."""
    leader, members = group_of(control, node)
    return leader == "node4" and len(members) == 3


def knows_the_set(control: Control, cluster: Cluster) -> bool:  # noqa: F811
    """Whether a queue that is declared on the fourth node would be led there."""
    with channel_of(cluster.nodes[3]) as channel:
        declare(channel, "first", "quorum")
        code, text = control(
            cluster.nodes[3], "list_queues", "--formatter", "json", "name", "group"
        )
        assert code == 0, text
        if {"name": "first", "group": OF_FOURTH} in json.loads(text):
            return True
        channel.queue_delete("first")
    return False


def serves(node: Node) -> bool:
    """Whether a node takes connections, which it may not while the cluster elects leaders."""
    try:
        with channel_of(node):
            return True
    except AMQPError:
        return False


def consumed(node: Node, queue: str, count: int) -> list[bytes]:
    """Messages from the head of a queue, acknowledged."""
    found: list[bytes] = []
    with channel_of(node) as channel:
        for method, _, body in channel.consume(queue, inactivity_timeout=SECONDS):
            assert method is not None, f"only {len(found)} messages came"
            channel.basic_ack(method.delivery_tag)
            found.append(body)
            if len(found) == count:
                return found
    return found


def test_a_node_that_has_joined_leads_new_queues_which_survive_its_loss(
    cluster: Cluster,
    control: Control,  # noqa: F811
) -> None:
    fourth = has_joined(control, cluster)
    eventually(partial(knows_the_set, control, cluster), "the set is known", SECONDS)
    with channel_of(fourth) as channel:
        declare(channel, "orders", "quorum", queue_leader_locator="client-local")
        for number in range(MESSAGES):
            channel.basic_publish("", "orders", b"%d" % number)  # raises if it is not confirmed
    first = cluster.nodes[0]
    eventually(partial(is_led_by_it, control, first), "it leads", SECONDS)
    fourth.kill()
    eventually(partial(serves, first), "clients connect again", SECONDS)
    found = consumed(first, "orders", MESSAGES)
    assert [int(body) for body in found] == list(range(MESSAGES))
    with channel_of(cluster.nodes[1]) as channel:
        for number in range(MESSAGES):
            channel.basic_publish("", "orders", b"%d" % number)
    fourth.start()
    cluster.wait_ready()
    before = group_of(control, first)[1]
    (other,) = {*NODES} - before
    code, text = control(fourth, "leave", "--wait", f"{SECONDS:g}")
    assert code == 0, text
    assert f"{other} has a copy of group '{OF_FOURTH}'" in text
    cluster.nodes.remove(fourth)
    process = fourth.broker.process
    assert process is not None
    assert process.wait(SECONDS) == 0
    fourth.up = False
    leader, members = group_of(control, first)
    assert leader in NODES
    assert members == {*NODES}
    found = consumed(cluster.nodes[2], "orders", MESSAGES)
    assert [int(body) for body in found] == list(range(MESSAGES))

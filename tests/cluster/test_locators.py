"""The leader of a new queue is on the node that its locator says, and returns there."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pika  # type: ignore[import-untyped]
import pytest
from pika.adapters.blocking_connection import (  # type: ignore[import-untyped]
    BlockingChannel,
)

from tests.broker import HOST
from tests.cluster.nodes import NODES, Cluster, Node
from tests.conformance.client import eventually

pytestmark = pytest.mark.once

SECONDS = 90.0
KINDS = ("quorum", "stream", "classic")
GROUPS = [f"leader-{node}" for node in NODES]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes."""
    cluster = Cluster(tmp_path_factory.mktemp("locators"), {})
    try:
        cluster.start()
        yield cluster
        cluster.stop()
    finally:
        print(cluster.log())
        cluster.end()


@contextmanager
def channel_of(node: Node) -> Iterator[BlockingChannel]:
    """A channel in confirm mode to a node."""
    with pika.BlockingConnection(pika.ConnectionParameters(HOST, node.amqp_port)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        yield channel


def declare(
    channel: BlockingChannel, name: str, kind: str, durable: bool = True, **arguments: str
) -> None:
    given = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
    channel.queue_declare(name, durable=durable, arguments={"x-queue-type": kind, **given})


def leaders(node: Node, beginning: str) -> dict[str, str]:
    """The leaders of queues by name, as a node lists them."""
    rows = json.loads(node.broker.control("list_queues", "--formatter", "json", "name", "leader"))
    return {row["name"]: row["leader"] for row in rows if row["name"].startswith(beginning)}


def are_at(node: Node, places: dict[str, str]) -> bool:
    """Whether the leaders of these queues are where they should be."""
    return leaders(node, "local-") == places


def is_even(node: Node, beginning: str) -> bool:
    """Whether each node leads two of these queues."""
    return Counter(leaders(node, beginning).values()) == dict.fromkeys(NODES, 2)


def led(node: Node) -> dict[str, str]:
    """The leaders of the groups that one node should lead."""
    rows = json.loads(node.broker.control("raft", "--json"))["groups"]
    return {row["group"]: row["leader"] for row in rows if row["group"] in GROUPS}


def test_a_queue_is_led_by_the_node_at_which_it_is_declared(cluster: Cluster) -> None:
    for node in cluster.nodes:
        with channel_of(node) as channel:
            for kind in KINDS:
                declare(channel, f"local-{kind}-{node.name}", kind)
                channel.basic_publish("", f"local-{kind}-{node.name}", b"m")
    # Where another node was faster to campaign, leadership goes to the wanted one.
    places = {f"local-{kind}-{node}": node for kind in KINDS for node in NODES}
    for node in cluster.nodes:
        eventually(partial(are_at, node, places), "led as declared", SECONDS)


def test_balanced_queues_are_led_by_all_nodes(cluster: Cluster) -> None:
    first, second, _ = cluster.nodes
    first.broker.control(
        *("set_policy", "spread", "^policy-", '{"queue-leader-locator": "balanced"}'),
    )
    with channel_of(first) as channel, channel_of(second) as other:
        for number in range(6):
            declare(channel, f"quorum-{number}", "quorum", queue_leader_locator="balanced")
            declare(channel, f"classic-{number}", "classic", queue_master_locator="min-masters")
            declare(channel, f"policy-{number}", "quorum")
        for number in range(6):
            name = f"memory-{number}"
            declare(channel, name, "classic", durable=False, queue_master_locator="min-masters")
        for beginning in ("quorum", "classic", "policy", "memory"):
            eventually(partial(is_even, first, f"{beginning}-"), f"{beginning}: two each", SECONDS)
            for name in leaders(first, f"{beginning}-"):
                channel.basic_publish("", name, b"m")
                assert other.basic_get(name, auto_ack=True)[2] == b"m"


@pytest.mark.timeout(300)
def test_a_leader_returns_to_its_node_and_stays_where_an_operator_moves_it(
    cluster: Cluster,
) -> None:
    first, second, third = cluster.nodes
    everywhere = dict(zip(GROUPS, NODES, strict=True))
    eventually(lambda: led(first) == everywhere, "each leads its group", SECONDS)
    third.kill()
    eventually(lambda: led(first)[GROUPS[2]] not in ("", third.name), "another leads", SECONDS)
    first.broker.control("transfer", GROUPS[0], second.name)
    third.start()
    cluster.wait_ready()
    eventually(lambda: led(first)[GROUPS[2]] == third.name, "it returns by itself", SECONDS)
    assert led(first) == {**everywhere, GROUPS[0]: second.name}
    with channel_of(second) as channel:
        assert channel.basic_get(f"local-quorum-{third.name}", auto_ack=True)[2] == b"m"
    assert f"group '{GROUPS[0]}' is led by node1" in second.broker.control("rebalance")
    assert second.broker.control("rebalance") == "leaders are spread evenly\n"
    eventually(lambda: led(third) == everywhere, "each leads its group again", SECONDS)

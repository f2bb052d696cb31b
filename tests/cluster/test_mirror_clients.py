"""Mirrored classic queues on three nodes, as clients and operators see them: consumers when another node
leads, and mirrors that are synchronised when somebody asks for it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pika.adapters.blocking_connection import (  # type: ignore[import-untyped]
    BlockingChannel,
)

from tests.cluster.nodes import Cluster, Node
from tests.cluster.sides import channel_of
from tests.conformance.client import eventually
from tests.management import ManagementSite

pytestmark = pytest.mark.once

SETTINGS: dict[str, Any] = {}
SECONDS = 60.0
MESSAGES = 30


def row_of(node: Node, queue: str) -> dict[str, Any]:
    """The row of a queue as a node lists it."""
    columns = ("name", "leader", "mirror_nodes", "synchronised_mirror_nodes", "messages")
    rows = json.loads(node.broker.control("list_queues", "--formatter", "json", *columns))
    (found,) = [row for row in rows if row["name"] == queue]
    return dict(found)


class Taker:
    """A consumer that acknowledges nothing, and what it was sent."""

    def __init__(self, channel: BlockingChannel, queue: str, **arguments: bool) -> None:
        self.got: list[tuple[bytes, bool]] = []
        named = {name.replace("_", "-"): value for name, value in arguments.items()}
        self.tag = channel.basic_consume(queue, self._take, arguments=named)

    def _take(self, _channel: BlockingChannel, method: Any, _properties: Any, body: bytes) -> None:
        self.got.append((body, method.redelivered))


def test_consumers_are_attached_to_another_leader_or_told(cluster: Cluster) -> None:
    """S4-04, S4-41, S4-42, S4-43, S4-49, S4-50: all that they hold is delivered again, marked as such."""
    first, second, _ = cluster.nodes
    first.broker.control("set_policy", "ha-all", r"^ha\.", '{"ha-mode":"all"}')
    with channel_of(first) as channel:
        channel.queue_declare("ha.taken", durable=True)
        for number in range(MESSAGES):
            channel.basic_publish("", "ha.taken", b"%d" % number)
    with channel_of(second) as channel:
        ended: list[str] = []
        channel.add_on_cancel_callback(lambda frame: ended.append(frame.method.consumer_tag))
        channel.basic_qos(prefetch_count=MESSAGES // 2)
        told = Taker(channel, "ha.taken", x_cancel_on_ha_failover=True)
        kept = Taker(channel, "ha.taken")

        def taken() -> bool:
            channel.connection.process_data_events(0.05)
            return len(told.got) + len(kept.got) == MESSAGES

        eventually(taken, "they hold everything", SECONDS)
        assert not any(redelivered for _, redelivered in told.got + kept.got)
        held = len(kept.got)
        first.kill()

        def again() -> bool:
            channel.connection.process_data_events(0.05)
            return bool(ended) and len(kept.got) >= held + MESSAGES // 2

        eventually(again, "one is told, and the other goes on", SECONDS)
        assert ended == [told.tag]
        assert len(told.got) == MESSAGES - held
        assert all(redelivered for _, redelivered in kept.got[held:])
        anew = Taker(channel, "ha.taken", x_cancel_on_ha_failover=True)
        eventually(lambda: taken() or bool(anew.got), "it may consume anew", SECONDS)
        assert row_of(second, "ha.taken")["leader"] != first.name
    first.start()
    first.broker.wait_ready(SECONDS)


def test_mirrors_are_synchronised_when_somebody_asks_for_it(cluster: Cluster) -> None:
    """S4-19, S4-51, S4-52, S4-54, S4-55, S4-57, S4-75: with messages in the queue, and no sooner."""
    first, *_ = cluster.nodes
    site = ManagementSite(first.http_port)
    with channel_of(first) as channel:
        channel.queue_declare("manual.kept", durable=True)
        channel.queue_declare("manual.http", durable=True)
        for number in range(MESSAGES):
            channel.basic_publish("", "manual.kept", b"%d" % number)
            channel.basic_publish("", "manual.http", b"%d" % number)
    definition = '{"ha-mode":"exactly","ha-params":2}'
    first.broker.control("set_policy", "ha-manual", r"^manual\.", definition)
    eventually(lambda: row_of(first, "manual.kept")["mirror_nodes"], "a mirror is to come", SECONDS)
    assert row_of(first, "manual.kept")["synchronised_mirror_nodes"] == []
    first.broker.control("sync_queue", "manual.kept")
    row = row_of(first, "manual.kept")
    assert len(row["synchronised_mirror_nodes"]) == 1
    assert row["synchronised_mirror_nodes"] == row["mirror_nodes"]
    assert row["messages"] == MESSAGES
    added = "Mirrored queue 'manual.kept' in vhost '/': Adding mirror on node"
    assert f"{added} {row['mirror_nodes'][0]}" in first.broker.log()

    def shown() -> dict[str, Any]:
        return dict(site.get("queues/%2F/manual.http"))

    assert shown()["slave_nodes"]
    assert shown()["synchronised_slave_nodes"] == []
    asked = site.ask("POST", "queues/%2F/manual.http/actions", {"action": "sync"})
    assert asked.status == 204
    eventually(lambda: shown()["synchronised_slave_nodes"], "it is synchronised", SECONDS)
    found = shown()
    assert (found["node"], found["policy"]) == (first.name, "ha-manual")
    assert found["recoverable_slaves"] == found["slave_nodes"] == found["mirror_nodes"]


def test_a_leader_that_a_policy_lists_no_longer_leaves_once_others_are_synchronised(
    cluster: Cluster,
) -> None:
    """S4-15, S4-16, S4-26, S4-27, S4-28: with what it has, and consumers go on."""
    first, second, third = cluster.nodes

    def on(*nodes: str) -> None:
        definition = {"ha-mode": "nodes", "ha-params": nodes, "ha-sync-mode": "automatic"}
        first.broker.control("set_policy", "ha-nodes", r"^nodes\.", json.dumps(definition))

    on(first.name, "nowhere")
    with channel_of(first) as channel:
        channel.queue_declare("nodes.moved", durable=True)
        for number in range(MESSAGES):
            channel.basic_publish("", "nodes.moved", b"%d" % number)
        assert row_of(first, "nodes.moved")["mirror_nodes"] == []
        on(second.name, third.name)
        taker = Taker(channel, "nodes.moved")

        def moved() -> bool:
            channel.connection.process_data_events(0.05)
            row = row_of(second, "nodes.moved")
            nodes = {row["leader"], *(row["synchronised_mirror_nodes"] or ())}
            return nodes == {second.name, third.name}

        eventually(moved, "it is on the nodes that are listed", SECONDS)

        def taken() -> bool:
            channel.connection.process_data_events(0.05)
            return {body for body, _ in taker.got} == {b"%d" % each for each in range(MESSAGES)}

        eventually(taken, "its consumer gets everything", SECONDS)
    leads = row_of(first, "nodes.moved")["leader"]
    (leader,) = [node for node in cluster.nodes if node.name == leads]
    assert row_of(leader, "nodes.moved")["messages"] == MESSAGES

"""Nodes with more than one shard each: started with another number of them, and with groups that change their shard."""

from __future__ import annotations

import json
import re
from contextlib import ExitStack
from typing import Any

import pytest

from tests.cluster.nodes import Cluster, Node
from tests.cluster.sides import side

WORKERS = 2
SETTINGS: dict[str, Any] = {
    "cluster": {"raft": {"ack_timeout": "3s"}},
    "queues": [{"name": "work", "replication": {"enabled": True}}, {"name": "own"}],
}
BROKEN = re.compile(
    r"is set aside|has acknowledged entry|nowhere else|group not forgotten|could not move"
)
"""What a node says when a replica has not kept what it promised."""


def place(node: Node, group: str) -> int:
    """The shard of a node that has a group."""
    rows = json.loads(node.broker.control("groups", "--json"))["groups"]
    (found,) = [row["shard"] for row in rows if row["group"] == group]
    return int(found)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_node_starts_with_another_number_of_shards(cluster: Cluster) -> None:
    """Review finding 13: with another --workers a cluster node ended with code 3, "groups could not move to their shards"."""
    published = 0
    with ExitStack() as stack:

        def publish(node: Node, count: int) -> None:
            nonlocal published
            at = side("mqtt", node, stack)
            for number in range(published, published + count):
                assert at.publish("work", b"%d" % number)
            published += count

        publish(cluster.leader(), 30)
        before = {place(cluster.nodes[0], group) for group in ("default",)}
        seen = set(before)
        for workers, killed, led in ((1, True, False), (3, False, True)):
            node = cluster.leader() if led else cluster.followers()[0]
            others = [other for other in cluster.nodes if other is not node]
            publish(node, 10)
            if killed:
                node.kill()
            else:
                node.stop()
            publish(others[0], 10)
            node.workers = workers
            node.start()
            cluster.wait_ready()
            seen.add(place(node, "default"))
            # From here on the node that was started anew is needed for a majority.
            others[1].kill()
            publish(others[0], 10)
            others[1].start()
            cluster.wait_ready()
        assert len(seen) > 1
        consumer = side("amqp", cluster.followers()[0], stack).consume("work", limit=published)
        came = [int(consumer.next().body) for _ in range(published)]
        assert came == list(range(published))
    assert not BROKEN.findall(cluster.log())


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_members_change_their_shard_while_they_are_used(cluster: Cluster) -> None:
    """Review finding 1: each member in turn, the leader too; no confirmed message is lost, and no member doubts another."""
    for node in cluster.nodes:
        if node.workers != WORKERS:  # as another test has left it
            node.stop()
            node.workers = WORKERS
            node.start()
            cluster.wait_ready()
    with ExitStack() as stack:
        consumer = side("amqp", cluster.followers()[0], stack).consume("work", limit=200)
        publisher = side("mqtt", cluster.followers()[1], stack)
        count = 0
        for node in (*cluster.followers(), cluster.leader()):
            for _ in range(2):
                target = 0 if place(node, "default") else 1
                said = node.broker.control("pin", "default", f"shard-{target}")
                assert "is pinned to" in said
                assert place(node, "default") == target
                for number in range(count, count + 10):
                    assert publisher.publish("work", b"pinned %d" % number)
                count += 10
        came: dict[bytes, None] = {}
        while len(came) < count:
            got = consumer.next()
            if got.body.startswith(b"pinned"):  # not what another test left
                came[got.body] = None
            consumer.ack(got)
        assert list(came) == [b"pinned %d" % number for number in range(count)]
    assert not BROKEN.findall(cluster.log())

"""Groups in which nothing happens: they share their heartbeats, and are as good as others when they are needed."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from tests.cluster.nodes import ELECTION_SECONDS, GROUPS, Cluster, Node
from tests.cluster.sides import side
from tests.conformance.client import eventually

SETTINGS: dict[str, Any] = {
    "cluster": {"raft": {"ack_timeout": "3s"}},
    "queues": [
        {"name": group, "replication": {"enabled": True, "group": group}} for group in GROUPS[:2]
    ],
}


def at_rest(node: Node) -> float:
    """How many groups rest at a node."""
    return sum(node.broker.metrics("fluxmq_raft_groups_at_rest").values())


def sent(node: Node) -> float:
    """Bytes of Raft messages that a node has sent."""
    return sum(node.broker.metrics("fluxmq_raft_bytes_sent_total").values())


def test_groups_at_rest_say_nothing_and_survive_their_leaders(cluster: Cluster) -> None:
    def all_rest() -> bool:
        return all(at_rest(node) >= len(GROUPS[:2]) for node in cluster.nodes if node.up)

    with ExitStack() as stack:
        leader = cluster.leader("default")
        here = side("mqtt", cluster.followers("default")[0], stack)
        assert here.publish("default", b"1")
        eventually(all_rest, "all groups rest", 10)
        before = sum(map(sent, cluster.nodes))
        for _ in range(10):
            assert all_rest()  # each answer takes the nodes some milliseconds
        assert sum(map(sent, cluster.nodes)) == before, (
            "there are no heartbeats but the common ones"
        )
        leader.kill()
        eventually(
            lambda: any(node.led("default") for node in cluster.nodes if node is not leader),
            "another leader",
            2 * ELECTION_SECONDS + 1,
        )
        assert here.publish("default", b"2")
        eventually(all_rest, "they rest without it", 10)
        leader.start()
        cluster.wait_ready()
        eventually(all_rest, "they rest with it again", 10)
        got = side("mqtt", leader, stack).consume("default", limit=2)
        assert [got.next().body, got.next().body] == [b"1", b"2"]

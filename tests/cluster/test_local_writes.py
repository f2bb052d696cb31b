"""`write_policy: local`: a node that does not lead confirms alone, and takes what it keeps to whoever leads."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import pika  # type: ignore[import-untyped]

from tests.broker import HOST
from tests.cluster.nodes import START_SECONDS, Cluster, Node
from tests.cluster.sides import side
from tests.conformance.client import eventually

ELSEWHERE: dict[str, Any] = {"x-queue-type": "quorum", "x-fluxmq-group": "default"}
"""Arguments of a queue that is led by the leader of the default group, wherever it is declared."""
SETTINGS: dict[str, Any] = {
    "cluster": {"raft": {"write_policy": "local", "ack_timeout": "2s"}},
    "queues": [{"name": "work", "replication": {"enabled": True}}],
}


def _sum(node: Node, metric: str) -> float:
    return sum(node.broker.metrics(metric).values())


def _listens(node: Node) -> bool:
    try:
        for port in (node.port, node.amqp_port):
            socket.create_connection((HOST, port)).close()
    except OSError:
        return False
    return True


def _publish(node: Node, bodies: list[bytes], protocols: Sequence[str] = ("mqtt", "amqp")) -> None:
    """An equal part of them over each protocol, all confirmed."""
    with ExitStack() as stack:
        each = len(bodies) // len(protocols)
        for place, protocol in enumerate(protocols):
            part = bodies[place * each : (place + 1) * each]
            here = side(protocol, node, stack)
            assert [here.publish("work", body) for body in part] == [True] * len(part), protocol


def _take(node: Node, count: int) -> list[bytes]:
    """So many messages, acknowledged; and there are no more."""
    with ExitStack() as stack:
        consumer = side("mqtt", node, stack).consume("work", limit=count)
        got = [consumer.next(START_SECONDS) for _ in range(count)]
        assert [consumer.ack(each) for each in got] == [0] * count
        consumer.nothing()
    return [each.body for each in got]


def test_what_one_node_alone_has_confirmed_comes_once_and_in_order_to_the_leader(
    cluster: Cluster,
) -> None:
    """S1-18. An MQTT client that connects needs a majority of the nodes, as its identifier has one owner."""
    leader = cluster.leader()
    alone, other = cluster.followers()
    other.kill()  # first: otherwise the one that is to be alone may be elected in between
    leader.kill()
    bodies = [b"%d" % number for number in range(50)]
    _publish(alone, bodies[:40], ["amqp"])
    assert _sum(alone, "fluxmq_outbox_batches") == 40
    assert "40 batches are on this node only" in alone.broker.control("status")
    alone.kill()
    alone.start()
    eventually(lambda: _listens(alone), "it takes clients without a leader", START_SECONDS)
    assert _sum(alone, "fluxmq_outbox_batches") == 40
    _publish(alone, bodies[40:], ["amqp"])
    assert _sum(alone, "fluxmq_outbox_carried_total") == 0
    for node in (leader, other):
        node.start()
    cluster.wait_ready()
    assert _take(other, len(bodies)) == bodies
    eventually(lambda: not _sum(alone, "fluxmq_outbox_batches"), "nothing is left", START_SECONDS)
    assert _sum(alone, "fluxmq_outbox_carried_total") == len(bodies)
    assert "on this node only" not in alone.broker.control("status")


def test_what_is_published_where_the_queue_is_led_is_not_kept_apart(cluster: Cluster) -> None:
    leader, follower = cluster.leader(), cluster.followers()[0]
    before = {node.name: _sum(node, "fluxmq_outbox_kept_total") for node in cluster.nodes}
    _publish(leader, [b"a", b"b"])
    assert _take(follower, 2) == [b"a", b"b"]
    assert _sum(leader, "fluxmq_outbox_kept_total") == before[leader.name]
    _publish(follower, [b"c", b"d"])
    assert _take(leader, 2) == [b"c", b"d"]
    assert _sum(follower, "fluxmq_outbox_kept_total") == before[follower.name] + 2


def test_what_a_full_queue_does_not_take_is_kept_until_it_does_or_is_deleted(
    cluster: Cluster,
) -> None:
    follower = cluster.followers()[0]
    before = _sum(follower, "fluxmq_outboxes")
    connection = pika.BlockingConnection(pika.ConnectionParameters(HOST, follower.amqp_port))
    channel = connection.channel()
    channel.confirm_delivery()
    limits = {"x-max-length": 1, "x-overflow": "reject-publish"}
    channel.queue_declare("narrow", durable=True, arguments={**ELSEWHERE, **limits})
    for body in (b"a", b"b", b"c"):
        channel.basic_publish("", "narrow", body)
    eventually(lambda: _sum(follower, "fluxmq_outbox_refused_total"), "it is full", START_SECONDS)
    for body in (b"a", b"b"):
        got = eventually(
            lambda: next(iter([each for each in [channel.basic_get("narrow")] if each[0]]), None),
            "there is one",
            START_SECONDS,
        )
        assert got[2] == body
        channel.basic_ack(got[0].delivery_tag)
    channel.basic_publish("", "narrow", b"d")
    assert _sum(follower, "fluxmq_outboxes") == before + 1
    channel.queue_delete("narrow")
    eventually(
        lambda: _sum(follower, "fluxmq_outboxes") == before, "it went with its queue", START_SECONDS
    )
    eventually(
        lambda: not _sum(follower, "fluxmq_outbox_batches"), "nothing is left", START_SECONDS
    )
    connection.close()


def test_a_queue_that_is_declared_again_gets_all_that_was_acknowledged_for_it(
    cluster: Cluster,
) -> None:
    """Review finding 2: ten QoS 1 publishes at a follower, delete, declare, repeat: ten each time, not 10, 7 and 5."""
    follower = cluster.followers()[0]
    refused = _sum(follower, "fluxmq_outbox_refused_total")
    connection = pika.BlockingConnection(pika.ConnectionParameters(HOST, follower.amqp_port))
    channel = connection.channel()
    stored: list[list[bytes]] = []
    wanted: list[list[bytes]] = []
    for turn in range(3):
        channel.queue_declare("again", durable=True, arguments=ELSEWHERE)
        with ExitStack() as stack:
            here = side("mqtt", follower, stack)
            bodies = [b"%d %d" % (turn, number) for number in range(10)]
            assert [here.publish("again", body) for body in bodies] == [True] * len(bodies)
        eventually(
            lambda: not _sum(follower, "fluxmq_outbox_batches"), "all is carried", START_SECONDS
        )
        taking = connection.channel()  # one of its own: it has met no queue of that name before
        got = []
        while (message := taking.basic_get("again", auto_ack=True))[0]:
            got.append(message[2])
        stored.append(got)
        wanted.append(bodies)
        channel.queue_delete("again")
    assert stored == wanted
    assert _sum(follower, "fluxmq_outbox_refused_total") == refused
    connection.close()


def test_what_an_acknowledgement_means_is_said(cluster: Cluster) -> None:
    node = cluster.nodes[0]
    rows = [line.split() for line in node.broker.control("groups").splitlines()]
    said = {row[0]: row for row in rows if row}
    assert "local" in said["default"]
    assert node.broker.metrics("fluxmq_queues")[(("durability", "local"), ("shard", "0"))] == 1
    assert "cluster.raft.write_policy is local: " in node.broker.log()

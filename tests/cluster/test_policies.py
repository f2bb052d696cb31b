"""What clusters are told to do otherwise: refuse where the leader is not, answer earlier or later, keep groups elsewhere."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from tests.cluster.nodes import NODE_FOLDER, Cluster
from tests.cluster.sides import Mqtt, side
from tests.conformance import wire
from tests.conformance.client import Client, eventually, tcp

IMPLEMENTATION_SPECIFIC_ERROR = 0x83


def _queue(name: str, **replication: Any) -> dict[str, Any]:
    return {"name": name, "replication": {"enabled": True, **replication}}


ELSEWHERE = "elsewhere"
"""Beside a node's data directory."""
SETTINGS: dict[str, Any] = {
    "cluster": {
        "raft": {
            "write_policy": "reject",
            "ack_timeout": "20s",
            "min_in_sync_replicas": 2,
            "groups": {"default": {"data_dir": f"{NODE_FOLDER}/{ELSEWHERE}"}},
        }
    },
    "queues": [
        {**_queue("work"), "dlq": {"enabled": True, "topic": "$queue/dead"}},
        _queue("dead", group="other"),
        _queue("careful", min_in_sync_replicas=3, ack_timeout="500ms"),
        _queue("hasty", mode="async", ack_timeout="500ms"),
    ],
}


def test_where_the_leader_is_not_appends_are_refused_and_the_leader_is_named(
    cluster: Cluster,
) -> None:
    """S1-17."""
    leader, (node, _) = cluster.leader(), cluster.followers()
    with ExitStack() as stack:
        here = side("mqtt", node, stack)
        assert isinstance(here, Mqtt)
        client = here.client()
        for qos, kind in ((1, wire.PUBACK), (2, wire.PUBREC)):
            client.send(wire.publish(wire.V5, "$queue/work", b"", qos=qos, packet_id=qos))
            answer = client.expect(kind)
            assert answer.reason == IMPLEMENTATION_SPECIFIC_ERROR
            assert answer.property(wire.REASON_STRING) == f"group default is led by {leader.name}"
        silent = here.client(props=[(wire.REQUEST_PROBLEM_INFORMATION, 0)])
        silent.send(wire.publish(wire.V5, "$queue/work", b"", qos=1, packet_id=1))
        answer = silent.expect(wire.PUBACK)
        assert (answer.reason, answer.properties) == (IMPLEMENTATION_SPECIFIC_ERROR, [])
        old = stack.enter_context(Client(tcp("127.0.0.1", node.port), wire.V4))
        old.connect("old")
        old.send(wire.publish(wire.V4, "$queue/work", b"", qos=1, packet_id=1))
        old.expect_closed()
        assert not side("amqp", node, stack).publish("work", b"")
        refused = node.broker.metrics("fluxmq_queue_batches_refused_total")
        assert sum(value for labels, value in refused.items() if "not_leader" in str(labels)) == 5
        assert f"leader={leader.name}" in node.broker.log()
        # Nothing of it was stored; the leader takes it, and consumers are anywhere.
        for protocol in ("mqtt", "amqp"):
            assert side(protocol, leader, stack).publish("work", protocol.encode())
        consumer = here.consume("work")
        got = [consumer.next(), consumer.next()]
        assert [each.body for each in got] == [b"mqtt", b"amqp"]
        # What queues send each other is forwarded all the same, wherever the other's group is led.
        assert [consumer.reject(each) for each in got] == [0, 0]
        undertaker = here.consume("dead")
        assert sorted(undertaker.next().body for _ in got) == [b"amqp", b"mqtt"]


def test_a_group_is_where_its_data_dir_says(cluster: Cluster) -> None:
    for node in cluster.nodes:
        link = node.folder / "data" / "groups" / "default"
        assert link.is_symlink()
        assert link.resolve() == (node.folder / ELSEWHERE).resolve()
        assert (node.folder / ELSEWHERE / "queues").is_dir()


def test_each_queue_says_how_safe_it_wants_to_be_and_how_long_it_waits(cluster: Cluster) -> None:
    leader, (one, two) = cluster.leader(), cluster.followers()
    with ExitStack() as stack:
        here = side("mqtt", leader, stack)
        assert isinstance(here, Mqtt)
        for queue in ("careful", "work", "hasty"):
            assert here.publish(queue, b"all three")
        two.kill()
        # Committed by two of three: enough for one queue, and not for the one that wants three.
        assert here.publish("work", b"two of three")
        assert here.answer("careful", b"two of three") == IMPLEMENTATION_SPECIFIC_ERROR
        one.pause()
        try:
            # The leader alone, as long as it believes that it leads.
            assert here.answer("hasty", b"one of three") == 0
        finally:
            one.resume()
        two.start()
        cluster.wait_ready()
        leading = cluster.leader()
        there = side("mqtt", leading, stack)
        eventually(lambda: there.publish("careful", b"all again"), "three have it again")

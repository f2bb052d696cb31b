"""What becomes of messages and of those who hold them when the leader's node is gone."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from tests.cluster.nodes import Cluster
from tests.cluster.sides import Consumer, side
from tests.conformance.client import eventually

MESSAGES = 60
MODES = {"forward": "default", "replicate": "other"}
"""A queue of each mode, each in a group of its own."""
SETTINGS: dict[str, Any] = {
    "cluster": {"raft": {"ack_timeout": "3s"}},
    "queues": [
        {
            "name": mode,
            "consumer": {"delivery_limit": -1},
            "replication": {"enabled": True, "group": group, "distribution_mode": mode},
        }
        for mode, group in MODES.items()
    ],
}
REFUSED = 0x83


def test_a_lost_leader_takes_no_confirmed_message_and_no_acknowledgement_along(
    cluster: Cluster,
) -> None:
    """S2-28, S2-29, S2-32."""
    leader = cluster.leader("default")
    mine, theirs = cluster.followers("default")
    with ExitStack() as stack:
        publisher = side("amqp", mine, stack)
        consumer = side("mqtt", theirs, stack).consume("forward", limit=MESSAGES)
        bystander = side("amqp", mine, stack).consume("replicate", limit=MESSAGES)
        for number in range(MESSAGES // 2):
            assert publisher.publish("forward", b"%d" % number)
        held = [consumer.next() for _ in range(MESSAGES // 2)]
        assert [int(got.body) for got in held] == list(range(MESSAGES // 2))
        done = held[:10]
        assert [consumer.ack(got) for got in done] == [0] * len(done)
        leader.kill()
        # Nobody publishes twice here: what the leader had not answered is asked again of the next one, and kept once.
        for number in range(MESSAGES // 2, MESSAGES):
            assert publisher.publish("forward", b"%d" % number)
        assert cluster.leader("default") is not leader
        came = [consumer.next() for _ in range(MESSAGES - len(done))]
        assert [int(got.body) for got in came] == list(range(len(done), MESSAGES))
        again = [int(got.body) for got in came if got.again]
        assert again[: len(held) - len(done)] == list(range(len(done), len(held)))
        assert [consumer.ack(got) for got in came] == [0] * len(came)
        consumer.nothing()
        # Who was gone comes back.
        leader.start()
        cluster.wait_ready()
        back = side("mqtt", leader, stack)
        assert back.publish("forward", b"after")
        got = consumer.next()
        assert (got.body, got.again) == (b"after", False)
        assert consumer.ack(got) == 0
        assert publisher.publish("replicate", b"unhurt")
        assert bystander.next().body == b"unhurt"


def test_settlements_fail_while_nobody_leads_and_are_applied_nowhere(
    cluster: Cluster,
) -> None:
    """S2-31."""
    leader = cluster.leader("default")
    node, gone = cluster.followers("default")
    with ExitStack() as stack:
        here = side("mqtt", node, stack)
        consumer = here.consume("forward")
        assert here.publish("forward", b"held")
        held = consumer.next()
        gone.kill()
        leader.kill()
        eventually(lambda: _settled_by_nobody(consumer, held), "the leader's loss is noticed")
        assert not here.publish(
            "forward", b"unknown"
        )  # nor is a publish answered as if it were safe
    leader.start()
    gone.start()
    cluster.wait_ready()
    cluster.leader("default")
    # The node may have disconnected its MQTT clients meanwhile, as it had no majority to own them by.
    with ExitStack() as stack:
        consumer = side("mqtt", node, stack).consume("forward")
        again = consumer.next()
        assert (again.body, again.again) == (b"held", True)
        assert consumer.ack(again) == 0


def _settled_by_nobody(consumer: Consumer, held: Any) -> bool:
    """Settle; whether that was refused for want of a leader. While its loss is not known nobody answers at all."""
    reason = consumer.ack(held)
    assert reason != 0
    return reason == REFUSED

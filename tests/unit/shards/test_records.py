"""The record of subscriptions and consumers in etcd says what is true, wherever clients go."""

from __future__ import annotations

import asyncio

import pytest

from fluxmq.ipc.record_messages import RECORD_AGAIN, ConsumerValue, SubscriptionValue
from fluxmq.shards import records
from fluxmq.shards.records import REFUSED_SECONDS
from tests.conformance import wire
from tests.unit.shards.net_of_nodes import Net
from tests.unit.shards.pipes import Clock
from tests.unit.shards.plane import Plane, RecordKey
from tests.unit.shards.test_sessions_cluster import MakePlane, begin, make_plane, present

__all__ = ["make_plane"]


def recorded(plane: Plane) -> dict[RecordKey, str]:
    """Everything that is recorded, and which node has told it."""
    plane.net.advance(0.2)
    return {key: node for key, ((node, _), _) in plane.records.items()}


def test_subscriptions_are_recorded(make_plane: MakePlane) -> None:
    """S1-06, S2-06: with the filter as the client wrote it."""
    plane = make_plane(1, 1)
    client = begin(plane, 0)
    client.take(wire.CONNACK)
    plain = wire.Filter("a/#", 1, no_local=True, retain_as_published=True)
    client.subscribe(plain, props=[(wire.SUBSCRIPTION_IDENTIFIER, 7)])
    client.subscribe("$share/g/b", qos=2)
    assert recorded(plane) == {("c", "a/#"): "n0", ("c", "$share/g/b"): "n0"}
    (_, value) = plane.records["c", "a/#"]
    assert value == SubscriptionValue(
        "n0", 1, no_local=True, retain_as_published=True, subscription_identifier=7
    )
    client.subscribe("a/#", qos=0)
    recorded(plane)
    assert plane.records["c", "a/#"][1] == SubscriptionValue("n0", 0)
    client.unsubscribe("a/#")
    assert recorded(plane) == {("c", "$share/g/b"): "n0"}


def test_subscriptions_go_with_their_session(make_plane: MakePlane) -> None:
    plane = make_plane(1, 1)
    client = begin(plane, 0, props=[], clean=True)
    client.take(wire.CONNACK)
    client.subscribe("t")
    assert recorded(plane) == {("c", "t"): "n0"}
    client.disconnect(0)
    assert recorded(plane) == {}
    kept = begin(plane, 0, props=[(wire.SESSION_EXPIRY_INTERVAL, 10)])
    kept.take(wire.CONNACK)
    kept.subscribe("t")
    kept.drop()
    assert recorded(plane) == {("c", "t"): "n0"}
    plane.net.advance(11)
    assert recorded(plane) == {}


@pytest.mark.parametrize("clean", [False, True])
def test_the_record_follows_a_session(make_plane: MakePlane, clean: bool) -> None:
    """A subscription that ended before it was recorded is not found at the next node."""
    plane = make_plane(2, 1)
    client = begin(plane, 0)
    client.take(wire.CONNACK)
    client.subscribe("one", "two", "three")
    recorded(plane)
    client.unsubscribe("one")
    there = begin(plane, 0, shard=1)
    assert present(there)
    assert recorded(plane) == {("c", "two"): "n0", ("c", "three"): "n0"}
    there.unsubscribe("two")
    elsewhere = begin(plane, 1, clean=clean)
    assert present(elsewhere) != clean
    left = {} if clean else {("c", "three"): "n1"}
    assert recorded(plane) == left
    back = begin(plane, 0)
    assert present(back)
    assert recorded(plane) == dict.fromkeys(left, "n0")


def test_a_session_is_recorded_once_its_id_is_owned(make_plane: MakePlane) -> None:
    """S2-12: sessions of a node that has restarted are there before their ids are."""
    plane = make_plane(1, 1)
    client = begin(plane, 0)
    client.take(wire.CONNACK)
    owner = plane.owners.pop("c")
    client.subscribe("t", qos=1)
    assert recorded(plane) == {}
    plane.owners["c"] = owner
    plane.net.advance(REFUSED_SECONDS)
    assert recorded(plane) == {("c", "t"): "n0"}


def test_queue_consumers_are_recorded(make_plane: MakePlane) -> None:
    """S2-07, S2-25: while they consume."""
    plane = make_plane(1, 2)
    client = begin(plane, 1, shard=1)
    client.take(wire.CONNACK)
    share = wire.Filter("$share/billing/$queue/orders", 1)
    client.subscribe(share)
    consumer = "orders", "billing", "c"
    assert recorded(plane)[consumer] == "n1"
    assert plane.records[consumer][1] == ConsumerValue("n1", 1)
    assert plane.records["c", "$share/billing/$queue/orders"][1] == SubscriptionValue("n1", 1)
    client.drop()
    assert consumer not in recorded(plane)
    begin(plane, 0)
    assert recorded(plane)[consumer] == "n0"


def test_everything_is_told_to_a_control_process_that_restarts(make_plane: MakePlane) -> None:
    plane = make_plane(1, 1)
    clients = [begin(plane, 0, f"c{number}") for number in range(70)]
    for client in clients:
        client.take(wire.CONNACK)
        client.subscribe("t", "$queue/q", qos=1)
    before = recorded(plane)
    assert len(before) == 3 * len(clients)
    (connection,) = plane.of(0)
    connection.lose()
    clients[0].unsubscribe("t")
    plane.net.advance(1)
    connection.back()
    plane.net.advance(1)
    assert recorded(plane) == {key: node for key, node in before.items() if key != ("c0", "t")}
    plane.records.clear()
    connection.command(RECORD_AGAIN, {})
    plane.net.advance(1)
    assert len(recorded(plane)) == 3 * len(clients) - 1


def test_changes_that_wait_are_bounded(
    make_plane: MakePlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the end the record is right, and the changes that were dropped are counted."""
    monkeypatch.setattr(records, "MARKS_MAX", 10)
    plane = make_plane(1, 1)
    client = begin(plane, 0)
    client.take(wire.CONNACK)
    plane.refusing = True
    client.subscribe(*(f"t/{number}" for number in range(12)))
    client.unsubscribe("t/0")
    plane.net.advance(1)
    plane.refusing = False
    plane.net.advance(1)
    assert len(recorded(plane)) == 11
    shard = plane.net.nodes[0][0]
    samples = {name: value for user in shard.control_users for name, _, value in user.samples()}
    assert samples["fluxmq_cluster_records_dropped_total"] >= 11


def test_a_request_that_fails_is_made_again(make_plane: MakePlane) -> None:
    plane = make_plane(1, 1)
    client = begin(plane, 0)
    client.take(wire.CONNACK)
    plane.refusing = True
    client.subscribe("t", "$queue/q", qos=1)
    assert recorded(plane) == {}
    plane.refusing = False
    plane.net.advance(1)
    assert set(recorded(plane)) == {("c", "t"), ("c", "$queue/q"), ("q", "c", "c")}


def test_the_record_may_be_off(clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
    """``cluster.etcd.records: false``: clients are served all the same."""
    net = Net(clock, loop, 1, 1, etcd={"records": False})
    try:
        plane = Plane(net, rules_ids=True)
        net.advance(1)
        client = begin(plane, 0)
        client.take(wire.CONNACK)
        client.subscribe("t", "$queue/q", qos=1)
        assert recorded(plane) == {}
    finally:
        net.close()

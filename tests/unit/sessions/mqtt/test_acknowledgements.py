"""Acknowledgements of messages sent to clients, in any order and with any reason."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.conformance import wire
from tests.conformance.client import Client
from tests.unit.shards.node import Node, drain

MakeNode = Callable[..., Node]
PUBACK, PUBREC, PUBREL, PUBCOMP = wire.PUBACK, wire.PUBREC, wire.PUBREL, wire.PUBCOMP


@pytest.fixture
def node(make_node: MakeNode) -> Node:
    """One shard."""
    return make_node(1)


def subscriber(node: Node, qos: int, count: int, window: int = 10, version: int = 5) -> Client:
    """A client with `count` messages for it, as many sent as its window allows."""
    props = ((wire.RECEIVE_MAXIMUM, window),) if version == 5 else ()
    client = node.connect(0, "c", version=version, props=props)
    client.subscribe("t", qos=qos)
    node.connect(0, "p").send(
        *(wire.publish(5, "t", b"%d" % n, qos=qos, packet_id=n + 1) for n in range(count))
    )
    node.run()
    return client


def inflight(node: Node) -> int:
    """Messages of the subscriber that count against its window."""
    found: int = node[0].session("c").delivery.inflight
    return found


@pytest.mark.parametrize("order", ["forwards", "backwards", "shuffled"])
def test_qos_1_in_any_order(node: Node, order: str) -> None:
    client = subscriber(node, 1, 10)
    ids = [packet.packet_id for packet in drain(client)]
    assert len(ids) == 10
    if order == "backwards":
        ids.reverse()
    elif order == "shuffled":
        ids = ids[::2] + ids[1::2]
    for left, packet_id in zip(reversed(range(10)), ids, strict=True):
        client.send(wire.acknowledge(PUBACK, packet_id))
        node.run()
        assert inflight(node) == left
    client.drop()
    assert node[0].session("c") is None


def test_acknowledged_twice_or_never_sent(node: Node) -> None:
    """Neither opens the window further than it is."""
    client = subscriber(node, 1, 10, window=2)
    first, _ = drain(client)
    for packet_id in (first.packet_id, first.packet_id, 999):
        client.send(wire.acknowledge(PUBACK, packet_id))
    assert len(drain(client)) == 1
    assert inflight(node) == 2
    client.send(wire.acknowledge(PUBREC, 999))
    (answer,) = drain(client)
    assert (answer.kind, answer.reason) == (PUBREL, 0x92)
    client.send(wire.acknowledge(PUBCOMP, 999))
    assert drain(client) == []
    assert inflight(node) == 2


@pytest.mark.parametrize("reason", [0x10, 0x80, 0x87, 0x97, 0x99])
@pytest.mark.parametrize("qos", [1, 2])
def test_with_a_reason(node: Node, qos: int, reason: int) -> None:
    """An error ends the message; it is not sent again [MQTT-4.3.3-4 ff.]."""
    client = subscriber(node, qos, 2, window=1)
    (packet,) = drain(client)
    client.send(wire.acknowledge(PUBACK if qos == 1 else PUBREC, packet.packet_id, reason))
    answers = drain(client)
    if qos == 2 and reason < 0x80:
        assert [a.kind for a in answers] == [PUBREL]
    else:
        assert [a.payload for a in answers] == [b"1"]
    assert inflight(node) == 1


def test_the_window_of_qos_2_opens_at_pubcomp(node: Node) -> None:
    client = subscriber(node, 2, 2, window=1)
    (packet,) = drain(client)
    client.send(wire.acknowledge(PUBREC, packet.packet_id))
    assert [a.kind for a in drain(client)] == [PUBREL]
    client.send(wire.acknowledge(PUBREC, packet.packet_id))
    assert [a.kind for a in drain(client)] == [PUBREL], "PUBREC again is answered again"
    client.send(wire.acknowledge(PUBCOMP, packet.packet_id))
    assert [a.payload for a in drain(client)] == [b"1"]
    client.send(wire.acknowledge(PUBCOMP, packet.packet_id), wire.acknowledge(PUBCOMP, 77))
    assert drain(client) == []
    assert inflight(node) == 1


@pytest.mark.parametrize("version", [4, 5])
def test_an_identifier_nobody_knows(node: Node, version: int) -> None:
    """5.0 says so; 3.1.1 can only go on."""
    client = node.connect(0, "c", version=version)
    client.send(
        wire.acknowledge(PUBACK, 7),
        wire.acknowledge(PUBREC, 7),
        wire.acknowledge(PUBREL, 7),
        wire.acknowledge(PUBCOMP, 7),
    )
    expected = 0x92 if version == 5 else 0
    assert [(p.kind, p.reason) for p in drain(client)] == [(PUBREL, expected), (PUBCOMP, expected)]


def test_mixed_qualities_share_one_window(node: Node) -> None:
    client = node.connect(0, "c", props=((wire.RECEIVE_MAXIMUM, 4),))
    client.subscribe("t", qos=2)
    publisher = node.connect(0, "p")
    for number in range(12):
        publisher.publish("t", b"%d" % number, qos=number % 3)
    got = [(p.qos, p.payload) for p in drain(client)]
    assert [payload for qos, payload in got if qos == 0] == [b"0", b"3", b"6", b"9"]
    assert [payload for qos, payload in got if qos] == [b"1", b"2", b"4", b"5"]
    assert inflight(node) == 4
    assert node[0].session("c").delivery.pending_count == 4


def test_identifiers_go_round(node: Node) -> None:
    """More messages than there are identifiers; one that waits for PUBCOMP keeps its own."""
    client = subscriber(node, 2, 1, window=50)
    (held,) = drain(client)
    client.send(wire.acknowledge(PUBREC, held.packet_id))
    assert [packet.kind for packet in drain(client)] == [PUBREL]
    publisher = node.connect(0, "p", version=4)
    total, step = 66_000, 1000
    for _ in range(total // step):
        publisher.send(*(wire.publish(4, "t", b"x", qos=1, packet_id=n + 1) for n in range(step)))
        left = step
        while left:
            packets = drain(client)
            assert packets
            assert all(packet.packet_id != held.packet_id for packet in packets)
            left -= len(packets)
            client.send(*(wire.acknowledge(PUBACK, packet.packet_id) for packet in packets))
        drain(publisher)
    assert inflight(node) == 1


def test_a_window_of_its_own_for_each_connection(node: Node) -> None:
    """What was in flight is sent again, as far as the new window allows."""
    lasting = (wire.SESSION_EXPIRY_INTERVAL, 100)
    client = node.connect(0, "c", props=(lasting,))
    client.subscribe("t", qos=1)
    publisher = node.connect(0, "p")
    for number in range(6):
        publisher.publish("t", b"%d" % number, qos=1)
    assert len(drain(client)) == 6
    client.drop()
    back = node.connect(0, "c", clean=False, props=(lasting, (wire.RECEIVE_MAXIMUM, 2)))
    found = []
    while packets := drain(back):
        assert len(packets) <= 2
        assert all(packet.dup for packet in packets)
        found += [packet.payload for packet in packets]
        back.send(*(wire.acknowledge(PUBACK, packet.packet_id) for packet in packets))
    assert found == [b"%d" % number for number in range(6)]


@pytest.mark.parametrize("policy", ["evict", "reject"])
def test_the_queue_of_an_absent_client_is_bounded(make_node: MakeNode, policy: str) -> None:
    node = make_node(1, {"session": {"max_offline_queue_size": 5, "offline_queue_policy": policy}})
    lasting = ((wire.SESSION_EXPIRY_INTERVAL, 100),)
    client = node.connect(0, "c", props=lasting)
    client.subscribe("t", qos=1)
    client.drop()
    publisher = node.connect(0, "p")
    for number in range(9):
        publisher.publish("t", b"%d" % number, qos=1)
    back = node.connect(0, "c", clean=False, props=lasting)
    kept = range(4, 9) if policy == "evict" else range(5)
    assert [packet.payload for packet in drain(back)] == [b"%d" % number for number in kept]
    assert node[0].reactor.tally.dropped_full == 4


def test_the_long_form(node: Node) -> None:
    """With reason and properties, both ways through QoS 2."""
    reason = ((wire.REASON_STRING, "fine"),)
    client = subscriber(node, 2, 1)
    (packet,) = drain(client)
    client.send(wire.acknowledge(PUBREC, packet.packet_id, 0, reason))
    assert [p.kind for p in drain(client)] == [PUBREL]
    client.send(wire.acknowledge(PUBCOMP, packet.packet_id, 0, reason))
    assert drain(client) == []
    assert inflight(node) == 0
    client.send(wire.publish(5, "u", b"x", qos=2, packet_id=3))
    assert [p.kind for p in drain(client)] == [PUBREC]
    client.send(wire.acknowledge(PUBREL, 3, 0, reason))
    assert [(p.kind, p.reason) for p in drain(client)] == [(PUBCOMP, 0)]


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize(
    "packet",
    [
        b"\x20\x02\0\0",
        b"\x90\x03\0\1\0",
        b"\xb0\x02\0\1",
        b"\xd0\0",
        b"\x40\x02\0\0",
        b"\x50\x02\0\0",
        b"\x62\x02\0\0",
        b"\x70\x02\0\0",
        b"\x60\x02\0\1",
        b"\xc1\0",
        b"\xc0\1\0",
    ],
)
def test_packets_that_clients_do_not_send(node: Node, version: int, packet: bytes) -> None:
    client = node.connect(0, "c", version=version)
    client.send(packet)
    found = [(p.kind, p.reason) for p in drain(client)]
    assert client.closed
    if version == 5:
        assert [(kind, reason in (0x81, 0x82)) for kind, reason in found] == [
            (wire.DISCONNECT, True)
        ]
    else:
        assert found == []


WRONG = [
    (1, (), PUBREC, 0),
    (1, (), PUBREC, 0x80),
    (1, (), PUBCOMP, 0),
    (2, (), PUBACK, 0),
    (2, (), PUBACK, 0x80),
    (2, (), PUBCOMP, 0),
    (2, (), PUBCOMP, 0x92),
    (2, (PUBREC,), PUBACK, 0),
]


@pytest.mark.parametrize(("qos", "before", "kind", "reason"), WRONG)
@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("position", [0, 1])
def test_the_wrong_kind_ends_the_connection(
    node: Node,
    qos: int,
    before: tuple[int, ...],
    kind: int,
    reason: int,
    version: int,
    position: int,
) -> None:
    """Row F7: PUBREC for QoS 1, PUBACK for QoS 2, PUBCOMP before PUBREC are protocol errors: their message would be
    waited for without end."""
    client = subscriber(node, qos, 3, version=version)
    packet_id = drain(client)[position].packet_id
    for each in before:
        client.send(wire.acknowledge(each, packet_id))
        assert [packet.kind for packet in drain(client)] == [PUBREL]
    client.send(wire.acknowledge(kind, packet_id, reason if version == 5 else None))
    answers = [(packet.kind, packet.reason) for packet in drain(client)]
    assert answers == ([(wire.DISCONNECT, 0x82)] if version == 5 else [])
    assert client.closed
    assert node[0].broker.counts.errors[0x82] == 1


def test_the_wrong_kind_in_a_run_of_answers(node: Node) -> None:
    """Row F7: what was right in front of it counts."""
    client = node.connect(0, "c", props=((wire.SESSION_EXPIRY_INTERVAL, 1000),))
    client.subscribe("t", qos=2)
    publisher = node.connect(0, "p")
    for qos in (1, 1, 2):
        publisher.publish("t", b"%d" % qos, qos=qos)
    ids = [packet.packet_id for packet in drain(client)]
    client.send(*(wire.acknowledge(PUBACK, packet_id) for packet_id in ids))
    assert [(packet.kind, packet.reason) for packet in drain(client)] == [(wire.DISCONNECT, 0x82)]
    again = node.connect(0, "c", clean=False, props=((wire.SESSION_EXPIRY_INTERVAL, 1000),))
    assert [packet.qos for packet in drain(again)] == [2]


def test_a_right_answer_given_again_is_none_of_the_wrong_kind(node: Node) -> None:
    """Row F7: a client that repeats itself goes on."""
    client = subscriber(node, 2, 3)
    ids = [packet.packet_id for packet in drain(client)]
    for packet_id in (ids[0], ids[1], ids[0]):
        client.send(wire.acknowledge(PUBREC, packet_id))
    assert [packet.kind for packet in drain(client)] == [PUBREL] * 3
    for packet_id in (ids[0], ids[0]):
        client.send(wire.acknowledge(PUBCOMP, packet_id))
    assert client.ping() == []
    assert inflight(node) == 2

"""PUBLISH off the short way: permissions, aliases, QoS 2, limits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fluxmq.sessions.mqtt.publishing import ALLOWED_MAX
from fluxmq.shards.transfer import received_of
from tests.broker import merged
from tests.conformance import wire
from tests.conformance.client import Client
from tests.unit.shards.node import Node, drain, messages

MakeNode = Callable[..., Node]
ALIAS = wire.TOPIC_ALIAS


@pytest.fixture
def node(make_node: MakeNode) -> Node:
    """One shard."""
    return make_node(1)


def listening(node: Node, *filters: str, qos: int = 2) -> Client:
    """A client that hears what is published."""
    client = node.connect(0, "listener")
    client.subscribe(*(filters or ("#",)), qos=qos)
    return client


def errors(client: Client) -> list[int]:
    """Reason codes of the DISCONNECTs a client got; it must be closed."""
    found = [packet.reason for packet in drain(client) if packet.kind == wire.DISCONNECT]
    assert client.closed
    return found


def qos2(payload: bytes, packet_id: int, topic: str = "t", **fields: Any) -> bytes:
    """A PUBLISH of QoS 2."""
    return wire.publish(5, topic, payload, qos=2, packet_id=packet_id, **fields)


def test_qos_2_duplicates_inside_one_run(node: Node) -> None:
    """Whatever stands in one read: every identifier is routed once, and answered every time."""
    listener, publisher = listening(node), node.connect(0, "p")
    publisher.send(qos2(b"1", 1), qos2(b"2", 2), qos2(b"1", 1), qos2(b"3", 3), qos2(b"2", 2))
    assert [(p.kind, p.packet_id, p.reason) for p in drain(publisher)] == [
        (wire.PUBREC, number, 0) for number in (1, 2, 1, 3, 2)
    ]
    assert messages(listener) == [b"1", b"2", b"3"]
    publisher.send(qos2(b"3", 3, dup=True), qos2(b"4", 4))
    assert [p.packet_id for p in drain(publisher)] == [3, 4]
    assert messages(listener) == [b"4"]
    publisher.send(wire.acknowledge(wire.PUBREL, 3), qos2(b"new", 3))
    assert [p.kind for p in drain(publisher)] == [wire.PUBCOMP, wire.PUBREC]
    assert messages(listener) == [b"new"]


def test_qos_2_duplicates_of_retained_messages(node: Node) -> None:
    publisher = node.connect(0, "p")
    publisher.send(
        qos2(b"old", 1, retain=True), qos2(b"new", 2, retain=True), qos2(b"old", 1, retain=True)
    )
    node.run()
    kept = node[0].broker.retained.message(b"t")
    assert kept is not None
    assert kept.payloads() == [b"new"]


def test_a_duplicate_to_a_topic_that_is_none(node: Node) -> None:
    publisher = node.connect(0, "p")
    publisher.send(qos2(b"x", 1), qos2(b"x", 1, topic="t"), qos2(b"x", 2, topic="a/#"))
    assert errors(publisher) == [0x90]


@pytest.mark.parametrize("at_once", [True, False])
def test_more_unreleased_messages_than_allowed(make_node: MakeNode, at_once: bool) -> None:
    """[MQTT-3.3.4-9]: the receive maximum told in CONNACK."""
    node = make_node(1, {"session": {"max_inflight_messages": 5}})
    listener, publisher = listening(node), node.connect(0, "p")
    packets = [qos2(b"%d" % number, number) for number in range(1, 7)]
    if at_once:
        publisher.send(*packets)
    else:
        for packet in packets:
            publisher.send(packet)
            node.run()
    assert errors(publisher) == [0x93]
    assert len(messages(listener)) == (0 if at_once else 5)


def test_released_identifiers_count_no_more(make_node: MakeNode) -> None:
    node = make_node(1, {"session": {"max_inflight_messages": 2}})
    publisher = node.connect(0, "p")
    for number in range(1, 100):
        assert publisher.publish("t", b"x", qos=2, packet_id=number) in (0, 0x10)
    assert node[0].session("p").received.count == 0


def test_duplicates_beyond_the_limit(make_node: MakeNode) -> None:
    """A run that repeats some and adds too many."""
    node = make_node(1, {"session": {"max_inflight_messages": 3}})
    publisher = node.connect(0, "p")
    publisher.send(*(qos2(b"x", number) for number in (1, 2, 1, 3, 4)))
    assert errors(publisher) == [0x93]


def test_aliases(node: Node) -> None:
    listener, publisher = listening(node), node.connect(0, "p")
    for qos in (0, 1, 2):
        publisher.publish(f"t/{qos}", b"a", qos=qos, props=((ALIAS, qos + 1),))
        publisher.publish("", b"b", qos=qos, props=((ALIAS, qos + 1),))
    publisher.publish("moved", b"c", props=((ALIAS, 1),))
    publisher.publish("", b"d", props=((ALIAS, 1),))
    found = [(p.topic, p.payload) for p in drain(listener)]
    assert found == [
        ("t/0", b"a"),
        ("t/0", b"b"),
        ("t/1", b"a"),
        ("t/1", b"b"),
        ("t/2", b"a"),
        ("t/2", b"b"),
        ("moved", b"c"),
        ("moved", b"d"),
    ]


def test_aliases_end_with_their_connection(node: Node) -> None:
    props = ((wire.SESSION_EXPIRY_INTERVAL, 100),)
    publisher = node.connect(0, "p", props=props)
    publisher.publish("t", b"x", props=((ALIAS, 1),))
    publisher.drop()
    again = node.connect(0, "p", clean=False, props=props)
    again.publish("", b"x", props=((ALIAS, 1),))
    assert errors(again) == [0x82]


@pytest.mark.parametrize(
    ("topic", "props", "reason"),
    [
        ("", (), 0x82),
        ("", ((ALIAS, 7),), 0x82),
        ("t", ((ALIAS, 0),), 0x94),
        ("t", ((ALIAS, 129),), 0x94),
        ("", ((ALIAS, 65535),), 0x94),
        ("t", ((ALIAS, 1), (ALIAS, 1)), 0x82),
        ("t", ((wire.SUBSCRIPTION_IDENTIFIER, 1),), 0x82),
        ("t", ((wire.PAYLOAD_FORMAT_INDICATOR, 2),), 0x82),
        ("t", ((wire.RESPONSE_TOPIC, "a/+"),), 0x82),
    ],
)
def test_bad_properties(node: Node, topic: str, props: Any, reason: int) -> None:
    listener, publisher = listening(node), node.connect(0, "p")
    publisher.send(wire.publish(5, topic, b"x", props=props))
    assert errors(publisher) == [reason]
    assert messages(listener) == []


def test_an_empty_topic_in_3_1_1(node: Node) -> None:
    publisher = node.connect(0, "p", version=4)
    publisher.send(wire.publish(4, "", b"x"))
    assert errors(publisher) == []


@pytest.mark.parametrize("alias_maximum", [0, 1])
def test_the_alias_maximum_is_the_brokers(make_node: MakeNode, alias_maximum: int) -> None:
    node = make_node(1, {"broker": {"topic_alias_maximum": alias_maximum}})
    publisher = node.connect(0, "p")
    publisher.send(wire.publish(5, "t", b"x", props=((ALIAS, alias_maximum + 1),)))
    assert errors(publisher) == [0x94]


def test_expiry_counts_down_and_ends(node: Node) -> None:
    props = ((wire.SESSION_EXPIRY_INTERVAL, 1000),)
    absent = node.connect(0, "a", props=props)
    absent.subscribe("t", qos=1)
    absent.drop()
    publisher = node.connect(0, "p")
    for seconds in (10, 100):
        publisher.publish(
            "t", b"%d" % seconds, qos=1, props=((wire.MESSAGE_EXPIRY_INTERVAL, seconds),)
        )
    node.advance(30)
    back = node.connect(0, "a", clean=False, props=props)
    (message,) = drain(back)
    assert message.payload == b"100"
    assert message.property(wire.MESSAGE_EXPIRY_INTERVAL) == 70
    assert node[0].reactor.tally.dropped_expired == 1


LIMITED = {"auth": {"anonymous": {"publish": ("open/#", "x"), "subscribe": ("#",)}}}


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_what_may_not_be_published_in_5(make_node: MakeNode, qos: int) -> None:
    """Every message of a run is answered; the connection stays."""
    node = make_node(1, LIMITED)
    listener, publisher = listening(node), node.connect(0, "p")
    publisher.send(
        *(wire.publish(5, "closed", b"x", qos=qos, packet_id=number) for number in (1, 2, 3))
    )
    kind = {1: wire.PUBACK, 2: wire.PUBREC}.get(qos)
    expected = [(kind, number, 0x87) for number in (1, 2, 3)] if qos else []
    assert [(p.kind, p.packet_id, p.reason) for p in drain(publisher)] == expected
    publisher.publish("open/x", b"y", qos=qos)
    assert messages(listener) == [b"y"]
    assert node[0].broker.counts.drops["no_permission"] == 3
    assert received_of(node[0].session("p")) == [], "a refused message is not waited for"


def test_what_may_not_be_published_in_3_1_1(make_node: MakeNode) -> None:
    """It is acknowledged and dropped: who is disconnected sends it again, and never gets further."""
    node = make_node(1, LIMITED)
    listener = listening(node, "#")
    publisher = node.connect(0, "p", version=4)
    publisher.send(
        wire.publish(4, "closed", b"0"),
        wire.publish(4, "closed", b"1", qos=1, packet_id=1),
        wire.publish(4, "closed", b"2", qos=2, packet_id=2),
        wire.publish(4, "open/x", b"3", qos=1, packet_id=3),
    )
    answers = [(packet.kind, packet.packet_id) for packet in drain(publisher)]
    assert answers == [(wire.PUBACK, 1), (wire.PUBREC, 2), (wire.PUBACK, 3)]
    assert messages(listener) == [b"3"]
    assert node[0].broker.counts.drops["no_permission"] == 3
    assert node[0].broker.counts.errors[0x87] == 3


def test_what_may_not_be_published_in_3_1_1_may_end_the_connection(make_node: MakeNode) -> None:
    node = make_node(1, merged(LIMITED, {"broker": {"refused_publish": "disconnect"}}))
    publisher = node.connect(0, "p", version=4)
    publisher.send(wire.publish(4, "closed", b"x", qos=1, packet_id=1))
    assert errors(publisher) == []


CONTROLS = ["a\x01", "\x1f/b", "a\x7fb", "\x80", "a/\x9f"]


@pytest.mark.parametrize("topic", CONTROLS)
@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("retain", [False, True])
def test_control_characters_are_malformed(
    make_node: MakeNode, topic: str, qos: int, retain: bool
) -> None:
    node = make_node(1)
    publisher, old = node.connect(0, "p"), node.connect(0, "old", version=4)
    for client in (publisher, old):
        packet = wire.publish(client.version, topic, b"x", qos=qos, packet_id=qos, retain=retain)
        client.send(packet)
    assert [packet.reason for packet in drain(publisher)] == [0x81]
    assert old.ended(1)
    subscriber = node.connect(0, "s")
    subscriber.send(wire.subscribe(5, 1, [wire.Filter(topic)]))
    assert [packet.reason for packet in drain(subscriber)] == [0x81]
    assert node.client(0).connect("w", will=wire.Will(topic, b"x")).reason == 0x81
    assert node.client(0).connect(topic).reason == 0x81
    older = node.client(0, 4)
    older.send(wire.connect(4, topic))
    assert older.ended(1)
    for near in ("\u00a0", "\ue000", "é\u0420", " ~"):
        assert node.connect(0, near).publish(near, b"x", qos=1) in (0, 0x10)


def test_control_characters_may_be_allowed(make_node: MakeNode) -> None:
    node = make_node(1, {"broker": {"allow_control_characters": True}})
    client = node.connect(0, "c\x01")
    client.subscribe("a\x01/#")
    client.publish("a\x01/b\x9f", b"x", qos=1)
    assert messages(client) == [b"x"]


def test_nobody_speaks_for_the_broker(node: Node) -> None:
    """Also with every permission and with a will."""
    listener, publisher = listening(node, "$SYS/#"), node.connect(0, "p")
    assert publisher.publish("$SYS/broker/x", b"x", qos=1) == 0x87
    assert publisher.publish("$SYS/broker/x", b"x", qos=1, retain=True) == 0x87
    refused = node.client(0)
    assert refused.connect("w", will=wire.Will("$SYS/x", b"x")).reason == 0x87
    assert messages(listener) == []


def test_topics_found_permitted_are_remembered_within_bounds(make_node: MakeNode) -> None:
    node = make_node(1, LIMITED)
    publisher = node.connect(0, "p", version=4)
    for number in range(ALLOWED_MAX + 50):
        publisher.send(wire.publish(4, f"open/{number}", b"x"))
    node.run()
    (connection,) = node[0].reactor.connections.values()
    assert connection.allowed is not None
    assert 0 < len(connection.allowed) <= ALLOWED_MAX
    publisher.send(wire.publish(4, "open/" + "x" * 1000, b"x"))
    node.run()
    assert max(map(len, connection.allowed)) < 20


def test_no_local(node: Node) -> None:
    """What a client publishes itself does not come back by that subscription, but by its others."""
    one, other = node.connect(0, "one"), node.connect(0, "other")
    one.subscribe(wire.Filter("t/#", 1, no_local=True), props=((wire.SUBSCRIPTION_IDENTIFIER, 1),))
    for qos in (0, 1, 2):
        one.publish("t/x", b"own", qos=qos)
        other.publish("t/x", b"other", qos=qos)
    assert messages(one) == [b"other"] * 3
    one.subscribe("+/x", qos=0, props=((wire.SUBSCRIPTION_IDENTIFIER, 2),))
    one.publish("t/x", b"own", qos=1)
    other.publish("t/x", b"other", qos=1)
    own, others = drain(one)
    assert (own.payload, own.qos, own.all(wire.SUBSCRIPTION_IDENTIFIER)) == (b"own", 0, [2])
    assert (others.payload, others.qos) == (b"other", 1)
    assert sorted(others.all(wire.SUBSCRIPTION_IDENTIFIER)) == [1, 2]


def test_max_qos(make_node: MakeNode) -> None:
    node = make_node(1, {"broker": {"max_qos": 1}})
    client = node.client(0)
    connack = client.connect("c")
    assert connack.property(wire.MAXIMUM_QOS) == 1
    assert client.subscribe("t", qos=2, granted=False).reasons == [1]
    client.send(qos2(b"x", 1))
    assert errors(client) == [0x9B]

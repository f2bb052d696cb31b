"""PUBLISH to queues: messages, orders, who may, and in which order answers come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fluxmq.auth.policy import TopicPolicy
from fluxmq.model.deduplication import producer_number
from fluxmq.sessions.mqtt.connect_flow import apply_policy
from fluxmq.sessions.mqtt.queue_properties import QueueOptions
from fluxmq.sessions.mqtt.settlement import SettlementCommand
from tests.conformance import wire
from tests.conformance.client import Client
from tests.unit.sessions.mqtt.queue_port import QueuePort, Taken
from tests.unit.sessions.mqtt.test_queue_properties import encoded
from tests.unit.shards.node import Node, drain

MakeNode = Callable[..., Node]
CLIENT = {"auth": {"anonymous": {"publish": ("open/#", "$queue/q/#"), "subscribe": ("$queue/#",)}}}


@pytest.fixture
def node(make_node: MakeNode) -> Node:
    """One shard on which anonymous clients may publish to one queue."""
    return make_node(1, CLIENT)


@pytest.fixture
def port(node: Node, monkeypatch: pytest.MonkeyPatch) -> QueuePort:
    """The queues of that shard."""
    found = QueuePort(node[0], monkeypatch)
    found.lead(b"$queue/q", b"$queue/q/eu")
    return found


def user(*pairs: tuple[str, str]) -> tuple[tuple[int, tuple[str, str]], ...]:
    """User properties."""
    return tuple((wire.USER_PROPERTY, pair) for pair in pairs)


ORDER = user(("group-id", "g"), ("message-id", "q:5"))


def answers(client: Client) -> list[tuple[int, int, int]]:
    """Kind, packet identifier and reason of what came."""
    return [(packet.kind, packet.packet_id, packet.reason) for packet in drain(client)]


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_messages(node: Node, port: QueuePort, version: int, qos: int) -> None:
    client = node.connect(0, "p", version=version)
    assert client.publish("$queue/q", b"x", qos=qos) == 0
    assert client.publish("$queue/q/eu", b"y", qos=qos) == 0
    node.run()
    assert port.taken == [Taken([b"x"], b"", None, qos, 0), Taken([b"y"], b"", None, qos, 0)]


def test_what_was_permitted_once_is_refused_when_permissions_change(
    node: Node, port: QueuePort
) -> None:
    client = node.connect(0, "p")
    assert client.publish("$queue/q", b"1", qos=1) == 0
    assert client.publish("$queue/q", b"2", qos=1) == 0
    publisher = node[0].session("p").client
    publisher.policy = TopicPolicy([], [])
    apply_policy(publisher)
    assert client.publish("$queue/q", b"3", qos=1) == 0x87
    assert [taken.payloads for taken in port.taken] == [[b"1"], [b"2"]]


def test_what_steers_a_known_topic_is_seen(node: Node, port: QueuePort) -> None:
    client = node.connect(0, "p")
    client.publish("$queue/q", b"1", qos=1)
    client.publish("$queue/q", b"2", qos=1, props=user(("x-delay", "5")))
    client.publish("$queue/q", b"3", qos=1, retain=True)
    assert [taken.options for taken in port.taken] == [None, QueueOptions(5, 0, 0), None]


def test_what_steers_a_message(node: Node, port: QueuePort) -> None:
    client = node.connect(0, "p")
    pairs = (("x-delay", "100"), ("producer-id", "p"), ("sequence", "3"), ("queue", "forged"))
    client.publish("$queue/q", b"x", qos=1, props=user(*pairs))
    ((_, forward, options, _, _),) = port.taken
    assert options == QueueOptions(100, producer_number(b"p"), 3)
    assert forward == encoded(*pairs[:3])


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_what_steers_badly(node: Node, port: QueuePort, qos: int) -> None:
    client = node.connect(0, "p")
    bad = user(("x-delay", "soon"))
    packets = [
        wire.publish(5, "$queue/q", b"x", qos=qos, packet_id=number, props=bad) for number in (1, 2)
    ]
    client.send(*packets)
    kind = {1: wire.PUBACK, 2: wire.PUBREC}.get(qos)
    assert answers(client) == ([(kind, 1, 0x83), (kind, 2, 0x83)] if qos else [])
    assert port.taken == []
    assert node[0].broker.counts.drops["queue_refused"] == 2
    assert client.publish("$queue/q", b"x", qos=qos) == 0, "the connection stays"


def test_ordinary_publishes_are_not_steered(node: Node, port: QueuePort) -> None:
    port.lead(b"open/a")
    client = node.connect(0, "p")
    own = user(("x-delay", "soon"), ("queue", "mine"))
    assert client.publish("open/a", b"x", qos=1, props=own) == 0
    ((_, forward, options, _, _),) = port.taken
    assert options is None
    assert forward == encoded(("x-delay", "soon"), ("queue", "mine"))


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_queue_retains_nothing(node: Node, port: QueuePort, qos: int) -> None:
    client = node.connect(0, "p")
    client.publish("$queue/q", b"x", qos=qos, retain=True)
    node.run()
    assert [taken.retain for taken in port.taken] == [0]
    assert node[0].broker.retained.message(b"$queue/q") is None


@pytest.mark.parametrize(
    ("topic", "reason"),
    [
        ("$queue/other", 0x87),
        ("$dlq/q", 0x87),
        ("$queue/q/$ack/x", 0x90),
        ("$queue/$ack", 0x90),
    ],
)
def test_topics_that_are_refused(node: Node, port: QueuePort, topic: str, reason: int) -> None:
    client = node.connect(0, "p")
    assert client.publish(topic, b"x", qos=1) == reason
    old = node.connect(0, "old", version=4)
    old.send(wire.publish(4, topic, b"x", qos=1, packet_id=1))
    assert [packet.kind for packet in drain(old)] == [wire.PUBACK], "and it is dropped"
    assert port.taken == []


VERBS = ["ack", "nack", "reject", "commit"]


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_orders(node: Node, port: QueuePort, verb: str, qos: int) -> None:
    client = node.connect(0, "c")
    assert client.publish(f"$queue/q/${verb}", b"ignored", qos=qos, props=ORDER) == 0
    node.run()
    assert port.settled == [("c", SettlementCommand(b"q", b"g", verb, ((5, 5),)))]
    assert port.taken == []


@pytest.mark.parametrize(("qos", "kind"), [(1, wire.PUBACK), (2, wire.PUBREC)])
def test_an_orders_answer_says_what_came_of_it(
    node: Node, port: QueuePort, qos: int, kind: int
) -> None:
    port.later = True
    client = node.connect(0, "c")
    client.send(
        wire.publish(5, "$queue/q/$ack", qos=qos, packet_id=1, props=ORDER),
        wire.publish(5, "$queue/q/$nack", qos=qos, packet_id=2, props=ORDER),
        wire.publish(5, "open/x", qos=qos, packet_id=3),
    )
    assert answers(client) == []
    port.answer(1, 0x83)
    assert answers(client) == [], "answers keep the order of the publishes"
    port.answer(0, 0x10)
    assert answers(client) == [(kind, 1, 0x10), (kind, 2, 0x83), (kind, 3, 0)]


def test_a_run_of_one_order_is_one_order(node: Node, port: QueuePort) -> None:
    client = node.connect(0, "c")
    one = [wire.publish(5, "$queue/q/$ack", qos=1, packet_id=n, props=ORDER) for n in (1, 2, 3)]
    client.send(*one)
    assert answers(client) == [(wire.PUBACK, n, 0) for n in (1, 2, 3)]
    assert len(port.settled) == 1


@pytest.mark.parametrize(
    "props",
    [(), user(("group-id", "g")), user(("message-id", "q:1")), (*ORDER, *user(("delay", "1")))],
)
def test_orders_that_are_none(node: Node, port: QueuePort, props: Any) -> None:
    client = node.connect(0, "c")
    assert client.publish("$queue/q/$ack", qos=1, props=props) == 0x83
    client.send(wire.publish(5, "$queue/q/$ack", props=props))
    assert answers(client) == []
    assert port.settled == []


def test_3_1_1_has_no_orders(node: Node, port: QueuePort) -> None:
    client = node.connect(0, "c", version=4)
    client.send(wire.publish(4, "$queue/q/$ack", qos=1, packet_id=1))
    assert [packet.kind for packet in drain(client)] == [wire.PUBACK], "and nothing is done"
    assert port.settled == []


def test_who_consumes_may_settle(node: Node, port: QueuePort) -> None:
    client = node.connect(0, "c")
    assert client.publish("$queue/other/$ack", qos=1, props=ORDER) == 0x87
    client.subscribe("$queue/other/eu", qos=1)
    assert client.publish("$queue/other/$ack", qos=1, props=ORDER) == 0
    assert client.publish("$queue/other", b"x", qos=1) == 0x87, "and nothing else"
    assert client.publish("$queue/third/$ack", qos=1, props=ORDER) == 0x87
    assert [settlement.queue for _, settlement in port.settled] == [b"other"]


def test_a_repeated_order_is_answered_and_not_repeated(node: Node, port: QueuePort) -> None:
    client = node.connect(0, "c")
    packet = wire.publish(5, "$queue/q/$ack", qos=2, packet_id=1, props=ORDER)
    client.send(packet)
    assert answers(client) == [(wire.PUBREC, 1, 0)]
    client.send(packet)
    assert answers(client) == [(wire.PUBREC, 1, 0)]
    assert len(port.settled) == 1
    client.send(wire.acknowledge(wire.PUBREL, 1), packet)
    assert answers(client) == [(wire.PUBCOMP, 1, 0), (wire.PUBREC, 1, 0)]
    assert len(port.settled) == 2


def test_repeated_messages_wait_with_the_new_ones(node: Node, port: QueuePort) -> None:
    """Whatever stands in one read: what is new goes to the queue once, and no answer comes before it is safe."""
    client = node.connect(0, "p")
    port.later = True
    packets = [
        wire.publish(5, "$queue/q", b"%d" % number, qos=2, packet_id=number)
        for number in (1, 2, 1, 3)
    ]
    client.send(*packets)
    assert answers(client) == []
    assert [taken.payloads for taken in port.taken] == [[b"1"], [b"2"], [b"3"]]
    for index in (0, 2, 1):
        assert answers(client) == []
        port.answer(index, 0)
    assert answers(client) == [(wire.PUBREC, number, 0) for number in (1, 2, 1, 3)]


def test_a_refused_message_may_be_sent_again(node: Node, port: QueuePort) -> None:
    port.reason = 0x97
    client = node.connect(0, "p")
    assert client.publish("$queue/q", b"x", qos=2, packet_id=7) == 0x97
    port.reason = 0
    assert client.publish("$queue/q", b"x", qos=2, packet_id=7) == 0
    assert len(port.taken) == 2


def test_refusals_keep_their_place(node: Node, port: QueuePort) -> None:
    port.later = True
    client = node.connect(0, "p")
    client.send(
        wire.publish(5, "$queue/q", b"x", qos=1, packet_id=1),
        wire.publish(5, "closed", b"x", qos=1, packet_id=2),
        wire.publish(5, "$queue/q/$ack", qos=2, packet_id=3),
    )
    assert answers(client) == []
    port.answer(0, 0)
    assert answers(client) == [
        (wire.PUBACK, 1, 0),
        (wire.PUBACK, 2, 0x87),
        (wire.PUBREC, 3, 0x83),
    ]


def test_aliases_of_queues(node: Node, port: QueuePort) -> None:
    client = node.connect(0, "c")
    alias = ((wire.TOPIC_ALIAS, 1),)
    client.publish("$queue/q/$ack", qos=1, props=(*alias, *ORDER))
    client.publish("", qos=1, props=(*alias, *ORDER))
    assert len(port.settled) == 2


@pytest.mark.parametrize(
    ("topic", "props", "reason"),
    [
        ("$queue/q/$ack", (), 0x90),
        ("$queue/q/$ack/x", (), 0x90),
        ("$queue/q/$commit", ORDER, 0x90),
        ("$queue/q", user(("x-delay", "soon")), 0x83),
    ],
)
def test_wills_that_are_refused(
    node: Node, port: QueuePort, topic: str, props: Any, reason: int
) -> None:
    will = wire.Will(topic, b"bye", properties=props)
    assert node.client(0).connect("c", will=will).reason == reason
    old = node.client(0, version=4)
    assert old.connect("old", will=wire.Will("$queue/q/$ack")).reason == 3


def test_a_will_for_a_queue(node: Node, port: QueuePort) -> None:
    props = user(("x-delay", "5"), ("offset", "1"))
    will = wire.Will("$queue/q", b"bye", qos=1, retain=True, properties=props)
    client = node.connect(0, "c", will=will)
    client.drop()
    node.run()
    assert port.taken == [Taken([b"bye"], encoded(("x-delay", "5")), QueueOptions(5, 0, 0), 1, 0)]
    assert node[0].broker.retained.message(b"$queue/q") is None

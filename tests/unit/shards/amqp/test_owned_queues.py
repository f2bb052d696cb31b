"""Queues that are one connection's, and those that the broker named, are closed to MQTT's clients wherever they are hosted."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fluxmq.routing.topology.changes import DropOwner
from fluxmq.routing.topology.records import QueueRecord
from fluxmq.routing.topology.refusals import RESOURCE_LOCKED, Refusal
from fluxmq.sessions.amqp091.ports import ConsumeRequest
from tests.conformance import wire
from tests.unit.shards.amqp.support import AmqpNode, Consumer, Publisher, contents
from tests.unit.shards.node import messages

MakeAmqp = Callable[..., AmqpNode]
EVERYTHING = ("#", "$queue/#", "$dlq/#")
AUTH = {"anonymous": {"publish": EVERYTHING, "subscribe": EVERYTHING}}
NOT_AUTHORIZED = 0x87
FAILURE = 0x80
OWNER = "connection 1"

pytestmark = pytest.mark.parametrize("shard", [0, 1])


def exclusive(node: AmqpNode, name: str, shard: int = 0) -> QueueRecord:
    return node.queue(name, shard=shard, durable=False, exclusive=True, owner=OWNER)


@pytest.mark.parametrize("name", ["mine", "amq.gen-1", "$dlq/mine"])
def test_an_exclusive_queue_is_closed_to_mqtt(make_amqp: MakeAmqp, shard: int, name: str) -> None:
    """Review finding 9: an MQTT client neither reads nor writes another's exclusive queue, on whichever shard."""
    node = make_amqp(2, auth=AUTH)
    queue = exclusive(node, name)
    Publisher(node, 1).publish("", name, b"private reply")
    address = name if name.startswith("$dlq/") else f"$queue/{name}"
    client = node.connect(shard, "thief")
    for written in (address, f"{address}/#", f"$share/g/{address}"):
        answer = client.subscribe(written, qos=1, granted=False)
        assert answer.reasons == [NOT_AUTHORIZED], written
    old = node.connect(shard, "old", version=wire.V4)
    assert old.subscribe(address, qos=1, granted=False).reasons == [FAILURE]
    for qos in (1, 2):
        assert client.publish(address, b"injected", qos=qos) == NOT_AUTHORIZED
    client.publish(f"{address}/key", b"injected")
    assert client.ping() == []
    assert node[shard].broker.counts.drops["no_permission"] == 1
    assert node[0].queues.service.counts.refused["locked"] == 3
    assert messages(client) == []
    assert contents(node, queue) == [b"private reply"]


def test_an_exclusive_queue_takes_what_is_routed_to_it(make_amqp: MakeAmqp, shard: int) -> None:
    """Review finding 9: replies of other AMQP connections arrive, and so does what its bindings want of MQTT's topics."""
    node = make_amqp(2, auth=AUTH)
    queue = exclusive(node, "amq.gen-1")
    node.bind("amq.topic", queue.name, "home.#")
    publisher = Publisher(node, shard)
    assert publisher.publish("", queue.name, b"reply") == 1
    assert publisher.publish("amq.topic", "home.hall", b"bound") == 1
    assert node.connect(shard, "p").publish("home/hall", b"topic", qos=1) == 0
    assert contents(node, queue) == [b"reply", b"bound", b"topic"]


def test_an_exclusive_queue_is_closed_to_other_connections(make_amqp: MakeAmqp, shard: int) -> None:
    """Review finding 9: its host asks who consumes, whatever another shard has heard of the queue."""
    node = make_amqp(2)
    queue = exclusive(node, "mine")
    port = Consumer(node, queue)
    port.leave()
    Publisher(node).publish("", "mine", b"1")
    for asker in ("connection 2", ""):
        for taking in (False, True):
            wanted = ConsumeRequest(queue, "t", "m", 10, taking=taking, asker=asker)
            answers: list[object] = []
            node.amqp(shard).broker.consume(wanted, port, answers.append)
            node.settle()
            (answer,) = answers
            assert isinstance(answer, Refusal)
            assert answer.code == RESOURCE_LOCKED
    assert contents(node, queue, shard) == [b"1"]


def test_a_name_that_the_broker_gave_is_no_address(make_amqp: MakeAmqp, shard: int) -> None:
    """Review finding 9: a server-named queue that several connections share is AMQP's, too."""
    node = make_amqp(2, auth=AUTH)
    queue = node.queue("amq.gen-shared", durable=False)
    client = node.connect(shard, "thief")
    assert client.subscribe("$queue/amq.gen-shared", qos=1, granted=False).reasons == [0x87]
    assert client.publish("$queue/amq.gen-shared", b"injected", qos=1) == NOT_AUTHORIZED
    assert client.publish("$queue/amq.gen-none", b"injected", qos=1) == NOT_AUTHORIZED
    assert node.engine("amq.gen-none") is None
    Publisher(node, shard).publish("", queue.name, b"1")
    assert contents(node, queue) == [b"1"]


def test_who_was_there_before_the_owner_gets_nothing_of_its_queue(
    make_amqp: MakeAmqp, shard: int
) -> None:
    """Review finding 9: a queue in memory that MQTT made by its address does not become the owner's."""
    node = make_amqp(2, auth=AUTH)
    client = node.connect(shard, "early")
    client.subscribe("$queue/mine", qos=1)
    assert client.publish("$queue/mine", b"injected", qos=1) == 0
    assert messages(client) == [b"injected"]
    assert client.publish("$queue/mine", b"left behind", qos=1) == 0
    queue = exclusive(node, "mine", node.hosts("mine"))
    node.settle()
    client._packets.clear()
    Publisher(node).publish("", "mine", b"private")
    assert contents(node, queue) == [b"private"]
    assert b"private" not in messages(client)


def test_a_queue_is_free_again_when_its_owner_has_gone(make_amqp: MakeAmqp, shard: int) -> None:
    """Review finding 9: the name is nobody's then."""
    node = make_amqp(2, auth=AUTH)
    exclusive(node, "mine")
    assert node.change(DropOwner(OWNER)) is None
    client = node.connect(shard, "p")
    client.subscribe("$queue/mine", qos=1)
    assert client.publish("$queue/mine", b"1", qos=1) == 0
    assert messages(client) == [b"1"]

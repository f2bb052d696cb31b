"""Qpid Proton's Python client: publishing and consuming, outcomes, and messages between protocols."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pika  # type: ignore[import-untyped]
import pytest
from proton import Delivery, Disposition, Message, symbol, ulong
from proton.reactor import AtMostOnce
from proton.utils import BlockingConnection, LinkDetached, SendException

from tests.interop.amqp10.conftest import AmqpBroker

Names = Callable[[], str]
WITHIN = 10


@pytest.fixture
def connection(amqp: AmqpBroker) -> Iterator[BlockingConnection]:
    """A connection of Proton."""
    made = connect(amqp)
    yield made
    made.close()


def connect(amqp: AmqpBroker, password: str = "guest") -> BlockingConnection:
    url = f"amqp://guest:{password}@{amqp.host}:{amqp.port}"
    return BlockingConnection(
        url, timeout=WITHIN, allowed_mechs="PLAIN", heartbeat=30, allow_insecure_mechs=True
    )


@pytest.fixture
def channel(amqp: AmqpBroker) -> Iterator[Any]:
    """A channel of AMQP 0.9.1."""
    made = pika.BlockingConnection(pika.URLParameters(amqp.url))
    yield made.channel()
    made.close()


@pytest.fixture
def queue(channel: Any, name: Names) -> str:
    """A queue."""
    made = name()
    channel.queue_declare(made, durable=True)
    return made


def test_a_message_of_every_kind_of_body_comes_back_as_it_was(
    connection: BlockingConnection, queue: str
) -> None:
    sender = connection.create_sender(f"/queues/{queue}")
    receiver = connection.create_receiver(f"/queues/{queue}", credit=1)
    bodies: list[Any] = ["text", 5, {"a": [1, 2]}, ["list", True], ulong(7), "x" * 300_000]
    for body in bodies:
        sent = Message(
            body,
            id=uuid.uuid4(),
            subject="subject",
            correlation_id=ulong(9),
            properties={"key": "value", "number": 3},
            durable=True,
            priority=7,
            content_type="text/plain",
        )
        assert sender.send(sent).remote_state == Delivery.ACCEPTED
        got: Any = receiver.receive(timeout=WITHIN)
        assert got.body == sent.body
        for field in ("id", "subject", "correlation_id", "properties", "durable", "priority"):
            assert getattr(got, field) == getattr(sent, field), field
        assert got.annotations[symbol("x-routing-key")] == queue
        receiver.accept()


def test_outcomes_and_their_counts(
    connection: BlockingConnection, channel: Any, name: Names
) -> None:
    dead, queue = name(), name()
    channel.queue_declare(dead, durable=True)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    channel.queue_declare(queue, durable=True, arguments=arguments)
    sender = connection.create_sender(f"/queues/{queue}")
    receiver = connection.create_receiver(f"/queues/{queue}", credit=1)
    sender.send(Message("one"))
    first = receiver.receive(timeout=WITHIN)
    assert (first.first_acquirer, first.delivery_count) == (True, 0)
    receiver.release(delivered=True)  # modified, delivery failed
    again = receiver.receive(timeout=WITHIN)
    assert (again.body, again.first_acquirer, again.delivery_count) == ("one", False, 1)
    receiver.reject()
    letters = connection.create_receiver(f"/queues/{dead}", credit=1)
    letter: Any = letters.receive(timeout=WITHIN)
    assert letter.body == "one"
    assert symbol("x-opt-deaths") in letter.annotations
    letters.accept()


def test_what_cannot_be_done_is_said_with_the_standards_condition(
    connection: BlockingConnection, amqp: AmqpBroker, name: Names
) -> None:
    sender = connection.create_sender(f"/exchanges/amq.direct/{name()}")
    with pytest.raises(SendException) as unrouted:
        sender.send(Message("x"))
    assert unrouted.value.state == Disposition.RELEASED
    with pytest.raises(LinkDetached, match="amqp:not-found"):
        connection.create_receiver(f"/queues/{name()}")
    with pytest.raises(LinkDetached, match="amqp:not-found"):
        connection.create_sender(f"/exchanges/{name()}/key")
    with pytest.raises(Exception, match="uthentication"):
        connect(amqp, "wrong")


def test_messages_cross_to_and_from_0_9_1(
    connection: BlockingConnection, channel: Any, queue: str
) -> None:
    sender = connection.create_sender("/exchanges/amq.topic/" + queue)
    channel.queue_bind(queue, "amq.topic", queue)
    sender.send(Message(b"from 1.0", inferred=True, properties={"h": "v"}, content_type="a/b"))
    method, properties, body = channel.basic_get(queue, auto_ack=True)
    assert (method.routing_key, body) == (queue, b"from 1.0")
    assert (properties.headers["h"], properties.content_type) == ("v", "a/b")
    told = pika.BasicProperties(headers={"h": "w"}, message_id="m", content_type="c/d")
    channel.basic_publish("amq.topic", queue, b"from 0.9.1", told)
    got: Any = connection.create_receiver(f"/queues/{queue}", credit=1).receive(timeout=WITHIN)
    assert bytes(got.body) == b"from 0.9.1"
    assert (got.properties, got.id, got.content_type) == ({"h": "w"}, "m", "c/d")


def test_a_request_is_answered_by_way_of_a_dynamic_node(
    connection: BlockingConnection, queue: str
) -> None:
    replies = connection.create_receiver(None, credit=1, dynamic=True)
    address = replies.link.remote_source.address
    connection.create_sender(f"/queues/{queue}").send(Message("ask", reply_to=address))
    request = connection.create_receiver(f"/queues/{queue}", credit=1).receive(timeout=WITHIN)
    connection.create_sender(None).send(Message("answer", address=request.reply_to))
    assert replies.receive(timeout=WITHIN).body == "answer"


def test_settled_links_and_unsettled_rest(
    connection: BlockingConnection, amqp: AmqpBroker, channel: Any, queue: str
) -> None:
    sender = connection.create_sender(f"/queues/{queue}", options=AtMostOnce())
    for number in range(5):
        sender.send(Message(number))
    connection.create_sender(None)  # Proton writes while it waits
    other = connect(amqp)
    receiver = other.create_receiver(f"/queues/{queue}", credit=3)
    assert [receiver.receive(timeout=WITHIN).body for _ in range(3)] == [0, 1, 2]
    receiver.accept()
    other.close()
    left = connection.create_receiver(f"/queues/{queue}", credit=4)
    bodies = {left.receive(timeout=WITHIN).body for _ in range(4)}
    assert len(bodies) == 4
    assert {3, 4} < bodies

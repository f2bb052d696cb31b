"""Filters of a stream, as RabbitMQ's own Python client of AMQP 1.0 sends them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from rabbitmq_amqp_python_client import (
    AddressHelper,
    AMQPMessagingHandler,
    Connection,
    ConnectionClosed,
    Environment,
    Event,
    Message,
    MessageProperties,
    OffsetSpecification,
    StreamConsumerOptions,
    StreamFilterOptions,
    StreamSpecification,
)

from tests.interop.amqp10.conftest import AmqpBroker

Names = Callable[[], str]


@pytest.fixture
def connection(amqp: AmqpBroker) -> Iterator[Connection]:
    """A connection of RabbitMQ's client."""
    environment = Environment(uri=f"amqp://guest:guest@{amqp.host}:{amqp.port}")
    made = environment.connection()
    made.dial()
    yield made
    environment.close()


class Gathering(AMQPMessagingHandler):  # type: ignore[misc]  # of a package without types
    """Gathers bodies until there are enough."""

    def __init__(self, expected: int) -> None:
        super().__init__()
        self.expected = expected
        self.bodies: list[Any] = []

    def on_amqp_message(self, event: Event) -> None:
        """Take a message."""
        self.bodies.append(bytes(event.message.body))
        self.delivery_context.accept(event)
        if len(self.bodies) == self.expected:
            event.connection.close()


FILTERS = (
    StreamFilterOptions(values=["eu"]),
    StreamFilterOptions(application_properties={"region": "eu"}),
    StreamFilterOptions(message_properties=MessageProperties(subject="eu")),
    StreamFilterOptions(sql="region = 'eu' AND properties.subject LIKE 'e%'"),
)


def test_a_stream_is_filtered_in_every_way(connection: Connection, name: Names) -> None:
    stream = name()
    connection.management().declare_queue(StreamSpecification(name=stream))
    address = AddressHelper.queue_address(stream)
    publisher = connection.publisher(address)
    for number in range(10):
        region = "eu" if number % 3 == 0 else "us"
        publisher.publish(
            Message(
                body=b"%d" % number,
                subject=region,
                application_properties={"region": region},
                annotations={"x-stream-filter-value": region},
            )
        )
    publisher.close()
    for wanted in FILTERS:
        handler = Gathering(4)
        options = StreamConsumerOptions(OffsetSpecification.first, wanted)
        consumer = connection.consumer(address, handler, options)
        with suppress(ConnectionClosed):
            consumer.run()
        assert handler.bodies == [b"0", b"3", b"6", b"9"]
        connection.dial()

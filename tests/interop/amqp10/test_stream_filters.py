"""Filters of a stream, as RabbitMQ's own Python client of AMQP 1.0 sends them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from rabbitmq_amqp_python_client import (
    AddressHelper,
    Environment,
    Message,
    MessageProperties,
    OffsetSpecification,
    StreamConsumerOptions,
    StreamFilterOptions,
    StreamSpecification,
)

from tests.interop.amqp10.conftest import AmqpBroker
from tests.interop.amqp10.test_rabbitmq_client import Collector, EnoughError

FILTERS = (
    StreamFilterOptions(values=["eu"]),
    StreamFilterOptions(application_properties={"region": "eu"}),
    StreamFilterOptions(message_properties=MessageProperties(subject="eu")),
    StreamFilterOptions(sql="region = 'eu' AND properties.subject LIKE 'e%'"),
)


def test_a_stream_is_filtered_in_every_way(amqp: AmqpBroker, name: Callable[[], str]) -> None:
    stream = name()
    environment = Environment(uri=amqp.url)
    connection = environment.connection()
    connection.dial()
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
        collector = Collector(4)
        options = StreamConsumerOptions(OffsetSpecification.first, wanted)
        consumer = connection.consumer(address, collector, options)
        with suppress(EnoughError):
            consumer.run()
        consumer.close()
        assert collector.got == [b"0", b"3", b"6", b"9"]
    environment.close()

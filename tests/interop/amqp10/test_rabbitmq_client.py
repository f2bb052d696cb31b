"""RabbitMQ's Python client for AMQP 1.0: topology by its management, publishing, consuming."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from rabbitmq_amqp_python_client import (
    AddressHelper,
    AMQPMessagingHandler,
    Environment,
    ExchangeSpecification,
    ExchangeToQueueBindingSpecification,
    Message,
    OutcomeState,
    QuorumQueueSpecification,
)

from tests.interop.amqp10.conftest import AmqpBroker


class EnoughError(Exception):
    """Ends the client's loop."""


class Collector(AMQPMessagingHandler):
    """Accepts messages, and stops after so many."""

    def __init__(self, count: int) -> None:
        super().__init__(auto_settle=True)
        self.count = count
        self.got: list[bytes] = []

    def on_amqp_message(self, event: Any) -> None:
        """Take a message."""
        self.got.append(bytes(event.message.body))
        self.delivery_context.accept(event)
        if len(self.got) == self.count:
            raise EnoughError


def test_topology_is_declared_used_and_deleted(amqp: AmqpBroker, name: Callable[[], str]) -> None:
    queue, exchange = name(), name()
    environment = Environment(uri=amqp.url)
    connection = environment.connection()
    connection.dial()
    management = connection.management()
    management.declare_exchange(ExchangeSpecification(name=exchange))
    management.declare_queue(QuorumQueueSpecification(name=queue))
    binding = management.bind(
        ExchangeToQueueBindingSpecification(
            source_exchange=exchange, destination_queue=queue, binding_key="key"
        )
    )
    publisher = connection.publisher(AddressHelper.exchange_address(exchange, "key"))
    sent = [b"message %d" % number for number in range(20)]
    for body in sent:
        assert publisher.publish(Message(body=body)).remote_state == OutcomeState.ACCEPTED
    publisher.close()
    assert management.queue_info(queue).message_count == 20
    collector = Collector(20)
    consumer = connection.consumer(AddressHelper.queue_address(queue), message_handler=collector)
    with contextlib.suppress(EnoughError):
        consumer.run()
    consumer.close()
    assert collector.got == sent
    assert management.purge_queue(queue) == 0
    management.unbind(binding)
    management.delete_queue(queue)
    management.delete_exchange(exchange)
    management.close()
    environment.close()

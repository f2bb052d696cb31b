"""One client of each protocol behind the same few methods: pika, Qpid Proton and Paho.

Publishing returns when the broker has confirmed the message, settling when it has read the settlement. A delivery says what all three protocols can: its body, the
number of deliveries before, and where and why it was dead-lettered.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import paho.mqtt.client as paho
import pika  # type: ignore[import-untyped]
import pika.exceptions  # type: ignore[import-untyped]
import proton
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from proton.utils import BlockingConnection, BlockingReceiver, BlockingSender

from tests.interop.amqp091.conftest import AmqpBroker
from tests.interop.amqp091.relay import Relay
from tests.interop.amqp091.test_matrix import MqttTaker, mqtt, user

WITHIN_S = 15.0
DELAYING = "matrix.delaying"
"""The exchange by which publishers of AMQP 0.9.1 delay messages."""


class Sent(NamedTuple):
    """A message to publish. Of ``priority``, ``ttl_ms`` and ``delay_ms``, None and 0 say nothing."""

    body: bytes
    priority: int | None = None
    ttl_ms: int = 0
    delay_ms: int = 0


class Got(NamedTuple):
    """A delivery. ``before``: deliveries before this one; ``died``: queue and reason of the first death, if it is a dead letter."""

    body: bytes
    before: int = 0
    died: tuple[str, str] | None = None


class ProtocolClient(Protocol):
    """A publisher, and a consumer of one queue from ``consume`` on."""

    def publish(self, queue: str, sent: Sent) -> None:
        """Publish a message to a queue."""

    def consume(self, queue: str) -> None:
        """Begin to receive, without settling."""

    def receive(self) -> Got:
        """Return the next delivery, which becomes the one that the methods below settle."""

    def ack(self) -> None:
        """Settle it as processed."""

    def requeue(self) -> None:
        """Give it back to its queue."""

    def reject(self) -> None:
        """Refuse it, so that it is dead-lettered."""

    def notice_loss(self) -> None:
        """Wait until the client knows that its connection was cut."""

    def close(self) -> None:
        """End the connection, unless it was cut."""


class Amqp091Client:
    """pika. Whoever delays a message has bound the queue to `DELAYING` with its own name."""

    def __init__(self, broker: AmqpBroker) -> None:
        self.connection = pika.BlockingConnection(pika.URLParameters(broker.url))
        self.channel = self.connection.channel()
        self.channel.confirm_delivery()
        self.deliveries: Iterator[Any] = iter(())
        self.queue = ""
        self.tag = 0

    def publish(self, queue: str, sent: Sent) -> None:
        properties = pika.BasicProperties(
            delivery_mode=2,
            priority=sent.priority,
            expiration=str(sent.ttl_ms) if sent.ttl_ms else None,
            headers={"x-delay": sent.delay_ms} if sent.delay_ms else None,
        )
        exchange = DELAYING if sent.delay_ms else ""
        self.channel.basic_publish(exchange, queue, sent.body, properties)

    def consume(self, queue: str) -> None:
        self.queue = queue
        self.deliveries = self.channel.consume(queue, inactivity_timeout=WITHIN_S)

    def receive(self) -> Got:
        method, properties, body = next(self.deliveries)
        assert method is not None, "nothing was delivered"
        self.tag = method.delivery_tag
        headers = properties.headers or {}
        before = headers.get("x-delivery-count", 0)
        assert method.redelivered == (before > 0)
        return Got(body, before, first_death(headers.get("x-death")))

    def ack(self) -> None:
        self.channel.basic_ack(self.tag)
        self._await_read()

    def requeue(self) -> None:
        self.channel.basic_nack(self.tag, requeue=True)
        self._await_read()

    def reject(self) -> None:
        self.channel.basic_reject(self.tag, requeue=False)
        self._await_read()

    def _await_read(self) -> None:
        self.channel.queue_declare(self.queue, passive=True)

    def notice_loss(self) -> None:
        with pytest.raises(pika.exceptions.AMQPConnectionError):
            self.connection.sleep(WITHIN_S)  # ends with the connection

    def close(self) -> None:
        if self.connection.is_open:
            self.connection.close()


class Amqp10Client:
    """Qpid Proton."""

    def __init__(self, broker: AmqpBroker) -> None:
        url = f"amqp://guest:guest@{broker.host}:{broker.port}"
        self.connection = BlockingConnection(
            url, timeout=WITHIN_S, allowed_mechs="PLAIN", allow_insecure_mechs=True
        )
        self.receiver: BlockingReceiver | None = None
        self.sender: BlockingSender | None = None

    def publish(self, queue: str, sent: Sent) -> None:
        message = proton.Message(sent.body, inferred=True, durable=True, address=f"/queues/{queue}")
        if sent.priority is not None:
            message.priority = sent.priority
        if sent.ttl_ms:
            message.ttl = sent.ttl_ms / 1000
        if sent.delay_ms:
            message.annotations = {proton.symbol("x-opt-delivery-delay"): sent.delay_ms}
        if self.sender is None:
            self.sender = self.connection.create_sender(None)
        assert self.sender.send(message).remote_state == proton.Delivery.ACCEPTED

    def consume(self, queue: str) -> None:
        self.receiver = self.connection.create_receiver(f"/queues/{queue}", credit=10)

    def receive(self) -> Got:
        assert self.receiver is not None
        message: Any = self.receiver.receive(timeout=WITHIN_S)
        assert message.first_acquirer == (message.delivery_count == 0)
        deaths = message.annotations.get(proton.symbol("x-opt-deaths"))
        return Got(bytes(message.body), message.delivery_count, first_death(deaths))

    def ack(self) -> None:
        self._settle(proton.Delivery.ACCEPTED)

    def requeue(self) -> None:
        self._settle(proton.Delivery.RELEASED)

    def reject(self) -> None:
        self._settle(proton.Delivery.REJECTED)

    def _settle(self, outcome: Any) -> None:
        assert self.receiver is not None
        self.receiver.settle(outcome)
        self.connection.create_sender(None).close()  # is answered after what was written before

    def notice_loss(self) -> None:
        with pytest.raises(proton.ConnectionException):
            self.connection.wait(lambda: False, WITHIN_S)

    def close(self) -> None:
        self.connection.close()


class Mqtt5Client:
    """Paho, with MQTT 5. A priority cannot be said."""

    def __init__(self, broker: AmqpBroker) -> None:
        self.broker = broker
        self.taker: MqttTaker | None = None
        self.open = contextlib.ExitStack()
        self.publisher: paho.Client | None = None

    def publish(self, queue: str, sent: Sent) -> None:
        assert sent.priority is None
        assert sent.ttl_ms % 1000 == 0, "MQTT says whole seconds"
        properties = user(("x-delay", str(sent.delay_ms))) if sent.delay_ms else None
        if sent.ttl_ms:
            properties = properties or Properties(PacketTypes.PUBLISH)
            properties.MessageExpiryInterval = sent.ttl_ms // 1000
        if self.publisher is None:
            self.publisher = self.open.enter_context(mqtt(self.broker))
        told = self.publisher.publish(f"$queue/{queue}", sent.body, 1, properties=properties)
        told.wait_for_publish(WITHIN_S)
        assert told.is_published()

    def consume(self, queue: str) -> None:
        self.taker = MqttTaker(self.broker, queue)
        self.open.callback(self.taker.close)

    def receive(self) -> Got:
        assert self.taker is not None
        taken = self.taker.take()
        assert taken is not None, "nothing was delivered"
        said = self.taker.said
        died = None
        if "x-first-death-reason" in said:
            died = said["x-first-death-queue"], said["x-first-death-reason"]
        return Got(taken[0], int(said["x-delivery-count"]), died)

    def ack(self) -> None:
        self._settle("ack")

    def requeue(self) -> None:
        self._settle("nack")

    def reject(self) -> None:
        self._settle("reject")

    def _settle(self, outcome: str) -> None:
        assert self.taker is not None
        self.taker.settle(outcome)

    def notice_loss(self) -> None:
        assert self.taker is not None
        self.taker.client.loop_stop()

    def close(self) -> None:
        self.open.close()


CLIENTS: dict[str, type[Amqp091Client | Amqp10Client | Mqtt5Client]] = {
    "mqtt5": Mqtt5Client,
    "amqp091": Amqp091Client,
    "amqp10": Amqp10Client,
}


def first_death(deaths: Any) -> tuple[str, str] | None:
    """Return queue and reason of the only entry of ``x-death`` or ``x-opt-deaths``, in which a message died once."""
    if deaths is None:
        return None
    [death] = deaths
    assert death["count"] == 1
    return death["queue"], death["reason"]


@contextmanager
def connected(broker: AmqpBroker, protocol: str) -> Iterator[ProtocolClient]:
    """A client of a protocol."""
    client = CLIENTS[protocol](broker)
    try:
        yield client
    finally:
        client.close()


@contextmanager
def relayed(broker: AmqpBroker) -> Iterator[tuple[AmqpBroker, Relay, Relay]]:
    """The broker as it is reached through relays of its two ports, and these."""
    with Relay(broker.host, broker.port) as amqp, Relay(broker.host, broker.mqtt_port) as to_mqtt:
        yield dataclasses.replace(broker, port=amqp.port, mqtt_port=to_mqtt.port), amqp, to_mqtt

"""One way to use queues, over two protocols: what the semantic suite is written in.

A `Side` publishes with confirmation and consumes with explicit settlement at one node; MQTT 5 does so with orders
(`$queue/<q>/$ack`), AMQP 0.9.1 with methods. What only one of them has is used directly by its own tests.
"""

from __future__ import annotations

import itertools
import socket
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol

import pika  # type: ignore[import-untyped]
from pika.adapters.blocking_connection import (  # type: ignore[import-untyped]
    BlockingChannel,
)
from pika.exceptions import AMQPError, NackError  # type: ignore[import-untyped]

from tests.broker import HOST
from tests.cluster.nodes import Node
from tests.conformance import wire
from tests.conformance.client import DEADLINE, Client, tcp

_names = itertools.count()


@dataclass(frozen=True)
class Got:
    """A delivered message. ``again``: whether it was delivered before; ``token``: what its side knows it by."""

    body: bytes
    again: bool
    token: Any


class Consumer(Protocol):
    """Takes messages of one queue and says what becomes of them."""

    def next(self, within: float = DEADLINE) -> Got:
        """The next message; TimeoutError."""

    def nothing(self) -> None:
        """Nothing comes by itself that was asked for before now; AssertionError."""

    def ack(self, got: Got) -> int:
        """It is done; 0, or why not."""

    def again(self, got: Got) -> int:
        """Another shall have it, or the same again."""

    def reject(self, got: Got) -> int:
        """It is a dead letter."""

    def crash(self) -> None:
        """The connection breaks without a word."""


class Side(Protocol):
    """A protocol at a node."""

    def publish(self, queue: str, body: bytes) -> bool:
        """Publish; whether it was confirmed."""

    def consume(self, queue: str, limit: int = 100, group: str = "workers") -> Consumer:
        """Consume a queue, with at most so many messages unsettled."""


class MqttConsumer:
    """A consumer with orders."""

    def __init__(self, client: Client, queue: str) -> None:
        self.client = client
        self._address = queue if queue.startswith("$dlq/") else f"$queue/{queue}"
        self._seen: deque[Any] = deque()

    def next(self, within: float = DEADLINE) -> Got:
        """The next message."""
        packet = self._seen.popleft() if self._seen else self._next(within)
        said = dict(packet.all(wire.USER_PROPERTY))
        return Got(packet.payload, int(said.get("x-delivery-count", 0)) > 0, (packet, said))

    def _next(self, within: float) -> Any:
        packet = self.client.expect(wire.PUBLISH, within)
        self.client.acknowledge(packet)
        return packet

    def nothing(self) -> None:
        """Nothing comes."""
        assert not self.client.ping()

    def ack(self, got: Got) -> int:
        """Order ack."""
        return self.order(got, "ack")

    def again(self, got: Got) -> int:
        """Order nack, at once."""
        return self.order(got, "nack", ("delay", "0"))

    def reject(self, got: Got) -> int:
        """Order reject."""
        return self.order(got, "reject", ("reason", "broken"))

    def order(self, got: Got, verb: str, *more: tuple[str, str]) -> int:
        """Say what becomes of a message; the reason code of the answer."""
        _, said = got.token
        told = [("message-id", said["message-id"]), ("group-id", said["group-id"]), *more]
        props = [(wire.USER_PROPERTY, pair) for pair in told]
        packet_id = self.client.packet_id()
        topic = f"{self._address}/${verb}"
        self.client.send(wire.publish(wire.V5, topic, b"", qos=1, packet_id=packet_id, props=props))
        while (packet := self.client.next()).kind != wire.PUBACK:
            self.client.acknowledge(packet)
            self._seen.append(packet)
        return packet.reason

    def crash(self) -> None:
        """Close the connection."""
        self.client.drop()


class Mqtt:
    """MQTT 5 at a node."""

    def __init__(self, node: Node, stack: ExitStack) -> None:
        self._node = node
        self._stack = stack
        self._publisher: Client | None = None

    def client(self, **options: Any) -> Client:
        """A connected client."""
        client = self._stack.enter_context(Client(tcp(HOST, self._node.port), wire.V5))
        assert client.connect(f"side{next(_names)}", **options).reason == 0
        return client

    def publish(self, queue: str, body: bytes) -> bool:
        """Publish with QoS 1."""
        return self.answer(queue, body) < 0x80

    def answer(self, queue: str, body: bytes, **options: Any) -> int:
        """The reason code a publish is answered."""
        if self._publisher is None:
            self._publisher = self.client()
        return self._publisher.publish(f"$queue/{queue}", body, qos=1, **options)

    def consume(
        self, queue: str, limit: int = 100, group: str = "workers", start: str = ""
    ) -> MqttConsumer:
        """Subscribe with explicit settlement."""
        client = self.client()
        told = [("consumer-group", group), ("ack-mode", "explicit"), ("prefetch", str(limit))]
        told += [("start", start)] if start else []
        address = queue if queue.startswith("$dlq/") else f"$queue/{queue}"
        client.subscribe(address, qos=1, props=[(wire.USER_PROPERTY, pair) for pair in told])
        return MqttConsumer(client, queue)


class AmqpConsumer:
    """A consumer on a channel of its own connection."""

    def __init__(self, connection: Any, queue: str, limit: int, arguments: dict[str, Any]) -> None:
        self.connection = connection
        self.channel = connection.channel()
        self.channel.basic_qos(prefetch_count=limit)
        self._seen: deque[Got] = deque()
        exclusive = bool(arguments.pop("exclusive", False))
        self.channel.basic_consume(queue, self._take, exclusive=exclusive, arguments=arguments)

    def _take(self, _channel: Any, method: Any, _properties: Any, body: bytes) -> None:
        self._seen.append(Got(body, method.redelivered, method.delivery_tag))

    def next(self, within: float = DEADLINE) -> Got:
        """The next message."""
        end = time.monotonic() + within
        while not self._seen:
            left = end - time.monotonic()
            if left <= 0:
                raise TimeoutError("nothing received before the deadline")
            self.connection.process_data_events(left)
        return self._seen.popleft()

    def nothing(self) -> None:
        """Nothing comes."""
        self.barrier()
        assert not self._seen

    def barrier(self) -> None:
        """What was sent before is answered."""
        self.channel.basic_qos(prefetch_count=100, global_qos=True)

    def ack(self, got: Got) -> int:
        """Acknowledge."""
        self.channel.basic_ack(got.token)
        return self._sent()

    def again(self, got: Got) -> int:
        """Give back."""
        self.channel.basic_nack(got.token, requeue=True)
        return self._sent()

    def reject(self, got: Got) -> int:
        """Refuse."""
        self.channel.basic_reject(got.token, requeue=False)
        return self._sent()

    def _sent(self) -> int:
        self.connection.process_data_events(0)
        return 0

    def crash(self) -> None:
        """Shut the connection's socket."""
        self.connection._impl._transport._sock.shutdown(socket.SHUT_RDWR)
        with suppress(AMQPError):
            while True:
                self.connection.process_data_events(DEADLINE)


class Amqp:
    """AMQP 0.9.1 at a node."""

    def __init__(self, node: Node, stack: ExitStack) -> None:
        self._node = node
        self._stack = stack
        self._publisher: Any = None

    def connect(self) -> Any:
        """A connection."""
        connection = pika.BlockingConnection(
            pika.ConnectionParameters(
                HOST, self._node.amqp_port, blocked_connection_timeout=DEADLINE
            )
        )
        self._stack.callback(_close, connection)
        return connection

    def channel(self) -> Any:
        """A channel of a new connection."""
        return self.connect().channel()

    def declare(self, queue: str, arguments: dict[str, Any]) -> None:
        """Declare a durable queue."""
        self.channel().queue_declare(queue, durable=True, arguments=arguments)

    def publish(self, queue: str, body: bytes) -> bool:
        """Publish with confirmation."""
        if self._publisher is None:
            self._publisher = self.channel()
            self._publisher.confirm_delivery()
        try:
            self._publisher.basic_publish("", queue, body, pika.BasicProperties(delivery_mode=2))
        except NackError:
            return False
        return True

    def consume(
        self, queue: str, limit: int = 100, group: str = "workers", **arguments: Any
    ) -> AmqpConsumer:
        """Consume; all AMQP consumers of a queue are one group."""
        return AmqpConsumer(self.connect(), queue, limit, arguments)


def _close(connection: Any) -> None:
    with suppress(AMQPError, ConnectionError):  # some end otherwise
        connection.close()


def side(protocol: str, node: Node, stack: ExitStack) -> Mqtt | Amqp:
    """A protocol at a node, by name."""
    return Mqtt(node, stack) if protocol == "mqtt" else Amqp(node, stack)


@contextmanager
def channel_of(node: Node) -> Iterator[BlockingChannel]:
    """A channel in confirm mode to a node."""
    parameters = pika.ConnectionParameters(HOST, node.amqp_port, heartbeat=0)
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        yield channel

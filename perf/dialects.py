"""Dialects of the protocols: opening a connection, the one repeated message, reading the answers.

A dialect is all that the generator's loop needs to know of a protocol before the clock runs; while it runs
there are only senders and receivers. Waits are blocking and bounded (``perf.handshake``).

Sources: MQTT 3.1.1 and 5.0; NATS client protocol; for ``queue`` this broker's addresses ``$queue/<name>``.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from perf import amqp, amqp10, codec, handshake, jetstream
from perf.codec import (
    AmqpReceiver,
    Histogram,
    JetStreamReceiver,
    NatsReceiver,
    Receiver,
    Sender,
    TagSender,
    TransferReceiver,
    TransferSender,
)
from perf.workload import BY_LINK, Workload

GROUP = "perf"
"""The consumer group of queue subscribers."""

LEFT_OVER_QUIET_S = 0.3
LEFT_OVER_MAX_S = 30.0
"""Leftovers of an earlier run are consumed first: until nothing arrives for the shorter time, at most
for the longer."""

Buffers = tuple[bytearray, bytearray]
"""Inbound and outbound, shared by all receivers of a process."""


class Template(NamedTuple):
    """One whole message; the offsets of its payload and of what names it (0: nothing in it does)."""

    message: bytes
    payload_at: int
    mark_at: int


class Dialect(Protocol):
    """One protocol. ``open_publisher`` also gives how many messages the broker lets it have in flight."""

    goodbye: bytes

    def open_publisher(
        self, host: str, port: int, workload: Workload, index: int
    ) -> tuple[socket.socket, int]: ...

    def open_subscriber(
        self, host: str, port: int, workload: Workload, index: int
    ) -> socket.socket: ...

    def template(self, workload: Workload, index: int) -> Template: ...

    def sender(
        self, template: Template, capacity: int, window: int, index: int, latency: Histogram
    ) -> Sender: ...

    def receiver(
        self, workload: Workload, buffers: Buffers, sender: Sender | None, latency: Histogram
    ) -> Receiver: ...


def followed(workload: Workload, sender: Sender | None) -> int:
    """Sequences that a receiver checks: all of them on a subscriber, none on a publisher."""
    return workload.publishers if sender is None else 0


class Mqtt:
    """MQTT topics."""

    goodbye = codec.disconnect()

    def open_publisher(
        self, host: str, port: int, workload: Workload, index: int
    ) -> tuple[socket.socket, int]:
        """CONNECT answered."""
        connection = handshake.dial(host, port)
        identifier = workload.client_id("p", index)
        return connection, handshake.connect_mqtt(connection, identifier, workload.version)

    def open_subscriber(
        self, host: str, port: int, workload: Workload, index: int
    ) -> socket.socket:
        """SUBSCRIBE answered."""
        connection = handshake.dial(host, port)
        handshake.connect_mqtt(connection, workload.client_id("s", index), workload.version)
        qos = workload.qos if workload.subscriber_qos is None else workload.subscriber_qos
        topic_filter = workload.subscriber_filter(index)
        handshake.subscribe_mqtt(connection, topic_filter, qos, workload.version)
        return connection

    def template(self, workload: Workload, index: int) -> Template:
        """One PUBLISH."""
        return Template(
            *codec.publish_template(
                workload.publisher_topic(index), workload.payload, workload.qos, workload.version
            )
        )

    def sender(
        self, template: Template, capacity: int, window: int, index: int, latency: Histogram
    ) -> Sender:
        """Stamps packet identifiers."""
        return Sender(*template, capacity, window, index, latency)

    def receiver(
        self, workload: Workload, buffers: Buffers, sender: Sender | None, latency: Histogram
    ) -> Receiver:
        """Reads packets."""
        return Receiver(*buffers, workload.version, sender, latency, followed(workload, sender))


class Queue(Mqtt):
    """Durable queues over MQTT: ``$queue/<name>``, one consumer group."""

    def template(self, workload: Workload, index: int) -> Template:
        """One PUBLISH to the pair's queue."""
        topic = f"$queue/{workload.queue_name(index)}"
        return Template(*codec.publish_template(topic, workload.payload, 1, workload.version))

    def open_subscriber(
        self, host: str, port: int, workload: Workload, index: int
    ) -> socket.socket:
        """A member of the group whose queue is empty. MQTT 3.1.1 names the group by its client identifier."""
        connection = handshake.dial(host, port)
        version = workload.version
        identifier = f"{GROUP}-{workload.client_id('s', index)}"
        handshake.connect_mqtt(connection, identifier, version)
        properties = codec.user_property("consumer-group", GROUP) if version == 5 else b""
        address = f"$queue/{workload.queue_name(index)}"
        handshake.subscribe_mqtt(connection, address, 1, version, properties)
        take_left_over(connection)
        return connection


def take_left_over(connection: socket.socket) -> int:
    """Acknowledge deliveries until none came for ``LEFT_OVER_QUIET_S``; how many there were."""
    taken = 0
    give_up = time.monotonic() + LEFT_OVER_MAX_S
    connection.settimeout(LEFT_OVER_QUIET_S)
    try:
        while time.monotonic() < give_up:
            first, body = handshake.read_packet(connection)
            if first >> 4 == 3:
                at = 2 + int.from_bytes(body[:2], "big")
                connection.sendall(codec.packet(0x40, body[at : at + 2]))
                taken += 1
    except TimeoutError:
        return taken
    raise handshake.HandshakeError(f"the queue still gives what a run before left after {taken}")


class Nats(Mqtt):
    """NATS core."""

    goodbye = b""

    def open_publisher(
        self, host: str, port: int, workload: Workload, index: int
    ) -> tuple[socket.socket, int]:
        """CONNECT and PING answered."""
        return open_nats(host, port), 65_535

    def open_subscriber(
        self, host: str, port: int, workload: Workload, index: int
    ) -> socket.socket:
        """SUB and PING answered."""
        connection = open_nats(host, port)
        connection.sendall(codec.nats_subscribe(workload.subscriber_filter(index)))
        handshake.await_pong(connection)
        return connection

    def template(self, workload: Workload, index: int) -> Template:
        """One PUB."""
        return Template(*codec.nats_template(workload.publisher_topic(index), workload.payload))

    def receiver(
        self, workload: Workload, buffers: Buffers, sender: Sender | None, latency: Histogram
    ) -> Receiver:
        """Reads lines."""
        return NatsReceiver(*buffers, 4, sender, latency, followed(workload, sender))


def open_nats(host: str, port: int) -> socket.socket:
    """A connection that a NATS server has answered."""
    connection = handshake.dial(host, port)
    connection.sendall(codec.nats_connect())
    handshake.await_pong(connection)
    return connection


class JetStream(Mqtt):
    """NATS JetStream: one stream in files per pair, publishes with acknowledgement, explicit acknowledgement."""

    goodbye = b""

    def open_publisher(
        self, host: str, port: int, workload: Workload, index: int
    ) -> tuple[socket.socket, int]:
        """Subscribed to the acknowledgements of its own publishes."""
        connection = open_nats(host, port)
        connection.sendall(codec.nats_subscribe(f"{jetstream.inbox(index)}.*"))
        handshake.await_pong(connection)
        return connection, 65_535

    def open_subscriber(
        self, host: str, port: int, workload: Workload, index: int
    ) -> socket.socket:
        """A fresh stream, or the one that is there, with a push consumer whose deliveries arrive here."""
        connection = open_nats(host, port)
        name, pending = workload.queue_name(index), workload.deliveries_max()
        if workload.declares:
            jetstream.declare(connection, name, pending, workload.retention)
        else:
            jetstream.listen(connection)
            jetstream.create_consumer(connection, name, pending)
        return connection

    def template(self, workload: Workload, index: int) -> Template:
        """One PUB with a reply subject of fixed length."""
        name = workload.queue_name(index)
        return Template(*jetstream.template(name, jetstream.inbox(index), workload.payload))

    def sender(
        self, template: Template, capacity: int, window: int, index: int, latency: Histogram
    ) -> Sender:
        """Numbers its publishes."""
        return TagSender(*template, capacity, window, index, latency)

    def receiver(
        self, workload: Workload, buffers: Buffers, sender: Sender | None, latency: Histogram
    ) -> Receiver:
        """Reads lines, acknowledges each delivery."""
        return JetStreamReceiver(*buffers, 4, sender, latency, followed(workload, sender))


class Amqp(Mqtt):
    """AMQP 0.9.1: one durable queue per pair, publisher confirms, manual acknowledgement.

    The queue is also bound to ``amq.topic`` with the key that an MQTT publisher's topic has there.
    """

    goodbye = amqp.close()

    def open_publisher(
        self, host: str, port: int, workload: Workload, index: int
    ) -> tuple[socket.socket, int]:
        """A channel in confirm mode."""
        connection = handshake.dial(host, port)
        amqp.open_channel(connection)
        amqp.confirm(connection)
        return connection, 65_535

    def open_subscriber(
        self, host: str, port: int, workload: Workload, index: int
    ) -> socket.socket:
        """A consumer of an empty queue."""
        connection = handshake.dial(host, port)
        amqp.open_channel(connection)
        name, kind = workload.queue_name(index), workload.queue_type
        if workload.declares:
            amqp.declare(connection, name, workload.publisher_topic(index).replace("/", "."), kind)
        else:
            amqp.purge(connection, name)
        amqp.consume(connection, name, amqp.PREFETCH, kind)
        return connection

    def template(self, workload: Workload, index: int) -> Template:
        """The three frames of one persistent message."""
        return Template(*amqp.publish_template(workload.queue_name(index), workload.payload))

    def sender(
        self, template: Template, capacity: int, window: int, index: int, latency: Histogram
    ) -> Sender:
        """Counts its publishes as delivery tags."""
        return TagSender(*template, capacity, window, index, latency)

    def receiver(
        self, workload: Workload, buffers: Buffers, sender: Sender | None, latency: Histogram
    ) -> Receiver:
        """Reads frames."""
        every = workload.ack_every
        return AmqpReceiver(*buffers, every, sender, latency, followed(workload, sender))


class Amqp10(Mqtt):
    """AMQP 1.0: one durable queue per pair, declared over AMQP 0.9.1; unsettled transfers, accepted deliveries."""

    goodbye = amqp10.close()

    def __init__(self, stamped: bool) -> None:
        self.stamped = stamped

    def open_publisher(
        self, host: str, port: int, workload: Workload, index: int
    ) -> tuple[socket.socket, int]:
        """A link to the queue; its credit comes later."""
        connection = handshake.dial(host, port)
        amqp10.open_session(connection)
        amqp10.attach_sender(connection, workload.queue_name(index))
        return connection, 65_535

    def open_subscriber(
        self, host: str, port: int, workload: Workload, index: int
    ) -> socket.socket:
        """A link from an empty queue."""
        name = workload.queue_name(index)
        if workload.queue_type != BY_LINK:
            with handshake.dial(host, port) as connection:
                amqp.open_channel(connection)
                if workload.declares:
                    amqp.declare(connection, name, "", workload.queue_type)
                else:
                    amqp.purge(connection, name)
        connection = handshake.dial(host, port)
        amqp10.open_session(connection)
        amqp10.attach_receiver(connection, name)
        return connection

    def template(self, workload: Workload, index: int) -> Template:
        """One transfer."""
        return Template(*amqp10.publish_template(workload.payload, self.stamped))

    def sender(
        self, template: Template, capacity: int, window: int, index: int, latency: Histogram
    ) -> Sender:
        """Numbers its deliveries."""
        stamps = amqp10.stamps_in(template.message)
        return TransferSender(*template, capacity, window, index, latency, *stamps)

    def receiver(
        self, workload: Workload, buffers: Buffers, sender: Sender | None, latency: Histogram
    ) -> Receiver:
        """Reads frames."""
        every, publishers = workload.ack_every, followed(workload, sender)
        return TransferReceiver(*buffers, every, sender, latency, publishers, amqp10.CREDIT)


DIALECTS: Mapping[str, Dialect] = {
    "mqtt": Mqtt(),
    "queue": Queue(),
    "nats": Nats(),
    "amqp": Amqp(),
    "amqp10": Amqp10(stamped=False),
    "amqp10-stamped": Amqp10(stamped=True),
    "jetstream": JetStream(),
}
"""By the names that workloads use."""

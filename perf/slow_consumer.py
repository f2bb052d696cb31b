"""``python -m perf.slow_consumer PORT [amqp10]``: a queue with a consumer that is too slow for its publisher, until it is
killed.

The queue is bounded, so that it is full after a while and stays so; its consumer takes one message at a time and
thinks about each. What another queue's publishers notice of it is the question.
"""

from __future__ import annotations

import socket
import struct
import sys
import time
from typing import Protocol

from perf import amqp, amqp10, handshake
from perf.brokers import HOST

QUEUE = "perf-slow"
LENGTH_MAX = 2_000
RATE = 500
PAUSE_S = 0.05
"""Of the consumer, over each message."""

BURST = 25
SIZE = 256


class Consumer(Protocol):
    """Takes one message at a time."""

    def consume(self, queue: str) -> None: ...

    def take(self) -> None:
        """Read the next delivery to its end, and acknowledge it."""


class Consumer091:
    """A consumer over AMQP 0.9.1, with a prefetch of 1."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        amqp.open_channel(connection)

    def consume(self, queue: str) -> None:
        amqp.consume(self._connection, queue, 1)

    def take(self) -> None:
        connection = self._connection
        arguments = amqp.await_method(connection, (60, 60))
        tag = int(struct.unpack_from(">Q", arguments, 1 + arguments[0])[0])
        _, _, size = struct.unpack(">BHI", handshake.read_exactly(connection, 7))
        header = handshake.read_exactly(connection, size + 1)
        left = int.from_bytes(header[4:12], "big")
        while left > 0:
            _, _, size = struct.unpack(">BHI", handshake.read_exactly(connection, 7))
            handshake.read_exactly(connection, size + 1)
            left -= size
        connection.sendall(amqp.method(1, (60, 80), struct.pack(">QB", tag, 0)))


class Consumer10:
    """A receiver over AMQP 1.0, with a credit of 1."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._taken = 0
        amqp10.open_session(connection)

    def consume(self, queue: str) -> None:
        amqp10.attach_receiver(self._connection, queue, credit=1)

    def take(self) -> None:
        amqp10.await_frame(self._connection, amqp10.TRANSFER)
        number, self._taken = self._taken, self._taken + 1
        self._connection.sendall(amqp10.accept(number) + amqp10.flow(0, self._taken, 1))


def main(arguments: list[str]) -> int:
    """Publish and consume, slowly."""
    port = int(arguments[0])
    slow, publisher = handshake.dial(HOST, port), handshake.dial(HOST, port)
    consumer: Consumer = Consumer10(slow) if arguments[1:] == ["amqp10"] else Consumer091(slow)
    amqp.open_channel(publisher)
    for connection in (slow, publisher):
        connection.settimeout(None)
    limits: dict[str, str | int] = {
        "x-queue-type": "quorum",
        "x-overflow": "drop-head",
        "x-max-length": LENGTH_MAX,
    }
    amqp.call(
        publisher,
        1,
        amqp.QUEUE_DECLARE,
        bytes(2) + amqp.short(QUEUE) + b"\x02" + amqp.table(limits),
    )
    consumer.consume(QUEUE)
    burst = amqp.publish_template(QUEUE, SIZE)[0] * BURST
    published, taken = time.monotonic(), 0.0
    while True:
        now = time.monotonic()
        if now >= published:
            publisher.sendall(burst)
            published += BURST / RATE
        if now >= taken:
            consumer.take()
            taken = now + PAUSE_S
        time.sleep(max(0.0, min(published, taken) - time.monotonic()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

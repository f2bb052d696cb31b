"""``python -m perf.slow_consumer PORT``: a queue with a consumer that is too slow for its publisher, until it is killed.

The queue is bounded, so that it is full after a while and stays so; its consumer takes one message at a time and
thinks about each. What another queue's publishers notice of it is the question.
"""

from __future__ import annotations

import socket
import struct
import sys
import time

from perf import amqp, handshake
from perf.brokers import HOST

QUEUE = "perf-slow"
LENGTH_MAX = 2_000
RATE = 500
PAUSE_S = 0.05
"""Of the consumer, over each message."""

BURST = 25
SIZE = 256


def acknowledge(tag: int) -> bytes:
    """basic.ack of one delivery."""
    return amqp.method(1, (60, 80), struct.pack(">QB", tag, 0))


def next_delivery(connection: socket.socket) -> int:
    """The delivery tag of the next delivery, read to its end."""
    arguments = amqp.await_method(connection, (60, 60))
    tag = int(struct.unpack_from(">Q", arguments, 1 + arguments[0])[0])
    _, _, size = struct.unpack(">BHI", handshake.read_exactly(connection, 7))
    header = handshake.read_exactly(connection, size + 1)
    left = int.from_bytes(header[4:12], "big")
    while left > 0:
        _, _, size = struct.unpack(">BHI", handshake.read_exactly(connection, 7))
        handshake.read_exactly(connection, size + 1)
        left -= size
    return tag


def main(arguments: list[str]) -> int:
    """Publish and consume, slowly."""
    port = int(arguments[0])
    consumer, publisher = handshake.dial(HOST, port), handshake.dial(HOST, port)
    for connection in (consumer, publisher):
        amqp.open_channel(connection)
        connection.settimeout(None)
    limits: dict[str, str | int] = {
        "x-queue-type": "quorum",
        "x-overflow": "drop-head",
        "x-max-length": LENGTH_MAX,
    }
    amqp.call(
        consumer,
        1,
        amqp.QUEUE_DECLARE,
        bytes(2) + amqp.short(QUEUE) + b"\x02" + amqp.table(limits),
    )
    amqp.consume(consumer, QUEUE, 1)
    burst = amqp.publish_template(QUEUE, SIZE)[0] * BURST
    published, taken = time.monotonic(), 0.0
    while True:
        now = time.monotonic()
        if now >= published:
            publisher.sendall(burst)
            published += BURST / RATE
        if now >= taken:
            consumer.sendall(acknowledge(next_delivery(consumer)))
            taken = now + PAUSE_S
        time.sleep(max(0.0, min(published, taken) - time.monotonic()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

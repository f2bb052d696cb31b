"""10,000 connections and 10,000 queues over AMQP that say and hold nothing: memory, and a start with the queues.

Proportional set size over the broker's process tree, before and after, divided by their number; some are made before
the first reading, so that what a broker sets up once is not charged to the others. Then the broker is stopped cleanly
and started again on its data; the clock runs until a client is let in and finds the last queue.
"""

from __future__ import annotations

import socket
import time
from dataclasses import asdict, dataclass
from typing import Any

from perf import amqp, handshake, processes, rabbitmq
from perf.brokers import HOST, Broker
from perf.run import Progress
from perf.worker import raise_descriptor_limit

FIRST = 100
"""Made before the first reading."""

SETTLE_S = 1.0
QUEUES = 10_000
START_S = 300.0


@dataclass(frozen=True, slots=True)
class AmqpIdleMeasurement:
    """Bytes of the broker's processes for each, how quickly they were made, and the seconds of the start."""

    target: str
    connections: int
    pss_per_connection: float
    connections_per_s: float
    queues: int
    pss_per_queue: float
    queues_per_s: float
    start_s: float

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def resident(pids: list[int]) -> int:
    """Proportional set size once the broker is quiet."""
    time.sleep(SETTLE_S)
    return processes.memory(pids).pss


def queue_name(number: int) -> str:
    """The name of an idle queue."""
    return f"perf-idle-{number}"


def open_connections(port: int, count: int, opened: list[socket.socket]) -> float:
    """So many connections with a channel each; the seconds they took. Raises ``OSError``."""
    began = time.monotonic()
    for _ in range(count):
        connection = handshake.dial(HOST, port)
        opened.append(connection)
        amqp.open_channel(connection)
    return time.monotonic() - began


def declare_queues(
    connection: socket.socket, kind: str, first: int, count: int, progress: Progress | None
) -> float:
    """So many durable queues; the seconds they took. Raises ``OSError``."""
    began = time.monotonic()
    for number in range(first, first + count):
        arguments = b"\x02" + amqp.table({"x-queue-type": kind})
        declaration = bytes(2) + amqp.short(queue_name(number)) + arguments
        amqp.call(connection, 1, amqp.QUEUE_DECLARE, declaration)
        if progress is not None and number % 100 == 0:
            progress(number - first, count)
    return time.monotonic() - began


def restart(broker: Broker, last: int) -> float:
    """Seconds from the start of the process until a client finds the last queue. Raises ``BrokerError``."""
    began = broker.restart(rabbitmq.answers_amqp, START_S)
    with handshake.dial(HOST, broker.port) as connection:
        amqp.open_channel(connection)
        passive = bytes(2) + amqp.short(queue_name(last)) + b"\x01" + amqp.table({})
        amqp.call(connection, 1, amqp.QUEUE_DECLARE, passive)
        return time.monotonic() - began


def measure(
    broker: Broker,
    kind: str,
    connections: int,
    queues: int = QUEUES,
    progress: Progress | None = None,
) -> AmqpIdleMeasurement:
    """Connections first, then queues, then the start. Raises ``OSError`` or ``BrokerError``."""
    raise_descriptor_limit()
    pids = processes.tree((broker.process.pid,))
    opened: list[socket.socket] = []
    try:
        open_connections(broker.port, FIRST, opened)
        before = resident(pids)
        connecting = open_connections(broker.port, connections, opened)
        connected = resident(pids)
    finally:
        for connection in opened:
            connection.close()
    with handshake.dial(HOST, broker.port) as connection:
        amqp.open_channel(connection)
        declare_queues(connection, kind, 0, FIRST, None)
        empty = resident(pids)
        declaring = declare_queues(connection, kind, FIRST, queues, progress)
        declared = resident(pids)
    return AmqpIdleMeasurement(
        target=broker.name,
        connections=connections,
        pss_per_connection=(connected - before) / connections,
        connections_per_s=connections / connecting,
        queues=queues,
        pss_per_queue=(declared - empty) / queues,
        queues_per_s=queues / declaring,
        start_s=restart(broker, FIRST + queues - 1),
    )

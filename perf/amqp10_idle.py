"""Idle connections over AMQP 1.0 with links, and over AMQP 0.9.1 with a channel and a consumer: their memory.

Proportional set size over the broker's process tree, before and after, divided by their number; some are made before
the first reading, so that what a broker sets up once is not charged to the others. Each link and consumer is of one of
``QUEUES`` queues, which are empty.
"""

from __future__ import annotations

import socket
import time
from dataclasses import asdict, dataclass
from typing import Any

from perf import amqp, amqp10, handshake, processes
from perf.amqp_idle import FIRST, queue_name, resident
from perf.brokers import HOST, Broker
from perf.run import Progress
from perf.worker import raise_descriptor_limit

QUEUES = 100
CREDIT = 100
"""Of each link from a queue, and prefetch of each consumer."""
ALIVE_SECONDS = 20.0
"""After so long connections over AMQP 1.0 send an empty frame, while others are made."""


@dataclass(frozen=True, slots=True)
class IdleLinksMeasurement:
    """Bytes of the broker's processes for each connection with all that it has, and for each of its ``links`` beside the
    first two; seconds that a connection took."""

    target: str
    connections: int
    links: int
    pss_per_connection: float
    pss_per_link: float
    connections_per_s: float

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def attach(connection: socket.socket, number: int, first: int, last: int) -> None:
    """Attach links with handles from ``first`` to ``last``, even ones to a queue, odd ones from it."""
    queue = queue_name(number % QUEUES)
    for handle in range(first, last + 1):
        if handle % 2:
            amqp10.attach_receiver(connection, queue, handle, CREDIT)
        else:
            amqp10.attach_sender(connection, queue, handle)


def open_one(broker: Broker, protocol: str, number: int) -> socket.socket:
    """A connection with a session and two links, or a channel and a consumer. Raises ``OSError``."""
    connection = handshake.dial(HOST, broker.port)
    if protocol == "amqp10":
        amqp10.open_session(connection)
        attach(connection, number, 0, 1)
    else:
        amqp.open_channel(connection)
        amqp.consume(connection, queue_name(number % QUEUES), CREDIT)
    return connection


class Alive:
    """The connections over AMQP 1.0 that have been made: brokers close those that send nothing for long."""

    def __init__(self, opened: list[socket.socket], protocol: str) -> None:
        self._opened = opened
        self._needed = protocol == "amqp10"
        self._last = time.monotonic()

    def keep(self) -> None:
        """Have them send an empty frame, if it is time."""
        if self._needed and time.monotonic() > self._last + ALIVE_SECONDS:
            self._last = time.monotonic()
            for connection in self._opened:
                connection.sendall(amqp10.frame(b""))


def measure(
    broker: Broker,
    protocol: str,
    connections: int,
    links: int = 2,
    progress: Progress | None = None,
) -> IdleLinksMeasurement:
    """Connections first, then more links on each up to ``links``. Raises ``OSError``."""
    raise_descriptor_limit()
    pids = processes.tree((broker.process.pid,))
    opened: list[socket.socket] = []
    alive = Alive(opened, protocol)
    with handshake.dial(HOST, broker.port) as connection:
        amqp.open_channel(connection)
        for number in range(QUEUES):
            amqp.declare(connection, queue_name(number), "", "classic")
    try:
        opened += [open_one(broker, protocol, number) for number in range(FIRST)]
        before = resident(pids)
        began = time.monotonic()
        for number in range(connections):
            opened.append(open_one(broker, protocol, number))
            alive.keep()
            if progress is not None and number % 100 == 0:
                progress(number, connections)
        connecting = time.monotonic() - began
        connected = resident(pids)
        if links > 2:
            for number, connection in enumerate(opened[FIRST:]):
                attach(connection, number, 2, links - 1)
                alive.keep()
        linked = processes.memory(pids).pss if links == 2 else resident(pids)
    finally:
        for connection in opened:
            connection.close()
    return IdleLinksMeasurement(
        target=broker.name,
        connections=connections,
        links=links,
        pss_per_connection=(connected - before) / connections,
        pss_per_link=(linked - connected) / connections / (links - 2) if links > 2 else 0.0,
        connections_per_s=connections / connecting,
    )

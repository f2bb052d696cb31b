"""A client process of `fluxmqctl bench`: publishes and receives as fast as the broker lets it.

``python -m fluxmq.cli.bench_client`` reads one `BenchTask` as JSON from standard input, runs it, and
writes one JSON object to standard output. One loop serves one publisher and one subscriber. Two bounds hold
the publisher back: messages that are not confirmed, and messages that have not arrived, so that a fast
publisher measures the broker and not how quickly it drops.
"""

from __future__ import annotations

import contextlib
import select
import socket
import sys
import time
from typing import Any, Final

import numpy as np
import orjson
from msgspec import Struct, convert
from numpy.typing import NDArray

from fluxmq.cli.bench_wire import (
    BATCH,
    AmqpQueue,
    BenchError,
    Dialect,
    ListenerLogin,
    MqttTopic,
)

UNDER_WAY_MAX: Final = 8192
"""Messages that have not arrived yet, of one publisher."""
GIVE_UP_NS: Final = 500_000_000
"""Time without an arrival after which messages of QoS 0 count as lost."""
DRAIN_SECONDS: Final = 2.0
"""Time for messages under way to arrive after the last was published."""
WINDOW: Final = 1000
"""Messages that are not confirmed: brokers keep 1024 of an MQTT client in flight."""
_READ_BYTES: Final = 1 << 18


class BenchTask(Struct, frozen=True):
    """Work of one process. ``kind``: mqtt-qos0, mqtt-qos1 or amqp-confirms; ``name`` of the topic or
    queue; ``size`` of a payload in bytes. Counting begins after ``warm_up`` seconds, for ``seconds``."""

    kind: str
    host: str
    port: int
    user: str
    password: str
    name: str
    size: int
    warm_up: float
    seconds: float


class BenchClient:
    """One publisher and one subscriber. Raises BenchError or OSError."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        # Subscribers of AMQP need the queue that the publisher declares.
        self._publisher = dialect.publisher()
        self._subscriber = dialect.subscriber()
        for connection in (self._publisher, self._subscriber):
            connection.setblocking(False)
        self._poller = select.poll()
        self._poller.register(self._publisher, select.POLLIN)
        self._poller.register(self._subscriber, select.POLLIN)
        self._inbound = {
            self._publisher.fileno(): bytearray(),
            self._subscriber.fileno(): bytearray(),
        }
        self._out = memoryview(b"")
        self._answers = bytearray()
        self.sent = self.confirmed = self.received = self.lost = 0
        self._last_arrival = 0
        self.latencies: list[NDArray[np.int64]] = []

    def run(self, until: float, *, publish: bool = True) -> None:
        """Publish and receive until a time of the monotonic clock, or only receive until all is
        there."""
        while time.monotonic() < until and (publish or self._under_way() > 0):
            now = time.monotonic_ns()
            if publish and not self._out:
                self._refill(now)
            self._flush()
            writes = select.POLLOUT if self._out else 0
            self._poller.modify(self._publisher, select.POLLIN | writes)
            answers = select.POLLOUT if self._answers else 0
            self._poller.modify(self._subscriber, select.POLLIN | answers)
            for fd, events in self._poller.poll(10):
                if events & (select.POLLIN | select.POLLHUP | select.POLLERR):
                    self._hear(fd)

    def close(self) -> None:
        """Remove what the run has left in the broker, and close the connections."""
        with contextlib.suppress(OSError, BenchError):
            self._dialect.close(self._publisher)
        self._publisher.close()
        self._subscriber.close()

    def _under_way(self) -> int:
        return self.sent - self.received - self.lost

    def _refill(self, now: int) -> None:
        """Make the next batch, as far as the bounds allow."""
        room = UNDER_WAY_MAX - self._under_way()
        window = self._dialect.window
        if window:
            room = min(room, window - (self.sent - self.confirmed))
        elif room <= 0 and now - self._last_arrival > GIVE_UP_NS:
            self.lost += self._under_way()
            self._last_arrival = now
        count = min(room, BATCH)
        if count > 0:
            self._out = memoryview(self._dialect.batch(count, now))
            self.sent += count

    def _flush(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._out:
                self._out = self._out[self._publisher.send(self._out) :]
        with contextlib.suppress(BlockingIOError):
            while self._answers:
                del self._answers[: self._subscriber.send(self._answers)]

    def _hear(self, fd: int) -> None:
        connection = self._subscriber if fd == self._subscriber.fileno() else self._publisher
        data = _received(connection)
        if not data:
            return
        inbound = self._inbound[fd]
        inbound += data
        if connection is self._publisher:
            self.confirmed += self._dialect.confirmed(inbound)
            return
        stamps, answer = self._dialect.arrived(inbound)
        if len(stamps):
            now = time.monotonic_ns()
            self._last_arrival = now
            self.received += len(stamps)
            self.latencies.append(now - stamps)
            self._answers += answer


def _received(connection: socket.socket) -> bytes:
    try:
        data = connection.recv(_READ_BYTES)
    except BlockingIOError:
        return b""
    if not data:
        raise BenchError("the broker closed a connection; its log says why")
    return data


def dialect_of(task: BenchTask) -> Dialect:
    """Return the dialect that a task asks for."""
    login = ListenerLogin(task.host, task.port, task.user, task.password)
    if task.kind == "amqp-confirms":
        return AmqpQueue(login, task.name, task.size, WINDOW)
    return MqttTopic(login, task.name, task.size, 1 if task.kind == "mqtt-qos1" else 0, WINDOW)


def measured(task: BenchTask) -> dict[str, Any]:
    """Run a task; return its counts, and its latencies in microseconds at some quantiles. Raises
    BenchError or OSError."""
    client = BenchClient(dialect_of(task))
    try:
        client.run(time.monotonic() + task.warm_up)
        client.latencies.clear()
        begun, before = time.monotonic(), (client.sent, client.received)
        client.run(begun + task.seconds)
        seconds = time.monotonic() - begun
        sent, received = client.sent - before[0], client.received - before[1]
        latencies = np.concatenate([np.empty(0, np.int64), *client.latencies])
        client.run(time.monotonic() + DRAIN_SECONDS, publish=False)
    finally:
        client.close()
    quantiles = np.quantile(latencies, (0.5, 0.99)) if len(latencies) else np.zeros(2)
    return {
        "seconds": seconds,
        "sent": sent,
        "received": received,
        "lost": client.sent - client.received,
        "p50_us": round(float(quantiles[0]) / 1000, 1),
        "p99_us": round(float(quantiles[1]) / 1000, 1),
    }


def main() -> None:
    """Run the task on standard input."""
    task = convert(orjson.loads(sys.stdin.buffer.read()), BenchTask)
    try:
        found = measured(task)
    except (BenchError, OSError) as problem:
        raise SystemExit(str(problem)) from None
    sys.stdout.buffer.write(orjson.dumps(found))


if __name__ == "__main__":
    main()

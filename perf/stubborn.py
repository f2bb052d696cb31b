"""Clients that outlive their broker's nodes: they connect to the next node and go on where they were.

A publisher whose connection ends, or that is refused a message, publishes again from the oldest message that may not
have been confirmed: nothing is left out, some come twice. A consumer goes on with what it has not acknowledged. Each is
a thread with one blocking connection; what runs per message is the generators' inner loop.
"""

from __future__ import annotations

import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from perf import amqp, codec, dialects, handshake
from perf.brokers import HOST
from perf.codec import Histogram, Receiver, Sender
from perf.handshake import HandshakeError
from perf.workload import Workload

RETRY_S = 0.05
"""Between a connection that failed and the next."""

WAIT_S = 0.1
"""Longest wait for a broker to say something before the clocks are looked at."""

INBOUND_BYTES = 1 << 18

BLIND_S = 0.02
"""Sleep of a paced publisher that has nothing due."""

CONFIRMED_QUIET_S = 10.0
"""A publisher whose broker says nothing for so long, though messages wait for it, connects anew."""


@dataclass(slots=True)
class Confirms:
    """Arrival of confirms: the pauses between them that began within the watched time."""

    last: float = 0.0
    since: float = 0.0
    longest: float = 0.0
    watched: bool = False

    def watch(self, now: float) -> None:
        """From now on pauses count; the one that is on now counts whole."""
        self.watched, self.since, self.longest = True, now, 0.0

    def came(self, now: float) -> None:
        """At least one came."""
        if self.watched and self.last:
            self.longest = max(self.longest, now - self.last)
        self.last = now


@dataclass(slots=True)
class Wire:
    """The one connection of a client and what is read from it. Buffers are its own: clients are threads."""

    connection: socket.socket
    receiver: Receiver
    inbound: bytearray
    outbound: bytearray
    kept: int = 0

    def take(self, measuring: bool) -> bool:
        """Read once, account, send the replies that are due; False when nothing came. Raises ``OSError``."""
        view = memoryview(self.inbound)
        try:
            count = self.connection.recv_into(view[self.kept :])
        except TimeoutError:
            return False
        if not count:
            raise HandshakeError("the broker closed the connection")
        end = self.kept + count
        done = self.receiver.feed(end, time.monotonic_ns(), measuring)
        self.kept = end - done
        view[: self.kept] = bytes(view[done:end])
        if self.receiver.out_length:
            self.connection.settimeout(handshake.TIMEOUT_S)
            self.connection.sendall(memoryview(self.outbound)[: self.receiver.out_length])
        return True


def spoken(workload: Workload) -> str:
    """A protocol's name for people."""
    return {"amqp": "AMQP", "queue": "MQTT"}.get(workload.protocol, workload.protocol)


class Client(threading.Thread, ABC):
    """Common part of both: nodes to connect to, an end, a count of connections. ``ports``: the nodes',
    beginning with the first to try."""

    def __init__(self, name: str, workload: Workload, index: int, ports: Sequence[int]) -> None:
        super().__init__(name=name, daemon=True)
        self.label = name
        self.workload, self.index, self.ports = workload, index, list(ports)
        self.connections = 0
        self.opening_s = 0.0
        """Seconds that the newest connection took until messages could flow."""
        self.problems: list[str] = []
        self.ended, self.connected = threading.Event(), threading.Event()
        self._turn = 0
        self._dialled = 0.0

    def _opened(self) -> None:
        self.opening_s = time.monotonic() - self._dialled
        self.connected.set()

    @property
    @abstractmethod
    def done(self) -> bool:
        """True when nothing is left to do."""

    @abstractmethod
    def session(self, port: int) -> None:
        """One connection's life. Raises ``OSError`` when it ends before all is done."""

    def run(self) -> None:
        """Connect, and connect again, until done or told to end."""
        while not self.done and not self.ended.is_set():
            port = self.ports[self._turn % len(self.ports)]
            self.connections += 1
            self._dialled = time.monotonic()
            try:
                self.session(port)
            except OSError as problem:
                self.problems.append(f"{self.name}: {problem}")
                del self.problems[:-10]
                self._turn += 1
                time.sleep(RETRY_S)


class Publisher(Client):
    """Publishes so many messages, each confirmed; with ``rate`` so many a second, else as fast as its window allows."""

    def __init__(
        self,
        workload: Workload,
        index: int,
        ports: Sequence[int],
        messages: int,
        rate: float = 0.0,
    ) -> None:
        super().__init__(f"publisher over {spoken(workload)}", workload, index, ports)
        self.messages, self.rate = messages, rate
        self.next = 0
        """All messages before this one were confirmed."""
        self.confirmed = 0
        self.refused = self.repeated = 0
        self.confirms = Confirms()
        self.latency = Histogram()
        self.measuring = True
        self._finished = False
        self._began = 0.0
        self._sender: Sender | None = None

    @property
    def done(self) -> bool:
        """True when every message was confirmed."""
        return self._finished

    def begin_phase(self) -> None:
        """Count times to confirm and pauses anew."""
        self.latency = Histogram()
        if self._sender is not None:
            self._sender.latency = self.latency
        self.confirms.watch(time.monotonic())

    def session(self, port: int) -> None:
        """Publish over one connection."""
        dialect = dialects.DIALECTS[self.workload.protocol]
        connection, limit = dialect.open_publisher(HOST, port, self.workload, self.index)
        with connection:
            template = dialect.template(self.workload, self.index)
            window = min(self.workload.window, limit)
            capacity = min(self.workload.chunk_messages(len(template.message)), window)
            sender = dialect.sender(template, capacity, window, self.index, self.latency)
            sender.sequence = self.next
            self._sender = sender
            buffers = bytearray(INBOUND_BYTES), bytearray(INBOUND_BYTES)
            receiver = dialect.receiver(self.workload, buffers, sender, self.latency)
            wire = Wire(connection, receiver, *buffers)
            self._opened()
            try:
                self._publish(wire, sender)
            finally:
                if not self._finished:
                    self._rewind(sender)

    def _rewind(self, sender: Sender) -> None:
        """Go back to before everything that may not be confirmed: confirms may come out of order, within a ring."""
        sequence = int(sender.sequence)
        back = max(self.next, sequence - sender.ring)
        self.repeated += sequence - back
        self.next = sender.sequence = back

    def _publish(self, wire: Wire, sender: Sender) -> None:
        refused = 0
        quiet = time.monotonic()
        chunk = memoryview(sender.chunk)
        self._began = self._began or time.monotonic() - self.next / (self.rate or 1e9)
        while not self.ended.is_set():
            if sender.refused != refused and not sender.in_flight:
                # Refused messages are published again before newer ones.
                self.refused += sender.refused - refused
                refused = sender.refused
                self._rewind(sender)
            held = sender.refused != refused
            count = 0 if held else self._due(sender)
            if count and (self.rate or count >= min(sender.capacity, self._left(sender))):
                wire.connection.settimeout(handshake.TIMEOUT_S)
                stamp = time.monotonic_ns()
                wire.connection.sendall(chunk[: sender.prepare(count, stamp, 0)])
                continue
            before = sender.acknowledged
            wire.connection.settimeout(self._patience(sender))
            taken = wire.take(self.measuring)
            now = time.monotonic()
            if sender.acknowledged != before and sender.refused == refused:
                self.confirmed += sender.acknowledged - before
                self.confirms.came(now)
            if taken or not sender.in_flight:
                quiet = now
            elif now - quiet > CONFIRMED_QUIET_S:
                raise HandshakeError("the broker confirms nothing")
            if not self._left(sender) and not sender.in_flight and sender.refused == refused:
                self._finished = True
                return

    def _left(self, sender: Sender) -> int:
        sequence: int = sender.sequence
        return self.messages - sequence

    def _due(self, sender: Sender) -> int:
        """Return the number of messages that may be sent now."""
        count = min(sender.room(), self._left(sender))
        if self.rate:
            due = int((time.monotonic() - self._began) * self.rate) + 1 - sender.sequence
            count = min(count, due)
        return int(max(0, count))

    def _patience(self, sender: Sender) -> float:
        if not self.rate:
            return WAIT_S
        ahead = self._began + int(sender.sequence) / self.rate - time.monotonic()
        return max(0.0005, min(BLIND_S, ahead))


class Consumer(Client):
    """Takes what a queue has, acknowledging it, and marks each message it sees. ``messages``: of each publisher."""

    def __init__(
        self, workload: Workload, index: int, ports: Sequence[int], messages: int, publishers: int
    ) -> None:
        super().__init__(f"consumer over {spoken(workload)}", workload, index, ports)
        self.messages, self.publishers = messages, publishers
        self.marks = bytearray(messages * publishers)
        self.late = self.received = 0
        self.delivery = Histogram()
        self.measuring = True
        self.last = 0.0
        self._expected = [0] * publishers

    @property
    def done(self) -> bool:
        """True when the last message of every publisher has arrived; ``marks`` tell whether all have."""
        return all(expected >= self.messages for expected in self._expected)

    def missing(self) -> int:
        """Messages that never came."""
        return self.marks.count(0)

    def repeated(self) -> int:
        """Deliveries of messages that had come before."""
        return self.received - (len(self.marks) - self.missing())

    def session(self, port: int) -> None:
        """Consume over one connection."""
        work = self.workload
        opened = consume_amqp if work.protocol == "amqp" else consume_mqtt
        with opened(port, work, self.index) as connection:
            buffers = bytearray(INBOUND_BYTES), bytearray(INBOUND_BYTES)
            dialect = dialects.DIALECTS[work.protocol]
            followed = work.changed(publishers=self.publishers, subscribers=self.publishers)
            receiver = dialect.receiver(followed, buffers, None, self.delivery)
            for number, expected in enumerate(self._expected):
                receiver.expected[number] = expected
            receiver.mark(self.marks, self.messages)
            wire = Wire(connection, receiver, *buffers)
            received, late = self.received, self.late
            self._opened()
            while not self.done and not self.ended.is_set():
                connection.settimeout(WAIT_S)
                try:
                    if wire.take(self.measuring):
                        self.last = time.monotonic()
                finally:
                    self.received = received + receiver.publishes
                    self.late = late + receiver.late
                    self._expected = list(receiver.expected)


def consume_amqp(port: int, workload: Workload, _index: int) -> socket.socket:
    """A consumer of a queue as it is. Raises ``OSError``."""
    connection = handshake.dial(HOST, port)
    try:
        amqp.open_channel(connection)
        amqp.consume(connection, workload.queue_name(0), amqp.PREFETCH, workload.queue_type)
    except BaseException:
        connection.close()
        raise
    return connection


def consume_mqtt(port: int, workload: Workload, index: int) -> socket.socket:
    """A member of the queue's group ``perf``, with MQTT 5. Raises ``OSError``."""
    connection = handshake.dial(HOST, port)
    try:
        handshake.connect_mqtt(connection, f"stubborn-{index}", 5)
        properties = codec.user_property("consumer-group", dialects.GROUP)
        address = f"$queue/{workload.queue_name(0)}"
        handshake.subscribe_mqtt(connection, address, 1, 5, properties)
    except BaseException:
        connection.close()
        raise
    return connection

"""Churn over AMQP: connections, channels, consumers, queues and bindings that come and go.

A fixed number of cycles is always under way, each on a connection of its own: of connections a cycle is TCP connect,
the whole greeting and connection.close; of the others it is making one and taking it away again, on a connection that
stays. The duration recorded is that of a whole cycle. Answers are recognised by class and method alone.
"""

from __future__ import annotations

import errno
import select
import socket
import struct
import time
from dataclasses import dataclass, field

from perf import amqp, handshake
from perf import board as words
from perf.amqp import Method
from perf.board import Board
from perf.churn import CONNECTION_TIMEOUT_NS, FAILURES_MAX, RESET_ON_CLOSE
from perf.codec import Histogram
from perf.generator import SLEEP_MAX_S, BrokenRunError
from perf.percentiles import sparse
from perf.workload import Workload

RECEIVE_BYTES = 65_536
CHANNEL = 2
"""Of channel churn; 1 is the one that stays."""

Step = tuple[bytes, Method]
"""A method to send, and the method that answers it."""


def ask(channel: int, name: Method, arguments: bytes) -> Step:
    """A method whose answer has the next number."""
    return amqp.method(channel, name, arguments), (name[0], name[1] + 1)


def greeting() -> list[Step]:
    """All of a connection's life; the last answer is close-ok."""
    start = amqp.table({}) + amqp.short("PLAIN") + amqp.long(b"\x00guest\x00guest")
    answer = amqp.method(0, amqp.CONNECTION_START_OK, start + amqp.short("en_US"))
    tune = struct.pack(">HIH", amqp.CHANNELS, amqp.FRAME_MAX, 0)
    tuned = amqp.method(0, amqp.CONNECTION_TUNE_OK, tune)
    opening, opened = ask(0, amqp.CONNECTION_OPEN, amqp.short("/") + amqp.short("") + b"\x00")
    return [
        (b"AMQP\x00\x00\x09\x01", amqp.CONNECTION_START),
        (answer, amqp.CONNECTION_TUNE),
        (tuned + opening, opened),
        (amqp.close(), (10, 51)),
    ]


def cycle(what: str, name: str) -> list[Step]:
    """Making one thing and taking it away; ``name`` is this connection's own."""
    queue = amqp.short(name)
    if what == "channel":
        ended = struct.pack(">H", 200) + amqp.short("") + bytes(4)
        return [
            ask(CHANNEL, amqp.CHANNEL_OPEN, amqp.short("")),
            ask(CHANNEL, amqp.CHANNEL_CLOSE, ended),
        ]
    if what == "consumer":
        tag = amqp.short("c")
        consumer = bytes(2) + queue + tag + b"\x00" + amqp.table({})
        return [ask(1, amqp.BASIC_CONSUME, consumer), ask(1, (60, 30), tag + b"\x00")]
    if what == "binding":
        binding = bytes(2) + queue + amqp.short("amq.direct") + amqp.short(f"{name}-key")
        unbound = binding + amqp.table({})
        return [
            ask(1, amqp.QUEUE_BIND, binding + b"\x00" + amqp.table({})),
            ask(1, (50, 50), unbound),
        ]
    declared = bytes(2) + amqp.short(f"{name}-made") + b"\x02" + amqp.table({})
    return [
        ask(1, amqp.QUEUE_DECLARE, declared),
        ask(1, amqp.QUEUE_DELETE, bytes(2) + amqp.short(f"{name}-made") + b"\x00"),
    ]


@dataclass(slots=True, eq=False)
class Slot:
    """One cycle under way: its steps, the one whose answer is awaited, bytes not understood yet."""

    steps: list[Step]
    connection: socket.socket
    at: int = 0
    started: int = 0
    received: bytearray = field(default_factory=bytearray)


class AmqpChurn:
    """A worker's share of an AMQP churn workload. ``received`` of the board counts completed cycles."""

    def __init__(
        self, workload: Workload, address: tuple[str, int], slots: int, board: Board, worker: int
    ) -> None:
        self.workload = workload
        self.address = address
        self.count = slots
        self.board = board
        self.worker = worker
        self.epoll = select.epoll()
        self.slots: dict[int, Slot] = {}
        self.latency = Histogram()
        self.begun = self.completed = self.failed = 0
        self.fresh = workload.churn_of == "connection"

    def connect(self) -> None:
        """Open the connections that stay. Raises ``OSError``."""
        for number in range(0 if self.fresh else self.count):
            name = f"{self.workload.topic}-churn-{self.worker}-{number}"
            connection = handshake.dial(*self.address)
            amqp.open_channel(connection)
            if self.workload.churn_of in ("consumer", "binding"):
                amqp.declare(connection, name, "", self.workload.queue_type)
            connection.setblocking(False)
            self.slots[connection.fileno()] = Slot(cycle(self.workload.churn_of, name), connection)
            self.epoll.register(connection.fileno(), select.EPOLLIN)

    def run(self) -> None:
        """Cycles until ``MEASURE_TO``. Raises ``BrokenRunError`` after too many failures."""
        board = self.board.words
        start, measure_from = board[words.START], board[words.MEASURE_FROM]
        measure_to = board[words.MEASURE_TO]
        while time.monotonic_ns() < start:
            time.sleep(0.001)
        for slot in self.slots.values():
            self._start(slot)
        while (now := time.monotonic_ns()) < measure_to:
            while self.fresh and len(self.slots) < self.count:
                self._connect()
            for fd, mask in self.epoll.poll(SLEEP_MAX_S):
                self._advance(fd, mask, measure_from)
            self._expire(now)
            if self.failed > FAILURES_MAX:
                raise BrokenRunError(f"{self.failed} cycles failed")
            row = self.board.place(self.worker, 0)
            board[row + words.SENT] = self.begun
            board[row + words.RECEIVED] = self.completed

    def _connect(self) -> None:
        connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        connection.setblocking(False)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        slot = Slot(greeting(), connection, started=time.monotonic_ns())
        error = connection.connect_ex(self.address)
        if error not in (0, errno.EINPROGRESS):
            connection.close()
            raise BrokenRunError(f"connect: {errno.errorcode.get(error, error)}")
        self.begun += 1
        self.slots[connection.fileno()] = slot
        self.epoll.register(connection.fileno(), select.EPOLLOUT)

    def _start(self, slot: Slot) -> None:
        """The first step of a cycle on a connection that stays."""
        self.begun += 1
        slot.at, slot.started = 0, time.monotonic_ns()
        slot.connection.send(slot.steps[0][0])

    def _advance(self, fd: int, mask: int, measure_from: int) -> None:
        slot = self.slots[fd]
        try:
            if mask & select.EPOLLOUT:
                slot.connection.send(slot.steps[0][0])
                self.epoll.modify(fd, select.EPOLLIN)
                return
            data = slot.connection.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._failed(fd)
            return
        slot.received += data
        while (method := self._method(slot)) is not None:
            if method != slot.steps[slot.at][1]:
                self._failed(fd)
                return
            slot.at += 1
            if slot.at < len(slot.steps):
                slot.connection.send(slot.steps[slot.at][0])
                continue
            now = time.monotonic_ns()
            if now >= measure_from:
                self.latency.record(now - slot.started, 1)
            self.completed += 1
            if self.fresh:
                self._drop(fd)
                return
            self._start(slot)

    def _method(self, slot: Slot) -> Method | None:
        """The next method's numbers; None when there is no whole frame."""
        while len(slot.received) >= 8:
            kind, _, size = struct.unpack_from(">BHI", slot.received)
            if len(slot.received) < size + 8:
                return None
            first, second = struct.unpack_from(">HH", slot.received, 7)
            del slot.received[: size + 8]
            if kind == amqp.METHOD:
                return first, second
        return None

    def _drop(self, fd: int) -> None:
        self.slots.pop(fd).connection.close()

    def _failed(self, fd: int) -> None:
        self.failed += 1
        self._drop(fd)
        if not self.fresh:
            raise BrokenRunError("the broker answered something else, or closed a connection")

    def _expire(self, now: int) -> None:
        late = [
            f
            for f, s in self.slots.items()
            if s.started and now - s.started > CONNECTION_TIMEOUT_NS
        ]
        for fd in late:
            self._failed(fd)

    def report(self) -> dict[str, object]:
        """The counts of this worker, ready for JSON."""
        return {
            "sent": self.begun,
            "received": self.completed,
            "refused": self.failed,
            "acknowledgement": sparse(self.latency.counts),
        }

    def close(self) -> None:
        """Reset what is still under way."""
        for slot in self.slots.values():
            slot.connection.close()
        self.epoll.close()

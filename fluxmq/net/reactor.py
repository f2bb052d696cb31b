"""The shard's loop body: read what is ready, route it by runs, write every connection once.

All client sockets of a shard are in one epoll set of their own, which the event loop watches as a
single descriptor. A tick takes all ready sockets, feeds their bytes through the scanner, routes
each run once, and at its end writes every connection that has output. So work batches by itself
under load, and a lone message costs one read, one write and two polls. A connection's ``handler``
and the ``host``, the shard, decide what packets mean.

Longer than 500 lines because the loop body is one compiled class, and what it does per run may not
cross a module.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from time import monotonic
from typing import Any, Final

import cython

from fluxmq.model.trace_context import TRACEPARENT
from fluxmq.net.ports import Inbox, ReactorHost, RunLink, RunSink
from fluxmq.net.route import Route
from fluxmq.net.sockets import receive
from fluxmq.protocols.amqp091.parser import AmqpParser
from fluxmq.protocols.amqp10.parser import begins_amqp10
from fluxmq.protocols.connection import Connection, StreamFilter, Tally
from fluxmq.protocols.mqtt.delivery import SessionDelivery, Target
from fluxmq.protocols.mqtt.pending_acks import PendingAck, abandon, respond
from fluxmq.protocols.mqtt.ports import MqttHandler
from fluxmq.protocols.mqtt.run import PublishRun
from fluxmq.protocols.mqtt.scan import Scanner

if cython.compiled:
    from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING
    from cython.cimports.fluxmq.net.route import Route
    from cython.cimports.fluxmq.net.sockets import receive
    from cython.cimports.fluxmq.protocols.amqp091.parser import AmqpParser
    from cython.cimports.fluxmq.protocols.connection import Connection, Tally
    from cython.cimports.fluxmq.protocols.mqtt.delivery import SessionDelivery, Target
    from cython.cimports.fluxmq.protocols.mqtt.pending_acks import PendingAck, abandon, respond
    from cython.cimports.fluxmq.protocols.mqtt.run import PublishRun
    from cython.cimports.fluxmq.protocols.mqtt.scan import Scanner
    from cython.cimports.libc.string import memcpy

EVENTS_MAX: Final = 512
"""Sockets handled in one tick; the others' turn comes in the next."""
TICKS_MAX: Final = 16
"""Ticks before the event loop gets its turn."""
BUSY_MIN: Final = 3
"""Events in a tick from which on the next poll follows at once."""
PAUSED_LINK: Final = 1
"""Not reading: a ring to another shard is full."""
PAUSED_STEP: Final = 2
"""Not reading: a reply from elsewhere (credentials, another shard) is awaited."""
PAUSED_OUTPUT: Final = 4
"""Not reading: the client sends requests without reading the answers."""
PAUSED_ALARM: Final = 32
"""Not reading: the connection publishes, and the node runs short of memory or disk space (other
modules use 8 and 16)."""
WATCH_ALARM: Final = 1
"""The host stops publishers: an alarm is in force."""
WATCH_RUNS: Final = 2
"""The host copies every run that a client publishes."""
WATCH_RATES: Final = 4
"""The host charges every run, and stops publishers that are too fast."""
WATCH_SPANS: Final = 8
"""The host records spans of messages with a trace context (`ReactorHost.spans`)."""
ANSWERS_MAX: Final = 2 * 1024 * 1024
"""Bytes of answers that may wait beyond a connection's output limit, which holds messages only."""
PROTOCOL_ERROR: Final = 0x82
QOS_NOT_SUPPORTED: Final = 0x9B
PACKET_TOO_LARGE: Final = 0x95

_IN = select.EPOLLIN
_OUT = select.EPOLLOUT
_BROKEN = select.EPOLLERR | select.EPOLLHUP


class Reactor:
    """Owns the poll set, the receive buffer and the connections of one shard."""

    def __init__(
        self,
        host: Any,
        receive_bytes: int,
        max_packet: int,
        max_first_packet: int,
        routes_max: int,
    ) -> None:
        self.host: Any = host
        self.tally = Tally()
        self.poller = select.epoll()
        self.connections: dict[int, Connection] = {}
        self.others: dict[int, Callable[[], object]] = {}
        self.dirty: list[Connection] = []
        self.routes: dict[bytes, Route] = {}
        self.routes_max = routes_max
        self.max_packet = max_packet
        self.max_first_packet = max_first_packet
        self.max_qos = 2
        self.buffer = bytearray(receive_bytes)
        self.scanner = Scanner(max_packet)
        self.amqp = AmqpParser(receive_bytes)
        self.inbox: Inbox | None = None
        self.link_full = False
        self.watching = 0  # what the host does with publishers, of the WATCH bits
        self.ticking = False
        self.pending_ack: PendingAck | None = None
        self.unfinished = False
        self.awaited = 0.0  # until when polling without sleep is worthwhile

    def fileno(self) -> int:
        """Return the descriptor for the event loop to watch."""
        return self.poller.fileno()

    def watch(self, fd: int, callback: Callable[[], object]) -> None:
        """Call ``callback`` in the tick in which another descriptor (eventfd, hand-over) is
        readable."""
        self.others[fd] = callback
        self.poller.register(fd, _IN)

    def add(self, connection: Connection) -> None:
        """Start reading a connection."""
        self.connections[connection.fd] = connection
        connection.active = self.tally.now
        self.poller.register(connection.fd, _IN)

    def discard(self, connection: Connection) -> None:
        """Close a connection's socket and forget it."""
        fd = connection.fd
        if fd < 0:
            return
        connection.fd = -1
        if connection.pending_acks is not None:
            abandon(connection)
        self.connections.pop(fd, None)
        os.close(fd)  # closing takes it out of the poll set
        connection.forget()

    def pause(self, connection: Connection, reason: cython.int) -> None:
        """Stop reading for ``reason``, one of the PAUSED bits.

        The poll set is told when the next bytes come; by then reading has mostly been resumed.
        """
        connection.paused |= reason

    def resume(self, connection: Connection, reason: cython.int) -> None:
        """Remove a reason for not reading; bytes already received are processed now."""
        was: cython.int = connection.paused
        connection.paused &= ~reason
        if connection.paused or connection.paused == was or connection.fd < 0:
            return
        if connection.deaf:
            self.interest(connection)
        tail: bytes | None = connection.tail
        if tail is not None:
            connection.tail = None
            data = bytearray(tail)
            self.process(connection, data, len(data))

    def interest(self, connection: Connection) -> None:
        """Tell the poll set which events the connection waits for."""
        connection.deaf = connection.paused != 0
        events = 0 if connection.deaf else _IN
        if connection.waiting:
            events |= _OUT
        self.poller.modify(connection.fd, events)

    def run_ready(self) -> None:
        """Handle what is ready, for a bounded number of ticks, polling until ``awaited``. The event
        loop's callback."""
        ticks: cython.int = 0
        work: cython.int
        self.ticking = True
        try:
            while ticks < TICKS_MAX:
                work = self.tick()
                if work or self.dirty or self.unfinished:
                    ticks += 1
                    if work >= BUSY_MIN or self.dirty or self.unfinished:
                        continue
                if self.awaited == 0.0 or self.awaited < self.tally.now:
                    break
        finally:
            self.ticking = False
        if self.dirty or self.unfinished or (ticks == TICKS_MAX and self.awaited):
            host: ReactorHost = self.host
            host.schedule()
        if self.inbox is not None and not self.inbox.sleep():
            self.host.schedule()

    def tick(self) -> cython.int:  # noqa: C901 - one C function
        """Handle what is ready now; return how much there was."""
        host: ReactorHost = self.host
        connection: Connection
        mask: cython.int
        events = self.poller.poll(0, EVENTS_MAX)
        work: cython.int = len(events)
        self.tally.now = monotonic()
        self.tally.ticks += 1
        # Frames that other shards sent before a client's bytes arrived must take effect before them.
        if self.inbox is not None:
            for link in self.inbox.ready():
                work += link.receive()
        callbacks: list[Callable[[], object]] = []
        for fd, events_of in events:
            mask = events_of
            found = self.connections.get(fd)
            if found is None:
                if fd in self.others:
                    callbacks.append(self.others[fd])
                continue
            connection = found
            if mask & _OUT:
                self.writable(connection)
            if mask & _IN:
                if connection.fd >= 0:
                    if self.watching and self.watching & WATCH_ALARM:
                        host.hold_publisher(connection)
                    if connection.paused:
                        self.interest(connection)
                    else:
                        self.readable(connection)
            elif mask & _BROKEN and connection.fd >= 0:
                self.lost(connection)
        # New connections come last: one may get the number of a descriptor that was just closed.
        for callback in callbacks:
            callback()
        if self.unfinished:
            host.finish_tick()
        self.flush()
        return work

    def hold(self) -> PendingAck:
        """Return the pending ack of the run being published, held once more: its answer waits for
        ``done``."""
        if self.pending_ack is None:
            self.pending_ack = PendingAck(self)
        return self.pending_ack.hold()

    def flush(self) -> cython.int:
        """Write every connection that has output, once; output made meanwhile waits for the next
        pass."""
        connection: Connection
        state: cython.int
        dirty: list[Connection] = self.dirty[:]
        self.dirty.clear()
        for item in dirty:
            connection = item
            if connection.fd < 0:
                continue
            state = connection.flush()
            if state == 1:
                self.drained(connection)
            elif state == 0:
                if connection.size > connection.limit + ANSWERS_MAX:
                    self.pause(connection, PAUSED_OUTPUT)
                if not connection.waiting:
                    connection.waiting = True
                    self.interest(connection)
            else:
                self.lost(connection)
        return 0

    def lost(self, connection: Connection) -> cython.int:
        """Handle a lost network connection; one that was closing is finished."""
        if connection.closing:
            host: ReactorHost = self.host
            host.discard(connection)
        else:
            connection.handler.lost(connection)
        return 0

    def drained(self, connection: Connection) -> cython.int:
        """Handle fully written output: close, or continue with what waited for room."""
        delivery: SessionDelivery | None = connection.delivery
        if connection.waiting:
            connection.waiting = False
            self.interest(connection)
        if connection.closing:
            host: ReactorHost = self.host
            host.half_close(connection)
            return 0
        if delivery is not None:
            delivery.pump()
        if connection.feeding:
            connection.handler.drained(connection)
        self.resume(connection, PAUSED_OUTPUT)
        return 0

    def writable(self, connection: Connection) -> cython.int:
        """Write more output, as the kernel takes it again."""
        state: cython.int = connection.flush()
        if state == 1:
            self.drained(connection)
        elif state < 0:
            self.lost(connection)
        elif connection.size <= connection.limit:
            self.resume(connection, PAUSED_OUTPUT)
        return 0

    def readable(self, connection: Connection) -> cython.int:
        """Read once and process the bytes."""
        start: cython.Py_ssize_t = 0
        count: cython.Py_ssize_t
        capacity: cython.Py_ssize_t = len(self.buffer)
        tail: bytes
        target: bytearray = self.buffer
        if connection.gathering is not None and connection.stream is None:
            target = connection.gathering
            start = connection.gathered
            capacity = len(target)
        elif connection.tail is not None and connection.stream is None:
            tail = connection.tail
            start = len(tail)
            if start >= capacity:
                connection.handler.broken(connection, PACKET_TOO_LARGE)
                return 0
            if cython.compiled:
                memcpy(PyByteArray_AS_STRING(target), cython.cast(cython.p_char, tail), start)
            else:
                target[0:start] = tail
            connection.tail = None
        count = receive(connection.fd, target, start, capacity)
        if count == -1:
            if start and connection.gathering is None:
                connection.tail = tail
            return 0
        if count <= 0:
            return self.lost(connection)
        connection.active = self.tally.now
        if connection.stream is not None:
            self.filtered(connection, bytes(memoryview(target)[:count]))
        elif connection.gathering is not None:
            connection.gathered = start + count
            if connection.gathered == connection.needed:
                connection.gathering = None
                self.process(connection, target, connection.needed)
            elif connection.gathered == capacity:
                connection.widen()
        else:
            self.process(connection, target, start + count)
        return 0

    def filtered(self, connection: Connection, data: bytes) -> cython.int:
        """Pass received bytes through the stream filter and process its output."""
        stream: StreamFilter | None = connection.stream
        assert stream is not None
        plain: bytes = stream.feed(data)
        connection.buffer()  # the filter may have output of its own (handshake, pong)
        while connection.gathering is not None:
            plain = connection.fill(plain)
            if connection.gathered < connection.needed:
                break
            whole = connection.gathering
            connection.gathering = None
            self.process(connection, whole, len(whole))  # which may find that more is needed
        if plain and connection.fd >= 0:
            if connection.tail is not None:
                plain = connection.tail + plain
                connection.tail = None
            if connection.paused or connection.closing:
                connection.tail = plain
            else:
                self.process(connection, bytearray(plain), len(plain))
        if stream.closed and connection.fd >= 0:
            connection.flush()
            self.lost(connection)
        return 0

    def process(  # noqa: C901, PLR0915 - one C function
        self, connection: Connection, buffer: bytearray, end: cython.Py_ssize_t
    ) -> cython.int:
        """Take runs and packets from ``buffer[:end]``; keep what is incomplete."""
        scanner: Scanner = self.scanner
        host: ReactorHost = self.host
        handler: MqttHandler
        delivery: SessionDelivery | None
        at: cython.Py_ssize_t = 0
        following: cython.Py_ssize_t
        kind: cython.int = 0
        needed: cython.Py_ssize_t = 0
        out: bytearray
        if connection.wire:
            if connection.version == 0 and connection.wire == 1 and begins_amqp10(buffer, end):
                connection.handler.speaks_amqp10(connection)
            if connection.wire == 2:
                connection.handler.process(connection, buffer, end)
                return 0
            return self.amqp.process(connection, buffer, end)
        handler = connection.handler
        while at < end:
            scanner.version = connection.version
            scanner.max_packet = self.max_packet if connection.open else self.max_first_packet
            kind = scanner.next(buffer, at, end)
            if kind == 0:
                needed = scanner.needed
                break
            if kind == 4:
                handler.broken(connection, scanner.reason, buffer[at:end])
                return 0
            following = scanner.end
            if kind == 1 and connection.open:
                connection.publishing = True
                self.publish(connection, buffer)
                if self.watching and self.watching & WATCH_ALARM:
                    host.hold_publisher(connection)
            elif kind == 2 and connection.open and scanner.first != 0x40:
                handler.acknowledgements(
                    connection, scanner.first, buffer, scanner.start, scanner.count
                )
            elif kind == 2 and connection.open:
                delivery = connection.delivery
                if delivery is not None and delivery.acknowledge_run(
                    buffer, scanner.start, scanner.count
                ):
                    handler.broken(connection, PROTOCOL_ERROR)
                    return 0
            elif scanner.first == 0xC0 and connection.open and scanner.stride == 2:
                out = connection.buffer()
                out += b"\xd0\x00"
                connection.size += 2
            else:
                if kind != 3:
                    # A run is whole packets: before CONNECT even the first is out of order.
                    following = at + scanner.header
                handler.packet(
                    connection,
                    scanner.first,
                    bytes(memoryview(buffer)[at + scanner.header : following]),
                )
            at = following
            if connection.fd < 0 or connection.closing:
                return 0
            if connection.paused:
                break
        if at < end:
            connection.gather(buffer, at, end, needed, len(self.buffer))
        return 0

    def publish(self, connection: Connection, buffer: bytearray) -> cython.int:
        """Route the run of PUBLISH packets that the scanner found, and answer it."""
        scanner: Scanner = self.scanner
        count: cython.Py_ssize_t = scanner.count
        size: cython.Py_ssize_t = scanner.end - scanner.start
        topic: bytes
        raw: bytes
        run: PublishRun
        if cython.compiled:
            topic = (PyByteArray_AS_STRING(buffer) + scanner.topic_at)[: scanner.topic_length]
        else:
            topic = bytes(buffer[scanner.topic_at : scanner.topic_at + scanner.topic_length])
        run = PublishRun(
            buffer,
            scanner.start,
            scanner.end,
            count,
            scanner.stride,
            connection.version,
            scanner.first,
            scanner.variable,
            scanner.pid_at,
            scanner.largest,
            topic,
        )
        run.publisher = connection.delivery
        handler: MqttHandler = connection.handler
        self.pending_ack = None
        self.tally.received(run.qos, count, size)
        if self.watching and self.watching & WATCH_RATES:
            host: ReactorHost = self.host
            host.charge(connection, count, size)
        if run.qos > self.max_qos:
            handler.broken(connection, QOS_NOT_SUPPORTED)
            return 0
        if (
            scanner.properties_length
            or scanner.topic_length == 0
            or run.retain
            or run.qos == 2
            or buffer[scanner.topic_at] == 0x24
            or (connection.allowed is not None and topic not in connection.allowed)
        ):
            raw = bytes(
                memoryview(buffer)[
                    scanner.properties_at : scanner.properties_at + scanner.properties_length
                ]
            )
            if not handler.publish(connection, run, raw):
                return 0
        return self.accept(connection, run)

    def accept(self, connection: Connection, run: PublishRun) -> cython.int:
        """Forward a permitted run and acknowledge it, at once or when its pending ack allows.

        The publisher is written first: it waits for one packet, subscribers for the whole run.
        """
        pending_ack: PendingAck | None
        if run.qos:
            connection.buffer()
        if self.watching and self.watching & WATCH_RUNS and not run.control:
            tracer: ReactorHost = self.host
            tracer.trace(connection, run)
        if self.watching & WATCH_SPANS and TRACEPARENT in run.properties and not run.control:
            tracing: ReactorHost = self.host
            tracing.spans.accepted(connection, run)
        if not run.control and self.publish_run(run) < 0:
            handler: MqttHandler = connection.handler
            handler.bad_topic(connection, run.topic)
            return 0
        pending_ack = self.pending_ack
        self.pending_ack = None
        if run.qos and connection.fd >= 0:
            respond(connection, run, pending_ack, self)
        if self.link_full:
            host: ReactorHost = self.host
            host.link_full(connection)
        return 0

    def publish_run(self, run: PublishRun) -> cython.int:
        """Forward a run to everything its topic leads to; return -1 for an invalid topic."""
        found = self.routes.get(run.topic)
        if found is not None:
            self.tally.route_hits += 1
            return self.forward(run, found)
        self.tally.route_misses += 1
        host: ReactorHost = self.host
        found = host.route(run.topic)
        if found is None:
            return -1
        if len(self.routes) >= self.routes_max:
            self.routes.clear()
        self.routes[run.topic] = found
        return self.forward(run, found)

    def forward(self, run: PublishRun, route: Route) -> cython.int:
        """Give a run to everything on its route."""
        target: RunSink
        link: RunLink
        self.deliver(run, route)
        for target in route.queues:
            target.offer(run)
        run.publisher = None  # a run may wait long; its publisher's session need not
        for link in route.links:
            link.send_run(run)
        for target in route.groups:
            target.offer(run)
        return 0

    def deliver(self, run: PublishRun, route: Route) -> cython.int:
        """Give a run to the sessions of this shard."""
        target: Target | None
        delivery: SessionDelivery
        if len(route.targets) > 1 and run.end - run.start >= 4096:
            run.detach()  # many get the same bytes: one copy, shared
        if self.watching & WATCH_SPANS and TRACEPARENT in run.properties and route.targets:
            host: ReactorHost = self.host
            host.spans.delivered(run, len(route.targets))
        for item in route.targets:
            target = item
            delivery = target.delivery
            if target.no_local and delivery is run.publisher:
                target = target.own
                if target is None:
                    continue
            delivery.offer(run, target)
        return 0

"""A delivery and the connections it is written to, in the hands of a test."""

from __future__ import annotations

import socket

from fluxmq.net import sockets
from fluxmq.protocols.connection import Connection, Tally
from fluxmq.protocols.mqtt.delivery import EVICT, SessionDelivery, Target
from fluxmq.protocols.mqtt.packets import Packet, Publish
from fluxmq.protocols.mqtt.run import PublishRun
from fluxmq.protocols.mqtt.scan import PUBLISH, Scanner
from tests.unit.protocols.mqtt.wire import puback, publish, read_all


def scanned(data: bytes, version: int = 4) -> PublishRun:
    """The run that these packets are; it must be one."""
    buffer = bytearray(data)
    scanner = Scanner(1 << 28, version)
    assert scanner.next(buffer, 0, len(buffer)) == PUBLISH
    assert scanner.end == len(buffer)
    at = scanner.topic_at
    return PublishRun(
        buffer,
        scanner.start,
        scanner.end,
        scanner.count,
        scanner.stride,
        version,
        scanner.first,
        scanner.variable,
        scanner.pid_at,
        scanner.largest,
        bytes(buffer[at : at + scanner.topic_length]),
    )


def messages(
    count: int,
    qos: int = 1,
    *,
    start: int = 0,
    version: int = 4,
    topic: bytes = b"t",
    size: int = 4,
    retain: bool = False,
) -> PublishRun:
    """A run of messages whose payloads are `start`, `start` + 1 and so on, padded to `size`."""
    return scanned(
        b"".join(
            publish(
                topic,
                (start + index).to_bytes(4, "big").ljust(size, b"."),
                qos,
                index + 1 if qos else 0,
                version,
                retain=retain,
            )
            for index in range(count)
        ),
        version,
    )


class Line:
    """One session's delivery and the client at the other end of its present connection."""

    def __init__(
        self,
        *,
        pending: int = 10_000,
        pending_connected: int = 100_000,
        pending_bytes: int = 1 << 26,
        policy: int = EVICT,
        limit: int = 1 << 20,
    ) -> None:
        self.tally = Tally()
        self.tally.now = 100.0
        self.delivery = SessionDelivery(
            self.tally, pending, pending_connected, pending_bytes, policy
        )
        self.limit = limit
        self.dirty: list[Connection] = []
        self.connection: Connection | None = None
        self.client: socket.socket | None = None
        self.received = bytearray()

    def attach(
        self, window: int = 1000, *, version: int = 4, aliases: int = 0, largest: int = 0
    ) -> Connection:
        """A new connection, as after CONNECT."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        self.client = theirs
        self.received.clear()
        connection = Connection(ours.detach(), self.tally, self.dirty, self.limit, sockets.send)
        connection.version = version
        connection.alias_maximum = aliases
        if largest:
            connection.max_packet_out = largest
        self.connection = connection
        connection.delivery = self.delivery
        self.delivery.attach(connection, window)
        return connection

    def detach(self) -> None:
        """The connection is lost."""
        self.close()
        self.delivery.detach()

    def close(self) -> None:
        """Let go of the sockets."""
        if self.connection is not None and self.client is not None:
            socket.socket(fileno=self.connection.fd).close()
            self.connection.fd = -1
            self.client.close()
            self.connection = self.client = None

    def offer(
        self, run: PublishRun, qos: int = 2, *, retain: bool = False, ids: bytes = b""
    ) -> None:
        """A subscription matched."""
        self.delivery.offer(run, Target(self.delivery, qos, False, retain, ids))

    def packets(self) -> list[Packet]:
        """Flush, and read what the client has got since the last look."""
        assert self.connection is not None
        assert self.client is not None
        while self.connection.flush() != 1:
            self.read()
        self.read()
        found = read_all(self.received, self.connection.version)
        self.received.clear()
        return found

    def read(self) -> None:
        """Take what is in the socket."""
        assert self.client is not None
        while True:
            try:
                self.received += self.client.recv(1 << 18)
            except BlockingIOError:
                return

    def publishes(self) -> list[Publish]:
        """The same, which must be publishes only."""
        found = self.packets()
        assert all(isinstance(packet, Publish) for packet in found), found
        return [packet for packet in found if isinstance(packet, Publish)]

    def numbers(self) -> list[int]:
        """The numbers in their payloads."""
        return numbers(self.publishes())

    def puback(self, *packet_ids: int) -> None:
        """The client acknowledges, all in one run."""
        data = bytearray(puback(*packet_ids))
        self.delivery.acknowledge_run(data, 0, len(packet_ids))

    def pubcomp(self, packet_id: int, count: int = 1) -> int:
        """The client completes QoS 2 messages; how many of them were awaited."""
        done = self.delivery.complete(packet_id, count)
        self.delivery.pump()
        return done


def numbers(found: list[Publish]) -> list[int]:
    """The numbers that `messages` put into payloads."""
    return [int.from_bytes(packet.payload[:4], "big") for packet in found]

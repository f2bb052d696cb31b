"""A client of AMQP 1.0 that speaks bytes to the sessions on a broker in memory."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from fluxmq.net import sockets
from fluxmq.protocols.amqp10.frames import AMQP_HEADER, FRAME_SASL, SASL_HEADER, frame
from fluxmq.protocols.amqp10.performatives import (
    AttachFrame,
    BeginFrame,
    FlowFrame,
    OpenFrame,
    SaslInitFrame,
    SourceTerminus,
    TargetTerminus,
    TransferFrame,
    read,
)
from fluxmq.protocols.amqp10.types import Symbol
from fluxmq.protocols.connection import Connection
from fluxmq.sessions.amqp091.connection_info import ConnectionInfo
from fluxmq.sessions.amqp10.handler import Amqp10Connection
from tests.unit.sessions.amqp091.memory import MemoryBroker

DATA = b"\0\x53\x75\xa0"


class Frame(NamedTuple):
    """A frame that the client got; ``body``: None for a heartbeat."""

    channel: int
    body: Any
    payload: bytes


def data(payload: bytes) -> bytes:
    """Return a message of one short data section."""
    return DATA + bytes((len(payload),)) + payload


class Peer10:
    """A client. ``opened``: with everything up to open done, and a session on channel 0."""

    def __init__(
        self,
        broker: MemoryBroker,
        opened: bool = True,
        user: str = "guest",
        hostname: str | None = None,
        limit: int = 1 << 20,
        container: str = "test",
        **opening: Any,
    ) -> None:
        self.broker = broker
        self.connection = Connection(0, broker.tally, [], limit, sockets.send)
        self.connection.wire = 2
        self.connection.handler = broker.amqp10
        self.connection.active = broker.time
        broker.names += 1
        peer, owner = f"127.0.0.1:{broker.names}", f"owner-{broker.names}"
        info = ConnectionInfo(peer, "127.0.0.1:5672", 0, owner)
        self.session = Amqp10Connection(broker.amqp10, self.connection, info)
        self.client = self.session.client
        self.connection.identity = self.session
        self.received = b""
        self.headers: list[bytes] = []
        self.sent = 0
        if opened:
            self.greet(user)
            self.send(OpenFrame(container, hostname, **opening))
            self.send(BeginFrame(None, 0, 2048, 2048))
            self.receive()

    def greet(self, user: str = "guest", password: bytes | None = None) -> list[Frame]:
        """Do what comes before open."""
        self.raw(SASL_HEADER)
        secret = self.broker.users[user] if password is None else password
        response = b"\0" + user.encode() + b"\0" + secret
        self.raw(frame(0, SaslInitFrame(Symbol("PLAIN"), response), kind=FRAME_SASL))
        self.raw(AMQP_HEADER)
        return self.receive()

    def raw(self, data: bytes) -> None:
        """Bytes come from the client; what was incomplete before stands in front of them."""
        connection = self.connection
        if connection.closing:
            return
        kept, connection.tail = connection.tail or b"", None
        if connection.gathering is not None:
            kept = bytes(connection.gathering[: connection.gathered])
            connection.gathering = None
        connection.active = self.broker.time
        if connection.paused:
            connection.tail = kept + data
            return
        self.broker.amqp10.parser.process(connection, bytearray(kept + data), len(kept + data))

    def send(self, *bodies: object, channel: int = 0) -> None:
        """Performatives, in one reading."""
        self.raw(b"".join(frame(channel, body) for body in bodies))

    def receive(self, tick: bool = True) -> list[Frame]:
        """What the client got since the last time."""
        if tick:
            self.broker.tick()
        connection = self.connection
        chunks = [*(connection.chunks or ()), *([connection.out] if connection.out else ())]
        data = self.received + b"".join(bytes(chunk) for chunk in chunks)
        connection.chunks = connection.out = None
        connection.size = 0
        if connection.feeding and not connection.closing:
            connection.handler.drained(connection)
        found = []
        at = 0
        while at < len(data):
            if data.startswith(b"AMQP", at):
                self.headers.append(data[at : at + 8])
                at += 8
                continue
            size, offset, _, channel = struct.unpack_from(">IBBH", data, at)
            body = data[at + 4 * offset : at + size]
            at += size
            if body:
                value, end = read(body)
                found.append(Frame(channel, value, body[end:]))
            else:
                found.append(Frame(channel, None, b""))
        return found

    def lose(self) -> None:
        """The connection is lost."""
        self.connection.handler.lost(self.connection)
        self.broker.tick()

    def bodies(self, kind: type | None = None) -> list[Any]:
        """The performatives that the client got, of a class or all."""
        bodies = [each.body for each in self.receive()]
        return bodies if kind is None else [each for each in bodies if isinstance(each, kind)]

    def sender(self, address: str | None, handle: int = 0, **fields: Any) -> list[Frame]:
        """Attach a link to publish on."""
        fields.setdefault("initial_delivery_count", 0)
        self.send(
            AttachFrame(
                f"sender-{handle}",
                handle,
                False,
                source=SourceTerminus("here"),
                target=TargetTerminus(address),
                **fields,
            )
        )
        return self.receive()

    def receiver(
        self, address: str, handle: int = 1, credit: int | None = None, **fields: Any
    ) -> list[Frame]:
        """Attach a link to consume on, and give it credit."""
        fields.setdefault("source", SourceTerminus(address))
        name = fields.pop("name", f"receiver-{handle}")
        self.send(AttachFrame(name, handle, True, target=TargetTerminus("here"), **fields))
        found = self.receive()
        if credit is not None:
            self.flow(handle, credit)
            found += self.receive()
        return found

    def flow(self, handle: int, credit: int, count: int = 0, **fields: Any) -> None:
        """Give a link credit, behind ``count`` deliveries."""
        self.send(FlowFrame(0, 1 << 30, self.sent, 2048, handle, count, credit, **fields))

    def publish(self, message: bytes, handle: int = 0, **fields: Any) -> int:
        """Send a message in one transfer; return its delivery id."""
        number = self.sent
        self.sent += 1
        tag = b"%d" % number
        self.raw(frame(0, TransferFrame(handle, number, tag, 0, **fields), message))
        return number

"""A client that speaks bytes to the sessions on a broker in memory, and takes apart what comes back."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from fluxmq.net import sockets
from fluxmq.protocols.amqp091.constants import (
    FRAME_BODY,
    FRAME_HEADER,
    FRAME_METHOD,
    PROTOCOL_HEADER,
)
from fluxmq.protocols.amqp091.content import (
    BasicProperties,
    decode_properties,
    encode_properties,
    frames_of_content,
    split_header,
)
from fluxmq.protocols.amqp091.method_codec import decode, frame
from fluxmq.protocols.amqp091.methods import (
    BasicPublish,
    ChannelOpen,
    ConnectionOpen,
    ConnectionStartOk,
    ConnectionTuneOk,
    Method,
)
from fluxmq.protocols.connection import Connection
from fluxmq.sessions.amqp091.connection_info import ConnectionInfo
from fluxmq.sessions.amqp091.handler import AmqpSession

if TYPE_CHECKING:
    from tests.unit.sessions.amqp091.memory import MemoryBroker


class Message(NamedTuple):
    """A method that came with content."""

    method: Method
    properties: BasicProperties
    body: bytes


class Peer:
    """A client on a connection to the sessions of a broker. ``opened``: with the greeting done, and channel 1."""

    def __init__(
        self,
        broker: MemoryBroker,
        opened: bool = True,
        user: str = "guest",
        vhost: str = "/",
        capabilities: Sequence[str] = (),
        limit: int = 1 << 20,
        heartbeat: int = 0,
        frame_max: int = 131_072,
        channel_max: int = 2047,
    ) -> None:
        self.broker = broker
        self.connection = Connection(0, broker.tally, [], limit, sockets.send)
        self.connection.wire = 1
        self.connection.handler = broker.handler
        self.connection.active = broker.time
        broker.names += 1
        peer, owner = f"127.0.0.1:{broker.names}", f"owner-{broker.names}"
        info = ConnectionInfo(peer, "127.0.0.1:5672", 0, owner)
        self.session = AmqpSession(broker.handler, self.connection, info)
        self.client = self.session.client
        self.connection.identity = self.session
        self.received = b""
        if opened:
            table: dict[str, object] = {"capabilities": dict.fromkeys(capabilities, True)}
            self.raw(PROTOCOL_HEADER)
            response = f"\0{user}\0".encode() + broker.users[user]
            self.send(0, ConnectionStartOk(table, "PLAIN", response, "en_US"))
            self.send(0, ConnectionTuneOk(channel_max, frame_max, heartbeat))
            self.send(0, ConnectionOpen(vhost))
            self.send(1, ChannelOpen())
            self.receive()

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
        self.broker.parser.process(connection, bytearray(kept + data), len(kept + data))

    def send(self, channel: int, *methods: Method) -> None:
        """Methods, in one reading."""
        self.raw(b"".join(frame(channel, method) for method in methods))

    def publish(
        self,
        exchange: str,
        routing_key: str,
        body: bytes = b"x",
        channel: int = 1,
        mandatory: bool = False,
        immediate: bool = False,
        frame_max: int = 131_072,
        **properties: Any,
    ) -> None:
        """One message."""
        method = BasicPublish(exchange, routing_key, mandatory, immediate)
        content = encode_properties(BasicProperties(**properties))
        self.raw(
            frame(channel, method) + b"".join(frames_of_content(channel, content, body, frame_max))
        )

    def tick(self) -> None:
        self.broker.tick()

    def receive(self, tick: bool = True) -> list[tuple[int, Method | Message]]:
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
        found: list[tuple[int, Method | Message]] = []
        content: dict[int, tuple[Method, int, bytes, bytearray]] = {}
        at = 0
        if data.startswith(b"AMQP"):
            assert data == PROTOCOL_HEADER
            return []
        while at < len(data):
            kind, channel, size = struct.unpack_from(">BHI", data, at)
            payload = data[at + 7 : at + 7 + size]
            assert data[at + 7 + size] == 0xCE
            assert size + 8 <= max(self.connection.frame_max, 4096)
            at += size + 8
            if kind == FRAME_METHOD:
                assert channel not in content, "content is whole"
                method = decode(payload)
                if type(method).__name__ in ("BasicDeliver", "BasicGetOk", "BasicReturn"):
                    content[channel] = (method, -1, b"", bytearray())
                else:
                    found.append((channel, method))
                continue
            if kind not in (FRAME_HEADER, FRAME_BODY):
                assert (kind, channel, size) == (8, 0, 0), "a heartbeat"
                continue
            method, wanted, properties, body = content[channel]
            if kind == FRAME_HEADER:
                wanted, properties = split_header(payload)
            else:
                body += payload
            content[channel] = (method, wanted, properties, body)
            if len(body) == wanted:
                del content[channel]
                found.append((channel, Message(method, decode_properties(properties), bytes(body))))
        assert not content, "content is whole"
        return found

    def got(self, channel: int = 1) -> list[Method | Message]:
        """What came on one channel; nothing may have come on others."""
        received = self.receive()
        assert all(number == channel for number, _ in received), received
        return [item for _, item in received]

    def one(self, channel: int = 1) -> Method | Message:
        """The one thing that came."""
        received = self.got(channel)
        assert len(received) == 1, received
        return received[0]

    def bodies(self, channel: int = 1) -> list[bytes]:
        """Bodies of the deliveries that came."""
        received = self.got(channel)
        assert all(isinstance(item, Message) for item in received), received
        return [item.body for item in received if isinstance(item, Message)]

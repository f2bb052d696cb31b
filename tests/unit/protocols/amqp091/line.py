"""AMQP 0.9.1 in tests: frames as a client writes them, and a connection whose handler notes what it is given."""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Iterator, Sequence
from typing import Any

from tests.unit.variants import INSTALLED, Hot

HEADER = b"AMQP\x00\x00\x09\x01"
NO_PROPERTIES = b"\x00\x00"
HEARTBEAT = b"\x08\x00\x00\x00\x00\x00\x00\xce"
FRAME_MAX = 4096


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    """One frame."""
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


def short(text: bytes) -> bytes:
    """A short string."""
    return bytes((len(text),)) + text


def method(channel: int, class_id: int, method_id: int, arguments: bytes = b"") -> bytes:
    """A method frame."""
    return frame(1, channel, struct.pack(">HH", class_id, method_id) + arguments)


def publish_method(channel: int, exchange: bytes, key: bytes, bits: int = 0) -> bytes:
    """basic.publish without its content."""
    return method(channel, 60, 40, b"\x00\x00" + short(exchange) + short(key) + bytes((bits,)))


def content_header(channel: int, size: int, properties: bytes = NO_PROPERTIES) -> bytes:
    """The header of a content of class basic."""
    return frame(2, channel, struct.pack(">HHQ", 60, 0, size) + properties)


def publish(
    payload: bytes,
    *,
    channel: int = 1,
    exchange: bytes = b"",
    key: bytes = b"q",
    bits: int = 0,
    properties: bytes = NO_PROPERTIES,
    piece: int = FRAME_MAX - 8,
) -> bytes:
    """A publish with its content, `piece` bytes in each body frame."""
    return b"".join(
        (
            publish_method(channel, exchange, key, bits),
            content_header(channel, len(payload), properties),
            *(frame(3, channel, payload[at : at + piece]) for at in range(0, len(payload), piece)),
        )
    )


def ack(tag: int, multiple: bool = False, channel: int = 1) -> bytes:
    """basic.ack."""
    return method(channel, 60, 80, struct.pack(">QB", tag, multiple))


def cut(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """The frames of a stream that must end with a whole one: type, channel, payload."""
    at = 0
    while at < len(data):
        kind, channel, size = struct.unpack_from(">BHI", data, at)
        payload = data[at + 7 : at + 7 + size]
        assert len(payload) == size
        at += size + 8
        assert data[at - 1 : at] == b"\xce"
        yield kind, channel, payload


class Passing:
    """A stream filter that changes nothing: bytes take the way of TLS and WebSocket."""

    closed = False

    def feed(self, data: bytes) -> bytes:
        """What came."""
        return data

    def pending(self) -> bytes:
        """Nothing of its own."""
        return b""

    def encode(self, chunks: Sequence[bytes | bytearray]) -> bytes:
        """What goes."""
        return b"".join(chunks)


class Line:
    """One AMQP connection of a reactor, the client's end of it, and the handler.

    `events`: what the handler was given, runs message by message; `runs`: their lengths. A callable in `on_frame` is
    called with each frame before it is noted.
    """

    def __init__(
        self,
        hot: Hot = INSTALLED,
        *,
        receive_bytes: int = 65536,
        header: bool = False,
        filtered: bool = False,
    ) -> None:
        self.hot = hot
        self.events: list[tuple[Any, ...]] = []
        self.runs: list[int] = []
        self.on_frame: Any = None
        self.ended = False
        self.reactor = hot.reactor.Reactor(self, receive_bytes, 1 << 20, 8192, 64)
        ours, self.client = socket.socketpair()
        ours.setblocking(False)
        self.client.setblocking(False)
        self.connection = hot.connection.Connection(
            ours.detach(), self.reactor.tally, self.reactor.dirty, 1 << 20, hot.sockets.send
        )
        self.connection.wire = hot.connection.WIRE_AMQP_0_9_1
        self.connection.version = 0 if header else 1
        self.connection.frame_max = FRAME_MAX
        self.connection.handler = self
        self.connection.stream = Passing() if filtered else None
        self.connection.ledgers = {}
        self.reactor.add(self.connection)

    def ledger(self, channel: int = 1, mark: Any = None) -> Any:
        """Open a channel's ledger."""
        made = self.hot.amqp_ledger.ChannelLedger(channel, mark)
        self.connection.ledgers[channel] = made
        return made

    def send(self, *pieces: bytes) -> list[tuple[Any, ...]]:
        """Send each piece and let the reactor read it; all events until now."""
        for piece in pieces:
            sent = 0
            while sent < len(piece) and self.connection.fd >= 0:
                sent += self.client.send(piece[sent : sent + 8192])
                self.reactor.tick()
        while select.select([self.reactor.fileno()], [], [], 0)[0]:
            self.reactor.tick()
        return self.events

    def close(self) -> None:
        """Let go of everything."""
        self.client.close()
        self.reactor.discard(self.connection)
        self.reactor.poller.close()

    # The handler

    def protocol_header(self, connection: Any, header: bytes) -> None:
        """The first eight bytes."""
        self.events.append(("header", header))

    def publish_run(self, connection: Any, channel: int, run: Any) -> None:
        """Whole publishes."""
        assert run.channel == channel
        payloads = run.payloads()
        assert run.payload_bytes == sum(map(len, payloads))
        assert run.largest == max(map(len, payloads))
        assert run.stride == 0 or run.end - run.start == run.count * run.stride
        bits = run.mandatory + 2 * run.immediate
        head = ("publish", channel, run.exchange, run.routing_key, bits, run.properties)
        self.events.extend((*head, payload) for payload in payloads)
        self.runs.append(run.count)

    def frame(self, connection: Any, kind: int, channel: int, payload: bytes) -> None:
        """One frame."""
        if self.on_frame is not None:
            self.on_frame(kind, channel, payload)
        self.events.append(("frame", kind, channel, payload))

    def broken(self, connection: Any, code: int, text: str) -> None:
        """A frame that cannot be."""
        self.events.append(("broken", code, text))
        self.reactor.discard(connection)

    def lost(self, connection: Any) -> None:
        """The client has gone."""
        self.ended = True
        self.reactor.discard(connection)

    # The host

    def schedule(self) -> None:
        """Another tick: the tests tick anyway."""

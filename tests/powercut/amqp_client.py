"""A small AMQP 0.9.1 client for the campaign: one channel, publishes with confirms or in transactions, takes deliveries.

Frames are written and read by ``tests.differential.wire``, which shares no code with the broker. One ``Connection`` is
an asyncio protocol; a connection or channel that the broker closes resolves ``closed``.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable

from tests.broker import HOST
from tests.differential import wire
from tests.powercut.client import CONNECT_TIMEOUT_S, RefusedError

CHANNEL = 1
PERSISTENT = {"delivery_mode": 2}


class Connection(asyncio.Protocol):
    """One client. ``on_method`` gets every method that nothing waits for, ``on_message`` basic.deliver and its body."""

    def __init__(self) -> None:
        self.on_method: Callable[[wire.Method], None] = lambda method: None
        self.on_message: Callable[[wire.Method, bytes], None] = lambda deliver, body: None
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.reason = ""
        self.frame_max = 4096
        self._wanted = ""
        self._answer: asyncio.Future[wire.Method] | None = None
        self._transport: asyncio.WriteTransport | None = None
        self._received = bytearray()
        self._deliver: wire.Method | None = None
        self._body = bytearray()
        self._missing = 0

    @classmethod
    async def open(cls, port: int, host: str = HOST) -> Connection:
        """Greet as guest and open a channel. Raises ``OSError`` (``RefusedError`` is one)."""
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(cls, host, port)
        await connection.ask(wire.PROTOCOL_HEADER, "connection.start")
        start = {
            # Who is not told that its consumer was cancelled waits for ever.
            "client_properties": {"capabilities": {"consumer_cancel_notify": True}},
            "mechanism": "PLAIN",
            "response": "\0guest\0guest",
            "locale": "en_US",
        }
        tune = await connection.ask(wire.method(0, "connection.start-ok", start), "connection.tune")
        connection.frame_max = tune.fields["frame_max"]
        tuned = wire.method(0, "connection.tune-ok", {**tune.fields, "heartbeat": 0})
        opening = wire.method(0, "connection.open", {"virtual_host": "/"})
        await connection.ask(tuned + opening, "connection.open-ok")
        await connection.call("channel.open")
        return connection

    async def call(self, name: str) -> wire.Method:
        """A method without fields on the channel, and its answer. Raises ``OSError``."""
        return await self.ask(wire.method(CHANNEL, name), f"{name}-ok")

    async def ask(self, request: bytes, wanted: str) -> wire.Method:
        """Send, and wait for this method. Raises ``RefusedError``."""
        self._wanted, self._answer = wanted, asyncio.get_running_loop().create_future()
        self.send(request)
        try:
            # Not asyncio.wait_for: before Python 3.12 it may lose a cancellation that comes with the answer.
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                return await self._answer
        except TimeoutError:
            raise RefusedError(f"no {wanted} in time") from None

    def send(self, data: bytes) -> None:
        """Bytes to the broker; on a closed connection they go nowhere."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def method(self, name: str) -> None:
        """A method without fields whose answer comes to ``on_method``."""
        self.send(wire.method(CHANNEL, name))

    def publish(self, queue: str, body: bytes, expiration: int = 0) -> None:
        """One persistent message to a queue, through the default exchange; it lives so many seconds, 0 for ever."""
        front = wire.method(CHANNEL, "basic.publish", {"routing_key": queue})
        lives = {"expiration": str(1000 * expiration)} if expiration else {}
        self.send(front + wire.content(CHANNEL, {**PERSISTENT, **lives}, body, self.frame_max))

    def abort(self) -> None:
        """End the connection without waiting for what is not sent."""
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """End the connection."""
        if self._transport is not None:
            self._transport.close()

    # --- asyncio's side ----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(RefusedError(f"the connection ended: {self.reason or exc}"))
        if not self.closed.done():
            self.closed.set_result(None)

    def data_received(self, data: bytes) -> None:
        self._received += data
        while len(self._received) >= 8:
            kind, _, size = struct.unpack_from(">BHI", self._received)
            if len(self._received) < size + 8:
                return
            payload = bytes(self._received[7 : 7 + size])
            del self._received[: size + 8]
            if kind == wire.METHOD:
                self._method(wire.read_method(payload))
            elif kind == wire.HEADER:
                self._body.clear()
                self._missing, _ = wire.read_header(payload)
                self._content(b"")
            elif kind == wire.BODY:
                self._content(payload)

    def _content(self, part: bytes) -> None:
        self._body += part
        self._missing -= len(part)
        if self._deliver is not None and self._missing <= 0:
            deliver, self._deliver = self._deliver, None
            self.on_message(deliver, bytes(self._body))

    def _method(self, method: wire.Method) -> None:
        if method.name in ("channel.close", "connection.close"):
            self.reason = str(method.fields["reply_text"])
            self.close()
        elif method.name == "basic.deliver":
            self._deliver = method
        elif method.name == self._wanted and self._answer is not None and not self._answer.done():
            self._answer.set_result(method)
        else:
            self.on_method(method)

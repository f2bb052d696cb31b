"""A small MQTT 5 client for the campaign: enough to publish with confirms, read a queue and settle by order.

It shares no code with the broker. One ``Connection`` is an asyncio protocol; everything that arrives is handed
to its callbacks in the order of arrival, and a connection that ends resolves ``closed``. Source: MQTT 5.0.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from tests.broker import HOST

PROPERTY_BYTES = {0x01: 1, 0x02: 4, 0x0B: 0, 0x23: 2}
"""Sizes of PUBLISH's properties of fixed size; 0 is a variable byte integer, the others are strings."""

USER_PROPERTY = 0x26
CONNECT_TIMEOUT_S = 10.0
FAILURE = 0x80

Properties = tuple[tuple[str, str], ...]


class RefusedError(ConnectionError):
    """The broker did not accept a connection or a subscription."""


class Message(NamedTuple):
    """One delivery. ``identifier`` is 0 at QoS 0."""

    topic: str
    identifier: int
    properties: dict[str, str]
    body: bytes


def variable(value: int) -> bytes:
    """A variable byte integer."""
    encoded = bytearray()
    while True:
        value, low = divmod(value, 128)
        encoded.append(low | 0x80 if value else low)
        if not value:
            return bytes(encoded)


def read_variable(data: bytes, at: int) -> tuple[int, int]:
    """A variable byte integer and where it ends; -1 for the end where it is incomplete."""
    value = 0
    for place in range(4):
        if at + place >= len(data):
            return 0, -1
        byte = data[at + place]
        value |= (byte & 0x7F) << (7 * place)
        if not byte & 0x80:
            return value, at + place + 1
    raise ValueError("a variable byte integer of more than four bytes")


def text(value: str) -> bytes:
    """A string with its length."""
    encoded = value.encode()
    return len(encoded).to_bytes(2, "big") + encoded


def user_properties(properties: Properties, expiry: int = 0) -> bytes:
    """A property block of user properties, and of a message expiry interval if there is one."""
    block = b"\x02" + expiry.to_bytes(4, "big") if expiry else b""
    block += b"".join(b"\x26" + text(name) + text(value) for name, value in properties)
    return variable(len(block)) + block


def packet(first: int, body: bytes) -> bytes:
    """A whole packet."""
    return bytes([first]) + variable(len(body)) + body


def parse_properties(block: bytes) -> dict[str, str]:
    """The user properties of a PUBLISH, the last of each name."""
    found: dict[str, str] = {}
    at = 0
    while at < len(block):
        kind = block[at]
        at += 1
        size = PROPERTY_BYTES.get(kind)
        if size == 0:
            _, at = read_variable(block, at)
            continue
        if size is not None:
            at += size
            continue
        length = int.from_bytes(block[at : at + 2], "big")
        first = block[at + 2 : at + 2 + length]
        at += 2 + length
        if kind == USER_PROPERTY:
            length = int.from_bytes(block[at : at + 2], "big")
            found[first.decode()] = block[at + 2 : at + 2 + length].decode()
            at += 2 + length
    return found


class Connection(asyncio.Protocol):
    """One client. ``on_message`` gets deliveries; ``on_confirm`` the identifier and reason of each PUBACK."""

    def __init__(self) -> None:
        self.on_message: Callable[[Message], None] = lambda message: None
        self.on_confirm: Callable[[int, int], None] = lambda identifier, reason: None
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._answer: asyncio.Future[bytes] | None = None
        self._transport: asyncio.WriteTransport | None = None
        self._received = b""

    @classmethod
    async def open(
        cls,
        port: int,
        client_id: str,
        expiry: int = 0,
        taker: Callable[[Connection, Message], None] | None = None,
        host: str = HOST,
    ) -> Connection:
        """Connect with a clean start, or to a session that outlives its connection by ``expiry`` seconds; ``taker`` gets
        what comes along with the answer and later. Raises ``OSError`` (``RefusedError`` is one)."""
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(cls, host, port)
        if taker is not None:
            connection.on_message = lambda message: taker(connection, message)
        properties = b"\x21\xff\xff" + b"\x11" + expiry.to_bytes(4, "big")
        flags = b"\x00" if expiry else b"\x02"
        front = text("MQTT") + b"\x05" + flags + b"\x00\x00"
        body = front + variable(len(properties)) + properties + text(client_id)
        answer = await connection._ask(packet(0x10, body))
        if len(answer) < 2 or answer[1]:
            raise RefusedError(f"CONNECT was answered {answer.hex()}")
        return connection

    async def subscribe(self, topic_filter: str, properties: Properties) -> None:
        """SUBSCRIBE at QoS 1. Raises ``OSError``."""
        body = b"\x00\x01" + user_properties(properties) + text(topic_filter) + b"\x01"
        answer = await self._ask(packet(0x82, body))
        if answer[-1] >= FAILURE:
            raise RefusedError(f"SUBSCRIBE to {topic_filter} was answered {answer[-1]:#04x}")

    async def _ask(self, request: bytes) -> bytes:
        self._answer = asyncio.get_running_loop().create_future()
        self.send(request)
        try:
            # Not asyncio.wait_for: before Python 3.12 it may lose a cancellation that comes with the answer.
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                return await self._answer
        except TimeoutError:
            raise RefusedError("no answer in time") from None

    def send(self, data: bytes) -> None:
        """Bytes to the broker; on a closed connection they go nowhere."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def publish(
        self,
        topic: str,
        identifier: int,
        body: bytes,
        properties: Properties = (),
        retain: bool = False,
        expiry: int = 0,
    ) -> None:
        """PUBLISH at QoS 1; ``expiry``: the seconds it lives, 0 for ever."""
        front = text(topic) + identifier.to_bytes(2, "big") + user_properties(properties, expiry)
        self.send(packet(0x33 if retain else 0x32, front + body))

    def acknowledge(self, identifier: int) -> None:
        """PUBACK."""
        self.send(packet(0x40, identifier.to_bytes(2, "big")))

    def abort(self) -> None:
        """End the connection without a word, and without waiting for what is not sent."""
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """DISCONNECT."""
        self.send(b"\xe0\x00")
        if self._transport is not None:
            self._transport.close()

    # --- asyncio's side ----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(RefusedError(f"the connection ended: {exc}"))
        if not self.closed.done():
            self.closed.set_result(None)

    def data_received(self, data: bytes) -> None:
        received = self._received + data
        at = 0
        while at + 2 <= len(received):
            length, body = read_variable(received, at + 1)
            if body < 0 or body + length > len(received):
                break
            self._packet(received[at], received[body : body + length])
            at = body + length
        self._received = received[at:]

    def _packet(self, first: int, body: bytes) -> None:
        kind = first >> 4
        if kind == 3:
            self._publish(first, body)
        elif kind == 4:
            self.on_confirm(int.from_bytes(body[:2], "big"), body[2] if len(body) > 2 else 0)
        elif kind in (2, 9) and self._answer is not None and not self._answer.done():
            self._answer.set_result(body)

    def _publish(self, first: int, body: bytes) -> None:
        length = int.from_bytes(body[:2], "big")
        at = 2 + length
        identifier = 0
        if first & 0x06:
            identifier = int.from_bytes(body[at : at + 2], "big")
            at += 2
        size, at = read_variable(body, at)
        properties = parse_properties(body[at : at + size])
        self.on_message(
            Message(body[2 : 2 + length].decode(), identifier, properties, body[at + size :])
        )

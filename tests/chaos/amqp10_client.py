"""A client of AMQP 1.0 for the campaign: one session, a link that publishes or one that consumes.

Frames, types and flow control are those of Qpid Proton's engine, which does no I/O and shares no code with the broker.
One ``Connection`` is an asyncio protocol; a connection, session or link that the broker ends resolves ``closed``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from proton import (
    Collector,
    Delivery,
    Event,
    Link,
    Message,
    Receiver,
    Sender,
    Transport,
    TransportException,
)
from proton import Connection as ProtonConnection

from tests.powercut.client import CONNECT_TIMEOUT_S, RefusedError

IDLE_S = 10.0
"""A node that says nothing for so long is given up."""
ENDS = (
    *(Event.CONNECTION_REMOTE_CLOSE, Event.SESSION_REMOTE_CLOSE),
    *(Event.LINK_REMOTE_CLOSE, Event.LINK_REMOTE_DETACH, Event.TRANSPORT_ERROR),
)


class Connection(asyncio.Protocol):
    """One client. ``on_outcome`` gets the tag of a publish and what the broker has settled it with, one of ``Delivery``'s
    constants; ``on_message`` a delivery, its body, and whether it was marked as delivered before."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.on_outcome: Callable[[int, int], None] = lambda tag, outcome: None
        self.on_message: Callable[[Delivery, bytes, bool], None] = lambda delivery, body, repeat: (
            None
        )
        self.closed: asyncio.Future[None] = loop.create_future()
        self.reason = ""
        self.tag = 0
        self._loop = loop
        self._collector = Collector()
        self._connection = ProtonConnection()
        self._connection.collect(self._collector)
        self._engine = Transport(Transport.CLIENT)
        self._attached: asyncio.Future[None] = loop.create_future()
        self._link: Link | None = None
        self._credit = 0
        self._transport: asyncio.WriteTransport | None = None
        self._timer: asyncio.TimerHandle | None = None

    @classmethod
    async def open(cls, port: int, host: str, name: str) -> Connection:
        """Connect as guest. Raises ``OSError``."""
        _, connection = await asyncio.get_running_loop().create_connection(cls, host, port)
        connection._begin(name)
        return connection

    async def publish_to(self, address: str) -> None:
        """Attach the link to publish on. Raises ``RefusedError``."""
        link: Sender = self._session().sender("publisher")
        link.target.address = address
        link.snd_settle_mode = Link.SND_UNSETTLED
        await self._attach(link)

    async def consume(self, address: str, credit: int) -> None:
        """Attach the link to consume on, with credit that is renewed as deliveries are settled. Raises ``RefusedError``."""
        link: Receiver = self._session().receiver("consumer")
        link.source.address = address
        self._credit = credit
        link.flow(credit)
        await self._attach(link)

    def publish(self, body: bytes, seconds: int = 0) -> int:
        """Send one durable message, which lives so many seconds, 0 for ever; the tag of its outcome."""
        assert isinstance(self._link, Sender)
        message = Message(body, inferred=True, durable=True)
        if seconds:
            message.ttl = seconds
        self.tag += 1
        delivery = self._link.delivery(str(self.tag))
        self._link.send(message.encode())
        self._link.advance()
        assert delivery.tag == str(self.tag)
        self._write()
        return self.tag

    def accept(self, deliveries: list[Delivery]) -> None:
        """Settle deliveries as accepted."""
        assert isinstance(self._link, Receiver)
        for delivery in deliveries:
            delivery.update(Delivery.ACCEPTED)
            delivery.settle()
        self._link.flow(len(deliveries))
        self._write()

    def abort(self) -> None:
        """End the connection without waiting for what is not sent."""
        if self._transport is not None:
            self._transport.abort()

    # --- the engine --------------------------------------------------------------------------------------------

    def _begin(self, name: str) -> None:
        engine, connection = self._engine, self._connection
        connection.container = name
        connection.hostname = "chaos"
        connection.user, connection.password = "guest", "guest"
        engine.idle_timeout = IDLE_S
        sasl = engine.sasl()
        sasl.allowed_mechs("PLAIN")
        sasl.allow_insecure_mechs = True
        engine.bind(connection)
        connection.open()

    def _session(self) -> Any:
        session = self._connection.session()
        session.open()
        return session

    async def _attach(self, link: Link) -> None:
        self._link = link
        link.open()
        self._write()
        try:
            await asyncio.wait_for(self._attached, CONNECT_TIMEOUT_S)
        except TimeoutError:
            raise RefusedError("no attach in time") from None

    def _write(self) -> None:
        """Send what the engine has, and have it called when it wants to be."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        while (pending := self._engine.pending()) > 0:
            transport.write(self._engine.peek(pending) or b"")
            self._engine.pop(pending)
        if self._timer is not None:
            self._timer.cancel()
        if pending < 0:
            self._end("closed by the engine")
            return
        due = self._engine.tick(self._loop.time())
        self._timer = self._loop.call_at(due, self._tick) if due else None

    def _tick(self) -> None:
        self._timer = None
        self._handle()
        self._write()

    def _handle(self) -> None:
        """Handle the engine's events."""
        while (event := self._collector.peek()) is not None:
            kind = event.type
            if kind == Event.DELIVERY and event.delivery is not None:
                self._on_delivery(event.delivery)
            elif kind == Event.LINK_REMOTE_OPEN and event.link is not None:
                self._on_attach(event.link)
            elif kind in ENDS:
                self._on_end(event)
            self._collector.pop()

    def _on_attach(self, link: Link) -> None:
        terminus = link.remote_target if isinstance(link, Sender) else link.remote_source
        if terminus.address is not None and not self._attached.done():
            self._attached.set_result(None)

    def _on_delivery(self, delivery: Delivery) -> None:
        if isinstance(delivery.link, Sender):
            if delivery.updated and delivery.remote_state:
                tag, outcome = int(delivery.tag), delivery.remote_state
                delivery.settle()
                self.on_outcome(tag, outcome)
        elif delivery.readable and not delivery.partial:
            message = Message()
            message.decode(delivery.link.recv(delivery.pending) or b"")
            delivery.link.advance()
            repeat = not message.first_acquirer or message.delivery_count > 0
            assert isinstance(message.body, bytes | memoryview), "a body of this run is binary"
            self.on_message(delivery, bytes(message.body), repeat)

    def _on_end(self, event: Event) -> None:
        if event.type == Event.TRANSPORT_ERROR:
            condition = None if event.transport is None else event.transport.condition
        else:
            endpoint = event.link or event.session or event.connection
            condition = None if endpoint is None else endpoint.remote_condition
        self._end("" if condition is None else f"{condition.name}: {condition.description}")

    def _end(self, reason: str) -> None:
        self.reason = self.reason or reason
        if self._transport is not None:
            self._transport.close()

    # --- asyncio's side ----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self._attached.done():
            self._attached.set_exception(
                RefusedError(f"the connection ended: {self.reason or exc}")
            )
            self._attached.exception()  # nobody may have come to wait for it
        if not self.closed.done():
            self.closed.set_result(None)

    def data_received(self, data: bytes) -> None:
        try:
            while data:
                room = self._engine.capacity()
                if room <= 0:
                    break
                self._engine.push(data[:room])
                data = data[room:]
                self._handle()
        except TransportException as error:
            self._end(str(error))
            return
        self._handle()
        self._write()

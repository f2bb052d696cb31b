"""One AMQP 0.9.1 connection: channel 0, its errors, its heartbeat and its end.

Client errors are AmqpError up to here, where they become channel.close or connection.close with
code, text and offending method. Lives in one shard and is accessed only there.

Source: AMQP 0-9-1 sections 1.4.2 to 1.4.3 (connection, channel) and 4.2.7 (heartbeats).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fluxmq.net.reactor import PAUSED_OUTPUT
from fluxmq.protocols.amqp091.constants import FRAME_METHOD, HEARTBEAT, ReplyCode
from fluxmq.protocols.amqp091.errors import AmqpError, HardError, SoftError, octets
from fluxmq.protocols.amqp091.method_codec import decode, frame, ids
from fluxmq.protocols.amqp091.methods import (
    ChannelClose,
    ChannelCloseOk,
    ChannelOpen,
    ChannelOpenOk,
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionUpdateSecret,
    ConnectionUpdateSecretOk,
    Method,
)
from fluxmq.protocols.connection import Connection
from fluxmq.sessions.amqp091.access import Access
from fluxmq.sessions.amqp091.budget import Budget
from fluxmq.sessions.amqp091.channel import Channel, ChannelState
from fluxmq.sessions.amqp091.handshake import AmqpStage, Handshake
from fluxmq.sessions.amqp091.refusals import close_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fluxmq.sessions.amqp091.handler import AmqpConnectionHandler
    from fluxmq.sessions.amqp091.ports import AmqpBrokerPort

SILENT_INTERVALS: Final = 2
"""Heartbeat intervals of silence after which a client is considered dead (section 4.2.7)."""


class AmqpClient:
    """One connection. ``peer`` and ``local``: "address:port". ``owner``: globally unique id of the
    connection, which its exclusive queues carry.

    ``certificate_name``: of a verified client certificate, else empty. ``properties`` and
    ``capabilities``: from connection.start-ok. ``heartbeat``: seconds, 0 for none. ``exclusive``:
    it has declared exclusive queues. ``counted``: counted into its vhost. ``blocked``: it was told
    not to publish. ``held``: reasons not to read it. ``budget``: for its channels' incomplete
    messages and uncommitted transactions; ``backlog_bytes``: in their backlogs. Times are monotonic
    seconds: ``deadline`` of the handshake or of the answer to connection.close, ``heartbeat_at`` of
    the next heartbeat, ``heard``: earliest start of the present silence. ``connected_at``:
    milliseconds since the epoch.
    """

    def __init__(
        self,
        handler: AmqpConnectionHandler,
        connection: Connection,
        peer: str,
        local: str,
        listener: int,
        owner: str,
    ) -> None:
        self.handler = handler
        self.connection = connection
        self.peer = peer
        self.local = local
        self.listener = listener
        self.owner = owner
        self.stage = AmqpStage.HEADER
        self.certificate_name = ""
        self.mechanism = ""
        self.user = ""
        self.vhost = ""
        self.access = Access(handler.broker, "", "")
        self.properties: Mapping[str, object] = {}
        self.capabilities: frozenset[str] = frozenset()
        self.channel_max = 0
        self.connected_at = 0
        self.heartbeat = 0
        self.heartbeat_at = 0.0
        self.deadline = 0.0
        self.heard = 0.0
        self.channels: dict[int, Channel] = {}
        self.exclusive = False
        self.counted = False
        self.blocked = False
        self.budget = Budget()
        self.backlog_bytes = 0
        self.held = 0

    @property
    def broker(self) -> AmqpBrokerPort:
        """The port to the shard."""
        return self.handler.broker

    @property
    def name(self) -> str:
        """RabbitMQ's name of a connection."""
        return f"{self.peer} -> {self.local}"

    def send(self, method: Method) -> None:
        """Send a method on channel 0."""
        self.connection.append(frame(0, method))

    # --- frames that are not an open channel's ---

    def frame(self, kind: int, number: int, payload: bytes) -> None:
        """Handle a frame on channel 0, or on any before connection.open-ok."""
        method: Method | None = None
        try:
            if kind != FRAME_METHOD or number:
                text = f"type {kind}, all octets = {octets(payload)}"
                raise HardError(ReplyCode.UNEXPECTED_FRAME, text)
            method = decode(payload)
            self.broker.count_method(type(method).__name__)
            if self.stage is AmqpStage.RUNNING:
                self._execute(method)
            else:
                Handshake(self).on_method(method)
        except AmqpError as error:
            self.fail(None, error, method)

    def _execute(self, method: Method) -> None:
        """Execute a method on channel 0 of an open connection. Raises HardError 504 for others."""
        if isinstance(method, ConnectionClose):
            self.closed_by_client()
        elif isinstance(method, ConnectionUpdateSecret):
            # For backends with expiring credentials; a verified password needs no renewal, and
            # RabbitMQ's internal backend ignores the new one as well. The client's secret is not
            # stored.
            self.send(ConnectionUpdateSecretOk())
        else:
            text = "unexpected method in connection state running"
            raise HardError(ReplyCode.CHANNEL_ERROR, text)

    def unopened_frame(self, number: int, kind: int, payload: bytes) -> None:
        """Handle a frame on a closed channel: channel.open, or one that crossed our close."""
        channel = self.channels.get(number)
        method: Method | None = None
        try:
            if kind == FRAME_METHOD:
                method = decode(payload)
                self.broker.count_method(type(method).__name__)
            opens = isinstance(method, ChannelOpen)
            if channel is not None and not (channel.state is ChannelState.CROSSED and opens):
                if isinstance(method, ChannelCloseOk):
                    del self.channels[number]
                elif isinstance(method, ChannelClose):
                    channel.state = ChannelState.CROSSED
                    channel.send(ChannelCloseOk())
                return
            if not opens:
                raise HardError(ReplyCode.CHANNEL_ERROR, "expected 'channel.open'")
            self._open_channel(number)
        except AmqpError as error:
            self.fail(None, error, method)

    def _open_channel(self, number: int) -> None:
        """Open a channel. Raises HardError 530 when channel-max is reached."""
        most = self.channel_max
        if number not in self.channels and len(self.channels) >= most:
            text = f"number of channels opened ({most}) has reached the negotiated channel_max ({most})"
            raise HardError(ReplyCode.NOT_ALLOWED, text)
        channel = Channel(self, number)
        self.channels[number] = channel
        if self.connection.ledgers is None:
            self.connection.ledgers = {}
        self.connection.ledgers[number] = channel.ledger
        channel.send(ChannelOpenOk())

    def closing_frame(self, kind: int, number: int, payload: bytes) -> None:
        """Handle a frame after our connection.close; only close-ok and close count."""
        if kind != FRAME_METHOD or number:
            return
        try:
            method = decode(payload)
        except AmqpError:
            return
        if isinstance(method, ConnectionClose):
            self.send(ConnectionCloseOk())
            self.end("error", linger=True)
        elif isinstance(method, ConnectionCloseOk):
            self.end("error", linger=True)

    # --- errors and ends ---

    def fail(
        self, channel: Channel | None, error: AmqpError, method: Method | type[Method] | None
    ) -> None:
        """Answer an error: close the channel, or the connection."""
        if self.stage in (AmqpStage.CLOSING, AmqpStage.CLOSED):
            return
        if method is not None and not error.class_id:
            error.class_id, error.method_id = ids(method)
        self.broker.count_error(self, error.code, error.text)
        if isinstance(error, SoftError) and channel is not None:
            if channel.is_open:
                channel.fail(error)
        elif self.stage in (AmqpStage.OPEN, AmqpStage.RUNNING):
            self.send_close(error)
        else:
            self.end("handshake")

    def send_close(self, error: AmqpError) -> None:
        """Close from our side: release everything, send the reason, and await the answer."""
        self.stage = AmqpStage.CLOSING
        self._release()
        text = close_text(error)
        self.send(ConnectionClose(error.code, text, error.class_id, error.method_id))
        self.deadline = self.broker.now() + self.broker.limits.close_timeout
        self.reschedule()
        self.broker.release_publisher(self.connection)
        if self.held:
            self.held = 0
            self.broker.resume(self.connection)

    def disconnect(self, text: str) -> None:
        """Close for an operator or the node's shutdown: 320 with a text."""
        if self.stage is AmqpStage.RUNNING:
            self.send_close(HardError(ReplyCode.CONNECTION_FORCED, text))
        elif self.stage is not AmqpStage.CLOSING:
            self.end("forced")

    def closed_by_client(self) -> None:
        """Handle connection.close."""
        self._release()
        self.send(ConnectionCloseOk())
        self.end("client", linger=True)

    def end(self, reason: str, linger: bool = False) -> None:
        """End the connection."""
        if self.stage is AmqpStage.CLOSED:
            return
        self.stage = AmqpStage.CLOSED
        self._release()
        self.held = 0
        self.connection.feeding = False
        self.handler.clients.pop(self, None)
        self.broker.count_closed(self, reason)
        self.broker.close(self.connection, linger)

    def _release(self) -> None:
        """Release what the channels hold; delete exclusive queues."""
        for channel in list(self.channels.values()):
            channel.release()
        self.channels.clear()
        self.connection.ledgers = None
        if self.exclusive:
            self.exclusive = False
            self.handler.drop_owner(self.owner)

    # --- reading and time ---

    def pause(self) -> None:
        """Count one more reason not to read the connection."""
        self.held += 1
        if self.held == 1:
            self.broker.pause(self.connection)

    def resume(self) -> None:
        """Remove one reason not to read it. A no-op without ``pause``."""
        if self.held:
            self.held -= 1
            if self.held == 0:
                self.heard = self.broker.now()
                self.broker.resume(self.connection)

    def reschedule(self) -> None:
        """Schedule a call for the next deadline."""
        times = [at for at in (self.deadline, self.heartbeat_at) if at]
        if self.stage is not AmqpStage.CLOSED and times:
            self.broker.schedule(self, min(times))

    def due(self) -> None:
        """Handle a scheduled deadline."""
        now = self.broker.now()
        if self.stage is AmqpStage.CLOSED:
            return
        if self.deadline and self.deadline <= now:
            self.end("close_timeout" if self.stage is AmqpStage.CLOSING else "handshake_timeout")
            return
        if self.heartbeat_at and self.heartbeat_at <= now:
            self._heartbeat(now)
        self.reschedule()

    def _heartbeat(self, now: float) -> None:
        """Send a heartbeat every half interval, and check for input in the last two intervals."""
        if self.stage is not AmqpStage.RUNNING:
            self.heartbeat_at = 0.0
            return
        connection = self.connection
        if connection.paused & ~PAUSED_OUTPUT:
            self.heard = now  # reading was paused for reasons that are not the client's
        if now - max(self.heard, connection.active) > SILENT_INTERVALS * self.heartbeat:
            text = f"missed heartbeats from client, timeout: {self.heartbeat}s"
            self.broker.count_error(self, ReplyCode.CONNECTION_FORCED, text)
            self.end("heartbeat")
            return
        connection.append(HEARTBEAT)
        self.heartbeat_at = now + self.heartbeat / 2

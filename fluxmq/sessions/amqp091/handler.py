"""Entry of AMQP 0.9.1 connections: the one handler that all connections of a shard share, and a
session for each.

Frames go to the channel, or to channel 0. Client errors are AmqpError up to here and the channel's
methods; they become channel.close or connection.close with code, text and offending method. A
resource alarm blocks every client that has published, whether or not it announced the capability
connection.blocked.

Source: AMQP 0-9-1 sections 1.4.2 to 1.4.3 (connection, channel), 2.2.4 and 4.2.2 (protocol header),
RabbitMQ's blocked connection notifications and resource alarms.
"""

from __future__ import annotations

from typing import Final

from fluxmq.auth.logins import AuthResult
from fluxmq.protocols.amqp091.constants import FRAME_METHOD, PROTOCOL_HEADER, ReplyCode
from fluxmq.protocols.amqp091.errors import AmqpError, HardError, octets
from fluxmq.protocols.amqp091.method_codec import decode
from fluxmq.protocols.amqp091.methods import (
    BasicPublish,
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
from fluxmq.protocols.amqp091.run import AmqpPublishRun
from fluxmq.protocols.amqp091.sasl import PLAIN
from fluxmq.protocols.connection import Connection
from fluxmq.routing.topology.changes import DropOwner
from fluxmq.routing.topology.refusals import Refusal
from fluxmq.sessions.amqp091.channel import ChannelState
from fluxmq.sessions.amqp091.channel_methods import ChannelMethods
from fluxmq.sessions.amqp091.client import AmqpClient, AmqpStage, ResourceAlarm
from fluxmq.sessions.amqp091.connection_info import ConnectionInfo
from fluxmq.sessions.amqp091.deliveries import DeliveryHeads
from fluxmq.sessions.amqp091.handshake import Handshake
from fluxmq.sessions.amqp091.ports import AmqpBrokerPort
from fluxmq.sessions.amqp091.refusals import precondition

ORPHANS_MAX: Final = 100_000
"""Ended owners of exclusive queues kept while no change is possible: one name each."""


class AmqpSession:
    """One connection: its client, and its channels by number."""

    def __init__(
        self, handler: AmqpConnectionHandler, connection: Connection, info: ConnectionInfo
    ) -> None:
        self.handler = handler
        self.client = AmqpClient(handler.broker, connection, info, handler.alarm, self._release)
        self.channels: dict[int, ChannelMethods] = {}

    def frame(self, kind: int, number: int, payload: bytes) -> None:
        """Handle a frame on channel 0, or on any before connection.open-ok."""
        client = self.client
        method: Method | None = None
        try:
            if kind != FRAME_METHOD or number:
                text = f"type {kind}, all octets = {octets(payload)}"
                raise HardError(ReplyCode.UNEXPECTED_FRAME, text)
            method = decode(payload)
            client.broker.count_method(type(method).__name__)
            if client.stage is AmqpStage.RUNNING:
                self._execute(method)
            else:
                Handshake(client).on_method(method)
        except AmqpError as error:
            client.fail(error, method)

    def _execute(self, method: Method) -> None:
        """Execute a method on channel 0 of an open connection. Raises HardError 504 for others."""
        if isinstance(method, ConnectionClose):
            self.client.closed_by_client()
        elif isinstance(method, ConnectionUpdateSecret):
            self._update_secret(method)
        else:
            text = "unexpected method in connection state running"
            raise HardError(ReplyCode.CHANNEL_ERROR, text)

    def _update_secret(self, method: ConnectionUpdateSecret) -> None:
        """Renew the login of a user of another backend; a connection that is open is not read
        meanwhile, and is closed with 530 if the backend refuses, as in RabbitMQ.

        A verified password needs no renewal, and RabbitMQ's internal backend ignores the new one as
        well.
        """
        client, info = self.client, self.client.info
        if client.access.login is None:
            client.send(ConnectionUpdateSecretOk())
            return

        def done(result: AuthResult) -> None:
            if client.stage is not AmqpStage.RUNNING:
                return
            client.resume()
            # Nobody becomes another user.
            if result.login is None or result.username != info.user:
                text = "New secret was refused by one of the backends"
                client.fail(HardError(ReplyCode.NOT_ALLOWED, text), method)
                return
            client.access.login = result.login
            client.reschedule()
            client.send(ConnectionUpdateSecretOk())

        client.pause()
        client.broker.authenticate(info, PLAIN, info.user, method.new_secret, done)

    def unopened_frame(self, number: int, kind: int, payload: bytes) -> None:
        """Handle a frame on a closed channel: channel.open, or one that crossed our close."""
        found = self.channels.get(number)
        method: Method | None = None
        try:
            if kind == FRAME_METHOD:
                method = decode(payload)
                self.client.broker.count_method(type(method).__name__)
            opens = isinstance(method, ChannelOpen)
            if found is not None and not (found.channel.state is ChannelState.CROSSED and opens):
                if isinstance(method, ChannelCloseOk):
                    del self.channels[number]
                elif isinstance(method, ChannelClose):
                    found.channel.state = ChannelState.CROSSED
                    found.channel.send(ChannelCloseOk())
                return
            if not opens:
                raise HardError(ReplyCode.CHANNEL_ERROR, "expected 'channel.open'")
            self._open_channel(number)
        except AmqpError as error:
            self.client.fail(error, method)

    def _open_channel(self, number: int) -> None:
        """Open a channel. Raises HardError 530 when channel-max is reached."""
        client, handler = self.client, self.handler
        most = client.info.channel_max
        if number not in self.channels and len(self.channels) >= most:
            text = f"number of channels opened ({most}) has reached the negotiated channel_max ({most})"
            raise HardError(ReplyCode.NOT_ALLOWED, text)
        info = client.info
        limit = client.broker.user_limits.open_channel(info.user) if info.is_client else None
        if limit is not None:
            text = (
                f"number of channels opened for user '{client.info.user}' has reached the maximum"
                f" allowed user limit of {limit}"
            )
            raise HardError(ReplyCode.NOT_ALLOWED, text)
        opened = ChannelMethods(client, number, self.channels, handler.heads, handler.mark)
        self.channels[number] = opened
        if client.connection.ledgers is None:
            client.connection.ledgers = {}
        client.connection.ledgers[number] = opened.channel.ledger
        opened.channel.send(ChannelOpenOk())
        client.broker.events.channel_created(client.info, number)

    def closing_frame(self, kind: int, number: int, payload: bytes) -> None:
        """Handle a frame after our connection.close; only close-ok and close count."""
        if kind != FRAME_METHOD or number:
            return
        try:
            method = decode(payload)
        except AmqpError:
            return
        if isinstance(method, ConnectionClose):
            self.client.send(ConnectionCloseOk())
            self.client.end("error", linger=True)
        elif isinstance(method, ConnectionCloseOk):
            self.client.end("error", linger=True)

    def _release(self) -> None:
        """Release what the channels hold; delete exclusive queues; forget a client that has
        ended."""
        client = self.client
        for channel in list(self.channels.values()):
            channel.release()
        self.channels.clear()
        client.connection.ledgers = None
        if client.exclusive:
            client.exclusive = False
            self.handler.drop_owner(client.info.owner)
        if client.stage is AmqpStage.CLOSED:
            self.handler.clients.pop(client, None)


class AmqpConnectionHandler:
    """Events from parser, reactor and shard."""

    def __init__(self, broker: AmqpBrokerPort) -> None:
        self.broker = broker
        self.marked: list[ChannelMethods] = []
        self.clients: dict[AmqpClient, AmqpSession] = {}
        self.heads = DeliveryHeads()
        self.orphans: set[str] = set()
        self.alarm = ResourceAlarm()

    # --- input from clients ---

    def protocol_header(self, connection: Connection, header: bytes) -> None:
        """Start, or answer with the supported protocol header and close (section 4.2.2)."""
        session: AmqpSession = connection.identity
        if header != PROTOCOL_HEADER:
            connection.append(PROTOCOL_HEADER)
            session.client.end("protocol_header", linger=True)
            return
        self.clients[session.client] = session
        Handshake(session.client).begin()

    def publish_run(self, connection: Connection, number: int, run: AmqpPublishRun) -> None:
        """Handle whole publishes on a channel, in the receive buffer."""
        session: AmqpSession = connection.identity
        channel = session.channels.get(number)
        if session.client.stage is AmqpStage.RUNNING and channel is not None and channel.is_open:
            channel.on_run(run)

    def frame(self, connection: Connection, kind: int, number: int, payload: bytes) -> None:
        """Handle a frame that the parser did not: no run, heartbeat or settled ack."""
        session: AmqpSession = connection.identity
        stage = session.client.stage
        if stage is AmqpStage.CLOSED:
            return
        if stage is AmqpStage.CLOSING:
            session.closing_frame(kind, number, payload)
        elif number == 0 or stage is not AmqpStage.RUNNING:
            session.frame(kind, number, payload)
        else:
            channel = session.channels.get(number)
            if channel is None or not channel.is_open:
                session.unopened_frame(number, kind, payload)
            else:
                channel.on_frame(kind, payload)

    def broken(self, connection: Connection, code: int, text: str) -> None:
        """Handle bytes that are no frame; the parser ignores everything after them."""
        session: AmqpSession = connection.identity
        client = session.client
        if client.stage in (AmqpStage.CLOSING, AmqpStage.CLOSED):
            client.end("error")
            return
        client.fail(HardError(ReplyCode(code), text), None)
        # The start of the next frame is unknown: an answer could not be read.
        client.end("protocol_error", linger=True)

    def lost(self, connection: Connection) -> None:
        """Handle the loss of the network connection."""
        session: AmqpSession = connection.identity
        session.client.end("lost")

    def drained(self, connection: Connection) -> None:
        """Resume deliveries that waited for the output to be written."""
        session: AmqpSession = connection.identity
        connection.feeding = False
        for channel in list(session.channels.values()):
            channel.consumers.pump()

    def due(self, connection: Connection) -> None:
        """Handle a deadline that the connection has scheduled."""
        session: AmqpSession = connection.identity
        session.client.due()

    # --- flushed once per tick ---

    def mark(self, channel: ChannelMethods) -> None:
        """Schedule the channel to be flushed."""
        self.marked.append(channel)
        if len(self.marked) == 1:
            self.broker.mark()

    def flush_marked(self) -> None:
        """Pass on acknowledgements, write due confirms. Called before groups gather their tick."""
        while self.marked:
            marked, self.marked = self.marked, []
            for channel in marked:
                channel.flush()

    # --- resource alarms ---

    def block(self, reason: str) -> None:
        """Stop reading publishers, and notify those with the capability, once."""
        self.alarm.reason = reason
        for client in self.clients:
            if client.connection.publishing:
                client.block()

    def unblock(self) -> None:
        """Let everyone publish again."""
        self.alarm.reason = ""
        for client in self.clients:
            client.unblock()

    def give_up(self) -> None:
        """Close the channels of blocked publishers that hold an incomplete message or an
        uncommitted transaction.

        Only the client could end these, and it is not read: an alarm that they cause would last for
        ever.
        """
        text = "memory is low: incomplete messages and uncommitted transactions are discarded"
        for client, session in list(self.clients.items()):
            if client.blocked and client.budget.used:
                for channel in list(session.channels.values()):
                    if channel.incomplete_bytes():
                        self.broker.refused_for_memory("incomplete")
                        channel.fail(precondition(text), BasicPublish)

    # --- exclusive queues ---

    def drop_owner(self, owner: str) -> None:
        """Delete a connection's exclusive queues, and those of earlier owners that had to wait."""
        if len(self.orphans) < ORPHANS_MAX:
            self.orphans.add(owner)
        owners = sorted(self.orphans)

        def done(refusal: Refusal | None) -> None:
            if refusal is None:
                self.orphans.difference_update(owners)

        self.broker.change([DropOwner(each) for each in owners], done)

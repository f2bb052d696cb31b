"""Dispatch of frames of AMQP 0.9.1 connections: the one handler that all connections of a shard
share.

Client errors are AmqpError up to here, where they become channel.close or connection.close with
code, text and offending method. A channel or connection releases everything when it ends.

Source: AMQP 0-9-1 sections 1.4.2 to 1.4.3 (connection, channel), 2.2.4 and 4.2.7 (heartbeats),
RabbitMQ's connection.blocked.
"""

from __future__ import annotations

from typing import Final

from fluxmq.model.batch_format import Batch
from fluxmq.net.reactor import PAUSED_OUTPUT
from fluxmq.protocols.amqp091.constants import (
    FRAME_METHOD,
    HEARTBEAT,
    PROTOCOL_HEADER,
    ReplyCode,
)
from fluxmq.protocols.amqp091.errors import AmqpError, HardError, SoftError, octets
from fluxmq.protocols.amqp091.methods import (
    BasicPublish,
    ChannelClose,
    ChannelCloseOk,
    ChannelOpen,
    ChannelOpenOk,
    ConnectionClose,
    ConnectionCloseOk,
    Method,
    decode,
    frame,
    ids,
)
from fluxmq.protocols.amqp091.run import PublishRun
from fluxmq.protocols.connection import Connection
from fluxmq.routing.topology.changes import DropOwner
from fluxmq.routing.topology.refusals import Refusal
from fluxmq.sessions.amqp091 import (
    blocking,
    channels,
    consuming,
    control,
    handshake,
    publishing,
)
from fluxmq.sessions.amqp091.channel import (
    BACKLOG_BYTES_MAX,
    BACKLOG_MAX,
    WAITING_BYTES,
    Channel,
    State,
    told,
)
from fluxmq.sessions.amqp091.client import Client, Stage
from fluxmq.sessions.amqp091.consumers import Consumer
from fluxmq.sessions.amqp091.content import Content, check_method_due
from fluxmq.sessions.amqp091.deliveries import Heads
from fluxmq.sessions.amqp091.ports import Broker

ORPHANS_MAX: Final = 100_000
"""Ended owners of exclusive queues kept while no change is possible: one name each."""
SILENT_INTERVALS: Final = 2
"""Heartbeat intervals of silence after which a client is considered dead (section 4.2.7)."""


class Handler:
    """Events from parser, reactor and shard. ``blocked``: why publishing is, or empty."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.marked: list[Channel] = []
        self.clients: dict[Client, None] = {}
        self.heads = Heads()
        self.orphans: set[str] = set()
        self.blocked = ""

    # --- input from clients ---

    def protocol_header(self, connection: Connection, header: bytes) -> None:
        """Start, or answer with the supported protocol header and close (section 4.2.2)."""
        client: Client = connection.identity
        if header != PROTOCOL_HEADER:
            connection.append(PROTOCOL_HEADER)
            self.end(client, "protocol_header", linger=True)
            return
        self.clients[client] = None
        handshake.begin(self, client)

    def publish_run(self, connection: Connection, number: int, run: PublishRun) -> None:
        """Handle whole publishes on a channel, in the receive buffer."""
        client: Client = connection.identity
        channel = client.channels.get(number)
        if client.stage is not Stage.RUNNING or channel is None or channel.state is State.CLOSING:
            return
        if channel.waiting or channel.backlog:
            run.detach()
            self.keep(channel, run, run.payload_bytes)
            return
        self.handle_run(channel, run)

    def handle_run(self, channel: Channel, run: PublishRun) -> None:
        """Handle publishes whose turn has come."""
        try:
            if channel.content is not None:
                channel.content.add(FRAME_METHOD, b"", 0)
            publishing.publish(channel, run)
        except AmqpError as error:
            self.fail(channel.client, channel, error, BasicPublish)

    def frame(self, connection: Connection, kind: int, number: int, payload: bytes) -> None:
        """Handle a frame that the parser did not: no run, heartbeat or settled ack."""
        client: Client = connection.identity
        stage = client.stage
        if stage is Stage.CLOSED:
            return
        if stage is Stage.CLOSING:
            self.closing_frame(client, kind, number, payload)
        elif number == 0 or stage is not Stage.RUNNING:
            self.connection_frame(client, kind, number, payload)
        else:
            channel = client.channels.get(number)
            if channel is None or channel.state is State.CLOSING:
                self.unopened_frame(client, channel, number, kind, payload)
            elif channel.waiting or channel.backlog:
                self.keep(channel, (kind, payload), len(payload))
            else:
                self.handle_frame(channel, kind, payload)

    def connection_frame(self, client: Client, kind: int, number: int, payload: bytes) -> None:
        """Handle a frame on channel 0, or on any before connection.open-ok."""
        method: Method | None = None
        try:
            if kind != FRAME_METHOD or number:
                text = f"type {kind}, all octets = {octets(payload)}"
                raise HardError(ReplyCode.UNEXPECTED_FRAME, text)
            method = decode(payload)
            self.broker.count_method(type(method).__name__)
            if client.stage is Stage.RUNNING:
                control.on_method(self, client, method)
            else:
                handshake.on_method(self, client, method)
        except AmqpError as error:
            self.fail(client, None, error, method)

    def unopened_frame(
        self, client: Client, channel: Channel | None, number: int, kind: int, payload: bytes
    ) -> None:
        """Handle a frame on a closed channel: channel.open, or one that crossed our close."""
        method: Method | None = None
        try:
            if kind == FRAME_METHOD:
                method = decode(payload)
                self.broker.count_method(type(method).__name__)
            if channel is not None and not (channel.crossed and isinstance(method, ChannelOpen)):
                if isinstance(method, ChannelCloseOk):
                    del client.channels[number]
                elif isinstance(method, ChannelClose):
                    channel.crossed = True
                    channel.send(ChannelCloseOk())
                return
            if not isinstance(method, ChannelOpen):
                raise HardError(ReplyCode.CHANNEL_ERROR, "expected 'channel.open'")
            self.open_channel(client, number)
        except AmqpError as error:
            self.fail(client, None, error, method)

    def open_channel(self, client: Client, number: int) -> None:
        """Open a channel. Raises HardError 530 when channel-max is reached."""
        most = client.channel_max
        if number not in client.channels and len(client.channels) >= most:
            text = f"number of channels opened ({most}) has reached the negotiated channel_max ({most})"
            raise HardError(ReplyCode.NOT_ALLOWED, text)
        channel = Channel(self, client, number)
        client.channels[number] = channel
        connection = client.connection
        if connection.ledgers is None:
            connection.ledgers = {}
        connection.ledgers[number] = channel.ledger
        channel.send(ChannelOpenOk())

    def handle_frame(self, channel: Channel, kind: int, payload: bytes) -> None:
        """Handle a frame of an open channel whose turn has come."""
        method: Method | type[Method] | None = None
        try:
            content = channel.content
            if content is not None:
                if content.add(kind, payload, self.broker.limits.max_message):
                    channel.content = None
                    content.share.release()
                    channel.put_in_order()
                    method = BasicPublish
                    publishing.publish(channel, content.run(channel.number))
                return
            check_method_due(kind)
            method = decode(payload)
            if isinstance(method, BasicPublish):
                client = channel.client
                channel.content = Content(method, client.budget.share(self.broker))
                channel.put_in_order()
                if not client.connection.publishing:
                    blocking.began(self, client)
                return
            self.broker.count_method(type(method).__name__)
            channels.on_method(channel, method)
        except AmqpError as error:
            self.fail(channel.client, channel, error, method)

    def closing_frame(self, client: Client, kind: int, number: int, payload: bytes) -> None:
        """Handle a frame after our connection.close; only close-ok and close count."""
        if kind != FRAME_METHOD or number:
            return
        try:
            method = decode(payload)
        except AmqpError:
            return
        if isinstance(method, ConnectionClose):
            client.connection.append(frame(0, ConnectionCloseOk()))
            self.end(client, "error", linger=True)
        elif isinstance(method, ConnectionCloseOk):
            self.end(client, "error", linger=True)

    def broken(self, connection: Connection, code: int, text: str) -> None:
        """Handle bytes that are no frame; the parser ignores everything after them."""
        client: Client = connection.identity
        if client.stage in (Stage.CLOSING, Stage.CLOSED):
            self.end(client, "error")
            return
        error = HardError(ReplyCode(code), text)
        self.fail(client, None, error, None)
        # The start of the next frame is unknown: an answer could not be read.
        self.end(client, "protocol_error", linger=True)

    def lost(self, connection: Connection) -> None:
        """Handle the loss of the network connection."""
        self.end(connection.identity, "lost")

    def drained(self, connection: Connection) -> None:
        """Resume deliveries that waited for the output to be written."""
        client: Client = connection.identity
        connection.feeding = False
        for channel in list(client.channels.values()):
            consuming.pump(channel)

    # --- input from queues ---

    def delivered(
        self,
        channel: Channel,
        consumer: Consumer,
        batch: Batch,
        first: int,
        count: int,
        attempts: int,
    ) -> None:
        """Handle messages for a consumer."""
        consuming.delivered(channel, consumer, batch, first, count, attempts)

    def cancelled(self, channel: Channel, consumer: Consumer) -> None:
        """Handle the end of a consumer's queue."""
        consuming.cancelled(channel, consumer)

    # --- order within a channel ---

    def keep(self, channel: Channel, item: tuple[int, bytes] | PublishRun, size: int) -> None:
        """Queue input of a channel behind the method in progress."""
        client = channel.client
        channel.backlog.append(item)
        channel.backlog_bytes += size + WAITING_BYTES
        client.backlog_bytes += size + WAITING_BYTES
        if not channel.holding and (
            len(channel.backlog) >= BACKLOG_MAX or client.backlog_bytes >= BACKLOG_BYTES_MAX
        ):
            channel.holding = True
            self.pause(client)

    def proceed(self, channel: Channel) -> None:
        """Continue the channel: process its backlog."""
        while channel.backlog and not channel.waiting and channel.is_open:
            item = channel.backlog.popleft()
            size = item.payload_bytes if isinstance(item, PublishRun) else len(item[1])
            channel.backlog_bytes -= size + WAITING_BYTES
            channel.client.backlog_bytes -= size + WAITING_BYTES
            if isinstance(item, PublishRun):
                self.handle_run(channel, item)
            else:
                self.handle_frame(channel, item[0], item[1])
        channel.put_in_order()
        if channel.holding and not channel.backlog:
            channel.holding = False
            self.resume(channel.client)

    def pause(self, client: Client) -> None:
        """Count one more reason not to read the connection."""
        client.held += 1
        if client.held == 1:
            self.broker.pause(client.connection)

    def resume(self, client: Client) -> None:
        """Remove one reason not to read it. A no-op without ``pause``."""
        if client.held:
            client.held -= 1
            if client.held == 0:
                client.heard = self.broker.now()
                self.broker.resume(client.connection)

    # --- flushed once per tick ---

    def mark(self, channel: Channel) -> None:
        """Schedule the channel to be flushed."""
        self.marked.append(channel)
        if len(self.marked) == 1:
            self.broker.mark()

    def flush_marked(self) -> None:
        """Pass on acknowledgements, write due confirms. Called before groups gather their tick."""
        while self.marked:
            marked, self.marked = self.marked, []
            for channel in marked:
                channel.marked = False
                if channel.is_open:
                    consuming.flush(channel)
                    publishing.flush(channel)

    # --- errors and ends ---

    def fail(
        self,
        client: Client,
        channel: Channel | None,
        error: AmqpError,
        method: Method | type[Method] | None,
    ) -> None:
        """Answer an error: close the channel, or the connection."""
        if client.stage in (Stage.CLOSING, Stage.CLOSED):
            return
        if method is not None and not error.class_id:
            error.class_id, error.method_id = ids(method)
        self.broker.count_error(client, error.code, error.text)
        if isinstance(error, SoftError) and channel is not None:
            if channel.is_open:
                self.release_channel(channel)
                channel.state = State.CLOSING
                client.channels[channel.number] = channel
                text = told(error)
                channel.send(ChannelClose(error.code, text, error.class_id, error.method_id))
                self.let_go(channel)
        elif client.stage in (Stage.OPEN, Stage.RUNNING):
            self.send_close(client, error)
        else:
            self.end(client, "handshake")

    def send_close(self, client: Client, error: AmqpError) -> None:
        """Close from our side: release everything, send the reason, and await the answer."""
        client.stage = Stage.CLOSING
        self.release(client)
        text = told(error)
        close = ConnectionClose(error.code, text, error.class_id, error.method_id)
        client.connection.append(frame(0, close))
        client.deadline = self.broker.now() + self.broker.limits.close_timeout
        self.reschedule(client)
        self.broker.release_publisher(client.connection)
        if client.held:
            client.held = 0
            self.broker.resume(client.connection)

    def disconnect(self, client: Client, text: str) -> None:
        """Close for an operator or the node's shutdown: 320 with a text."""
        if client.stage is Stage.RUNNING:
            self.send_close(client, HardError(ReplyCode.CONNECTION_FORCED, text))
        elif client.stage is not Stage.CLOSING:
            self.end(client, "forced")

    def closed_by_client(self, client: Client) -> None:
        """connection.close came."""
        self.release(client)
        client.connection.append(frame(0, ConnectionCloseOk()))
        self.end(client, "client", linger=True)

    def end(self, client: Client, reason: str, linger: bool = False) -> None:
        """End the connection."""
        if client.stage is Stage.CLOSED:
            return
        client.stage = Stage.CLOSED
        self.release(client)
        client.held = 0
        client.connection.feeding = False
        self.clients.pop(client, None)
        self.broker.count_closed(client, reason)
        self.broker.close(client.connection, linger)

    def release(self, client: Client) -> None:
        """Release what the channels hold; delete exclusive queues."""
        for channel in list(client.channels.values()):
            self.release_channel(channel)
        client.channels.clear()
        client.connection.ledgers = None
        if client.exclusive:
            client.exclusive = False
            self.drop_owner(client.owner)

    def drop_owner(self, owner: str) -> None:
        """Delete a connection's exclusive queues, and those of earlier owners that had to wait."""
        if len(self.orphans) < ORPHANS_MAX:
            self.orphans.add(owner)
        owners = sorted(self.orphans)

        def done(refusal: Refusal | None) -> None:
            if refusal is None:
                self.orphans.difference_update(owners)

        self.broker.change([DropOwner(each) for each in owners], done)

    def release_channel(self, channel: Channel) -> None:
        """Release a channel that is no longer open, and ignore its pending answers."""
        if channel.state is State.CLOSED:
            return
        client = channel.client
        client.channels.pop(channel.number, None)
        if client.connection.ledgers is not None:
            client.connection.ledgers.pop(channel.number, None)
        was_open, channel.state = channel.is_open, State.CLOSED
        if was_open:
            consuming.release(channel)
        for holder in (channel.content, channel.transaction):
            if holder is not None:
                holder.share.release()
        channel.content = None
        channel.prepared = None
        channel.transaction = None
        channel.backlog.clear()
        client.backlog_bytes -= channel.backlog_bytes
        channel.backlog_bytes = 0
        # Ledger and channel form a cycle, and the garbage collector does not run during traffic.
        channel.ledger.mark = None

    def let_go(self, channel: Channel) -> None:
        """Stop a released channel from keeping its connection unread.

        Input received earlier is handled within this call, so it comes last.
        """
        reasons = channel.holding + channel.paced
        channel.holding = channel.paced = False
        for _ in range(reasons):
            self.resume(channel.client)

    # --- time ---

    def reschedule(self, client: Client) -> None:
        """Schedule a call for the next deadline."""
        times = [at for at in (client.deadline, client.heartbeat_at) if at]
        if client.stage is not Stage.CLOSED and times:
            self.broker.schedule(client, min(times))

    def due(self, client: Client) -> None:
        """Handle a scheduled deadline."""
        now = self.broker.now()
        if client.stage is Stage.CLOSED:
            return
        if client.deadline and client.deadline <= now:
            late = "close_timeout" if client.stage is Stage.CLOSING else "handshake_timeout"
            self.end(client, late)
            return
        if client.heartbeat_at and client.heartbeat_at <= now:
            self.heartbeat(client, now)
        self.reschedule(client)

    def heartbeat(self, client: Client, now: float) -> None:
        """Send a heartbeat every half interval, and check for input in the last two intervals."""
        if client.stage is not Stage.RUNNING:
            client.heartbeat_at = 0.0
            return
        connection = client.connection
        if connection.paused & ~PAUSED_OUTPUT:
            client.heard = now  # reading was paused for reasons that are not the client's
        if now - max(client.heard, connection.active) > SILENT_INTERVALS * client.heartbeat:
            seconds = client.heartbeat
            text = f"missed heartbeats from client, timeout: {seconds}s"
            self.broker.count_error(client, ReplyCode.CONNECTION_FORCED, text)
            self.end(client, "heartbeat")
            return
        connection.append(HEARTBEAT)
        client.heartbeat_at = now + client.heartbeat / 2

"""Entry of AMQP 0.9.1 connections: the one handler that all connections of a shard share.

Frames go to the connection's client or to the channel; a resource alarm blocks every client that
has published, whether or not it announced the capability connection.blocked.

Source: AMQP 0-9-1 sections 2.2.4 and 4.2.2 (protocol header), RabbitMQ's blocked connection
notifications and resource alarms.
"""

from __future__ import annotations

from typing import Final

from fluxmq.protocols.amqp091.constants import PROTOCOL_HEADER, ReplyCode
from fluxmq.protocols.amqp091.errors import HardError
from fluxmq.protocols.amqp091.methods import BasicPublish, ConnectionBlocked, ConnectionUnblocked
from fluxmq.protocols.amqp091.run import AmqpPublishRun
from fluxmq.protocols.connection import Connection
from fluxmq.routing.topology.changes import DropOwner
from fluxmq.routing.topology.refusals import Refusal
from fluxmq.sessions.amqp091.channel import Channel
from fluxmq.sessions.amqp091.client import AmqpClient
from fluxmq.sessions.amqp091.deliveries import DeliveryHeads
from fluxmq.sessions.amqp091.handshake import AmqpStage, Handshake
from fluxmq.sessions.amqp091.ports import AmqpBrokerPort
from fluxmq.sessions.amqp091.refusals import precondition

ORPHANS_MAX: Final = 100_000
"""Ended owners of exclusive queues kept while no change is possible: one name each."""
BLOCKED: Final = "connection.blocked"


class AmqpConnectionHandler:
    """Events from parser, reactor and shard. ``blocked``: why publishing is, or empty."""

    def __init__(self, broker: AmqpBrokerPort) -> None:
        self.broker = broker
        self.marked: list[Channel] = []
        self.clients: dict[AmqpClient, None] = {}
        self.heads = DeliveryHeads()
        self.orphans: set[str] = set()
        self.blocked = ""

    # --- input from clients ---

    def protocol_header(self, connection: Connection, header: bytes) -> None:
        """Start, or answer with the supported protocol header and close (section 4.2.2)."""
        client: AmqpClient = connection.identity
        if header != PROTOCOL_HEADER:
            connection.append(PROTOCOL_HEADER)
            client.end("protocol_header", linger=True)
            return
        self.clients[client] = None
        Handshake(client).begin()

    def publish_run(self, connection: Connection, number: int, run: AmqpPublishRun) -> None:
        """Handle whole publishes on a channel, in the receive buffer."""
        client: AmqpClient = connection.identity
        channel = client.channels.get(number)
        if client.stage is AmqpStage.RUNNING and channel is not None and channel.is_open:
            channel.on_run(run)

    def frame(self, connection: Connection, kind: int, number: int, payload: bytes) -> None:
        """Handle a frame that the parser did not: no run, heartbeat or settled ack."""
        client: AmqpClient = connection.identity
        stage = client.stage
        if stage is AmqpStage.CLOSED:
            return
        if stage is AmqpStage.CLOSING:
            client.closing_frame(kind, number, payload)
        elif number == 0 or stage is not AmqpStage.RUNNING:
            client.frame(kind, number, payload)
        else:
            channel = client.channels.get(number)
            if channel is None or not channel.is_open:
                client.unopened_frame(number, kind, payload)
            else:
                channel.on_frame(kind, payload)

    def broken(self, connection: Connection, code: int, text: str) -> None:
        """Handle bytes that are no frame; the parser ignores everything after them."""
        client: AmqpClient = connection.identity
        if client.stage in (AmqpStage.CLOSING, AmqpStage.CLOSED):
            client.end("error")
            return
        client.fail(None, HardError(ReplyCode(code), text), None)
        # The start of the next frame is unknown: an answer could not be read.
        client.end("protocol_error", linger=True)

    def lost(self, connection: Connection) -> None:
        """Handle the loss of the network connection."""
        client: AmqpClient = connection.identity
        client.end("lost")

    def drained(self, connection: Connection) -> None:
        """Resume deliveries that waited for the output to be written."""
        client: AmqpClient = connection.identity
        connection.feeding = False
        for channel in list(client.channels.values()):
            channel.consumers.pump()

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
                channel.flush()

    # --- resource alarms ---

    def block(self, reason: str) -> None:
        """Stop reading publishers, and notify those with the capability, once."""
        self.blocked = reason
        for client in self.clients:
            if client.connection.publishing:
                self._stop(client)

    def began(self, client: AmqpClient) -> None:
        """Note a client's first publish."""
        client.connection.publishing = True
        if self.blocked:
            self._stop(client)

    def _stop(self, client: AmqpClient) -> None:
        if client.stage is not AmqpStage.RUNNING:
            return
        self.broker.hold_publisher(client.connection)
        if not client.blocked and BLOCKED in client.capabilities:
            client.send(ConnectionBlocked(self.blocked))
        client.blocked = True

    def unblock(self) -> None:
        """Notify the blocked publishers that the alarm is over; the shard resumes reading."""
        self.blocked = ""
        for client in self.clients:
            if client.blocked:
                client.blocked = False
                if client.stage is AmqpStage.RUNNING and BLOCKED in client.capabilities:
                    client.send(ConnectionUnblocked())

    def give_up(self) -> None:
        """Close the channels of blocked publishers that hold an incomplete message or an
        uncommitted transaction.

        Only the client could end these, and it is not read: an alarm that they cause would last for
        ever.
        """
        text = "memory is low: incomplete messages and uncommitted transactions are discarded"
        for client in list(self.clients):
            if client.blocked and client.budget.used:
                for channel in list(client.channels.values()):
                    if channel.incomplete_bytes():
                        self.broker.refused_for_memory("incomplete")
                        client.fail(channel, precondition(text), BasicPublish)

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

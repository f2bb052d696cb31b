"""AMQP 1.0 connections: from the parser's headers and frames to the handshake and to sessions.

Source: OASIS AMQP 1.0 part 2, sections 2.2 to 2.5.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from fluxmq.protocols.amqp10 import conditions
from fluxmq.protocols.amqp10.codec import MalformedError
from fluxmq.protocols.amqp10.conditions import ConnectionConditionError, malformed
from fluxmq.protocols.amqp10.frames import FRAME_SASL
from fluxmq.protocols.amqp10.parser import Amqp10Parser
from fluxmq.protocols.amqp10.performatives import BeginFrame, CloseFrame, EndFrame, OpenFrame, read
from fluxmq.protocols.amqp10.transfer_run import TransferRun
from fluxmq.protocols.amqp10.transfers import read_transfer
from fluxmq.protocols.connection import Connection
from fluxmq.routing.topology.records import QueueRecord
from fluxmq.sessions.amqp091.client import ResourceAlarm
from fluxmq.sessions.amqp091.connection_info import ConnectionInfo
from fluxmq.sessions.amqp091.delivery_tap import LinkTap
from fluxmq.sessions.amqp091.ports import AmqpBrokerPort
from fluxmq.sessions.amqp10.client import Amqp10Client, Amqp10Stage
from fluxmq.sessions.amqp10.handshake import Amqp10Handshake
from fluxmq.sessions.amqp10.management import QueuePlaces
from fluxmq.sessions.amqp10.sender_links import IncomingLink
from fluxmq.sessions.amqp10.session import Amqp10Session, SessionState

PROTOCOL: Final = "AMQP 1-0"
"""Name of the protocol in listings, in RabbitMQ's form."""
MEMORY_TEXT: Final = "memory is low: incomplete messages and transactions are discarded"
"""Why a session ends during an alarm."""


class Amqp10Connection:
    """A connection: its client, and its sessions by channel."""

    def __init__(
        self, handler: Amqp10ConnectionHandler, connection: Connection, info: ConnectionInfo
    ) -> None:
        self.handler = handler
        self.sessions: dict[int, Amqp10Session] = {}
        self.gathered: list[IncomingLink] = []
        info.protocol = PROTOCOL
        self.client = Amqp10Client(handler.broker, connection, info, handler.alarm, self._release)

    def frame(self, kind: int, channel: int, data: bytes) -> None:
        """Handle a frame. Raises ConnectionConditionError."""
        stage = self.client.stage
        if stage is Amqp10Stage.CLOSED:
            return
        if kind == FRAME_SASL:
            if not data:
                raise ConnectionConditionError(conditions.FRAMING_ERROR, "an empty SASL frame")
            body, _ = read(data)
            Amqp10Handshake(self.client).on_sasl(body)
            return
        if not data:
            return  # a heartbeat
        body, at = read_transfer(data) or read(data)
        if stage is Amqp10Stage.CLOSING:
            if isinstance(body, CloseFrame):
                self.client.end("error", linger=True)
        elif stage is Amqp10Stage.RUNNING:
            self._running(channel, body, data[at:])
        elif stage is Amqp10Stage.OPEN and isinstance(body, OpenFrame):
            Amqp10Handshake(self.client).on_open(body)
        else:
            raise ConnectionConditionError(conditions.ILLEGAL_STATE, "a frame before open")

    def transfers(self, run: TransferRun, index: int) -> int:
        """Take transfers of a run from ``index`` on; return how many."""
        session = self.sessions.get(run.channel)
        if session is None or self.client.stage is not Amqp10Stage.RUNNING:
            return 0
        return session.on_transfers(run, index)

    def accepted(self, channel: int, first: int, last: int) -> bool:
        """Settle accepted deliveries; return False if nothing may be settled now."""
        session = self.sessions.get(channel)
        if session is None or self.client.stage is not Amqp10Stage.RUNNING:
            return False
        return session.on_accepted(first, last)

    def _running(self, channel: int, body: Any, payload: bytes) -> None:
        if isinstance(body, CloseFrame):
            self.client.closed_by_client()
        elif isinstance(body, BeginFrame):
            self._begin(channel, body)
        else:
            session = self.sessions.get(channel)
            if session is None:
                text = f"a frame on channel {channel}, which has no session"
                raise ConnectionConditionError(conditions.NOT_ALLOWED, text)
            if isinstance(body, EndFrame):
                self._end(session)
            else:
                session.on_frame(body, payload)

    def _begin(self, channel: int, begin: BeginFrame) -> None:
        client = self.client
        most = client.info.channel_max
        if channel > most:
            text = f"channel {channel}, channel-max is {most}"
            raise ConnectionConditionError(conditions.FRAMING_ERROR, text)
        if channel in self.sessions:
            text = f"begin on channel {channel}, which has a session"
            raise ConnectionConditionError(conditions.ILLEGAL_STATE, text)
        if begin.remote_channel is not None:
            text = "a begin that answers none"
            raise ConnectionConditionError(conditions.ILLEGAL_STATE, text)
        limit = client.broker.user_limits.open_channel(client.info.user)
        if limit is not None:
            text = (
                f"number of sessions of user '{client.info.user}' has reached the limit of {limit}"
            )
            raise ConnectionConditionError(conditions.RESOURCE_LIMIT_EXCEEDED, text)
        session = Amqp10Session(client, channel, begin, self.handler.mark, self.gathered.append)
        self.sessions[channel] = session
        client.broker.events.channel_created(client.info, channel)

    def _end(self, session: Amqp10Session) -> None:
        """Handle end: answer it, unless it answers ours."""
        if session.state is SessionState.MAPPED:
            session.release()
            session.flush()
            self.client.send(session.channel, EndFrame())
        self._forget(session)

    def _forget(self, session: Amqp10Session) -> None:
        client = self.client
        session.state = SessionState.ENDED
        del self.sessions[session.channel]
        client.broker.user_limits.close_channel(client.info.user)
        client.broker.events.channel_closed(client.info, session.channel)

    def publish_gathered(self) -> None:
        """Publish the runs that links have gathered, and renew the links' credit."""
        gathered = self.gathered
        if gathered:
            links = list(dict.fromkeys(gathered))
            gathered.clear()
            for link in links:
                link.flush()
                link.session.published(link)

    def _release(self) -> None:
        """Release the sessions; delete exclusive queues; forget a client that has ended."""
        client, handler = self.client, self.handler
        self.publish_gathered()
        for session in list(self.sessions.values()):
            session.release()
            self._forget(session)
        if client.exclusive:
            client.exclusive = False
            handler.drop_owner(client.info.owner)
        if client.stage is Amqp10Stage.CLOSED:
            handler.clients.pop(client, None)


class Amqp10ConnectionHandler:
    """Events from parser, reactor and shard. ``drop_owner``: deletes a connection's exclusive
    queues. ``alarm``: of the shard. ``receive_bytes``: of the reactor's buffer. ``tap``: looks at
    deliveries, if there is one. ``places``: where a queue is; without it, on this node."""

    def __init__(
        self,
        broker: AmqpBrokerPort,
        alarm: ResourceAlarm,
        drop_owner: Callable[[str], None],
        receive_bytes: int,
    ) -> None:
        self.broker = broker
        self.alarm = alarm
        self.drop_owner = drop_owner
        self.parser = Amqp10Parser(receive_bytes)
        self.tap: LinkTap | None = None
        self.places: Callable[[QueueRecord], QueuePlaces] | None = None
        self.marked: list[Amqp10Session] = []
        self.clients: dict[Amqp10Client, Amqp10Connection] = {}

    # --- input from clients ---

    def process(self, connection: Connection, buffer: bytearray, end: int) -> None:
        """Handle the bytes in ``buffer[:end]``; the connection keeps incomplete ones."""
        self.parser.process(connection, buffer, end)

    def protocol_header(self, connection: Connection, header: bytes) -> None:
        """Handle a protocol header."""
        session: Amqp10Connection = connection.identity
        self.clients.setdefault(session.client, session)
        Amqp10Handshake(session.client).header(header)

    def frame(self, connection: Connection, kind: int, channel: int, body: bytes) -> None:
        """Handle a frame."""
        session: Amqp10Connection = connection.identity
        try:
            session.frame(kind, channel, body)
        except MalformedError as error:
            session.client.fail(malformed(str(error)))
        except ConnectionConditionError as error:
            session.client.fail(error)

    def transfers(self, connection: Connection, run: TransferRun, index: int) -> int:
        """Take transfers of a run from ``index`` on; return how many."""
        session: Amqp10Connection = connection.identity
        return session.transfers(run, index)

    def accepted(self, connection: Connection, channel: int, first: int, last: int) -> bool:
        """Settle accepted deliveries; return False to get the frames."""
        session: Amqp10Connection = connection.identity
        return session.accepted(channel, first, last)

    def processed(self, connection: Connection) -> None:
        """Publish what the frames of this read have brought."""
        session: Amqp10Connection = connection.identity
        session.publish_gathered()

    def broken(self, connection: Connection, text: str) -> None:
        """Handle bytes that are no frame; the parser ignores everything after them."""
        session: Amqp10Connection = connection.identity
        client = session.client
        if client.stage in (Amqp10Stage.CLOSING, Amqp10Stage.CLOSED):
            client.end("error")
            return
        client.fail(ConnectionConditionError(conditions.FRAMING_ERROR, text))
        # The start of the next frame is unknown: an answer could not be read.
        client.end("protocol_error", linger=True)

    def lost(self, connection: Connection) -> None:
        """Handle the loss of the network connection."""
        session: Amqp10Connection = connection.identity
        session.client.end("lost")

    def drained(self, connection: Connection) -> None:
        """Resume deliveries that waited for the output to be written."""
        connection.feeding = False
        session: Amqp10Connection = connection.identity
        for each in list(session.sessions.values()):
            each.pump()

    def due(self, connection: Connection) -> None:
        """Handle a deadline that the connection has scheduled."""
        session: Amqp10Connection = connection.identity
        session.client.due()

    # --- flushed once per tick ---

    def mark(self, session: Amqp10Session) -> None:
        """Schedule the session to be flushed."""
        self.marked.append(session)
        if len(self.marked) == 1:
            self.broker.mark()

    def flush_marked(self) -> None:
        """Send the outcomes of publishes. Called before groups gather their tick."""
        marked, self.marked = self.marked, []
        for session in dict.fromkeys(marked):
            if session.client.running:
                session.flush()

    # --- resource alarms ---

    def block(self) -> None:
        """Stop reading publishers."""
        for client in self.clients:
            if client.connection.publishing:
                client.block()

    def unblock(self) -> None:
        """Let everyone publish again."""
        for client in self.clients:
            client.unblock()

    def give_up(self) -> None:
        """End the sessions of blocked publishers that hold an incomplete message, or a transaction
        that is not discharged: only the client could end these, and it is not read."""
        for client, connection in list(self.clients.items()):
            if client.blocked and client.budget.used:
                for session in list(connection.sessions.values()):
                    if session.incomplete_bytes:
                        self.broker.refused_for_memory("incomplete")
                        session.fail(
                            ConnectionConditionError(
                                conditions.RESOURCE_LIMIT_EXCEEDED, MEMORY_TEXT
                            )
                        )

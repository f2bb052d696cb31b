"""The client of one AMQP 0.9.1 connection: its output, its errors, its heartbeat and its end.

The parts of a connection (handshake, channels and what they execute) share it. Lives in one shard
and is accessed only there.

Source: AMQP 0-9-1 sections 1.4.2 (connection) and 4.2.7 (heartbeats), RabbitMQ's blocked connection
notifications.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Final

from fluxmq.net.reactor import PAUSED_OUTPUT
from fluxmq.protocols.amqp091.constants import HEARTBEAT, ReplyCode
from fluxmq.protocols.amqp091.errors import AmqpError, HardError
from fluxmq.protocols.amqp091.method_codec import frame, ids
from fluxmq.protocols.amqp091.methods import (
    ConnectionBlocked,
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionUnblocked,
    Method,
)
from fluxmq.protocols.connection import Connection
from fluxmq.sessions.amqp091.access import Access
from fluxmq.sessions.amqp091.budget import Budget
from fluxmq.sessions.amqp091.connection_info import ConnectionInfo
from fluxmq.sessions.amqp091.ports import AmqpBrokerPort
from fluxmq.sessions.amqp091.refusals import close_text

BLOCKED: Final = "connection.blocked"
SILENT_INTERVALS: Final = 2
"""Heartbeat intervals of silence after which a client is considered dead (section 4.2.7)."""


class AmqpStage(Enum):
    """Progress of a connection: the awaited method, or open, closing, closed."""

    HEADER = 0
    START_OK = 1
    SECURE_OK = 2
    AUTHENTICATING = 3
    TUNE_OK = 4
    OPEN = 5
    RUNNING = 6
    CLOSING = 7
    CLOSED = 8


class ResourceAlarm:
    """The shard's resource alarm. ``reason``: why nobody may publish, empty when all may."""

    def __init__(self) -> None:
        self.reason = ""


class AmqpClient:
    """The client of one connection.

    ``on_release``: called when it closes or ends, to release its channels and exclusive queues.
    ``blocked``: it was told not to publish. ``held``: reasons not to read it. ``exclusive``: it has
    declared exclusive queues. ``budget``: for its
    channels' incomplete messages and uncommitted transactions; ``backlog_bytes``: in their
    backlogs. Times are monotonic seconds: ``deadline`` of the handshake or of the answer to
    connection.close, ``heartbeat_at`` of the next heartbeat, ``heard``: earliest start of the
    present silence.
    """

    __deletable__ = ("on_release",)

    def __init__(
        self,
        broker: AmqpBrokerPort,
        connection: Connection,
        info: ConnectionInfo,
        alarm: ResourceAlarm,
        on_release: Callable[[], None],
    ) -> None:
        self.broker = broker
        self.connection = connection
        self.info = info
        self.alarm = alarm
        self.on_release = on_release
        self.stage = AmqpStage.HEADER
        self.access = Access(broker, "", "")
        self.heartbeat_at = 0.0
        self.deadline = 0.0
        self.heard = 0.0
        self.blocked = False
        self.budget = Budget()
        self.backlog_bytes = 0
        self.held = 0
        self.exclusive = False

    def send(self, method: Method) -> None:
        """Send a method on channel 0."""
        self.connection.append(frame(0, method))

    # --- errors and ends ---

    def count_error(self, error: AmqpError, method: Method | type[Method] | None) -> bool:
        """Count an error, caused by ``method``; return whether it is to be answered: not once the
        connection closes."""
        if self.stage in (AmqpStage.CLOSING, AmqpStage.CLOSED):
            return False
        if method is not None and not error.class_id:
            error.class_id, error.method_id = ids(method)
        self.broker.count_error(self.info, error.code, error.text)
        return True

    def fail(self, error: AmqpError, method: Method | type[Method] | None) -> None:
        """Answer an error by closing the connection."""
        if not self.count_error(error, method):
            return
        if self.stage in (AmqpStage.OPEN, AmqpStage.RUNNING):
            self.send_close(error)
        else:
            self.end("handshake")

    def send_close(self, error: AmqpError) -> None:
        """Close from our side: release everything, send the reason, and await the answer."""
        self.stage = AmqpStage.CLOSING
        self.on_release()
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
        self.on_release()
        self.send(ConnectionCloseOk())
        self.end("client", linger=True)

    def end(self, reason: str, linger: bool = False) -> None:
        """End the connection."""
        if self.stage is AmqpStage.CLOSED:
            return
        self.stage = AmqpStage.CLOSED
        self.on_release()
        # It refers back to the client, and the garbage collector does not run during traffic.
        del self.on_release
        self.held = 0
        self.connection.feeding = False
        self.broker.count_closed(self.info, reason)
        self.broker.close(self.connection, linger)

    # --- resource alarms ---

    def began(self) -> None:
        """Note the client's first publish."""
        self.connection.publishing = True
        if self.alarm.reason:
            self.block()

    def block(self) -> None:
        """Stop reading a publisher during an alarm; notify it once, if it has the capability."""
        if self.stage is not AmqpStage.RUNNING:
            return
        self.broker.hold_publisher(self.connection)
        if not self.blocked and BLOCKED in self.info.capabilities:
            self.send(ConnectionBlocked(self.alarm.reason))
        self.blocked = True

    def unblock(self) -> None:
        """Notify a blocked publisher that the alarm is over; the shard resumes reading."""
        if self.blocked:
            self.blocked = False
            if self.stage is AmqpStage.RUNNING and BLOCKED in self.info.capabilities:
                self.send(ConnectionUnblocked())

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
        login = self.access.login
        ends_at = 0.0 if login is None else login.expires_at
        times = [at for at in (self.deadline, self.heartbeat_at, ends_at) if at]
        if self.stage is not AmqpStage.CLOSED and times:
            self.broker.schedule(self.connection, min(times))

    def due(self) -> None:
        """Handle a scheduled deadline."""
        now = self.broker.now()
        if self.stage is AmqpStage.CLOSED:
            return
        if self.deadline and self.deadline <= now:
            self.end("close_timeout" if self.stage is AmqpStage.CLOSING else "handshake_timeout")
            return
        login = self.access.login
        if login is not None and login.expires_at and login.expires_at <= now:
            login.expires_at = 0.0  # seen once
            text = f"the credentials of user '{self.info.user}' have expired"
            self.broker.count_error(self.info, ReplyCode.CONNECTION_FORCED, text)
            self.disconnect(text)
        if self.heartbeat_at and self.heartbeat_at <= now:
            self._heartbeat(now)
        self.reschedule()

    def _heartbeat(self, now: float) -> None:
        """Send a heartbeat every half interval, and check for input in the last two intervals."""
        if self.stage is not AmqpStage.RUNNING:
            self.heartbeat_at = 0.0
            return
        connection, interval = self.connection, self.info.heartbeat
        if connection.paused & ~PAUSED_OUTPUT:
            self.heard = now  # reading was paused for reasons that are not the client's
        if now - max(self.heard, connection.active) > SILENT_INTERVALS * interval:
            text = f"missed heartbeats from client, timeout: {interval}s"
            self.broker.count_error(self.info, ReplyCode.CONNECTION_FORCED, text)
            self.end("heartbeat")
            return
        connection.append(HEARTBEAT)
        self.heartbeat_at = now + interval / 2

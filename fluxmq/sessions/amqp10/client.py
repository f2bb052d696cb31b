"""The client of one AMQP 1.0 connection: its output, its errors, its heartbeat and its end.

The parts of a connection (handshake, sessions and their links) share it. Lives in one shard and is
accessed only there.

Source: OASIS AMQP 1.0 part 2, sections 2.4 (connections) and 2.4.5 (idle time-out).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Final

from fluxmq.auth.remote_rights import UndecidedError
from fluxmq.net.reactor import PAUSED_OUTPUT
from fluxmq.protocols.amqp091.constants import ReplyCode
from fluxmq.protocols.amqp10 import conditions
from fluxmq.protocols.amqp10.conditions import ConditionError
from fluxmq.protocols.amqp10.frames import EMPTY_FRAME, FRAME_BYTES_MIN, frame
from fluxmq.protocols.amqp10.performatives import CloseFrame, ErrorCondition
from fluxmq.protocols.amqp10.types import Symbol
from fluxmq.protocols.connection import Connection
from fluxmq.sessions.amqp091.access import Access
from fluxmq.sessions.amqp091.budget import Budget
from fluxmq.sessions.amqp091.client import ResourceAlarm
from fluxmq.sessions.amqp091.connection_info import ConnectionInfo
from fluxmq.sessions.amqp091.ports import AmqpBrokerPort

SILENT_INTERVALS: Final = 2
"""Announced idle time-outs of silence after which a client is considered dead: half is announced
(2.4.5)."""

_CODES: Final[dict[Symbol, ReplyCode]] = {
    conditions.NOT_FOUND: ReplyCode.NOT_FOUND,
    conditions.UNAUTHORIZED_ACCESS: ReplyCode.ACCESS_REFUSED,
    conditions.DECODE_ERROR: ReplyCode.SYNTAX_ERROR,
    conditions.RESOURCE_LIMIT_EXCEEDED: ReplyCode.RESOURCE_ERROR,
    conditions.NOT_ALLOWED: ReplyCode.NOT_ALLOWED,
    conditions.INVALID_FIELD: ReplyCode.COMMAND_INVALID,
    conditions.NOT_IMPLEMENTED: ReplyCode.NOT_IMPLEMENTED,
    conditions.RESOURCE_LOCKED: ReplyCode.RESOURCE_LOCKED,
    conditions.PRECONDITION_FAILED: ReplyCode.PRECONDITION_FAILED,
    conditions.INTERNAL_ERROR: ReplyCode.INTERNAL_ERROR,
    conditions.CONNECTION_FORCED: ReplyCode.CONNECTION_FORCED,
    conditions.FRAMING_ERROR: ReplyCode.FRAME_ERROR,
}
"""Codes by which errors of both versions are counted together; others count as 504."""


class Amqp10Stage(Enum):
    """Progress of a connection: the awaited header or frame, or running, closing, closed."""

    HEADER = 0
    SASL_INIT = 1
    AUTHENTICATING = 2
    AMQP_HEADER = 3
    OPEN = 4
    RUNNING = 5
    CLOSING = 6
    CLOSED = 7


class EmptyFrames:
    """Frames without body that show a client that we are alive: ``interval`` seconds between them, 0
    for none; ``at``: monotonic seconds of the next."""

    __slots__ = ("at", "interval")

    def __init__(self) -> None:
        self.at = 0.0
        self.interval = 0.0

    def begin(self, interval: float, now: float) -> None:
        """Send one in every interval from now on."""
        self.interval = interval
        self.at = now + interval


class Amqp10Client:
    """The client of one connection.

    ``on_release``: called when it closes or ends, to release its sessions. ``blocked``: it is not
    read while an alarm lasts. ``held``: reasons not to read it. ``budget``: for incomplete messages.
    ``frame_max``: largest frame that the client takes. ``exclusive``: it has declared exclusive
    queues. Times are monotonic seconds: ``deadline`` of
    the handshake or of the answer to close, ``heard``: earliest start of the present silence.
    """

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
        self.on_release: Callable[[], None] | None = on_release
        self.stage = Amqp10Stage.HEADER
        self.access = Access(broker, "", "")
        self.empty_frames = EmptyFrames()
        self.deadline = 0.0
        self.heard = 0.0
        self.blocked = False
        self.budget = Budget()
        self.held = 0
        self.frame_max = FRAME_BYTES_MIN
        self.exclusive = False

    @property
    def running(self) -> bool:
        """True between open and close."""
        return self.stage is Amqp10Stage.RUNNING

    @property
    def state(self) -> str:
        """The connection's state, in RabbitMQ's words."""
        if self.stage is not Amqp10Stage.RUNNING:
            return (
                "closing" if self.stage in (Amqp10Stage.CLOSING, Amqp10Stage.CLOSED) else "starting"
            )
        if self.blocked:
            return "blocked"
        return "flow" if self.connection.paused else "running"

    def send(self, channel: int, performative: object) -> None:
        """Send a frame without payload."""
        self.connection.append(frame(channel, performative))

    # --- errors and ends ---

    def count_error(self, error: ConditionError) -> None:
        """Count and log an error of the client."""
        code = _CODES.get(error.condition, ReplyCode.CHANNEL_ERROR)
        self.broker.count_error(self.info, code, str(error))

    def fail(self, error: ConditionError) -> None:
        """Answer an error by closing the connection."""
        if self.stage in (Amqp10Stage.CLOSING, Amqp10Stage.CLOSED):
            return
        self.count_error(error)
        if self.stage in (Amqp10Stage.OPEN, Amqp10Stage.RUNNING):
            self.send_close(error.condition, error.text)
        else:
            self.end("handshake", linger=True)

    def send_close(self, condition: Symbol, text: str) -> None:
        """Close from our side: release everything, send the reason, and await the answer."""
        self.stage = Amqp10Stage.CLOSING
        self._release()
        self.send(0, CloseFrame(ErrorCondition(condition, text)))
        self.deadline = self.broker.now() + self.broker.limits.close_timeout
        self.reschedule()
        self.broker.release_publisher(self.connection)
        if self.held:
            self.held = 0
            self.broker.resume(self.connection)

    def disconnect(self, text: str) -> None:
        """Close for an operator or the node's shutdown."""
        if self.stage is Amqp10Stage.RUNNING:
            self.send_close(conditions.CONNECTION_FORCED, text)
        elif self.stage is not Amqp10Stage.CLOSING:
            self.end("forced")

    def closed_by_client(self) -> None:
        """Handle close."""
        self._release()
        self.send(0, CloseFrame())
        self.end("client", linger=True)

    def end(self, reason: str, linger: bool = False) -> None:
        """End the connection."""
        if self.stage is Amqp10Stage.CLOSED:
            return
        self.stage = Amqp10Stage.CLOSED
        self._release()
        # It refers back to the client, and the garbage collector does not run during traffic.
        self.on_release = None
        self.held = 0
        self.connection.feeding = False
        self.broker.count_closed(self.info, reason)
        self.broker.close(self.connection, linger)

    def _release(self) -> None:
        if self.on_release is not None:
            self.on_release()

    # --- resource alarms ---

    def began(self) -> None:
        """Note the client's first publish."""
        self.connection.publishing = True
        if self.alarm.reason:
            self.block()

    def block(self) -> None:
        """Stop reading a publisher during an alarm."""
        if self.stage is Amqp10Stage.RUNNING:
            self.broker.hold_publisher(self.connection)
            self.blocked = True

    def unblock(self) -> None:
        """Note that the alarm is over; the shard resumes reading."""
        self.blocked = False

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

    def wait(self, undecided: UndecidedError, retry: Callable[[], None]) -> None:
        """Have a permission decided, then try again. The connection is not read meanwhile."""

        def decided() -> None:
            if self.stage is Amqp10Stage.RUNNING:
                retry()
                self.connection.handler.processed(self.connection)
                self.resume()

        self.pause()
        undecided.ask(decided)

    def reschedule(self) -> None:
        """Schedule a call for the next deadline."""
        login = self.access.login
        ends_at = 0.0 if login is None else login.expires_at
        times = [at for at in (self.deadline, self._next(), ends_at) if at]
        if self.stage is not Amqp10Stage.CLOSED and times:
            self.broker.schedule(self.connection, min(times))

    def _next(self) -> float:
        """Return when to send an empty frame, or to look for input; 0 for never."""
        silent = 0.0
        if self.info.heartbeat and self.stage is Amqp10Stage.RUNNING:
            silent = self._silent_at()
        if self.empty_frames.at and silent:
            return min(self.empty_frames.at, silent)
        return self.empty_frames.at or silent

    def _silent_at(self) -> float:
        """Return when the client's silence has lasted too long."""
        since = max(self.heard, self.connection.active)
        return since + SILENT_INTERVALS * self.info.heartbeat

    def due(self) -> None:
        """Handle a scheduled deadline."""
        now = self.broker.now()
        if self.stage is Amqp10Stage.CLOSED:
            return
        if self.deadline and self.deadline <= now:
            closing = self.stage is Amqp10Stage.CLOSING
            self.end("close_timeout" if closing else "handshake_timeout")
            return
        login = self.access.login
        if login is not None and login.expires_at and login.expires_at <= now:
            login.expires_at = 0.0  # seen once
            text = f"the credentials of user '{self.info.user}' have expired"
            self.broker.count_error(self.info, ReplyCode.CONNECTION_FORCED, text)
            self.disconnect(text)
        if self.stage is Amqp10Stage.RUNNING:
            self._check_silence(now)
        if self.empty_frames.at and self.empty_frames.at <= now:
            self.empty_frames.at = 0.0
            if self.stage is Amqp10Stage.RUNNING:
                self.connection.append(EMPTY_FRAME)
                self.empty_frames.at = now + self.empty_frames.interval
        self.reschedule()

    def _check_silence(self, now: float) -> None:
        """End a connection whose client has been silent for too long."""
        if not self.info.heartbeat:
            return
        if self.connection.paused & ~PAUSED_OUTPUT:
            self.heard = now  # reading was paused for reasons that are not the client's
        if self._silent_at() <= now:
            text = f"no frame from the client within {SILENT_INTERVALS * self.info.heartbeat} s"
            self.broker.count_error(self.info, ReplyCode.CONNECTION_FORCED, text)
            self.end("heartbeat")

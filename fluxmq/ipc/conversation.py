"""One connection to the control process, as seen by a shard or the acceptor: no socket, no clock.

Bytes received go in, bytes to send come out, and the process's own functions are called in between.
The adapters (`client` for asyncio, `polling_client` for an epoll loop) only move bytes. A process
answers from its state at that moment; nothing waits here, so control can never stall a shard by
asking.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from fluxmq.ipc.control_frames import FrameDecoder, encode_frame
from fluxmq.ipc.messages import (
    COLLECT,
    ERROR,
    ERROR_AWAY,
    ERROR_UNKNOWN_KIND,
    HELLO,
    ID_MAX,
    REPLY,
    STATUS,
    USERS,
    Body,
    ControlMessage,
    Failure,
    MessageError,
    ProcessHello,
    ProcessNumbers,
    Report,
    error,
    reply,
)
from fluxmq.ipc.user_messages import Confirmed, Users
from fluxmq.metrics.registry import Sample
from fluxmq.model.errors import FluxmqError

# Waits between attempts to connect, in seconds. The control process is usually back within half of
# one, and at a node's start clients wait for it; an attempt takes some 20 µs.
BACK_OFF_FIRST: Final = 0.02
BACK_OFF_MAX: Final = 1.0
# Attempts with the first wait; from then on it doubles.
EARLY_ATTEMPTS: Final = 25
# At a node's start all processes come up at once; only from this attempt on (after about 1.8 s) is
# an absent control process worth a log line.
REPORTED_ATTEMPT: Final = 31

REQUESTS_MAX: Final = 40
"""Own unanswered requests: half of what control takes from one process."""

_HELLO_ID: Final = 1


Answered = Callable[[Body | Failure], None]
"""Called once: with the answer to a command, at once or later (dropped if its connection has
ended); or with the answer to a request of this process, a failure with code ``away`` when the
connection ended first."""

RequestHandler = Callable[[Body, Answered], None]
"""A command from control that may take time. Raises MessageError for a malformed body."""


class RefusedError(FluxmqError):
    """The control process refused this peer; the text gives the reason (other version, foreign
    user)."""


@dataclass(frozen=True, slots=True)
class Handlers:
    """This process's answers to control.

    `users` takes a new snapshot (called only when its revision is newer than the last one taken);
    `collect` returns all samples; `status` the numbers for `fluxmqctl status`. They run on the
    process's own loop and must not block. `users` is None for processes that authenticate nobody.
    `commands`, by kind of message, may be answered later. `established` is called each time control
    answered hello: from then on requests may be made.
    """

    collect: Callable[[], Iterable[Sample]]
    status: Callable[[], ProcessNumbers]
    users: Callable[[Users], None] | None = None
    commands: Mapping[str, RequestHandler] = field(default_factory=dict)
    established: Callable[[], None] | None = None


def back_off(attempt: int) -> float:
    """Return the wait in seconds before attempt number `attempt` (the first is 1)."""
    doublings = min(max(attempt - EARLY_ATTEMPTS, 0), 16)
    return min(BACK_OFF_MAX, BACK_OFF_FIRST * 2.0**doublings)


class Conversation:
    """State of this process towards control; outlives connections, one at a time.

    `users_revision` is that of the last snapshot taken, -1 before the first. A reconnect says hello
    again and gets the snapshot again; a revision already held is confirmed without another call.
    """

    __slots__ = (
        "_connection",
        "_decoder",
        "_handlers",
        "_hello",
        "_last_id",
        "_requests",
        "established",
        "send",
        "users_revision",
    )

    def __init__(self, hello: ProcessHello, handlers: Handlers) -> None:
        self._hello = hello
        self._handlers = handlers
        self._decoder = FrameDecoder()
        self._connection = 0
        self._last_id = _HELLO_ID
        self._requests: dict[int, Answered] = {}
        self.established = False
        self.users_revision = -1
        self.send: Callable[[bytes], None] | None = None
        """Sends a late answer or a request; set by the adapter of a process that takes commands or
        makes requests."""

    def connected(self) -> bytes:
        """Start a connection; return the first bytes to send."""
        self._decoder = FrameDecoder()
        self._connection += 1
        self.established = False
        return encode_frame(ControlMessage(HELLO, _HELLO_ID, self._hello.to_body()).to_wire())

    def disconnected(self) -> None:
        """Note that the connection is gone; fail the pending requests."""
        self._connection += 1
        self.established = False
        waiting, self._requests = self._requests, {}
        for answered in waiting.values():
            answered(Failure(ERROR_AWAY, "the connection to the control process ended"))

    def request(self, kind: str, body: Body, answered: Answered) -> bool:
        """Send a request to control; return whether it was sent.

        It is not while there is no connection, or `REQUESTS_MAX` others are pending; then
        `answered` is not called. Raises FramingError for a body that is too large.
        """
        if not self.established or self.send is None or len(self._requests) >= REQUESTS_MAX:
            return False
        message_id = self._last_id % ID_MAX + 1
        while message_id == _HELLO_ID or message_id in self._requests:
            message_id = message_id % ID_MAX + 1
        frame = encode_frame(ControlMessage(kind, message_id, body).to_wire())
        self._last_id = message_id
        self._requests[message_id] = answered
        self.send(frame)
        return True

    def receive(self, data: bytes | bytearray | memoryview) -> bytes:
        """Take bytes from control and return the answers.

        Raises FramingError or MessageError when the peer does not speak this protocol, RefusedError
        when it refused hello; in each case the caller must close the connection.
        """
        answers = [
            self._answer(ControlMessage.from_wire(value)) for value in self._decoder.feed(data)
        ]
        return b"".join(encode_frame(answer.to_wire()) for answer in answers if answer is not None)

    def _answer(self, message: ControlMessage) -> ControlMessage | None:
        if message.kind == REPLY:
            self._replied(message)
            return None
        if message.kind == ERROR:
            failure = Failure.from_body(message.body)
            answered = self._requests.pop(message.id, None)
            if answered is None:
                raise RefusedError(f"{failure.code}: {failure.text}")
            answered(failure)
            return None
        if message.kind == COLLECT:
            return reply(message, Report(tuple(self._handlers.collect())).to_body())
        if message.kind == STATUS:
            return reply(message, self._handlers.status().to_body())
        if message.kind == USERS and self._handlers.users is not None:
            return self._take_users(message, self._handlers.users)
        handler = self._handlers.commands.get(message.kind)
        if handler is not None:
            return self._obey(message, handler)
        return error(message.id, ERROR_UNKNOWN_KIND, f"{message.kind} is not supported here")

    def _replied(self, message: ControlMessage) -> None:
        if message.id != _HELLO_ID:
            answered = self._requests.pop(message.id, None)
            if answered is not None:
                answered(message.body)
        elif not self.established:
            self.established = True
            if self._handlers.established is not None:
                self._handlers.established()

    def _obey(self, message: ControlMessage, handler: RequestHandler) -> ControlMessage | None:
        connection = self._connection

        def answered(answer: Body | Failure) -> None:
            if self._connection != connection or self.send is None:
                return
            if isinstance(answer, Failure):
                refusal = error(message.id, answer.code, answer.text)
                self.send(encode_frame(refusal.to_wire()))
            else:
                self.send(encode_frame(reply(message, answer).to_wire()))

        try:
            handler(message.body, answered)
        except MessageError as problem:
            return error(message.id, problem.code, str(problem))
        return None

    def _take_users(self, message: ControlMessage, take: Callable[[Users], None]) -> ControlMessage:
        try:
            users = Users.from_body(message.body)
        except MessageError as problem:
            # The last good snapshot stays in force; control reports the shard as unconfirmed.
            return error(message.id, problem.code, str(problem))
        if users.revision > self.users_revision:
            take(users)
            self.users_revision = users.revision
        return reply(message, Confirmed(self.users_revision).to_body())

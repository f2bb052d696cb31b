"""Control's side of the control socket: connections of shards, the acceptor and fluxmqctl.

Responsible for framing, for identifying callers, for matching answers to questions, and for
bounding what a peer can make this process hold. The `Service` interprets requests. A peer that is
silent, slow or wrong costs its own connection and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar, cast

from fluxmq.ipc import unix_socket
from fluxmq.ipc.control_frames import FRAME_BYTES_MAX, FrameDecoder, FramingError, encode_frame
from fluxmq.ipc.messages import (
    ERROR,
    ERROR_FAILED,
    ERROR_MALFORMED,
    ERROR_VERSION,
    HELLO,
    ID_MAX,
    REPLY,
    Body,
    ControlMessage,
    Failure,
    MessageBody,
    MessageError,
    ProcessHello,
    VersionMismatchError,
    error,
    reply,
)
from fluxmq.ipc.topology_messages import FROM_NOTHING
from fluxmq.logs import RateLimited, get_logger
from fluxmq.model.errors import FluxmqError

# 256 shards, the acceptor, and people; more connections are closed at once.
CONNECTIONS_MAX: Final = 512
# Unanswered requests of one peer; fluxmqctl sends one at a time.
REQUESTS_MAX: Final = 80
# Two snapshots of users: a peer that lets more pile up does not read.
OUTPUT_BYTES_MAX: Final = 2 * FRAME_BYTES_MAX
# Own open questions to one peer.
QUESTIONS_MAX: Final = 64

_log = get_logger(__name__)


class PeerError(FluxmqError):
    """A peer did not answer a question: it is gone, refused, or sent a wrong answer."""


class AnsweredError(PeerError):
    """A peer answered a question with a failure."""

    def __init__(self, peer: str, failure: Failure) -> None:
        super().__init__(f"{peer} answered {failure.code}: {failure.text}")
        self.failure = failure


@dataclass(frozen=True, slots=True)
class Service:
    """Request handler of the control process.

    `answer` returns the body for a request, or raises `RequestError` or MessageError; `greeted` is
    called when a process has said hello, `gone` when such a connection ended.
    """

    answer: Callable[[ControlMessage], Awaitable[Body]]
    greeted: Callable[[Peer], None]
    gone: Callable[[Peer], None]


class RequestError(Exception):
    """A request is refused; `code` is one of `ipc.messages.ERROR_*`."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class Peer(asyncio.Protocol):
    """One connection on the control socket.

    `hello` is None until the peer has introduced itself (fluxmqctl never does). `users_revision`
    and `topology_revision` are the last revisions it confirmed. Invariant: at most `QUESTIONS_MAX`
    open questions, at most `REQUESTS_MAX` unanswered requests.
    """

    def __init__(self, listener: ControlListener) -> None:
        self._listener = listener
        self._decoder = FrameDecoder()
        self._transport: asyncio.Transport | None = None
        self._questions: dict[int, asyncio.Future[ControlMessage]] = {}
        self._requests: set[asyncio.Task[None]] = set()
        self._last_id = 0
        self.hello: ProcessHello | None = None
        self.users_revision = -1
        self.topology_revision = FROM_NOTHING

    @property
    def name(self) -> str:
        """Name of the peer in logs: its role and index once it has said hello."""
        if self.hello is None:
            return "a caller"
        role = self.hello.role
        return f"{role}-{self.hello.index}" if role == "shard" else role

    async def ask(self, kind: str, body: Body, seconds: float) -> Body:
        """Send a question and return the body of its answer.

        Raises PeerError when the peer is gone, AnsweredError when it refuses, TimeoutError after
        `seconds`.
        """
        if self._transport is None or self._transport.is_closing():
            raise PeerError(f"{self.name} is gone")
        if len(self._questions) >= QUESTIONS_MAX:
            raise PeerError(f"{self.name} has {QUESTIONS_MAX} open questions")
        self._last_id = self._last_id % ID_MAX + 1
        message_id = self._last_id
        future: asyncio.Future[ControlMessage] = asyncio.get_running_loop().create_future()
        self._questions[message_id] = future
        try:
            self._send(ControlMessage(kind, message_id, body))
            async with asyncio.timeout(seconds):
                answer = await future
        finally:
            self._questions.pop(message_id, None)
        if answer.kind == ERROR:
            raise AnsweredError(self.name, Failure.from_body(answer.body))
        return answer.body

    def abort(self) -> None:
        """End the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not derive from asyncio's.
        self._transport = transport = cast(asyncio.Transport, transport)
        refusal = self._listener.admit(self, transport.get_extra_info("socket"))
        if refusal is not None:
            self._listener.log.event(
                logging.WARNING, "refused", "control connection refused: %s", refusal
            )
            transport.abort()

    def data_received(self, data: bytes) -> None:
        try:
            for value in self._decoder.feed(data):
                self._receive(ControlMessage.from_wire(value))
        except VersionMismatchError as problem:
            # Sent before closing, so that the peer's log gives the reason.
            self._send(error(problem.id, ERROR_VERSION, str(problem)))
            self._end(str(problem))
        except (FramingError, MessageError) as problem:
            self._send(error(0, ERROR_MALFORMED, str(problem)))
            self._end(str(problem))

    def connection_lost(self, exc: Exception | None) -> None:
        for future in self._questions.values():
            if not future.done():
                future.set_exception(PeerError(f"{self.name} is gone"))
        for task in self._requests:
            task.cancel()
        self._listener.dismiss(self)

    def _receive(self, message: ControlMessage) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if message.kind in (REPLY, ERROR):
            future = self._questions.get(message.id)
            if future is not None and not future.done():
                future.set_result(message)
            return
        if message.kind == HELLO:
            self._greet(message)
            return
        if len(self._requests) >= REQUESTS_MAX:
            raise MessageError(f"more than {REQUESTS_MAX} requests at once")
        task = asyncio.get_running_loop().create_task(self._serve(message))
        self._requests.add(task)
        task.add_done_callback(self._requests.discard)

    def _greet(self, message: ControlMessage) -> None:
        if self.hello is not None:
            raise MessageError("duplicate hello")
        self.hello = ProcessHello.from_body(message.body)
        self._send(reply(message, {}))
        self._listener.service.greeted(self)

    async def _serve(self, message: ControlMessage) -> None:
        """Answer one request; outermost frame of its task."""
        try:
            answer = reply(message, await self._listener.service.answer(message))
        except (RequestError, MessageError) as problem:
            answer = error(message.id, problem.code, str(problem))
        except Exception:  # noqa: BLE001 - a task's outermost frame
            # Our fault or the disk's, not the caller's; it gets an answer all the same.
            _log.exception("request failed", extra={"kind": message.kind})
            answer = error(message.id, ERROR_FAILED, "the control process failed; see its log")
        try:
            self._send(answer)
        except FramingError as problem:
            self._send(error(message.id, ERROR_FAILED, str(problem)))

    def _send(self, message: ControlMessage) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        transport.write(encode_frame(message.to_wire()))
        if transport.get_write_buffer_size() > OUTPUT_BYTES_MAX:
            self._listener.log.event(
                logging.WARNING,
                "output",
                "closing the connection of %s: it does not read",
                self.name,
            )
            transport.abort()

    def _end(self, reason: str) -> None:
        self._listener.log.event(
            logging.WARNING, "protocol", "%s: connection ended: %s", self.name, reason
        )
        if self._transport is not None:
            self._transport.close()


AnswerBody = TypeVar("AnswerBody", bound=MessageBody)


async def answers_of(
    peers: Sequence[Peer], kind: str, body: Body, seconds: float, answer: type[AnswerBody]
) -> list[AnswerBody | None]:
    """Ask peers at once and return their answers in order; None for one that gives none in time, or
    a malformed one."""

    async def asked(peer: Peer) -> AnswerBody | None:
        try:
            return answer.from_body(await peer.ask(kind, body, seconds))
        except (PeerError, MessageError, TimeoutError):
            return None

    return await asyncio.gather(*map(asked, peers))


async def forwarded(peer: Peer, kind: str, body: Body, seconds: float) -> Body:
    """Have a peer answer a request that came to this process. Raises RequestError."""
    try:
        return await peer.ask(kind, body, seconds)
    except AnsweredError as refusal:
        raise RequestError(refusal.failure.code, refusal.failure.text) from refusal
    except PeerError as problem:
        raise RequestError(ERROR_FAILED, str(problem)) from problem
    except TimeoutError:
        raise RequestError(ERROR_FAILED, f"{peer.name} did not answer in time") from None


class ControlListener:
    """All connections of the control socket. Lives on control's loop."""

    def __init__(self, service: Service, user: int, connections_max: int = CONNECTIONS_MAX) -> None:
        """Admit processes of user id `user` (and root), at most `connections_max` at once."""
        self.service = service
        self.log = RateLimited(_log, per_second=1.0, burst=10)
        self._user = user
        self._connections_max = connections_max
        self._peers: set[Peer] = set()
        self._server: asyncio.AbstractServer | None = None

    @property
    def processes(self) -> list[Peer]:
        """Peers that have said hello."""
        return [peer for peer in self._peers if peer.hello is not None]

    async def start(self, listening: socket.socket) -> None:
        """Listen on a bound socket."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(lambda: Peer(self), sock=listening)

    async def stop(self) -> None:
        """Stop listening and end every connection."""
        if self._server is not None:
            self._server.close()
        for peer in list(self._peers):
            peer.abort()

    def admit(self, peer: Peer, connection: socket.socket) -> str | None:
        """Admit a new connection, or return why not."""
        caller = unix_socket.peer_user(connection)
        if caller not in (0, self._user):
            return f"user id {caller} may not use the control socket"
        if len(self._peers) >= self._connections_max:
            return f"{self._connections_max} connections are open"
        self._peers.add(peer)
        return None

    def dismiss(self, peer: Peer) -> None:
        """Forget an ended connection."""
        if peer in self._peers:
            self._peers.remove(peer)
            if peer.hello is not None:
                self.service.gone(peer)

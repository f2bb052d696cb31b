"""Connections that carry streams: HTTP/2 on the event loop, for the dialling and the listening
side.

A side that hears nothing pings; one that gets no answer declares the other dead, and one that was
itself unable to answer discards what came meanwhile. Written data waits in the transport up to a
limit, beyond which streams have to wait.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

from fluxmq.cluster.channels import (
    CLOSING_SECONDS,
    CONNECT_SECONDS,
    GREETING_SECONDS,
    IDLE_SECONDS,
    KEEPALIVE_SECONDS,
    KEEPALIVE_TIMEOUT_SECONDS,
    MESSAGE_LIMIT,
    PROBLEM_CHARS_MAX,
    WRITE_BUFFER_BYTES,
)
from fluxmq.cluster.errors import MalformedStream, StreamEnded
from fluxmq.cluster.grpc_fields import GrpcStatus, refusal, trailers
from fluxmq.cluster.guard import ENDED, PROTOCOL, UNREAD, Guard
from fluxmq.cluster.http2 import Http2
from fluxmq.cluster.http2_frames import CANCEL, INTERNAL_ERROR, NO_ERROR, Http2Error
from fluxmq.cluster.http2_sender import Fields
from fluxmq.cluster.http2_streams import EventKind, Http2Stream
from fluxmq.cluster.security import Security
from fluxmq.logs import RateLimited, get_logger

LOOK_SECONDS: Final = 0.5
"""Interval between checks that the other side is there."""
AWAY_SECONDS: Final = KEEPALIVE_SECONDS + KEEPALIVE_TIMEOUT_SECONDS
"""Time without a check after which the other side has given this one up."""
RESTING_LOOK_SECONDS: Final = 60.0
"""The same of a resting connection: often enough for firewalls to remember it."""
RESTING_LOOKS_MAX: Final = 2
"""Such intervals without a word, each but the first begun with a ping, after which the other side is
gone."""
STREAMS_OF_A_SERVER_MAX: Final = 0
"""Streams that the dialled side may open."""
UNREAD_BYTES_MAX: Final = 128 << 20
"""Bytes written and not taken by the other side beyond which it is cut off: far more than streams
write before they wait, so these are answers to pings and the like. For all connections of a
process: `guard.UNREAD_TOTAL_MAX`.
"""
UNREAD_COUNTED: Final = 64 << 10
"""Waiting bytes of a connection below which they are not added to the total, so that single writes
cost nothing.
"""
CALL_WINDOW: Final = MESSAGE_LIMIT + (2 << 20)
"""Bytes of an answer that may come before they are read: a message of any length, and some more."""

NOT_HTTP2: Final = "HTTP/2 protocol violation by another node"

_log = get_logger("fluxmq.cluster")
_problems = RateLimited(_log, per_second=1.0, burst=5)


class StreamOwner(Protocol):
    """Receives the events of a stream, in the event loop's thread."""

    def headers(self, fields: Fields) -> None:
        """Handle headers or trailers."""

    def message(self, data: bytes) -> None:
        """Handle a message."""

    def ended(self) -> None:
        """Handle the other side's end of sending."""

    def broken(self, why: str) -> None:
        """Handle the loss of the stream. Nothing follows."""

    def writable(self) -> None:
        """Handle room for output: waiting data was sent."""


class SocketStream:
    """A stream of a connection, for its sender."""

    __slots__ = ("socket", "stream")

    def __init__(self, socket: Socket, stream: Http2Stream) -> None:
        self.socket = socket
        self.stream = stream

    @property
    def writable(self) -> bool:
        """True if a message goes out at once instead of waiting."""
        return not self.socket.paused and not self.stream.waiting

    def send(self, message: bytes) -> None:
        """Send a message."""
        self.socket.http2.send(self.stream, message)
        self.socket.flush()

    def ask(self, message: bytes) -> None:
        """Send the only message there is to send."""
        self.socket.http2.send(self.stream, message)
        self.socket.http2.finish(self.stream)
        self.socket.flush()

    def widen(self) -> None:
        """Take messages as fast as they come."""
        self.socket.http2.widen(self.stream)
        self.socket.flush()

    def allow(self, window: int) -> None:
        """Allow ``window`` unread bytes."""
        self.socket.http2.allow(self.stream, window)
        self.socket.flush()

    def consumed(self, message: bytes) -> None:
        """Replenish the window by a message that was read."""
        self.socket.http2.consumed(self.stream, message)
        self.socket.flush()

    def rest(self, on: bool) -> None:
        """Look seldom whether the other side is there, or as often as usual again."""
        self.socket.rest(on)

    def headers(self, fields: Fields) -> None:
        """Send headers."""
        self.socket.http2.headers(self.stream, fields)
        self.socket.flush()

    def cut(self) -> None:
        """End the stream in both directions. Its owner gets no further events."""
        self.stream.owner = None
        self.socket.http2.cut(self.stream, CANCEL)
        self.socket.flush()

    def end(self, status: GrpcStatus = GrpcStatus.OK, why: str = "") -> None:
        """End an answer that has begun with a status; cut off an unfinished one, or a question, as
        `cut` does.
        """
        if self.stream.waiting or self.socket.http2.client:
            self.cut()
        else:
            self._close(trailers(status, why))

    def refuse(self, status: GrpcStatus, why: str) -> None:
        """Answer with a refusal only. Too many refusals end the connection."""
        self.socket.http2.turned_away()
        self._close(refusal(status, why))

    def _close(self, fields: Fields) -> None:
        self.stream.owner = None
        http2 = self.socket.http2
        http2.headers(self.stream, fields, ends=True)
        http2.cut(self.stream, NO_ERROR)  # the caller need not finish sending (RFC 9113, 8.1)
        self.socket.flush()


class Socket:
    """A connection, as an asyncio protocol (`asyncio.Protocol`). ``opened`` is called with streams
    that the other side opens, ``closed`` at the end. ``ended``: done then.
    """

    def __init__(
        self,
        client: bool,
        streams_max: int = STREAMS_OF_A_SERVER_MAX,
        opened: Callable[[SocketStream, Fields], None] | None = None,
        made: Callable[[Socket], bool] | None = None,
        closed: Callable[[Socket], None] | None = None,
        guard: Guard | None = None,
    ) -> None:
        """``guard``: that of the process. ``made`` is called when the connection (with TLS, if any)
        is up, and returns whether to keep it.
        """
        self.greeting_max = GREETING_SECONDS
        """Seconds until HTTP/2 must have come."""
        self.idle_max = IDLE_SECONDS
        """Seconds that it may carry no stream."""
        window = {"call_window": CALL_WINDOW} if client else {}
        self.http2 = Http2(client, streams_max, MESSAGE_LIMIT, **window)
        self.paused = False
        self.open = False
        self.trusted = client
        """True for a trusted other side: one dialled by address, or one with a trusted greeting."""
        self._guard = guard or Guard()
        self._counted = 0
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.peer = ""
        self._opened = opened
        self._made = made
        self._closed = closed
        self._transport: Any = None
        self._look: asyncio.TimerHandle | None = None
        self._resting = False
        self._direct = -1
        """Without TLS, a duplicate of the socket's descriptor for immediate writes: a transport
        writes only after all callbacks of the turn.
        """
        self._looked = time.monotonic()
        self._quiet = -1
        """Looks since something was heard; -1 if something was heard since the last look."""
        self._idle = 0
        self._why = ""

    def certificate(self) -> Any:
        """Return the other side's certificate (`ssl.SSLSocket.getpeercert`); None without TLS."""
        shown = self._transport.get_extra_info("ssl_object")
        return None if shown is None else shown.getpeercert()

    @property
    def usable(self) -> bool:
        """True while streams can be opened."""
        return self.open and not self.http2.heard_goodbye

    def start(self, fields: Fields, owner: StreamOwner) -> SocketStream:
        """Open a stream. Raises StreamEnded when the connection has ended, or is about to."""
        if not self.usable:
            raise StreamEnded(self._why or "the other node is closing the connection")
        if self.http2.full:
            raise StreamEnded("the other node accepts no more streams on this connection")
        stream = self.http2.open(fields)
        stream.owner = owner
        self.flush()
        return SocketStream(self, stream)

    def flush(self) -> None:
        """Write pending output."""
        data = self.http2.take()
        if data and self.open:
            if self._direct >= 0 and not self._transport.get_write_buffer_size():
                data = _written(self._direct, data)
                if not data:
                    return
            self._transport.write(data)
            self._count()

    def unread(self) -> int:
        """Return the bytes that wait to be written, and count for the process."""
        held = 0 if self.ended.done() else int(self._transport.get_write_buffer_size())
        self._counted = held if held > UNREAD_COUNTED else 0
        return self._counted

    def overfull(self, why: str) -> None:
        """End at once: the process holds too much unread data, and this connection most of it."""
        self._counted = 0
        self.abort(why)

    def _count(self) -> None:
        """Report the waiting bytes, if they are many, or were."""
        before = self._counted
        if self.unread() != before:
            self._guard.holds(self, self._counted)

    def close(self) -> None:
        """End the connection, with its open streams."""
        if self.open:
            self.http2.goodbye(NO_ERROR)
            self.flush()
            self.open = False
            self._transport.close()

    def abort(self, why: str) -> None:
        """End the connection at once."""
        self._why = self._why or why
        self.open = False
        if self._transport is not None and not self.ended.done():
            self._transport.abort()

    async def finish(self) -> None:
        """End the connection in order, or at once if the other side does not answer that."""
        self.close()
        await asyncio.wait([self.ended], timeout=CLOSING_SECONDS)
        self.abort("closed")

    # Called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Handle a connection that is up."""
        self._transport = transport
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        self.peer = str(transport.get_extra_info("peername"))
        if transport.get_extra_info("ssl_object") is None:
            # A descriptor of our own: at `connection_lost` the transport's number may belong to
            # another file.
            self._direct = os.dup(transport.get_extra_info("socket").fileno())
        self.open = True
        if self._made is not None and not self._made(self):
            self.close()
            return
        self.flush()
        self._look_later()

    def data_received(self, data: bytes) -> None:
        """Handle received bytes."""
        if self._was_away(time.monotonic()):
            # Stopped or starved: the other side has given this one up and gone on. These bytes are
            # stale.
            self.abort("this process was suspended")
            return
        if self.paused and self._transport.get_write_buffer_size() > UNREAD_BYTES_MAX:
            why = "it sends requests and does not read the answers"
            self._guard.refuse(UNREAD, "", ENDED, peer=self.peer, problem=why)
            self.abort(why)
            return
        self._quiet = -1
        try:
            events = self.http2.receive(data)
        except Http2Error as error:
            self._why = str(error)[:PROBLEM_CHARS_MAX]
            self._guard.refuse(PROTOCOL, "", NOT_HTTP2, peer=self.peer, problem=self._why)
            self.flush()
            self.open = False
            self._transport.close()
            return
        for kind, stream, what in events:
            if stream is not None:
                self._tell(kind, stream, what)
        self.flush()

    def eof_received(self) -> bool:
        """Close after the other side has closed."""
        return False

    def pause_writing(self) -> None:
        """Handle too much waiting output."""
        self.paused = True

    def resume_writing(self) -> None:
        """Handle room for output."""
        self.paused = False
        self._count()
        for stream in list(self.http2.streams.values()):
            self._tell(EventKind.WRITABLE, stream, None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the end of the connection."""
        self.open = False
        if self._direct >= 0:
            os.close(self._direct)
            self._direct = -1
        if self._look is not None:
            self._look.cancel()
        self._counted = 0
        self._guard.holds(self, 0)
        why = self._why or (
            f"the connection was lost: {exc}" if exc else "the connection has ended"
        )
        self._why = why
        for stream in list(self.http2.streams.values()):
            self.http2.cut(stream)
            self._tell(EventKind.BROKEN, stream, [("", why)])
        if self._closed is not None:
            self._closed(self)
        if not self.ended.done():
            self.ended.set_result(None)

    # Streams

    def _tell(self, kind: EventKind, stream: Http2Stream, what: Any) -> None:
        owner: StreamOwner | None = stream.owner
        try:
            if kind is EventKind.MESSAGE:
                if owner is not None:
                    owner.message(what)
            elif owner is None:
                if kind is EventKind.HEADERS and self._opened is not None and not stream.ended_here:
                    self._opened(SocketStream(self, stream), what)
            elif kind is EventKind.HEADERS:
                owner.headers(what)
            elif kind is EventKind.ENDED:
                owner.ended()
            elif kind is EventKind.BROKEN:
                stream.owner = None
                owner.broken(what[0][1][:PROBLEM_CHARS_MAX])
            elif kind is EventKind.WRITABLE and not self.paused and not stream.waiting:
                owner.writable()
        except Exception as error:  # noqa: BLE001 (a fault here ends only one stream)
            _problems.event(
                logging.ERROR,
                "fault",
                "inter-node stream closed after an internal error",
                peer=self.peer,
                problem=repr(error)[:PROBLEM_CHARS_MAX],
            )
            stream.owner = None
            self.http2.cut(stream, INTERNAL_ERROR)

    # Keepalive

    def rest(self, on: bool) -> None:
        """Look seldom whether the other side is there, because something else in this process
        looks whether its process is; or look as often as usual again."""
        if on == self._resting or self._look is None:
            return
        self._looked = self._guard.looked
        self._resting = on
        self._quiet = -1
        self._look.cancel()
        self._look_later()

    def _look_later(self) -> None:
        seconds = RESTING_LOOK_SECONDS if self._resting else LOOK_SECONDS
        self._look = asyncio.get_running_loop().call_later(seconds, self._on_look)

    def _was_away(self, now: float) -> bool:
        """Return whether this process stood still; for a resting connection others have looked."""
        looked = self._guard.looked if self._resting else self._looked
        return now - looked > AWAY_SECONDS

    def _on_look(self) -> None:
        now = time.monotonic()
        if self._was_away(now):
            self.abort("this process was suspended")
            return
        self._look_later()
        self.http2.calm()
        self._count()
        self._quiet += 1
        if self._resting:
            self._look_at_rest()
            return
        self._looked = self._guard.looked = now
        busy = bool(self.http2.streams)
        self._idle = 0 if busy else self._idle + 1
        quiet, idle = self._quiet * LOOK_SECONDS, self._idle * LOOK_SECONDS
        if idle >= self.idle_max or (idle >= self.greeting_max and not self.http2.begun):
            self.close()
        elif busy and quiet >= KEEPALIVE_SECONDS + KEEPALIVE_TIMEOUT_SECONDS:
            self.abort("the other node does not respond")
        elif busy and quiet == KEEPALIVE_SECONDS:
            self.http2.ping()
            self.flush()

    def _look_at_rest(self) -> None:
        if self._quiet >= RESTING_LOOKS_MAX:
            self.abort("the other node does not respond")
        elif self._quiet:
            self.http2.ping()
            self.flush()


def _written(descriptor: int, data: bytes) -> bytes:
    """Write what the kernel takes now and return the rest; the transport finds problems itself."""
    try:
        return data[os.write(descriptor, data) :]
    except OSError:
        return data


async def connect(security: Security, address: str, node: str) -> Socket:
    """Connect to a node and check its name. Raises StreamEnded if no node answers, MalformedStream
    if another one does, SecurityError if that could not be told.
    """
    security.check_address(address)
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            made: Any
            tls = security.client_context
            more: dict[str, Any] = {}
            if tls is not None:
                more = {"ssl": tls, "ssl_shutdown_timeout": CLOSING_SECONDS}
            _, made = await asyncio.get_running_loop().create_connection(
                lambda: _dialling(security),
                host.removeprefix("[").removesuffix("]"),
                int(port),
                **more,
            )
    except TimeoutError:
        raise StreamEnded(f"it did not answer within {CONNECT_SECONDS:g} s") from None
    except OSError as error:  # TLS errors as well
        raise StreamEnded(f"{error}"[:PROBLEM_CHARS_MAX]) from error
    socket: Socket = made
    if why := security.problem_with(node, socket.certificate()):
        socket.abort(why)
        raise MalformedStream(f"the node that answered is not {node}: {why}")
    return socket


def _dialling(security: Security) -> Any:
    return Socket(client=True, guard=security.guard)

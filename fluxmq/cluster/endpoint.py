"""An address that listens for other nodes: it accepts or refuses streams, and answers calls.

A connection is admitted by its source address (`door`). The speaker is identified before anything
it says is read: by its certificate if there is TLS, by its greeting, by the list of nodes, and by
the purposes of the address.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket as sockets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from fluxmq.cluster import channels, greeting
from fluxmq.cluster.channels import (
    ANSWER_BODY,
    ASK,
    CALL_SECONDS_MAX,
    CLOSING_SECONDS,
    CONNECT,
    PROBLEM_CHARS_MAX,
    QUESTION_BODY,
    QUESTION_NAME,
    STREAMS_PER_SOCKET_MAX,
)
from fluxmq.cluster.connection import NodeStream, StreamHello, StreamListener
from fluxmq.cluster.door import Door, Visit
from fluxmq.cluster.errors import CallRefused, EndpointError, MalformedStream, SecurityError
from fluxmq.cluster.grpc_fields import GrpcStatus, answer, metadata_of
from fluxmq.cluster.guard import CALL, CONNECTION, HANDSHAKE, STREAM
from fluxmq.cluster.http2_sender import Fields
from fluxmq.cluster.protobuf import bytes_field, bytes_of
from fluxmq.cluster.security import Security
from fluxmq.cluster.sockets import Socket, SocketStream
from fluxmq.cluster.wire import MESSAGE_BYTES_MAX
from fluxmq.logs import RateLimited, get_logger

CallHandler = Callable[[StreamHello, bytes], AsyncIterator[bytes]]
"""Answers a call in chunks of at most ``wire.MESSAGE_BYTES_MAX``; may raise CallRefused."""

ACCEPT_AGAIN_SECONDS: Final = 0.2
"""Pause before accepting again when process or machine is short of descriptors or memory."""
NOT_ACCEPTED: Final = "inter-node connection refused"
_SHORT_OF: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))

QUESTION_BYTES_MAX: Final = 2 << 20
"""Size of a question with its name, well above any real one."""
_BACKLOG: Final = 256

_log = get_logger("fluxmq.cluster")


class Question(NamedTuple):
    """A call by its name, and its contents."""

    name: str
    body: bytes


class Endpoint:
    """Listens on one address. ``refused``: streams and calls refused since the start.

    ``own``: this side's introduction; a stream's answer states the stream's purpose.
    ``listeners``: by purpose, each for the streams of its own; calls of other purposes are refused
    as well. ``accept``: returns the reason to refuse a stream of one of these, empty for none.
    """

    def __init__(
        self,
        security: Security,
        address: str,
        own: StreamHello,
        listeners: Mapping[str, StreamListener],
        accept: Callable[[StreamHello], str],
        calls: Mapping[str, CallHandler] | None = None,
    ) -> None:
        self.address = address
        self.refused = 0
        self._security = security
        self._own = own
        self._listeners = listeners
        self._accept = accept
        self._calls = dict(calls or {})
        self.door = Door(security.hosts)
        self._guard = security.guard
        self._serving: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._sockets: set[Socket] = set()
        self._streams: set[NodeStream] = set()
        self._welcoming: set[asyncio.Task[None]] = set()
        """Tasks of connections that are being set up."""
        self._answering: set[asyncio.Task[None]] = set()
        """Tasks of calls whose caller waits."""
        self._tasks: set[asyncio.Task[None]] = set()
        """Those, and tasks that are about to notice that their caller has gone."""
        self._refusals = RateLimited(_log, per_second=0.2, burst=5)

    async def start(self) -> None:
        """Listen. Raises EndpointError naming the address. Port 0 picks one: see ``address``."""
        host, _, port = self.address.rpartition(":")
        loop = asyncio.get_running_loop()
        try:
            self._security.check_address(self.address)
            bare = host.removeprefix("[").removesuffix("]")
            listening = await _listen(bare, int(port)) if bare else [_on_every_address(int(port))]
        except SecurityError as error:
            raise EndpointError(str(error)) from error
        except OSError as error:
            raise EndpointError(f"{self.address} cannot be bound: {error}") from error
        self.address = f"{host}:{listening[0].getsockname()[1]}"
        self.door.look()
        self._serving = loop.create_task(self._serve(listening))

    async def stop(self) -> None:
        """End every stream and call, free the address, and notify listeners before returning."""
        serving, self._serving = self._serving, None
        if serving is not None:
            self._stopping.set()
            await asyncio.wait([serving])

    def follow(self) -> None:
        """Know the addresses of the nodes that the security names now."""
        self.door.follow(self._security.hosts)
        if self._serving is not None:
            self.door.look()

    @property
    def _open(self) -> bool:
        return not self._stopping.is_set()

    async def _serve(self, listening: Sequence[sockets.socket]) -> None:
        """Serve until ``stop``, or the end of the event loop."""
        for each in listening:
            self._watch(each)
        try:
            await self._stopping.wait()
        finally:
            self._stopping.set()  # also at the end of the event loop
            for each in listening:
                asyncio.get_running_loop().remove_reader(each)
                each.close()
            await self.door.close()
            if self._welcoming:  # uvloop never closes what is cancelled before it is connected
                await asyncio.wait(self._welcoming, timeout=CLOSING_SECONDS)
            ended: list[asyncio.Future[None]] = [each.ended for each in self._streams]
            for connection in list(self._streams):
                connection.close()
            for task in (*self._tasks, *self._welcoming):
                task.cancel()
                ended.append(task)
            closing = list(self._sockets)
            if ended:
                await asyncio.wait(ended)
            await asyncio.gather(*(socket.finish() for socket in closing))

    # Connections

    def _watch(self, listening: sockets.socket) -> None:
        """Accept connections on a listening socket until the endpoint stops."""
        if self._open:
            loop = asyncio.get_running_loop()
            loop.add_reader(listening, self._accept_from, listening)

    def _accept_from(self, listening: sockets.socket) -> None:
        """Accept one connection: a crowd of them must not starve other tasks.

        A task that waits in ``sock_accept`` would lose a connection that arrives as it is
        cancelled.
        """
        try:
            made, address = listening.accept()
        except OSError as error:
            if error.errno in _SHORT_OF:
                self._guard.refuse(CONNECTION, "accept", NOT_ACCEPTED, problem=str(error))
                loop = asyncio.get_running_loop()
                loop.remove_reader(listening)
                loop.call_later(ACCEPT_AGAIN_SECONDS, self._watch, listening)
            return  # otherwise it was gone before it was accepted
        made.setblocking(False)
        self._let_in(made, str(address[0]))

    def _let_in(self, made: sockets.socket, address: str) -> None:
        """Admit a connection, or close it."""
        visit = self.door.enter(address, self._security.tls)
        if isinstance(visit, str):
            made.close()
            known = "known" if self.door.knows(address) else "unknown"
            self._guard.refuse(
                CONNECTION, known, NOT_ACCEPTED, address=self.address, peer=address, problem=visit
            )
            return
        task = asyncio.get_running_loop().create_task(self._welcome(made, address, visit))
        self._welcoming.add(task)
        task.add_done_callback(self._welcoming.discard)

    async def _welcome(self, made: sockets.socket, address: str, visit: Visit) -> None:
        """Complete the TLS handshake, if any; an admitted connection counts until it ends."""

        def left(socket: Socket) -> None:
            visit.leave()
            self._sockets.discard(socket)

        streams = (STREAMS_PER_SOCKET_MAX, self._opened)
        socket: Any = Socket(False, *streams, self._made, left, self._guard)
        socket.greeting_max, socket.idle_max = channels.GREETING_SECONDS, channels.IDLE_SECONDS
        tls = self._security.server_context
        more: dict[str, Any] = {"ssl": tls} if tls is not None else {}
        if more:
            more["ssl_handshake_timeout"] = channels.GREETING_SECONDS
            more["ssl_shutdown_timeout"] = CLOSING_SECONDS
        loop = asyncio.get_running_loop()
        try:
            made.setsockopt(sockets.IPPROTO_TCP, sockets.TCP_NODELAY, 1)
            await loop.connect_accepted_socket(lambda: socket, made, **more)
        except OSError as error:  # TLS errors and timeouts as well
            visit.leave()
            self._guard.refuse(
                HANDSHAKE,
                "",
                "inter-node TLS handshake failed",
                logging.INFO,
                address=self.address,
                peer=address,
                problem=str(error) or "it timed out",
            )
        except BaseException:
            visit.leave()
            raise
        else:
            visit.shaken()

    def _made(self, socket: Socket) -> bool:
        if self._open:
            self._sockets.add(socket)
        return self._open

    def _opened(self, wire: SocketStream, fields: Fields) -> None:
        """Accept or refuse a stream that was opened."""
        found = dict(fields)
        path = found.get(":path")
        if path not in (CONNECT, ASK) or found.get(":method") != "POST":
            self.refuse(wire, "", "unknown method", GrpcStatus.UNIMPLEMENTED)
            return
        hello = self._greeted(wire, fields)
        if hello is None:
            return
        if path == ASK:
            wire.stream.owner = _ServedCall(self, wire, hello)
            wire.allow(QUESTION_BYTES_MAX)
            return
        why = self._accept(hello)
        if not why and len(self._streams) >= channels.STREAMS_MAX:
            why = f"there are {channels.STREAMS_MAX} streams already"
        if why:
            self.refuse(wire, hello.node, why)
            return
        own = self._own._replace(purpose=hello.purpose)
        wire.headers(answer(greeting.as_metadata(own)))
        wire.widen()
        connection = NodeStream(hello, False, self._listeners[hello.purpose], wire)
        self._streams.add(connection)
        connection.ended.add_done_callback(lambda _: self._streams.discard(connection))
        wire.stream.owner = _AcceptedStream(connection)
        connection.start()

    def _greeted(self, wire: SocketStream, fields: Fields) -> StreamHello | None:
        """Return the speaker's introduction; None if it was refused."""
        try:
            hello = greeting.from_metadata(metadata_of(fields))
        except MalformedStream as error:
            self.refuse(wire, "", str(error))
            return None
        why = self._security.problem_with(hello.node, wire.socket.certificate())
        if why:
            why = f"{hello.node} is not trusted: {why}"
        elif hello.purpose not in self._listeners:
            purposes = " and ".join(sorted(self._listeners))
            why = f"this is the address of {purposes}, not of {hello.purpose}"
        elif not self._open:
            why = f"{self._own.node} is stopping"
        if why:
            self.refuse(wire, hello.node, why)
            return None
        wire.socket.trusted = True
        return hello

    def refuse(
        self,
        wire: SocketStream,
        node: str,
        why: str,
        status: GrpcStatus = GrpcStatus.PERMISSION_DENIED,
    ) -> None:
        """Refuse a stream, with the reason sent and logged."""
        self.refused += 1
        self._guard.refuse(
            STREAM,
            node if node in self._security.members else "",
            "refused another node",
            address=self.address,
            node=node,
            peer=wire.socket.peer,
            problem=why,
        )
        wire.refuse(status, why[:PROBLEM_CHARS_MAX])

    # Calls

    def ask(self, wire: SocketStream, hello: StreamHello, body: bytes) -> asyncio.Task[None] | None:
        """Answer a question; return None if it is refused."""
        try:
            question = Question(
                bytes_of(body, QUESTION_NAME).decode(), bytes_of(body, QUESTION_BODY)
            )
        except ValueError:
            self.refuse(wire, hello.node, "the request is malformed")
            return None
        handler = self._calls.get(question.name)
        if handler is None:
            why = f"unknown call {question.name!r}"[:PROBLEM_CHARS_MAX]
            self._guard.refused[CALL] += 1
            wire.refuse(GrpcStatus.FAILED_PRECONDITION, why)
            return None
        if len(self._answering) >= channels.CALLS_MAX:
            why = f"{channels.CALLS_MAX} calls are in progress already"
            self._guard.refused[CALL] += 1
            wire.refuse(GrpcStatus.RESOURCE_EXHAUSTED, why)
            return None
        task = asyncio.get_running_loop().create_task(self._answer(handler, hello, question, wire))
        for tasks in (self._answering, self._tasks):
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        return task

    def give_up(self, task: asyncio.Task[None]) -> None:
        """Cancel a task whose caller has gone."""
        self._answering.discard(task)
        task.cancel()

    async def _answer(
        self, handler: CallHandler, hello: StreamHello, question: Question, wire: SocketStream
    ) -> None:
        wire.headers(answer(()))
        asking = wire.stream.owner
        try:
            async with asyncio.timeout(CALL_SECONDS_MAX):
                async for chunk in handler(hello, question.body):
                    wire.send(_chunk(chunk))
                    await asking.room()
            wire.end()
            return
        except CallRefused as error:
            status, why = GrpcStatus.FAILED_PRECONDITION, str(error)
        except asyncio.CancelledError:
            wire.cut()
            raise
        except Exception as error:  # noqa: BLE001 (a handler's fault fails only its call)
            status, why = GrpcStatus.INTERNAL, f"a fault there: {error!r}"
            self._refusals.event(
                logging.ERROR,
                f"call {question.name}",
                "a call from another node failed",
                call=question.name,
                node=hello.node,
                problem=repr(error)[:PROBLEM_CHARS_MAX],
            )
        wire.end(status, why[:PROBLEM_CHARS_MAX])


class _AcceptedStream:
    """The owner of an accepted stream."""

    def __init__(self, connection: NodeStream) -> None:
        self._connection = connection
        self.message = connection.take
        self.writable = connection.writable

    def headers(self, _fields: Fields) -> None:
        """Ignore trailers, which callers do not send."""

    def ended(self) -> None:
        """Handle the other side's end of sending."""
        self._connection.broken("closed by the other node")

    def broken(self, why: str) -> None:
        """Handle the loss of the stream."""
        self._connection.broken(why)


class _ServedCall:
    """The owner of a question's stream."""

    def __init__(self, endpoint: Endpoint, wire: SocketStream, hello: StreamHello) -> None:
        self._endpoint = endpoint
        self._wire = wire
        self._hello = hello
        self._body: bytes | None = None
        self._task: asyncio.Task[None] | None = None
        self._room: asyncio.Future[None] | None = None

    async def room(self) -> None:
        """Wait for room for another chunk."""
        while not self._wire.writable:
            self._room = asyncio.get_running_loop().create_future()
            await self._room

    def headers(self, _fields: Fields) -> None:
        """Ignore trailers, which callers do not send."""

    def message(self, data: bytes) -> None:
        """Take the question."""
        if self._body is not None or len(data) > QUESTION_BYTES_MAX:
            self._endpoint.refuse(
                self._wire, self._hello.node, "a call has exactly one request message"
            )
            return
        self._body = data

    def ended(self) -> None:
        """Answer the complete question."""
        if self._task is None:
            self._task = self._endpoint.ask(self._wire, self._hello, self._body or b"")

    def broken(self, why: str) -> None:
        """Cancel the answer, as the caller has gone."""
        if self._task is not None:
            self._endpoint.give_up(self._task)

    def writable(self) -> None:
        """Resume an answer that waits for room."""
        if self._room is not None and not self._room.done():
            self._room.set_result(None)


async def _listen(host: str, port: int) -> list[sockets.socket]:
    """Return listening sockets on all addresses of a host here. Raises OSError for none."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=sockets.SOCK_STREAM, flags=sockets.AI_PASSIVE)
    made: list[sockets.socket] = []
    problem: OSError | None = None
    for family, _, _, _, address in dict.fromkeys(found):
        try:
            each = sockets.create_server(address[:2], family=family, backlog=_BACKLOG)
        except OSError as error:
            problem = error
            if error.errno in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
                continue  # an address family that this machine lacks
            for open_one in made:
                open_one.close()
            raise
        each.setblocking(False)
        made.append(each)
    if not made:
        raise problem or OSError(errno.EADDRNOTAVAIL, f"{host} has no address here")
    return made


def _on_every_address(port: int) -> sockets.socket:
    """Return a listening socket on all addresses of the machine. Raises OSError."""
    made: sockets.socket | None = None
    if sockets.has_dualstack_ipv6():
        try:
            made = sockets.create_server(
                ("", port), family=sockets.AF_INET6, backlog=_BACKLOG, dualstack_ipv6=True
            )
        except OSError as error:
            if error.errno != errno.EAFNOSUPPORT:
                raise
    made = made or sockets.create_server(("", port), backlog=_BACKLOG)
    made.setblocking(False)
    return made


def _chunk(body: bytes) -> bytes:
    """Return a chunk of an answer as a message. Raises ValueError when it is too long for one."""
    if len(body) > MESSAGE_BYTES_MAX:
        raise ValueError(f"a chunk of {len(body)} bytes, above {MESSAGE_BYTES_MAX}")
    return bytes_field(ANSWER_BODY, body)

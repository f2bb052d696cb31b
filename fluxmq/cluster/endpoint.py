"""An address on which other nodes are listened to: streams are taken or refused, calls answered.

Whoever speaks is known before anything it says is read: by its certificate where there is TLS, by its greeting, by the list
of nodes, and by what the address is for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from fluxmq.cluster import greeting
from fluxmq.cluster.channels import ASK, CONNECT, SERVER, SERVICE
from fluxmq.cluster.connection import PROBLEM_CHARS_MAX, Connection, Hello, Listener
from fluxmq.cluster.errors import (
    CallRefused,
    EndpointError,
    MalformedStream,
    SecurityError,
    StreamEnded,
)
from fluxmq.cluster.generated.cluster_pb2 import Answer, Question
from fluxmq.cluster.security import Security
from fluxmq.cluster.wire import MESSAGE_BYTES_MAX
from fluxmq.logs import RateLimited, get_logger

CallHandler = Callable[[Hello, bytes], AsyncIterator[bytes]]
"""Answers a call in chunks of at most ``wire.MESSAGE_BYTES_MAX``; raises CallRefused with the reason."""

STREAMS_MAX: Final = 1024
"""Streams to one endpoint: of nine other nodes with 64 shards each, and as many that are about to be replaced."""

CALLS_MAX: Final = 64
"""Calls answered at once by one endpoint: nine followers that fetch, with some chunks under way each."""

CALL_SECONDS_MAX: Final = 3600.0
"""The longest that a call may take as a whole, however well it goes on."""

_log = get_logger("fluxmq.cluster")


class Endpoint:
    """Listens on one address. ``refused``: streams and calls that were not taken, since the start."""

    def __init__(
        self,
        security: Security,
        address: str,
        own: Hello,
        listener: Listener,
        accept: Callable[[Hello], str],
        calls: Mapping[str, CallHandler] | None = None,
    ) -> None:
        self.address = address
        self.refused = 0
        self._security = security
        self._own = own
        self._listener = listener
        self._accept = accept
        self._calls = dict(calls or {})
        self._open = False
        self._serving: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._streams: dict[Connection, asyncio.Event] = {}
        self._answering = 0
        self._refusals = RateLimited(_log, per_second=0.2, burst=5)

    async def start(self) -> None:
        """Listen. Raises EndpointError naming the address. With port 0 one is chosen: see ``address`` then."""
        handlers = {
            CONNECT: grpc.stream_stream_rpc_method_handler(self._connect),
            ASK: grpc.unary_stream_rpc_method_handler(self._ask),
        }
        server = grpc.aio.server(options=SERVER, maximum_concurrent_rpcs=STREAMS_MAX + CALLS_MAX)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        host, _, _ = self.address.rpartition(":")
        where = self.address if host else f"[::]{self.address}"
        try:
            self._security.check_address(self.address)
            credentials = self._security.server_credentials()
            if credentials is None:
                port = server.add_insecure_port(where)
            else:
                port = server.add_secure_port(where, credentials)
        except SecurityError as error:
            raise EndpointError(str(error)) from error
        except RuntimeError as error:
            raise EndpointError(f"{self.address} cannot be listened on: {error}") from error
        self.address = f"{host}:{port}"
        self._open = True
        await server.start()
        self._serving = asyncio.get_running_loop().create_task(self._serve(server))

    async def stop(self) -> None:
        """End every stream and call, and free the address. Their listeners have been told when this returns."""
        serving, self._serving = self._serving, None
        if serving is not None:
            self._stopping.set()
            await asyncio.wait([serving])

    async def _serve(self, server: Any) -> None:
        """Until ``stop``, or the end of the event loop: a server of gRPC that outlives its loop complains."""
        try:
            await self._stopping.wait()
        finally:
            self._open = False
            ended = [event.wait() for event in self._streams.values()]
            for connection in list(self._streams):
                connection.close()
            try:
                await asyncio.gather(*ended)
            finally:
                await server.stop(0)

    # Streams

    async def _connect(self, _requests: object, context: Any) -> None:
        hello = await self._greeted(context)
        connection = Connection(hello, False, self._listener)
        if why := self._accept(hello):
            await self._refuse(context, hello.node, why)
        if len(self._streams) >= STREAMS_MAX:
            await self._refuse(context, hello.node, f"there are {STREAMS_MAX} streams already")
        ended = self._streams[connection] = asyncio.Event()
        try:
            await context.send_initial_metadata(greeting.as_metadata(self._own))

            async def read() -> bytes | None:
                try:
                    data = await context.read()
                except Exception as error:
                    raise StreamEnded(f"the stream broke: {error}") from error
                return None if data is grpc.aio.EOF else data

            async def write(message: bytes) -> None:
                try:
                    await context.write(message)
                except Exception as error:
                    raise StreamEnded(f"the stream broke: {error}") from error

            await connection.run(read, write)
        finally:
            del self._streams[connection]
            ended.set()

    async def _greeted(self, context: Any) -> Hello:
        """Who is there. Does not return if it is nobody that may be."""
        try:
            hello = greeting.from_metadata(context.invocation_metadata())
        except MalformedStream as error:
            await self._refuse(context, "", str(error))
            raise
        why = self._security.problem_with(hello.node, context.auth_context())
        if why:
            await self._refuse(context, hello.node, f"{hello.node} is not believed: {why}")
        if hello.purpose != self._own.purpose:
            why = f"this is the address of {self._own.purpose}, not of {hello.purpose}"
            await self._refuse(context, hello.node, why)
        if not self._open:
            await self._refuse(context, hello.node, f"{self._own.node} is stopping")
        return hello

    async def _refuse(self, context: Any, node: str, why: str) -> None:
        """Say why, here and there. Does not return."""
        self.refused += 1
        known = node if node in self._security.members else ""
        self._refusals.event(
            logging.WARNING,
            known,
            "another node was refused",
            address=self.address,
            node=node,
            peer=context.peer(),
            problem=why[:PROBLEM_CHARS_MAX],
        )
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, why[:PROBLEM_CHARS_MAX])

    # Calls

    async def _ask(self, request: bytes, context: Any) -> None:
        hello = await self._greeted(context)
        try:
            question = Question.FromString(request)
        except DecodeError:
            await self._refuse(context, hello.node, "the question is not one")
            raise
        handler = self._calls.get(question.name)
        if handler is None:
            why = f"there is no call {question.name!r} here"[:PROBLEM_CHARS_MAX]
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, why)
        if self._answering >= CALLS_MAX:
            why = f"{CALLS_MAX} calls are being answered already"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, why)
        self._answering += 1
        try:
            await self._answer(handler, hello, question, context)
        finally:
            self._answering -= 1

    async def _answer(self, handler: Any, hello: Hello, question: Any, context: Any) -> None:
        try:
            async for chunk in handler(hello, question.body):
                await context.write(_chunk(chunk))
            return
        except CallRefused as error:
            code, why = grpc.StatusCode.FAILED_PRECONDITION, str(error)
        except Exception as error:  # noqa: BLE001 (a handler's fault is the caller's failure, and no more)
            code, why = grpc.StatusCode.INTERNAL, f"a fault there: {error!r}"
            self._refusals.event(
                logging.ERROR,
                f"call {question.name}",
                "a call of another node failed here",
                call=question.name,
                node=hello.node,
                problem=repr(error)[:PROBLEM_CHARS_MAX],
            )
        await context.abort(code, why[:PROBLEM_CHARS_MAX])


def _chunk(body: bytes) -> bytes:
    """A chunk of an answer as a message. Raises ValueError when it is too long for one."""
    if len(body) > MESSAGE_BYTES_MAX:
        raise ValueError(f"a chunk of {len(body)} bytes, above {MESSAGE_BYTES_MAX}")
    return bytes(Answer(body=body).SerializeToString())

"""Dialled streams and calls from the dialling side: their answers and outcomes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Final

from fluxmq.cluster import greeting
from fluxmq.cluster.connection import NodeStream, StreamHello, StreamListener
from fluxmq.cluster.errors import (
    CallFailed,
    CallRefused,
    ClusterError,
    MalformedStream,
    StreamEnded,
)
from fluxmq.cluster.grpc_fields import GrpcStatus, metadata_of, problem_of, status_of
from fluxmq.cluster.http2_sender import Fields
from fluxmq.cluster.sockets import SocketStream

_REFUSALS: Final = (GrpcStatus.FAILED_PRECONDITION, GrpcStatus.PERMISSION_DENIED)


class Dialled:
    """The owner of a dialled stream. ``begun``: the connection when it is answered; ClusterError if
    it is not. ``wire`` is set before any answer.
    """

    wire: SocketStream

    def __init__(self, node: str, own: StreamHello, listener: StreamListener) -> None:
        self.begun: asyncio.Future[NodeStream] = asyncio.get_running_loop().create_future()
        self._node = node
        self._own = own
        self._listener = listener
        self._connection: NodeStream | None = None

    async def stop(self) -> None:
        """End the stream, and notify the listener before returning."""
        if self._connection is not None:
            self._connection.broken("stopped")
            await asyncio.wait([self._connection.ended])
        elif not self.begun.cancel() and not self.begun.cancelled():
            self.begun.exception()  # nobody else may have asked for it

    def headers(self, fields: Fields) -> None:
        """Handle the answer's headers, or a refusal; or the end."""
        found = dict(fields)
        if self._connection is not None or "grpc-status" in found:
            self._over(*status_of(found))
            return
        try:
            hello = self._hello(found, fields)
        except ClusterError as error:
            self._fail(error)
            return
        self._connection = NodeStream(hello, True, self._listener, self.wire)
        self._connection.start()
        if not self.begun.done():
            self.begun.set_result(self._connection)

    def _hello(self, found: Mapping[str, str], fields: Fields) -> StreamHello:
        """Return the answering side's introduction. Raises ClusterError for an unexpected one."""
        if why := problem_of(found):
            raise MalformedStream(why)
        hello = greeting.from_metadata(metadata_of(fields))
        if hello.node != self._node:
            raise MalformedStream(f"{hello.node} answered instead of {self._node}")
        if hello.purpose != self._own.purpose:
            raise MalformedStream(f"the address belongs to {hello.purpose}")
        return hello

    def _fail(self, error: ClusterError) -> None:
        if not self.begun.done():
            self.begun.set_exception(error)

    def _over(self, status: GrpcStatus, why: str) -> None:
        if self._connection is not None:
            ordinary = status is GrpcStatus.OK
            self._connection.broken("closed by the other node" if ordinary else why)
        else:
            self._fail((CallRefused if status in _REFUSALS else StreamEnded)(why))

    def message(self, data: bytes) -> None:
        """Handle frames."""
        if self._connection is not None:
            self._connection.take(data)

    def ended(self) -> None:
        """Handle the other side's end of sending."""
        self._over(GrpcStatus.OK, "it closed the stream without giving a reason")

    def broken(self, why: str) -> None:
        """Handle the loss of the stream."""
        self._over(GrpcStatus.UNAVAILABLE, why)

    def writable(self) -> None:
        """Handle room for waiting frames."""
        if self._connection is not None:
            self._connection.writable()


class PendingCall:
    """The owner of a call's stream: the chunks of the answer that are not read yet."""

    def __init__(self) -> None:
        self._chunks: deque[bytes] = deque()
        self._problem: ClusterError | None = None
        self._over = False
        self._wake: asyncio.Future[None] | None = None

    async def next(self) -> bytes | None:
        """Return the next chunk; None after the last. Raises CallRefused, CallFailed."""
        while not self._chunks:
            if self._over:
                if self._problem is not None:
                    raise self._problem
                return None
            self._wake = asyncio.get_running_loop().create_future()
            await self._wake
        return self._chunks.popleft()

    def headers(self, fields: Fields) -> None:
        """Handle the beginning, or the end."""
        found = dict(fields)
        if "grpc-status" in found:
            status, why = status_of(found)
            refused = status in _REFUSALS
            error = (CallRefused if refused else CallFailed)(why)
            self._finish(None if status is GrpcStatus.OK else error)
        elif why := problem_of(found):
            self._finish(CallFailed(why))

    def message(self, data: bytes) -> None:
        """Handle a chunk of the answer."""
        self._chunks.append(data)
        self._notify()

    def ended(self) -> None:
        """Handle an end that trailers should have announced."""
        self._finish(CallFailed("the answer ended without a status"))

    def broken(self, why: str) -> None:
        """Handle the loss of the rest."""
        self._finish(CallFailed(why))

    def writable(self) -> None:
        """Ignore room: only the question is sent."""

    def _finish(self, problem: ClusterError | None) -> None:
        if not self._over:
            self._over, self._problem = True, problem
            self._notify()

    def _notify(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

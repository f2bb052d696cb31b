"""Keeps one stream to one address open, and makes calls there.

Calls use a connection of their own: bulk transfers must not delay heartbeats.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Callable
from typing import Final

from fluxmq.cluster import greeting
from fluxmq.cluster.channels import (
    ANSWER_BODY,
    ASK,
    CALL_SECONDS_MAX,
    CONNECT,
    GREETING_SECONDS,
    PROBLEM_CHARS_MAX,
    QUESTION_BODY,
    QUESTION_NAME,
)
from fluxmq.cluster.connection import StreamHello, StreamListener
from fluxmq.cluster.dialled import Dialled, PendingCall
from fluxmq.cluster.errors import CallFailed, ClusterError, MalformedStream, StreamEnded
from fluxmq.cluster.grpc_fields import request
from fluxmq.cluster.http2_sender import Fields
from fluxmq.cluster.protobuf import bytes_field, bytes_of
from fluxmq.cluster.security import Security
from fluxmq.cluster.sockets import Socket, SocketStream, connect
from fluxmq.logs import RateLimited, get_logger

FIRST_PAUSE_SECONDS: Final = 0.05
LAST_PAUSE_SECONDS: Final = 2.0
"""Maximum pause: a node that is back is reached within it."""
STEADY_SECONDS: Final = 5.0
"""Life after which a stream is redialled at once: its loss says nothing about the next one."""

SILENT_SECONDS: Final = 3.0
"""Time before a silent node is logged: one that starts or restarts takes about as long."""

_log = get_logger("fluxmq.cluster")


class Backoff:
    """Pause before dialling again: doubling, with jitter so that many do not dial at once. Pure."""

    def __init__(self, draw: Callable[[], float]) -> None:
        """``draw``: a number from 0 to below 1."""
        self._draw = draw
        self._pause = FIRST_PAUSE_SECONDS

    def after(self, lived: float) -> float:
        """Return the pause in seconds after a stream that lived ``lived`` seconds, 0 for none."""
        if lived > STEADY_SECONDS:
            self._pause = FIRST_PAUSE_SECONDS
            return 0.0
        pause = self._pause * (0.5 + 0.5 * self._draw())
        self._pause = min(self._pause * 2, LAST_PAUSE_SECONDS)
        return pause


class Dialer:
    """One stream to ``address``, where ``node`` must answer. Without ``start``, for calls only."""

    def __init__(
        self,
        security: Security,
        address: str,
        node: str,
        own: StreamHello,
        listener: StreamListener,
    ) -> None:
        self.address = address
        self.node = node
        self._security = security
        self._own = own
        self._listener = listener
        self._backoff = Backoff(random.random)
        self._task: asyncio.Task[None] | None = None
        self._asking: Socket | None = None
        self._connecting = asyncio.Lock()
        self._problems = RateLimited(_log, per_second=1 / 30, burst=1)

    def start(self) -> None:
        """Dial, and redial whenever the stream ends, until ``stop``."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._keep())

    async def stop(self) -> None:
        """End the stream and all calls, and notify the listener before returning."""
        task, self._task = self._task, None
        socket, self._asking = self._asking, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        if socket is not None:
            await socket.finish()

    # The stream

    async def _keep(self) -> None:
        silent_since = time.monotonic()
        while True:
            began = time.monotonic()
            lived = 0.0
            try:
                await self._live()
                silent_since = time.monotonic()
                lived = silent_since - began
            except StreamEnded as error:
                if began - silent_since > SILENT_SECONDS:
                    self._complain("another node is unreachable", str(error))
            except ClusterError as error:
                self._complain(
                    "another node refused the connection or failed verification", str(error)
                )
            except Exception as error:  # noqa: BLE001 (the next attempt may succeed)
                self._complain("a stream to another node failed: internal error", repr(error))
            await asyncio.sleep(self._backoff.after(lived))

    async def _live(self) -> None:
        """Run one stream from beginning to end. Raises StreamEnded if no node answers, ClusterError
        if the wrong one does, or refuses.
        """
        socket = await connect(self._security, self.address, self.node)
        dialled = Dialled(self.node, self._own, self._listener)
        try:
            dialled.wire = socket.start(self._fields(CONNECT), dialled)
            dialled.wire.widen()
            try:
                async with asyncio.timeout(GREETING_SECONDS):
                    connection = await dialled.begun
            except TimeoutError:
                raise StreamEnded(f"it did not answer within {GREETING_SECONDS:g} s") from None
            await asyncio.wait([connection.ended])  # which is not this task's to cancel
        finally:
            await dialled.stop()
            await socket.finish()

    def _fields(self, path: str) -> Fields:
        return request(path, self.address, self._security.tls, greeting.as_metadata(self._own))

    def _complain(self, message: str, problem: str) -> None:
        self._problems.event(
            logging.WARNING,
            message,
            message,
            node=self.node,
            address=self.address,
            purpose=self._own.purpose,
            problem=problem[:PROBLEM_CHARS_MAX],
        )

    # Calls

    async def call(
        self,
        name: str,
        body: bytes,
        timeout: float,  # noqa: ASYNC109 - per chunk; the iterating caller cannot set that
    ) -> AsyncIterator[bytes]:
        """Make a call by its name and yield the chunks of the answer.

        ``timeout``: seconds within which each chunk must come, the first one too. Raises
        CallRefused with the other side's reason, CallFailed if there is no answer, or an incomplete
        one.
        """
        asked = PendingCall()
        question = bytes_field(QUESTION_NAME, name.encode()) + bytes_field(QUESTION_BODY, body)
        wire: SocketStream | None = None
        try:
            async with asyncio.timeout(CALL_SECONDS_MAX):
                async with asyncio.timeout(timeout):
                    wire = (await self._asked()).start(self._fields(ASK), asked)
                    wire.ask(question)
                while True:
                    async with asyncio.timeout(timeout):
                        data = await asked.next()
                    if data is None:
                        return
                    wire.consumed(data)
                    yield self._chunk(name, data)
        except TimeoutError:
            raise CallFailed(f"{self.node} did not answer {name} within {timeout:g} s") from None
        except (StreamEnded, MalformedStream) as error:
            raise CallFailed(str(error)) from error
        finally:
            if wire is not None:
                wire.cut()

    def _chunk(self, name: str, data: bytes) -> bytes:
        try:
            return bytes_of(data, ANSWER_BODY)
        except ValueError as error:
            raise CallFailed(f"{self.node} sent a malformed answer to {name}") from error

    async def _asked(self) -> Socket:
        """Return the connection for calls. Raises as `connect`."""
        async with self._connecting:
            if self._asking is None or not self._asking.usable:
                self._asking = await connect(self._security, self.address, self.node)
            return self._asking

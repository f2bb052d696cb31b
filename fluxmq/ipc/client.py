"""A shard's connection to the control process, on the shard's own event loop.

Moves bytes for a `Conversation`, reconnects with back-off as long as the shard lives, and never
makes the shard wait: answers reach the requester when they arrive. When control does not read its
answers, the connection is dropped instead of letting answers pile up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final, cast

from fluxmq.ipc import unix_socket
from fluxmq.ipc.control_frames import FramingError
from fluxmq.ipc.conversation import (
    REPORTED_ATTEMPT,
    Answered,
    Conversation,
    Handlers,
    RefusedError,
    back_off,
)
from fluxmq.ipc.messages import Body, MessageError, ProcessHello
from fluxmq.logs import RateLimited, get_logger

# Answers waiting for control to read them. A scrape's answer is some tens of kilobytes, and control
# has one open question of a kind at a time.
OUTPUT_BYTES_MAX: Final = 4 * 1024 * 1024
CONNECT_SECONDS_MAX: Final = 5.0

_log = get_logger(__name__)


class _Connection(asyncio.Protocol):
    """One connection; `closed` is set when it has ended, `served` tells whether hello was
    answered."""

    def __init__(
        self, conversation: Conversation, log: RateLimited, arrived: Callable[[], None]
    ) -> None:
        self._conversation = conversation
        self._arrived = arrived
        self._log = log
        self._transport: asyncio.Transport | None = None
        self.closed = asyncio.Event()
        self.served = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not derive from asyncio's.
        self._transport = transport = cast(asyncio.Transport, transport)
        self._conversation.send = self._send
        transport.write(self._conversation.connected())

    def data_received(self, data: bytes) -> None:
        transport = self._transport
        assert transport is not None
        self._arrived()
        try:
            answers = self._conversation.receive(data)
        except (FramingError, MessageError, RefusedError) as problem:
            self._log.event(logging.WARNING, "refused", "control connection ended: %s", problem)
            transport.abort()
            return
        if answers:
            self._send(answers)

    def _send(self, answers: bytes) -> None:
        transport = self._transport
        assert transport is not None
        if transport.get_write_buffer_size() + len(answers) > OUTPUT_BYTES_MAX:
            self._log.event(
                logging.WARNING,
                "output",
                "control connection closed: the control process does not read",
            )
            transport.abort()
            return
        transport.write(answers)

    def connection_lost(self, exc: Exception | None) -> None:
        self._arrived()
        self.served = self._conversation.established
        self._conversation.disconnected()
        self.closed.set()

    def abort(self) -> None:
        """End the connection at once."""
        if self._transport is not None:
            self._transport.abort()


class ControlClient:
    """Keeps one connection to control open until cancelled.

    `established` tells whether control answered hello; `users_revision` is the shard's snapshot of
    users (-1: none yet; then no user with a password can log in).
    """

    def __init__(
        self,
        path: Path,
        hello: ProcessHello,
        handlers: Handlers,
        arrived: Callable[[], None] = lambda: None,
    ) -> None:
        """``arrived`` is called before anything is handled: the shard's last tick may be long
        ago."""
        self._path = path
        self._arrived = arrived
        self._conversation = Conversation(hello, handlers)
        self._log = RateLimited(_log, per_second=0.2, burst=3)

    @property
    def established(self) -> bool:
        """True while there is a connection on which control has answered hello."""
        return self._conversation.established

    @property
    def users_revision(self) -> int:
        """Revision of the last snapshot of users taken, -1 before the first."""
        return self._conversation.users_revision

    def request(self, kind: str, body: Body, answered: Answered) -> bool:
        """Send a request to control, see `Conversation.request`."""
        return self._conversation.request(kind, body, answered)

    async def run(self) -> None:
        """Connect, serve, and reconnect after a loss, until the task is cancelled."""
        attempt = 0
        while True:
            attempt += 1
            if await self._serve_once(attempt):
                attempt = 1
            await asyncio.sleep(back_off(attempt))

    async def _serve_once(self, attempt: int) -> bool:
        """Serve one connection until it ends; return whether control answered hello."""
        connection = _Connection(self._conversation, self._log, self._arrived)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_SECONDS_MAX):
                opened = unix_socket.connect(self._path, 0.0)
                await loop.create_unix_connection(lambda: connection, sock=opened)
        except (OSError, TimeoutError) as problem:
            if attempt >= REPORTED_ATTEMPT:
                self._log.event(
                    logging.INFO,
                    "connect",
                    "cannot reach the control process, retrying: %s",
                    problem,
                )
            return False
        try:
            await connection.closed.wait()
        finally:
            connection.abort()
        return connection.served

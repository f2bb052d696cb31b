"""The control socket without asyncio: for the acceptor's epoll loop, and for blocking programs.

`PollingClient` is the acceptor's: it never blocks, and tells which descriptor to watch, for what,
and when to try again. `ControlCaller` is fluxmqctl's: one request, one answer, with a deadline.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import time
from pathlib import Path
from typing import Final, Self

from fluxmq.ipc import unix_socket
from fluxmq.ipc.control_frames import FrameDecoder, FramingError, encode_frame
from fluxmq.ipc.conversation import (
    REPORTED_ATTEMPT,
    Conversation,
    Handlers,
    RefusedError,
    back_off,
)
from fluxmq.ipc.messages import (
    ERROR,
    REPLY,
    Body,
    ControlMessage,
    Failure,
    MessageError,
    ProcessHello,
)
from fluxmq.logs import RateLimited, get_logger
from fluxmq.model.errors import FluxmqError

OUTPUT_BYTES_MAX: Final = 1024 * 1024
_READ_BYTES: Final = 65536

_log = get_logger(__name__)


class PollingClient:
    """A connection to control inside another's epoll loop; times are seconds, monotonic.

    The owner calls `tick(now)` at least once a second and after each event, and watches `fileno`
    (None while not connected) for reading, and for writing when `wants_write`. When the number
    changes, the old descriptor is already closed and has left every epoll set by itself.
    """

    def __init__(self, path: Path, hello: ProcessHello, handlers: Handlers) -> None:
        self._path = path
        self._conversation = Conversation(hello, handlers)
        self._conversation.send = self._later
        self._log = RateLimited(_log, per_second=0.2, burst=3)
        self._socket: socket.socket | None = None
        self._output = bytearray()
        self._attempt = 0
        self._next_attempt = 0.0

    @property
    def fileno(self) -> int | None:
        """Descriptor to watch, or None."""
        return None if self._socket is None else self._socket.fileno()

    @property
    def wants_write(self) -> bool:
        """True while output waits for the socket to take it."""
        return bool(self._output)

    @property
    def established(self) -> bool:
        """True while there is a connection on which control has answered hello."""
        return self._conversation.established

    def tick(self, now: float) -> None:
        """Connect if it is time to."""
        if self._socket is not None or now < self._next_attempt:
            return
        self._attempt += 1
        self._next_attempt = now + back_off(self._attempt)
        try:
            # EAGAIN means that control's queue of connections is full: a failure like any other.
            connection = unix_socket.connect(self._path, 0.0)
        except OSError as problem:
            if self._attempt >= REPORTED_ATTEMPT:
                self._log.event(
                    logging.INFO,
                    "connect",
                    "cannot reach the control process, retrying: %s",
                    problem,
                )
            return
        self._socket = connection
        self._output += self._conversation.connected()
        self.on_writable(now)

    def on_readable(self, now: float) -> None:
        """Read the available bytes, once, and answer them."""
        if self._socket is None:
            return
        try:
            data = self._socket.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError as problem:
            self._drop(now, str(problem))
            return
        if not data:
            self._drop(now, "control closed the connection")
            return
        try:
            self._output += self._conversation.receive(data)
        except (FramingError, MessageError, RefusedError) as problem:
            self._drop(now, str(problem))
            return
        if self._conversation.established:
            self._attempt = 0
        self.on_writable(now)

    def on_writable(self, now: float) -> None:
        """Send as much as the socket accepts."""
        if self._socket is None or not self._output:
            return
        try:
            sent = self._socket.send(self._output)
        except BlockingIOError:
            sent = 0
        except OSError as problem:
            self._drop(now, str(problem))
            return
        del self._output[:sent]
        if len(self._output) > OUTPUT_BYTES_MAX:
            self._drop(now, "control does not read")

    def _later(self, data: bytes) -> None:
        """Send an answer to a command with the next output."""
        self._output += data

    def close(self) -> None:
        """Close the connection for good."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._output.clear()
        self._next_attempt = float("inf")

    def _drop(self, now: float, reason: str) -> None:
        self._log.event(logging.WARNING, "lost", "control connection ended: %s", reason)
        self._conversation.disconnected()
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._output.clear()
        self._next_attempt = now + back_off(max(1, self._attempt))


class CallError(FluxmqError):
    """The control process answered a request with an error; `code` is one of `messages.ERROR_*`."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class ControlCaller:
    """A blocking connection for one caller: `call` sends a request and waits for its answer."""

    def __init__(self, path: Path, timeout: float) -> None:
        """Connect. `timeout` in seconds bounds each call. Raises OSError if there is no listener."""
        self._timeout = timeout
        self._decoder = FrameDecoder()
        self._next_id = 1
        self._socket = unix_socket.connect(path, timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def call(self, kind: str, body: Body) -> Body:
        """Return the body of the answer.

        Raises CallError when control refuses, TimeoutError when it does not answer in time, OSError
        when the connection breaks, FramingError or MessageError when the answer is not one.
        """
        message_id = self._next_id
        self._next_id += 1
        deadline = time.monotonic() + self._timeout
        self._socket.settimeout(self._timeout)
        # Control gives the reason before it closes a connection it refuses: report that answer.
        with contextlib.suppress(BrokenPipeError):
            self._socket.sendall(encode_frame(ControlMessage(kind, message_id, body).to_wire()))
        while True:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise TimeoutError("the control process did not answer in time")
            self._socket.settimeout(remaining)
            data = self._socket.recv(_READ_BYTES)
            if not data:
                raise ConnectionResetError("the control process closed the connection")
            for value in self._decoder.feed(data):
                answer = ControlMessage.from_wire(value)
                if answer.kind == ERROR and answer.id in (message_id, 0):
                    failure = Failure.from_body(answer.body)
                    raise CallError(failure.code, failure.text)
                if answer.kind == REPLY and answer.id == message_id:
                    return answer.body

"""One bidirectional stream to another node, the same to whoever dialled and whoever was dialled."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, Protocol

from fluxmq.cluster import wire as wire_format
from fluxmq.cluster.channels import PROBLEM_CHARS_MAX
from fluxmq.cluster.errors import MalformedStream
from fluxmq.logs import RateLimited, get_logger

BACKLOG_BYTES_MAX: Final = 64 << 20
"""Bytes that may wait for one stream: some seconds of a fast link. Behind it the other side is taken for stuck."""

_log = get_logger("fluxmq.cluster")
_problems = RateLimited(_log, per_second=1.0, burst=5)


class Hello(NamedTuple):
    """Who speaks on a stream, and what for.

    ``node``: cluster.node_id. ``shard``: the node's process. ``workers``: how many shards it has. ``epoch``: random
    63-bit number of the process's life. ``purpose``: "shard", or "group:" and the name of a replication group. ``tells_time``:
    whether it understands what is said of clocks.
    """

    node: str
    shard: int
    workers: int
    epoch: int
    purpose: str
    tells_time: bool = False


class Listener(Protocol):
    """Who is told of streams, in the event loop's thread. What a method raises ends the stream, and is logged."""

    def connected(self, connection: Connection) -> None:
        """A stream is there, and may be sent to."""

    def received(self, connection: Connection, frames: Sequence[bytes]) -> None:
        """Frames have come, in the order they were sent: those of one message. Not called after ``close``."""

    def lost(self, connection: Connection, why: str) -> None:
        """A stream that was told of has ended, whoever ended it. Called once."""


class Wire(Protocol):
    """What a stream is written to. ``writable``: there is room for another message."""

    @property
    def writable(self) -> bool:
        """Whether a message goes out at once, or waits."""

    def send(self, message: bytes) -> None:
        """Send a message."""

    def end(self) -> None:
        """Send nothing more, and hear of nothing any more."""


class Connection:
    """A stream. ``hello``: what the other side says it is. ``outgoing``: dialled by this side. ``open``: not ended.
    ``backlog_bytes``: of frames given to ``send`` that wait here. ``ended``: done when the listener was told of the end."""

    __slots__ = (
        "_assembler",
        "_listener",
        "_loop",
        "_messages",
        "_scheduled",
        "_waiting",
        "_why",
        "_wire",
        "backlog_bytes",
        "ended",
        "hello",
        "open",
        "outgoing",
    )

    def __init__(self, hello: Hello, outgoing: bool, listener: Listener, wire: Wire) -> None:
        self.hello = hello
        self.outgoing = outgoing
        self.open = True
        self.backlog_bytes = 0
        self._listener = listener
        self._wire = wire
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self._assembler = wire_format.Assembler()
        self._waiting: list[bytes] = []
        self._messages: Iterator[tuple[bytes, int]] | None = None
        self._scheduled = False
        self._why = ""

    def start(self) -> None:
        """Tell the listener that the stream is there."""
        try:
            self._listener.connected(self)
        except Exception as error:  # noqa: BLE001 (a listener's fault must not end the process)
            self._fault(error)

    def send(self, frame: bytes) -> bool:
        """Send a frame with the others of this turn of the event loop.

        False: the stream is not open; or more than ``BACKLOG_BYTES_MAX`` wait already, or the frame is longer than
        ``wire.FRAME_BYTES_MAX``: it is dropped, and the stream ends, since what follows would come without it.
        """
        if not self.put(frame):
            return False
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush)
        return True

    def put(self, frame: bytes) -> bool:
        """As `send`, for who calls `flush` when it has given all its frames."""
        if not self.open:
            return False
        if self.backlog_bytes > BACKLOG_BYTES_MAX or len(frame) > wire_format.FRAME_BYTES_MAX:
            self._end(f"{self.backlog_bytes} bytes wait to be sent, and {len(frame)} more")
            return False
        self._waiting.append(frame)
        self.backlog_bytes += len(frame)
        return True

    def close(self) -> None:
        """End the stream; what waits is dropped. ``lost`` follows."""
        self._end("closed")

    def broken(self, why: str) -> None:
        """The stream has ended, or has to. ``lost`` follows."""
        self._end(why)

    def take(self, message: bytes) -> None:
        """A message has come."""
        if not self.open:
            return
        try:
            frames = self._assembler.take(message)
            if frames:
                self._listener.received(self, frames)
        except MalformedStream as error:
            self._report(logging.WARNING, "a message between nodes was not understood", str(error))
            self._end(str(error))
        except Exception as error:  # noqa: BLE001 (as above)
            self._fault(error)

    def writable(self) -> None:
        """There is room for what waits."""
        if not self._scheduled:
            self.flush()

    def _flush(self) -> None:
        self._scheduled = False
        self.flush()

    def flush(self) -> None:
        """Send what waits, as far as there is room."""
        wire = self._wire
        while self.open and wire.writable:
            if self._messages is None:
                if not self._waiting:
                    return
                frames, self._waiting = self._waiting, []
                if len(frames) == 1 and len(frames[0]) <= wire_format.PIECE_BYTES:
                    wire.send(wire_format.single(frames[0]))  # as nearly always
                    self.backlog_bytes -= len(frames[0])
                    return
                self._messages = wire_format.messages(frames)
            made = next(self._messages, None)
            if made is None:
                self._messages = None
                continue
            message, carried = made
            wire.send(message)
            self.backlog_bytes -= carried

    def _end(self, why: str) -> None:
        """End it for this reason, if it has not ended for another."""
        if self.open:
            self.open = False
            self._why = why
            self._waiting.clear()
            self._messages = None
            self._wire.end()
            self._loop.call_soon(self._tell_lost)

    def _tell_lost(self) -> None:
        self.backlog_bytes = 0
        try:
            self._listener.lost(self, self._why)
        except Exception as error:  # noqa: BLE001 (as above)
            self._fault(error)
        if not self.ended.done():
            self.ended.set_result(None)

    def _fault(self, error: Exception) -> None:
        self._report(logging.ERROR, "a stream between nodes ends after a fault here", repr(error))
        self._end(f"a fault here: {error!r}")

    def _report(self, level: int, message: str, problem: str) -> None:
        _problems.event(
            level,
            f"{self.hello.node}: {message}",
            message,
            node=self.hello.node,
            purpose=self.hello.purpose,
            problem=problem[:PROBLEM_CHARS_MAX],
        )

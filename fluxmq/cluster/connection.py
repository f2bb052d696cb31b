"""One bidirectional stream to another node, the same on the dialling and the dialled side."""

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
"""Bytes that may wait for one stream: some seconds of a fast link; more means it is stuck."""

_log = get_logger("fluxmq.cluster")
_problems = RateLimited(_log, per_second=1.0, burst=5)


class StreamHello(NamedTuple):
    """Introduction of a stream's sender, and the stream's purpose.

    ``node``: cluster.node_id. ``shard``: the node's process. ``workers``: how many shards it has.
    ``epoch``: random 63-bit number of the process's life. ``purpose``: one of those at a shard's
    address (`fluxmq.cluster.shard_endpoint`), or "group:" and the name of a replication group.
    ``tells_time``: whether it understands clock readings. ``combines``: whether it understands
    heartbeats of many groups in one frame.
    """

    node: str
    shard: int
    workers: int
    epoch: int
    purpose: str
    tells_time: bool = False
    combines: bool = False


class StreamListener(Protocol):
    """Receives the events of streams, in the event loop's thread. An exception ends the stream, and
    is logged.
    """

    def connected(self, connection: NodeStream) -> None:
        """Handle a new stream, which may be sent to."""

    def received(self, connection: NodeStream, frames: Sequence[bytes]) -> None:
        """Handle the frames of one message, in sending order. Not called after ``close``."""

    def lost(self, connection: NodeStream, why: str) -> None:
        """Handle the end of a connected stream, whichever side ended it. Called once."""


class StreamOutput(Protocol):
    """The output of a stream."""

    @property
    def writable(self) -> bool:
        """True if a message goes out at once instead of waiting."""

    def send(self, message: bytes) -> None:
        """Send a message."""

    def end(self) -> None:
        """Stop sending and receiving."""

    def rest(self, on: bool) -> None:
        """Look seldom whether the other side is there, or as often as usual again."""


class NodeStream:
    """A stream. ``hello``: the other side's introduction. ``outgoing``: dialled by this side.
    ``open``: not ended. ``backlog_bytes``: bytes of frames given to ``send`` that wait here.
    ``ended``: done when the listener has handled the end.
    """

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

    def __init__(
        self, hello: StreamHello, outgoing: bool, listener: StreamListener, wire: StreamOutput
    ) -> None:
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
        """Tell the listener about the new stream."""
        try:
            self._listener.connected(self)
        except Exception as error:  # noqa: BLE001 (a listener's fault must not end the process)
            self._fault(error)

    def send(self, frame: bytes) -> bool:
        """Send a frame with the others of this turn of the event loop.

        Return False if the stream is not open. Also if more than ``BACKLOG_BYTES_MAX`` wait
        already, or the frame is longer than ``wire.FRAME_BYTES_MAX``: then the frame is dropped,
        and the stream ends, since later frames would arrive without it.
        """
        if not self.put(frame):
            return False
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush)
        return True

    def put(self, frame: bytes) -> bool:
        """Queue a frame like `send`; the caller calls `flush` after its last frame."""
        if not self.open:
            return False
        if self.backlog_bytes > BACKLOG_BYTES_MAX or len(frame) > wire_format.FRAME_BYTES_MAX:
            self._end(
                f"{self.backlog_bytes} bytes are waiting to be sent; another {len(frame)} do not fit"
            )
            return False
        self._waiting.append(frame)
        self.backlog_bytes += len(frame)
        return True

    def close(self) -> None:
        """End the stream; waiting frames are dropped. ``lost`` follows."""
        self._end("closed")

    def rest(self, on: bool) -> None:
        """Look seldom whether the other side is there, because the caller looks whether its process
        is; or as often as usual again."""
        self._wire.rest(on)

    def broken(self, why: str) -> None:
        """End the stream because of a problem. ``lost`` follows."""
        self._end(why)

    def take(self, message: bytes) -> None:
        """Take a message that has come."""
        if not self.open:
            return
        try:
            frames = self._assembler.take(message)
            if frames:
                self._listener.received(self, frames)
        except MalformedStream as error:
            self._report(logging.WARNING, "malformed message from another node", str(error))
            self._end(str(error))
        except Exception as error:  # noqa: BLE001 (as above)
            self._fault(error)

    def writable(self) -> None:
        """Send waiting frames: there is room."""
        if not self._scheduled:
            self.flush()

    def _flush(self) -> None:
        self._scheduled = False
        self.flush()

    def flush(self) -> None:
        """Send waiting frames as far as there is room."""
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
        """End the stream for this reason, unless it has ended."""
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
        self._report(logging.ERROR, "inter-node stream closed after an internal error", repr(error))
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

"""One bidirectional stream to another node, the same to whoever dialled and whoever was dialled."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple, Protocol

from fluxmq.cluster import wire
from fluxmq.cluster.errors import MalformedStream, StreamEnded
from fluxmq.logs import RateLimited, get_logger

BACKLOG_BYTES_MAX: Final = 64 << 20
"""Bytes that may wait for one stream: some seconds of a fast link. Behind it the other side is taken for stuck."""

PROBLEM_CHARS_MAX: Final = 300
"""Of what a log line says about a problem: another node may have written it."""

_log = get_logger("fluxmq.cluster")
_problems = RateLimited(_log, per_second=1.0, burst=5)


class Hello(NamedTuple):
    """Who speaks on a stream, and what for.

    ``node``: cluster.node_id. ``shard``: the node's process. ``workers``: how many shards it has. ``epoch``: random
    63-bit number of the process's life. ``purpose``: "shard", or "group:" and the name of a replication group.
    """

    node: str
    shard: int
    workers: int
    epoch: int
    purpose: str


class Listener(Protocol):
    """Who is told of streams, in the event loop's thread. What a method raises ends the stream, and is logged."""

    def connected(self, connection: Connection) -> None:
        """A stream is there, and may be sent to."""

    def received(self, connection: Connection, frames: Sequence[bytes]) -> None:
        """Frames have come, in the order they were sent: those of one message. Not called after ``close``."""

    def lost(self, connection: Connection, why: str) -> None:
        """A stream that was told of has ended, whoever ended it. Called once."""


Read = Callable[[], Awaitable[bytes | None]]
"""The next message; None when the other side has ended the stream. Raises StreamEnded."""
Write = Callable[[bytes], Awaitable[None]]
"""Send a message; returns when the next may be given. Raises StreamEnded."""


class Connection:
    """A stream. ``hello``: what the other side says it is. ``outgoing``: dialled by this side. ``open``: not ended.
    ``backlog_bytes``: of frames given to ``send`` that gRPC has not taken."""

    __slots__ = (
        "_ends",
        "_listener",
        "_waiting",
        "_wake",
        "_why",
        "backlog_bytes",
        "hello",
        "open",
        "outgoing",
    )

    def __init__(self, hello: Hello, outgoing: bool, listener: Listener) -> None:
        self.hello = hello
        self.outgoing = outgoing
        self.open = True
        self.backlog_bytes = 0
        self._listener = listener
        self._waiting: list[bytes] = []
        self._wake: asyncio.Future[None] | None = None
        self._ends: asyncio.Future[None] | None = None
        self._why = ""

    def send(self, frame: bytes) -> bool:
        """Send a frame with the others of this turn of the event loop.

        False: the stream is not open; or more than ``BACKLOG_BYTES_MAX`` wait already, or the frame is longer than
        ``wire.FRAME_BYTES_MAX``: it is dropped, and the stream ends, since what follows would come without it.
        """
        if not self.open:
            return False
        if self.backlog_bytes > BACKLOG_BYTES_MAX or len(frame) > wire.FRAME_BYTES_MAX:
            self._end(f"{self.backlog_bytes} bytes wait to be sent, and {len(frame)} more")
            return False
        self._waiting.append(frame)
        self.backlog_bytes += len(frame)
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)
        return True

    def close(self) -> None:
        """End the stream; what waits is dropped. ``lost`` follows."""
        self._end("closed")

    def _end(self, why: str) -> None:
        """End it for this reason, if it has not ended for another."""
        if self.open:
            self.open = False
            self._why = why
            self._waiting.clear()
            if self._ends is not None and not self._ends.done():
                self._ends.set_result(None)

    async def run(self, read: Read, write: Write) -> None:
        """Carry frames until either side ends it, or this is cancelled. Raises nothing else."""
        loop = asyncio.get_running_loop()
        self._ends = loop.create_future()
        tasks: set[asyncio.Future[None]] = {self._ends}
        try:
            self._listener.connected(self)
            if self.open:
                tasks.add(loop.create_task(self._reading(read)))
                tasks.add(loop.create_task(self._writing(write)))
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        except Exception as error:  # noqa: BLE001 (a listener's fault must not end the process)
            self._fault(error)
        finally:
            self._end("stopped")
            for task in tasks:
                task.cancel()
            try:
                await asyncio.wait(tasks)
            finally:
                self.backlog_bytes = 0
                self._tell_lost()

    def _tell_lost(self) -> None:
        try:
            self._listener.lost(self, self._why)
        except Exception as error:  # noqa: BLE001 (as above)
            self._fault(error)

    async def _reading(self, read: Read) -> None:
        assembler = wire.Assembler()
        try:
            while self.open:
                data = await read()
                if data is None:
                    self._end("ended by the other side")
                    return
                frames = assembler.take(data)
                if frames and self.open:
                    self._listener.received(self, frames)
        except MalformedStream as error:
            self._report(logging.WARNING, "a message between nodes was not understood", str(error))
            self._end(str(error))
        except StreamEnded as error:
            self._end(str(error))
        except Exception as error:  # noqa: BLE001 (as above)
            self._fault(error)

    async def _writing(self, write: Write) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self.open:
                if not self._waiting:
                    self._wake = loop.create_future()
                    await self._wake
                frames, self._waiting = self._waiting, []
                for message, carried in wire.messages(frames):
                    await write(message)
                    self.backlog_bytes -= carried
        except StreamEnded as error:
            self._end(str(error))
        except Exception as error:  # noqa: BLE001 (as above)
            self._fault(error)

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

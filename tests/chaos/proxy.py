"""TCP links that behave badly: a listener that passes bytes on to one address, late, slowly, not at all, or with a reset.

Each ``Link`` stands where a peer's address is expected. What it does may be changed at any moment, for what is under way
too. A link reads no more than a bounded amount ahead, so that a slow one pushes back as a slow network does.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable
from random import Random
from typing import NamedTuple

READ_BYTES = 16_384
SEGMENT_BYTES = 1448
"""A slow link passes on so many at a time, as TCP segments do."""
AHEAD_MAX = 256
"""Readings kept per direction: 4 MiB."""
CONNECT_TIMEOUT_S = 10.0


class Manner(NamedTuple):
    """How a link treats bytes. Seconds for ``delay``, and up to ``jitter`` more; ``bandwidth`` in bytes a second, 0 for
    all there is; ``stalled``: nothing passes, and nobody is told."""

    delay: float = 0.0
    jitter: float = 0.0
    bandwidth: int = 0
    stalled: bool = False


PLAIN = Manner()


class Link:
    """Passes on what comes to ``listen`` to ``target``, both (host, port). ``make`` makes sockets, elsewhere if it likes."""

    def __init__(
        self,
        listen: tuple[str, int],
        target: tuple[str, int],
        random: Random,
        make: Callable[[], socket.socket] = socket.socket,
    ) -> None:
        self.listen = listen
        self.target = target
        self.passed = 0
        """Bytes passed on so far, both directions together."""
        self._random = random
        self._make = make
        self._forth = self._back = PLAIN
        self._changed = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen. Raises ``OSError``."""
        made = self._make()
        self._loop = asyncio.get_running_loop()
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind(self.listen)
            self._server = await asyncio.start_server(self._accepted, sock=made)
        except OSError:
            made.close()
            raise

    async def stop(self) -> None:
        """Close everything."""
        if self._server is not None:
            self._server.close()
        self.reset()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def reset_soon(self) -> None:
        """``reset``, said by another thread than the event loop's."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self.reset)

    def behave(self, forth: Manner, back: Manner | None = None) -> None:
        """Treat bytes so from now on: those towards the target, and those coming back (alike if not given). Any thread may."""
        self._forth, self._back = forth, forth if back is None else back
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def reset(self) -> None:
        """End every connection with RST, on both sides."""
        for writer in list(self._writers):
            made = writer.get_extra_info("socket")
            if made is not None:
                with contextlib.suppress(OSError):
                    made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()

    # --- one connection ----------------------------------------------------------------------------------------

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        other: asyncio.StreamWriter | None = None
        try:
            other_reader, other = await self._connect()
            self._writers.add(other)
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pump(reader, other, lambda: self._forth))
                both.create_task(self._pump(other_reader, writer, lambda: self._back))
        except* (OSError, TimeoutError, asyncio.CancelledError):
            pass
        finally:
            for each in (writer, other):
                if each is not None:
                    self._writers.discard(each)
                    each.transport.abort()
            self._tasks.discard(task)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        made = self._make()
        made.setblocking(False)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await asyncio.get_running_loop().sock_connect(made, self.target)
        except (OSError, TimeoutError, asyncio.CancelledError):
            made.close()
            raise
        return await asyncio.open_connection(sock=made)

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        manner: Callable[[], Manner],
    ) -> None:
        """One direction, until its end, which ends the connection."""
        ahead: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(AHEAD_MAX)
        now = asyncio.get_running_loop().time

        async def take() -> None:
            due = 0.0
            data = b"more"
            while data:
                data = await reader.read(READ_BYTES)
                how = manner()
                late = how.delay + how.jitter * self._random.random()
                due = max(due, now() + late)
                await ahead.put((due, data))

        async with asyncio.TaskGroup() as group:
            taking = group.create_task(take())
            while True:
                due, data = await ahead.get()
                await asyncio.sleep(max(0.0, due - now()))
                if not data:
                    while manner().stalled:
                        await self._changed.wait()
                    taking.cancel()
                    raise ConnectionResetError("the other side has ended the connection")
                while data:
                    bandwidth = manner().bandwidth
                    piece = data[:SEGMENT_BYTES] if bandwidth else data
                    data = data[len(piece) :]
                    if bandwidth:
                        await asyncio.sleep(len(piece) / bandwidth)
                    while manner().stalled:
                        await self._changed.wait()
                    writer.write(piece)
                    self.passed += len(piece)
                    await writer.drain()

"""A control process of which only one part is there, and a shard that is connected to it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol, TypeVar

from fluxmq.control.peers import ControlListener, Peer, Service
from fluxmq.ipc import unix_socket
from fluxmq.ipc.client import ControlClient
from fluxmq.ipc.conversation import Handlers, RequestHandler
from fluxmq.ipc.messages import Body, ControlMessage, ProcessHello, ProcessNumbers
from tests.etcd import is_true


class Part(Protocol):
    """A part of the control process."""

    def start(self) -> None: ...
    async def stop(self) -> None: ...
    async def answer(self, message: ControlMessage, /) -> Body: ...


Made = TypeVar("Made", bound=Part)


@asynccontextmanager
async def alone(
    path: Path,
    make: Callable[[Callable[[], list[Peer]]], Made],
    commands: dict[str, RequestHandler],
) -> AsyncIterator[Made]:
    """Run a part, which is made with a function that returns the connected shards. ``commands``: handlers of the shard."""
    listener: ControlListener
    part = make(lambda: listener.processes)
    listener = ControlListener(Service(part.answer, lambda _: None, lambda _: None), os.geteuid())
    await listener.start(unix_socket.bind(path))
    part.start()
    handlers = Handlers(lambda: (), ProcessNumbers, commands=commands)
    shard = ControlClient(path, ProcessHello("shard", 0, os.getpid()), handlers)
    running = asyncio.get_running_loop().create_task(shard.run())
    try:
        await is_true(lambda: shard.established)
        yield part
    finally:
        running.cancel()
        await asyncio.wait([running])
        await listener.stop()
        await part.stop()

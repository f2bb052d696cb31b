"""A server of etcd for tests, if a program of it is here."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from fluxmq.control.etcd.client import EtcdClient, EtcdError
from fluxmq.control.etcd.messages import Get
from fluxmq.settings.clustering import ClusterSettings, Etcd
from fluxmq.supervisor.etcd import EtcdProgramError, arguments, program_of, version_of
from tests.broker import HOST, free_ports

PATIENCE = 30.0
"""Seconds that no step takes unless it fails."""


def program() -> str:
    """The path of the program; skips the test where there is none."""
    try:
        return program_of(Etcd())
    except EtcdProgramError as problem:
        pytest.skip(str(problem))


class Server:
    """A member that is alone, as the supervisor would start it."""

    def __init__(self, folder: Path, **transport: str | bool) -> None:
        peer, client = free_ports(2)
        self.address = f"{HOST}:{client}"
        etcd: dict[str, Any] = {"bind_addr": f"{HOST}:{peer}", "client_addr": self.address}
        self.cluster = ClusterSettings.model_validate(
            {"enabled": True, "node_id": "node1", "etcd": etcd, "transport": transport}
        )
        self._folder = folder
        self._process: subprocess.Popen[bytes]
        self.start()

    def start(self) -> None:
        assert self.cluster.etcd is not None
        path = program()
        options = arguments(
            self.cluster, self.cluster.etcd, str(self._folder / "etcd"), version_of(path)
        )
        self._process = subprocess.Popen([path, *options])

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; SIGSTOP has stopped all threads when this returns."""
        self._process.send_signal(number)
        if number is signal.SIGSTOP:
            os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@contextmanager
def serving(folder: Path, **transport: str | bool) -> Iterator[Server]:
    """A server, until the block ends. ``transport``: settings of cluster.transport."""
    server = Server(folder, **transport)
    try:
        yield server
    finally:
        server.kill()


def run(server: Server, scenario: Callable[[EtcdClient], Awaitable[None]]) -> None:
    """Run a scenario with a client of a server, once that answers."""

    async def bounded() -> None:
        client = EtcdClient.of(server.cluster)
        try:
            async with asyncio.timeout(2 * PATIENCE):
                await eventually(lambda: answers(client))
                await scenario(client)
        finally:
            await client.close()

    uvloop.run(bounded())


async def answers(client: EtcdClient) -> bool:
    try:
        await client.transact((), (Get(b"x"),))
    except EtcdError:
        return False
    return True


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await condition():  # noqa: ASYNC110 - it asks another process
            await asyncio.sleep(0.02)


async def is_true(condition: Callable[[], bool]) -> None:
    async def asked() -> bool:
        return condition()

    await eventually(asked)

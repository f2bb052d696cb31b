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
    """A member as the supervisor would start it. ``etcd``: further settings of cluster.etcd."""

    def __init__(
        self,
        folder: Path,
        node: str,
        ports: tuple[int, int],
        etcd: dict[str, Any],
        transport: dict[str, str | bool],
    ) -> None:
        peer, client = ports
        self.address = f"{HOST}:{client}"
        etcd = {"bind_addr": f"{HOST}:{peer}", "client_addr": self.address, **etcd}
        self.cluster = ClusterSettings.model_validate(
            {"enabled": True, "node_id": node, "etcd": etcd, "transport": transport}
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
    peer, client = free_ports(2)
    server = Server(folder, "node1", (peer, client), {}, transport)
    try:
        yield server
    finally:
        server.kill()


@contextmanager
def serving_members(folder: Path, count: int) -> Iterator[list[Server]]:
    """A cluster of that many members, until the block ends."""
    ports = free_ports(2 * count)
    peers, clients = ports[:count], ports[count:]
    names = [f"node{number}" for number in range(1, count + 1)]
    initial = {
        "initial_cluster": ",".join(
            f"{name}=http://{HOST}:{peer}" for name, peer in zip(names, peers, strict=True)
        ),
        "bootstrap": True,
    }
    servers: list[Server] = []
    try:
        for name, *each in zip(names, peers, clients, strict=True):
            (folder / name).mkdir()
            servers.append(Server(folder / name, name, (each[0], each[1]), initial, {}))
        yield servers
    finally:
        for server in servers:
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

"""``python -m perf roaming``: clients with persistent sessions connect to one node of a cluster after the other.

Each client connects to a node other than its last one, at a fixed rate in all (open loop); its former connection is left
to the broker. What counts is the time from the moment when a move is due to CONNACK, which must say that the session is
there. Then new clients connect and disconnect as fast as they can, in a cluster, and to nodes that
know nothing of each other: what an owner key costs.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import random
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from perf import report
from perf.brokers import HOST
from perf.cluster_nodes import Nodes, Shape

CLIENTS = 1000
RATE = 200.0
SECONDS = 15.0
AT_ONCE = 50
"""Connections being set up at once before the clients begin to move."""
CONNECTING = (50, 200)
"""Connections being set up at once while new clients connect: each waits for a commit of etcd, so that their number
counts as well."""

CONNACK_TIMEOUT_S = 30.0


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    command.add_argument("--clients", type=int, default=CLIENTS)
    command.add_argument("--rate", type=float, default=RATE, help="moves per second in all")
    command.add_argument("--seconds", type=float, default=SECONDS)
    command.add_argument("--rounds", type=int, default=3)
    command.add_argument("--name", default="roaming", help="of the files written")
    command.add_argument("--results", type=Path, default=report.RESULTS, help="folder for files")


def connect_packet(name: str, *, clean: bool) -> bytes:
    """A CONNECT of MQTT 5, without keep-alive; not clean: with a session that stays for an hour."""
    expiry = b"" if clean else b"\x11" + (3600).to_bytes(4, "big")
    body = b"\0\4MQTT\5" + (b"\2" if clean else b"\0") + b"\0\0" + bytes((len(expiry),)) + expiry
    body += len(name).to_bytes(2, "big") + name.encode()
    assert len(body) < 128
    return bytes((0x10, len(body))) + body


class Client:
    """A client identifier and its present connection."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.node = 0
        self.known = False
        self._writer: asyncio.StreamWriter | None = None

    async def connect(self, port: int, *, clean: bool = False) -> None:
        """Connect, and wait for CONNACK. Raises ``RuntimeError`` if it is another one than expected."""
        former = self._writer
        reader, self._writer = await asyncio.open_connection(HOST, port)
        self._writer.write(connect_packet(self.name, clean=clean))
        async with asyncio.timeout(CONNACK_TIMEOUT_S):
            head = await reader.readexactly(2)
            body = await reader.readexactly(head[1])
        if head[0] != 0x20 or body[1] or bool(body[0]) != self.known:
            raise RuntimeError(f"{self.name}: CONNACK {body[:2].hex()}, known: {self.known}")
        self.known = not clean
        if former is not None:
            former.close()

    async def close(self) -> None:
        """Close the connection."""
        if self._writer is not None:
            self._writer.close()
            with contextlib.suppress(ConnectionError):
                await self._writer.wait_closed()


async def roam(ports: Sequence[int], count: int, rate: float, seconds: float) -> list[float]:
    """Move clients at a rate; return how long each move took, in milliseconds."""
    clients = [Client(f"roamer-{number}") for number in range(count)]
    for at in range(0, count, AT_ONCE):
        part = clients[at : at + AT_ONCE]
        await asyncio.gather(*(client.connect(ports[client.node]) for client in part))
    chosen = random.Random(1)
    took: list[float] = []

    async def move(client: Client, due: float) -> None:
        client.node = (client.node + chosen.randint(1, len(ports) - 1)) % len(ports)
        await client.connect(ports[client.node])
        took.append((time.perf_counter() - due) * 1000)

    start = time.perf_counter()
    moves: list[asyncio.Task[None]] = []
    for number in range(int(rate * seconds)):
        due = start + number / rate
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        moves.append(asyncio.create_task(move(clients[number % count], due)))
    await asyncio.gather(*moves)
    await asyncio.gather(*(client.close() for client in clients))
    return took


async def connects(port: int, seconds: float, prefix: str, at_once: int) -> float:
    """Connect new clients as fast as they are taken, so many at once; return how many in a second."""
    names = itertools.count()
    end = time.perf_counter() + seconds
    done = 0

    async def one() -> None:
        nonlocal done
        while time.perf_counter() < end:
            client = Client(f"{prefix}-{next(names)}")
            await client.connect(port, clean=True)
            await client.close()
            done += 1

    await asyncio.gather(*(one() for _ in range(at_once)))
    return done / seconds


@asynccontextmanager
async def cluster(*, clustered: bool) -> AsyncIterator[list[int]]:
    """The MQTT ports of three nodes that run."""
    with tempfile.TemporaryDirectory(prefix="fluxmq-roaming-") as folder:
        nodes = Nodes.create(Path(folder), Shape(queues=0, clustered=clustered))
        await asyncio.to_thread(nodes.start)
        try:
            yield [node.addresses.mqtt for node in nodes.nodes]
        finally:
            await asyncio.to_thread(nodes.stop)


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measure all; rounds with a cluster, and with nodes that know nothing of each other, alternate."""
    found: dict[str, Any] = {"moves_ms": []}
    for at_once in CONNECTING:
        found[f"connects_per_s_{at_once}"] = []
        found[f"connects_alone_per_s_{at_once}"] = []
    for number in range(options.rounds):
        async with cluster(clustered=True) as ports:
            took = await roam(ports, options.clients, options.rate, options.seconds)
            cuts = quantiles(took, n=100)
            found["moves_ms"].append({"p50": median(took), "p99": cuts[98], "max": max(took)})
            for at_once in CONNECTING:
                prefix = f"with-{at_once}-{number}"
                rate = await connects(ports[0], options.seconds / 3, prefix, at_once)
                found[f"connects_per_s_{at_once}"].append(rate)
        async with cluster(clustered=False) as ports:
            for at_once in CONNECTING:
                prefix = f"without-{at_once}-{number}"
                rate = await connects(ports[0], options.seconds / 3, prefix, at_once)
                found[f"connects_alone_per_s_{at_once}"].append(rate)
    return found


def main(options: argparse.Namespace) -> int:
    """Measure, write the figures and show them."""
    found = asyncio.run(measure(options))
    about = {"time": report.now(), **report.machine()}
    asked = {"clients": options.clients, "moves_per_s": options.rate}
    report.write_json(options.results / f"{options.name}.json", {"about": about, **asked, **found})
    for key, values in found.items():
        print(f"{key}: {values}")
    return 0

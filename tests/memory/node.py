"""A node with a mark of memory a little above what it holds, and how much it holds at most."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pika  # type: ignore[import-untyped]
from pika.exceptions import AMQPError  # type: ignore[import-untyped]

from fluxmq.ipc.memory import ProcessMemory
from tests.broker import HOST, Broker, free_ports, start_broker
from tests.conformance.client import eventually

MIB = 1 << 20
ROOM = 64 * MIB
"""From what the node holds at its start to its mark."""
OVERSHOOT = 64 * MIB
"""What may come between two looks, a tenth of a second, and what the messages' way through the node takes."""
SAME = 16 * MIB
"""Difference between two readings of an idle node, at most: each process measures its part of the pages that it shares once,
and not at the same moment as the test; on a busy machine more is written between."""
DEADLINE = 60.0


class Peak:
    """The most that the node's processes have held together, looked at all the time."""

    def __init__(self, pids: list[int]) -> None:
        self._processes = [ProcessMemory(pid) for pid in pids]
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.bytes = self.now()
        self._thread.start()

    def now(self) -> int:
        """What they hold at this moment."""
        return sum(process.read() for process in self._processes)

    def _watch(self) -> None:
        while not self._ended.wait(0.02):
            self.bytes = max(self.bytes, self.now())

    def close(self) -> None:
        """Look no more."""
        self._ended.set()
        self._thread.join()
        for process in self._processes:
            process.close()


class Node:
    """A broker with two shards; its mark lies a little above what it holds when it has started."""

    def __init__(self, folder: Path, room: int = ROOM) -> None:
        self._room = room
        (self.amqp_port,) = free_ports(1)
        settings = {
            "server": {"amqp": {"tcp": {"addr": f"{HOST}:{self.amqp_port}"}}},
            "storage": {"wal_file_bytes": "16MiB", "min_free_bytes": 0},
            # Verifying a password takes as much as there is room for here, and gives it back.
            "auth": {"argon2": {"time_cost": 1, "memory_cost": "64KiB"}},
        }
        self.broker: Broker = start_broker(folder, workers=2, settings=settings)
        self.mark = 0
        self._open: list[Any] = []
        self.peak = Peak(list(self.broker.pids().values()))

    def set_mark(self) -> None:
        """Set the mark; it is live."""
        # A process that starts counts pages as its own until all are ready.
        eventually(
            lambda: abs(self.number("fluxmq_memory_held_bytes") - self.peak.now()) < SAME,
            "every process counts its part of the pages that they share",
            DEADLINE,
        )
        self.mark = int(self.number("fluxmq_memory_held_bytes")) + self._room
        self.broker.reload({"memory": {"high_watermark_bytes": self.mark}})
        name = "fluxmq_memory_high_watermark_bytes"
        eventually(lambda: self.number(name) == self.mark, "the mark is in force")

    def number(self, name: str) -> float:
        """A metric, summed over its labels."""
        return sum(self.broker.metrics(name).values())

    @property
    def alarm(self) -> bool:
        """Whether memory is short."""
        return self.broker.metrics("fluxmq_alarm")[(("kind", "memory"),)] == 1

    def await_blocked(self) -> None:
        """Wait until a publisher is not read."""
        name = "fluxmq_connections_blocked"
        eventually(lambda: self.number(name) == 1, "the publisher is stopped", DEADLINE)

    def connect(self) -> Any:
        """A connection; the acceptor puts each next one on the shard with the fewest."""
        connection = pika.BlockingConnection(
            pika.ConnectionParameters(HOST, self.amqp_port, heartbeat=0)
        )
        self._open.append(connection)
        return connection

    def close(self) -> None:
        """Stop everything."""
        self.peak.close()
        for connection in self._open:
            with suppress(AMQPError, OSError):
                connection.close()
        self.broker.stop()

"""Memory of idle connections: what a broker's processes hold for each of many sessions that say nothing.

Proportional set size is summed over the process tree before and after the connections are made, so pages
shared between processes count once. What the kernel holds for the sockets belongs to no process; it is
reported beside (both ends, the generator's too, are on this machine) and not part of the figure.
"""

from __future__ import annotations

import socket
import time
from dataclasses import asdict, dataclass
from typing import Any

from perf import codec, handshake, processes
from perf.run import Progress, Target
from perf.worker import raise_descriptor_limit

FIRST_CONNECTIONS = 200
"""Made before the first reading, so that what a broker sets up once is not charged to the others."""

BATCH = 100
"""Connections greeted together: one after the other would measure the round trip."""

SETTLE_S = 1.0
"""From the last CONNACK to the reading of memory."""


@dataclass(frozen=True, slots=True)
class IdleMeasurement:
    """Bytes per connection: the broker's processes, and the kernel's for both ends together."""

    target: str
    connections: int
    pss_per_connection: float
    rss_per_connection: float
    kernel_tcp_per_connection: float
    kernel_slab_per_connection: float
    pss_total: int

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def _open(
    target: Target, opened: list[socket.socket], first: int, count: int, version: int
) -> None:
    for number in range(first, first + count):
        connection = handshake.dial(target.host, target.port)
        opened.append(connection)
        connection.sendall(codec.connect(f"perf-idle-{number}", version))
    for connection in opened[-count:]:
        first_byte, body = handshake.read_packet(connection)
        if first_byte != 0x20 or len(body) < 2 or body[1]:
            raise handshake.HandshakeError(f"CONNECT was answered {first_byte:#04x} {body.hex()}")


def measure(
    target: Target, connections: int, version: int = 4, progress: Progress | None = None
) -> IdleMeasurement:
    """Open that many connections, read memory, close them. Raises ``OSError`` when the broker refuses."""
    raise_descriptor_limit()
    pids = processes.tree(target.pids)
    opened: list[socket.socket] = []
    try:
        _open(target, opened, 0, FIRST_CONNECTIONS, version)
        time.sleep(SETTLE_S)
        before = processes.memory(pids)
        made = 0
        while made < connections:
            count = min(BATCH, connections - made)
            _open(target, opened, FIRST_CONNECTIONS + made, count, version)
            made += count
            if progress is not None:
                progress(made, connections)
        time.sleep(SETTLE_S)
        after = processes.memory(pids)
    finally:
        for connection in opened:
            connection.close()
    return IdleMeasurement(
        target=target.name,
        connections=connections,
        pss_per_connection=(after.pss - before.pss) / connections,
        rss_per_connection=(after.rss - before.rss) / connections,
        kernel_tcp_per_connection=(after.kernel_tcp - before.kernel_tcp) / connections,
        kernel_slab_per_connection=(after.kernel_slab - before.kernel_slab) / connections,
        pss_total=after.pss,
    )

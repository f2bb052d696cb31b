"""The memory of a node's shards, which holds what a test says."""

from __future__ import annotations

import os
from collections.abc import Callable

from fluxmq.ipc.memory import Watermarks
from fluxmq.ipc.table import ProcessTable
from fluxmq.net.reactor import Reactor
from fluxmq.settings.schema import Settings
from fluxmq.shards.alarms import Alarms, Watch

AVAILABLE = 1 << 30
"""Bytes of memory of the machine."""


class Memory:
    """Bytes that each shard holds, as it measures itself, and how many of them are given back only when asked for."""

    def __init__(self, shards: int) -> None:
        self.table = ProcessTable.create(shards)
        self.used = [0] * shards
        self.freed = [0] * shards

    def watch(
        self,
        shard: int,
        settings: Settings,
        alarms: Alarms,
        reactor: Reactor,
        disk_full: Callable[[], bool],
    ) -> Watch:
        """What looks for alarms on a shard."""
        marks = Watermarks.of(settings.memory, AVAILABLE)
        return Watch(
            *(alarms, reactor, self.table, shard, marks),
            lambda: self.used[shard],
            lambda: self.trim(shard),
            disk_full,
        )

    def trim(self, shard: int) -> float:
        """A shard gives back what it has freed, which takes a tenth of a second."""
        self.used[shard] -= self.freed[shard]
        self.freed[shard] = 0
        return 0.1

    def close(self) -> None:
        """Let go of the table."""
        self.table.close()
        os.close(self.table.fd)

"""The node's memory and alarms as the control process reports them.

Shards raise alarms and act on them (``fluxmq/shards/alarms``); this module reads the process table.
It also measures the supervisor and the acceptor, which do not measure themselves.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress

from fluxmq.ipc.memory import ProcessMemory, Watermarks, available
from fluxmq.ipc.messages import Resources
from fluxmq.ipc.table import ALARMS, ProcessTable
from fluxmq.metrics.registry import Sample
from fluxmq.settings.schema import Settings

ACCEPTOR = "acceptor"


class NodeResources:
    """Measures this process, supervisor and acceptor, and reports the whole node."""

    def __init__(self, table: ProcessTable, slot: int, supervisor: int, settings: Settings) -> None:
        self._table = table
        self._slot = slot
        self._supervisor = supervisor
        self._own = ProcessMemory(settled=self._all_ready)
        self._others: dict[int, ProcessMemory] = {}
        self.configure(settings)

    def _all_ready(self) -> bool:
        return all(row.ready for row in self._table.rows())

    def configure(self, settings: Settings) -> None:
        """Apply settings, at start and when they change."""
        self._watermarks = Watermarks.of(settings.memory, available())
        self._storage = settings.storage

    def measure(self) -> None:
        """Write the memory of this process, the supervisor and the acceptor into this process's
        row."""
        found = self._own.read()
        acceptors = [row.pid for row in self._table.rows() if row.role == ACCEPTOR]
        pids = [self._supervisor, *acceptors]
        for pid in self._others.keys() - set(pids):
            self._others.pop(pid).close()
        for pid in pids:
            with suppress(OSError):  # it has just ended
                if pid not in self._others:
                    self._others[pid] = ProcessMemory(pid, self._all_ready)
                found += self._others[pid].read()
        self._table.set_memory(self._slot, found)

    def read(self) -> Resources:
        """Return the alarms in force, the memory held and the marks."""
        watermarks = self._watermarks
        return Resources(
            self._table.alarms(), self._table.memory(), watermarks.high, watermarks.available
        )

    def samples(self) -> Iterator[Sample]:
        """Yield the same figures as metrics."""
        found = self.read()
        for kind in ALARMS:
            yield "fluxmq_alarm", {"kind": kind}, int(kind in found.alarms)
        yield "fluxmq_memory_held_bytes", {}, found.memory_held
        yield "fluxmq_memory_high_watermark_bytes", {}, found.memory_high_watermark
        yield "fluxmq_memory_available_bytes", {}, found.memory_available
        with suppress(OSError):  # a disk that fails: the shards say so
            disk = os.statvfs(self._storage.data_dir)
            yield "fluxmq_disk_available_bytes", {}, disk.f_bavail * disk.f_frsize
        yield "fluxmq_disk_reserve_bytes", {}, self._storage.min_free_bytes

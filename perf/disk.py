"""Cost of a sync on a file system, because every figure of a durable queue depends on it.

Measured as a write-ahead log writes: into a file filled with zeros and synced before, so that a sync has data
to flush and no metadata. A file system in memory is refused: a figure taken there is no figure.
"""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROUNDS = 300
"""Syncs measured per size."""

FILE_BYTES = 32 << 20
SIZES = (4096, 65_536)
IN_MEMORY = frozenset({"tmpfs", "ramfs"})


class DiskError(OSError):
    """Nothing durable can be measured here."""


@dataclass(frozen=True, slots=True)
class SyncTime:
    """Microseconds of one pwrite of ``size`` bytes with its fdatasync."""

    size: int
    p50_us: float
    p99_us: float


@dataclass(frozen=True, slots=True)
class Disk:
    """A file system and what a sync costs on it."""

    file_system: str
    syncs: tuple[SyncTime, ...]

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    def sentence(self) -> str:
        """For people."""
        times = ", ".join(
            f"{sync.size // 1024} KiB p50 {sync.p50_us:.0f} µs p99 {sync.p99_us:.0f} µs"
            for sync in self.syncs
        )
        return f"{self.file_system}, pwrite and fdatasync: {times}"


def file_system(folder: Path, mounts: str | None = None) -> str:
    """The type of the file system that holds a folder; ``mounts`` is /proc/mounts unless given."""
    table = Path("/proc/mounts").read_text() if mounts is None else mounts
    best, found = "", "unknown"
    path = str(folder.resolve())
    for line in table.splitlines():
        place, kind = line.split()[1:3]
        inside = path == place or path.startswith(place.rstrip("/") + "/")
        if inside and len(place) >= len(best):
            best, found = place, kind
    return found


def at(ordered: list[float], fraction: float) -> float:
    """A quantile of ordered values, the upper neighbour where it falls between two."""
    return ordered[min(len(ordered) - 1, int(fraction * len(ordered)))]


def measure(
    folder: Path | None = None, rounds: int = ROUNDS, sizes: tuple[int, ...] = SIZES
) -> Disk:
    """Sync ``rounds`` times per size in a scratch file of ``folder`` (the temporary directory unless given).

    Raises ``DiskError`` on a file system in memory.
    """
    where = folder or Path(tempfile.gettempdir())
    kind = file_system(where)
    if kind in IN_MEMORY:
        raise DiskError(f"{where} is on {kind}: set TMPDIR to a directory on a disk")
    syncs = []
    with tempfile.NamedTemporaryFile(dir=where, prefix="perf-sync-") as scratch:
        fd = scratch.fileno()
        for place in range(0, FILE_BYTES, 1 << 20):
            os.pwrite(fd, bytes(1 << 20), place)
        os.fsync(fd)
        for size in sizes:
            content = os.urandom(size)
            taken = []
            for number in range(rounds):
                began = time.perf_counter_ns()
                os.pwrite(fd, content, number * size % (FILE_BYTES - size))
                os.fdatasync(fd)
                taken.append((time.perf_counter_ns() - began) / 1000)
            taken.sort()
            syncs.append(SyncTime(size, at(taken, 0.5), at(taken, 0.99)))
    return Disk(kind, tuple(syncs))

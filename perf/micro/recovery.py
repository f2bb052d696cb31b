"""Recovery of a write-ahead log by its size: opening it and reading every entry of a group back.

This is the part of a restart that grows with what was not checkpointed; ``python -m perf queue`` measures whole
restarts. The files are in the page cache, as they are after a crash of the process but not of the machine.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from fluxmq.storage.files import Files
from fluxmq.storage.syncer import Syncer
from fluxmq.storage.wal import WriteAheadLog
from fluxmq.storage.wal_options import WalOptions
from perf.micro import Benchmark

GROUP = "g"
FILE_BYTES = 16 << 20
LARGE, SMALL = 64 << 10, 1 << 10
"""Bytes of an entry: what a tick holds under load, and what it holds of a few messages."""

KIB_MAX = 64 << 10
"""Of one log, however large the benchmarks are asked to be."""

FLUSH_BYTES = 4 << 20
SYNC_DEADLINE_S = 30.0


def options() -> WalOptions:
    """Files made at once instead of in a thread: what is measured here is reading."""
    return WalOptions(file_bytes=FILE_BYTES, background=False)


def settle(log: WriteAheadLog) -> None:
    """Make everything appended durable."""
    give_up = time.monotonic() + SYNC_DEADLINE_S
    while log.buffered_bytes or log.in_flight:
        log.flush()
        log.completed()
        if time.monotonic() > give_up:
            raise TimeoutError("the log does not become durable")
        time.sleep(0)


def write(folder: Path, entry_bytes: int, count: int) -> None:
    """A log of one group with so many entries."""
    syncer = Syncer(0.0)
    log = WriteAheadLog.open(Files(), str(folder), syncer, options())
    group = log.number(GROUP)
    body = bytes(range(256)) * (entry_bytes // 256)
    for index in range(1, count + 1):
        log.append_entry(group, 1, index, 0, body)
        if log.buffered_bytes > FLUSH_BYTES:
            settle(log)
    settle(log)
    log.close()
    syncer.close()


def recover(folder: Path) -> int:
    """Open the log and read its entries; how many there are."""
    syncer = Syncer(0.0)
    log = WriteAheadLog.open(Files(), str(folder), syncer, options())
    try:
        return len(log.recovered(GROUP).entries)
    finally:
        log.close()
        syncer.close()


def benchmarks(scale: int) -> Iterator[Benchmark]:
    """Logs of ``scale`` KiB and 16 times as much, in large entries, and the smaller one in small entries; an
    item is a KiB."""
    for kib, entry_bytes in ((scale, SMALL), (scale, LARGE), (16 * scale, LARGE)):
        wanted = min(kib, KIB_MAX) << 10
        count = max(1, wanted // entry_bytes)
        items = max(1, count * entry_bytes >> 10)
        # Benchmarks run after this generator has ended, so the folder goes with the process.
        folder = Path(tempfile.mkdtemp(prefix="perf-recovery-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        write(folder, entry_bytes, count)

        def step(folder: Path = folder, count: int = count, items: int = items) -> int:
            return items if recover(folder) == count else 0

        title = f"recovery: {items} KiB of log in entries of {entry_bytes >> 10} KiB, a KiB"
        yield Benchmark(title, items, step)

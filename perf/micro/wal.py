"""Group commit in the write-ahead log: messages of 272 bytes, some to an entry, some groups to a commit.

Each commit appends one entry and one hard state per group, writes, and waits for the sync, as a shard does. The disk's own
fdatasync after a write of the same size is timed beside it: the difference is what the log costs. With
`python -m perf.micro.wal` as a table with percentiles; FLUXMQ_SYNC_DELAY adds seconds to each sync.
"""

from __future__ import annotations

import os
import select
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

MESSAGE_BYTES = 272
SHAPES = ((1, 1), (16, 1), (240, 1), (16, 8), (16, 64))
"""Messages to an entry, groups to a commit."""
FILE_BYTES = 64 << 20
RELEASE_EVERY = 64


class Bench:
    """A log in a directory of its own, removed at the end."""

    def __init__(self, messages: int, groups: int, file_bytes: int = FILE_BYTES) -> None:
        self.folder = tempfile.mkdtemp(prefix="wal-", dir=os.environ.get("FLUXMQ_PERF_DIRECTORY"))
        self.syncer = Syncer()
        self.poller = select.poll()
        self.poller.register(self.syncer.fileno(), select.POLLIN)
        self.log = WriteAheadLog.open(
            Files(), self.folder, self.syncer, WalOptions(file_bytes=file_bytes)
        )
        self.groups = [self.log.number(f"group-{number}") for number in range(groups)]
        self.body = os.urandom(messages * MESSAGE_BYTES)
        self.index = 0

    def commit(self) -> None:
        """Append to every group, write, wait until it is durable."""
        log = self.log
        self.index += 1
        for group in self.groups:
            log.append_entry(group, 1, self.index, 0, self.body)
            log.append_hard_state(group, 1, 1, self.index - 1)
        number = 0
        while log.completed() < number or not number:
            number = number or log.flush()
            self.poller.poll()
        if self.index % RELEASE_EVERY == 0:
            for group in self.groups:
                log.release(group, self.index - 1)

    def close(self) -> None:
        """End it and remove its files."""
        self.log.close()
        self.syncer.close()
        shutil.rmtree(self.folder)


def disk_latencies(folder: str, size: int, count: int) -> list[float]:
    """Seconds of `count` fdatasyncs, each after a write of `size` bytes into space written before; ascending."""
    path = Path(folder) / "disk"
    data = os.urandom(size)
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    seconds = []
    try:
        os.pwrite(fd, bytes(size * count), 0)
        os.fsync(fd)
        for number in range(count):
            os.pwrite(fd, data, number * size)
            begin = time.perf_counter()
            os.fdatasync(fd)
            seconds.append(time.perf_counter() - begin)
    finally:
        os.close(fd)
        path.unlink()
    return sorted(seconds)


def benchmarks(scale: int) -> Iterator[Benchmark]:
    """Commits of each shape, per message, as many as make about `scale` messages; small files for small scales."""
    for messages, groups in SHAPES:
        commits = max(1, scale // (messages * groups))

        def step(messages: int = messages, groups: int = groups, commits: int = commits) -> int:
            bench = Bench(messages, groups, min(FILE_BYTES, 4 << 20))
            try:
                for _ in range(commits):
                    bench.commit()
            finally:
                bench.close()
            return commits * messages * groups

        name = f"log: opened, commits of {messages} messages to each of {groups} groups, closed"
        yield Benchmark(name, commits * messages * groups, step)


def row(messages: int, groups: int, seconds: float) -> list[str]:
    """One shape's figures: commits and messages per second, percentiles, the disk's beside them."""
    bench = Bench(messages, groups)
    try:
        for _ in range(20):
            bench.commit()
        size = max(4096, (messages * MESSAGE_BYTES + 80) * groups)
        disk = disk_latencies(bench.folder, size, 200)
        latencies = []
        cpu = time.thread_time()
        deadline = time.perf_counter() + seconds
        while (begin := time.perf_counter()) < deadline:
            bench.commit()
            latencies.append(time.perf_counter() - begin)
        cpu = (time.thread_time() - cpu) / len(latencies)
        rate = len(latencies) / sum(latencies)
        latencies.sort()
    finally:
        bench.close()
    return [
        f"{messages} x {groups}",
        f"{rate:,.0f}",
        f"{rate * messages * groups:,.0f}",
        f"{percentile(latencies, 0.5)} / {percentile(latencies, 0.99)}",
        f"{cpu * 1e6:.0f}",
        f"{cpu * 1e6 / (messages * groups):.3f}",
        f"{percentile(disk, 0.5)} / {percentile(disk, 0.99)}",
    ]


def percentile(ascending: list[float], share: float) -> str:
    """In milliseconds."""
    return f"{ascending[int(len(ascending) * share)] * 1e3:.3f}"


HEADINGS = (
    "messages x groups",
    "commits/s",
    "messages/s",
    "commit p50 / p99, ms",
    "CPU, us/commit",
    "us/message",
    "the disk's fdatasync p50 / p99, ms",
)


def main(seconds: float = 3.0) -> None:
    """Print the table."""
    print(" | ".join(HEADINGS))
    for messages, groups in SHAPES:
        print(" | ".join(row(messages, groups, seconds)), flush=True)


if __name__ == "__main__":
    main()

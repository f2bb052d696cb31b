"""The shared-memory ring between shards, both ends in this process: single messages and batches of 64 KiB.

The ring exists compiled only; uncompiled, shards talk over sockets and there is nothing to time here.
"""

from __future__ import annotations

import importlib
import mmap
from collections.abc import Iterator
from typing import Any

from perf.micro import Benchmark

HEADER_BYTES = 4096
RING_BYTES = 4 << 20
MESSAGE_BYTES = 270


def ring_type() -> Any | None:
    """The compiled ring, or None."""
    try:
        return importlib.import_module("fluxmq.net._ring").Ring
    except ImportError:
        return None


def benchmarks(scale: int) -> Iterator[Benchmark]:
    """Push and pop ``scale`` messages, one by one and 240 to a record."""
    kind = ring_type()
    if kind is None:
        return
    memory = mmap.mmap(-1, HEADER_BYTES + RING_BYTES)
    ring = kind(memory)
    for batch in (1, 240):
        body = bytes(MESSAGE_BYTES * batch)

        def step(batch: int = batch, body: bytes = body) -> int:
            moved = 0
            for _ in range(scale):
                if not ring.push(b"", body, 0, len(body)):
                    return moved
                moved += len(ring.pop()) // MESSAGE_BYTES
            return moved

        yield Benchmark(f"ring: push and pop, {batch} to a record", scale * batch, step)

"""How fast a snapshot is fetched."""

from __future__ import annotations

import asyncio

from fluxmq.replication import snapshot_calls, snapshot_fetch
from fluxmq.replication.snapshot_fetch import Pace
from fluxmq.storage.errors import StorageError
from fluxmq.storage.transfer import CHUNK_BYTES, TransferError


def test_bytes_are_spread_over_time() -> None:
    async def elapsed(rate: float) -> float:
        loop = asyncio.get_running_loop()
        pace, began = Pace(rate), loop.time()
        for _ in range(5):
            await pace.wait(1000)
        return loop.time() - began

    assert asyncio.run(elapsed(100_000)) >= 0.04  # the first goes at once
    assert asyncio.run(elapsed(0)) < 0.04


def test_limits_are_what_they_say() -> None:
    assert snapshot_fetch.READ_SECONDS < snapshot_calls.IDLE_SECONDS
    assert snapshot_fetch.UNDER_WAY * CHUNK_BYTES == 4 << 20
    assert snapshot_calls.READS_MAX * CHUNK_BYTES == 16 << 20
    assert issubclass(TransferError, StorageError)

"""How fast a snapshot is fetched."""

from __future__ import annotations

import asyncio

from fluxmq.shards.queues.snapshot_fetch import Pace


def test_bytes_are_spread_over_time() -> None:
    async def elapsed(rate: float) -> float:
        loop = asyncio.get_running_loop()
        pace, began = Pace(rate), loop.time()
        for _ in range(5):
            await pace.wait(1000)
        return loop.time() - began

    assert asyncio.run(elapsed(100_000)) >= 0.04  # the first goes at once
    assert asyncio.run(elapsed(0)) < 0.04

"""A sample of power cuts and of failing disks under a whole shard, and what a failed disk may still confirm: nothing."""

import asyncio
import errno
from pathlib import Path
from random import Random

import pytest

from tests.damage.conftest import Starts
from tests.damage.power import Power
from tests.damage.workload import Workload

SEEDS = 6
LIVES = 4


def test_of_a_buffered_group_a_whole_beginning_is_left(
    tmp_path: Path, runner: asyncio.Runner
) -> None:
    """Any part of what was not synced may be gone, and what an entry had removed must not be missed."""
    lost = 0
    for seed in range(SEEDS):
        base = tmp_path / str(seed)
        base.mkdir()
        power = Power(base, Random(f"buffered {seed}"), runner, buffered=True)
        power.run(LIVES)
        lost += power.lost
    assert lost > 0


@pytest.mark.parametrize("failing", [False, True], ids=["cut", "failing"])
def test_nothing_confirmed_is_lost(tmp_path: Path, runner: asyncio.Runner, failing: bool) -> None:
    cuts = confirmed = 0
    for seed in range(SEEDS):
        base = tmp_path / str(seed)
        base.mkdir()
        power = Power(base, Random(f"{failing} {seed}"), runner, failing)
        power.run(LIVES)
        cuts += power.cuts
        confirmed += power.confirmed
    assert cuts >= SEEDS * LIVES
    assert confirmed > 300


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("how", ["write", "sync"])
def test_after_a_failure_of_the_log_nothing_is_confirmed(
    start: Starts, how: str, code: int
) -> None:
    shard = start()
    workload = Workload(Random(4))
    workload.run(shard, 60)
    shard.come_to_rest()
    told = {place: len(offsets) for place, offsets in workload.record.stored.items()}
    settled = {key: len(offsets) for key, offsets in workload.record.settled.items()}
    if how == "write":
        shard.files.fail("pwritev", code)
    for _ in range(80):
        workload.step(shard)
        shard.finish()
        shard.sync(code if how == "sync" else 0)
    assert {place: len(offsets) for place, offsets in workload.record.stored.items()} == told
    assert {key: len(offsets) for key, offsets in workload.record.settled.items()} == settled
    assert len(shard.failures) == len(shard.hosted)
    shard.kill()
    again = start()
    assert again.failures == []
    for (group, queue_id), stored in workload.record.stored.items():
        queue = again.hosted[group].group.machine.queues.get(queue_id)
        if queue is not None:
            assert queue.next_offset > max(stored)
    again.kill()

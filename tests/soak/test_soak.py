"""Half a minute of the soak, and what it takes for growth."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.soak.memory import (
    BYTES_PER_QUEUE,
    ROUGHNESS_BYTES,
    Held,
    Sample,
    growth,
    held_by,
    slope,
)
from tests.soak.run import Plan, soak

MIB = 1 << 20


def samples(*megabytes: float) -> list[Sample]:
    """One a second of a process called shard."""
    return [
        Sample(float(at), {"shard": Held(round(size * MIB), 0)})
        for at, size in enumerate(megabytes)
    ]


def test_a_slope_is_of_all_samples() -> None:
    assert slope([(0, 5), (1, 7), (2, 9)]) == pytest.approx(2)
    assert slope([(at, at % 2) for at in range(101)]) == pytest.approx(0, abs=1e-3)
    assert slope([(1, 1)]) == 0


def test_what_grows_by_a_table_row_for_each_queue_grows() -> None:
    """Review finding 17: 8 KB for each of a hundred queues a second, and no less than a row of a table."""
    (found,) = growth(samples(*[100 + 0.8 * at for at in range(61)]), 20, 4000)
    assert found.grown == pytest.approx(32 * MIB, rel=0.01)
    assert not found.fine
    (found,) = growth(samples(*[100 + 0.0125 * at for at in range(1801)]), 300, 150_000)
    assert found.grown / 150_000 > BYTES_PER_QUEUE
    assert not found.fine


def test_what_fills_during_the_warm_up_or_comes_and_goes_does_not_grow() -> None:
    (found,) = growth(samples(*[min(150, 100 + 5 * at) for at in range(61)]), 20, 4000)
    assert (found.grown, found.fine) == (0, True)
    (found,) = growth(samples(*[100 + at % 10 for at in range(61)]), 20, 4000)
    assert found.fine
    assert found.allowed == ROUGHNESS_BYTES + 4000 * BYTES_PER_QUEUE


def test_a_run_of_nothing_but_warm_up_says_nothing() -> None:
    with pytest.raises(ValueError, match="warm-up"):
        growth(samples(1, 2, 3), 20, 10)


def test_a_process_holds_at_least_what_is_its_alone() -> None:
    held = held_by(os.getpid())
    assert held.rss >= held.pss > 1 * MIB


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_reply_queues_beside_traffic_keep_memory_flat(tmp_path: Path) -> None:
    """Review findings 17 and 18: half a minute of what cost 8 to 12 KB for each queue, twice what is allowed."""
    report = soak(tmp_path, Plan(seconds=30))
    assert report.fine, "\n".join(report.lines())
    assert report.queues >= 1000, "too few to tell"

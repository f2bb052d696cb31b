"""Clients that roam between simulated nodes: some seeds, and that broken nodes are noticed (`tests.mutations`).

As in ``test_sim``, the two passes of the tests run different seeds.
"""

from __future__ import annotations

import pytest

from tests.sim.campaign import check_seeds, outputs_under_other_hashes, seeds_of_tests
from tests.sim.sessions.swarm import FAULTS, draw
from tests.sim.sessions.world import STEPS, World

SEEDS = 50
HAPPENS = ("acknowledged", "refused", "session present", "session anew", "leases ended", *FAULTS)


@pytest.mark.parametrize("seeds", seeds_of_tests(SEEDS), ids=lambda seeds: str(seeds.start))
def test_seeds_keep_every_promise(seeds: range) -> None:
    check_seeds(seeds, HAPPENS, STEPS, World)


NOTICING = (24, 62, 84, 128, 272, 400, 490)
"""First seeds that notice the rules of ``tests/mutations/simulated_sessions.py`` broken."""


@pytest.mark.once
@pytest.mark.parametrize("seed", NOTICING)
def test_seeds_that_notice_mutations(seed: int) -> None:
    check_seeds([seed], (), STEPS, World)


def test_seldom_faults_are_drawn() -> None:
    drawn = [draw(seed) for seed in range(200)]
    for fault in FAULTS:
        assert sum(each.rates[fault] > 0 for each in drawn) > 40, fault
    assert {len(each.workers) for each in drawn} == {2, 3}


def test_a_seed_is_one_run() -> None:
    first, second = outputs_under_other_hashes(["--sessions", "--seed", "7"])
    assert first == second
    assert b"digest" in first

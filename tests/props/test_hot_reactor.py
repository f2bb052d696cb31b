"""A whole shard on random input: what subscribers get is right, and the same compiled and uncompiled."""

from __future__ import annotations

import pytest
from hypothesis import given

from fluxmq.protocols.mqtt.scan import COMPILED
from tests.props.hot_scenarios import Scenario, check, play, scenarios
from tests.unit.variants import INSTALLED, uncompiled


@given(scenarios())
def test_subscribers_get_what_was_published(scenario: Scenario) -> None:
    check(scenario, play(scenario, INSTALLED))


@pytest.mark.skipif(not COMPILED, reason="the hot path runs uncompiled: nothing to compare with")
@given(scenarios())
def test_compiled_and_uncompiled_write_the_same_bytes(scenario: Scenario) -> None:
    one, other = play(scenario, INSTALLED), play(scenario, uncompiled())
    assert one.written == other.written
    assert one.counts == other.counts
    assert one.deliveries == other.deliveries

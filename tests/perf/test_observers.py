"""Measurement of what scrapes and open pages cost a shard."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

import pytest

from perf import observers
from tests.broker import free_port


@pytest.mark.once
def test_a_shard_is_measured_with_and_without_observers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observers, "free_port", free_port)
    monkeypatch.setattr(observers, "WARM_SECONDS", 0.3)
    monkeypatch.setattr(observers, "SCRAPE_SECONDS", 0.4)
    options = Namespace(
        rate=5000.0, seconds=0.8, pairs=2, queues=3, name="observers", results=tmp_path
    )
    assert observers.main(options) == 0
    found = json.loads((tmp_path / "observers.json").read_text("utf-8"))
    assert len(found["pairs"]) == 2
    for pair in found["pairs"]:
        assert 0 < pair["without"] < 1000
        assert 0 < pair["with"] < 1000
    low, middle, high = found["share of a core"]
    assert low <= middle <= high


def test_what_observers_take_is_the_difference_in_pairs() -> None:
    pairs = [{"with": each, "without": 10.0} for each in (11.0, 12.0, 13.0, 14.0, 15.0)]
    found = observers.summary(pairs, 5000.0)
    assert found["ms for 100,000 messages"] == 1000
    assert found["ms more with observers"] == [200, 300, 400]
    assert found["share of a core"] == [0.01, 0.015, 0.02]
    assert found["mean share of a core"] == pytest.approx(0.015)
    assert found["least and most"] == [0.005, 0.025]

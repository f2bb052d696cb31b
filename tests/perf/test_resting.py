"""Measurement of idle nodes: over all of their processes."""

from __future__ import annotations

import pytest

from perf import cluster_nodes
from perf.cluster_nodes import Shape
from perf.resting import rest


@pytest.mark.once
def test_resting_nodes_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_nodes, "PORTS_FROM", 14_000)  # the others are those of tests
    monkeypatch.setattr(cluster_nodes, "PORTS_TO", 18_000)
    found = rest(Shape(queues=0), 0.1, 0.5)
    assert found["cores"] < 3
    assert found["megabytes"] > 30

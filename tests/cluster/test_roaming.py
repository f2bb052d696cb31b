"""Clients go from node to node while nodes are stopped, and members of etcd stopped and killed: a short campaign."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.etcd import program
from tests.roaming import FAULTS, campaign

pytestmark = pytest.mark.once


def test_roaming_clients_lose_nothing(tmp_path: Path) -> None:
    """S2-12, S2-16."""
    program()
    made, wrong = campaign(
        tmp_path, 10, seed=1, kinds=FAULTS[1:]
    )  # see the limitations of clusters
    assert wrong == []
    assert made.faults
    assert all(roamer.moves > 1 for roamer in made.roamers)

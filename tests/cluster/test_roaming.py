"""Clients go from node to node while nodes and members of etcd are killed and stopped: a short campaign."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.etcd import program
from tests.roaming import campaign

pytestmark = pytest.mark.once


def test_roaming_clients_lose_nothing(tmp_path: Path) -> None:
    """S2-12, S2-16."""
    program()
    made, wrong = campaign(tmp_path, 12, seed=7)
    assert wrong == []
    assert made.faults
    assert all(roamer.moves > 1 for roamer in made.roamers)

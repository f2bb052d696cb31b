"""Fixtures of the tests of groups that several nodes have."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.replication.trio import Trio


@pytest.fixture
def trio(tmp_path: Path) -> Iterator[Trio]:
    """Three members of a group."""
    made = Trio(tmp_path)
    yield made
    made.close()

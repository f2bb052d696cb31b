"""Shards whose sockets are closed after each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.unit.net.shard import Shard


@pytest.fixture
def shard() -> Iterator[Callable[..., Shard]]:
    """Make shards."""
    made: list[Shard] = []

    def make(**arguments: Any) -> Shard:
        made.append(Shard(**arguments))
        return made[-1]

    yield make
    for each in made:
        each.close_all()

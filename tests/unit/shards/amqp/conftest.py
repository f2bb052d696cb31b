"""Nodes that serve AMQP, on the test's clock and in its directory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.engine.conftest import descriptors
from tests.unit.shards.amqp.support import AmqpNode
from tests.unit.shards.node import Clock

MakeAmqp = Callable[..., AmqpNode]


@pytest.fixture
def make_amqp(clock: Clock, loop: asyncio.AbstractEventLoop, tmp_path: Path) -> Iterator[MakeAmqp]:
    """Make nodes: how many shards, who there is, sections of the settings."""
    made: list[AmqpNode] = []

    def make(workers: int = 1, people: tuple[Any, ...] = (), **sections: Any) -> AmqpNode:
        node = AmqpNode(tmp_path / "data", clock, loop, sections, workers, people)
        made.append(node)
        return node

    yield make
    for node in made:
        node.close()


__all__ = ["descriptors", "make_amqp"]

"""Nodes with queues, on the test's clock and in its directory."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fluxmq.storage.open_files import SPARES
from tests.unit.engine.support import QueueNode
from tests.unit.replication.conftest import trio
from tests.unit.shards.conftest import clock, loop, make_node
from tests.unit.shards.node import Clock

__all__ = ["clock", "loop", "make_node", "trio"]

MakeQueues = Callable[..., QueueNode]


@pytest.fixture
def make_queues(
    clock: Clock, loop: asyncio.AbstractEventLoop, tmp_path: Path
) -> Iterator[MakeQueues]:
    """Make nodes with some queues: their sections of the settings, then other sections."""
    made: list[QueueNode] = []

    def make(*queues: dict[str, Any], workers: int = 1, **sections: Any) -> QueueNode:
        settings = {"queues": queues, **sections}
        node = QueueNode(tmp_path / "data", clock, loop, settings, workers)
        made.append(node)
        return node

    yield make
    for node in made:
        node.close()


@pytest.fixture(autouse=True)
def descriptors() -> Iterator[None]:
    """A test leaves no more descriptors open than it found, but for what a module's scene has begun meanwhile: a log (two files,
    a directory) and its spare descriptors."""
    before = len(os.listdir("/proc/self/fd"))
    yield
    allowed = before + 3 + SPARES
    if len(os.listdir("/proc/self/fd")) > allowed:
        gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= allowed

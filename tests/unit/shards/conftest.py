"""Nodes for tests: on a clock of their own, closed at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import fluxmq.net.reactor
from tests.unit.shards.net_of_nodes import Net
from tests.unit.shards.node import Clock, Node

MakeNode = Callable[..., Node]
MakeNet = Callable[..., Net]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock that all shards of the test read."""
    clock = Clock()
    monkeypatch.setattr(fluxmq.net.reactor, "monotonic", clock)
    return clock


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """The loop that verified passwords come back by."""
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.fixture
def make_node(clock: Clock, loop: asyncio.AbstractEventLoop) -> Iterator[MakeNode]:
    """Make nodes of some shards."""
    made: list[Node] = []

    def make(workers: int = 1, settings: dict[str, Any] | None = None, **more: Any) -> Node:
        node = Node(workers, clock, loop, settings, **more)
        made.append(node)
        return node

    yield make
    for node in made:
        node.close()


@pytest.fixture
def make_net(clock: Clock, loop: asyncio.AbstractEventLoop) -> Iterator[MakeNet]:
    """Make clusters of nodes, each with so many shards."""
    made: list[Net] = []

    def make(*workers: int) -> Net:
        made.append(Net(clock, loop, *workers))
        return made[-1]

    yield make
    for net in made:
        net.close()

"""What the tests of damage share: an event loop, and shards on a directory of the test's."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.damage.shard import Clock, Shard, Tracked
from tests.damage.workload import settings_of

Starts = Callable[..., Shard]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Groups that fail say so at length; hundreds of them fail here on purpose."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    """The loop that checkpoints need."""
    with asyncio.Runner() as made:
        yield made


@pytest.fixture
def clock() -> Clock:
    """A clock that outlives shards."""
    return Clock()


@pytest.fixture
def start(tmp_path: Path, runner: asyncio.Runner, clock: Clock) -> Starts:
    """Start a shard on the test's directory and recover it: `start(files, **storage settings)`."""

    def begin(files: Tracked | None = None, **storage: object) -> Shard:
        data = tmp_path / "data"
        data.mkdir(exist_ok=True)
        shard = Shard(settings_of(str(data), **storage), clock, runner, files or Tracked())
        shard.recover()
        return shard

    return begin

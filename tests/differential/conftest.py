"""FluxMQ with an AMQP listener, once for all the scripts."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest

from tests.differential import targets
from tests.differential.runner import Target


@pytest.fixture(scope="session")
def fluxmq() -> Iterator[Target]:
    """A broker with one shard; where this build serves no AMQP there is nothing to compare."""
    if importlib.util.find_spec("fluxmq.shards.amqp") is None:
        pytest.skip("this build serves no AMQP")
    with targets.fluxmq() as target:
        yield target

"""Fixtures of the tests of whole clusters."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.nodes import Cluster


@pytest.fixture(scope="module")
def module_cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """Three nodes for all tests of a module, with what its SETTINGS says besides, and as many shards as its WORKERS does."""
    workers = getattr(request.module, "WORKERS", 1)
    started = Cluster(tmp_path_factory.mktemp("cluster"), request.module.SETTINGS, workers)
    try:
        started.start()
        yield started
    except BaseException:
        started.end()
        raise
    started.stop()


@pytest.fixture
def cluster(module_cluster: Cluster) -> Iterator[Cluster]:
    """The module's nodes, all of them up; what they log during a test is shown when it fails."""
    for node in module_cluster.nodes:
        if not node.up:
            node.start()
    module_cluster.wait_ready()
    module_cluster.spread_leaders()
    logged = {node.output: len(node.broker.log().encode()) for node in module_cluster.nodes}
    yield module_cluster
    for node in module_cluster.nodes:
        print(f"--- {node.name}\n{node.broker.log(logged.get(node.output, 0))}")

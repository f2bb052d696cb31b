"""The generator's side of clients that go from node to node."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from fluxmq.settings.load import load
from perf import brokers
from perf.brokers import Broker
from perf.cluster_nodes import NODE_PORTS, NODES, PORTS_FROM, Addresses, Shape, node_name, settings
from perf.roaming import Client, connects, roam


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """A node of FluxMQ."""
    started = brokers.start_fluxmq("fluxmq", 1)
    yield started
    started.stop()


def test_nodes_have_members_of_one_etcd(tmp_path: Path) -> None:
    addresses = [Addresses(PORTS_FROM + index * NODE_PORTS) for index in range(NODES)]
    members = []
    for index in range(NODES):
        path = tmp_path / f"{index}.yaml"
        content = settings(addresses, index, Shape(queues=0), tmp_path / str(index))
        path.write_text(json.dumps(content))
        cluster = load(path, {}).cluster
        assert cluster.etcd is not None
        members.append(cluster.members(cluster.etcd))
        assert members[-1][node_name(index)].endswith(cluster.etcd.bind_addr)
    assert members[0] == members[1] == members[2]


def test_clients_move_and_have_their_sessions(broker: Broker) -> None:
    took = asyncio.run(roam([broker.port, broker.port], 3, 50.0, 0.2))
    assert len(took) == 10
    assert min(took) > 0


def test_new_clients_are_counted(broker: Broker) -> None:
    assert asyncio.run(connects(broker.port, 0.1, "new", 5)) > 0


def test_a_session_that_is_not_there_is_noticed(broker: Broker) -> None:
    async def connect() -> None:
        client = Client("never there")
        client.known = True
        with pytest.raises(RuntimeError, match="never there"):
            await client.connect(broker.port)
        await client.close()

    asyncio.run(connect())

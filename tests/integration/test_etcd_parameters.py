"""Global parameters in a real etcd."""

from __future__ import annotations

from pathlib import Path

import pytest

from fluxmq.control.etcd.client import EtcdClient
from fluxmq.control.etcd.messages import Get, end_of
from fluxmq.control.etcd.metadata_keys import TOPOLOGY
from fluxmq.routing.topology.changes import ClearGlobalParameter, SetGlobalParameter
from fluxmq.routing.topology.records import GlobalParameter
from fluxmq.routing.topology.topology import global_parameters
from tests.etcd import serving
from tests.integration.metadata_nodes import MetadataNodes, play

pytestmark = pytest.mark.once


def test_a_parameter_that_is_set_on_one_node_is_on_all(tmp_path: Path) -> None:
    named = GlobalParameter("cluster_name", '"orders"')
    prefix = TOPOLOGY + b"global_parameter/"

    async def scenario(nodes: MetadataNodes, client: EtcdClient) -> None:
        await nodes.start()
        await nodes.well()
        assert await nodes["node2"].change(SetGlobalParameter(named)) is None
        await nodes.all_alike()
        known = global_parameters(nodes["node3"].topology_service.topology)
        assert known == {"cluster_name": named}
        ((*entries,),) = (await client.transact((), (Get(prefix, end_of(prefix)),))).entries
        assert [entry.key for entry in entries] == [prefix + b"cluster_name"]
        assert await nodes["node3"].change(ClearGlobalParameter("cluster_name")) is None
        await nodes.all_alike()
        assert not global_parameters(nodes["node1"].topology_service.topology)

    with serving(tmp_path) as server:
        play(server, tmp_path, scenario)

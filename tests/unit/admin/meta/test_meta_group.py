"""Three control processes agree: on what they begin with, on changes, and when one of them is away."""

from tests.unit.admin.meta.three_nodes import Cluster, run
from tests.unit.admin.topology_node import queue


def test_three_nodes_begin_with_one_topology_and_a_change_on_one_is_on_all(tmp_path):
    async def scenario(cluster):
        await cluster.well()
        for number, node in enumerate(cluster.up):
            assert await node.change(queue(f"q{number}")) is None
            assert f"q{number}" in node.queues_of()
        await cluster.well()
        first, *others = [await cluster.dump(node) for node in cluster.up]
        assert len(first["users"]) == 1
        assert others == [first, first]
        for node in cluster.up:
            assert node.queues_of() == ["q0", "q1", "q2"]

    run(Cluster(tmp_path), scenario)

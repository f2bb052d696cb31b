"""A group that begins on nodes of which this node hears only after a queue that is in the group."""

from __future__ import annotations

import asyncio
from pathlib import Path

from fluxmq.ipc.cluster_nodes import CLUSTER_NODES, ClusterNodes
from fluxmq.replication.unheard_groups import UNHEARD_MAX, UnheardGroups
from fluxmq.settings.group_names import SetGroup, name_of_set
from fluxmq.settings.membership import ClusterNode, set_of
from fluxmq.settings.node_sets import NodeSet, id_of_set
from fluxmq.settings.plans import UnknownGroup, member_number
from tests.unit.replication.member import LoneMember

FIRST = {
    f"node{number}": ClusterNode(
        transport=f"127.0.0.{number}:1", raft=f"127.0.0.{number}:100", initial=True
    )
    for number in (1, 2, 3)
}
NODES = {
    **FIRST,
    "node4": ClusterNode(transport="127.0.0.4:1", raft="127.0.0.4:100", joined=True, times=1),
}
THERE = set_of(NODES)
assert THERE is not None
SETS = {id_of_set(THERE): NodeSet(0, THERE)}
GROUP = name_of_set(SetGroup(next(iter(SETS)), 4, "node4"))


def hear(member: LoneMember) -> None:
    """Tell the shard of the nodes, as control does."""
    answers: list[object] = []
    body = ClusterNodes(NODES, SETS).to_body()
    member.within(lambda: member.cluster.commands()[CLUSTER_NODES](body, answers.append))
    assert answers == [{}]


def test_it_is_opened_with_the_members_that_its_name_says_as_soon_as_the_nodes_are_known(
    tmp_path: Path,
) -> None:
    with asyncio.Runner() as runner:
        member = LoneMember(tmp_path / "node1", runner)
        assert not member.queues.is_member(GROUP)
        assert GROUP not in member.queues.service.groups
        hear(member)
        hosted = member.queues.service.groups[GROUP]
        voters = hosted.driver.node.status().membership.voters
        assert set(voters) == {member_number(node) for node in NODES}
        member.kill()


def test_as_many_groups_wait_as_have_addresses() -> None:
    waiting = UnheardGroups()
    for number in range(UNHEARD_MAX + 1):
        waiting.note(UnknownGroup(f"nodes-00000000-copies-3-leader-{number}", "is not known"))
    waiting.note(UnknownGroup("orders", "is not in cluster.raft.groups"))
    assert len(waiting.names) == UNHEARD_MAX
    assert "orders" not in waiting.names


def test_a_group_that_begins_without_this_node_is_not_opened(tmp_path: Path) -> None:
    with asyncio.Runner() as runner:
        member = LoneMember(tmp_path / "node1", runner)
        plans = member.cluster.plans
        pairs = [
            name_of_set(SetGroup(next(iter(SETS)), 2, leader)) for leader in ("node2", "node4")
        ]
        assert not any(member.queues.is_member(group) for group in pairs)
        hear(member)
        for group in pairs:
            inside = "node1" in {each.node for each in plans.of(group).members}
            assert (group in member.queues.service.groups) == inside
        member.kill()

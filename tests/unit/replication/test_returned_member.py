"""A node that begins no group by its plan, since it has joined again, and votes in one as a member."""

from __future__ import annotations

import asyncio
from pathlib import Path

from fluxmq.ipc.cluster_nodes import CLUSTER_NODES, ClusterNodes
from fluxmq.ipc.clusters import CAN_STOP, GroupOutcomes
from fluxmq.settings.membership import ClusterNode
from tests.unit.replication.member import GROUP, LoneMember

NODES = {
    f"node{number}": ClusterNode(
        transport=f"127.0.0.{number}:1",
        raft=f"127.0.0.{number}:100",
        initial=True,
        joined=number == 1,
        times=int(number == 1),
    )
    for number in (1, 2, 3)
}


def test_the_group_in_which_it_votes_is_asked_whether_it_may_stop(tmp_path: Path) -> None:
    with asyncio.Runner() as runner:
        member = LoneMember(tmp_path / "node1", runner)
        commands = member.cluster.commands()
        told: list[object] = []
        body = ClusterNodes(NODES).to_body()
        member.within(lambda: commands[CLUSTER_NODES](body, told.append))
        assert member.replica.plan.own == 0
        answers: list[object] = []
        member.within(lambda: commands[CAN_STOP]({}, answers.append))
        (answer,) = answers
        (outcome,) = GroupOutcomes.from_body(answer).rows
        assert outcome.group == GROUP
        assert "leader" in outcome.problem
        member.kill()

"""Queues that are declared and deleted by one and the same entry."""

from __future__ import annotations

from fluxmq.engine.group import ReplicationGroup
from fluxmq.engine.ports import QueueStats
from fluxmq.model.outcomes import QueueOutcome
from fluxmq.queues.config import QueueConfig
from tests.unit.engine.asking import Asker, ask, host_of, publish
from tests.unit.engine.conftest import MakeQueues


def test_a_queue_takes_the_place_of_one_of_its_name(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "work"})
    group = host_of(node, 0)
    assert isinstance(group, ReplicationGroup)
    publish(node, 0, b"old")
    node.run()
    told: list[QueueStats] = []
    node.hold_syncs()
    publish(node, 0, b"keeps the log busy")
    node.run()
    group.delete("work", False, False, told.append)
    group.declare(QueueConfig("work"))
    node.hold_syncs(False)
    node.run()
    assert [each.outcome for each in told] == [QueueOutcome.OK]
    assert not group.failed
    assert ask(node, 0, "status") == QueueStats(QueueOutcome.OK, 0, 0, 0)
    publish(node, 0, b"new")
    node.run()
    assert Asker(node, 0).payloads == [b"new"]
    node.restart(0)
    node.run()
    assert ask(node, 0, "status").outcome is QueueOutcome.OK

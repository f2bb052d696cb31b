"""Who declares queues elsewhere is told when a queue's last consumer has gone, and when the queue itself has."""

from __future__ import annotations

import pytest

from fluxmq.model.outcomes import QueueOutcome
from tests.unit.engine.asking import Asker, ask
from tests.unit.engine.conftest import MakeQueues
from tests.unit.engine.test_asking import place


@pytest.mark.parametrize("elsewhere", [False, True])
def test_the_last_consumer_of_a_queue_is_noticed(make_queues: MakeQueues, elsewhere: bool) -> None:
    node = make_queues({"name": "work"}, workers=2)
    shard = place(node, elsewhere)
    told: list[str] = []
    node[place(node, elsewhere=False)].queues.service.unused = told.append
    first, second = Asker(node, shard), Asker(node, shard)
    taker = Asker(node, shard, taking=True)
    for asker in (taker, first):
        assert asker.held is not None
        asker.held.detach()
        node.run()
    assert told == []
    assert second.held is not None
    second.held.stop()
    node.run()
    assert told == ["work"]
    second.held.detach()
    node.run()
    assert told == ["work"], "it had gone before"


def test_the_end_of_a_queue_is_noticed(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "work"})
    told: list[str] = []
    node[0].queues.service.deleted = told.append
    assert ask(node, 0, "delete", "work", False, False).outcome is QueueOutcome.OK
    assert told == ["work"]

"""Who declares queues elsewhere is told when a queue's last consumer has gone, and when the queue itself has."""

from __future__ import annotations

import pytest

from fluxmq.model.outcomes import QueueOutcome
from fluxmq.queues.config import QueueConfig
from tests.unit.engine.asking import Asker, ask
from tests.unit.engine.conftest import MakeQueues
from tests.unit.engine.test_asking import place


class Ends:
    """Notes queues that are unused or deleted."""

    def __init__(self, told: list[str]) -> None:
        self.told = told

    def queue_declared(self, config: QueueConfig) -> None:
        """Not an end."""

    def queue_deleted(self, queue: str, by_leader: bool) -> None:
        """Note it."""
        assert by_leader
        self.told.append(queue)

    def queue_unused(self, queue: str) -> None:
        """Note it."""
        self.told.append(queue)


@pytest.mark.parametrize("elsewhere", [False, True])
def test_the_last_consumer_of_a_queue_is_noticed(make_queues: MakeQueues, elsewhere: bool) -> None:
    node = make_queues({"name": "work"}, workers=2)
    shard = place(node, elsewhere)
    told: list[str] = []
    node[place(node, elsewhere=False)].queues.service.observers.append(Ends(told))
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
    node[0].queues.service.observers.append(Ends(told))
    assert ask(node, 0, "delete", "work", False, False).outcome is QueueOutcome.OK
    assert told == ["work"]

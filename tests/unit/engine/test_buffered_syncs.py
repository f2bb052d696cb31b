"""Syncs of what buffered queues have acknowledged: in time also where nothing else happens."""

from __future__ import annotations

import math

from tests.unit.engine.conftest import MakeQueues


def test_an_idle_shard_wakes_for_the_sync_that_is_due(make_queues: MakeQueues) -> None:
    queue = {"name": "work", "ack_durability": "buffered"}
    node = make_queues(queue, storage={"queue_sync_interval": 1.0})
    logs = node[0].queues.service.logs
    assert logs.next_due == math.inf
    node.hold_syncs()
    assert node.connect(0, "publisher").publish("$queue/work", b"", qos=1) == 0
    assert node[0].next_due <= logs.next_due <= node.clock.now + 1.0
    node.advance(1.5)
    node[0].queues.service.executor.submit(lambda: None).result()
    assert logs.next_due == math.inf

"""What a queue has of its own on its shard: the size of its segments, memory beside them, a consumer's time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fluxmq.storage.queue_log import QueueLog
from tests.unit.engine.asking import Asker, publish
from tests.unit.engine.conftest import MakeQueues
from tests.unit.engine.support import QueueNode

OWN = 16 << 10
PAYLOAD = bytes(1000)


def configure(node: QueueNode, **values: int) -> None:
    """Give the queue another configuration, as a policy does."""
    group, queue = node.group("work"), node.machine("work")
    group.declare(replace(queue.config, **values))
    node.run()
    assert all(getattr(queue.config, key) == value for key, value in values.items())


def store(node: QueueNode) -> QueueLog:
    """The queue's log."""
    log: QueueLog = node.group("work").logs[node.machine("work").id]
    log.flush()
    return log


def files(node: QueueNode) -> dict[str, bytes]:
    """The queue's segments, by name."""
    directory = Path(store(node).directory)
    return {path.name: path.read_bytes() for path in sorted(directory.glob("*.seg"))}


def sizes(node: QueueNode) -> list[int]:
    """Bytes of all segments but the one that grows."""
    return [len(data) for data in files(node).values()][:-1]


def test_the_size_of_segments_follows_the_configuration_and_survives(
    make_queues: MakeQueues,
) -> None:
    node = make_queues({"name": "work"})
    configure(node, max_segment_bytes=OWN)
    publish(node, 0, *[PAYLOAD] * 20)
    node.run()
    node.checkpoint()
    configure(node, max_segment_bytes=2 * OWN)
    publish(node, 0, *[PAYLOAD] * 60)
    node.run()
    found = sizes(node)
    assert all(OWN - 1200 < size <= OWN for size in found[:2]), "the second began before"
    assert all(2 * OWN - 1200 < size <= 2 * OWN for size in found[2:])
    assert len(found) > 3
    before = files(node)
    node.restart()
    assert files(node) == before
    configure(node, max_segment_bytes=2 * OWN)  # a start declares what the settings say
    publish(node, 0, *[PAYLOAD] * 40)
    node.run()
    assert all(2 * OWN - 1200 < size <= 2 * OWN for size in sizes(node)[2:])


def test_a_snapshots_configuration_holds_for_what_is_replayed(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "work"})
    configure(node, max_segment_bytes=OWN)
    publish(node, 0, *[PAYLOAD] * 5)
    node.run()
    node.checkpoint()
    publish(node, 0, *[PAYLOAD] * 60)
    node.run()
    before = files(node)
    assert len(before) > 4
    node.restart()
    assert files(node) == before


def test_an_entry_that_changes_the_size_does_so_before_its_batches(make_queues: MakeQueues) -> None:
    """Replay and replicas see entries, not what was asked when."""
    node = make_queues({"name": "work"})
    group, queue = node.group("work"), node.machine("work")
    publish(node, 0, *[PAYLOAD] * 2)
    group.declare(replace(queue.config, max_segment_bytes=OWN))
    publish(node, 0, *[PAYLOAD] * 70)
    node.run()
    before = files(node)
    node.restart()
    assert files(node) == before


@pytest.mark.parametrize("limits", [{"max_in_memory_length": 3}, {"max_in_memory_bytes": 3600}])
def test_memory_follows_the_configuration_and_survives(
    make_queues: MakeQueues, limits: dict[str, int]
) -> None:
    node = make_queues({"name": "work"})
    publish(node, 0, *[PAYLOAD] * 10)
    node.run()
    assert store(node)._recent.messages == 10
    configure(node, **limits)
    assert store(node)._recent.messages == 3
    publish(node, 0, *[PAYLOAD] * 10)
    node.run()
    assert store(node)._recent.messages == 3
    node.restart()
    configure(node, **limits)
    publish(node, 0, *[PAYLOAD] * 10)
    node.run()
    assert store(node)._recent.messages == 3
    consumer = Asker(node, 0, limit=0)
    node.run()
    assert consumer.offsets == list(range(30))


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_consumers_own_timeout_holds_on_every_shard(
    make_queues: MakeQueues, elsewhere: bool
) -> None:
    node = make_queues({"name": "work"}, workers=2)
    host = next(shard.index for shard in node if node.group("work", shard.index) is not None)
    shard = 1 - host if elsewhere else host
    consumer = Asker(node, shard, timeout=7_000_000)
    publish(node, shard, *[PAYLOAD] * 2)
    node.run()
    assert consumer.held is not None
    consumer.held.stop()
    other = Asker(node, 1 - shard)
    assert (consumer.offsets, other.offsets) == ([0, 1], [])
    node.advance(6.9)
    assert other.offsets == []
    node.advance(0.4)
    assert (other.offsets, other.attempts) == ([0, 1], [2, 2])

"""What gathers in the page cache is written out once it is a few seconds old, and not before."""

from __future__ import annotations

import errno

import pytest

from fluxmq.replication import checkpoints
from fluxmq.replication.checkpoints import AGE_SECONDS
from fluxmq.storage.open_files import WRITE_OUT_BYTES, OpenFile
from tests.unit.engine.conftest import MakeQueues
from tests.unit.engine.support import QueueNode

BODY = bytes(100_000)


def publish(node: QueueNode, count: int) -> None:
    """So many messages of 100 kB."""
    client = node.connect(0, "publisher")
    for _ in range(count):
        assert client.publish("$queue/work", BODY, qos=1) == 0


def age(node: QueueNode) -> None:
    """Have what is there be looked at."""
    node.advance(AGE_SECONDS)
    node.advance(0.1)


def written_out(node: QueueNode) -> int:
    """Pieces of segments so far; a file of the log is one that is written out when it is made."""
    calls = node.failing[0].calls
    return calls["write_out"] - calls["allocate"]


def test_what_is_old_is_written_out_once(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "work"})
    publish(node, 10)
    age(node)
    assert written_out(node) == 0  # it may be consumed and removed at once
    publish(node, 10)
    age(node)
    assert written_out(node) == 10 * len(BODY) // WRITE_OUT_BYTES
    age(node)
    assert written_out(node) == 20 * len(BODY) // WRITE_OUT_BYTES
    age(node)
    assert written_out(node) == 20 * len(BODY) // WRITE_OUT_BYTES
    node.checkpoint()
    assert written_out(node) == 20 * len(BODY) // WRITE_OUT_BYTES
    assert node[0].queues.service.durable.checkpoints.failed == 0


def test_little_is_left_to_the_kernel(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "work"})
    publish(node, 2)
    for _ in range(3):
        age(node)
    assert written_out(node) == 0


def test_others_have_the_thread_in_between(
    make_queues: MakeQueues, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = []

    def noted(file: OpenFile, end: int) -> None:
        turns.append(end - file.begun)
        write_out(file, end)

    write_out = OpenFile.write_out
    monkeypatch.setattr(checkpoints, "TURN_BYTES", 2 * WRITE_OUT_BYTES)
    monkeypatch.setattr(OpenFile, "write_out", noted)
    node = make_queues({"name": "work"})
    publish(node, 20)
    age(node)
    age(node)
    assert written_out(node) == 20 * len(BODY) // WRITE_OUT_BYTES == 7
    assert [turn // WRITE_OUT_BYTES for turn in turns] == [3, 3, 3, 1]  # all but the last piece


def test_of_many_queues_a_few_are_looked_at_at_a_time(
    make_queues: MakeQueues, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "LOGS_PER_LOOK", 1)
    node = make_queues({"name": "work"}, {"name": "rest"})
    client = node.connect(0, "publisher")
    for queue in ("work", "rest"):
        for _ in range(5):
            assert client.publish(f"$queue/{queue}", BODY, qos=1) == 0
    for _ in range(8):
        age(node)
    assert written_out(node) == 2 * (5 * len(BODY) // WRITE_OUT_BYTES)


def test_a_checkpoint_does_not_count_what_could_not_be_written_out(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "work"})
    publish(node, 10)
    node.failing[0].fail("write_out", errno.EIO)
    age(node)
    age(node)
    assert written_out(node) == 1
    service = node[0].queues.service
    taken = service.durable.checkpoints.taken
    node.checkpoint()
    assert (service.durable.checkpoints.taken, service.durable.checkpoints.failed) == (taken, 1)
    node.restart()
    assert node.machine("work").depth == 10

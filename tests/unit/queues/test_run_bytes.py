"""One run hands out a bounded number of bytes, and the next one goes on: nothing is skipped, nothing given twice."""

from __future__ import annotations

import pytest

from fluxmq.model.batch_format import parse
from fluxmq.model.message_batch import build_message
from fluxmq.model.properties import Item, PropertyKind, encode
from fluxmq.queues import commands
from fluxmq.queues.commands import Mode, Verb
from fluxmq.queues.config import QueueType
from fluxmq.queues.consumers import Step
from fluxmq.queues.limits import RUN_BYTES_MAX
from fluxmq.queues.states import QueueState
from tests.unit.queues.support import NOW, Host, batch_of, given, offsets

ROOM = 1_000

Runs = list[list[int]]


def by_run(host: Host, queue: QueueState) -> Runs:
    """What each run hands out, at most `ROOM` bytes of it."""
    found: Runs = []
    for _ in range(100):
        host.flush()
        if not host.dispatch.due(host.now):
            return found
        step = host.dispatch.run(queue.id, host.now, 10_000, ROOM)
        host.proposed += step.commands
        if step.deliveries:
            found.append(offsets(given(step.deliveries)))
    raise AssertionError("the dispatcher finds no rest")


def test_what_fits() -> None:
    batch = parse(batch_of([b"x" * 92] * 10))
    size = batch.length // 10
    step = Step()
    step.bytes_left = 3 * size + 1
    assert (step.fit(batch, 2), step.bytes_left) == (2, size + 1)
    assert (step.fit(batch, 5), step.bytes_left) == (1, 0)
    step.bytes_left = 1
    assert (step.fit(batch, 5), step.bytes_left) == (1, 0), "one is always given"
    assert Step().bytes_left == RUN_BYTES_MAX


@pytest.mark.parametrize("mode", [Mode.WORK, Mode.STREAM])
@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("max_priority", [0, 5])
def test_a_run_hands_out_no_more_than_its_bytes(
    mode: Mode, together: bool, max_priority: int
) -> None:
    host = Host()
    kind = QueueType.STREAM if mode == Mode.STREAM else QueueType.CLASSIC
    queue = host.declare(type=kind, max_priority=max_priority)
    payloads = [b"x" * 200] * 20
    batches = [payloads] if together else [[payload] for payload in payloads]
    for each in batches:
        host.do(commands.append(queue.id, batch_of(each)))
    consumer = host.attach(queue, mode=mode)
    runs = by_run(host, queue)
    assert [offset for run in runs for offset in run] == list(range(20))
    assert all(len(run) <= 5 for run in runs)
    assert len(runs) >= 4
    if mode == Mode.WORK:
        assert host.settle(consumer, Verb.RELEASE, (0, 19)) == (20, 0)
        runs = by_run(host, queue)
        assert [offset for run in runs for offset in run] == list(range(20))
        assert all(len(run) <= 5 for run in runs)


def test_messages_with_priorities_share_a_run() -> None:
    host = Host()
    queue = host.declare(max_priority=5)
    for level in (1, 2, 3, 4, 5, 1, 2, 3, 4, 5):
        block = encode([Item(PropertyKind.PRIORITY, level)])
        host.do(commands.append(queue.id, build_message(b"", block, b"x" * 200, NOW)))
    host.attach(queue)
    order = [offset for run in by_run(host, queue) for offset in run]
    assert order == [4, 9, 3, 8, 2, 7, 1, 6, 0, 5]

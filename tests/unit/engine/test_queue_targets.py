"""Runs become batches that the queue's files can hold."""

from __future__ import annotations

from fluxmq.engine.names import QueueInfo
from fluxmq.engine.ports import AppendCallback
from fluxmq.engine.queue_targets import Blocks, QueueTarget
from fluxmq.model.batch_format import parse
from fluxmq.net.reactor import Reactor
from fluxmq.protocols.mqtt.run import PublishRun
from fluxmq.queues.config import QueueType
from fluxmq.queues.origins import Identity
from tests.unit.engine.hosts import Unasked

PACKET = b"\x30\x0a\x00\x01t1234567"


class Taking(Unasked):
    """A host that keeps what it is given."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []

    def append(
        self,
        queue: str,
        batch: bytes,
        done: AppendCallback | None,
        identity: Identity | None = None,
        by_address: bool = False,
    ) -> bool:
        """Keep the batch and answer."""
        assert queue == "q"
        self.batches.append(batch)
        assert done is not None
        done(0)
        return True


def run_of(count: int) -> PublishRun:
    data = PACKET * count
    size = len(PACKET)
    return PublishRun(data, 0, len(data), count, size, 4, 0x30, 3, 0, size, b"t")


def sink(host: Taking, run_max: int) -> QueueTarget:
    reactor = Reactor(None, 4096, 1 << 20, 8192, 64)
    info = QueueInfo("q", "local-0", QueueType.CLASSIC)
    return QueueTarget(
        info, lambda _: host, reactor, Blocks(), lambda: 1, 10, run_max, lambda *_: None
    )


def test_a_run_is_one_batch() -> None:
    host = Taking()
    sink(host, 1 << 20).offer(run_of(100))
    assert [parse(batch).count for batch in host.batches] == [100]


def test_a_run_larger_than_the_files_take_at_once_is_several() -> None:
    host = Taking()
    sink(host, 10 * len(PACKET)).offer(run_of(100))
    parsed = [parse(batch) for batch in host.batches]
    assert max(batch.count for batch in parsed) <= 10
    payloads = [batch.payload(index) for batch in parsed for index in range(batch.count)]
    assert payloads == [b"1234567"] * 100


def test_a_single_message_is_not_cut() -> None:
    host = Taking()
    sink(host, 1).offer(run_of(3))
    assert [parse(batch).count for batch in host.batches] == [1, 1, 1]

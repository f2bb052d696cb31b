"""Consumers that ask a queue directly, from any shard: what they are given and told."""

from __future__ import annotations

from typing import Any

from fluxmq.engine.ports import Attached, AttachRequest, ConsumerHandle, GroupTarget, QueueStats
from fluxmq.model.batch_format import Batch
from fluxmq.model.message_batch import build_message
from fluxmq.queues.commands import Verb
from tests.unit.engine.support import QueueNode


class Asker:
    """One consumer; what is asked of it is answered when the node has run."""

    def __init__(self, node: QueueNode, shard: int, queue: str = "work", **values: Any) -> None:
        self.node = node
        self.host: GroupTarget = host_of(node, shard, queue)
        self.payloads: list[bytes] = []
        self.offsets: list[int] = []
        self.attempts: list[int] = []
        self.cancellations = 0
        self.held: ConsumerHandle | None = None
        self.answer: Attached | None = None
        wanted = {
            "group": "amqp",
            "member": "m",
            "pattern": b"",
            "start": None,
            "limit": 10,
            "qos": 1,
            **values,
        }
        self.host.attach(AttachRequest(queue, **wanted), self, self._attached)
        node.run()

    def _attached(self, answer: Attached, held: ConsumerHandle | None) -> None:
        self.answer, self.held = answer, held

    def deliver(
        self, batch: Batch, first: int, count: int, attempts: int, committed: int = -1
    ) -> None:
        """Messages come."""
        for index in range(first, first + count):
            self.payloads.append(batch.payload(index))
            self.offsets.append(batch.base_offset + index)
            self.attempts.append(attempts)

    def cancelled(self) -> None:
        """The queue has gone."""
        self.cancellations += 1

    def take(self) -> tuple[bytes, int, int] | None:
        """One message: payload, attempts and how many are ready behind it; None when there is none."""
        assert self.held is not None
        answers: list[tuple[bool, int]] = []
        before = len(self.payloads)
        self.held.take(lambda found, ready: answers.append((found, ready)))
        self.node.run()
        ((found, ready),) = answers
        assert len(self.payloads) == before + found
        return (self.payloads[-1], self.attempts[-1], ready) if found else None

    def settle(self, verb: Verb, first: int, last: int | None = None) -> None:
        """Settle messages, without waiting for the answer."""
        assert self.held is not None
        self.held.settle(verb, [(first, first if last is None else last)], 0, b"", None)


def host_of(node: QueueNode, shard: int, queue: str = "work") -> GroupTarget:
    """A queue's host, as a shard sees it."""
    queues = node[shard].queues
    host: GroupTarget = queues.client(queues.names.info(queue).group)
    return host


def publish(
    node: QueueNode,
    shard: int,
    *payloads: bytes,
    queue: str = "work",
    block: bytes = b"",
    expires: int = 0,
) -> list[int]:
    """Append messages, without waiting for the answers; they come into the list. `expires`: in so many µs."""
    answers: list[int] = []
    now = node[shard].queues.service._clock()
    for payload in payloads:
        batch = build_message(b"key", block, payload, now, now + expires if expires else 0)
        host_of(node, shard, queue).append(queue, batch, answers.append)
    return answers


def ask(node: QueueNode, shard: int, what: str, queue: str = "work", *arguments: Any) -> QueueStats:
    """Ask a queue's host for something: status, purge, delete."""
    answers: list[QueueStats] = []
    getattr(host_of(node, shard, queue), what)(queue, *arguments, answers.append)
    node.run()
    (status,) = answers
    return status

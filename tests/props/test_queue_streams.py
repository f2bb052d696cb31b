"""Streams under any course of events: in every life of a leader each reader's group misses nothing.

What was committed is never beyond what somebody still holds; what was not committed comes again.
"""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fluxmq.queues import commands
from fluxmq.queues.commands import Mode, Verb
from fluxmq.queues.config import QueueType
from fluxmq.queues.consumers import ConsumerTerms, GroupConsumer
from tests.unit.queues.support import SECOND, Host, batch_of, group_of

SMALL = st.integers(0, 9)
ACTIONS = st.sampled_from(
    [
        "publish",
        "run",
        "run",
        "ack",
        "ack",
        "refuse",
        "attach",
        "detach",
        "wait",
        "hold",
        "release",
        "lead",
    ]
)
STEPS = st.lists(st.tuples(ACTIONS, SMALL, SMALL), min_size=10, max_size=80)


class Readers:
    """A stream, the consumers of one group, and which messages it has acknowledged."""

    def __init__(self) -> None:
        self.host = Host()
        self.queue = self.host.declare("s", type=QueueType.STREAM, claim_batch=3)
        self.consumers: list[GroupConsumer] = []
        self.unacked: dict[int, GroupConsumer] = {}
        self.acknowledged: set[int] = set()
        self.host.do(commands.create_group(self.queue.id, "g", Mode.STREAM))

    def run(self, messages_max: int = 1_000) -> None:
        """One tick."""
        host = self.host
        host.flush()
        for queue_id in host.dispatch.due(host.now):
            step = host.dispatch.run(queue_id, host.now, messages_max)
            for each in step.deliveries:
                assert each.consumer in self.consumers
                assert each.consumer.unacked.count <= each.consumer.limit
                for offset in range(
                    each.batch.base_offset + each.first,
                    each.batch.base_offset + each.first + each.count,
                ):
                    assert offset not in self.unacked, "read by two at once"
                    self.unacked[offset] = each.consumer
            host.proposed += step.commands
        host.flush()
        committed = group_of(self.queue).cursor
        assert all(offset in self.acknowledged for offset in range(committed))

    def settle(self, consumer: GroupConsumer, verb: Verb, first: int, last: int) -> None:
        """Settle a range, whatever the consumer holds of it."""
        self.host.dispatch.consumers.settle(consumer, verb, [(first, last)], self.host.now)
        for offset in range(first, last + 1):
            if self.unacked.get(offset) is consumer:
                del self.unacked[offset]
                if verb in (Verb.ACK, Verb.REJECT):
                    self.acknowledged.add(offset)

    def detach(self, consumer: GroupConsumer) -> None:
        """A consumer goes."""
        self.consumers.remove(consumer)
        self.host.proposed += self.host.dispatch.consumers.detach(consumer)
        self.unacked = {o: who for o, who in self.unacked.items() if who is not consumer}

    def attach(self, limit: int) -> None:
        """A consumer comes."""
        consumer, proposals = self.host.dispatch.consumers.attach(
            self.queue.id, ConsumerTerms("g", "m", Mode.STREAM, limit=limit)
        )
        self.consumers.append(consumer)
        self.host.proposed += proposals

    def lead(self) -> None:
        """Another leader."""
        host = self.host
        host.held_back.clear()
        host.proposed.clear()
        host.hold = False
        self.consumers.clear()
        self.unacked.clear()
        host.lead(host.term + 1)

    def finish(self) -> None:
        """Let everything come to its end."""
        self.host.release()
        self.host.flush()
        for consumer in list(self.consumers):
            self.detach(consumer)
        self.attach(1_000)
        for _ in range(4):
            self.host.pass_time(10 * SECOND)
            self.run()
            for offset, consumer in list(self.unacked.items()):
                self.settle(consumer, Verb.ACK, offset, offset)
        self.host.pass_time(10 * SECOND)
        self.run()


def act(readers: Readers, step: tuple[Any, ...]) -> None:
    """One step."""
    action, a, b = step
    host = readers.host
    if action == "publish":
        host.proposed.append(commands.append(readers.queue.id, batch_of([b"x"] * (a + 1))))
    elif action == "run":
        readers.run(1 + a * b)
    elif action == "attach" and len(readers.consumers) < 4:
        readers.attach(1 + a * b)
    elif action == "wait":
        host.pass_time((1, 2 * SECOND, 6 * SECOND)[a % 3])
    elif action == "hold":
        host.hold = True
    elif action == "release":
        host.release()
    elif action == "lead" and a > 6:
        readers.lead()
    elif readers.consumers:
        consumer = readers.consumers[a % len(readers.consumers)]
        first = next(iter(consumer.unacked), (0, 0))[0] + b % 3
        if action == "ack":
            readers.settle(consumer, Verb.ACK, first, first + b)
        elif action == "refuse":
            readers.settle(consumer, Verb(2 + b % 3), first, first + b // 2)
        elif action == "detach":
            readers.detach(consumer)


@given(STEPS)
def test_a_group_misses_nothing_and_commits_only_what_it_acknowledged(
    steps: list[tuple[Any, ...]],
) -> None:
    """See the module."""
    readers = Readers()
    for step in steps:
        act(readers, step)
    readers.finish()
    end = readers.queue.next_offset
    assert readers.acknowledged == set(range(end))
    assert (group_of(readers.queue).cursor, readers.queue.start) == (end, 0)

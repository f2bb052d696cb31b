"""What tests of queues share: batches, and a host that keeps its log in memory and applies what it proposes."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from xxhash import xxh3_64_intdigest

from fluxmq.model.batch_format import HEADER_BYTES, KEYS, Batch, encode_header
from fluxmq.model.message_batch import build_message
from fluxmq.queues import commands
from fluxmq.queues.commands import Range, Verb, encode_entry
from fluxmq.queues.config import QueueConfig
from fluxmq.queues.consumers import ConsumerDelivery, ConsumerTerms, DeadLetter, GroupConsumer
from fluxmq.queues.dispatch import Dispatch
from fluxmq.queues.groups import ConsumerGroup
from fluxmq.queues.machine import Machine
from fluxmq.queues.results import Result
from fluxmq.queues.states import QueueState

SECOND = 1_000_000
NOW = 1_700_000_000 * SECOND


def batch_of(
    payloads: Sequence[bytes],
    keys: bytes | Sequence[bytes] = b"",
    flags: int = 0,
    eights: Sequence[Sequence[int]] = (),
) -> bytes:
    """A batch of several messages; `eights` are the eight-byte columns that `flags` name."""
    count = len(payloads)
    columns = b"".join(struct.pack(f"<{count}q", *column) for column in eights)
    if isinstance(keys, bytes):
        area = keys
    else:
        flags |= KEYS
        area = b"".join(keys)
        columns += _ends(keys)
    columns += _ends(payloads)
    body = columns + area + b"".join(payloads)
    body += bytes(-len(body) % 8)
    return (
        encode_header(
            HEADER_BYTES + len(body),
            flags,
            0,
            NOW,
            xxh3_64_intdigest(body),
            count,
            len(area),
            0,
            sum(map(len, payloads)),
            0,
            0,
        )
        + body
    )


def _ends(pieces: Sequence[bytes]) -> bytes:
    ends = [0]
    for piece in pieces:
        ends.append(ends[-1] + len(piece))
    return struct.pack(f"<{len(ends)}i", *ends)


def singles(payloads: Sequence[bytes], **values: int) -> list[bytes]:
    """One batch per message."""
    return [build_message(b"", b"", payload, NOW, **values) for payload in payloads]


class Host:
    """The shard's part, in memory: a log per queue, entries applied as soon as they are made.

    With `hold`, entries wait until `release` is called, as while a disk is slow.
    """

    def __init__(self, term: int = 1) -> None:
        self.machine = Machine()
        self.now = NOW
        self.log: dict[int, list[Batch]] = {}
        self.proposed: list[bytes] = []
        self.entries: list[bytes] = []
        self.held_back: list[bytes] = []
        self.hold = False
        self.deliveries: list[ConsumerDelivery] = []
        self.dead: list[DeadLetter] = []
        self.trims: list[tuple[int, int]] = []
        self.lead(term)

    def lead(self, term: int, others: int = 0) -> None:
        """A new leader, on the same machine; `others`: the time until when another node may have led."""
        self.term = term
        self.dispatch = Dispatch(self.machine, self.read)
        self.proposed += self.dispatch.lead(term, others)

    def read(self, queue_id: int, offset: int) -> Batch:
        """The batch that holds an offset."""
        kept = self.machine.queues[queue_id].kept
        assert offset >= kept, f"offset {offset} was released, the log begins at {kept}"
        for batch in self.log[queue_id]:
            if batch.base_offset <= offset <= batch.last_offset:
                return batch
        raise AssertionError(f"offset {offset} was never stored")

    def do(self, *commands: bytes) -> list[Result]:
        """Propose commands, with what was proposed before, in one entry; gives the results of these."""
        self.proposed += commands
        results = self.flush()
        return results[len(results) - len(commands) :]

    def flush(self) -> list[Result]:
        """Make an entry of what was proposed."""
        if not self.proposed:
            return []
        entry = encode_entry(self.now, self.proposed)
        self.proposed = []
        if self.hold:
            self.held_back.append(entry)
            return []
        return self.apply(entry)

    def release(self) -> None:
        """The disk has caught up."""
        self.hold = False
        waiting, self.held_back = self.held_back, []
        for entry in waiting:
            self.apply(entry)

    def release_one(self) -> None:
        """The disk has done with one entry more."""
        self.apply(self.held_back.pop(0))

    def apply(self, entry: bytes) -> list[Result]:
        """Apply one entry and carry out its effects."""
        self.entries.append(entry)
        applied = self.machine.apply(self.machine.applied + 1, self.term, entry)
        for queue_id in applied.declared:
            self.log.setdefault(queue_id, [])  # one that has arrived is declared again
        for queue_id, batch in applied.batches:
            self.log[queue_id].append(batch)
        for queue_id, start in applied.trims:
            self.trims.append((queue_id, start))
        self.dispatch.applied(applied)
        return applied.results

    def run(self, messages_max: int = 10_000) -> list[tuple[str, int, int]]:
        """Ticks until nothing is due; gives member, offset and attempts of every delivery, in order."""
        self.deliveries = []
        self.dead = []
        for _ in range(200):
            self.flush()
            due = self.dispatch.due(self.now)
            if not due:
                break
            for queue_id in due:
                step = self.dispatch.run(queue_id, self.now, messages_max)
                self.deliveries += step.deliveries
                self.dead += step.dead
                self.proposed += step.commands
        else:
            raise AssertionError("the dispatcher finds no rest")
        return given(self.deliveries)

    def pass_time(self, microseconds: int) -> None:
        """Let time pass."""
        self.now += microseconds

    def declare(self, name: str = "q", **values: Any) -> QueueState:
        """A queue."""
        self.do(commands.declare(QueueConfig(name, **values)))
        queue = self.machine.queue(name)
        assert queue is not None, "a declared queue is there"
        return queue

    def publish(self, queue: QueueState, count: int, **values: Any) -> list[Result]:
        """One batch of `count` messages; `values` go to `batch_of`."""
        payloads = [b"%d" % number for number in range(count)]
        return self.do(commands.append(queue.id, batch_of(payloads, **values)))

    def attach(
        self, queue: QueueState, member: str = "m", group: str = "g", **values: Any
    ) -> GroupConsumer:
        """A consumer, joined."""
        consumer, proposals = self.dispatch.consumers.attach(
            queue.id, ConsumerTerms(group, member, **values)
        )
        self.do(*proposals)
        return consumer

    def settle(
        self, consumer: GroupConsumer, verb: Verb, *ranges: Range, **values: Any
    ) -> tuple[int, int]:
        """Settle, and apply it; gives settled and missing."""
        settlement = self.dispatch.consumers.settle(consumer, verb, ranges, self.now, **values)
        self.do(*settlement.commands)
        return settlement.settled, settlement.missing

    def bury_dead(self) -> None:
        """Report every handed dead letter as appended."""
        for letter in self.dead:
            self.do(
                commands.dead_lettered(
                    letter.queue_id, letter.group_id, [(letter.offset, letter.offset)]
                )
            )
        self.dead = []


def given(deliveries: Sequence[ConsumerDelivery]) -> list[tuple[str, int, int]]:
    """Member, offset and attempts of every message delivered."""
    return [
        (each.consumer.member, each.batch.base_offset + each.first + index, each.attempts)
        for each in deliveries
        for index in range(each.count)
    ]


def offsets(deliveries: Sequence[tuple[str, int, int]], member: str | None = None) -> list[int]:
    """Offsets of what was delivered, to one member if named."""
    return [offset for who, offset, _ in deliveries if member in (None, who)]


def pending(group: ConsumerGroup) -> list[tuple[int, int, int, int]]:
    """First, last, holder and attempts of every pending range."""
    return [
        (each.first, each.last, each.state.holder, each.state.attempts) for each in group.pending
    ]


def group_of(queue: QueueState, name: str = "g") -> ConsumerGroup:
    """A group that is there."""
    group = queue.group(name)
    assert group is not None, "the group is there"
    return group

"""Common part of the receivers of a channel's messages: consumers, getters and the consumer of
direct replies. They are ports of a queue, which may be on another shard.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from fluxmq.model.batch_format import Batch
from fluxmq.protocols.amqp091.errors import SoftError
from fluxmq.protocols.amqp091.methods import Method
from fluxmq.protocols.connection import Tally
from fluxmq.queues.commands import Verb
from fluxmq.routing.topology.arguments import QUORUM, STREAM
from fluxmq.routing.topology.records import QUEUE, QueueRecord
from fluxmq.routing.topology.refusals import Refusal, named
from fluxmq.sessions.amqp091 import refusals
from fluxmq.sessions.amqp091.channel import Channel
from fluxmq.sessions.amqp091.ports import (
    AmqpConsumerHandle,
    ConfirmCallback,
    ConsumeRequest,
    Range,
)
from fluxmq.sessions.amqp091.refusals import not_implemented, precondition

REQUEUE: Final = Verb.NACK
"""Verb that settles a requeued message; it counts as a failed delivery."""


class Taker(ABC):
    """A receiver. ``tag``: of a consumer, else empty. ``attached``: it may receive; ``handle``: of
    the queue, once it has answered; None when detached.

    ``automatic``: messages are settled when they are handed to the connection. ``reserved``:
    messages settled within a transaction but not yet with the queue. ``counts_from``: the delivery
    from which on a quorum queue's messages carry their delivery count (RabbitMQ tells basic.get at
    once).
    """

    __slots__ = (
        "attached",
        "automatic",
        "counts_from",
        "handle",
        "queue",
        "reserved",
        "tag",
        "tag_bytes",
    )

    def __init__(self, queue: QueueRecord, automatic: bool, tag: str = "") -> None:
        self.queue = queue
        self.automatic = automatic
        self.tag = tag
        self.tag_bytes = tag.encode()
        self.attached = True
        self.handle: AmqpConsumerHandle | None = None
        self.reserved = 0
        self.counts_from = 2

    @property
    def is_stream(self) -> bool:
        """True when deliveries carry their offset and cannot be rejected."""
        return self.queue.type == STREAM

    @property
    def counts_deliveries(self) -> bool:
        """True when redeliveries carry their count."""
        return self.queue.type == QUORUM

    def settle(
        self, verb: Verb, ranges: Sequence[Range], done: ConfirmCallback | None = None
    ) -> None:
        """Settle messages with the queue; rejected ones are redelivered without delay. A no-op once
        detached."""
        if self.handle is not None:
            self.handle.settle(verb, ranges, 0, b"", done)
        elif done is not None:
            done(0)

    def release(self, batch: Batch, first: int, count: int) -> None:
        """Return messages of a batch to the queue: no client has seen them."""
        offset = batch.base_offset + first
        self.settle(Verb.RELEASE, [(offset, offset + count - 1)])

    def leave(self) -> None:
        """Detach; the queue requeues unacked messages."""
        handle, self.handle, self.attached = self.handle, None, False
        if handle is not None:
            handle.detach()

    @abstractmethod
    def deliver(
        self, batch: Batch, first: int, count: int, attempts: int, committed: int = -1
    ) -> None:
        """Take messages from the queue."""

    @abstractmethod
    def cancelled(self) -> None:
        """Handle the end of the queue."""


def merged(ranges: list[Range]) -> list[Range]:
    """Return the same offsets in ascending order, with adjacent ranges merged."""
    if len(ranges) == 1:
        return ranges
    result: list[Range] = []
    for first, last in sorted(ranges):
        if result and first == result[-1][1] + 1:
            result[-1] = (result[-1][0], last)
        else:
            result.append((first, last))
    return result


SettledCallback = tuple[Taker, int, int]
"""Owner of the messages, first and last offset."""


def unknown_tag(tag: int) -> SoftError:
    """Return 406 for an unknown delivery tag."""
    return precondition(f"unknown delivery tag {tag}")


def check_refusable(ranges: Iterable[SettledCallback]) -> None:
    """Raise HardError 540 for messages of a stream, which cannot be requeued."""
    for taker, _, _ in ranges:
        if taker.is_stream:
            what = named(QUEUE, taker.queue.name, taker.queue.vhost)
            text = f"basic.nack and basic.reject not supported by stream queues {what}"
            raise not_implemented(text)


def grouped(ranges: Iterable[SettledCallback]) -> list[tuple[Taker, list[Range]]]:
    """Return the ranges grouped by owner, in order, with adjacent ones merged."""
    groups: dict[Taker, list[Range]] = {}
    for taker, first, last in ranges:
        groups.setdefault(taker, []).append((first, last))
    return [(taker, merged(found)) for taker, found in groups.items()]


def note_settled(tally: Tally, verb: Verb, messages: int) -> None:
    """Count messages settled by the client."""
    if verb is Verb.ACK:
        tally.amqp_acknowledged += messages
    elif verb is REQUEUE:
        tally.amqp_requeued += messages
    else:
        tally.amqp_rejected += messages


def attach(
    channel: Channel,
    method: Method,
    wanted: ConsumeRequest,
    taker: Taker,
    then: Callable[[AmqpConsumerHandle | Refusal], None],
) -> None:
    """Attach to a queue; both the channel and the queue may end before it answers."""
    answer = channel.later(method, then)

    def done(handle: AmqpConsumerHandle | Refusal) -> None:
        if channel.is_open and taker.attached:
            answer(handle)
            return
        if not isinstance(handle, Refusal):
            handle.detach()
        if channel.is_open:
            answer(refusals.queue_gone(wanted.queue))

    channel.broker.consume(wanted, taker, done)

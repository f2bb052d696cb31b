"""Receivers of a channel's messages: a consumer, which is pushed messages, and a getter, which
pulls one.

Both are ports of a queue, which may be on another shard. A consumer writes messages to the
connection's output while there is room; the rest waits in the channel (see ``consuming``). Direct
replies go straight to the requester's channel, past all queues (see ``ReplyConsumer``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from fluxmq.queues.commands import Verb
from fluxmq.routing.topology.arguments import QUORUM, STREAM
from fluxmq.routing.topology.records import QueueRecord
from fluxmq.sessions.amqp091.ports import AmqpConsumerHandle, ConfirmCallback, Range

if TYPE_CHECKING:
    from fluxmq.model.batch_format import Batch
    from fluxmq.sessions.amqp091.channel import Channel

THROTTLE_FROM: Final = 256
"""Limit above which a consumer is throttled when its connection does not keep up."""


class Taker:
    """Common part of consumer and getter. ``channel`` and ``handle`` are None once it is detached.

    ``automatic``: messages are settled when they are handed to the connection. ``reserved``:
    messages settled within a transaction but not yet with the queue. ``counts_from``: the delivery
    from which on a quorum queue's messages carry their delivery count (RabbitMQ tells basic.get at
    once).
    """

    __slots__ = ("automatic", "channel", "counts_from", "handle", "queue", "reserved")

    def __init__(self, channel: Channel, queue: QueueRecord, automatic: bool) -> None:
        self.channel: Channel | None = channel
        self.queue = queue
        self.automatic = automatic
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
        handle, self.handle, self.channel = self.handle, None, None
        if handle is not None:
            handle.detach()


class AmqpConsumer(Taker):
    """One basic.consume. ``prefetch``: its own limit, 0 for none.

    ``stopped``: the client has cancelled it. ``throttled``: its queue was told to wait.
    ``written``: messages written but not settled yet, when it is ``automatic``.
    """

    __slots__ = (
        "arguments",
        "exclusive",
        "prefetch",
        "priority",
        "stopped",
        "tag",
        "tag_bytes",
        "throttled",
        "written",
    )

    def __init__(
        self,
        channel: Channel,
        queue: QueueRecord,
        tag: str,
        automatic: bool,
        prefetch: int,
        exclusive: bool,
        priority: int,
        arguments: Any,
    ) -> None:
        super().__init__(channel, queue, automatic)
        self.tag = tag
        self.tag_bytes = tag.encode()
        self.prefetch = prefetch
        self.exclusive = exclusive
        self.priority = priority
        self.arguments = arguments
        self.stopped = False
        self.throttled = False
        self.written: list[Range] = []

    def limit(self) -> int:
        """Return the maximum of unacked messages: the lower of its own and the channel's limit; 0
        for none."""
        channel = self.channel
        shared = 0 if channel is None or self.automatic else channel.consumers.shared_limit
        own = 0 if self.automatic else self.prefetch
        return min(own, shared) if own and shared else own or shared

    def throttle(self) -> None:
        """Pause the queue's deliveries until those here are written."""
        if not self.throttled and self.handle is not None:
            limit = self.limit()
            if not limit or limit > THROTTLE_FROM:
                self.throttled = True
                self.handle.set_limit(1)

    def unthrottle(self) -> None:
        """Resume deliveries: there is room again."""
        if self.throttled:
            self.throttled = False
            if self.handle is not None:
                self.handle.set_limit(self.limit())

    def deliver(
        self, batch: Batch, first: int, count: int, attempts: int, committed: int = -1
    ) -> None:
        """Take messages from the queue."""
        channel = self.channel
        if channel is None or self.stopped:
            self.release(batch, first, count)  # they crossed the cancellation
            return
        channel.consumers.delivered(self, batch, first, count, attempts)

    def wrote(self, offset: int, count: int) -> None:
        """Note that messages without acknowledgement were handed to the connection."""
        written = self.written
        if written and written[-1][1] == offset - 1:
            written[-1] = (written[-1][0], offset + count - 1)
        else:
            written.append((offset, offset + count - 1))

    def settle_written(self) -> None:
        """Settle the messages handed to the connection, if it is automatic."""
        if self.written:
            written, self.written = self.written, []
            self.settle(Verb.ACK, merged(written))

    def cancelled(self) -> None:
        """Handle the end of the queue."""
        channel = self.channel
        self.handle = None
        if channel is not None:
            channel.consumers.cancelled(self)
            self.channel = None


class Getter(Taker):
    """Takes messages of one queue for basic.get; kept for the next one. ``taken``: the last message
    received."""

    __slots__ = ("taken",)

    def __init__(self, channel: Channel, queue: QueueRecord, automatic: bool) -> None:
        super().__init__(channel, queue, automatic)
        self.counts_from = 1
        self.taken: tuple[Batch, int, int] | None = None

    def deliver(
        self, batch: Batch, first: int, count: int, attempts: int, committed: int = -1
    ) -> None:
        """Take the requested message."""
        if self.channel is None:
            self.release(batch, first, count)
            return
        self.taken = (batch, first, attempts)

    def cancelled(self) -> None:
        """Handle the end of the queue."""
        channel = self.channel
        self.handle = self.channel = None
        if channel is not None:
            channel.ledger.forget(self)
            channel.consumers.getters.pop((self.queue.name, self.automatic), None)


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

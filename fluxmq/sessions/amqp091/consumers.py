"""What takes messages for a channel: a consumer, to which they are pushed, and a getter, which takes one when asked to.

Both are ports of a queue, which may be on another shard. A consumer writes what it is given into the connection's output as
far as there is room; the rest waits in the channel (see ``consuming``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from fluxmq.queues.commands import Verb
from fluxmq.routing.topology.arguments import QUORUM, STREAM
from fluxmq.routing.topology.records import Queue
from fluxmq.sessions.amqp091.ports import Answer, Held, Range

if TYPE_CHECKING:
    from fluxmq._hot.batches import Batch
    from fluxmq.sessions.amqp091.channel import Channel

THROTTLE_FROM: Final = 256
"""A consumer that may be given more than this is told to wait when its connection does not take what there is."""


class Taker:
    """What a consumer and a getter have in common. ``channel`` and ``held`` are None once it is of no use.

    ``automatic``: messages are settled when they are handed to the connection. ``reserved``: messages settled within a
    transaction, which must be settled with the queue yet. ``counts_from``: the delivery from which on a quorum queue's
    messages say how often they were delivered before (RabbitMQ tells basic.get at once).
    """

    __slots__ = ("automatic", "channel", "counts_from", "held", "queue", "reserved")

    def __init__(self, channel: Channel, queue: Queue, automatic: bool) -> None:
        self.channel: Channel | None = channel
        self.queue = queue
        self.automatic = automatic
        self.held: Held | None = None
        self.reserved = 0
        self.counts_from = 2

    @property
    def is_stream(self) -> bool:
        """Whether deliveries say their offset, and cannot be refused."""
        return self.queue.type == STREAM

    @property
    def counts_deliveries(self) -> bool:
        """Whether deliveries that are repeated say how often."""
        return self.queue.type == QUORUM

    def settle(self, verb: Verb, ranges: Sequence[Range], done: Answer | None = None) -> None:
        """Settle messages with the queue; what is refused comes again without delay. Without effect when it has gone."""
        if self.held is not None:
            self.held.settle(verb, ranges, 0, b"", done)
        elif done is not None:
            done(0)

    def leave(self) -> None:
        """Detach; what is not settled goes back to the queue."""
        held, self.held, self.channel = self.held, None, None
        if held is not None:
            held.detach()


class Consumer(Taker):
    """One basic.consume. ``prefetch``: its own limit, 0 for none.

    ``stopped``: the client has cancelled it. ``throttled``: its queue was told to wait. ``written``: messages handed out that
    are to be settled, where it is ``automatic``.
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
        queue: Queue,
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
        """Most unsettled messages: the lower of its own limit and the one that all of the channel share; 0 for none."""
        channel = self.channel
        shared = 0 if channel is None or self.automatic else channel.shared_limit
        own = 0 if self.automatic else self.prefetch
        return min(own, shared) if own and shared else own or shared

    def throttle(self) -> None:
        """Let the queue wait until what there is was written."""
        if not self.throttled and self.held is not None:
            limit = self.limit()
            if not limit or limit > THROTTLE_FROM:
                self.throttled = True
                self.held.set_limit(1)

    def unthrottle(self) -> None:
        """There is room again."""
        if self.throttled:
            self.throttled = False
            if self.held is not None:
                self.held.set_limit(self.limit())

    def deliver(
        self, batch: Batch, first: int, count: int, attempts: int, committed: int = -1
    ) -> None:
        """Messages from the queue."""
        channel = self.channel
        if channel is None or self.stopped:
            # They crossed the cancellation: nobody was shown them.
            offset = batch.base_offset + first
            self.settle(Verb.RELEASE, [(offset, offset + count - 1)])
            return
        channel.handler.delivered(channel, self, batch, first, count, attempts)

    def cancelled(self) -> None:
        """The queue has gone."""
        channel = self.channel
        self.held = None
        if channel is not None:
            channel.handler.cancelled(channel, self)
            self.channel = None


class Getter(Taker):
    """Takes messages of one queue for basic.get; kept for the next one. ``taken``: the message it was given just now."""

    __slots__ = ("taken",)

    def __init__(self, channel: Channel, queue: Queue, automatic: bool) -> None:
        super().__init__(channel, queue, automatic)
        self.counts_from = 1
        self.taken: tuple[Batch, int, int] | None = None

    def deliver(
        self, batch: Batch, first: int, count: int, attempts: int, committed: int = -1
    ) -> None:
        """The message that was asked for."""
        if self.channel is None:
            offset = batch.base_offset + first
            self.settle(Verb.RELEASE, [(offset, offset + count - 1)])
            return
        self.taken = (batch, first, attempts)

    def cancelled(self) -> None:
        """The queue has gone."""
        channel = self.channel
        self.held = self.channel = None
        if channel is not None:
            channel.ledger.forget(self)
            channel.getters.pop((self.queue.name, self.automatic), None)

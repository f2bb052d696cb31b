"""A link on which a client consumes a queue.

The queue delivers up to a limit of unsettled messages. The limit follows the link's credit: it is
what is unsettled now and the credit that is left, so that the queue keeps messages for which there
is no credit. It is set before settlements are passed on, as these would otherwise make the queue
deliver beyond the credit. What arrives all the same, or while the connection or the session's window
has no room, waits here, in order; large credit is given to the queue in parts, which bounds that.

Source: OASIS AMQP 1.0 part 2, sections 2.6.7 to 2.6.10 (flow control), part 3, section 3.4
(outcomes), RabbitMQ's consumer priorities.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from fluxmq.model.batch_format import ATTRIBUTE_REDELIVERED, ATTRIBUTES, EXPIRY, Batch
from fluxmq.model.properties import PropertyError
from fluxmq.protocols.amqp10 import conditions
from fluxmq.protocols.amqp10.delivery import transfer_frames
from fluxmq.protocols.amqp10.message import MessageTemplate, template_of
from fluxmq.protocols.amqp10.performatives import AttachFrame, DetachFrame, FlowFrame
from fluxmq.protocols.amqp10.types import ULong
from fluxmq.queues.commands import Verb
from fluxmq.queues.limits import UNSETTLED_MAX
from fluxmq.routing.topology.arguments import STREAM
from fluxmq.routing.topology.records import QueueRecord
from fluxmq.sessions.amqp091.ports import AmqpConsumerHandle, QueueStatus, Range
from fluxmq.sessions.amqp091.takers import merged
from fluxmq.sessions.amqp10.serials import MASK, ahead

if TYPE_CHECKING:
    from fluxmq.routing.topology.refusals import Refusal
    from fluxmq.sessions.amqp10.session import Amqp10Session

AHEAD_MAX: Final = 1000
"""Messages that a queue delivers before they can be written, whatever the credit."""
NO_LIMIT_LEFT: Final = -1
"""Limit of a consumer that is to get nothing."""
UNDELIVERABLE: Final = b"undeliverable"


class OutgoingLink:
    """A link to a consumer.

    ``delivery_count``, ``credit``: of the link; ``held``: messages from the queue that it has not
    settled, those in ``waiting`` included. ``settles``: it sends deliveries settled. ``written``:
    such deliveries, not yet settled with the queue. ``draining``: unused credit is to be given up;
    ``quiet``: answers of the queue that it has nothing ready.
    """

    def __init__(
        self, session: Amqp10Session, attach: AttachFrame, queue: QueueRecord, settles: bool
    ) -> None:
        self.session = session
        self.name = attach.name
        self.handle = attach.handle
        self.queue = queue
        self.settles = settles
        self.priority = 0
        self.max_message = attach.max_message_size or 0
        self.consumer: AmqpConsumerHandle | None = None
        self.attached = False
        self.delivery_count = 0
        self.credit = 0
        self.held = 0
        self.draining = False
        self.waiting: deque[tuple[Batch, int, int, int]] = deque()
        self.written: list[Range] = []
        self.known: tuple[bytes, bytes, MessageTemplate] | None = None
        self.limit = NO_LIMIT_LEFT
        self.ending: DetachFrame | None = None

    def open(self, consumer: AmqpConsumerHandle) -> None:
        """Begin, once the queue has answered and the client knows."""
        self.consumer = consumer
        self.attached = True
        self.adjust()
        self.pump()
        if self.draining:
            self._drain()

    @property
    def member(self) -> str:
        """Its name in the queue's consumer group."""
        session = self.session
        return f"{session.client.info.owner}:{session.channel}:{self.handle}"

    # --- credit ---

    def on_flow(self, flow: FlowFrame) -> None:
        """Take the credit of a flow (2.6.7)."""
        if flow.link_credit is not None:
            since = flow.delivery_count
            base = self.delivery_count if since is None else since
            limit = (base + flow.link_credit) & MASK
            self.credit = max(ahead(limit, self.delivery_count), 0)
            if flow.link_credit > MASK >> 1:
                self.credit = flow.link_credit
        began = flow.drain and not self.draining
        self.draining = flow.drain
        self.pump()
        self.adjust()
        if began:
            self._drain()
        elif flow.echo:
            self._ask(self._echo)

    def adjust(self) -> None:
        """Tell the queue how many messages it may have unsettled."""
        more = max(min(self.credit, AHEAD_MAX) - self.waiting_count, 0)
        limit = min(self.held + more, UNSETTLED_MAX) or NO_LIMIT_LEFT
        if limit != self.limit and self.consumer is not None:
            self.limit = limit
            self.consumer.set_limit(limit)

    @property
    def waiting_count(self) -> int:
        """Messages that wait to be written."""
        return sum(each[2] for each in self.waiting)

    def _ask(self, done: Callable[[QueueStatus | Refusal | None], None]) -> None:
        self.session.ask(self.queue, done)

    def _echo(self, status: QueueStatus | Refusal | None) -> None:
        """Answer a flow that asks for one, with the messages available."""
        if self.attached:
            ready = status.ready if isinstance(status, QueueStatus) else 0
            available = min(ready + self.waiting_count, MASK)
            self.session.send_flow(self.handle, self.delivery_count, self.credit, available)

    def _drain(self) -> None:
        """Give up the credit once the queue has nothing more: it says so twice, as its messages may
        be on their way when it says so first."""

        def first(status: QueueStatus | Refusal | None) -> None:
            if isinstance(status, QueueStatus) and status.ready and self._drains():
                self._ask(first)
                return
            self._ask(second)

        def second(status: QueueStatus | Refusal | None) -> None:
            self._drained()

        if self._drains():
            self._ask(first)
        elif self.attached:
            self._drained()

    def _drains(self) -> bool:
        return self.attached and self.draining and self.credit > 0

    def _drained(self) -> None:
        """Advance the delivery count past the credit that is left, and tell the client."""
        if not self.attached or not self.draining or self.waiting:
            return
        self.draining = False
        self.delivery_count = (self.delivery_count + self.credit) & MASK
        self.credit = 0
        self.adjust()
        self.session.send_flow(self.handle, self.delivery_count, 0, 0, drain=True)

    # --- from the queue ---

    def deliver(
        self, batch: Batch, first: int, count: int, attempts: int, committed: int = -1
    ) -> None:
        """Take messages from the queue."""
        if not self.attached and self.consumer is not None:
            offset = batch.base_offset + first
            ranges = [(offset, offset + count - 1)]
            self.consumer.settle(Verb.RELEASE, ranges, 0, b"", None)
            return
        self.held += count
        self.waiting.append((batch, first, count, attempts))
        self.pump()
        self.adjust()

    def cancelled(self) -> None:
        """Handle the end of the queue."""
        self.consumer = None
        if self.attached:
            text = f"queue '{self.queue.name}' in vhost '{self.queue.vhost}' was deleted"
            self.session.detach(self, conditions.RESOURCE_DELETED, text)

    def pump(self) -> None:
        """Write what waits, as credit, window and connection allow."""
        session = self.session
        while self.waiting and self.credit > 0 and self.attached:
            room = session.room()
            if room <= 0:
                return
            batch, first, count, attempts = self.waiting.popleft()
            part = 1 if self.max_message else min(count, self.credit, room)
            if part < count:
                self.waiting.appendleft((batch, first + part, count - part, attempts))
            messages = [
                self._message(batch, index, attempts) for index in range(first, first + part)
            ]
            if self.max_message and len(messages[0]) > self.max_message:
                offset = batch.base_offset + first
                session.broker.count_drop("too_large", 1)
                self.settle(Verb.REJECT, [(offset, offset)], 0, UNDELIVERABLE)
                continue
            self._write(messages, batch.base_offset + first, attempts > 1)
        if self.draining and not self.waiting and not self.credit:
            self._drained()

    def _write(self, messages: list[bytes], offset: int, again: bool) -> None:
        """Write messages from ``offset`` on, for which there are credit and window."""
        session = self.session
        count = len(messages)
        tag = session.give(None if self.settles else self, count, offset)
        if self.settles:
            self.written.append((offset, offset + count - 1))
            session.mark()
        self.credit -= count
        self.delivery_count = (self.delivery_count + count) & MASK
        frames: list[bytes] = []
        frame_max = session.client.frame_max
        for number, message in enumerate(messages, tag):
            frames += transfer_frames(
                session.channel, self.handle, number & MASK, self.settles, message, frame_max
            )
        session.send_transfers(self, frames, count, again)

    def _message(self, batch: Batch, index: int, attempts: int) -> bytes:
        """Return the sections of a message."""
        block, key = batch.properties(index), batch.key(index)
        known = self.known
        stream = self.queue.type == STREAM
        if known is None or stream or known[0] != block or known[1] != key:
            annotations = {"x-stream-offset": ULong(batch.base_offset + index)} if stream else {}
            try:
                template = template_of(block, key, annotations)
            except (PropertyError, ValueError):
                template = template_of(b"", key[:255])
            known = self.known = (block, key, template)
        ttl_ms = None
        if batch.flags & EXPIRY:
            expires = batch.expiry(index)
            if expires:
                ttl_ms = max((expires - self.session.broker.now_us()) // 1000, 0)
        again = attempts > 1
        if batch.flags & ATTRIBUTES and batch.attributes(index) & ATTRIBUTE_REDELIVERED:
            again = True
        return known[2].message(
            batch.payload(index),
            ttl_ms=ttl_ms,
            delivery_count=0 if stream else attempts - 1,
            first_acquirer=not again,
        )

    # --- to the queue ---

    def settle(self, verb: Verb, ranges: list[Range], delay: int = 0, reason: bytes = b"") -> None:
        """Settle messages with the queue."""
        self.held -= sum(last - first + 1 for first, last in ranges)
        self.adjust()
        if self.consumer is not None:
            self.consumer.settle(verb, merged(ranges), delay, reason, None)

    def settle_written(self) -> None:
        """Settle what was sent settled."""
        if self.written:
            written, self.written = self.written, []
            self.settle(Verb.ACK, written)

    def release(self) -> None:
        """Detach from the queue, which requeues what is unsettled."""
        self.settle_written()
        self.attached = False
        consumer, self.consumer = self.consumer, None
        self.waiting.clear()
        if consumer is not None:
            consumer.detach()

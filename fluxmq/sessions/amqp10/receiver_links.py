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
from typing import Final

from fluxmq.model.batch_format import Batch
from fluxmq.protocols.amqp10 import conditions
from fluxmq.protocols.amqp10.filters import MessageFilter
from fluxmq.protocols.amqp10.performatives import (
    AttachFrame,
    DetachFrame,
    FlowFrame,
    SourceTerminus,
)
from fluxmq.protocols.amqp10.types import Symbol
from fluxmq.queues.commands import Verb
from fluxmq.queues.limits import UNSETTLED_MAX
from fluxmq.routing.topology.arguments import STREAM
from fluxmq.routing.topology.records import QueueRecord
from fluxmq.routing.topology.refusals import Refusal
from fluxmq.sessions.amqp091.ports import AmqpConsumerHandle, QueueStatus, Range
from fluxmq.sessions.amqp091.takers import merged
from fluxmq.sessions.amqp10.link_deliveries import LinkDeliveries
from fluxmq.sessions.amqp10.ports import LinkSession
from fluxmq.sessions.amqp10.serials import MASK, ahead

AHEAD_MAX: Final = 1000
"""Messages that a queue is asked for at a time, whatever the credit: they are in memory until they are
written."""
CREDIT_MAX: Final = MASK >> 1
"""Largest credit that is counted: serial numbers cannot tell more."""
ACTIVE: Final = Symbol("rabbitmq:active")
"""Property of a flow: whether the link is a queue's active consumer."""
COPY: Final = Symbol("copy")
"""Distribution mode of a source whose messages stay where they are."""
QUIET_ANSWERS: Final = 2
"""Answers of a queue that it has nothing ready, after which credit is given up."""
ANSWERS_MAX: Final = 8
"""Answers after which it is given up all the same: what is ready is not for this consumer."""
NO_LIMIT_LEFT: Final = -1
"""Limit of a consumer that is to get nothing."""
UNDELIVERABLE: Final = b"undeliverable"


class LinkCredit:
    """Credit of a link. ``count``: its delivery-count; ``left``: credit that is left.

    ``draining``: unused credit is to be given up. Until it is, the queue is asked again and again:
    ``asking``; ``asked``: so many times, ``quiet``: times that it had nothing ready, both since
    ``seen`` changed, which does with every message that comes. ``active``: whether it is the queue's active consumer, None for unknown;
    ``told``: what the client knows of that, which it is told from the first credit, ``granted``, on.
    """

    __slots__ = (
        *("active", "asked", "asking", "count", "draining"),
        *("granted", "left", "quiet", "seen", "told"),
    )

    def __init__(self) -> None:
        self.count = 0
        self.left = 0
        self.draining = False
        self.asking = False
        self.asked = 0
        self.quiet = 0
        self.seen = 0
        self.active: bool | None = None
        self.granted = False
        self.told: bool | None = None

    def give(self, count: int | None, credit: int) -> None:
        """Take a flow's delivery-count and credit (2.6.7)."""
        self.granted = True
        limit = ((self.count if count is None else count) + credit) & MASK
        self.left = min(max(ahead(limit, self.count), 0), CREDIT_MAX)
        if credit > CREDIT_MAX:
            self.left = CREDIT_MAX

    def used(self, count: int) -> None:
        """Note that messages were sent."""
        self.left -= count
        self.count = (self.count + count) & MASK

    def heard(self, ready: int, seen: int) -> bool:
        """Note what a queue has ready; return whether nothing more is to be expected of it."""
        self.asking = False
        if self.seen != seen:
            self.seen = seen
            self.asked = self.quiet = 0
        self.asked += 1
        if not ready:
            self.quiet += 1
        return self.quiet >= QUIET_ANSWERS or self.asked >= ANSWERS_MAX


class OutgoingLink:
    """A link to a consumer.

    ``held``: messages from the queue that it has not settled, those in ``waiting`` included.
    ``wanted``: messages that it sends, None for all; the queue is its own, or a stream, and the
    others are settled. ``written``: deliveries that were sent settled, and messages that are not sent,
    both not yet settled with the queue. ``limit``: what the queue was told. ``ending``: the client's
    detach, which came before the queue's answer.
    """

    def __init__(
        self,
        session: LinkSession,
        attach: AttachFrame,
        queue: QueueRecord,
        priority: int,
        wanted: MessageFilter | None = None,
    ) -> None:
        self.session = session
        self.attach = attach
        self.queue = queue
        self.wanted = wanted
        self.deliveries = LinkDeliveries(session, attach, queue.type == STREAM)
        self.priority = priority
        self.consumer: AmqpConsumerHandle | None = None
        self.attached = False
        self.credit = LinkCredit()
        self.held = 0
        self.waiting: deque[tuple[Batch, int, int, int]] = deque()
        self.written: list[Range] = []
        self.limit = NO_LIMIT_LEFT
        self.ending: DetachFrame | None = None

    @property
    def name(self) -> str:
        """Its name."""
        return self.attach.name

    @property
    def handle(self) -> int:
        """Its handle, on both sides."""
        return self.attach.handle

    def open(self, consumer: AmqpConsumerHandle) -> None:
        """Begin, once the queue has answered and the client knows."""
        self.consumer = consumer
        self.attached = True
        self._tell_activity()
        self.adjust()
        self.pump()
        self.session.mark()

    @property
    def settles(self) -> bool:
        """Whether it sends deliveries settled."""
        return self.deliveries.settled

    @property
    def browsing(self) -> bool:
        """Whether it reads a queue whose messages others are given all the same. Its queue says
        exactly when it has shown everything; outcomes have no effect."""
        source = self.attach.source
        copies = isinstance(source, SourceTerminus) and source.distribution_mode == COPY
        return copies and self.queue.type != STREAM

    @property
    def member(self) -> str:
        """Its name in the queue's consumer group."""
        session = self.session
        return f"{session.client.info.owner}:{session.channel}:{self.handle}"

    # --- credit ---

    def on_flow(self, flow: FlowFrame) -> None:
        """Take the credit of a flow (2.6.7)."""
        credit = self.credit
        if flow.link_credit is not None:
            credit.give(flow.delivery_count, flow.link_credit)
            self._tell_activity()
        began = flow.drain and not credit.draining
        credit.draining = flow.drain
        self.pump()
        self.adjust()
        if began:
            credit.asked = credit.quiet = 0
            self.session.mark()
        elif flow.echo:
            self.session.broker.queue_status(self.queue, self._echo)

    def activity(self, active: bool) -> None:
        """Note whether it is the active consumer of a queue that has a single one."""
        self.credit.active = active
        self._tell_activity()

    def _tell_activity(self) -> None:
        """Tell the client whether the link is active, when that has changed."""
        credit = self.credit
        if self.attached and credit.granted and credit.active is not credit.told:
            credit.told = credit.active
            about: dict[object, object] = {ACTIVE: credit.active}
            self.session.send_flow(self.handle, credit.count, credit.left, properties=about)

    def adjust(self) -> None:
        """Tell the queue how many messages it may have unsettled: no more while some wait for the
        client to read."""
        more = 0 if self.waiting else min(self.credit.left, AHEAD_MAX)
        limit = min(self.held + more, UNSETTLED_MAX) or NO_LIMIT_LEFT
        if limit != self.limit and self.consumer is not None:
            self.limit = limit
            self.consumer.set_limit(limit)

    @property
    def waiting_count(self) -> int:
        """Messages that wait to be written."""
        return sum(each[2] for each in self.waiting)

    def _echo(self, status: QueueStatus | Refusal | None) -> None:
        """Answer a flow that asks for one, with the messages available."""
        if self.attached:
            ready = status.ready if isinstance(status, QueueStatus) else 0
            available = min(ready + self.waiting_count, MASK)
            self.session.send_flow(self.handle, self.credit.count, self.credit.left, available)

    def drain(self) -> None:
        """Give up the credit once the queue has nothing more. It has to say so twice, as its messages
        may be on their way when it says so first; what it keeps for others counts only so often."""
        credit = self.credit
        if not self.attached or not credit.draining or credit.asking or self.waiting:
            return
        if credit.left:
            credit.asking = True
            if self.browsing and self.consumer is not None:
                self.consumer.take(self._browsed)
            else:
                self.session.broker.queue_status(self.queue, self._heard)
            return
        self._drained()

    def _browsed(self, asked: bool, unseen: int) -> None:
        """Go on until a browser's queue has nothing more, cannot be asked, or shows nothing any more:
        the client has as many messages as it may have unsettled."""
        stuck = self.credit.heard(unseen, unseen)
        self._end_drain(stuck or not (asked and unseen))

    def _heard(self, status: QueueStatus | Refusal | None) -> None:
        ready = status.ready if isinstance(status, QueueStatus) else 0
        self._end_drain(self.credit.heard(ready, self.credit.count))

    def _end_drain(self, done: bool) -> None:
        """Give up the credit if nothing more is to be expected, else ask again."""
        if not self.attached or not self.credit.draining:
            return
        if done and not self.waiting:
            self._drained()
        else:
            self.session.mark()

    def _drained(self) -> None:
        """Advance the delivery count past the credit that is left, and tell the client."""
        credit = self.credit
        credit.draining = False
        credit.used(credit.left)
        self.adjust()
        self.session.send_flow(self.handle, credit.count, 0, 0, drain=True)

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
        if self.wanted is None:
            self.waiting.append((batch, first, count, attempts))
        else:
            self._sift(self.wanted, batch, first, count, attempts)
        self.pump()
        self.adjust()

    def _sift(
        self, wanted: MessageFilter, batch: Batch, first: int, count: int, attempts: int
    ) -> None:
        """Let messages wait that are wanted, and settle the others."""
        now_ms = self.session.broker.now_us() // 1000
        index, end = first, first + count
        while index < end:
            matches = wanted.matches(batch.properties(index), now_ms)
            stop = end if batch.uniform_properties else index + 1
            while stop < end and wanted.matches(batch.properties(stop), now_ms) is matches:
                stop += 1
            if matches:
                self.waiting.append((batch, index, stop - index, attempts))
            else:
                self.written.append((batch.base_offset + index, batch.base_offset + stop - 1))
                self.session.mark()
            index = stop

    def cancelled(self) -> None:
        """Handle the end of the queue."""
        self.consumer = None
        if self.attached:
            text = f"queue '{self.queue.name}' in vhost '{self.queue.vhost}' was deleted"
            self.session.detach(self, conditions.RESOURCE_DELETED, text)

    def pump(self) -> None:
        """Write what waits, as credit, window and connection allow."""
        session = self.session
        window = session.outgoing
        while self.waiting and self.credit.left > 0 and self.attached:
            room = window.room()
            if room <= 0:
                return
            batch, first, count, attempts = self.waiting.popleft()
            most = min(count, self.credit.left, room)
            data, part = self.deliveries.together(batch, first, most, attempts)
            if part:
                self._give(batch, first, part, attempts)
                window.send_whole(data, part, attempts > 1)
            else:
                part = self._write(batch, first, most, attempts)
            if part < count:
                self.waiting.appendleft((batch, first + part, count - part, attempts))
        if self.credit.draining and not self.waiting:
            session.mark()

    def _write(self, batch: Batch, first: int, most: int, attempts: int) -> int:
        """Write messages from index ``first`` on that are not of one template, or dead-letter the first
        one if it is too large; return how many."""
        frames, count = self.deliveries.singly(batch, first, most, attempts)
        if not count:
            offset = batch.base_offset + first
            self.session.broker.count_drop("too_large", 1)
            self.settle(Verb.REJECT, [(offset, offset)], 0, UNDELIVERABLE)
            return 1
        self._give(batch, first, count, attempts)
        self.session.outgoing.send(self, frames, count, attempts > 1)
        return count

    def _give(self, batch: Batch, first: int, count: int, attempts: int) -> None:
        """Give messages from index ``first`` on to the client, for which there are credit and window."""
        session = self.session
        offset = batch.base_offset + first
        session.outgoing.give(None if self.settles else self, count, offset)
        if self.settles:
            self.written.append((offset, offset + count - 1))
            session.mark()
        self.credit.used(count)
        tap = session.client.connection.handler.tap
        if tap is not None and tap.on:
            tap.delivered_over_link(
                *(session.client.info, session.channel, self.queue.name),
                *(batch, (first, count), attempts > 1),
            )

    # --- to the queue ---

    def settle(
        self,
        verb: Verb,
        ranges: list[Range],
        delay: int = 0,
        reason: bytes = b"",
        done: Callable[[int], object] | None = None,
    ) -> None:
        """Settle messages with the queue; ``done`` as in `AmqpConsumerHandle.settle`."""
        self.held -= sum(last - first + 1 for first, last in ranges)
        self.adjust()
        if self.consumer is not None:
            self.consumer.settle(verb, merged(ranges), delay, reason, done)
        elif done is not None:
            done(0)

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

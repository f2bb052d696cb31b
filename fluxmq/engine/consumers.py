"""Delivery of a queue's messages to one MQTT session, and their settlement.

The session's delivery treats them like any others: receive window, packet identifiers, DUP. The
client's answers return as ranges of offsets, collected during a tick and settled together at its
end. When the connection ends, unacked messages are requeued; the queue, not the session, keeps
messages.

Source: MQTT 5.0 section 3.3 (PUBLISH); the properties of a delivery are in
``sessions.mqtt.queue_properties``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from fluxmq.engine.ports import AppendCallback, ConsumerHandle, Range
from fluxmq.model.batch_format import EXPIRY, Batch
from fluxmq.protocols.mqtt.batch_delivery import OffsetProperties, delivery_runs
from fluxmq.protocols.mqtt.identifiers import ReleasedRange
from fluxmq.protocols.mqtt.inflight_range import CLOCK_SLACK, EXPIRY_MAX, GROWTH_MAX, InflightRange
from fluxmq.protocols.mqtt.message_properties import from_block
from fluxmq.protocols.mqtt.run import PublishRun
from fluxmq.queues.commands import Verb
from fluxmq.queues.interval_set import IntervalSet
from fluxmq.routing.queue_addresses import delivery_topic
from fluxmq.sessions.mqtt.queue_properties import delivery_properties
from fluxmq.sessions.mqtt.queue_subscriptions import QueueSubscription
from fluxmq.sessions.mqtt.session import Session
from fluxmq.sessions.mqtt.subscribing import identifier_property

UNDELIVERABLE = b"larger than the consumer's maximum packet size"
REFUSED = b"refused by the consumer"
SLACK_US = round(CLOCK_SLACK * 1_000_000)


class QueueConsumer:
    """A session's subscription to a queue. ``handle`` is None until the queue's group has attached
    it.

    ``limit``: prefetch limit (maximum number of unacked messages).
    """

    def __init__(
        self,
        session: Session,
        wanted: QueueSubscription,
        limit: int,
        clock: Callable[[], int],
        mark: Callable[[QueueConsumer], None],
        cancel: Callable[[QueueConsumer], None],
    ) -> None:
        self.session = session
        self.wanted = wanted
        self.handle: ConsumerHandle | None = None
        self.stream = False
        self.primary = b""
        self.ended = False
        self.qos = wanted.qos
        self._limit = limit
        self._enqueued = 0
        """Messages passed to the session's delivery since the last check for stale ones."""
        self._given_back = IntervalSet()
        """Messages the client nacked by command before acknowledging their delivery: that
        acknowledgement must settle nothing."""
        self._clock = clock
        self._mark = mark
        self._cancel = cancel
        self._offsets = OffsetProperties(wanted.queue)
        self._identifier = identifier_property(wanted.identifier)
        self._answered: list[Range] = []
        self._rejected: list[tuple[Range, bytes]] = []
        self._said: tuple[bytes, bytes, int, int] = (b"", b"", -1, 0)
        self._saying = (b"", b"")
        self._committed = -1

    # From the queue

    def deliver(
        self, batch: Batch, first: int, count: int, attempts: int, committed: int = -1
    ) -> None:
        """Deliver messages claimed for this consumer."""
        if self.ended or self.session.delivery.connection is None:
            return  # they are requeued with everything else that it holds
        if committed != self._committed:
            self._committed = committed
            self._said = (b"", b"", -1, 0)
        self._enqueued += count
        if self._enqueued > self._limit:
            self._drop_stale()
        if batch.uniform_key and batch.uniform_properties and not batch.flags & EXPIRY:
            self._send(batch, first, count, attempts, 0)
            return
        for index in range(first, first + count):
            expiry = batch.expiry(index)
            # The group's time may be ahead of this shard's: never report more than at the message's
            # arrival.
            left = min(expiry - self._clock(), expiry - batch.time(index))
            left = seconds_left(left) if expiry else 0
            self._send(batch, index, 1, attempts, left)

    def _drop_stale(self) -> None:
        """Drop pending messages that the queue has meanwhile given to other consumers.

        A consumer holds no more than its limit: if more are pending, the oldest have timed out.
        """
        self._enqueued = 0
        delivery = self.session.delivery
        mine = [inflight for inflight in delivery.pending or () if self._is_mine(inflight)]
        excess = sum(inflight.count for inflight in mine) - self._limit
        stale = set()
        for inflight in mine:
            if excess <= 0:
                break
            if inflight.count > excess:
                inflight.take(excess)
                break
            excess -= inflight.count
            stale.add(inflight)
        if stale:
            delivery.pending = deque(
                inflight for inflight in delivery.pending or () if inflight not in stale
            )

    def _send(self, batch: Batch, first: int, count: int, attempts: int, expiry: int) -> None:
        delivery = self.session.delivery
        connection = delivery.connection
        assert connection is not None
        version = connection.version
        topic, properties = self._say(batch, first, attempts, version)
        runs = delivery_runs(
            batch,
            first,
            count,
            version,
            topic,
            properties,
            self._offsets if version == 5 else None,
            1 if self.qos else 0,
            expiry if version == 5 else 0,
        )
        offset = batch.base_offset + first
        for run in runs:
            if run.largest + GROWTH_MAX > connection.max_packet_out:
                self._send_fitting(run, offset)
            else:
                delivery.enqueue_inflight(self._inflight(run, offset))
            offset += run.count

    def _send_fitting(self, run: PublishRun, offset: int) -> None:
        """Send messages one by one, and reject those larger than the client's maximum packet
        size."""
        delivery = self.session.delivery
        assert delivery.connection is not None
        place = run.start
        for index in range(run.count):
            end = run.skip(place, 1)
            if end - place > delivery.connection.max_packet_out:
                self._reject(offset + index, offset + index, UNDELIVERABLE)
            else:
                delivery.enqueue_inflight(self._inflight(run.part(place, end, 1), offset + index))
            place = end

    def _say(self, batch: Batch, index: int, attempts: int, version: int) -> tuple[bytes, bytes]:
        """Return a delivery's topic and properties, which rarely change between messages."""
        key, block = batch.key(index), batch.properties(index)
        if self._said != (key, block, attempts, version):
            wanted = self.wanted
            properties = b""
            if version == 5:
                counted = 0 if self.stream else attempts
                forward = from_block(block, reserved=True)
                progress = (self.primary, self._committed) if self._committed >= 0 else None
                properties = self._identifier + delivery_properties(
                    wanted.group, wanted.queue, key, counted, forward, progress
                )
            self._said = (key, block, attempts, version)
            self._saying = (delivery_topic(wanted.queue, key), properties)
        return self._saying

    def _inflight(self, run: PublishRun, offset: int) -> InflightRange:
        inflight = InflightRange(run, run.start, run.count, self.qos, 0, b"", self)
        inflight.queued = True
        inflight.base = offset
        if not self.wanted.explicit:
            inflight.settle = self
        return inflight

    def cancelled(self) -> None:
        """Handle the loss of the queue, or of the shard that serves it."""
        if not self.ended:
            self.handle = None
            self._cancel(self)

    # From the client

    def acknowledged(self, first: int, count: int) -> None:
        """Record that the client acknowledged ``count`` messages from offset ``first``."""
        if self._given_back:
            last = first + count - 1
            kept = self._given_back.missing(first, last)
            self._given_back.remove(first, last)
            for low, high in kept:
                self._settled(low, high - low + 1)
        else:
            self._settled(first, count)

    def _settled(self, first: int, count: int) -> None:
        answered = self._answered
        if answered and answered[-1][1] + 1 == first:
            answered[-1] = (answered[-1][0], first + count - 1)
        else:
            answered.append((first, first + count - 1))
            if len(answered) == 1:
                self._mark(self)

    def refused(self, offset: int) -> None:
        """Reject a message that the client answered with an error: it is not redelivered."""
        self._reject(offset, offset, REFUSED)

    def _reject(self, first: int, last: int, why: bytes) -> None:
        self._rejected.append(((first, last), why))
        self._mark(self)

    def flush(self) -> None:
        """Settle everything answered since the last call."""
        handle = self.handle
        answered, self._answered = self._answered, []
        rejected, self._rejected = self._rejected, []
        if handle is None:
            return
        for span, why in rejected:
            handle.settle(Verb.REJECT, [span], -1, why, None)
        if answered:
            handle.settle(Verb.ACK, answered, -1, b"", None)

    def order(
        self, verb: int, ranges: list[Range], delay: int, reason: bytes, done: AppendCallback
    ) -> bool:
        """Settle messages by the client's command; return False if the consumer is not attached."""
        if self.handle is None:
            return False
        self.flush()
        if verb == Verb.NACK and not self.wanted.explicit:
            self._give_back(ranges)
        self.handle.settle(verb, ranges, delay, reason, done)
        return True

    def _give_back(self, ranges: list[Range]) -> None:
        """Note nacked messages still in flight: their acknowledgement must not settle the
        redelivery."""
        delivery = self.session.delivery
        under_way = [
            (inflight.base + inflight.acknowledged, inflight.base + inflight.count - 1)
            for inflight in delivery.unanswered_ranges or ()
            if inflight.settle is self
        ]
        under_way += [
            (released.base, released.base + released.count - 1)
            for released in self._released()
            if released.settle is self
        ]
        for first, last in ranges:
            for low, high in under_way:
                if max(first, low) <= min(last, high):
                    self._given_back.add(max(first, low), min(last, high))

    def end(self) -> None:
        """End with the subscription or connection; unacked messages are requeued."""
        self.ended = True
        self._withdraw()
        self.flush()
        if self.handle is not None:
            self.handle.detach()
            self.handle = None

    def _withdraw(self) -> None:
        """Remove this consumer's messages from the session's delivery."""
        delivery = self.session.delivery
        mine = self._is_mine
        if delivery.resend:
            delivery.resend = deque(each for each in delivery.resend if not mine(each))
        if delivery.pending:
            delivery.pending = deque(each for each in delivery.pending if not mine(each))
        for inflight in delivery.unanswered_ranges or ():
            if mine(inflight):  # the client may still answer it, without effect
                inflight.group = inflight.settle = None
        for released in self._released():
            if released.settle is self:
                # PUBREC came: the client owns the messages, even without PUBCOMP.
                self.acknowledged(released.base, released.count)
                released.settle = None

    def _released(self) -> list[ReleasedRange]:
        """Return the session's messages that await PUBCOMP."""
        released = self.session.delivery.released
        return [] if released is None else released.ranges

    def _is_mine(self, inflight: InflightRange) -> bool:
        return inflight.group is self


def seconds_left(microseconds: int) -> int:
    """Return the remaining Message Expiry Interval: rounded up, never 0
    (`inflight.CLOCK_SLACK`)."""
    return min(max((microseconds - SLACK_US) // 1_000_000 + 1, 1), EXPIRY_MAX)

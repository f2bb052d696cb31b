"""A queue's messages on their way to one MQTT session, and what comes of them.

The session's delivery treats them as any others: receive window, packet identifiers, DUP. What the client
answered comes back here as ranges of offsets, gathered during a tick and settled together at its end. When the
connection ends, what was not answered goes back to the queue; the queue, not the session, keeps messages.

Source: MQTT 5.0 section 3.3 (PUBLISH); the properties of a delivery are in ``sessions.mqtt.queue_properties``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from fluxmq._hot.batches import EXPIRY, Batch, OffsetProperties, delivery_runs
from fluxmq._hot.portion import CLOCK_SLACK, EXPIRY_MAX, GROWTH_MAX, Portion
from fluxmq._hot.run import Run
from fluxmq.protocols.mqtt.message_properties import from_block
from fluxmq.queues.commands import Verb
from fluxmq.queues.spans import Spans
from fluxmq.routing.queue_addresses import delivery_topic
from fluxmq.sessions.mqtt.queue_properties import delivery_properties
from fluxmq.sessions.mqtt.queue_subscriptions import QueueSubscription
from fluxmq.sessions.mqtt.session import Session
from fluxmq.sessions.mqtt.subscribing import identifier_property
from fluxmq.shards.queues.ports import Answer, Held, Range

UNDELIVERABLE = b"larger than the consumer's maximum packet size"
REFUSED = b"refused by the consumer"
SLACK_US = round(CLOCK_SLACK * 1_000_000)


class QueueConsumer:
    """One subscription of a session to a queue. ``held`` is None until the queue's host has attached it.

    ``limit``: messages that it holds unsettled at most.
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
        self.held: Held | None = None
        self.stream = False
        self.primary = b""
        self.ended = False
        self.qos = wanted.qos
        self._limit = limit
        self._enqueued = 0
        """Messages given to the session's delivery since it was last looked whether some are there in vain."""
        self._given_back = Spans()
        """Messages given back by an order while the client had not answered them: that answer settles nothing."""
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
        """Messages claimed for this consumer."""
        if self.ended or self.session.delivery.connection is None:
            return  # they go back to the queue with everything else that is held
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
            # The group's time may be ahead of this shard's: what is left is never more than it was when the message came.
            left = min(expiry - self._clock(), expiry - batch.time(index))
            left = seconds_left(left) if expiry else 0
            self._send(batch, index, 1, attempts, left)

    def _drop_stale(self) -> None:
        """Take out of the session's delivery what waits there although others have got it by now.

        A consumer holds no more than its limit: of more, the oldest were taken away from it by their timeout.
        """
        self._enqueued = 0
        delivery = self.session.delivery
        mine = [portion for portion in delivery.pending or () if self._is_mine(portion)]
        excess = sum(portion.count for portion in mine) - self._limit
        stale = set()
        for portion in mine:
            if excess <= 0:
                break
            if portion.count > excess:
                portion.take(excess)
                break
            excess -= portion.count
            stale.add(portion)
        if stale:
            delivery.pending = deque(
                portion for portion in delivery.pending or () if portion not in stale
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
                delivery.enqueue_portion(self._portion(run, offset))
            offset += run.count

    def _send_fitting(self, run: Run, offset: int) -> None:
        """Messages of which one may be larger than the client takes: each by itself, or back to the queue."""
        delivery = self.session.delivery
        assert delivery.connection is not None
        place = run.start
        for index in range(run.count):
            end = run.skip(place, 1)
            if end - place > delivery.connection.max_packet_out:
                self._reject(offset + index, offset + index, UNDELIVERABLE)
            else:
                delivery.enqueue_portion(self._portion(run.part(place, end, 1), offset + index))
            place = end

    def _say(self, batch: Batch, index: int, attempts: int, version: int) -> tuple[bytes, bytes]:
        """Topic and properties of a delivery: the same from message to message, as a rule."""
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

    def _portion(self, run: Run, offset: int) -> Portion:
        portion = Portion(run, run.start, run.count, self.qos, 0, b"", self)
        portion.queued = True
        portion.base = offset
        if not self.wanted.explicit:
            portion.settle = self
        return portion

    def cancelled(self) -> None:
        """The queue or its host has gone."""
        if not self.ended:
            self.held = None
            self._cancel(self)

    # From the client

    def acknowledged(self, first: int, count: int) -> None:
        """The client has answered ``count`` messages from offset ``first`` on."""
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
        """The client answered a message with an error: it is not offered again."""
        self._reject(offset, offset, REFUSED)

    def _reject(self, first: int, last: int, why: bytes) -> None:
        self._rejected.append(((first, last), why))
        self._mark(self)

    def flush(self) -> None:
        """Settle what was answered since the last time."""
        held = self.held
        answered, self._answered = self._answered, []
        rejected, self._rejected = self._rejected, []
        if held is None:
            return
        for span, why in rejected:
            held.settle(Verb.REJECT, [span], -1, why, None)
        if answered:
            held.settle(Verb.ACK, answered, -1, b"", None)

    def order(
        self, verb: int, ranges: list[Range], delay: int, reason: bytes, done: Answer
    ) -> bool:
        """Settle as the client orders; False when nothing can be held."""
        if self.held is None:
            return False
        self.flush()
        if verb == Verb.NACK and not self.wanted.explicit:
            self._give_back(ranges)
        self.held.settle(verb, ranges, delay, reason, done)
        return True

    def _give_back(self, ranges: list[Range]) -> None:
        """Of messages that come again, the answer to this delivery is not to settle the next."""
        delivery = self.session.delivery
        under_way = [
            (portion.base + portion.acknowledged, portion.base + portion.count - 1)
            for portion in delivery.flight or ()
            if portion.settle is self
        ]
        under_way += [
            (wanted[1], wanted[1])
            for wanted in (delivery.released or {}).values()
            if wanted is not None and wanted[0] is self
        ]
        for first, last in ranges:
            for low, high in under_way:
                if max(first, low) <= min(last, high):
                    self._given_back.add(max(first, low), min(last, high))

    def end(self) -> None:
        """The subscription or the connection ends: what is not settled goes back to the queue."""
        self.ended = True
        self._withdraw()
        self.flush()
        if self.held is not None:
            self.held.detach()
            self.held = None

    def _withdraw(self) -> None:
        """Take this consumer's messages out of the session's delivery."""
        delivery = self.session.delivery
        mine = self._is_mine
        if delivery.resend:
            delivery.resend = deque(each for each in delivery.resend if not mine(each))
        if delivery.pending:
            delivery.pending = deque(each for each in delivery.pending if not mine(each))
        for portion in delivery.flight or ():
            if mine(portion):  # the client may still answer it; nobody asks any more
                portion.group = portion.settle = None
        if delivery.released:
            for pid, wanted in delivery.released.items():
                if wanted is not None and wanted[0] is self:
                    # PUBREC has come: the message is the client's, whatever becomes of PUBCOMP.
                    self.acknowledged(wanted[1], 1)
                    delivery.released[pid] = None

    def _is_mine(self, portion: Portion) -> bool:
        return portion.group is self


def seconds_left(microseconds: int) -> int:
    """What is left of a message's life as a Message Expiry Interval: rounded up, and never 0 (`portion.CLOCK_SLACK`)."""
    return min(max((microseconds - SLACK_US) // 1_000_000 + 1, 1), EXPIRY_MAX)

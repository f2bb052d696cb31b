"""Consuming: basic.consume, cancel and qos, and deliveries that wait for room in a channel.

Queues deliver up to each consumer's limit. Messages are written at once unless the connection has
no room, or the limit that the channel's consumers share is reached; then they wait in the channel,
in order. That is bounded: a consumer that waits for the connection is throttled at its queue. Direct
replies go straight to the requester's channel, past all queues.

Source: AMQP 0-9-1 sections 1.8.3.1 (qos), 1.8.3.3 (consume), 1.8.3.5 (cancel), RabbitMQ's consumer
prefetch, cancellation notifications and direct reply-to.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import Any, Final

from fluxmq.model.batch_format import Batch
from fluxmq.protocols.amqp091.constants import ReplyCode
from fluxmq.protocols.amqp091.errors import HardError
from fluxmq.protocols.amqp091.methods import (
    BasicCancel,
    BasicCancelOk,
    BasicConsume,
    BasicConsumeOk,
    BasicQos,
    BasicQosOk,
)
from fluxmq.queues.commands import Verb
from fluxmq.routing.topology.records import QUEUE, QueueRecord
from fluxmq.routing.topology.refusals import Refusal
from fluxmq.sessions.amqp091 import direct_reply
from fluxmq.sessions.amqp091.basic_get import Getters
from fluxmq.sessions.amqp091.channel import Channel
from fluxmq.sessions.amqp091.client import AmqpClient
from fluxmq.sessions.amqp091.consume_request import consumer_wanted
from fluxmq.sessions.amqp091.declarations import Entities
from fluxmq.sessions.amqp091.deliveries import DeliveryHeads
from fluxmq.sessions.amqp091.ports import AmqpBrokerPort, AmqpConsumerHandle, Range
from fluxmq.sessions.amqp091.publishing import Publisher
from fluxmq.sessions.amqp091.refusals import error_from, not_implemented, precondition
from fluxmq.sessions.amqp091.settlements import Settlements
from fluxmq.sessions.amqp091.takers import Taker, attach, merged

CANCEL_NOTIFY: Final = "consumer_cancel_notify"
THROTTLE_FROM: Final = 256
"""Limit above which a consumer is throttled when its connection does not keep up."""


class AmqpConsumer(Taker):
    """One basic.consume. ``prefetch``: its own limit, 0 for none.

    ``stopped``: the client has cancelled it. ``throttled``: its queue was told to wait.
    ``written``: messages written but not settled yet, when it is ``automatic``.
    """

    __slots__ = (
        "arguments",
        "consumers",
        "exclusive",
        "prefetch",
        "priority",
        "stopped",
        "throttled",
        "written",
    )

    def __init__(
        self,
        consumers: Consumers,
        queue: QueueRecord,
        tag: str,
        automatic: bool,
        prefetch: int,
        exclusive: bool,
        priority: int,
        arguments: Any,
    ) -> None:
        super().__init__(queue, automatic, tag)
        self.consumers: Consumers | None = consumers
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
        consumers = self.consumers
        shared = 0 if consumers is None or self.automatic else consumers.shared_limit
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
        consumers = self.consumers
        if consumers is None or self.stopped:
            self.release(batch, first, count)  # they crossed the cancellation
            return
        consumers.delivered(self, batch, first, count, attempts)

    def leave(self) -> None:
        """Detach; the queue requeues unacked messages."""
        super().leave()
        self.consumers = None

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
        self.handle = None
        if self.consumers is not None:
            self.consumers.cancelled(self)
            self.leave()


class ReplyConsumer(Taker):
    """The consumer of a channel's direct replies, without acknowledgements. ``address``: the
    broker's name for it."""

    __slots__ = ("address", "channel", "heads")

    def __init__(self, channel: Channel, heads: DeliveryHeads, tag: str) -> None:
        queue = QueueRecord(channel.client.info.vhost, direct_reply.PSEUDO_QUEUE)
        super().__init__(queue, automatic=True, tag=tag)
        self.channel = channel
        self.heads = heads
        self.address = channel.broker.reply_open(self)

    def deliver(
        self, batch: Batch, first: int, count: int, attempts: int, committed: int = -1
    ) -> None:
        """Write replies to the client."""
        if not self.attached:
            return
        if self.channel.client.connection.room() <= 0:
            self.channel.broker.count_drop("reply_slow", count)
            return
        self.heads.write(self.channel, self, batch, first, count, attempts)

    def cancelled(self) -> None:
        """Do nothing: only its channel cancels it."""


class Consumers:
    """A channel's consumers. Methods raise AmqpError.

    ``prefetch``: of new consumers; ``shared_limit``: of all consumers together; 0 for none.
    ``leaving``: consumers cancelled by the client with unacked messages. ``deferred``: deliveries
    that wait for room, in order, with their consumer.
    """

    def __init__(
        self,
        channel: Channel,
        heads: DeliveryHeads,
        entities: Entities,
        publisher: Publisher,
        settlements: Settlements,
        getters: Getters,
    ) -> None:
        self.channel = channel
        self.client: AmqpClient = channel.client
        self.broker: AmqpBrokerPort = channel.broker
        self.heads = heads
        self.entities = entities
        self.publisher = publisher
        self.settlements = settlements
        self.getters = getters
        self.by_tag: dict[str, AmqpConsumer] = {}
        self.leaving: list[AmqpConsumer] = []
        self.reply: ReplyConsumer | None = None
        self.deferred: deque[tuple[AmqpConsumer, Batch, int, int, int]] = deque()
        self.prefetch = 0
        self.shared_limit = 0

    def on_qos(self, method: BasicQos) -> None:
        """Set the limit of future consumers, or of the channel as a whole (RabbitMQ's
        ``global``)."""
        if method.prefetch_size:
            raise not_implemented(f"prefetch_size!=0 ({method.prefetch_size})")
        self.channel.send(BasicQosOk())
        if not method.global_:
            self.prefetch = method.prefetch_count
            return
        self.shared_limit = method.prefetch_count
        for consumer in list(self.by_tag.values()):
            if consumer.handle is not None and not consumer.throttled:
                consumer.handle.set_limit(consumer.limit())
        self.pump()

    # --- basic.consume ---

    def on_consume(self, method: BasicConsume) -> None:
        """Attach a consumer."""
        channel, tag = self.channel, method.consumer_tag
        if tag in self.by_tag:
            raise HardError(ReplyCode.NOT_ALLOWED, f"attempt to reuse consumer tag '{tag}'")
        if method.queue == direct_reply.PSEUDO_QUEUE:
            self._consume_replies(method)
            return
        most = self.broker.limits.max_consumers
        if len(self.by_tag) + len(self.leaving) >= most:
            text = f"reached maximum ({most}) of consumers per channel"
            raise HardError(ReplyCode.NOT_ALLOWED, text)
        name = self.entities.expanded(method.queue)
        self.client.access.read(QUEUE, name)
        queue = self.entities.existing(name)
        tag = tag or f"amq.ctag-{self.broker.unique()}"
        prefetch, shared = self.prefetch, self.shared_limit
        wanted = consumer_wanted(channel, method, queue, tag, prefetch, shared)
        consumer = AmqpConsumer(
            self,
            queue,
            tag,
            method.no_ack,
            prefetch,
            method.exclusive,
            wanted.priority,
            method.arguments,
        )
        self.by_tag[tag] = consumer
        then = partial(self._attached, consumer, method.no_wait)
        attach(channel, method, wanted, consumer, then)

    def _attached(
        self, consumer: AmqpConsumer, no_wait: bool, handle: AmqpConsumerHandle | Refusal
    ) -> None:
        """Complete basic.consume with the queue's answer."""
        if isinstance(handle, Refusal):
            self.by_tag.pop(consumer.tag, None)
            consumer.leave()
            raise error_from(handle)
        consumer.handle = handle
        if not no_wait:
            self.channel.send(BasicConsumeOk(consumer.tag))
        about = {
            "exclusive": consumer.exclusive,
            "ack_required": not consumer.automatic,
            "prefetch_count": consumer.prefetch,
            "arguments": dict(consumer.arguments),
        }
        self.broker.events.consumer_created(
            self.client.info, self.channel.number, consumer.queue.name, consumer.tag, about
        )

    def _deleted(self, consumer: AmqpConsumer) -> None:
        """Tell the end of a consumer."""
        self.broker.events.consumer_deleted(
            self.client.info, self.channel.number, consumer.queue.name, consumer.tag
        )

    def _consume_replies(self, method: BasicConsume) -> None:
        """Start to consume direct replies."""
        if not method.no_ack:
            raise precondition("reply consumer cannot acknowledge")
        if self.reply is not None:
            raise precondition("reply consumer already set")
        tag = method.consumer_tag or f"amq.ctag-{self.broker.unique()}"
        self.reply = ReplyConsumer(self.channel, self.heads, tag)
        self.publisher.answer_to(direct_reply.PREFIX + self.reply.address)
        if not method.no_wait:
            self.channel.send(BasicConsumeOk(tag))

    # --- cancellation ---

    def on_cancel(self, method: BasicCancel) -> None:
        """Cancel a consumer at the client's request; the client may still settle its unacked
        messages."""
        tag = method.consumer_tag
        consumer = self.by_tag.pop(tag, None)
        if consumer is not None:
            self._deleted(consumer)
            self._stop(consumer)
        elif self.reply is not None and self.reply.tag == tag:
            self._close_replies()
        if not method.no_wait:
            self.channel.send(BasicCancelOk(tag))

    def _stop(self, consumer: AmqpConsumer) -> None:
        """Stop deliveries to a consumer."""
        # Earlier acknowledgements take effect first: unacked messages are requeued when the
        # consumer leaves.
        self._pass_on()
        consumer.stopped = True
        consumer.settle_written()
        for _ in range(len(self.deferred)):
            item = self.deferred.popleft()
            if item[0] is consumer:
                consumer.release(item[1], item[2], item[3])
            else:
                self.deferred.append(item)
        if self.settlements.has_unacked(consumer):
            if consumer.handle is not None:
                consumer.handle.stop()
            self.leaving.append(consumer)
        else:
            consumer.leave()
        if self.deferred:
            self.pump()

    def cancelled(self, consumer: AmqpConsumer) -> None:
        """Handle the end of a consumer's queue: notify a client with the capability."""
        channel, entities = self.channel, self.entities
        channel.ledger.forget(consumer)
        # There may be room for other consumers now.
        channel.mark()
        if consumer in self.leaving:
            self.leaving.remove(consumer)
        if self.by_tag.get(consumer.tag) is not consumer:
            return
        del self.by_tag[consumer.tag]
        self._deleted(consumer)
        if CANCEL_NOTIFY in self.client.info.capabilities:
            cancel = BasicCancel(consumer.tag, True)
            if entities.deleting and entities.deleting == consumer.queue.name:
                entities.cancels.append(cancel)  # the client expects delete-ok first
            else:
                channel.send(cancel)

    def _close_replies(self) -> None:
        reply, self.reply = self.reply, None
        if reply is not None:
            reply.leave()
            self.publisher.answer_to("")
            self.broker.reply_close(reply.address)

    def release(self) -> None:
        """Release the consumers of a closing channel: pass on acknowledgements, requeue everything
        else."""
        self._pass_on()
        self.deferred.clear()
        consumers = [*self.by_tag.values(), *self.leaving]
        for consumer in self.by_tag.values():
            if consumer.handle is not None:
                self._deleted(consumer)
        self.by_tag.clear()
        self.leaving.clear()
        for consumer in consumers:
            consumer.leave()
        self._close_replies()

    # --- deliveries ---

    def delivered(
        self, consumer: AmqpConsumer, batch: Batch, first: int, count: int, attempts: int
    ) -> None:
        """Write messages, or queue them behind those that wait."""
        written = 0 if self.deferred else self._give(consumer, batch, first, count, attempts)
        if written < count:
            self.deferred.append((consumer, batch, first + written, count - written, attempts))
            self._wait(consumer)

    def _give(
        self, consumer: AmqpConsumer, batch: Batch, first: int, count: int, attempts: int
    ) -> int:
        """Write as many as there is room for; return their number."""
        if self.client.connection.room() <= 0:
            return 0
        if self.shared_limit and not consumer.automatic:
            count = min(count, self.shared_limit - self._outstanding())
            if count <= 0:
                return 0
        self.heads.write(self.channel, consumer, batch, first, count, attempts)
        if consumer.automatic:
            consumer.wrote(batch.base_offset + first, count)
            self.channel.mark()
        return count

    def _wait(self, consumer: AmqpConsumer) -> None:
        """Wait for room: if the connection is full, request a call when drained, and throttle."""
        connection = self.client.connection
        if connection.room() <= 0:
            connection.feeding = True
            consumer.throttle()

    def pump(self) -> None:
        """Write waiting deliveries, as far as there is room now."""
        deferred = self.deferred
        while deferred and self.channel.is_open:
            consumer, batch, first, count, attempts = deferred[0]
            if not consumer.attached:
                deferred.popleft()
                continue
            written = self._give(consumer, batch, first, count, attempts)
            if written == count:
                deferred.popleft()
                continue
            if written:
                deferred[0] = (consumer, batch, first + written, count - written, attempts)
            self._wait(consumer)
            return
        for consumer in list(self.by_tag.values()):
            consumer.unthrottle()

    def flush(self) -> None:
        """Pass on acknowledgements, detach cancelled consumers without unacked messages, continue
        writing; once per tick."""
        self._pass_on()
        if self.leaving:
            for consumer in [
                each for each in self.leaving if not self.settlements.has_unacked(each)
            ]:
                self.leaving.remove(consumer)
                consumer.leave()
        if self.deferred:
            self.pump()

    def _pass_on(self) -> None:
        """Report acknowledgements to the queues, and deliveries that need none."""
        self.settlements.pass_on()
        for consumer in self.by_tag.values():
            consumer.settle_written()

    def _outstanding(self) -> int:
        """Return the unacked messages that count towards the shared limit: not those of
        basic.get."""
        count = self.channel.ledger.unsettled - self.getters.unacked()
        transaction = self.publisher.transaction
        if transaction is not None:
            count += len(transaction.settled) + len(transaction.restored)
        return count

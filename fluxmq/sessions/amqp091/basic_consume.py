"""Consuming: basic.consume, cancel, get and qos, and deliveries that wait for room in a channel.

Queues deliver up to each consumer's limit. Messages are written at once unless the connection has
no room, or the limit that the channel's consumers share is reached; then they wait in the channel,
in order. That is bounded: a consumer that waits for the connection is throttled at its queue. A
getter stays attached to its queue for the next basic.get, unless the channel gets from many queues.

Source: AMQP 0-9-1 sections 1.8.3.1 (qos), 1.8.3.3 (consume), 1.8.3.5 (cancel), 1.8.3.10 (get),
RabbitMQ's consumer prefetch, cancellation notifications and direct reply-to.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from fluxmq.protocols.amqp091.constants import ReplyCode
from fluxmq.protocols.amqp091.errors import HardError
from fluxmq.protocols.amqp091.methods import (
    BasicCancel,
    BasicCancelOk,
    BasicConsume,
    BasicConsumeOk,
    BasicGet,
    BasicGetEmpty,
    BasicQos,
    BasicQosOk,
    Method,
)
from fluxmq.routing.topology.arguments import QUORUM, STREAM
from fluxmq.routing.topology.records import QUEUE
from fluxmq.routing.topology.refusals import Refusal, named
from fluxmq.sessions.amqp091 import direct_reply, refusals
from fluxmq.sessions.amqp091.consume_request import SINGLE_ACTIVE, consumer_wanted
from fluxmq.sessions.amqp091.consumers import AmqpConsumer, Getter
from fluxmq.sessions.amqp091.ports import AmqpConsumerHandle, ConsumeRequest
from fluxmq.sessions.amqp091.refusals import error_from, not_implemented, precondition

if TYPE_CHECKING:
    from fluxmq.model.batch_format import Batch
    from fluxmq.sessions.amqp091.channel import Channel
    from fluxmq.sessions.amqp091.client import AmqpClient
    from fluxmq.sessions.amqp091.ports import AmqpBrokerPort
    from fluxmq.sessions.amqp091.settlements import Settlements

CANCEL_NOTIFY: Final = "consumer_cancel_notify"
GETTERS_MAX: Final = 64
"""Maximum getters without unacked messages that a channel keeps."""


class Consumers:
    """A channel's consumers and getters. Methods raise AmqpError.

    ``prefetch``: of new consumers; ``shared_limit``: of all consumers together; 0 for none.
    ``leaving``: consumers cancelled by the client with unacked messages. ``deferred``: deliveries
    that wait for room, in order, with their consumer.
    """

    __deletable__ = ("channel",)

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.client: AmqpClient = channel.client
        self.broker: AmqpBrokerPort = channel.broker
        self.settlements: Settlements = channel.settlements
        self.by_tag: dict[str, AmqpConsumer] = {}
        self.leaving: list[AmqpConsumer] = []
        self.getters: OrderedDict[tuple[str, bool], Getter] = OrderedDict()
        self.reply: direct_reply.ReplyConsumer | None = None
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
        name = channel.entities.expanded(method.queue)
        self.client.access.read(QUEUE, name)
        queue = channel.entities.existing(name)
        tag = tag or f"amq.ctag-{self.broker.unique()}"
        wanted = consumer_wanted(channel, method, queue, tag)
        consumer = AmqpConsumer(
            channel,
            queue,
            tag,
            method.no_ack,
            self.prefetch,
            method.exclusive,
            wanted.priority,
            method.arguments,
        )
        self.by_tag[tag] = consumer
        self._attach(method, wanted, consumer, partial(self._attached, consumer, method.no_wait))

    def _attach(
        self,
        method: Method,
        wanted: ConsumeRequest,
        taker: AmqpConsumer | Getter,
        then: Callable[[AmqpConsumerHandle | Refusal], None],
    ) -> None:
        """Attach to a queue; both the channel and the queue may end before it answers."""
        channel = self.channel
        answer = channel.later(method, then)

        def done(handle: AmqpConsumerHandle | Refusal) -> None:
            if channel.is_open and taker.channel is not None:
                answer(handle)
                return
            if not isinstance(handle, Refusal):
                handle.detach()
            if channel.is_open:
                answer(refusals.queue_gone(wanted.queue))

        self.broker.consume(wanted, taker, done)

    def _attached(
        self, consumer: AmqpConsumer, no_wait: bool, handle: AmqpConsumerHandle | Refusal
    ) -> None:
        """Complete basic.consume with the queue's answer."""
        if isinstance(handle, Refusal):
            self.by_tag.pop(consumer.tag, None)
            consumer.channel = None
            raise error_from(handle)
        consumer.handle = handle
        if not no_wait:
            self.channel.send(BasicConsumeOk(consumer.tag))

    def _consume_replies(self, method: BasicConsume) -> None:
        """Start to consume direct replies."""
        if not method.no_ack:
            raise precondition("reply consumer cannot acknowledge")
        if self.reply is not None:
            raise precondition("reply consumer already set")
        tag = method.consumer_tag or f"amq.ctag-{self.broker.unique()}"
        self.reply = direct_reply.ReplyConsumer(self.channel, tag)
        self.reply.address = self.broker.reply_open(self.reply)
        if not method.no_wait:
            self.channel.send(BasicConsumeOk(tag))

    def reply_to(self) -> str:
        """Return the address that replaces the pseudo-queue in ``reply_to``. Raises SoftError 406
        when the channel consumes no replies."""
        if self.reply is None:
            raise precondition("fast reply consumer does not exist")
        return direct_reply.PREFIX + self.reply.address

    # --- cancellation ---

    def on_cancel(self, method: BasicCancel) -> None:
        """Cancel a consumer at the client's request; the client may still settle its unacked
        messages."""
        tag = method.consumer_tag
        consumer = self.by_tag.pop(tag, None)
        if consumer is not None:
            self._stop(consumer)
        elif self.reply is not None and self.reply.tag == tag:
            self._close_replies()
        if not method.no_wait:
            self.channel.send(BasicCancelOk(tag))

    def _stop(self, consumer: AmqpConsumer) -> None:
        """Stop deliveries to a consumer."""
        # Earlier acknowledgements take effect first: unacked messages are requeued when the
        # consumer leaves.
        self.settlements.pass_on()
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
        channel, entities = self.channel, self.channel.entities
        channel.ledger.forget(consumer)
        # There may be room for other consumers now.
        channel.mark()
        if consumer in self.leaving:
            self.leaving.remove(consumer)
        if self.by_tag.get(consumer.tag) is not consumer:
            return
        del self.by_tag[consumer.tag]
        if CANCEL_NOTIFY in self.client.capabilities:
            cancel = BasicCancel(consumer.tag, True)
            if entities.deleting and entities.deleting == consumer.queue.name:
                entities.cancels.append(cancel)  # the client expects delete-ok first
            else:
                channel.send(cancel)

    def _close_replies(self) -> None:
        reply, self.reply = self.reply, None
        if reply is not None:
            reply.close()

    def release(self) -> None:
        """Release the consumers of a closing channel: pass on acknowledgements, requeue everything
        else."""
        self.settlements.pass_on()
        self.deferred.clear()
        takers = [*self.by_tag.values(), *self.leaving, *self.getters.values()]
        self.by_tag.clear()
        self.leaving.clear()
        self.getters.clear()
        for taker in takers:
            taker.leave()
        self._close_replies()

    # --- basic.get ---

    def on_get(self, method: BasicGet) -> None:
        """Take one message, or answer get-empty."""
        channel = self.channel
        name = channel.entities.expanded(method.queue)
        self.client.access.read(QUEUE, name)
        queue = channel.entities.existing(name)
        if queue.type == STREAM:
            what = named(QUEUE, name, queue.vhost)
            raise not_implemented(f"basic.get not supported by stream queues {what}")
        if queue.type == QUORUM and queue.arguments.get(SINGLE_ACTIVE) is True:
            raise error_from(refusals.single_active(queue))
        key = (queue.name, method.no_ack)
        getter = self.getters.get(key)
        if getter is not None and getter.handle is not None:
            self.getters.move_to_end(key)
            self._take(method, getter, getter.handle)
            return
        self._trim()
        getter = self.getters[key] = Getter(channel, queue, method.no_ack)
        wanted = ConsumeRequest(
            queue,
            "",
            f"{self.client.owner}:{channel.number}",
            limit=0,
            taking=True,
            automatic=method.no_ack,
            asker=self.client.owner,
        )
        self._attach(method, wanted, getter, partial(self._getter_attached, method, getter))

    def _getter_attached(
        self, method: BasicGet, getter: Getter, handle: AmqpConsumerHandle | Refusal
    ) -> None:
        """Complete the attachment with the queue's answer."""
        if isinstance(handle, Refusal):
            self.getters.pop((getter.queue.name, getter.automatic), None)
            getter.channel = None
            raise error_from(handle)
        getter.handle = handle
        self._take(method, getter, handle)

    def _take(self, method: BasicGet, getter: Getter, handle: AmqpConsumerHandle) -> None:
        """Request one message, after passing on acknowledgements, so that the queue's limits count
        them."""
        self.settlements.pass_on()
        handle.take(self.channel.later(method, partial(self._taken, getter)))

    def _taken(self, getter: Getter, found: bool, ready: int) -> None:
        """Answer the client with the message, or with get-empty."""
        message, getter.taken = getter.taken, None
        if not found or message is None:
            self.client.connection.tally.amqp_got_empty += 1
            self.channel.send(BasicGetEmpty())
            return
        batch, index, attempts = message
        heads = self.client.handler.heads
        heads.write_get_ok(self.channel, getter, batch, index, attempts, ready)

    def _trim(self) -> None:
        """Detach the least recently used getters without unacked messages."""
        for key, getter in list(self.getters.items()):
            if len(self.getters) < GETTERS_MAX:
                return
            if not self.settlements.has_unacked(getter):
                del self.getters[key]
                getter.leave()

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
            count = min(count, self.shared_limit - self.settlements.outstanding())
            if count <= 0:
                return 0
        self.client.handler.heads.write(self.channel, consumer, batch, first, count, attempts)
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
            if consumer.channel is None:
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
        self.settlements.pass_on()
        if self.leaving:
            for consumer in [
                each for each in self.leaving if not self.settlements.has_unacked(each)
            ]:
                self.leaving.remove(consumer)
                consumer.leave()
        if self.deferred:
            self.pump()

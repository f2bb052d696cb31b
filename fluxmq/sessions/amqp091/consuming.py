"""Consuming: basic.consume and basic.cancel, limits, and deliveries that wait for room in a
channel.

Queues deliver up to each consumer's limit. Messages are written at once unless the connection has
no room, or the limit that the channel's consumers share is reached; then they wait in the channel,
in order. That is bounded: a consumer that waits for the connection is throttled at its queue.

Source: AMQP 0-9-1 sections 1.8.3.1 (qos), 1.8.3.3 (consume), 1.8.3.5 (cancel), RabbitMQ's consumer
prefetch, priorities, cancellation notifications, single active consumers and stream consumers.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

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
from fluxmq.routing.topology.arguments import QUORUM, STREAM, consumer_timeout
from fluxmq.routing.topology.records import QUEUE, Queue
from fluxmq.routing.topology.refusals import Refusal, named
from fluxmq.routing.topology.values import type_name
from fluxmq.sessions.amqp091 import access, deliveries, refusals, replying, settling
from fluxmq.sessions.amqp091.channel import Channel, error_from, precondition
from fluxmq.sessions.amqp091.consumers import Consumer
from fluxmq.sessions.amqp091.ports import ConsumerWanted, Held
from fluxmq.sessions.amqp091.queue_names import existing_queue, expanded
from fluxmq.sessions.amqp091.stream_start import stream_start

if TYPE_CHECKING:
    from fluxmq.model.batch_format import Batch

CANCEL_NOTIFY: Final = "consumer_cancel_notify"
PRIORITY_MAX: Final = (1 << 31) - 1
"""Consumer priorities are clamped to 32 bits, above and below zero."""
SINGLE_ACTIVE: Final = "x-single-active-consumer"


# --- basic.qos ---


def on_qos(channel: Channel, method: BasicQos) -> None:
    """Set the limit of future consumers, or of the channel as a whole (RabbitMQ's ``global``)."""
    if method.prefetch_size:
        text = f"prefetch_size!=0 ({method.prefetch_size})"
        raise HardError(ReplyCode.NOT_IMPLEMENTED, text)
    channel.send(BasicQosOk())
    if not method.global_:
        channel.prefetch = method.prefetch_count
        return
    channel.shared_limit = method.prefetch_count
    for consumer in list(channel.consumers.values()):
        if consumer.held is not None and not consumer.throttled:
            consumer.held.set_limit(consumer.limit())
    pump(channel)


# --- basic.consume ---


def on_consume(channel: Channel, method: BasicConsume) -> None:
    """Attach a consumer. Raises AmqpError."""
    if method.queue == replying.PSEUDO_QUEUE:
        replying.on_consume(channel, method)
        return
    tag = method.consumer_tag
    if tag in channel.consumers:
        text = f"attempt to reuse consumer tag '{tag}'"
        raise HardError(ReplyCode.NOT_ALLOWED, text)
    check_room(channel)
    name = expanded(channel, method.queue)
    access.need_read(channel, QUEUE, name)
    queue = existing_queue(channel, name)
    broker = channel.handler.broker
    tag = tag or f"amq.ctag-{broker.unique()}"
    wanted = wanted_of(channel, method, queue, tag)
    consumer = Consumer(
        channel,
        queue,
        tag,
        method.no_ack,
        channel.prefetch,
        method.exclusive,
        wanted.priority,
        method.arguments,
    )
    channel.consumers[tag] = consumer
    answer = channel.later(method, partial(attached, channel, consumer, method.no_wait))

    def done(held: Held | Refusal) -> None:
        if not channel.is_open or consumer.channel is None:
            if not isinstance(held, Refusal):
                held.detach()
            if channel.is_open:
                answer(refusals.queue_gone(queue))
            return
        answer(held)

    broker.consume(wanted, consumer, done)


def check_room(channel: Channel) -> None:
    """Raise HardError 530 when the channel has the maximum number of consumers."""
    most = channel.handler.broker.limits.max_consumers
    if len(channel.consumers) + len(channel.leaving) >= most:
        text = f"reached maximum ({most}) of consumers per channel"
        raise HardError(ReplyCode.NOT_ALLOWED, text)


def wanted_of(channel: Channel, method: BasicConsume, queue: Queue, tag: str) -> ConsumerWanted:
    """Return the request of basic.consume. Raises AmqpError for what this queue does not
    support."""
    arguments = method.arguments
    what = named(QUEUE, queue.name, queue.vhost)
    priority = arguments.get("x-priority", 0)
    if isinstance(priority, bool) or not isinstance(priority, int):
        text = (
            f"invalid arg 'x-priority' for {what}: \"expected integer, got {type_name(priority)}\""
        )
        raise precondition(text)
    failover = arguments.get("x-cancel-on-ha-failover", False)
    if not isinstance(failover, bool):
        kind = f"{{unacceptable_type,{type_name(failover)}}}"
        raise precondition(f"invalid arg 'x-cancel-on-ha-failover' for {what}: {kind}")
    stream = queue.type == STREAM
    if stream and not channel.prefetch:
        raise precondition(f"consumer prefetch count is not set for '{what}'")
    if stream and method.no_ack:
        text = f"automatic acknowledgement not supported by stream queues {what}"
        raise HardError(ReplyCode.NOT_IMPLEMENTED, text)
    if channel.shared_limit and queue.type in (STREAM, QUORUM):
        raise HardError(ReplyCode.NOT_IMPLEMENTED, f"{what} does not support global qos")
    if method.exclusive and queue.arguments.get(SINGLE_ACTIVE) is True:
        raise error_from(refusals.exclusive_use(queue))
    try:
        timeout = consumer_timeout(arguments, what)
    except Refusal as refusal:
        raise error_from(refusal) from None
    client = channel.client
    shared = 0 if method.no_ack else channel.shared_limit
    own = 0 if method.no_ack else channel.prefetch
    return ConsumerWanted(
        queue,
        tag,
        f"{client.owner}:{channel.number}:{tag}",
        limit=min(own, shared) if own and shared else own or shared,
        group=_text(arguments.get("x-consumer-group", ""), "x-consumer-group", what),
        priority=max(-PRIORITY_MAX, min(priority, PRIORITY_MAX)),
        exclusive=method.exclusive,
        auto_commit=_flag(arguments.get("x-auto-commit", True), "x-auto-commit", what),
        start=stream_start(arguments.get("x-stream-offset"), queue) if stream else None,
        filters=_filters(arguments.get("x-stream-filter"), what) if stream else (),
        timeout=timeout * 1000,
        asker=client.owner,
    )


def _text(value: object, key: str, what: str) -> str:
    if not isinstance(value, str):
        raise precondition(
            f"invalid arg '{key}' for {what}: \"expected text, got {type_name(value)}\""
        )
    return value


def _flag(value: object, key: str, what: str) -> bool:
    if not isinstance(value, bool):
        raise precondition(
            f"invalid arg '{key}' for {what}: {{unacceptable_type,{type_name(value)}}}"
        )
    return value


def _filters(value: object, what: str) -> tuple[str, ...]:
    """Return the filters of a stream's consumer: one, or an array of them."""
    if value is None:
        return ()
    listed = value if isinstance(value, list) else [value]
    return tuple(_text(each, "x-stream-filter", what) for each in listed)


def attached(channel: Channel, consumer: Consumer, no_wait: bool, held: Held | Refusal) -> None:
    """Complete basic.consume with the queue's answer. Raises AmqpError."""
    if isinstance(held, Refusal):
        channel.consumers.pop(consumer.tag, None)
        consumer.channel = None
        raise error_from(held)
    consumer.held = held
    if not no_wait:
        channel.send(BasicConsumeOk(consumer.tag))


# --- cancellation ---


def on_cancel(channel: Channel, method: BasicCancel) -> None:
    """Cancel a consumer at the client's request; the client may still settle its unacked
    messages."""
    tag = method.consumer_tag
    consumer = channel.consumers.pop(tag, None)
    if consumer is not None:
        stop(channel, consumer)
    elif replying.has_tag(channel, tag):
        replying.close(channel)
    if not method.no_wait:
        channel.send(BasicCancelOk(tag))


def stop(channel: Channel, consumer: Consumer) -> None:
    """Stop deliveries to a consumer."""
    # Earlier acknowledgements take effect first: unacked messages are requeued when the consumer
    # leaves.
    settling.pass_on(channel)
    consumer.stopped = True
    settling.settle_written(consumer)
    for each, batch, first, count, _ in channel.deferred:
        if each is consumer:
            offset = batch.base_offset + first
            consumer.settle(Verb.RELEASE, [(offset, offset + count - 1)])
    if any(item[0] is consumer for item in channel.deferred):
        kept = [item for item in channel.deferred if item[0] is not consumer]
        channel.deferred.clear()
        channel.deferred.extend(kept)
    if settling.owes(channel, consumer):
        if consumer.held is not None:
            consumer.held.stop()
        channel.leaving.append(consumer)
    else:
        consumer.leave()
    if channel.deferred:
        pump(channel)


def cancelled(channel: Channel, consumer: Consumer) -> None:
    """Handle the end of a consumer's queue: notify a client with the capability."""
    channel.ledger.forget(consumer)
    # There may be room for other consumers now.
    channel.mark()
    if consumer in channel.leaving:
        channel.leaving.remove(consumer)
    if channel.consumers.get(consumer.tag) is consumer:
        del channel.consumers[consumer.tag]
        if CANCEL_NOTIFY in channel.client.capabilities:
            told = BasicCancel(consumer.tag, True)
            if channel.deleting and channel.deleting == consumer.queue.name:
                channel.cancels.append(
                    told
                )  # a client that deletes a queue expects delete-ok first
            else:
                channel.send(told)


def release(channel: Channel) -> None:
    """Release the consumers of a closing channel: pass on acknowledgements, requeue everything
    else."""
    settling.pass_on(channel)
    channel.deferred.clear()
    takers = [*channel.consumers.values(), *channel.leaving, *channel.getters.values()]
    channel.consumers.clear()
    channel.leaving.clear()
    channel.getters.clear()
    for taker in takers:
        taker.leave()
    replying.close(channel)


# --- deliveries ---


def delivered(
    channel: Channel, consumer: Consumer, batch: Batch, first: int, count: int, attempts: int
) -> None:
    """Write messages, or queue them behind those that wait."""
    written = 0 if channel.deferred else give(channel, consumer, batch, first, count, attempts)
    if written < count:
        channel.deferred.append((consumer, batch, first + written, count - written, attempts))
        wait(channel, consumer)


def give(
    channel: Channel, consumer: Consumer, batch: Batch, first: int, count: int, attempts: int
) -> int:
    """Write as many as there is room for; return their number."""
    if channel.client.connection.room() <= 0:
        return 0
    if channel.shared_limit and not consumer.automatic:
        count = min(count, channel.shared_limit - settling.outstanding(channel))
        if count <= 0:
            return 0
    deliveries.write(channel, consumer, batch, first, count, attempts)
    if consumer.automatic:
        offset = batch.base_offset + first
        settling.wrote(channel, consumer, offset, count)
    return count


def wait(channel: Channel, consumer: Consumer) -> None:
    """Wait for room: if the connection is full, request a call when drained, and throttle."""
    connection = channel.client.connection
    if connection.room() <= 0:
        connection.feeding = True
        consumer.throttle()


def pump(channel: Channel) -> None:
    """Write waiting deliveries, as far as there is room now."""
    deferred = channel.deferred
    while deferred and channel.is_open:
        consumer, batch, first, count, attempts = deferred[0]
        if consumer.channel is None:
            deferred.popleft()
            continue
        written = give(channel, consumer, batch, first, count, attempts)
        if written == count:
            deferred.popleft()
            continue
        if written:
            deferred[0] = (consumer, batch, first + written, count - written, attempts)
        wait(channel, consumer)
        return
    for consumer in list(channel.consumers.values()):
        consumer.unthrottle()


def flush(channel: Channel) -> None:
    """Pass on acknowledgements, detach finished consumers, continue writing; once per tick."""
    settling.pass_on(channel)
    if channel.leaving:
        depart(channel)
    if channel.deferred:
        pump(channel)


def depart(channel: Channel) -> None:
    """Detach cancelled consumers that have no unacked messages."""
    for consumer in [each for each in channel.leaving if not settling.owes(channel, each)]:
        channel.leaving.remove(consumer)
        consumer.leave()

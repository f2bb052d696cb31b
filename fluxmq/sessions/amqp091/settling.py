"""Settling deliveries: basic.ack, nack, reject and recover, outside of transactions and within.

The parser settles a plain acknowledgement in the channel's ledger; the queue learns of it once per
tick, as ranges. In a transaction tags are taken out of the ledger at once, one by one, and put back
(``Restored``) by a rollback.

Source: AMQP 0-9-1 sections 1.8.3.13 (ack), 1.8.3.14 (reject), 1.8.3.16 (recover), RabbitMQ's
basic.nack.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from fluxmq.protocols.amqp091.constants import ReplyCode
from fluxmq.protocols.amqp091.errors import HardError, SoftError
from fluxmq.protocols.amqp091.methods import (
    BasicAck,
    BasicNack,
    BasicRecover,
    BasicRecoverAsync,
    BasicRecoverOk,
    BasicReject,
)
from fluxmq.queues.commands import Verb
from fluxmq.routing.topology.records import QUEUE
from fluxmq.routing.topology.refusals import named
from fluxmq.sessions.amqp091.channel import Channel, precondition
from fluxmq.sessions.amqp091.consumers import Consumer, Taker
from fluxmq.sessions.amqp091.ports import Range

if TYPE_CHECKING:
    from fluxmq.sessions.amqp091.transactions import Transaction

REQUEUE: Final = Verb.NACK
"""Verb that settles a requeued message; it counts as a failed delivery."""

Told = tuple[Taker, int, int]
"""Owner of the messages, first and last offset."""


def on_ack(channel: Channel, method: BasicAck) -> None:
    """Acknowledge. Raises SoftError 406 for an unknown delivery tag."""
    if channel.transaction is not None:
        channel.transaction.settle(channel, method.delivery_tag, method.multiple, Verb.ACK)
    elif not channel.ledger.acknowledge(method.delivery_tag, method.multiple):
        raise unknown_tag(method.delivery_tag)


def on_nack(channel: Channel, method: BasicNack) -> None:
    """Reject one message, or all up to a tag."""
    refuse(channel, method.delivery_tag, method.multiple, method.requeue)


def on_reject(channel: Channel, method: BasicReject) -> None:
    """Reject one message."""
    refuse(channel, method.delivery_tag, False, method.requeue)


def refuse(channel: Channel, tag: int, multiple: bool, requeue: bool) -> None:
    """Requeue messages, or have them dead-lettered. Raises AmqpError."""
    verb = REQUEUE if requeue else Verb.REJECT
    if channel.transaction is not None:
        channel.transaction.settle(channel, tag, multiple, verb)
        return
    ranges = channel.ledger.settle(tag, multiple)
    if ranges is None:
        raise unknown_tag(tag)
    check_refusable(ranges)
    note(channel, verb, counted(ranges))
    settle(ranges, verb)
    channel.mark()


def on_recover(channel: Channel, method: BasicRecover | BasicRecoverAsync) -> None:
    """Requeue everything unacked; it is redelivered, possibly to other consumers."""
    if not method.requeue:
        raise HardError(ReplyCode.NOT_IMPLEMENTED, "requeue=false")
    if isinstance(method, BasicRecover):
        channel.send(BasicRecoverOk())
    ranges: list[Told] = channel.ledger.settle(0, True) or []
    if channel.transaction is not None:
        ranges += channel.transaction.take_restored()
    note(channel, REQUEUE, counted(ranges))
    settle([each for each in ranges if not each[0].is_stream], REQUEUE)
    # A stream's messages are not requeued: they are read again from its consumer's start.
    settle([each for each in ranges if each[0].is_stream], Verb.RELEASE)
    channel.mark()


def unknown_tag(tag: int) -> SoftError:
    """Return 406 for an unknown delivery tag."""
    return precondition(f"unknown delivery tag {tag}")


def check_refusable(ranges: Iterable[Told]) -> None:
    """Raise HardError 540 for messages of a stream, which cannot be requeued."""
    for taker, _, _ in ranges:
        if taker.is_stream:
            what = named(QUEUE, taker.queue.name, taker.queue.vhost)
            text = f"basic.nack and basic.reject not supported by stream queues {what}"
            raise HardError(ReplyCode.NOT_IMPLEMENTED, text)


def settle(ranges: Iterable[Told], verb: Verb) -> None:
    """Tell each queue the outcome of its messages, with one call per consumer."""
    for taker, found in grouped(ranges):
        taker.settle(verb, found)


def grouped(ranges: Iterable[Told]) -> list[tuple[Taker, list[Range]]]:
    """Return the ranges grouped by owner, in order, with adjacent ones merged."""
    groups: dict[Taker, list[Range]] = {}
    for taker, first, last in ranges:
        groups.setdefault(taker, []).append((first, last))
    return [(taker, merged(found)) for taker, found in groups.items()]


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


# --- once per tick ---


def pass_on(channel: Channel) -> None:
    """Report acknowledgements since the last call to the queues, and deliveries that need none."""
    acknowledged = 0
    for taker, found in grouped(channel.ledger.take_acknowledged()):
        for first, last in found:
            acknowledged += last - first + 1
        taker.settle(Verb.ACK, found)
    if acknowledged:
        note(channel, Verb.ACK, acknowledged)
    for consumer in channel.consumers.values():
        if consumer.written:
            settle_written(consumer)


def wrote(channel: Channel, consumer: Consumer, offset: int, count: int) -> None:
    """Note that messages without acknowledgement were handed to the connection."""
    written = consumer.written
    if written and written[-1][1] == offset - 1:
        written[-1] = (written[-1][0], offset + count - 1)
    else:
        written.append((offset, offset + count - 1))
    channel.mark()


def settle_written(consumer: Consumer) -> None:
    """Settle the messages an automatic consumer was handed."""
    if consumer.written:
        written, consumer.written = consumer.written, []
        consumer.settle(Verb.ACK, merged(written))


# --- counting ---


def note(channel: Channel, verb: Verb, messages: int) -> None:
    """Count messages settled by the client."""
    tally = channel.client.connection.tally
    if verb is Verb.ACK:
        tally.amqp_acknowledged += messages
    elif verb is REQUEUE:
        tally.amqp_requeued += messages
    else:
        tally.amqp_rejected += messages


def counted(ranges: Iterable[Told]) -> int:
    """Return the number of messages in ranges."""
    return sum(last - first + 1 for _, first, last in ranges)


def owes(channel: Channel, taker: Taker) -> bool:
    """Return whether the client has unacked messages, or settlements not yet committed."""
    return taker.reserved > 0 or channel.ledger.outstanding(taker) > 0


def outstanding(channel: Channel) -> int:
    """Return the unacked messages that count towards the shared limit: not those of basic.get."""
    ledger = channel.ledger
    count = ledger.unsettled
    if channel.getters:
        count -= sum(ledger.outstanding(getter) for getter in channel.getters.values())
    transaction: Transaction | None = channel.transaction
    if transaction is not None:
        count += len(transaction.settled) + len(transaction.restored)
    return count

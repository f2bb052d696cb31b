"""Settling deliveries: basic.ack, nack, reject and recover, outside of transactions and within.

The parser settles a plain acknowledgement in the channel's ledger; the queue learns of it once per
tick, as ranges. In a transaction tags are taken out of the ledger at once, one by one, and put back
(``Transaction.restored``) by a rollback.

Source: AMQP 0-9-1 sections 1.8.3.13 (ack), 1.8.3.14 (reject), 1.8.3.16 (recover), RabbitMQ's
basic.nack.
"""

from __future__ import annotations

from collections.abc import Iterable

from fluxmq.protocols.amqp091.ledger import ChannelLedger
from fluxmq.protocols.amqp091.methods import (
    BasicAck,
    BasicNack,
    BasicRecover,
    BasicRecoverAsync,
    BasicRecoverOk,
    BasicReject,
)
from fluxmq.protocols.connection import Tally
from fluxmq.queues.commands import Verb
from fluxmq.sessions.amqp091.channel import Channel
from fluxmq.sessions.amqp091.publishing import Publisher
from fluxmq.sessions.amqp091.refusals import not_implemented
from fluxmq.sessions.amqp091.takers import (
    REQUEUE,
    SettledCallback,
    Taker,
    check_refusable,
    grouped,
    note_settled,
    unknown_tag,
)


class Settlements:
    """Settlements of a channel's deliveries."""

    def __init__(self, channel: Channel, publisher: Publisher) -> None:
        self.channel = channel
        self.publisher = publisher
        self.ledger: ChannelLedger = channel.ledger
        self.tally: Tally = channel.client.connection.tally

    def on_ack(self, method: BasicAck) -> None:
        """Acknowledge. Raises SoftError 406 for an unknown delivery tag."""
        transaction = self.publisher.transaction
        if transaction is not None:
            transaction.settle(self.ledger, method.delivery_tag, method.multiple, Verb.ACK)
        elif not self.ledger.acknowledge(method.delivery_tag, method.multiple):
            raise unknown_tag(method.delivery_tag)

    def on_nack(self, method: BasicNack) -> None:
        """Reject one message, or all up to a tag."""
        self._refuse(method.delivery_tag, method.multiple, method.requeue)

    def on_reject(self, method: BasicReject) -> None:
        """Reject one message."""
        self._refuse(method.delivery_tag, False, method.requeue)

    def _refuse(self, tag: int, multiple: bool, requeue: bool) -> None:
        """Requeue messages, or have them dead-lettered. Raises AmqpError."""
        verb = REQUEUE if requeue else Verb.REJECT
        transaction = self.publisher.transaction
        if transaction is not None:
            transaction.settle(self.ledger, tag, multiple, verb)
            return
        ranges = self.ledger.settle(tag, multiple)
        if ranges is None:
            raise unknown_tag(tag)
        check_refusable(ranges)
        self.settle(ranges, verb)
        self.channel.mark()

    def on_recover(self, method: BasicRecover | BasicRecoverAsync) -> None:
        """Requeue everything unacked; it is redelivered, possibly to other consumers."""
        if not method.requeue:
            raise not_implemented("requeue=false")
        if isinstance(method, BasicRecover):
            self.channel.send(BasicRecoverOk())
        ranges: list[SettledCallback] = self.ledger.settle(0, True) or []
        transaction = self.publisher.transaction
        if transaction is not None:
            ranges += transaction.take_restored()
        note_settled(self.tally, REQUEUE, _counted(ranges))
        # A stream's messages are not requeued: they are read again from its consumer's start.
        for taker, found in grouped(ranges):
            taker.settle(Verb.RELEASE if taker.is_stream else REQUEUE, found)
        self.channel.mark()

    def settle(self, ranges: Iterable[SettledCallback], verb: Verb) -> None:
        """Count messages, and tell each queue the outcome of its own, with one call per
        consumer."""
        for taker, found in grouped(ranges):
            note_settled(self.tally, verb, sum(last - first + 1 for first, last in found))
            taker.settle(verb, found)

    def pass_on(self) -> None:
        """Report acknowledgements since the last call to the queues; once per tick."""
        self.settle(self.ledger.take_acknowledged(), Verb.ACK)

    def has_unacked(self, taker: Taker) -> bool:
        """Return whether the client has unacked messages, or settlements not yet committed."""
        return taker.reserved > 0 or self.ledger.outstanding(taker) > 0


def _counted(ranges: Iterable[SettledCallback]) -> int:
    """Return the number of messages in ranges."""
    return sum(last - first + 1 for _, first, last in ranges)

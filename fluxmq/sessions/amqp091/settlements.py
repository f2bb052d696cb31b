"""Settling deliveries: basic.ack, nack, reject and recover, outside of transactions and within.

The parser settles a plain acknowledgement in the channel's ledger; the queue learns of it once per
tick, as ranges. In a transaction tags are taken out of the ledger at once, one by one, and put back
(``Transaction.restored``) by a rollback.

Source: AMQP 0-9-1 sections 1.8.3.13 (ack), 1.8.3.14 (reject), 1.8.3.16 (recover), RabbitMQ's
basic.nack.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from fluxmq.protocols.amqp091.errors import SoftError
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
from fluxmq.sessions.amqp091.consumers import Taker, merged
from fluxmq.sessions.amqp091.ports import Range
from fluxmq.sessions.amqp091.refusals import not_implemented, precondition

if TYPE_CHECKING:
    from fluxmq.protocols.amqp091.ledger import ChannelLedger
    from fluxmq.protocols.connection import Tally
    from fluxmq.sessions.amqp091.channel import Channel

REQUEUE: Final = Verb.NACK
"""Verb that settles a requeued message; it counts as a failed delivery."""

SettledCallback = tuple[Taker, int, int]
"""Owner of the messages, first and last offset."""


class Settlements:
    """Settlements of a channel's deliveries."""

    __deletable__ = ("channel",)

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.ledger: ChannelLedger = channel.ledger
        self.tally: Tally = channel.client.connection.tally

    def on_ack(self, method: BasicAck) -> None:
        """Acknowledge. Raises SoftError 406 for an unknown delivery tag."""
        transaction = self.channel.publisher.transaction
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
        transaction = self.channel.publisher.transaction
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
        transaction = self.channel.publisher.transaction
        if transaction is not None:
            ranges += transaction.take_restored()
        self.note(REQUEUE, _counted(ranges))
        # A stream's messages are not requeued: they are read again from its consumer's start.
        for taker, found in grouped(ranges):
            taker.settle(Verb.RELEASE if taker.is_stream else REQUEUE, found)
        self.channel.mark()

    def settle(self, ranges: Iterable[SettledCallback], verb: Verb) -> None:
        """Count messages, and tell each queue the outcome of its own, with one call per consumer."""
        for taker, found in grouped(ranges):
            self.note(verb, sum(last - first + 1 for first, last in found))
            taker.settle(verb, found)

    def pass_on(self) -> None:
        """Report acknowledgements since the last call to the queues, and deliveries that need none;
        once per tick."""
        self.settle(self.ledger.take_acknowledged(), Verb.ACK)
        for consumer in self.channel.consumers.by_tag.values():
            consumer.settle_written()

    def note(self, verb: Verb, messages: int) -> None:
        """Count messages settled by the client."""
        if verb is Verb.ACK:
            self.tally.amqp_acknowledged += messages
        elif verb is REQUEUE:
            self.tally.amqp_requeued += messages
        else:
            self.tally.amqp_rejected += messages

    def has_unacked(self, taker: Taker) -> bool:
        """Return whether the client has unacked messages, or settlements not yet committed."""
        return taker.reserved > 0 or self.ledger.outstanding(taker) > 0

    def outstanding(self) -> int:
        """Return the unacked messages that count towards the shared limit: not those of
        basic.get."""
        count = self.ledger.unsettled
        getters = self.channel.consumers.getters
        if getters:
            count -= sum(self.ledger.outstanding(getter) for getter in getters.values())
        transaction = self.channel.publisher.transaction
        if transaction is not None:
            count += len(transaction.settled) + len(transaction.restored)
        return count


def unknown_tag(tag: int) -> SoftError:
    """Return 406 for an unknown delivery tag."""
    return precondition(f"unknown delivery tag {tag}")


def check_refusable(ranges: Iterable[SettledCallback]) -> None:
    """Raise HardError 540 for messages of a stream, which cannot be requeued."""
    for taker, _, _ in ranges:
        if taker.is_stream:
            what = named(QUEUE, taker.queue.name, taker.queue.vhost)
            text = f"basic.nack and basic.reject not supported by stream queues {what}"
            raise not_implemented(text)


def grouped(ranges: Iterable[SettledCallback]) -> list[tuple[Taker, list[Range]]]:
    """Return the ranges grouped by owner, in order, with adjacent ones merged."""
    groups: dict[Taker, list[Range]] = {}
    for taker, first, last in ranges:
        groups.setdefault(taker, []).append((first, last))
    return [(taker, merged(found)) for taker, found in groups.items()]


def _counted(ranges: Iterable[SettledCallback]) -> int:
    """Return the number of messages in ranges."""
    return sum(last - first + 1 for _, first, last in ranges)

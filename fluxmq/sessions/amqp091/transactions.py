"""Transactions: publishes and settlements of a channel, held until they are committed together.

A commit sends everything to its queues at once and is answered when all parts are durable; if a
queue refuses a part, the channel is closed with "partial tx completion", as in RabbitMQ: there is
no rollback across queues. A transaction's size is bounded.

Source: AMQP 0-9-1 section 1.9 (tx), RabbitMQ's notes on transactions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from fluxmq.protocols.amqp091.confirms import REFUSED_MIN, Confirmation, ConfirmWindow
from fluxmq.protocols.amqp091.constants import ReplyCode
from fluxmq.protocols.amqp091.errors import SoftError
from fluxmq.protocols.amqp091.methods import (
    TxCommit,
    TxCommitOk,
    TxRollback,
    TxRollbackOk,
    TxSelect,
    TxSelectOk,
)
from fluxmq.protocols.amqp091.run import PublishRun
from fluxmq.queues.commands import Verb
from fluxmq.sessions.amqp091 import publishing, settling
from fluxmq.sessions.amqp091.budget import HELD_BYTES, Share
from fluxmq.sessions.amqp091.channel import Channel, precondition
from fluxmq.sessions.amqp091.consumers import Taker
from fluxmq.sessions.amqp091.ports import AmqpLimits


class Settled(NamedTuple):
    """A delivery settled within the transaction."""

    verb: Verb
    tag: int
    taker: Taker
    offset: int


class Transaction:
    """Publishes and settlements since the last commit or rollback.

    ``restored``: deliveries whose settlement was rolled back, by tag; they are unacked, but not in
    the ledger. ``low``: lower bound of the ledger's unacked tags. ``share``: of the connection's
    budget.
    """

    __slots__ = ("bytes", "limits", "low", "messages", "publishes", "restored", "settled", "share")

    def __init__(self, limits: AmqpLimits, share: Share) -> None:
        self.limits = limits
        self.share = share
        self.publishes: list[tuple[publishing.Prepared, PublishRun]] = []
        self.settled: list[Settled] = []
        self.restored: dict[int, tuple[Taker, int]] = {}
        self.messages = 0
        self.bytes = 0
        self.low = 1

    def publish(self, prepared: publishing.Prepared, run: PublishRun) -> None:
        """Hold a run, which owns its bytes. Raises SoftError 406 if it exceeds the channel's limit
        or the connection's budget."""
        self.bytes += run.payload_bytes + len(run.properties) + len(run.routing_key)
        self.count(run.count)
        if self.bytes > self.limits.max_transaction_bytes:
            most = self.limits.max_transaction_bytes
            raise precondition(f"transaction of more than {most} bytes")
        # The result of a run's checks holds several copies of its properties.
        self.share.take(len(run.buffer) + 3 * len(run.properties))
        self.publishes.append((prepared, run))

    def count(self, messages: int) -> None:
        """Count more publishes or settlements. Raises SoftError 406 when there are too many."""
        self.share.take(HELD_BYTES * messages)
        self.messages += messages
        if self.messages > self.limits.max_transaction_messages:
            most = self.limits.max_transaction_messages
            raise precondition(f"transaction of more than {most} publishes and acknowledgements")

    def settle(self, channel: Channel, tag: int, multiple: bool, verb: Verb) -> None:
        """Hold a settlement. Raises AmqpError for an unknown tag, or one settled before."""
        if not multiple:
            if not self._settle_one(channel, tag, verb):
                raise settling.unknown_tag(tag)
            return
        last = tag or channel.ledger.next_tag - 1
        if tag and not self._settle_one(channel, tag, verb):
            raise settling.unknown_tag(tag)
        for each in sorted(each for each in self.restored if each <= last):
            self._settle_one(channel, each, verb)
        for each in range(self.low, last + 1):
            self._settle_one(channel, each, verb)
        self.low = max(self.low, last + 1)

    def _settle_one(self, channel: Channel, tag: int, verb: Verb) -> bool:
        """Settle one tag; return whether it was unacked."""
        restored = self.restored.pop(tag, None)
        if restored is not None:
            taker, offset = restored
        else:
            found = channel.ledger.settle(tag, False)
            if found is None:
                return False
            if not found:
                return True  # of a deleted queue
            taker, offset = found[0][0], found[0][1]
            taker.reserved += 1
        if verb is not Verb.ACK:
            settling.check_refusable([(taker, offset, offset)])
        self.count(1)
        self.settled.append(Settled(verb, tag, taker, offset))
        return True

    def take_restored(self) -> list[settling.Told]:
        """Take the deliveries that a rollback restored, to be requeued now."""
        restored, self.restored = self.restored, {}
        for taker, _ in restored.values():
            taker.reserved -= 1
        return [(taker, offset, offset) for taker, offset in restored.values()]

    def clear(self) -> None:
        """Drop everything but settlements that were rolled back and not repeated."""
        self.publishes = []
        self.settled = []
        self.bytes = 0
        self.messages = len(self.restored)
        self.share.release()
        self.share.take(HELD_BYTES * self.messages)


def on_select(channel: Channel, _method: TxSelect) -> None:
    """Hold publishes and settlements for a commit from now on. Raises SoftError 406 in confirm
    mode."""
    if channel.window is not None:
        raise precondition("cannot switch from confirm to tx mode")
    if channel.transaction is None:
        broker = channel.handler.broker
        channel.transaction = Transaction(broker.limits, channel.client.budget.share(broker))
        # The parser passes everything on frame by frame: it must not settle past the transaction.
        channel.put_in_order()
    channel.send(TxSelectOk())


def required(channel: Channel) -> Transaction:
    """Return the channel's transaction. Raises SoftError 406 when there is none."""
    if channel.transaction is None:
        raise precondition("channel is not transactional")
    return channel.transaction


def on_rollback(channel: Channel, _method: TxRollback) -> None:
    """Drop the publishes; deliveries are unacked again."""
    transaction = required(channel)
    for _, tag, taker, offset in transaction.settled:
        transaction.restored[tag] = (taker, offset)
    transaction.clear()
    channel.client.connection.tally.amqp_rolled_back += 1
    channel.send(TxRollbackOk())


def on_commit(channel: Channel, method: TxCommit) -> None:
    """Send all parts to their queues; answer when every one is durable."""
    transaction = required(channel)
    publishes, settled = transaction.publishes, transaction.settled
    transaction.clear()
    failed = False
    parts = 1
    answer = channel.later(method, lambda: committed(channel, failed))

    def ended(reason: int = 0) -> None:
        nonlocal failed, parts
        failed = failed or reason >= REFUSED_MIN
        parts -= 1
        if parts == 0:
            answer()

    for prepared, run in publishes:
        parts += 1
        window = ConfirmWindow()
        confirmation = Confirmation(window, window.publish(run.count), run.count)
        confirmation.mark = _ending(confirmation, ended)
        confirmation.hold()
        publishing.send(channel, prepared, run, confirmation)
        confirmation.done()
    for verb in (Verb.ACK, Verb.REJECT, settling.REQUEUE):
        told = [(each.taker, each.offset, each.offset) for each in settled if each.verb is verb]
        settling.note(channel, verb, len(told))
        for taker, ranges in settling.grouped(told):
            parts += 1
            taker.reserved -= sum(last - first + 1 for first, last in ranges)
            taker.settle(verb, ranges, ended)
    channel.mark()
    ended()


def _ending(confirmation: Confirmation, ended: Callable[[int], None]) -> Callable[[], None]:
    """Return the callback of a confirmation whose run is complete."""

    def mark() -> None:
        confirmation.mark = None
        ended(confirmation.reason)

    return mark


def committed(channel: Channel, failed: bool) -> None:
    """Answer the commit once all parts are."""
    if failed:
        raise SoftError(ReplyCode.PRECONDITION_FAILED, "partial tx completion")
    channel.client.connection.tally.amqp_committed += 1
    channel.send(TxCommitOk())

"""A transaction: publishes and settlements of a channel, held until they are committed together.

Its size is bounded. ``Publisher`` commits it.

Source: AMQP 0-9-1 section 1.9 (tx), RabbitMQ's notes on transactions.
"""

from __future__ import annotations

from typing import NamedTuple

from fluxmq.protocols.amqp091.ledger import ChannelLedger
from fluxmq.protocols.amqp091.run import AmqpPublishRun
from fluxmq.queues.commands import Verb
from fluxmq.sessions.amqp091.budget import HELD_BYTES, Share
from fluxmq.sessions.amqp091.ports import AmqpLimits
from fluxmq.sessions.amqp091.publish_checks import Prepared
from fluxmq.sessions.amqp091.refusals import precondition
from fluxmq.sessions.amqp091.takers import SettledCallback, Taker, check_refusable, unknown_tag


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
        self.publishes: list[tuple[Prepared, AmqpPublishRun]] = []
        self.settled: list[Settled] = []
        self.restored: dict[int, tuple[Taker, int]] = {}
        self.messages = 0
        self.bytes = 0
        self.low = 1

    def publish(self, prepared: Prepared, run: AmqpPublishRun) -> None:
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

    def settle(self, ledger: ChannelLedger, tag: int, multiple: bool, verb: Verb) -> None:
        """Hold a settlement. Raises AmqpError for an unknown tag, or one settled before."""
        if not multiple:
            if not self._settle_one(ledger, tag, verb):
                raise unknown_tag(tag)
            return
        last = tag or ledger.next_tag - 1
        if tag and not self._settle_one(ledger, tag, verb):
            raise unknown_tag(tag)
        for each in sorted(each for each in self.restored if each <= last):
            self._settle_one(ledger, each, verb)
        for each in range(self.low, last + 1):
            self._settle_one(ledger, each, verb)
        self.low = max(self.low, last + 1)

    def _settle_one(self, ledger: ChannelLedger, tag: int, verb: Verb) -> bool:
        """Settle one tag; return whether it was unacked."""
        restored = self.restored.pop(tag, None)
        if restored is not None:
            taker, offset = restored
        else:
            found = ledger.settle(tag, False)
            if found is None:
                return False
            if not found:
                return True  # of a deleted queue
            taker, offset = found[0][0], found[0][1]
            taker.reserved += 1
        if verb is not Verb.ACK:
            check_refusable([(taker, offset, offset)])
        self.count(1)
        self.settled.append(Settled(verb, tag, taker, offset))
        return True

    def take_restored(self) -> list[SettledCallback]:
        """Take the deliveries that a rollback restored, to be requeued now."""
        restored, self.restored = self.restored, {}
        for taker, _ in restored.values():
            taker.reserved -= 1
        return [(taker, offset, offset) for taker, offset in restored.values()]

    def roll_back(self) -> None:
        """Drop the publishes; deliveries are unacked again."""
        for _, tag, taker, offset in self.settled:
            self.restored[tag] = (taker, offset)
        self.clear()

    def clear(self) -> None:
        """Drop everything but settlements that were rolled back and not repeated."""
        self.publishes = []
        self.settled = []
        self.bytes = 0
        self.messages = len(self.restored)
        self.share.release()
        self.share.take(HELD_BYTES * self.messages)

"""Publishes: checked once per run, routed by the broker, returned, confirmed, or held by a
transaction until it is committed.

All messages of a run have the same exchange, routing key, flags and properties, so one check covers
all; and the result for a channel's last run is reused for the next while those, the topology and
the permissions are the same. In confirm mode every message has a number, routed or not. A commit
sends a transaction's parts to their queues at once and is answered when all are durable; if a queue
refuses a part, the channel is closed with "partial tx completion", as in RabbitMQ: there is no
rollback across queues.

Source: AMQP 0-9-1 sections 1.8.3.7 (publish), 1.8.3.8 (return) and 1.9 (tx), RabbitMQ's publisher
confirms, validated user-id, per-message TTL, and sender-selected distribution (CC, BCC).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from fluxmq.protocols.amqp091.confirms import NACK, REFUSED_MIN, Confirmation, ConfirmWindow
from fluxmq.protocols.amqp091.constants import ReplyCode
from fluxmq.protocols.amqp091.delivery import encode_return
from fluxmq.protocols.amqp091.methods import (
    ConfirmSelect,
    ConfirmSelectOk,
    TxCommit,
    TxCommitOk,
    TxRollbackOk,
    TxSelectOk,
)
from fluxmq.protocols.amqp091.run import AmqpPublishRun
from fluxmq.protocols.connection import Tally
from fluxmq.queues.commands import Verb
from fluxmq.sessions.amqp091.channel import Channel
from fluxmq.sessions.amqp091.client import AmqpClient
from fluxmq.sessions.amqp091.content import check_size
from fluxmq.sessions.amqp091.ports import AmqpBrokerPort, PendingConfirm
from fluxmq.sessions.amqp091.publish_checks import Prepared, check_publish
from fluxmq.sessions.amqp091.refusals import not_implemented, precondition
from fluxmq.sessions.amqp091.takers import REQUEUE, grouped, note_settled
from fluxmq.sessions.amqp091.transactions import Transaction

UNANSWERED_MAX: Final = 65_536
"""Maximum unconfirmed publishes of a channel in confirm mode: beyond it the connection is not
read."""

PREPARED_BYTES_MAX: Final = 4096
"""Longest properties for which a channel caches the result of its checks: the result holds several
copies of them, and a connection may have two thousand channels."""

_ANSWER_BYTES: Final = 21
_KIND_AT: Final = 10
_NUMBER_AT: Final = 11
_MULTIPLE_AT: Final = 19
"""Size of a basic.ack or basic.nack frame, and offsets in it: low byte of the method, number,
``multiple``."""


class Publisher:
    """Publishes of a channel. ``window``: numbers of publishes in confirm mode. ``paced``: too many
    are unanswered, which is a reason not to read the connection. ``reply_to``: address of the
    channel's consumer of direct replies, empty without one."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.client: AmqpClient = channel.client
        self.broker: AmqpBrokerPort = channel.broker
        self.tally: Tally = channel.client.connection.tally
        self.window: ConfirmWindow | None = None
        self.transaction: Transaction | None = None
        self.prepared: Prepared | None = None
        self.paced = False
        self.reply_to = ""

    def publish(self, run: AmqpPublishRun) -> None:
        """Publish a run. Raises AmqpError; then nothing of the run was published."""
        if run.immediate:
            raise not_implemented("immediate=true")
        client, channel = self.client, self.channel
        check_size(run.largest, self.broker.limits.max_message)
        prepared = self._prepare(run)
        self.tally.published(run.count, run.payload_bytes)
        if not client.connection.publishing:
            client.began()
        if self.transaction is not None:
            self._hold(self.transaction, prepared, run)
            return
        window = self.window
        if window is None:
            self._send(prepared, run, None)
            return
        first = window.publish(run.count)
        runs = _each_of(run) if prepared.singly and run.count > 1 else (run,)
        for number, each in enumerate(runs, first):
            confirmation = Confirmation(window, number, each.count, channel.mark)
            # Held until a possible return, so that the return precedes the confirm.
            confirmation.hold()
            self._send(prepared, each, confirmation)
            confirmation.done()
        if window.unanswered > UNANSWERED_MAX and not self.paced:
            self.paced = True
            client.pause()

    def _send(
        self, prepared: Prepared, run: AmqpPublishRun, confirmation: PendingConfirm | None
    ) -> None:
        """Route a run, and return it when it is mandatory and unroutable."""
        broker = self.broker
        if prepared.reply is not None:
            # Sent to the requester, yet not routed to a queue, which is what mandatory demands.
            if broker.reply(prepared.reply, run, prepared.routing.block):
                self.tally.amqp_replies += run.count
            else:
                broker.count_drop("reply_gone", run.count)
            if run.mandatory:
                self._return(prepared, run)
        elif not broker.publish(self.client.connection, run, prepared.routing, confirmation):
            if run.mandatory:
                self._return(prepared, run)
            else:
                broker.count_drop("unroutable", run.count)

    def _return(self, prepared: Prepared, run: AmqpPublishRun) -> None:
        """Send basic.return for every message of the run."""
        self.tally.amqp_returned += run.count
        code = ReplyCode.NO_ROUTE
        for payload in run.payloads():
            self.client.connection.append(
                encode_return(
                    self.channel.number,
                    code,
                    code.name.encode(),
                    run.exchange,
                    run.routing_key,
                    prepared.returned,
                    payload,
                    self.client.connection.frame_max,
                )
            )

    # --- confirms ---

    def on_confirm_select(self, method: ConfirmSelect) -> None:
        """Number and confirm publishes from now on. Raises SoftError 406 in tx mode."""
        if self.transaction is not None:
            raise precondition("cannot switch from tx to confirm mode")
        if self.window is None:
            self.window = ConfirmWindow()
        if not method.no_wait:
            self.channel.send(ConfirmSelectOk())

    def flush(self) -> None:
        """Write the confirms that are due."""
        window = self.window
        if window is None:
            return
        waiting = window.unanswered
        answers = window.answers(self.channel.number)
        if answers:
            self.client.connection.append(answers)
            answered = waiting - window.unanswered
            if len(answers) == _ANSWER_BYTES and answers[_KIND_AT] != NACK:
                self.tally.amqp_confirmed += answered
            else:
                nacked = count_nacked(answers, answered)
                self.tally.amqp_confirmed += answered - nacked
                self.tally.amqp_nacked += nacked
        if self.paced and 2 * window.unanswered <= UNANSWERED_MAX:
            self.paced = False
            self.client.resume()

    # --- transactions ---

    def on_tx_select(self) -> None:
        """Hold publishes and settlements for a commit from now on. Raises SoftError 406 in confirm
        mode."""
        if self.window is not None:
            raise precondition("cannot switch from confirm to tx mode")
        if self.transaction is None:
            share = self.client.budget.share(self.broker)
            self.transaction = Transaction(self.broker.limits, share)
            # The parser passes everything on frame by frame: it must not settle past the
            # transaction.
            self.channel.ledger.direct = False
        self.channel.send(TxSelectOk())

    def _required(self) -> Transaction:
        """Return the transaction. Raises SoftError 406 when there is none."""
        if self.transaction is None:
            raise precondition("channel is not transactional")
        return self.transaction

    def _hold(self, transaction: Transaction, prepared: Prepared, run: AmqpPublishRun) -> None:
        """Keep the run until the transaction commits. Raises SoftError 406 when it is too large, or
        memory is low."""
        if self.broker.short_of_memory:
            self.broker.refused_for_memory("transaction")
            raise precondition("the node is low on memory: a transaction cannot grow")
        run.detach()
        transaction.publish(prepared, run)

    def on_rollback(self) -> None:
        """Drop the publishes; deliveries are unacked again."""
        self._required().roll_back()
        self.tally.amqp_rolled_back += 1
        self.channel.send(TxRollbackOk())

    def on_commit(self, method: TxCommit) -> None:
        """Send all parts to their queues; answer when every one is durable."""
        transaction = self._required()
        publishes, settled = transaction.publishes, transaction.settled
        transaction.clear()
        failed = False
        parts = 1
        answer = self.channel.later(method, lambda: self._committed(failed))

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
            self._send(prepared, run, confirmation)
            confirmation.done()
        for verb in (Verb.ACK, Verb.REJECT, REQUEUE):
            told = [(each.taker, each.offset, each.offset) for each in settled if each.verb is verb]
            note_settled(self.tally, verb, len(told))
            for taker, ranges in grouped(told):
                parts += 1
                taker.reserved -= sum(last - first + 1 for first, last in ranges)
                taker.settle(verb, ranges, ended)
        self.channel.mark()
        ended()

    def _committed(self, failed: bool) -> None:
        """Answer the commit once all parts are."""
        if failed:
            raise precondition("partial tx completion")
        self.tally.amqp_committed += 1
        self.channel.send(TxCommitOk())

    def release(self) -> None:
        """Release everything that a closed channel holds."""
        if self.transaction is not None:
            self.transaction.share.release()
        self.transaction = None
        self.prepared = None

    # --- checks ---

    def answer_to(self, address: str) -> None:
        """Put this address in the place of the pseudo-queue for direct replies from now on; empty:
        refuse messages that name it."""
        self.reply_to = address
        self.prepared = None

    def _prepare(self, run: AmqpPublishRun) -> Prepared:
        """Check a run, or reuse the result of a similar one. Raises AmqpError."""
        permissions = self.client.access.permissions()
        prepared = self.prepared
        if (
            prepared is not None
            and prepared.permissions is permissions
            and prepared.revision == self.broker.topology.revision
            and prepared.routing_key == run.routing_key
            and prepared.exchange_name == run.exchange
            and prepared.given == run.properties
        ):
            return prepared
        prepared = check_publish(self.client, run, permissions, self.reply_to)
        self.prepared = prepared if len(run.properties) <= PREPARED_BYTES_MAX else None
        return prepared


def _each_of(run: AmqpPublishRun) -> Iterator[AmqpPublishRun]:
    """Yield the messages of a run as runs of one."""
    for payload in run.payloads():
        yield AmqpPublishRun.of(
            run.channel,
            run.exchange,
            run.routing_key,
            run.mandatory,
            run.immediate,
            run.properties,
            payload,
        )


def _ending(confirmation: Confirmation, ended: Callable[[int], None]) -> Callable[[], None]:
    """Return the callback of a confirmation whose run is complete."""

    def mark() -> None:
        confirmation.mark = None
        ended(confirmation.reason)

    return mark


def count_nacked(answers: bytes, answered: int) -> int:
    """Return how many of the publishes answered by these frames get a basic.nack.

    Where several frames answer many of both kinds, numbers between them that were answered one by
    one earlier count for the frame that passes over them, and less for the first.
    """
    kinds = answers[_KIND_AT::_ANSWER_BYTES]
    nacks = kinds.count(NACK)
    if not nacks or nacks == len(kinds):
        return answered if nacks else 0
    counts = []
    before = 0
    for at in range(0, len(answers), _ANSWER_BYTES):
        number = int.from_bytes(answers[at + _NUMBER_AT : at + _NUMBER_AT + 8], "big")
        many = answers[at + _MULTIPLE_AT]
        counts.append(number - before if many and before else 1)
        before = number
    # The first frame does not tell how far back it reaches: it gets what the others leave.
    counts[0] = max(answered - sum(counts[1:]), 1)
    return min(
        sum(count for count, kind in zip(counts, kinds, strict=True) if kind == NACK), answered
    )

"""Local transactions of a session: publishes and settlements that take effect at their discharge.

A link to a coordinator declares and discharges them. As in AMQP 0.9.1, a commit sends everything to
the queues at once and is answered when all of it is durable; there is no rollback across queues: if
one refuses, or a message reaches none, the discharge is rejected, and the rest has taken effect.
Deliveries that a client has settled within a transaction return to their queues when it is rolled back.
What is not discharged when its link or session ends is rolled back.

Source: OASIS AMQP 1.0 part 4 (transactions).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from fluxmq.protocols.amqp091.errors import SoftError
from fluxmq.protocols.amqp10 import conditions
from fluxmq.protocols.amqp10.codec import MalformedError, decode
from fluxmq.protocols.amqp10.conditions import ConditionError, LinkConditionError
from fluxmq.protocols.amqp10.performatives import (
    AcceptedState,
    AttachFrame,
    DeclareBody,
    DeclaredState,
    DischargeBody,
    TransactionalState,
    composite,
)
from fluxmq.protocols.amqp10.transfer_run import TransferRun
from fluxmq.protocols.amqp10.types import Described
from fluxmq.queues.commands import Verb
from fluxmq.sessions.amqp091.budget import HELD_BYTES, Share
from fluxmq.sessions.amqp091.ports import Range
from fluxmq.sessions.amqp091.takers import REQUEUE
from fluxmq.sessions.amqp10.outcomes import ACCEPTED, REFUSED_MIN, rejected
from fluxmq.sessions.amqp10.ports import LinkSession
from fluxmq.sessions.amqp10.publish import CheckedMessage, run_of
from fluxmq.sessions.amqp10.receiver_links import OutgoingLink
from fluxmq.sessions.amqp10.sender_links import IncomingLink

CREDIT: Final = 16
"""Declares and discharges that may be under way on a link."""
TRANSACTIONS_MAX: Final = 64
"""Undischarged transactions of a session: clients have one, or two while one is discharged."""
ID_BYTES: Final = 8


class LocalTransaction:
    """What a transaction holds: messages, and deliveries with the verb that settles them."""

    def __init__(self, share: Share) -> None:
        self.share = share
        self.publishes: list[tuple[CheckedMessage, bytes]] = []
        self.settled: list[tuple[OutgoingLink, Verb, int, Range]] = []

    def publish(self, message: CheckedMessage, payload: bytes) -> None:
        """Hold a message. Raises LinkConditionError when there is no room."""
        self._take(len(payload) + len(message.routing.block) + HELD_BYTES)
        self.publishes.append((message, payload))

    def settle(self, link: OutgoingLink, verb: Verb, delay: int, ranges: Range) -> None:
        """Hold a settlement. Raises LinkConditionError when there is no room."""
        self._take(HELD_BYTES)
        self.settled.append((link, verb, delay, ranges))

    def _take(self, size: int) -> None:
        try:
            self.share.take(size)
        except SoftError as error:
            raise LinkConditionError(conditions.RESOURCE_LIMIT_EXCEEDED, error.text) from None

    def roll_back(self) -> None:
        """Drop the messages, and requeue the deliveries."""
        self.share.release()
        for link, _, _, ranges in self.settled:
            link.settle(REQUEUE, [ranges])


class CommitConfirmation:
    """Counts what a commit awaits; see `fluxmq.sessions.amqp091.ports.PendingConfirm`. ``ended``: gets
    whether something was refused."""

    __slots__ = ("ended", "failed", "waiting")

    def __init__(self, ended: Callable[[bool], None]) -> None:
        self.ended = ended
        self.failed = False
        self.waiting = 0

    def hold(self) -> object:
        """Expect one more ``done``."""
        self.waiting += 1
        return self

    def done(self, reason: int = 0) -> object:
        """Note one answer."""
        self.waiting -= 1
        self.failed = self.failed or reason >= REFUSED_MIN
        if self.waiting == 0:
            self.ended(self.failed)
        return None


class Coordinator:
    """The taker of a link to the coordinator, and the transactions declared on it."""

    def __init__(self, session: LinkSession, attach: AttachFrame) -> None:
        self.session = session
        self.link = IncomingLink(session, attach, self, CREDIT)
        self.ids: list[bytes] = []

    def take_run(self, run: TransferRun, index: int, count: int) -> int:
        """Take nothing: declare and discharge come one by one."""
        return 0

    def take(self, number: int, settled: bool, data: bytes, state: object) -> None:
        """Execute a declare or a discharge. Raises LinkConditionError for another message."""
        if state is not None or settled:
            text = "a message to the coordinator that is settled, or has a state"
            raise LinkConditionError(conditions.NOT_ALLOWED, text)
        body = _body(data)
        self.session.outcomes.expect(1)
        try:
            if isinstance(body, DeclareBody):
                self._answer(number, DeclaredState(self._declare(body)))
            else:
                self._discharge(number, body)
        except ConditionError as error:
            self._answer(number, rejected(error.condition, error.text))

    def _answer(self, number: int, state: object) -> None:
        session = self.session
        session.outcomes.answer(number, 1, state)
        session.mark()
        if session.links.get(self.link.handle) is self.link:
            self.link.renew_credit()

    def _declare(self, body: DeclareBody) -> bytes:
        session = self.session
        if body.global_id is not None:
            text = "distributed transactions are not supported"
            raise LinkConditionError(conditions.NOT_IMPLEMENTED, text)
        transactions = session.outcomes.transactions
        if len(transactions) >= TRANSACTIONS_MAX:
            text = f"a session has at most {TRANSACTIONS_MAX} transactions"
            raise LinkConditionError(conditions.RESOURCE_LIMIT_EXCEEDED, text)
        session.outcomes.declared += 1
        name = session.outcomes.declared.to_bytes(ID_BYTES, "big")
        transactions[name] = LocalTransaction(session.client.budget.share(session.broker))
        self.ids.append(name)
        return name

    def _discharge(self, number: int, body: DischargeBody) -> None:
        session = self.session
        if body.txn_id not in self.ids:
            raise unknown(body.txn_id)
        self.ids.remove(body.txn_id)
        transaction = session.outcomes.transactions.pop(body.txn_id)
        tally = session.client.connection.tally
        if body.fail:
            transaction.roll_back()
            tally.amqp_rolled_back += 1
            self._answer(number, ACCEPTED)
            return

        def ended(failed: bool) -> None:
            if failed:
                text = "partial completion: a queue has refused a part, or a message reached none"
                self._answer(number, rejected(conditions.TRANSACTION_ROLLBACK, text))
                return
            tally.amqp_committed += 1
            self._answer(number, ACCEPTED)

        commit(session, transaction, CommitConfirmation(ended))

    def flush(self) -> None:
        """Do nothing: everything is executed as it comes."""

    def release(self) -> None:
        """Roll back what is not discharged."""
        for name in self.ids:
            transaction = self.session.outcomes.transactions.pop(name, None)
            if transaction is not None:
                transaction.roll_back()
                self.session.client.connection.tally.amqp_rolled_back += 1
        self.ids = []


def commit(
    session: LinkSession, transaction: LocalTransaction, confirmation: CommitConfirmation
) -> None:
    """Send everything to its queues."""
    confirmation.hold()
    transaction.share.release()
    publishes = transaction.publishes
    connection = session.client.connection
    at = 0
    while at < len(publishes):
        message = publishes[at][0]
        payloads = []
        while at < len(publishes) and publishes[at][0] is message:
            payloads.append(publishes[at][1])
            at += 1
        run = run_of(payloads, session.channel, message.routing)
        connection.tally.published(run.count, run.payload_bytes)
        if not session.broker.publish(connection, run, message.routing, confirmation):
            connection.tally.amqp_returned += run.count
            confirmation.failed = True
    for link, verb, delay, ranges in transaction.settled:
        confirmation.hold()
        link.settle(verb, [ranges], delay, done=confirmation.done)
    confirmation.done()


def transaction_of(session: LinkSession, state: TransactionalState) -> LocalTransaction:
    """Return the transaction that a state names. Raises LinkConditionError for an unknown one."""
    found: LocalTransaction | None = session.outcomes.transactions.get(state.txn_id)
    if found is None:
        raise unknown(state.txn_id)
    return found


def unknown(name: bytes) -> LinkConditionError:
    """Return the error for a transaction that is not there."""
    text = f"no transaction {name.hex()} in this session"
    return LinkConditionError(conditions.UNKNOWN_TRANSACTION, text)


def provisional(state: TransactionalState) -> TransactionalState:
    """Return the state of a publish that a transaction holds."""
    return TransactionalState(state.txn_id, AcceptedState())


def _body(data: bytes) -> DeclareBody | DischargeBody:
    """Return what a message to the coordinator says. Raises LinkConditionError."""
    at = 0
    try:
        while at < len(data):
            section, at = decode(data, at)
            if isinstance(section, Described) and section.descriptor in _VALUES:
                body = composite(section.value) if isinstance(section.value, Described) else None
                if isinstance(body, (DeclareBody, DischargeBody)):
                    return body
    except MalformedError as error:
        raise LinkConditionError(conditions.DECODE_ERROR, str(error)) from None
    text = "a message to the coordinator that is no declare and no discharge"
    raise LinkConditionError(conditions.NOT_ALLOWED, text)


_VALUES: Final = (0x77, "amqp:amqp-value:*")

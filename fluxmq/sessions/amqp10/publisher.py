"""Publishing the messages of a link.

Successive messages that are equal in everything but their payloads are published together, as one
run. What bounds those without outcome is their number in a session, beyond which the connection is
not read.

Source: OASIS AMQP 1.0 part 3, sections 3.2 and 3.5.4 (targets).
"""

from __future__ import annotations

from functools import partial
from typing import Final

from fluxmq.auth.remote_rights import UndecidedError
from fluxmq.protocols.amqp10 import conditions
from fluxmq.protocols.amqp10.addresses import AddressTarget
from fluxmq.protocols.amqp10.conditions import ConditionError, LinkConditionError
from fluxmq.protocols.amqp10.performatives import AttachFrame, TransactionalState
from fluxmq.sessions.amqp10.outcomes import PublishConfirmation, rejected
from fluxmq.sessions.amqp10.ports import LinkSession
from fluxmq.sessions.amqp10.publish import CheckedMessage, checked, repeated, run_of
from fluxmq.sessions.amqp10.sender_links import IncomingLink
from fluxmq.sessions.amqp10.transactions import provisional, transaction_of

RUN_BYTES_MAX: Final = 1 << 20
"""Bytes gathered of messages that are published together."""


class LinkPublisher:
    """Publishes the messages of a link. ``target``: of them; None: each has its own address.

    ``known``: what was found out about the last one. ``waiting``: payloads of a run, from delivery
    ``first`` on.
    """

    def __init__(
        self, session: LinkSession, attach: AttachFrame, target: AddressTarget | None
    ) -> None:
        self.session = session
        self.target = target
        self.known: CheckedMessage | None = None
        self.waiting: list[bytes] = []
        self.waiting_bytes = 0
        self.first = 0
        self.settled = False
        self.link = IncomingLink(session, attach, self)

    def take(self, number: int, settled: bool, data: bytes, state: object) -> None:
        """Publish a whole message, or gather it with the ones before it."""
        session = self.session
        if state is not None and not isinstance(state, TransactionalState):
            text = "transfers with a state other than a transaction's are not supported"
            raise LinkConditionError(conditions.NOT_IMPLEMENTED, text)
        known = self.known
        payload = None if known is None else repeated(session.client, known, data)
        if payload is not None and self.waiting:
            joins = number == self.first + len(self.waiting) and settled == self.settled
            if not joins or self.waiting_bytes > RUN_BYTES_MAX:
                self.flush()
        elif payload is None:
            self.flush()
            try:
                self.known, payload = checked(session.client, data, self.target)
            except UndecidedError as undecided:
                again = partial(self._take_again, number, settled, data, state)
                session.client.wait(undecided, again)
                return
            except ConditionError as error:
                self.known = None
                self._refuse(number, settled, error)
                return
        if state is not None:
            self._hold(number, settled, payload, state)
            return
        if not self.waiting:
            self.first = number
            self.settled = settled
            self.waiting_bytes = 0
            session.gathered(self.link)
        self.waiting.append(payload)
        self.waiting_bytes += len(payload)

    def _take_again(self, number: int, settled: bool, data: bytes, state: object) -> None:
        """Publish a message once it is decided whether the client may."""
        try:
            self.take(number, settled, data, state)
        except LinkConditionError as error:
            self.link.fail(error)

    def _hold(self, number: int, settled: bool, payload: bytes, state: TransactionalState) -> None:
        """Have a transaction hold a message. Raises LinkConditionError for an unknown one, and for a
        message for which there is no room."""
        self.flush()
        session = self.session
        if session.broker.short_of_memory:
            session.broker.refused_for_memory("transaction")
            text = "the node is low on memory: a transaction cannot grow"
            raise LinkConditionError(conditions.RESOURCE_LIMIT_EXCEEDED, text)
        assert self.known is not None
        transaction_of(session, state).publish(self.known, payload)
        if not session.client.connection.publishing:
            session.client.began()
        if not settled:
            session.outcomes.expect(1)
            session.outcomes.answer(number, 1, provisional(state))
            session.mark()
        session.gathered(self.link)

    def _refuse(self, number: int, settled: bool, error: ConditionError) -> None:
        """Reject a message; one that is settled leaves only the link to be ended."""
        if settled:
            raise LinkConditionError(error.condition, error.text)
        session = self.session
        session.client.count_error(error)
        session.outcomes.expect(1)
        session.outcomes.answer(number, 1, rejected(error.condition, error.text))
        session.gathered(self.link)
        session.mark()

    def flush(self) -> None:
        """Publish what was gathered."""
        payloads = self.waiting
        known = self.known
        if not payloads or known is None:
            return
        self.waiting = []
        session = self.session
        client = session.client
        if not client.connection.publishing:
            client.began()
        client.connection.tally.published(len(payloads), self.waiting_bytes)
        if known.singly and len(payloads) > 1 and not self.settled:
            for index, payload in enumerate(payloads):
                self._send(known, [payload], self.first + index)
        else:
            self._send(known, payloads, self.first)

    def _send(self, known: CheckedMessage, payloads: list[bytes], first: int) -> None:
        session = self.session
        count = len(payloads)
        confirmation = None
        routing = known.routing
        if not self.settled:
            queue = "" if routing.exchange.name else routing.keys[0]
            confirmation = PublishConfirmation(session.outcomes, first, count, session.mark, queue)
            session.outcomes.expect(count)
            confirmation.hold()
        run = run_of(payloads, session.channel, routing)
        connection = session.client.connection
        routed = session.broker.publish(connection, run, routing, confirmation)
        if not routed and not (self.target is not None and self.target.topic):
            if confirmation is None:
                session.broker.count_drop("unroutable", count)
                return
            connection.tally.amqp_returned += count
            confirmation.unrouted()
            return
        if confirmation is not None:
            confirmation.done()

    def release(self) -> None:
        """Drop what was gathered."""
        self.waiting = []

"""Publishing the messages of a link.

Successive messages that are equal in everything but their payloads, ids and creation times are
published together, as one run. What bounds those without outcome is their number in a session,
beyond which the connection is not read.

Source: OASIS AMQP 1.0 part 3, sections 3.2 and 3.5.4 (targets).
"""

from __future__ import annotations

from functools import partial
from typing import Final

from fluxmq.auth.remote_rights import UndecidedError
from fluxmq.protocols.amqp091.run import AmqpPublishRun
from fluxmq.protocols.amqp10 import conditions
from fluxmq.protocols.amqp10.addresses import AddressTarget
from fluxmq.protocols.amqp10.conditions import ConditionError, LinkConditionError
from fluxmq.protocols.amqp10.performatives import AttachFrame, TransactionalState
from fluxmq.protocols.amqp10.transfer_run import TransferRun
from fluxmq.sessions.amqp10.outcomes import PublishConfirmation, rejected
from fluxmq.sessions.amqp10.ports import LinkSession
from fluxmq.sessions.amqp10.publish import (
    CheckedMessage,
    checked,
    is_current,
    publish_run,
    repeated,
    run_of,
)
from fluxmq.sessions.amqp10.sender_links import IncomingLink
from fluxmq.sessions.amqp10.serials import MASK
from fluxmq.sessions.amqp10.transactions import provisional, transaction_of

RUN_BYTES_MAX: Final = 1 << 20
"""Bytes gathered of messages that are published together."""
TRIES_MAX: Final = 4
"""Checks in a row for a shape that no other message had, after which messages seem to differ in more
than ids."""
RETRY_EVERY: Final = 16
"""Checks after which a shape is made again all the same: making one costs a tenth of a check."""


class LinkPublisher:
    """Publishes the messages of a link. ``target``: of them; None: each has its own address.

    ``known``: what was found out about the last one. ``waiting``: payloads of a run, from delivery
    ``first`` on. ``unlike``: checks since a message had the shape of the one before.
    """

    def __init__(
        self, session: LinkSession, attach: AttachFrame, target: AddressTarget | None
    ) -> None:
        self.session = session
        self.target = target
        self.known: CheckedMessage | None = None
        self.unlike = 0
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

    def take_run(self, run: TransferRun, index: int, count: int) -> int:
        """Publish up to ``count`` transfers of a run from ``index`` on that one check is enough for;
        return how many. ``take`` says what is wrong with the next one."""
        self.flush()
        known = self.known
        session = self.session
        client = session.client
        taken = 0
        if known is not None and known.shape is not None and is_current(client, known):
            taken = known.shape.extent(run, index, index + count)
        number = session.unbounded((run.first + index) & MASK)
        if taken:
            self.unlike = 0
        else:
            varied = self.unlike < TRIES_MAX or not self.unlike % RETRY_EVERY
            try:
                known, payload = checked(client, run.message(index), self.target, varied=varied)
            except (ConditionError, UndecidedError):
                return 0
            self.known = known
            self.unlike += 1
            if known.shape is not None:
                taken = known.shape.extent(run, index, index + count)
            if taken > 1:
                self.unlike = 0
            if not taken:
                self._began(1, len(payload))
                made = run_of([payload], session.channel, known.routing)
                self._send(known, made, number, run.settled)
                session.gathered(self.link)
                return 1
        assert known is not None
        shape = known.shape
        assert shape is not None
        self._began(taken, shape.payload_bytes)
        if known.singly and not run.settled:
            for each in range(taken):
                made = publish_run(shape, run, index + each, 1, known.routing)
                self._send(known, made, number + each, False)
        else:
            made = publish_run(shape, run, index, taken, known.routing)
            self._send(known, made, number, run.settled)
        session.gathered(self.link)
        return taken

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
        self._began(len(payloads), self.waiting_bytes)
        channel, routing = self.session.channel, known.routing
        if known.singly and not self.settled:
            for index, payload in enumerate(payloads):
                made = run_of([payload], channel, routing)
                self._send(known, made, self.first + index, False)
        else:
            self._send(known, run_of(payloads, channel, routing), self.first, self.settled)

    def _began(self, count: int, size: int) -> None:
        """Count messages to be published, and note the client's first ones."""
        client = self.session.client
        if not client.connection.publishing:
            client.began()
        client.connection.tally.published(count, size)

    def _send(self, known: CheckedMessage, run: AmqpPublishRun, first: int, settled: bool) -> None:
        """Publish a run whose first delivery id is ``first``."""
        session = self.session
        count = run.count
        confirmation = None
        routing = known.routing
        if not settled:
            queue = "" if routing.exchange.name else routing.keys[0]
            confirmation = PublishConfirmation(session.outcomes, first, count, session.mark, queue)
            session.outcomes.expect(count)
            confirmation.hold()
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

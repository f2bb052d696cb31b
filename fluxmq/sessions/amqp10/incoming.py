"""A link on which a client publishes.

Its credit is renewed as its messages are published; what bounds them is how many wait for their
outcome in a session, beyond which the connection is not read. Successive messages that are equal in
everything but their payloads are published together, as one run.

Source: OASIS AMQP 1.0 part 2, sections 2.6.7 (flow control) and 2.6.14 (large messages), part 3,
sections 3.2 and 3.5.4 (targets).
"""

from __future__ import annotations

from functools import partial
from typing import Final

from fluxmq.auth.remote_rights import UndecidedError
from fluxmq.protocols.amqp091.errors import SoftError
from fluxmq.protocols.amqp10 import conditions
from fluxmq.protocols.amqp10.addresses import Target
from fluxmq.protocols.amqp10.conditions import ConditionError, LinkConditionError
from fluxmq.protocols.amqp10.performatives import AttachFrame, TransferFrame
from fluxmq.sessions.amqp091.budget import Share
from fluxmq.sessions.amqp10.outcomes import PublishConfirmation, rejected
from fluxmq.sessions.amqp10.ports import LinkSession
from fluxmq.sessions.amqp10.publish import (
    CheckedMessage,
    checked,
    repeated,
    run_of,
)
from fluxmq.sessions.amqp10.serials import MASK

CREDIT: Final = 512
"""Messages that a publisher may send before it gets more credit."""
RUN_BYTES_MAX: Final = 1 << 20
"""Bytes gathered of messages that are published together."""


class IncomingLink:
    """A link from a publisher. ``target``: of its messages; None: each has its own address.

    ``delivery_count``, ``credit``: as the client knows them. ``gathering``: frames of a message that
    is not complete, with its first ``transfer``. ``waiting``: payloads of a run, from delivery
    ``first`` on.
    """

    def __init__(self, session: LinkSession, attach: AttachFrame, target: Target | None) -> None:
        self.session = session
        self.name = attach.name
        self.handle = attach.handle
        self.target = target
        self.delivery_count = (attach.initial_delivery_count or 0) & MASK
        self.credit = 0
        self.transfer: TransferFrame | None = None
        self.gathering: list[bytes] = []
        self.share: Share | None = None
        self.known: CheckedMessage | None = None
        self.waiting: list[bytes] = []
        self.waiting_bytes = 0
        self.first = 0
        self.settled = False

    # --- credit ---

    def renew_credit(self) -> None:
        """Give credit anew once half of it is used."""
        if self.credit <= CREDIT // 2:
            self.credit = CREDIT
            self.session.send_flow(self.handle, self.delivery_count, self.credit)

    # --- transfers ---

    def on_transfer(self, transfer: TransferFrame, payload: bytes) -> None:
        """Take a transfer. Raises LinkConditionError."""
        first = self.transfer
        if first is None:
            if transfer.delivery_id is None or transfer.delivery_tag is None:
                text = "the first transfer of a delivery without delivery-id or delivery-tag"
                raise LinkConditionError(conditions.INVALID_FIELD, text)
            if self.credit <= 0:
                text = "a transfer without credit"
                raise LinkConditionError(conditions.TRANSFER_LIMIT_EXCEEDED, text)
            if transfer.state is not None or transfer.resume:
                text = "transfers with a state, or that resume, are not supported"
                raise LinkConditionError(conditions.NOT_IMPLEMENTED, text)
            if transfer.message_format:
                text = f"message format {transfer.message_format} is not supported"
                raise LinkConditionError(conditions.NOT_IMPLEMENTED, text)
            self.credit -= 1
            self.delivery_count = (self.delivery_count + 1) & MASK
            first = transfer
        elif transfer.delivery_id not in (None, first.delivery_id):
            text = "a delivery begins before the one before it is complete"
            raise LinkConditionError(conditions.INVALID_FIELD, text)
        if transfer.settled:
            first.settled = True
        if transfer.aborted:
            self._drop()
            self.renew_credit()
            return
        if transfer.more:
            self.transfer = first
            self._gather(payload)
            return
        if self.gathering:
            self._gather(payload)
            payload = b"".join(self.gathering)
        self._drop()
        most = self.session.broker.limits.max_message
        if len(payload) > most:
            text = f"a message of {len(payload)} bytes, the maximum is {most}"
            raise LinkConditionError(conditions.MESSAGE_SIZE_EXCEEDED, text)
        assert first.delivery_id is not None
        self._take(first.delivery_id, bool(first.settled), payload)

    def _gather(self, payload: bytes) -> None:
        """Keep a part of a message. Raises LinkConditionError when the message is too large, or the
        connection holds too much."""
        session = self.session
        if self.share is None:
            self.share = session.client.budget.share(session.broker)
        if self.share.bytes + len(payload) > session.broker.limits.max_message:
            text = f"a message of more than {session.broker.limits.max_message} bytes"
            raise LinkConditionError(conditions.MESSAGE_SIZE_EXCEEDED, text)
        try:
            self.share.take(len(payload))
        except SoftError as error:
            raise LinkConditionError(conditions.RESOURCE_LIMIT_EXCEEDED, error.text) from None
        self.gathering.append(payload)

    def _drop(self) -> None:
        """Drop what was gathered."""
        if self.share is not None:
            self.share.release()
            self.share = None
        self.gathering = []
        self.transfer = None

    @property
    def incomplete_bytes(self) -> int:
        """Bytes held of an incomplete message."""
        return 0 if self.share is None else self.share.bytes

    # --- publishing ---

    def _take(self, delivery: int, settled: bool, data: bytes) -> None:
        """Publish a whole message, or gather it with the ones before it."""
        session = self.session
        number = session.unbounded(delivery)
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
                again = partial(self._take_again, delivery, settled, data)
                session.client.wait(undecided, again)
                return
            except ConditionError as error:
                self.known = None
                self._refuse(number, settled, error)
                return
        if not self.waiting:
            self.first = number
            self.settled = settled
            self.waiting_bytes = 0
            session.gathered(self)
        self.waiting.append(payload)
        self.waiting_bytes += len(payload)

    def _take_again(self, delivery: int, settled: bool, data: bytes) -> None:
        """Publish a message once it is decided whether the client may."""
        try:
            self._take(delivery, settled, data)
        except LinkConditionError as error:
            self.session.client.count_error(error)
            self.session.detach(self, error.condition, error.text)

    def _refuse(self, number: int, settled: bool, error: ConditionError) -> None:
        """Reject a message; one that is settled leaves only the link to be ended."""
        if settled:
            raise LinkConditionError(error.condition, error.text)
        session = self.session
        session.client.count_error(error)
        session.outcomes.expect(1)
        session.outcomes.answer(number, 1, rejected(error.condition, error.text))
        session.gathered(self)
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
        if not routed:
            if confirmation is None:
                session.broker.count_drop("unroutable", count)
                return
            connection.tally.amqp_returned += count
            confirmation.unrouted()
            return
        if confirmation is not None:
            confirmation.done()

    def release(self) -> None:
        """Release what a link holds that ends."""
        self._drop()
        self.waiting = []

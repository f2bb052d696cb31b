"""A link on which a client sends: its credit, and messages put together of their transfers.

What becomes of a message is the affair of a `MessageTaker`: `fluxmq.sessions.amqp10.publisher`
publishes it, `fluxmq.sessions.amqp10.management_links` takes it as a request.

Source: OASIS AMQP 1.0 part 2, sections 2.6.7 (flow control) and 2.6.14 (large messages).
"""

from __future__ import annotations

from typing import Final, Protocol

from fluxmq.protocols.amqp091.errors import SoftError
from fluxmq.protocols.amqp10 import conditions
from fluxmq.protocols.amqp10.conditions import ConditionError, LinkConditionError
from fluxmq.protocols.amqp10.performatives import AttachFrame, TransferFrame
from fluxmq.protocols.amqp10.transfer_run import TransferRun
from fluxmq.sessions.amqp091.budget import Share
from fluxmq.sessions.amqp10.ports import LinkSession
from fluxmq.sessions.amqp10.serials import MASK

CREDIT: Final = 512
"""Messages that a publisher may send before it gets more credit."""


class MessageTaker(Protocol):
    """Receiver of a link's messages."""

    def take(self, number: int, settled: bool, data: bytes, state: object) -> None:
        """Take a whole message, of the unbounded delivery id ``number``. ``state``: of its transfer.
        Raises LinkConditionError."""

    def take_run(self, run: TransferRun, index: int, count: int) -> int:
        """Take up to ``count`` transfers of a run from ``index`` on; return how many. The next one is
        given to ``take``."""

    def flush(self) -> None:
        """Finish with the messages taken: no more come in this read."""

    def release(self) -> None:
        """Drop what is held: the link ends."""


class EndedTaker:
    """The taker of a link that has ended: link and taker refer to each other, and the garbage collector
    does not run during traffic."""

    def take(self, number: int, settled: bool, data: bytes, state: object) -> None:
        """Drop a message."""

    def take_run(self, run: TransferRun, index: int, count: int) -> int:
        """Take nothing."""
        return 0

    def flush(self) -> None:
        """Do nothing."""

    def release(self) -> None:
        """Do nothing."""


_ENDED: Final = EndedTaker()


class IncomingLink:
    """A link from a client. ``most``: the credit that it has at most.

    ``delivery_count``, ``credit``: as the client knows them. ``gathering``: frames of a message that
    is not complete, with its first ``transfer``.
    """

    def __init__(
        self, session: LinkSession, attach: AttachFrame, taker: MessageTaker, most: int = CREDIT
    ) -> None:
        self.session = session
        self.name = attach.name
        self.handle = attach.handle
        self.taker: MessageTaker = taker
        self.most = most
        self.delivery_count = (attach.initial_delivery_count or 0) & MASK
        self.credit = 0
        self.transfer: TransferFrame | None = None
        self.gathering: list[bytes] = []
        self.share: Share | None = None

    # --- credit ---

    def renew_credit(self) -> None:
        """Give credit anew once half of it is used."""
        if self.credit <= self.most // 2:
            self.credit = self.most
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
            if transfer.resume:
                text = "transfers that resume are not supported"
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
        number = self.session.unbounded(first.delivery_id)
        self.taker.take(number, bool(first.settled), payload, first.state)

    def on_transfers(self, run: TransferRun, index: int, count: int) -> int:
        """Take up to ``count`` transfers of a run from ``index`` on; return how many. The next one is
        given to ``on_transfer``, which says what is wrong with it."""
        count = min(count, self.credit)
        if count <= 0 or self.transfer is not None:
            return 0
        if run.largest > self.session.broker.limits.max_message:
            return 0
        taken = self.taker.take_run(run, index, count)
        self.credit -= taken
        self.delivery_count = (self.delivery_count + taken) & MASK
        return taken

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

    def flush(self) -> None:
        """Finish with the messages that came."""
        self.taker.flush()

    def fail(self, error: ConditionError) -> None:
        """End the link for an error of a message that came before."""
        self.session.client.count_error(error)
        self.session.detach(self, error.condition, error.text)

    def release(self) -> None:
        """Release what a link holds that ends."""
        self._drop()
        taker, self.taker = self.taker, _ENDED
        taker.release()

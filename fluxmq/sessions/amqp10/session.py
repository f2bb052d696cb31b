"""A session of AMQP 1.0: its windows, its delivery ids, its links.

Handles and channels of both sides have the same numbers: the client chooses, and the broker, which
begins nothing by itself, answers with the same.

Source: OASIS AMQP 1.0 part 2, sections 2.5 (sessions), 2.6 (links) and 2.7 (performatives).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Any, Final

from fluxmq.auth.remote_rights import UndecidedError
from fluxmq.protocols.amqp091.ledger import Settled
from fluxmq.protocols.amqp10 import conditions
from fluxmq.protocols.amqp10.conditions import (
    ConditionError,
    ConnectionConditionError,
    LinkConditionError,
    SessionConditionError,
)
from fluxmq.protocols.amqp10.frames import accepted_frame
from fluxmq.protocols.amqp10.performatives import (
    RECEIVER,
    SENDER,
    AcceptedState,
    AttachFrame,
    BeginFrame,
    DetachFrame,
    DispositionFrame,
    EndFrame,
    ErrorCondition,
    FlowFrame,
    ReceivedState,
    TransactionalState,
    TransferFrame,
)
from fluxmq.protocols.amqp10.transfer_run import TransferRun
from fluxmq.protocols.amqp10.types import Symbol
from fluxmq.queues.commands import Verb
from fluxmq.sessions.amqp091.ports import AmqpBrokerPort, Range
from fluxmq.sessions.amqp10 import subscriptions, termini
from fluxmq.sessions.amqp10.client import Amqp10Client
from fluxmq.sessions.amqp10.management_links import ResponseLink
from fluxmq.sessions.amqp10.outcomes import PublishOutcomes
from fluxmq.sessions.amqp10.outgoing_window import OutgoingWindow
from fluxmq.sessions.amqp10.receiver_links import OutgoingLink
from fluxmq.sessions.amqp10.sender_links import IncomingLink
from fluxmq.sessions.amqp10.serials import MASK, ahead, widened
from fluxmq.sessions.amqp10.settlements import verb_of
from fluxmq.sessions.amqp10.subscriptions import RecalledSubscription
from fluxmq.sessions.amqp10.transactions import LocalTransaction, transaction_of

WINDOW: Final = 2048
"""Transfers that a client may send before it gets a new window."""
HANDLE_MAX: Final = 255
"""Highest handle of a link: a session has no more than 256 links."""
UNANSWERED_MAX: Final = 65_536
"""Maximum publishes of a session without outcome: beyond it the connection is not read."""

Link = IncomingLink | OutgoingLink | ResponseLink
Linked = Link | RecalledSubscription | AttachFrame | None
"""Use of a handle: a link; a subscription to be closed; an attach that waits for a queue to be
declared; or the client's detach is awaited."""


class SessionState(Enum):
    """Mapped; ended by us, awaiting the client's end; ended."""

    MAPPED = 0
    ENDING = 1
    ENDED = 2


class Amqp10Session:
    """A session. ``links``: by handle.

    ``incoming_window``: transfers that the client may still send, ``next_incoming_id`` the id of the
    next. ``outgoing``: transfers to it. ``paced``: too many publishes have no outcome, which is a
    reason not to read the connection.
    """

    def __init__(
        self,
        client: Amqp10Client,
        channel: int,
        begin: BeginFrame,
        mark: Callable[[Amqp10Session], None],
        gathered: Callable[[IncomingLink], None],
    ) -> None:
        self.client = client
        self.channel = channel
        self.state = SessionState.MAPPED
        self.links: dict[int, Linked] = {}
        self.outcomes = PublishOutcomes()
        self.gathered = gathered
        self._mark = mark
        self.next_incoming_id = begin.next_outgoing_id
        self.incoming_window = WINDOW
        self.outgoing = OutgoingWindow(client, channel, begin.incoming_window)
        self.paced = False
        client.send(channel, BeginFrame(channel, 0, WINDOW, MASK >> 1, HANDLE_MAX))

    @property
    def broker(self) -> AmqpBrokerPort:
        """The shard."""
        return self.client.broker

    def mark(self) -> None:
        """Have the session flushed in this tick."""
        self._mark(self)

    def unbounded(self, delivery: int) -> int:
        """Return an incoming delivery's unbounded id, close to those under way."""
        return widened(delivery, self.next_incoming_id)

    # --- frames ---

    def on_frame(self, body: Any, payload: bytes) -> None:
        """Handle a performative on this session's channel. Raises ConnectionConditionError."""
        if self.state is SessionState.ENDING:
            return
        try:
            if isinstance(body, TransferFrame):
                self._on_transfer(body, payload)
            elif isinstance(body, DispositionFrame):
                self._on_disposition(body)
            elif isinstance(body, FlowFrame):
                self._on_flow(body)
            elif isinstance(body, AttachFrame):
                self._on_attach(body)
            elif isinstance(body, DetachFrame):
                self._on_detach(body)
            else:
                text = f"{type(body).__name__} on a session"
                raise ConnectionConditionError(conditions.ILLEGAL_STATE, text)
        except SessionConditionError as error:
            self.fail(error)
        except UndecidedError as undecided:
            self.client.wait(undecided, partial(self.on_frame, body, payload))

    def fail(self, error: ConditionError) -> None:
        """End the session for an error."""
        self.client.count_error(error)
        self.release()
        self.state = SessionState.ENDING
        self.client.send(self.channel, EndFrame(ErrorCondition(error.condition, error.text)))

    # --- links ---

    def _on_attach(self, attach: AttachFrame) -> None:
        handle = attach.handle
        if handle > HANDLE_MAX:
            text = f"handle {handle}, the maximum is {HANDLE_MAX}"
            raise ConnectionConditionError(conditions.FRAMING_ERROR, text)
        if handle in self.links:
            text = f"handle {handle} is in use"
            raise SessionConditionError(conditions.HANDLE_IN_USE, text)
        try:
            if attach.role == SENDER:
                termini.attach_publisher(self, attach)
            else:
                termini.attach_consumer(self, attach)
        except LinkConditionError as error:
            self.refuse(attach, error)

    def refuse(self, attach: AttachFrame, error: ConditionError) -> None:
        """Answer an attach without the terminus asked for, and detach (2.6.3)."""
        self.client.count_error(error)
        self.links[attach.handle] = None
        self._send_answer(attach)
        self._send_detach(attach.handle, error.condition, error.text)

    def _send_answer(self, attach: AttachFrame) -> None:
        """Answer an attach without a terminus of ours."""
        role = RECEIVER if attach.role == SENDER else SENDER
        count = 0 if role == SENDER else None
        answer = AttachFrame(attach.name, attach.handle, role, initial_delivery_count=count)
        if role == RECEIVER:
            answer.source = attach.source
        else:
            answer.target = attach.target
        self.client.send(self.channel, answer)

    def _send_detach(self, handle: int, condition: Symbol, text: str) -> None:
        error = ErrorCondition(condition, text)
        self.client.send(self.channel, DetachFrame(handle, True, error))

    def detach(self, link: Link, condition: Symbol, text: str) -> None:
        """Detach a link from our side."""
        if self.links.get(link.handle) is not link:
            return
        self._forget(link)
        self.links[link.handle] = None
        self._send_detach(link.handle, condition, text)

    def _forget(self, link: Link) -> None:
        """Release a link, whose unsettled deliveries are requeued."""
        self.outgoing.forget(link)
        if isinstance(link, OutgoingLink):
            termini.consumer_gone(self, link)
        link.release()

    def _on_detach(self, detach: DetachFrame) -> None:
        handle = detach.handle
        if handle not in self.links:
            text = f"detach of handle {handle}, which is not attached"
            raise SessionConditionError(conditions.UNATTACHED_HANDLE, text)
        link = self.links[handle]
        if isinstance(link, OutgoingLink) and not link.attached:
            link.ending = detach  # it follows the answer to the attach
            return
        del self.links[handle]
        if isinstance(link, AttachFrame):
            self._send_answer(link)
        elif isinstance(link, (IncomingLink, OutgoingLink, ResponseLink)):
            if isinstance(link, IncomingLink):
                link.flush()
            self._forget(link)
        if link is None:
            return
        answer = partial(self._detached, DetachFrame(handle, detach.closed))
        if not detach.closed or not subscriptions.ends(self, link, answer):
            answer()

    def _detached(self, answer: DetachFrame) -> None:
        """Answer a detach."""
        if self.state is SessionState.MAPPED:
            self.client.send(self.channel, answer)

    def ended_by_client(self, detach: DetachFrame) -> None:
        """Detach a link whose end the client has asked for before it was attached."""
        self._on_detach(detach)

    # --- incoming transfers ---

    def _on_transfer(self, transfer: TransferFrame, payload: bytes) -> None:
        self._came(1)
        handle = transfer.handle
        link = self.links.get(handle)
        if link is None:
            if handle in self.links:
                return  # it crossed our detach
            text = f"a transfer on handle {handle}, which is not attached"
            raise SessionConditionError(conditions.UNATTACHED_HANDLE, text)
        if not isinstance(link, IncomingLink):
            text = f"a transfer on handle {handle}, of a link to the client"
            raise SessionConditionError(conditions.ERRANT_LINK, text)
        try:
            link.on_transfer(transfer, payload)
        except LinkConditionError as error:
            link.flush()
            link.fail(error)

    def _came(self, count: int) -> None:
        """Count transfers, and renew the client's window. Raises SessionConditionError beyond it."""
        self.incoming_window -= count
        self.next_incoming_id += count
        if self.incoming_window < 0:
            raise SessionConditionError(conditions.WINDOW_VIOLATION, "a transfer without window")
        if self.incoming_window <= WINDOW // 2:
            self.incoming_window = WINDOW
            self.client.send(self.channel, self._flow())

    def on_transfers(self, run: TransferRun, index: int) -> int:
        """Take transfers of a run from ``index`` on; return how many. The next one is given to
        ``on_frame``."""
        link = self.links.get(run.handle)
        if self.state is not SessionState.MAPPED or not isinstance(link, IncomingLink):
            return 0
        taken = link.on_transfers(run, index, min(run.count - index, self.incoming_window))
        if taken:
            self._came(taken)
        return taken

    def published(self, link: IncomingLink) -> None:
        """Renew a link's credit behind what it has published, and slow the client down."""
        if self.outcomes.unanswered > UNANSWERED_MAX and not self.paced:
            self.paced = True
            self.client.pause()
        if self.links.get(link.handle) is link:
            link.renew_credit()

    # --- flow ---

    def _flow(self) -> FlowFrame:
        """Return the session's part of a flow."""
        return FlowFrame(
            self.next_incoming_id & MASK, self.incoming_window, self.outgoing.sent & MASK, MASK >> 1
        )

    def send_flow(
        self,
        handle: int,
        delivery_count: int,
        credit: int,
        available: int | None = None,
        drain: bool = False,
        properties: dict[object, object] | None = None,
    ) -> None:
        """Send a link's flow."""
        flow = self._flow()
        flow.handle = handle
        flow.delivery_count = delivery_count
        flow.link_credit = credit
        flow.available = available
        flow.drain = drain
        flow.properties = properties
        self.client.send(self.channel, flow)

    def _on_flow(self, flow: FlowFrame) -> None:
        ours = self.next_incoming_id
        self.next_incoming_id = max(widened(flow.next_outgoing_id, ours), ours)
        self.outgoing.move(flow)
        if flow.handle is None:
            if flow.echo:
                self.client.send(self.channel, self._flow())
        else:
            link = self.links.get(flow.handle)
            if flow.handle not in self.links:
                text = f"a flow for handle {flow.handle}, which is not attached"
                raise SessionConditionError(conditions.UNATTACHED_HANDLE, text)
            if isinstance(link, (OutgoingLink, ResponseLink)):
                link.on_flow(flow)
            elif isinstance(link, IncomingLink) and flow.echo:
                self.send_flow(link.handle, link.delivery_count, link.credit)
        self.pump()

    # --- deliveries to the client ---

    def pump(self) -> None:
        """Write what waits in the links."""
        for link in list(self.links.values()):
            if isinstance(link, OutgoingLink) and link.waiting:
                link.pump()
                link.adjust()
            elif isinstance(link, ResponseLink):
                link.pump()

    # --- outcomes of deliveries ---

    def _on_disposition(self, disposition: DispositionFrame) -> None:
        if disposition.role == SENDER:
            return  # the client settles what we have settled before
        state = disposition.state
        if not disposition.settled and isinstance(state, (ReceivedState, type(None))):
            return
        outcome = state.outcome if isinstance(state, TransactionalState) else state
        verb, delay = verb_of(outcome, self.broker.now_us())
        newest = self.outgoing.ledger.next_tag - 1
        first = widened(disposition.first, newest)
        last = first if disposition.last is None else widened(disposition.last, newest)
        if ahead(last & MASK, first & MASK) < 0:
            text = f"a disposition from {disposition.first} to {disposition.last}"
            raise SessionConditionError(conditions.INVALID_FIELD, text)
        transaction = None
        if isinstance(state, TransactionalState):
            try:
                transaction = transaction_of(self, state)
            except LinkConditionError as error:
                raise SessionConditionError(error.condition, error.text) from None
        found = self.outgoing.ledger.settle_range(max(first, 1), min(last, newest))
        if transaction is None:
            self._settle(verb, found, delay)
        else:
            self._hold(transaction, verb, found, delay)
        if not disposition.settled and found:
            answer = DispositionFrame(SENDER, disposition.first, disposition.last, True, state)
            self.client.send(self.channel, answer)

    def on_accepted(self, first: int, last: int) -> bool:
        """Settle deliveries as accepted; return False if the session does not take that now."""
        if self.state is not SessionState.MAPPED:
            return False
        newest = self.outgoing.ledger.next_tag - 1
        low, high = widened(first, newest), widened(last, newest)
        self._settle(Verb.ACK, self.outgoing.ledger.settle_range(max(low, 1), min(high, newest)), 0)
        return True

    def _hold(
        self, transaction: LocalTransaction, verb: Verb, found: list[Settled], delay: int
    ) -> None:
        """Have a transaction hold settlements. Raises SessionConditionError when there is no room: they
        are requeued with the links."""
        try:
            for link, first, last in found:
                transaction.settle(link, verb, delay, (first, last))
        except LinkConditionError as error:
            raise SessionConditionError(error.condition, error.text) from None

    def _settle(self, verb: Verb, found: list[Settled], delay: int) -> None:
        """Settle deliveries with their queues."""
        by_link: dict[OutgoingLink, list[Range]] = {}
        count = 0
        for link, first, last in found:
            ranges = by_link.setdefault(link, [])
            if ranges and ranges[-1][1] == first - 1:
                ranges[-1] = (ranges[-1][0], last)
            else:
                ranges.append((first, last))
            count += last - first + 1
        tally = self.client.connection.tally
        if verb is Verb.ACK:
            tally.amqp_acknowledged += count
        elif verb is Verb.REJECT:
            tally.amqp_rejected += count
        else:
            tally.amqp_requeued += count
        for link, ranges in by_link.items():
            link.settle(verb, ranges, delay)

    # --- at the end of a tick ---

    def flush(self) -> None:
        """Send the outcomes of publishes, settle what was sent settled, and drain."""
        if self.state is not SessionState.MAPPED:
            return
        for link in list(self.links.values()):
            if isinstance(link, OutgoingLink):
                link.settle_written()
                link.drain()
        for first, last, state in self.outcomes.take():
            count = last - first + 1
            connection = self.client.connection
            if isinstance(state, AcceptedState):
                connection.tally.amqp_confirmed += count
                connection.append(accepted_frame(self.channel, first & MASK, last & MASK))
            else:
                connection.tally.amqp_nacked += count
                answer = DispositionFrame(RECEIVER, first & MASK, last & MASK, True, state)
                self.client.send(self.channel, answer)
        if self.paced and 2 * self.outcomes.unanswered <= UNANSWERED_MAX:
            self.paced = False
            self.client.resume()

    def consumers(self) -> list[OutgoingLink]:
        """Return the links on which the client consumes."""
        return [link for link in self.links.values() if isinstance(link, OutgoingLink)]

    @property
    def unsettled(self) -> int:
        """Deliveries to the client that are not settled."""
        return self.outgoing.ledger.unsettled

    @property
    def incomplete_bytes(self) -> int:
        """Bytes held of incomplete messages, and of transactions that are not discharged."""
        links = self.links.values()
        messages = sum(link.incomplete_bytes for link in links if isinstance(link, IncomingLink))
        held: int = sum(each.share.bytes for each in self.outcomes.transactions.values())
        return messages + held

    def release(self) -> None:
        """Release the links of a session that ends."""
        for link in list(self.links.values()):
            if isinstance(link, IncomingLink):
                link.flush()
                self._forget(link)
            elif isinstance(link, (OutgoingLink, ResponseLink)):
                self._forget(link)
        self.links.clear()
        self.outgoing.frames.clear()
        if self.paced:
            self.paced = False
            self.client.resume()

"""A pair of links to ``/management``: requests come on one, responses go on the other.

The two have the same name and the property ``paired``; the client gives the second credit.

Source: RabbitMQ 4's management over AMQP 1.0; OASIS AMQP management 1.0 (link pairing).
"""

from __future__ import annotations

from collections import deque
from functools import partial

from fluxmq.auth.logins import AuthResult
from fluxmq.protocols.amqp091.sasl import PLAIN
from fluxmq.protocols.amqp10 import conditions
from fluxmq.protocols.amqp10.conditions import (
    ConditionError,
    LinkConditionError,
    SessionConditionError,
)
from fluxmq.protocols.amqp10.delivery import transfer_frames
from fluxmq.protocols.amqp10.performatives import AttachFrame, FlowFrame
from fluxmq.protocols.amqp10.transfer_run import TransferRun
from fluxmq.sessions.amqp10.client import Amqp10Client
from fluxmq.sessions.amqp10.management import CREDIT, ManagementNode
from fluxmq.sessions.amqp10.outcomes import ACCEPTED
from fluxmq.sessions.amqp10.ports import LinkSession
from fluxmq.sessions.amqp10.receiver_links import LinkCredit
from fluxmq.sessions.amqp10.sender_links import IncomingLink
from fluxmq.sessions.amqp10.serials import MASK


class ResponseLink:
    """The link for responses. ``waiting``: those without credit; there are no more than requests
    under way."""

    def __init__(self, session: LinkSession, attach: AttachFrame) -> None:
        self.session = session
        self.name = attach.name
        self.handle = attach.handle
        self.credit = LinkCredit()
        self.waiting: deque[bytes] = deque()

    def on_flow(self, flow: FlowFrame) -> None:
        """Take the credit of a flow."""
        credit = self.credit
        if flow.link_credit is not None:
            credit.give(flow.delivery_count, flow.link_credit)
        self.pump()
        if flow.drain:
            credit.used(credit.left)
        if flow.drain or flow.echo:
            session = self.session
            session.send_flow(self.handle, credit.count, credit.left, 0, drain=flow.drain)

    def respond(self, message: bytes) -> None:
        """Send a response, once there is credit."""
        self.waiting.append(message)
        self.pump()

    def pump(self) -> None:
        """Send what waits, as credit and window allow."""
        session = self.session
        while self.waiting and self.credit.left and session.outgoing.room() > 0:
            message = self.waiting.popleft()
            number = session.outgoing.give(None, 1, 0) & MASK
            self.credit.used(1)
            frames = transfer_frames(
                *(session.channel, self.handle, number, True, message, session.client.frame_max)
            )
            session.outgoing.send(self, frames, 1, redelivered=False)

    def release(self) -> None:
        """Drop what waits."""
        self.waiting.clear()


class ManagementRequests:
    """The taker of requests."""

    def __init__(self, session: LinkSession, attach: AttachFrame) -> None:
        self.session = session
        renew = partial(_renew, session.client)
        places = session.client.connection.handler.places
        self.management = ManagementNode(session.client, session.broker, renew, places)
        self.link = IncomingLink(session, attach, self, CREDIT)

    def take_run(self, run: TransferRun, index: int, count: int) -> int:
        """Take nothing: requests come one by one."""
        return 0

    def take(self, number: int, settled: bool, data: bytes, state: object) -> None:
        """Execute a request. Raises LinkConditionError for one of a transaction."""
        if state is not None:
            text = "requests with a state are not supported"
            raise LinkConditionError(conditions.NOT_IMPLEMENTED, text)
        session = self.session
        if not settled:
            session.outcomes.expect(1)
            session.outcomes.answer(number, 1, ACCEPTED)
            session.mark()
        self.management.handle(data, self._answer, self._fail)

    def _answer(self, message: bytes) -> None:
        links = self.session.links.values()
        name = self.link.name
        for link in links:
            if isinstance(link, ResponseLink) and link.name == name:
                link.respond(message)
                self.link.renew_credit()
                return
        text = f"a request on link '{name}', which is not paired with one for responses"
        self._fail(LinkConditionError(conditions.PRECONDITION_FAILED, text))

    def _fail(self, error: ConditionError) -> None:
        if isinstance(error, SessionConditionError):
            self.session.fail(error)
        else:
            self.link.fail(error)

    def flush(self) -> None:
        """Do nothing: requests are executed as they come."""

    def release(self) -> None:
        """Forget the requests under way."""
        self.management.close()


def _renew(client: Amqp10Client, token: bytes, done: object) -> None:
    """Renew the login of a user of another backend; a verified password needs no renewal."""
    assert callable(done)
    if client.access.login is None:
        done(True)
        return

    def checked(result: AuthResult) -> None:
        # Nobody becomes another user.
        accepted = result.login is not None and result.username == client.info.user
        if accepted and client.running:
            client.access.login = result.login
            client.reschedule()
        done(accepted)

    client.broker.authenticate(client.info, PLAIN, client.info.user, token, checked)

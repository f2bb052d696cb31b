"""Logins that wait for another backend than the internal one, which the control process asks.

A few are asked about at a time; the others wait, bounded in total and per address, and addresses
take turns: a flood from one address does not hold up others. A login without room, and one that
control cannot be asked about, is answered at once. The last login of each user is remembered for
what outlives its connection: a will.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import Final

from fluxmq.auth.fair_queue import FairQueue
from fluxmq.auth.logins import INTERNAL, BackendLogin
from fluxmq.ipc.login_messages import LOGIN, SECRET_BYTES_MAX, LoginAnswer, LoginQuestion
from fluxmq.ipc.messages import Body, Failure, MessageError
from fluxmq.ipc.topology_client import RequestSender
from fluxmq.settings.schema import AuthSettings
from fluxmq.shards.password_verifications import Login
from fluxmq.shards.rights_decisions import RightsDecisions

ASKED_MAX: Final = 16
"""Logins that control is asked about at a time: less than `conversation.REQUESTS_MAX`, which other
requests share."""
REMEMBERED_MAX: Final = 10_000
"""Users whose last login is remembered, some kilobytes each at most."""
NAME_CHARACTERS_MAX: Final = 256
"""Longest name given to a backend; nobody has a longer one."""

WRONG: Final = LoginAnswer("wrong")
AWAY: Final = LoginAnswer("unavailable")
BUSY: Final = LoginAnswer("busy")


@dataclass(slots=True)
class _PendingLogin:
    """A login, and the backends to ask about it."""

    login: Login
    backends: tuple[str, ...]


class BackendLogins:
    """Lives on the shard's loop. ``now`` returns monotonic seconds; ``answered`` gets each login with
    its answer, at once or later."""

    def __init__(
        self,
        settings: AuthSettings,
        now: Callable[[], float],
        answered: Callable[[Login, LoginAnswer], None],
    ) -> None:
        self._now = now
        self._answered = answered
        self._control: RequestSender | None = None
        self._waiting: FairQueue[_PendingLogin] = FairQueue(0, 0)
        self._running = 0
        self._last: OrderedDict[str, BackendLogin] = OrderedDict()
        self.decisions = RightsDecisions(settings.cache, now)
        self.configure(settings)

    def configure(self, settings: AuthSettings) -> None:
        """Apply new settings."""
        self.decisions.configure(settings.cache)
        self._waiting.most = settings.max_pending_verifications
        self._waiting.most_per_key = settings.max_pending_per_address

    def connect(self, control: RequestSender) -> None:
        """Send requests through this client from now on."""
        self._control = control
        self.decisions.connect(control)

    @property
    def pending(self) -> int:
        """Number of logins that wait or are asked about."""
        return self._running + len(self._waiting)

    def ask(self, login: Login) -> None:
        """Ask about a login the backends that are next in its steps, up to the internal one."""
        backends = tuple(takewhile(lambda name: name != INTERNAL, login.steps))
        login.steps = login.steps[len(backends) :]
        if len(login.username) > NAME_CHARACTERS_MAX or len(login.password) > SECRET_BYTES_MAX:
            self._answered(login, WRONG)
            return
        refused = self._waiting.add(login.address, _PendingLogin(login, backends))
        if refused is not None:
            self._answered(refused.login, BUSY)
        self._go_on()

    def _go_on(self) -> None:
        while self._running < ASKED_MAX and (asked := self._waiting.take()) is not None:
            login = asked.login
            host = login.peer.rpartition(":")[0].strip("[]")
            question = LoginQuestion(login.username, login.password, host[:64], asked.backends)
            self._running += 1
            sent = self._control is not None and self._control.request(
                LOGIN, question.to_body(), partial(self._received, login)
            )
            if not sent:
                self._running -= 1
                self._answered(login, AWAY)

    def _received(self, login: Login, body: Body | Failure) -> None:
        self._running -= 1
        answer = AWAY
        if not isinstance(body, Failure):
            try:
                answer = LoginAnswer.from_body(body)
            except MessageError:
                answer = AWAY  # control is of another version: nobody is let in by mistake
        self._answered(login, answer)
        self._go_on()

    def login(self, answer: LoginAnswer) -> BackendLogin:
        """Return an accepted login, and remember it."""
        made = answer.login(self.decisions, self._now())
        self._last[answer.name] = made
        self._last.move_to_end(answer.name)
        if len(self._last) > REMEMBERED_MAX:
            self._last.popitem(last=False)
        return made

    def last(self, name: str) -> BackendLogin | None:
        """Return the last login of a user, ended or not."""
        return self._last.get(name)

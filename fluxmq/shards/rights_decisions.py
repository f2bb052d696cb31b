"""Permissions that another backend decides by the operation: known answers, and questions under way.

An answer is forgotten after the time of the settings, by halves: the older half of the table is
dropped whenever half of that time has passed, or the newer half is full. The same question is asked
once, however many operations wait for it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from fluxmq.auth.remote_rights import RightsQuestion
from fluxmq.ipc.login_messages import LOGIN_RIGHTS, RightsAsked, RightsDecided
from fluxmq.ipc.messages import Body, Failure, MessageError
from fluxmq.ipc.topology_client import RequestSender
from fluxmq.settings.login_backends import LoginCache

ASKED_MAX: Final = 8
"""Questions that control is asked at a time; the others wait."""
WAITING_MAX: Final = 4096
"""Questions that wait: one for each channel or client that waits. More are answered with no."""
KNOWN_SECONDS_MIN: Final = 10.0
"""Shortest time for which an answer counts, whatever the settings: an operation asks several
questions in turn, and needs all answers."""
REFUSED_SECONDS_MIN: Final = 1.0
"""The same for a refusal, or a question that could not be asked."""

_UNDECIDED: Final = RightsDecided(allowed=False, decided=False)

Callback = Callable[[], None]


class RightsDecisions:
    """Lives on the shard's loop. ``now`` returns monotonic seconds."""

    def __init__(self, cache: LoginCache, now: Callable[[], float]) -> None:
        self._now = now
        self._control: RequestSender | None = None
        self._newer: dict[RightsQuestion, float] = {}
        """Time until which a refusal counts, 0 for permission."""
        self._older: dict[RightsQuestion, float] = {}
        self._turned_at = now()
        self._waiting: deque[RightsQuestion] = deque()
        self._asked: dict[RightsQuestion, list[Callback]] = {}
        self._running = 0
        self.generation = 0
        self.configure(cache)

    def configure(self, cache: LoginCache) -> None:
        """Apply new settings, and forget everything."""
        self._cache = cache
        self._half_seconds = max(cache.success, KNOWN_SECONDS_MIN) / 2
        self._older, self._newer = {}, {}
        self.generation += 1

    def connect(self, control: RequestSender) -> None:
        """Send requests through this client from now on."""
        self._control = control

    @property
    def pending(self) -> int:
        """Number of questions without an answer."""
        return len(self._asked)

    @property
    def next_due(self) -> float:
        """Moment at which something has become old, in monotonic seconds."""
        return self._turned_at + self._half_seconds if self._newer or self._older else math.inf

    def tick(self) -> None:
        """Forget what is old."""
        if self._now() - self._turned_at >= self._half_seconds and (self._newer or self._older):
            self._turn()

    def _turn(self) -> None:
        self._older, self._newer = self._newer, {}
        self._turned_at = self._now()
        self.generation += 1

    def find(self, question: RightsQuestion) -> bool | None:
        """Return the answer to a question; None when it is not known."""
        until = self._newer.get(question)
        if until is None:
            until = self._older.get(question)
        if until is None or (until and until <= self._now()):
            return None
        return not until

    def ask(self, question: RightsQuestion, done: Callback) -> None:
        """Have a question asked; ``done`` is called, at once or later, when `find` knows the
        answer. What cannot be asked is refused."""
        waiting = self._asked.get(question)
        if waiting is not None:
            waiting.append(done)
            return
        if len(self._asked) >= WAITING_MAX:
            self._learn(question, _UNDECIDED)
            done()
            return
        self._asked[question] = [done]
        self._waiting.append(question)
        self._go_on()

    def _go_on(self) -> None:
        while self._running < ASKED_MAX and self._waiting:
            question = self._waiting.popleft()
            self._running += 1
            body = RightsAsked(question).to_body()
            sent = self._control is not None and self._control.request(
                LOGIN_RIGHTS, body, partial(self._answered, question)
            )
            if not sent:
                self._running -= 1
                self._decided(question, _UNDECIDED)

    def _answered(self, question: RightsQuestion, body: Body | Failure) -> None:
        self._running -= 1
        answer = _UNDECIDED
        if not isinstance(body, Failure):
            try:
                answer = RightsDecided.from_body(body)
            except MessageError:
                answer = _UNDECIDED  # nothing is allowed by mistake
        self._decided(question, answer)
        self._go_on()

    def _decided(self, question: RightsQuestion, answer: RightsDecided) -> None:
        self._learn(question, answer)
        for done in self._asked.pop(question):
            done()

    def _learn(self, question: RightsQuestion, answer: RightsDecided) -> None:
        if answer.allowed:
            until = 0.0
        else:
            seconds = self._cache.failure if answer.decided else 0.0
            until = self._now() + max(seconds, REFUSED_SECONDS_MIN)
        if len(self._newer) >= self._cache.entries:
            self._turn()
        self._newer[question] = until

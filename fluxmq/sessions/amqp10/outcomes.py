"""Outcomes of publishes: one per delivery, sent as ranges of delivery ids.

Source: OASIS AMQP 1.0 part 2, section 2.6.12, part 3, section 3.4.
"""

from __future__ import annotations

from typing import Any, Final

from fluxmq.protocols.amqp10.performatives import (
    AcceptedState,
    ErrorCondition,
    RejectedState,
    ReleasedState,
)
from fluxmq.protocols.amqp10.types import Symbol
from fluxmq.sessions.amqp10.refused import rejected_for

ACCEPTED: Final = AcceptedState()
RELEASED: Final = ReleasedState()
REFUSED_MIN: Final = 0x80
"""Outcomes of queues from here on are refusals."""


def rejected(condition: Symbol, text: str, queue: str = "") -> RejectedState:
    """Return the state of a refused publish; ``queue``: the one that refused it, if known."""
    info: dict[object, object] | None = {Symbol("queue"): queue} if queue else None
    return RejectedState(ErrorCondition(condition, text, info))


class PublishOutcomes:
    """Outcomes of a session's deliveries, by unbounded delivery ids. ``unanswered``: deliveries
    whose outcome is not known yet. ``transactions``: those that are not discharged, by id;
    ``declared``: how many there have been."""

    def __init__(self) -> None:
        self.unanswered = 0
        self.transactions: dict[bytes, Any] = {}
        self.declared = 0
        self._fresh: list[tuple[int, int, Any]] = []

    def expect(self, count: int) -> None:
        """Note that deliveries wait for their outcome."""
        self.unanswered += count

    def answer(self, first: int, count: int, state: object) -> None:
        """Note the outcome of awaited deliveries."""
        self.unanswered -= count
        self._fresh.append((first, count, state))

    def take(self) -> list[tuple[int, int, Any]]:
        """Return first and last id and state of each range since the last call, neighbours
        merged."""
        fresh, self._fresh = self._fresh, []
        if len(fresh) > 1:
            fresh.sort(key=_first)
        ranges: list[tuple[int, int, Any]] = []
        for first, count, state in fresh:
            last = ranges[-1] if ranges else None
            if last is not None and last[1] == first - 1 and last[2] == state:
                ranges[-1] = (last[0], first + count - 1, state)
            else:
                ranges.append((first, first + count - 1, state))
        return ranges


def _first(answer: tuple[int, int, Any]) -> int:
    return answer[0]


class PublishConfirmation:
    """Counts the queues that a run of publishes awaits; see
    `fluxmq.sessions.amqp091.ports.PendingConfirm`. ``queue``: the only one that it is for."""

    __slots__ = ("count", "first", "mark", "outcomes", "queue", "reason", "waiting")

    def __init__(
        self, outcomes: PublishOutcomes, first: int, count: int, mark: Any, queue: str
    ) -> None:
        self.outcomes = outcomes
        self.first = first
        self.count = count
        self.mark = mark
        self.queue = queue
        self.waiting = 0
        self.reason = 0

    def hold(self) -> object:
        """Expect one more ``done``."""
        self.waiting += 1
        return self

    def done(self, reason: int = 0) -> object:
        """Note one answer; the greatest reason decides."""
        self.waiting -= 1
        self.reason = max(self.reason, reason)
        if self.waiting == 0:
            state: object = ACCEPTED
            if self.reason >= REFUSED_MIN:
                state = rejected(*rejected_for(self.reason), self.queue)
            self.outcomes.answer(self.first, self.count, state)
            self.mark()
        return None

    def unrouted(self) -> None:
        """Answer that no queue was reached."""
        self.outcomes.answer(self.first, self.count, RELEASED)
        self.mark()

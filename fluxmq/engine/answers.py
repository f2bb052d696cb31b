"""Outcomes of command results."""

from __future__ import annotations

from collections.abc import Callable

from fluxmq.engine.ports import AppendCallback
from fluxmq.model.outcomes import Outcome, QueueOutcome
from fluxmq.queues.results import Code, Result

ResultCallback = Callable[[Result], None]
"""Called with a command's result."""

REFUSED = {
    Code.FULL: Outcome.OVER_LIMIT,
    Code.LIMIT: Outcome.OVER_LIMIT,
    Code.TOO_LARGE: Outcome.OVER_LIMIT,
    Code.NOT_PENDING: Outcome.NOT_PENDING,
    Code.LOST: Outcome.MOVED,
    Code.CLOSED: Outcome.FENCED,
}
"""Outcome by result; any other result is `Outcome.FAILED`."""


def reason_of(result: Result) -> Outcome:
    """Return the outcome of a command's result."""
    return Outcome.OK if result.ok else REFUSED.get(Code(result.code), Outcome.FAILED)


_OUTCOMES = {
    Code.NO_QUEUE: QueueOutcome.NO_QUEUE,
    Code.NO_GROUP: QueueOutcome.NO_QUEUE,
    Code.IN_USE: QueueOutcome.IN_USE,
    Code.NOT_EMPTY: QueueOutcome.NOT_EMPTY,
}


def outcome_of(result: Result) -> QueueOutcome:
    """Return the outcome of a command's result, for requests that name a queue."""
    return (
        QueueOutcome.OK if result.ok else _OUTCOMES.get(Code(result.code), QueueOutcome.UNAVAILABLE)
    )


def answering(done: AppendCallback) -> ResultCallback:
    """Return a callback that gives ``done`` the result's outcome."""

    def applied(result: Result) -> None:
        done(reason_of(result))

    return applied


def worst_of(count: int, done: AppendCallback | None) -> AppendCallback:
    """Return a callback for ``count`` parts; it calls ``done`` once, with the worst outcome of
    all."""
    waiting, worst = count, 0

    def answered(reason: int) -> None:
        nonlocal waiting, worst
        waiting -= 1
        worst = max(worst, reason)
        if not waiting and done is not None:
            done(worst)

    return answered

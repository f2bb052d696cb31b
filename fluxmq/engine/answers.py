"""Translation of command results into what clients receive."""

from __future__ import annotations

from collections.abc import Callable

from fluxmq.engine.ports import FENCED, MOVED, Answer, Outcome
from fluxmq.protocols.mqtt.reasons import Reason
from fluxmq.queues.results import Code, Result

Done = Callable[[Result], None]
"""Called with a command's result."""

REFUSED = {
    Code.FULL: Reason.QUOTA_EXCEEDED,
    Code.LIMIT: Reason.QUOTA_EXCEEDED,
    Code.TOO_LARGE: Reason.QUOTA_EXCEEDED,
    Code.NOT_PENDING: Reason.NO_MATCHING_SUBSCRIBERS,
    Code.LOST: MOVED,
    Code.CLOSED: FENCED,
}
"""Reason code by result; any other result is an implementation specific error."""


def reason_of(result: Result) -> int:
    """Return the MQTT reason code for a command's result; 0 if it took effect."""
    return 0 if result.ok else REFUSED.get(Code(result.code), Reason.IMPLEMENTATION_SPECIFIC_ERROR)


_OUTCOMES = {
    Code.NO_QUEUE: Outcome.NO_QUEUE,
    Code.NO_GROUP: Outcome.NO_QUEUE,
    Code.IN_USE: Outcome.IN_USE,
    Code.NOT_EMPTY: Outcome.NOT_EMPTY,
}


def outcome_of(result: Result) -> Outcome:
    """Return the outcome of a command's result, for requests that name a queue."""
    return Outcome.OK if result.ok else _OUTCOMES.get(Code(result.code), Outcome.UNAVAILABLE)


def answering(done: Answer) -> Done:
    """Return a callback that gives ``done`` the result's reason code."""

    def applied(result: Result) -> None:
        done(reason_of(result))

    return applied


def worst_of(count: int, done: Answer | None) -> Answer:
    """Return a callback for ``count`` parts; it calls ``done`` once, with the worst reason of
    all."""
    waiting, worst = count, 0

    def answered(reason: int) -> None:
        nonlocal waiting, worst
        waiting -= 1
        worst = max(worst, reason)
        if not waiting and done is not None:
            done(worst)

    return answered

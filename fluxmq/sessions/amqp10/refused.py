"""Refusals of the broker as error conditions of AMQP 1.0."""

from __future__ import annotations

from typing import Final

from fluxmq.model.outcomes import Outcome
from fluxmq.protocols.amqp091.constants import ReplyCode
from fluxmq.protocols.amqp091.errors import AmqpError
from fluxmq.protocols.amqp10 import conditions
from fluxmq.protocols.amqp10.conditions import LinkConditionError
from fluxmq.protocols.amqp10.types import Symbol
from fluxmq.routing.topology.refusals import Refusal

_CONDITIONS: Final[dict[int, Symbol]] = {
    ReplyCode.ACCESS_REFUSED: conditions.UNAUTHORIZED_ACCESS,
    ReplyCode.NOT_FOUND: conditions.NOT_FOUND,
    ReplyCode.RESOURCE_LOCKED: conditions.RESOURCE_LOCKED,
    ReplyCode.PRECONDITION_FAILED: conditions.PRECONDITION_FAILED,
    ReplyCode.NOT_ALLOWED: conditions.NOT_ALLOWED,
    ReplyCode.NOT_IMPLEMENTED: conditions.NOT_IMPLEMENTED,
    ReplyCode.RESOURCE_ERROR: conditions.RESOURCE_LIMIT_EXCEEDED,
    ReplyCode.SYNTAX_ERROR: conditions.DECODE_ERROR,
}


def condition_of(code: int) -> Symbol:
    """Return the condition for a code of AMQP 0.9.1, which refusals have."""
    return _CONDITIONS.get(code, conditions.INTERNAL_ERROR)


def link_error(error: AmqpError | Refusal) -> LinkConditionError:
    """Return the error that ends a link for a refusal."""
    return LinkConditionError(condition_of(error.code), error.text)


def rejected_for(outcome: int) -> tuple[Symbol, str]:
    """Return condition and text for an outcome by which a queue refuses a message."""
    reason = outcome & 0xFF
    if reason == Outcome.OVER_LIMIT:
        return conditions.RESOURCE_LIMIT_EXCEEDED, "a queue has reached its maximum length"
    if reason == Outcome.DENIED:
        return conditions.RESOURCE_LOCKED, "a queue belongs to another connection"
    return conditions.INTERNAL_ERROR, "a queue is not available"

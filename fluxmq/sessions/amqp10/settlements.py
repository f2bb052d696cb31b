"""Outcomes of deliveries, as queues settle them.

Source: OASIS AMQP 1.0 part 3, section 3.4 (delivery state), RabbitMQ's delayed redelivery.
"""

from __future__ import annotations

from typing import Final

from fluxmq.protocols.amqp10 import conditions
from fluxmq.protocols.amqp10.conditions import SessionConditionError
from fluxmq.protocols.amqp10.performatives import (
    AcceptedState,
    ModifiedState,
    RejectedState,
    ReleasedState,
)
from fluxmq.protocols.amqp10.types import Symbol
from fluxmq.queues.commands import Verb
from fluxmq.sessions.amqp091.takers import REQUEUE

DELIVERY_TIME: Final = Symbol("x-opt-delivery-time")
"""Annotation of a modified outcome: when to deliver the message again, in ms since the epoch."""
DELAY_MAX: Final = 366 * 86_400 * 1_000_000
"""Longest delay of such a redelivery, a year in µs: a longer one is a confusion of units."""


def verb_of(state: object, now_us: int) -> tuple[Verb, int]:
    """Return how a queue settles a delivery of this outcome, and the delay of its redelivery in µs,
    from RabbitMQ's annotation for it.

    Raises SessionConditionError for a state that is no outcome.
    """
    if isinstance(state, AcceptedState):
        return Verb.ACK, 0
    if isinstance(state, RejectedState):
        return Verb.REJECT, 0
    if state is None or isinstance(state, ReleasedState):
        return Verb.RELEASE, 0
    if isinstance(state, ModifiedState):
        if state.undeliverable_here:
            return Verb.REJECT, 0
        later = (state.message_annotations or {}).get(DELIVERY_TIME)
        if isinstance(later, int):
            return REQUEUE, min(max(int(later) * 1000 - now_us, 0), DELAY_MAX)
        return (REQUEUE if state.delivery_failed else Verb.RELEASE), 0
    text = f"{type(state).__name__} is not supported as the outcome of a delivery"
    raise SessionConditionError(conditions.NOT_IMPLEMENTED, text)

"""What queues refuse, in RabbitMQ's words: for the broker, which finds out, and for the sessions that answer.

Source: RabbitMQ 3.10's behaviour.
"""

from __future__ import annotations

from fluxmq.protocols.amqp091.constants import ReplyCode
from fluxmq.routing.topology.records import QUEUE, Queue
from fluxmq.routing.topology.refusals import Refusal, named, not_found, precondition


def _named(queue: Queue) -> str:
    return named(QUEUE, queue.name, queue.vhost)


def exclusive_use(queue: Queue) -> Refusal:
    """403: it has a consumer that is to be the only one, or others where this one wants to be."""
    return Refusal(ReplyCode.ACCESS_REFUSED, f"{_named(queue)} in exclusive use")


def queue_gone(queue: Queue) -> Refusal:
    """404: it was there a moment ago."""
    return not_found(QUEUE, queue.name, queue.vhost)


def unavailable(queue: Queue, node: str) -> Refusal:
    """404: what holds its messages cannot be reached."""
    kind = "durable " if queue.durable else ""
    return Refusal(
        ReplyCode.NOT_FOUND,
        f"home node '{node}' of {kind}{_named(queue)} is down or inaccessible",
    )


def in_use(queue: Queue) -> Refusal:
    """406: it was to be deleted if unused and has consumers."""
    return precondition(f"{_named(queue)} in use")


def not_empty(queue: Queue) -> Refusal:
    """406: it was to be deleted if empty and has messages."""
    return precondition(f"{_named(queue)} not empty")


def single_active(queue: Queue) -> Refusal:
    """405: basic.get from a quorum queue that has one active consumer at a time."""
    return Refusal(
        ReplyCode.RESOURCE_LOCKED,
        f"cannot obtain access to locked {_named(queue)}. basic.get operations are not supported by quorum queues with "
        "single active consumer",
    )

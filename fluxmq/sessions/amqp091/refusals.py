"""Refusals in RabbitMQ's words, for the broker, which detects them, and the sessions, whose clients
get them as errors.

Source: RabbitMQ 3.10's behaviour.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from fluxmq.model.outcomes import QueueOutcome
from fluxmq.protocols.amqp091.constants import SHORT_STRING_BYTES_MAX, ReplyCode
from fluxmq.protocols.amqp091.errors import AmqpError, HardError, SoftError, error_of
from fluxmq.routing.topology import refusals
from fluxmq.routing.topology.records import QUEUE, QueueRecord
from fluxmq.routing.topology.refusals import Refusal, locked, named, not_found

_CUT: Final = "..."


def error_from(refusal: Refusal) -> AmqpError:
    """Return the error that answers a refusal."""
    return error_of(ReplyCode(refusal.code), refusal.text)


def precondition(text: str) -> SoftError:
    """Return a 406 error."""
    return SoftError(ReplyCode.PRECONDITION_FAILED, text)


def not_implemented(text: str) -> HardError:
    """Return a 540 error."""
    return HardError(ReplyCode.NOT_IMPLEMENTED, text)


def close_text(error: AmqpError) -> str:
    """Return the text of a close method: the code's name and the cause, truncated as RabbitMQ
    does."""
    text = f"{error.code.name} - {error.text}"
    raw = text.encode("utf-8", "replace")
    if len(raw) <= SHORT_STRING_BYTES_MAX:
        return text
    return raw[: SHORT_STRING_BYTES_MAX - len(_CUT)].decode("utf-8", "ignore") + _CUT


def _named(queue: QueueRecord) -> str:
    return named(QUEUE, queue.name, queue.vhost)


def vhost_full(user: str, vhost: str, limit: int) -> str:
    """Return the text of 530 for a connection above the vhost's limit."""
    refused = f"access to vhost '{vhost}' refused for user '{user}'"
    return f"{refused}: connection limit ({limit}) is reached"


def user_full(user: str, limit: int) -> str:
    """Return the text of 530 for a connection above the user's limit."""
    return f"connection refused for user '{user}': user connection limit ({limit}) is reached"


def exclusive_use(queue: QueueRecord) -> Refusal:
    """Return 403: an exclusive consumer exists, or others prevent this exclusive one."""
    return Refusal(ReplyCode.ACCESS_REFUSED, f"{_named(queue)} in exclusive use")


def queue_gone(queue: QueueRecord) -> Refusal:
    """Return 404: the queue existed a moment ago."""
    return not_found(QUEUE, queue.name, queue.vhost)


def unavailable(queue: QueueRecord, node: str) -> Refusal:
    """Return 404: the node with its messages is unreachable."""
    kind = "durable " if queue.durable else ""
    return Refusal(
        ReplyCode.NOT_FOUND,
        f"home node '{node}' of {kind}{_named(queue)} is down or inaccessible",
    )


def in_use(queue: QueueRecord) -> Refusal:
    """Return 406: deletion was conditional on no consumers, and there are some."""
    return refusals.precondition(f"{_named(queue)} in use")


def not_empty(queue: QueueRecord) -> Refusal:
    """Return 406: deletion was conditional on an empty queue, and there are messages."""
    return refusals.precondition(f"{_named(queue)} not empty")


def single_active(queue: QueueRecord) -> Refusal:
    """Return 405: basic.get from a quorum queue with a single active consumer."""
    return Refusal(
        ReplyCode.RESOURCE_LOCKED,
        f"cannot obtain access to locked {_named(queue)}. basic.get operations are not supported by quorum queues with "
        "single active consumer",
    )


def unsuitable(queue: QueueRecord) -> Refusal:
    """Return 406: the consumer does not fit the queue or its consumer group."""
    return refusals.precondition(f"{_named(queue)} cannot be consumed from in this way")


def unreachable(queue: QueueRecord) -> Refusal:
    """Return 541: the queue's group does not answer or has failed."""
    return Refusal(ReplyCode.INTERNAL_ERROR, f"{_named(queue)} cannot be reached now")


_REFUSALS: Final[Mapping[int, Callable[[QueueRecord], Refusal]]] = {
    QueueOutcome.NO_QUEUE: queue_gone,
    QueueOutcome.UNAVAILABLE: unreachable,
    QueueOutcome.REFUSED: unsuitable,
    QueueOutcome.EXCLUSIVE: exclusive_use,
    QueueOutcome.IN_USE: in_use,
    QueueOutcome.NOT_EMPTY: not_empty,
    QueueOutcome.LOCKED: lambda queue: locked(queue.name, queue.vhost),
}


def refusal_of(queue: QueueRecord, outcome: int) -> Refusal:
    """Return the refusal for the engine's outcome of a request about a queue."""
    return _REFUSALS[outcome](queue)

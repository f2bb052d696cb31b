"""Classic queues that become quorum queues: which can, what their arguments are then, and which
declarations a queue that has become one accepts. Pure.

A program that declares its queue as a classic one goes on doing so: the queue says in its arguments
that it was declared as one, and a declaration of a classic queue that would have been equal then is
accepted. RabbitMQ accepts that of every quorum queue, or of none
(``quorum_queue.property_equivalence.relaxed_checks_on_redeclaration``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from fluxmq.routing.topology.arguments import (
    BEFORE_SYNC_KEY,
    CLASSIC,
    QUEUE_TYPE_KEY,
    QUORUM,
    applies_to_type,
)
from fluxmq.routing.topology.mirror_keys import MIRROR_KEYS
from fluxmq.routing.topology.records import ORIGIN_SETTINGS, QueueRecord
from fluxmq.routing.topology.refusals import named, precondition

DECLARED_KEY: Final = "x-fluxmq-declared-type"
"""Type with which clients may go on declaring a queue that has changed its type; our own argument."""
LEFT_OUT: Final = ("x-queue-mode", "x-queue-version", "x-queue-master-locator", BEFORE_SYNC_KEY)
"""Arguments of classic queues that say how a queue is stored, not which messages it keeps: a quorum queue
does without them, as without those that mirror it."""


def as_quorum(queue: QueueRecord) -> QueueRecord:
    """Return a classic queue as a quorum queue. Raises `Refusal` 406 that names all that is in the way."""
    name = named("queue", queue.name, queue.vhost)
    if queue.type != CLASSIC:
        raise precondition(
            f"{name} is of type {queue.type}: only classic queues become quorum queues"
        )
    kept = {
        key: value
        for key, value in queue.arguments.items()
        if key not in LEFT_OUT and key not in MIRROR_KEYS
    }
    problems = [
        what
        for wrong, what in (
            (not queue.durable, "it is not durable"),
            (queue.exclusive, "it is exclusive"),
            (queue.auto_delete, "it is auto-delete"),
            (queue.origin == ORIGIN_SETTINGS, "the settings file says its type"),
        )
        if wrong
    ]
    problems += [
        f"it has the argument '{key}'"
        for key in kept
        if applies_to_type(key, CLASSIC) and not applies_to_type(key, QUORUM)
    ]
    if problems:
        raise precondition(f"{name} cannot become a quorum queue: {', '.join(problems)}")
    return replace(
        queue, type=QUORUM, arguments={**kept, QUEUE_TYPE_KEY: QUORUM, DECLARED_KEY: CLASSIC}
    )


def may_be_called_classic(current: QueueRecord, given: Mapping[str, Any]) -> bool:
    """Return whether a declaration with these arguments is one of a classic queue, for a queue that was
    one."""
    was_classic = current.type == QUORUM and current.arguments.get(DECLARED_KEY) == CLASSIC
    return was_classic and given.get(QUEUE_TYPE_KEY, CLASSIC) == CLASSIC

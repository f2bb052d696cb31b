"""Group of a queue and its change: only by a move that was started, and only once.

The row of a queue names its group and, during a move, the target and the move. Both change here
alone, in the one order that all nodes agree on: so a queue is in one group at any time, whichever
node crashes, and an aborted move cannot be completed. A queue that changes its type does so in the
same step: it is of one type wherever it is.
"""

from __future__ import annotations

from dataclasses import replace

from fluxmq.routing.topology.records import ORIGIN_SETTINGS, QueueRecord
from fluxmq.routing.topology.refusals import named, precondition
from fluxmq.routing.topology.type_changes import as_quorum

VERB = "fluxmqctl migrate-queue"


def begun(
    queue: QueueRecord, source: str, group: str, migration: str, becomes: str = ""
) -> QueueRecord:
    """Return the queue with a move started. Raises `Refusal` 406 when it cannot move, or become what it
    is to become, or moves elsewhere."""
    name = named("queue", queue.name, queue.vhost)
    if becomes:
        as_quorum(queue)
    if not queue.durable or queue.exclusive:
        raise precondition(f"{name} is not durable, and in no replication group")
    if queue.group not in ("", source):
        raise precondition(f"{name} is in the group '{queue.group}', not in '{source}'")
    if source == group:
        raise precondition(f"{name} is in the group '{group}' already")
    if queue.moving_to == group and queue.becomes == becomes:
        return queue
    if queue.moving_to:
        raise precondition(f"{name} is being moved to the group '{queue.moving_to}'")
    return replace(queue, group=source, moving_to=group, migration=migration, becomes=becomes)


def aborted(queue: QueueRecord) -> QueueRecord:
    """Return the queue with its move aborted. Raises `Refusal` 406 when it does not move, or has
    arrived."""
    if not queue.moving_to:
        name = named("queue", queue.name, queue.vhost)
        where = f"; it is in the group '{queue.group}'" if queue.group else ""
        raise precondition(f"{name} is not being moved{where}")
    return replace(queue, moving_to="", migration="", becomes="")


def finished(queue: QueueRecord, migration: str) -> QueueRecord:
    """Return the queue with its move completed, and of the type that it was to become. Raises `Refusal`
    406 unless it is being moved under this name."""
    if not queue.moving_to or queue.migration != migration:
        name = named("queue", queue.name, queue.vhost)
        raise precondition(f"{name} is not being moved any more, or anew")
    arrived = replace(queue, group=queue.moving_to, moving_to="", becomes="")
    return as_quorum(arrived) if queue.becomes else arrived


def where_it_is(current: QueueRecord | None, wanted: QueueRecord) -> QueueRecord:
    """Return a queue of the settings file in its actual group, whatever the file says by now."""
    if current is None or current.origin != ORIGIN_SETTINGS or not current.group:
        return wanted
    return replace(
        wanted,
        group=current.group,
        moving_to=current.moving_to,
        migration=current.migration,
    )


def other_group(queue: QueueRecord, wanted: str) -> str:
    """Return the text for a declaration with another group than the queue's."""
    name = named("queue", queue.name, queue.vhost)
    return (
        f"{name} is in the group '{queue.group}', not in '{wanted}': `{VERB}` moves a queue with its messages"
        " to another group"
    )

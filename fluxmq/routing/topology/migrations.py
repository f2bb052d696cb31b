"""Which group a queue is in, and how that changes: only by a move that was begun, and only once.

The row of a queue says which group holds it and, while it is being moved, where to and under which name. Both are changed
here alone, in the one order that all nodes agree on: so a queue is in one group at any time, whoever crashes, and a move
that was aborted cannot be finished any more.
"""

from __future__ import annotations

from dataclasses import replace

from fluxmq.routing.topology.records import ORIGIN_SETTINGS, Queue
from fluxmq.routing.topology.refusals import named, precondition

VERB = "fluxmqctl migrate-queue"


def begun(queue: Queue, source: str, group: str, migration: str) -> Queue:
    """A queue that is to move. Raises `Refusal` 406 when it cannot, or moves elsewhere."""
    name = named("queue", queue.name, queue.vhost)
    if not queue.durable or queue.exclusive:
        raise precondition(f"{name} is not durable, and in no replication group")
    if queue.group not in ("", source):
        raise precondition(f"{name} is in the group '{queue.group}', not in '{source}'")
    if source == group:
        raise precondition(f"{name} is in the group '{group}' already")
    if queue.moving_to == group:
        return queue
    if queue.moving_to:
        raise precondition(f"{name} is being moved to the group '{queue.moving_to}'")
    return replace(queue, group=source, moving_to=group, migration=migration)


def aborted(queue: Queue) -> Queue:
    """A queue that moves no longer. Raises `Refusal` 406 when it does not move, or has arrived."""
    if not queue.moving_to:
        name = named("queue", queue.name, queue.vhost)
        where = f"; it is in the group '{queue.group}'" if queue.group else ""
        raise precondition(f"{name} is not being moved{where}")
    return replace(queue, moving_to="", migration="")


def finished(queue: Queue, migration: str) -> Queue:
    """A queue that has arrived. Raises `Refusal` 406 unless it is being moved under this name."""
    if not queue.moving_to or queue.migration != migration:
        name = named("queue", queue.name, queue.vhost)
        raise precondition(f"{name} is not being moved any more, or anew")
    return replace(queue, group=queue.moving_to, moving_to="")


def where_it_is(current: Queue | None, wanted: Queue) -> Queue:
    """A queue of the settings file in the group in which it is, whatever the file says by now."""
    if current is None or current.origin != ORIGIN_SETTINGS or not current.group:
        return wanted
    return replace(
        wanted,
        group=current.group,
        moving_to=current.moving_to,
        migration=current.migration,
    )


def other_group(queue: Queue, wanted: str) -> str:
    """What is said to who declares a queue in another group than the one it is in."""
    name = named("queue", queue.name, queue.vhost)
    return (
        f"{name} is in the group '{queue.group}', not in '{wanted}': `{VERB}` moves a queue with its messages"
        " to another group"
    )

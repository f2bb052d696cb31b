"""The number of messages that the queues of a group were ever given."""

from __future__ import annotations

from collections.abc import Iterable

from fluxmq.engine.group import ReplicationGroup
from fluxmq.queues import commands


def appended_messages(group: ReplicationGroup, entries: Iterable[bytes]) -> int:
    """Return it for the queues that are there, with those of ``entries`` that are not applied yet."""
    applied = sum(queue.next_offset for queue in group.machine.queues.values())
    return applied + sum(map(commands.appended, entries))

"""Commands that may take effect before their entry is synced.

Appends, plain claims and acknowledgements change nothing but their queue: if a crash loses them, the
queue is as if they had never been requested, and nobody was answered. All other commands wait for
the sync, above all those that may kill messages: a dead letter in another queue would outlive its
original, whose offset another message then gets, and pass for that message's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from fluxmq.queues.commands import CLAIM, COMMAND, ENTRY, CommandKind, Verb

NO_QUEUE: Final = 0
"""Stands for the queue of a command that has to wait; ids of queues begin at 1."""

_APPEND: Final = int(CommandKind.APPEND)
_CLAIM: Final = int(CommandKind.CLAIM)
_SETTLE: Final = int(CommandKind.SETTLE)
_ACK: Final = int(Verb.ACK)


def only_queue_of(data: bytes, position: int = 0) -> int:
    """Return the id of the queue of a command that need not wait, else `NO_QUEUE`.

    A claim that passes over messages waits: some may have expired.
    """
    kind, _, verb, _, queue_id, _ = COMMAND.unpack_from(data, position)
    if kind == _APPEND or (kind == _SETTLE and verb == _ACK):
        return int(queue_id)
    if kind == _CLAIM:
        _, _, _, _, others = CLAIM.unpack_from(data, position + COMMAND.size)
        return NO_QUEUE if others else int(queue_id)
    return NO_QUEUE


def only_queues_of(entry: bytes) -> Iterator[int]:
    """Yield `only_queue_of` each command of an entry of this program's."""
    position = ENTRY.size
    while position < len(entry):
        yield only_queue_of(entry, position)
        position += COMMAND.unpack_from(entry, position)[3]

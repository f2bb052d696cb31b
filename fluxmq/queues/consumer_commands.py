"""Application of claims and settlements: the commands that consumers cause in every tick."""

from __future__ import annotations

from typing import Final

from fluxmq.queues.commands import (
    CLAIM,
    SETTLE,
    CommandError,
    Verb,
    unpack_others,
    unpack_ranges,
)
from fluxmq.queues.groups import ConsumerGroup
from fluxmq.queues.results import Applied, Code, Result
from fluxmq.queues.states import NOBODYS_GROUP, QueueState

NO_GROUP: Final = Result(Code.NO_GROUP)
_ACK: Final = int(Verb.ACK)


def claim(
    applied: Applied, queue: QueueState, group_id: int, verb: int, data: bytes, body: int, stop: int
) -> Result:
    """Apply a claim command; with `verb` 1 it settles what it gives."""
    holder, cursor, target, count, other_count = CLAIM.unpack_from(data, body)
    body += CLAIM.size
    ranges = unpack_ranges(data, body, stop, count)
    others = unpack_others(data, body + 16 * count, stop, other_count) if other_count else ()
    group = _claimant(queue, group_id)
    if group is None:
        applied.claims.append((queue.id, group_id, False))
        return NO_GROUP
    result, whole = group.claim(
        queue.config,
        applied.time,
        queue.next_offset,
        holder,
        (cursor, target),
        ranges,
        others,
        verb == 1,
    )
    if others:
        applied.woken[queue.id] = None  # some may have died, and must be handed out
    if group_id == NOBODYS_GROUP and whole:
        queue.forget_below(applied, group.cursor)
    applied.claims.append((queue.id, group_id, whole))
    return result


def _claimant(queue: QueueState, group_id: int) -> ConsumerGroup | None:
    """Return the group of a claim; the ownerless group follows the start, and claims only while
    alone."""
    if group_id:
        return queue.groups.get(group_id)
    if queue.is_stream or queue.work_groups():
        return None
    queue.nobodys.cursor = queue.start
    return queue.nobodys


def settle(
    applied: Applied, queue: QueueState, group_id: int, verb: int, data: bytes, body: int, stop: int
) -> Result:
    """Apply a settle command."""
    holder, delay, count, text_bytes = SETTLE.unpack_from(data, body)
    body += SETTLE.size
    ranges = unpack_ranges(data, body, stop, count)
    body += 16 * count
    if body + text_bytes > stop:
        raise CommandError("a reason is longer than its command")
    group = queue.groups.get(group_id)
    if group is None:
        return NO_GROUP
    text = data[body : body + text_bytes] if text_bytes else b""
    if verb == _ACK:
        return group.settle(queue.config, applied.time, verb, holder, ranges, delay, text)
    applied.woken[queue.id] = None
    result = group.settle(queue.config, applied.time, Verb(verb), holder, ranges, delay, text)
    queue.make_room_again(applied)
    return result

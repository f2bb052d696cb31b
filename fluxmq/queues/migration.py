"""Moving a queue to another replication group: the commands, and their effects on a queue.

A moving queue is fenced in its source group and arrives in its target group. Offsets are preserved,
so all state kept by offset (settled, dead, stream positions) carries over unchanged::

    ADOPT     target: begin an arriving queue whose first batch has this offset, or continue it
    IMPORT    target: a stored batch, at its own offset; one that is there already changes nothing
    FENCE     source: take and give nothing any more; consumers' messages become ready again
    INSTALL   target: all other state of the fenced queue; its batches must be there by then
    DECLARE   target: the arriving queue, which must be complete, becomes live
    UNFENCE   source: the move is aborted; the queue goes on

Imported parts carry the move's number, and installed state that of its fence: parts of an earlier
move, or late ones, are recognised and refused. Appends carry identities (`origins`); those applied
before the fence are carried over, so that a retry is not stored again.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import msgpack  # type: ignore[import-untyped]

from fluxmq.model.batch_format import parse
from fluxmq.queues.commands import COMMAND, CommandError, CommandKind
from fluxmq.queues.config import QueueConfig
from fluxmq.queues.groups import TEMPORARY, ConsumerGroup
from fluxmq.queues.moves import QueueMoves
from fluxmq.queues.origins import Origins
from fluxmq.queues.results import Applied, Code, Result
from fluxmq.queues.states import QueueState

EXACT: Final = 2
"""Machine version from which length limits count as `QueueState.exact` says."""
_MIGRATION: Final = struct.Struct("<Q")
_LENGTH: Final = struct.Struct("<I")
CARRIED: Final = frozenset(
    {int(CommandKind.ADOPT), int(CommandKind.IMPORT), int(CommandKind.INSTALL)}
)
"""Commands that the source group's leader sends to the target group."""
WHILE_CLOSED: Final = frozenset(
    {
        *(int(CommandKind.DELETE), int(CommandKind.FENCE), int(CommandKind.UNFENCE)),
        *(int(CommandKind.IMPORT), int(CommandKind.INSTALL)),
    }
)
"""Commands on queues that a fenced or an arriving one accepts."""


def command(kind: int, queue_id: int, body: bytes) -> tuple[bytes, bytes]:
    """Return a command with an encoded body, in pieces."""
    return COMMAND.pack(kind, 1, 0, COMMAND.size + len(body), queue_id, 0), body


def adopt_body(config: QueueConfig, base: int, migration: int) -> bytes:
    """Encode ADOPT: begin a queue with first offset `base`, unless this move has begun it and is
    past that."""
    return _packed([config.pack(), base, migration])


def import_body(migration: int, *batch: bytes | memoryview) -> bytes:
    """Encode IMPORT: a stored batch (its length is a multiple of 8), stamped as in the source
    group, in pieces."""
    return b"".join((_MIGRATION.pack(migration), *batch))


def install_body(
    migration: int, fence: int, queue: QueueState, origins: list[Any], becomes: int = -1
) -> bytes:
    """Encode INSTALL: everything of a fenced queue but its batches, and its group's applied
    appends. ``becomes``: the type that it changes to; its messages' deliveries are then counted
    anew, since none was subject to the limit of that type."""
    return _packed([migration, fence, queue.pack(becomes), origins])


def _packed(body: Any) -> bytes:
    packed: bytes = msgpack.packb(body)
    padded = _LENGTH.pack(len(packed)) + packed
    return padded + bytes(-len(padded) % 8)


# Effects


def is_arriving(queue: QueueState) -> bool:
    """Return whether a queue is still arriving from another group."""
    return queue.move is not None and bool(queue.move.arriving)


def arrives_by(queue: QueueState, number: int) -> bool:
    """Return whether a queue arrives from another group by the move of this number."""
    return queue.move is not None and number > 0 and queue.move.arriving == number


def fenced_at(queue: QueueState) -> int:
    """Return the number of the fence that closes a queue; 0 for one that is not fenced."""
    return 0 if queue.move is None else queue.move.fenced


def refuse(applied: Applied, kind: int, queue_id: int, group_id: int) -> Result:
    """Refuse a command for a closed queue, without effect."""
    if kind in (CommandKind.CLAIM, CommandKind.DEAD_LETTER):
        applied.claims.append((queue_id, group_id, False))
    return Result(Code.CLOSED)


def fence(closed: set[int], applied: Applied, queue: QueueState) -> Result:
    """Close a queue in its source group; the value is the fence's number. Unacked messages become
    ready again. ``closed``: ids of the group's closed queues."""
    if is_arriving(queue):
        return Result(Code.CONFLICT)
    if not queue.closed:
        for group in list(queue.groups.values()):
            _leave_all(applied, queue, group)
        queue.note_members(applied.time)
        queue.make_room_again(applied)
        queue.follow_floors(applied)
        queue.move = queue.move or QueueMoves()
        queue.move.fenced = applied.index
        queue.closed = True
        closed.add(queue.id)
        applied.voided.append(queue.id)
    return Result(Code.OK, fenced_at(queue))


def _leave_all(applied: Applied, queue: QueueState, group: ConsumerGroup) -> None:
    """Remove every consumer of a group."""
    if group.name.startswith(TEMPORARY):
        queue.delete_group(group, applied.time)
        return
    for holder in group.members:
        group.release(queue.config, applied.time, holder)
    if group.members:
        group.idle_since = applied.time
    group.members.clear()
    group.visiting.clear()
    group.timeouts.clear()


def unfence(closed: set[int], applied: Applied, queue: QueueState) -> Result:
    """Open a fenced queue again."""
    if is_arriving(queue):
        return Result(Code.CONFLICT)
    if queue.move is not None and queue.closed:
        queue.move.fenced = 0
        _open(closed, applied, queue)
    return Result(Code.OK)


def _open(closed: set[int], applied: Applied, queue: QueueState) -> None:
    queue.closed = False
    closed.discard(queue.id)
    applied.voided.append(queue.id)
    applied.woken[queue.id] = None


def take_in(applied: Applied, queue: QueueState, data: bytes, body: int) -> Result:
    """Import a batch; the value is the offset that the next one must have."""
    (number,) = _MIGRATION.unpack_from(data, body)
    move = queue.move
    if move is None or not arrives_by(queue, number):
        return Result(Code.CONFLICT)
    batch = parse(data, body + _MIGRATION.size)
    base = batch.base_offset
    if base + batch.count <= queue.next_offset:
        return Result(Code.DUPLICATE, queue.next_offset)
    if base != queue.next_offset:
        return Result(Code.OUT_OF_RANGE, queue.next_offset)
    queue.next_offset = base + batch.count
    move.installed = 0  # the installed state does not include this batch
    applied.batches.append((queue.id, batch))
    return Result(Code.OK, queue.next_offset)


def install(version: int, applied: Applied, queue: QueueState, body: Any) -> Result:
    """Take over the state of the fenced queue. Raises `CommandError` for an invalid one.

    ``version``: of the machine.
    """
    number, fence_number, packed, origins = body
    move = queue.move
    if move is None or not arrives_by(queue, number):
        return Result(Code.CONFLICT)
    if fence_number < move.installed:
        return Result(Code.STALE)
    try:
        known = QueueState.unpack(packed)
        came_with = Origins.unpack(origins)
    except (ValueError, TypeError, IndexError) as error:
        raise CommandError(f"a queue that cannot be installed: {error}") from error
    if known.next_offset != queue.next_offset:
        return Result(Code.OUT_OF_RANGE, queue.next_offset)
    _become(queue, known)
    queue.exact = version >= EXACT
    move.installed = fence_number
    if known.move is not None:
        came_with.add(known.move.came_with)
    move.came_with = came_with
    applied.trims.append((queue.id, queue.kept))
    applied.voided.append(queue.id)
    return Result(Code.OK, queue.next_offset)


def _become(queue: QueueState, known: QueueState) -> None:
    """Take over another queue's state, whose batches are here; keep id and arriving state."""
    queue.configure(known.config)
    queue.identity, queue.idle_since = known.identity, known.idle_since
    queue.start, queue.kept = known.start, known.kept
    queue.log_index, queue.producers = known.log_index, known.producers
    queue.groups, queue.group_ids = known.groups, known.group_ids
    queue.group_changes += 1
    queue.next_group, queue.nobodys = known.next_group, known.nobodys


def activate(closed: set[int], applied: Applied, queue: QueueState) -> bool:
    """Make a complete arriving queue live; return False for an incomplete one."""
    move = queue.move
    if move is None or not move.installed:
        return False
    move.arriving = move.installed = 0
    applied.declared.append(queue.id)
    _open(closed, applied, queue)
    return True

"""The state machine of one replication group: its queues, changed only by committed entries.

An entry carries its time; its effect depends only on the machine's state and the entry's bytes, so
every replica that applied the same entries has the same snapshot, byte for byte. External effects
(batches to write, publishers to answer, segments to trim) are returned as `Applied`, in the order
in which to carry them out.

An entry that cannot be decoded raises `CommandError` and the machine must stop: it was committed,
so its bytes were damaged since or come from a newer program.

Longer than 500 lines because every command is applied here, each in a few lines, and a reader
compares them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

import msgpack  # type: ignore[import-untyped]
from xxhash import xxh3_64_digest, xxh3_64_intdigest

from fluxmq.model.batch_format import BatchError
from fluxmq.model.errors import FluxmqError
from fluxmq.queues import migration
from fluxmq.queues.commands import (
    COMMAND,
    COMMAND_VERSION,
    COMMAND_VERSION_MAX,
    ENTRY,
    ENTRY_VERSION,
    CommandError,
    CommandKind,
    DeadLetterReason,
    Mode,
    StartPosition,
    checked,
    unpack_body,
)
from fluxmq.queues.config import QueueConfig
from fluxmq.queues.consumer_commands import NO_GROUP, claim, settle
from fluxmq.queues.limits import (
    FILTER_BYTES_MAX,
    GROUPS_MAX,
    MEMBERS_MAX,
    NAME_BYTES_MAX,
    QUEUES_MAX,
)
from fluxmq.queues.moves import QueueMoves
from fluxmq.queues.origins import IDENTITY, Identity, Origins
from fluxmq.queues.results import Applied, Code, Result
from fluxmq.queues.states import QueueState
from fluxmq.queues.traffic import GroupTraffic

VERSION: Final = 4
"""Behaviour of the machine; raised by an entry, so that all replicas change at one index. Since 2,
length limits count ready payloads only and also apply to returned messages; since 3 the rolling
hash covers entire entries; 4 is `Origins.wide`."""
RAISED_VERSION: Final = 4
"""Version that leaders raise their groups to: one that the last release knows, whose nodes may be
members beside this one's. A newer `VERSION` is only understood until the next release."""
FIRST_VERSION: Final = 1
"""Version of a new group."""
_WHOLE: Final = 3
_WIDE: Final = 4
SNAPSHOT_VERSION: Final = 4
"""Version 1 lacked visiting members, 2 their timeouts, 3 origins; all are still read."""

# Looking up an enum member costs more than the comparison; these are read in every tick.
_APPEND: Final = int(CommandKind.APPEND)
_CLAIM: Final = int(CommandKind.CLAIM)
_SETTLE: Final = int(CommandKind.SETTLE)
_NEWER: Final = tuple(
    (COMMAND_VERSION_MAX, kind) for kind in (_APPEND, _CLAIM, int(CommandKind.JOIN))
)

_OK: Final = Result(Code.OK)
_NO_QUEUE: Final = Result(Code.NO_QUEUE)
_UNREADABLE: Final = (ValueError, TypeError, IndexError, AssertionError, msgpack.UnpackException)
_ROLLED: Final = struct.Struct("<QQQ")
_RESULT: Final = struct.Struct("<QQ")

Cold = Callable[["Machine", Applied, QueueState, int, Any], Result]
"""Handler of a rare command: takes a queue, group id and body."""


class SnapshotError(FluxmqError):
    """The content is not a valid snapshot."""


class NewerSnapshotError(SnapshotError):
    """A newer program wrote the snapshot."""


class Machine:
    """The queues of one replication group."""

    def __init__(self) -> None:
        self.version = FIRST_VERSION
        self.applied = 0
        """Index of the last entry applied."""
        self.time = 0
        """The latest time of an entry, µs; an entry with an earlier one counts as at this."""
        self.queues: dict[int, QueueState] = {}
        """By id, in order of id."""
        self.changed: set[int] = set()
        """Ids of queues that entries have changed since this set was last cleared."""
        self.closed: set[int] = set()
        """Ids of queues that are being moved, from or to this group."""
        self.traffic = GroupTraffic()
        """Counters for rates, which no entry depends on."""
        self._ids: dict[str, int] = {}
        self._next_queue = 1
        self._hash = 0
        self._origins = Origins()

    def queue(self, name: str) -> QueueState | None:
        """Return the queue of that name."""
        id_ = self._ids.get(name)
        return None if id_ is None else self.queues[id_]

    def state_hash(self) -> int:
        """Return the rolling hash over every entry and result so far, equal on replicas that
        applied the same entries."""
        return self._hash

    # --- applying ----------------------------------------------------------------------------------------------

    def apply(self, index: int, term: int, data: bytes) -> Applied:
        """Apply one committed entry and return its effects.

        Raises `CommandError` when the entry is damaged or of a newer program; the machine must not
        be used any further then.
        """
        if len(data) < ENTRY.size:
            raise CommandError(f"entry {index} is shorter than its header")
        version, time = ENTRY.unpack_from(data)
        if version != ENTRY_VERSION:
            raise CommandError(f"entry {index} is of version {version}")
        self.time = time = max(time, self.time)
        self.applied = index
        applied = Applied(index, term, time)
        touched: dict[int, QueueState] = {}
        try:
            self._commands(applied, data, touched)
        except BatchError as error:
            raise CommandError(f"entry {index} holds a damaged batch: {error}") from error
        except (struct.error, ValueError, TypeError, IndexError) as error:
            raise CommandError(f"entry {index} is damaged: {error}") from error
        for queue_id, queue in touched.items():
            if queue_id in self.queues:
                self.changed.add(queue_id)
                self.traffic.moved.add(queue_id)
                if not queue.closed:
                    queue.follow_floors(applied)
        self._roll(applied, data)
        return applied

    def _commands(self, applied: Applied, data: bytes, touched: dict[int, QueueState]) -> None:
        """Apply an entry's commands in order."""
        results = applied.results
        position, end = ENTRY.size, len(data)
        while position < end:
            if position + COMMAND.size > end:
                raise CommandError("an entry ends inside a command's header")
            kind, version, verb, length, queue_id, group_id = COMMAND.unpack_from(data, position)
            stop = position + length
            known = version == COMMAND_VERSION or (version, kind) in _NEWER
            if not known or length < COMMAND.size or length & 7 or stop > end:
                raise CommandError(f"a command of version {version} and {length} bytes")
            queue = self.queues.get(queue_id)
            body = position + COMMAND.size
            if queue is None or queue.closed or not _APPEND <= kind <= _SETTLE:
                place = (data, body, stop)
                results.append(self._cold(applied, kind, queue_id, group_id, place))
            elif kind == _APPEND:
                queue.spare = group_id
                if version == COMMAND_VERSION:
                    results.append(queue.append(applied, data, body))
                else:
                    results.append(self._append_once(applied, queue, data, body))
                if queue.bounded:
                    queue.give_way(applied)
                    queue.spare = 0
            elif kind == _CLAIM:
                results.append(claim(applied, queue, group_id, verb, data, body, stop))
            else:
                results.append(settle(applied, queue, group_id, verb, data, body, stop))
            if queue is not None:
                touched[queue_id] = queue
            position = stop

    def _append_once(self, applied: Applied, queue: QueueState, data: bytes, body: int) -> Result:
        """Apply an append that may be a retry. One that was refused may be tried again."""
        origin, number, floor = IDENTITY.unpack_from(data, body)
        identity, move = Identity(origin, number, floor), queue.move
        if self._origins.seen(identity) or (move is not None and move.came_with.known(identity)):
            return Result(Code.DUPLICATE)
        result = queue.append(applied, data, body + IDENTITY.size)
        if result.ok:
            self._origins.note(identity)
        return result

    def _roll(self, applied: Applied, data: bytes) -> None:
        """Add an entry and its results to the rolling hash."""
        rolled = _ROLLED.pack(self._hash, applied.index, applied.time)
        if self.version >= _WHOLE:
            rolled += xxh3_64_digest(data)
        for result in applied.results:
            rolled += _RESULT.pack(result.code, result.value)
        self._hash = xxh3_64_intdigest(rolled)

    def _cold(
        self,
        applied: Applied,
        kind: int,
        queue_id: int,
        group_id: int,
        place: tuple[bytes, int, int],
    ) -> Result:
        """Apply a rare command, or one of a missing queue."""
        if kind not in _KINDS:
            raise CommandError(f"a command of kind {kind}")
        if kind == CommandKind.DECLARE:
            return self._declare(applied, QueueConfig.unpack(unpack_body(*place)))
        if kind == CommandKind.RAISE_VERSION:
            return self._raise_version(unpack_body(*place))
        if kind == CommandKind.ADOPT:
            return self._adopt(applied, unpack_body(*place))
        queue = self.queues.get(queue_id)
        if queue is None:
            if kind == CommandKind.CLAIM:
                applied.claims.append((queue_id, group_id, False))
            return _NO_QUEUE
        if queue.closed and kind not in migration.WHILE_CLOSED:
            return migration.refuse(applied, kind, queue_id, group_id)
        if kind == CommandKind.IMPORT:
            return migration.take_in(applied, queue, place[0], place[1])
        return _COLD[kind](self, applied, queue, group_id, unpack_body(*place))

    def _raise_version(self, version: int) -> Result:
        if version > VERSION:
            raise CommandError(f"the group runs version {version}, this program supports {VERSION}")
        if version > self.version:  # otherwise it only serves to wait for earlier entries
            self._behave_as(version)
        return _OK

    def _behave_as(self, version: int) -> None:
        self.version = version
        self._origins.wide = version >= _WIDE
        for queue in self.queues.values():
            queue.exact = version >= migration.EXACT

    # --- queues ------------------------------------------------------------------------------------------------

    def _declare(self, applied: Applied, config: QueueConfig) -> Result:
        existing = self.queue(config.name)
        if existing is not None:
            if existing.config.type != config.type:
                return Result(Code.CONFLICT, existing.id)
            arriving = migration.is_arriving(existing)
            if arriving and not migration.activate(self.closed, applied, existing):
                return Result(Code.CLOSED, existing.id)
            existing.configure(config)
            applied.configured.append(existing.id)
            if existing.idle_since:
                existing.idle_since = applied.time
            applied.woken[existing.id] = None
            return Result(Code.EXISTS, existing.id)
        if len(self.queues) >= QUEUES_MAX:
            return Result(Code.LIMIT)
        id_ = self._make(applied, config).id
        applied.woken[id_] = None
        return Result(Code.OK, id_)

    def _make(self, applied: Applied, config: QueueConfig) -> QueueState:
        """Create a queue whose name is free."""
        id_ = self._next_queue
        self._next_queue += 1
        origin = struct.pack("<QQQ", applied.index, applied.time, id_) + config.name.encode()
        queue = self.queues[id_] = QueueState(id_, config, xxh3_64_intdigest(origin), applied.time)
        queue.exact = self.version >= migration.EXACT
        self._ids[config.name] = id_
        self.changed.add(id_)
        self.traffic.moved.add(id_)
        applied.declared.append(id_)
        return queue

    def _delete(self, applied: Applied, queue: QueueState, group_id: int, body: Any) -> Result:
        ready = queue.ready()
        if body is not None:
            if_unused, if_empty = body
            used = queue.consumers()
            if if_unused and used:
                return Result(Code.IN_USE, used)
            if if_empty and ready:
                return Result(Code.NOT_EMPTY, ready)
        del self.queues[queue.id]
        self.closed.discard(queue.id)
        self.changed.discard(queue.id)
        self.traffic.forget(queue.id)
        del self._ids[queue.name]
        applied.deleted.append((queue.id, queue.name))
        applied.woken.pop(queue.id, None)
        applied.batches = [item for item in applied.batches if item[0] != queue.id]
        applied.trims = [item for item in applied.trims if item[0] != queue.id]
        return Result(
            Code.OK, queue.id if body is None else ready
        )  # without conditions: an old entry

    def _touch(self, applied: Applied, queue: QueueState, group_id: int, body: Any) -> Result:
        if queue.idle_since:
            queue.idle_since = applied.time
            applied.woken[queue.id] = None
        return _OK

    def _purge(self, applied: Applied, queue: QueueState, group_id: int, body: Any) -> Result:
        applied.woken[queue.id] = None
        return Result(Code.OK, queue.purge())

    def _trim(self, applied: Applied, queue: QueueState, group_id: int, body: int) -> Result:
        queue.forget_below(applied, body)
        return Result(Code.OK, queue.start)

    def _sweep(self, applied: Applied, queue: QueueState, group_id: int, body: Any) -> Result:
        """Apply retention by age, and expire unused groups and an unused queue."""
        time = applied.time
        expires_at = queue.expires_at()
        if expires_at is not None and expires_at <= time:
            return self._delete(applied, queue, 0, None)
        if queue.config.group_expires:
            for group in list(queue.groups.values()):
                idle = not group.members and group.idle_since + queue.config.group_expires <= time
                if idle and not group.dead.count:
                    queue.delete_group(group, time)
        queue.give_way(applied)
        applied.woken[queue.id] = None
        return _OK

    # --- moving ------------------------------------------------------------------------------------------------

    def origins(self) -> list[Any]:
        """Return appends that took effect and may be retried, for a queue that moves."""
        return self._origins.pack_latest()

    def _adopt(self, applied: Applied, body: Any) -> Result:
        """Begin or continue an arriving queue; the value is the offset that its next batch must
        have."""
        config, base, number = QueueConfig.unpack(body[0]), body[1], body[2]
        existing = self.queue(config.name)
        if existing is not None:
            if not migration.is_arriving(existing):
                return Result(Code.CONFLICT, existing.id)
            if migration.arrives_by(existing, number) and existing.next_offset >= base:
                return Result(Code.EXISTS, existing.next_offset)
            self._delete(applied, existing, 0, None)
        if len(self.queues) >= QUEUES_MAX or number < 1 or base < 0:
            return Result(Code.LIMIT)
        queue = self._make(applied, config)
        queue.start = queue.kept = queue.next_offset = base
        queue.move, queue.closed = QueueMoves(arriving=number), True
        self.closed.add(queue.id)
        return Result(Code.OK, base)

    # --- groups ------------------------------------------------------------------------------------------------

    def _create_group(
        self, applied: Applied, queue: QueueState, group_id: int, body: Any
    ) -> Result:
        name, mode, filter_, position, offset = body
        existing = queue.group(name)
        if existing is not None:
            same = existing.mode == mode and existing.filter == filter_
            return Result(Code.EXISTS if same else Code.CONFLICT, existing.id)
        if len(queue.groups) >= GROUPS_MAX or len(name.encode()) > NAME_BYTES_MAX:
            return Result(Code.LIMIT)
        if len(filter_) > FILTER_BYTES_MAX:
            return Result(Code.LIMIT)
        start = (StartPosition(position), offset)
        group = queue.create_group(name, Mode(mode), filter_, start, applied.time)
        applied.woken[queue.id] = None
        return Result(Code.OK, group.id)

    def _delete_group(
        self, applied: Applied, queue: QueueState, group_id: int, body: Any
    ) -> Result:
        group = queue.groups.get(group_id)
        if group is None:
            return NO_GROUP
        queue.delete_group(group, applied.time)
        applied.woken[queue.id] = None
        return Result(Code.OK, group_id)

    def _join(self, applied: Applied, queue: QueueState, group_id: int, body: Any) -> Result:
        name, holder, member, visiting, timeout = (*body, False, 0)[:5]
        group = queue.group(name)
        if group is None:
            return NO_GROUP
        if len(group.members) >= MEMBERS_MAX or len(member.encode()) > NAME_BYTES_MAX:
            return Result(Code.LIMIT)
        if holder < 1:
            return Result(Code.OUT_OF_RANGE)
        group.members[holder] = member
        if timeout:
            group.timeouts[holder] = timeout
        if visiting:
            group.visiting.add(holder)
            queue.note_members(applied.time)
        else:
            queue.idle_since = 0
        applied.woken[queue.id] = None
        return _OK

    def _leave(self, applied: Applied, queue: QueueState, group_id: int, body: Any) -> Result:
        name, holder = body
        group = queue.group(name)
        if group is None:
            return NO_GROUP
        if group.members.pop(holder, None) is None:
            return Result(Code.NOT_PENDING)
        group.visiting.discard(holder)
        group.timeouts.pop(holder, None)
        if not group.members:
            group.idle_since = applied.time
        queue.note_members(applied.time)
        applied.woken[queue.id] = None
        released = group.release(queue.config, applied.time, holder)
        queue.make_room_again(applied)
        return Result(Code.OK, released)

    def _seek(self, applied: Applied, queue: QueueState, group_id: int, body: Any) -> Result:
        group = queue.groups.get(group_id)
        if group is None:
            return NO_GROUP
        position, offset = body
        group.seek(queue.resolve((StartPosition(position), offset)))
        applied.moved.append((queue.id, group_id))
        applied.woken[queue.id] = None
        return Result(Code.OK, group.cursor)

    def _commit(self, applied: Applied, queue: QueueState, group_id: int, body: int) -> Result:
        group = queue.groups.get(group_id)
        if group is None or group.mode != Mode.STREAM:
            return NO_GROUP
        if not queue.start <= body <= queue.next_offset:
            return Result(Code.OUT_OF_RANGE, group.cursor)
        group.cursor = max(group.cursor, body)
        return Result(Code.OK, group.cursor)

    def _dead_letter(self, applied: Applied, queue: QueueState, group_id: int, body: Any) -> Result:
        group = queue.groups.get(group_id)
        if group is None:
            applied.claims.append((queue.id, group_id, False))
            return NO_GROUP
        reason, *ranges = body
        result = group.dead_letter(
            queue.config, applied.time, DeadLetterReason(reason), checked(ranges)
        )
        applied.claims.append((queue.id, group_id, result.code == Code.OK))
        applied.woken[queue.id] = None
        return result

    def _dead_lettered(
        self, applied: Applied, queue: QueueState, group_id: int, body: Any
    ) -> Result:
        group = queue.group_at(group_id)
        if group is None:
            return NO_GROUP
        gone = 0
        for first, last in checked(body):
            gone += sum(high - low + 1 for low, high, _ in group.dead.cut(first, last))
        applied.woken[queue.id] = None  # too many dead messages may have kept it from claiming
        return Result(Code.OK, gone)

    # --- snapshots ---------------------------------------------------------------------------------------------

    def snapshot(self) -> bytes:
        """Return all state that later entries depend on; batches are not included."""
        packed: bytes = msgpack.packb(
            [
                *(SNAPSHOT_VERSION, self.version, self.applied, self.time),
                *(self._next_queue, self._hash),
                [queue.pack() for queue in self.queues.values()],
                self._origins.pack(),
            ]
        )
        return packed

    def restore(self, content: bytes) -> None:
        """Restore the state in a snapshot. Raises SnapshotError or NewerSnapshotError, leaving the
        machine unchanged."""
        try:
            version, *fields = msgpack.unpackb(content)
            if type(version) is int and version > SNAPSHOT_VERSION:
                raise NewerSnapshotError(
                    f"a snapshot of version {version}; this program reads {SNAPSHOT_VERSION}"
                )
            if version not in (1, 2, 3, SNAPSHOT_VERSION):
                raise SnapshotError(f"a snapshot of version {version}")
            behaviour, applied, time, next_queue, rolling, packed, *more = fields
            queues = [QueueState.unpack(each) for each in packed]
            origins = Origins.unpack(more[0] if more else [])
        except _UNREADABLE as error:
            raise SnapshotError(f"not a snapshot: {error}") from error
        if behaviour > VERSION:
            raise NewerSnapshotError(
                f"a snapshot of machine version {behaviour}; this program knows {VERSION}"
            )
        self.applied, self.time = applied, time
        self._next_queue, self._hash = next_queue, rolling
        self._origins = origins
        self.queues = {queue.id: queue for queue in queues}
        self._ids = {queue.name: queue.id for queue in queues}
        self.changed = set(self.queues)
        self.traffic.moved = set(self.queues)
        self.closed = {queue.id for queue in queues if queue.closed}
        self._behave_as(behaviour)


_COLD: Final[dict[int, Cold]] = {
    CommandKind.DELETE: Machine._delete,
    CommandKind.PURGE: Machine._purge,
    CommandKind.CREATE_GROUP: Machine._create_group,
    CommandKind.DELETE_GROUP: Machine._delete_group,
    CommandKind.JOIN: Machine._join,
    CommandKind.LEAVE: Machine._leave,
    CommandKind.SEEK: Machine._seek,
    CommandKind.COMMIT: Machine._commit,
    CommandKind.DEAD_LETTER: Machine._dead_letter,
    CommandKind.DEAD_LETTERED: Machine._dead_lettered,
    CommandKind.SWEEP: Machine._sweep,
    CommandKind.TRIM: Machine._trim,
    CommandKind.TOUCH: Machine._touch,
    CommandKind.FENCE: lambda machine, applied, queue, _group, _body: migration.fence(
        machine.closed, applied, queue
    ),
    CommandKind.UNFENCE: lambda machine, applied, queue, _group, _body: migration.unfence(
        machine.closed, applied, queue
    ),
    CommandKind.INSTALL: lambda machine, applied, queue, _group, body: migration.install(
        machine.version, applied, queue, body
    ),
}
_KINDS: Final = frozenset(CommandKind)

"""One queue as every replica knows it: the bounds of its log, its limits, its groups.

``start`` is the first offset for all readers. A work queue's start follows the lowest floor of its
work groups; without a group it stays, so that a queue filled before its first consumer came is not
emptied. Retention, purge and dropping move it too. ``kept`` is what the segments must keep: it does
not pass a dead message whose dead-letter append is not committed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from xxhash import xxh3_64_intdigest

from fluxmq.model.batch_format import PRODUCER, Batch, parse
from fluxmq.model.message_batch import build_message
from fluxmq.queues.commands import Mode, Start, StartPosition
from fluxmq.queues.config import Overflow, QueueConfig, QueueType
from fluxmq.queues.groups import ConsumerGroup
from fluxmq.queues.log_index import LogIndex
from fluxmq.queues.moves import QueueMoves
from fluxmq.queues.producers import Producers, identities
from fluxmq.queues.results import Applied, Code, Result

NOBODYS_GROUP: Final = 0
"""Id of the group that stands for the queue itself while it has no work group."""

# Looking up an enum member costs more than the comparison; these are read in every tick.
_OK: Final = int(Code.OK)
_WORK: Final = int(Mode.WORK)
_STREAM: Final = int(QueueType.STREAM)
_DROP_HEAD: Final = int(Overflow.DROP_HEAD)
_TOO_LARGE: Final = Result(Code.TOO_LARGE)
_FULL: Final = Result(Code.FULL)


def _least(*limits: int) -> int:
    """Return the smallest limit, where 0 means none."""
    given = [limit for limit in limits if limit]
    return min(given) if given else 0


class QueueState:
    """State of one queue; only the machine changes it."""

    __slots__ = (
        "bounded",
        "closed",
        "config",
        "exact",
        "group_changes",
        "group_ids",
        "groups",
        "id",
        "identity",
        "idle_since",
        "kept",
        "length_limited",
        "length_max",
        "log_index",
        "move",
        "next_group",
        "next_offset",
        "nobodys",
        "producers",
        "spare",
        "start",
    )

    def __init__(self, id_: int, config: QueueConfig, identity: int, time: int) -> None:
        self.id = id_
        self.configure(config)
        self.identity = identity
        """A 64-bit id, different even for a later queue of the same name; the root of its transfer
        ids."""
        self.exact = False
        """True when length limits count only bytes of ready messages and also apply to returned
        ones (the machine's version 2)."""
        self.spare = 0
        """Messages that consumers wait for, as the leader saw it; set while an append is
        applied."""
        self.start = 0
        self.kept = 0
        self.next_offset = 0
        self.log_index = LogIndex()
        self.producers = Producers()
        self.groups: dict[int, ConsumerGroup] = {}
        """By id, in order of id."""
        self.group_ids: dict[str, int] = {}
        self.group_changes = 0
        """Counter of group additions and removals in this object's life, to invalidate caches."""
        self.next_group = 1
        self.nobodys = ConsumerGroup(NOBODYS_GROUP, "", Mode.WORK, b"", 0)
        self.idle_since = time
        """Time since which it has no consumer, µs; 0 while it has one."""
        self.move: QueueMoves | None = None
        """State of its moves between groups, if it ever moved."""
        self.closed = False
        """True while it is fenced or arriving, and so takes and gives nothing."""

    def configure(self, config: QueueConfig) -> None:
        """Set the configuration; `bounded` is true when a limit may drop messages."""
        self.config = config
        self.length_limited = bool(config.keeps_none or config.max_length)
        """True when ready messages are limited, to `length_max`; that may be 0."""
        self.length_max = 0 if config.keeps_none else config.max_length
        self.bounded = bool(
            (self.length_limited or config.max_length_bytes)
            or (config.retention_messages or config.retention_bytes or config.retention_age)
        )

    @property
    def name(self) -> str:
        """The queue's name."""
        return self.config.name

    @property
    def is_stream(self) -> bool:
        """True for a stream, which keeps messages that were read."""
        return self.config.type == _STREAM

    @property
    def size(self) -> int:
        """Bytes of the batches from the start on, as precise as the marks."""
        return self.log_index.bytes_from(self.start) if self.next_offset > self.start else 0

    @property
    def depth(self) -> int:
        """Messages that the slowest group has not settled; without groups, all of them."""
        depth = -1
        end = self.next_offset
        for group in self.groups.values():
            if group.mode == _WORK:
                depth = max(depth, end - group.cursor + group.pending.count)
        return depth if depth >= 0 else end - self.start

    def ready(self) -> int:
        """Return the ready messages of the group that has most; without a work group, all
        messages."""
        if self.owns_itself() or self.is_stream:
            return self.next_offset - self.start
        return max(group.ready(self.next_offset) for group in self.work_groups())

    def consumers(self) -> int:
        """Return how many consumers keep the queue in use."""
        return sum(group.consumers for group in self.groups.values())

    def primary_progress(self) -> int:
        """Return the offset that a stream's primary group has reached; -1 without a primary
        group."""
        if not self.is_stream or not self.config.primary_group:
            return -1
        primary = self.group(self.config.primary_group)
        return self.start if primary is None else max(self.start, primary.cursor)

    def group(self, name: str) -> ConsumerGroup | None:
        """Return the group of that whole name."""
        id_ = self.group_ids.get(name)
        return None if id_ is None else self.groups[id_]

    def group_at(self, id_: int) -> ConsumerGroup | None:
        """Return the group of that id; 0 is the ownerless one."""
        return self.groups.get(id_) if id_ else self.nobodys

    def work_groups(self) -> list[ConsumerGroup]:
        """Return groups that settle message by message, by id."""
        return [group for group in self.groups.values() if group.mode == Mode.WORK]

    def owns_itself(self) -> bool:
        """Return whether this is a work queue without a work group."""
        if self.is_stream:
            return False
        return not self.groups or not self.work_groups()

    def owners(self) -> list[ConsumerGroup]:
        """Return the groups whose messages expire and are dropped: the work groups, else the
        ownerless one."""
        if self.is_stream:
            return []
        return self.work_groups() or [self.nobodys]

    def transfer_producer(self, group: ConsumerGroup) -> int:
        """Return the producer number of a group's dead-letter transfers; with the offset as
        sequence it identifies a message."""
        name = self.identity.to_bytes(8, "little") + group.name.encode()
        return xxh3_64_intdigest(name) or 1

    # --- appending ---------------------------------------------------------------------------------------------

    def append(self, applied: Applied, data: bytes, position: int) -> Result:
        """Apply an append command whose batch begins at `position`."""
        batch = parse(data, position)
        config = self.config
        if batch.payload_bytes > config.max_message_size:
            for index in range(batch.count):
                if batch.payload_length(index) > config.max_message_size:
                    return _TOO_LARGE
        if batch.flags & PRODUCER and config.deduplication_window:
            return self._append_once(applied, batch)
        if not self._has_room(batch.count, self._counted(batch)):
            return _FULL
        return self._store(applied, batch)

    def _append_once(self, applied: Applied, batch: Batch) -> Result:
        """Append only the messages that are not duplicates."""
        messages = identities(batch)
        fresh = self.producers.fresh(messages)
        if not fresh:
            return Result(Code.DUPLICATE)
        if not self._has_room(len(fresh), self._counted(batch)):
            return _FULL
        self.producers.remember(
            [messages[index] for index in fresh],
            self.config.deduplication_window,
            self.config.deduplication_producers,
        )
        if len(fresh) == batch.count:
            return self._store(applied, batch)
        base = self.next_offset
        for index in fresh:
            alone = build_message(
                batch.key(index),
                batch.properties(index),
                batch.payload(index),
                batch.time(index),
                batch.expiry(index),
                batch.delay(index),
                batch.attributes(index),
                *messages[index],
            )
            self._store(applied, parse(alone))
        return Result(Code.OK, base)

    def _has_room(self, count: int, size: int) -> bool:
        """Return whether limits that refuse a publish allow `count` more messages."""
        config = self.config
        if self.is_stream:
            return True
        if config.max_depth and self.depth + count > config.max_depth:
            return False
        if config.overflow == _DROP_HEAD:
            return True
        if self.length_limited:
            for group in self.owners():
                if self._ready(group) + count > self.length_max + self.spare:
                    return False
        if not config.max_length_bytes:
            return True
        if self.exact:
            return all(
                self._ready(group) + count <= self.spare
                or self._ready_bytes(group) + size <= config.max_length_bytes
                for group in self.owners()
            )
        return self.size + size <= config.max_length_bytes

    @property
    def _by_message(self) -> bool:
        """True when marks are per message and count payload bytes, as a byte limit on ready
        messages needs."""
        return self.exact and bool(self.config.max_length_bytes) and not self.is_stream

    def _counted(self, batch: Batch) -> int:
        """Return the bytes of a batch, as a length limit counts them."""
        return batch.payload_bytes if self._by_message else batch.length

    def _first_ready(self, group: ConsumerGroup) -> int:
        """Return the first offset that was never given."""
        return self.start if group.id == NOBODYS_GROUP else group.cursor

    def _ready_bytes(self, group: ConsumerGroup) -> int:
        """Return the bytes of a group's ready messages, too many by at most one mark's distance."""
        log_index, end = self.log_index, self.next_offset
        used = log_index.end_bytes - log_index.bytes_before(self._first_ready(group), end)
        for first, last in group.waiting():
            used += log_index.bytes_before(last + 1, end) - log_index.bytes_before(first, end)
        return used

    def _over_bytes(self, group: ConsumerGroup) -> int:
        """Return how many of the oldest ready messages must go to satisfy the byte limit."""
        log_index, end = self.log_index, self.next_offset
        over = self._ready_bytes(group) - self.config.max_length_bytes
        count = 0
        if over <= 0:
            return 0
        for first, last in group.waiting():
            stop = min(log_index.reach(first, over, end), last + 1)
            over -= log_index.bytes_before(stop, end) - log_index.bytes_before(first, end)
            count += stop - first
            if over <= 0:
                return count
        first = self._first_ready(group)
        return count + log_index.reach(first, over, end) - first

    def _ready(self, group: ConsumerGroup) -> int:
        if group.id == NOBODYS_GROUP:
            return self.next_offset - self.start
        return group.ready(self.next_offset)

    def _store(self, applied: Applied, batch: Batch) -> Result:
        """Store a batch at the end of the log."""
        base = self.next_offset
        batch.stamp(base, applied.time, applied.term)
        self.next_offset = base + batch.count
        if self._by_message:
            for index in range(batch.count):
                self.log_index.append(base + index, batch.payload_length(index), batch.time(index))
        else:
            self.log_index.append(base, batch.length, batch.last_time)
        applied.batches.append((self.id, batch))
        applied.woken[self.id] = None
        return Result(_OK, base)

    # --- giving way --------------------------------------------------------------------------------------------

    def give_way(self, applied: Applied) -> None:
        """Drop messages beyond the limits of length and retention, after appends."""
        config = self.config
        if not self.is_stream and config.overflow == Overflow.DROP_HEAD:
            if self.length_limited or config.max_length_bytes:
                self._drop_head(applied)
            messages, size = config.retention_messages, config.retention_bytes
        else:
            messages = _least(config.retention_messages, config.max_length if self.is_stream else 0)
            size = _least(config.retention_bytes, config.max_length_bytes if self.is_stream else 0)
        cut = self.start
        if messages:
            cut = max(cut, self.next_offset - messages)
        if size and self.size > size:
            cut = max(cut, self.log_index.at_most(size, self.next_offset))
        if config.retention_age:
            oldest = applied.time - config.retention_age
            cut = max(cut, self.log_index.older_than(oldest, self.next_offset))
        if cut > self.start:
            self.forget_below(applied, cut)

    def is_too_long(self) -> bool:
        """Return whether ready messages exceed a length limit whose overflow drops the oldest."""
        config = self.config
        if self.is_stream or config.overflow != _DROP_HEAD:
            return False
        return any(
            (self.length_limited and self._ready(group) > self.length_max)
            or (config.max_length_bytes and self._over_bytes(group) > 0)
            for group in self.owners()
        )

    def make_room_again(self, applied: Applied) -> None:
        """Drop messages beyond the limits, after messages were returned."""
        if self.exact and self.bounded:
            self.give_way(applied)

    def _drop_head(self, applied: Applied) -> None:
        """Drop the oldest ready messages beyond the maximum length, dead-lettering if
        configured."""
        config = self.config
        target = 0
        by_bytes = bool(config.max_length_bytes)
        if by_bytes and not self.exact and self.size > config.max_length_bytes:
            target = self.log_index.at_most(config.max_length_bytes, self.next_offset)
        for group in self.owners():
            if group.id == NOBODYS_GROUP:
                group.cursor = self.start
            ready = group.ready(self.next_offset)
            over = ready - self.length_max - self.spare if self.length_limited else 0
            if by_bytes and self.exact and ready > self.spare:
                over = max(over, self._over_bytes(group))
            if over > 0 or target > group.cursor:
                group.drop_ready(config, applied.time, over, target)
                applied.woken[self.id] = None
            if group.id == NOBODYS_GROUP:
                self.forget_below(applied, group.cursor)

    def forget_below(self, applied: Applied, start: int) -> None:
        """Begin the log at `start`, even if groups need something below."""
        self.start = min(max(self.start, start), self.next_offset)
        for group in self.groups.values():
            if group.forget_below(self.start):
                applied.woken[self.id] = None

    def purge(self) -> int:
        """Drop everything ready in every group; return the most that any group had ready."""
        dropped = [group.purge(self.next_offset) for group in self.groups.values()]
        if self.is_stream or not self.work_groups():
            dropped.append(self.next_offset - self.start)
            self.start = self.next_offset
        return max(dropped)

    def follow_floors(self, applied: Applied) -> None:
        """Move the start up to what groups still need, after an entry, and record what segments may
        drop."""
        groups = self.groups
        if groups and not self.is_stream:
            lowest = -1
            for group in groups.values():
                if group.mode == _WORK:
                    floor = group.floor
                    if floor < lowest or lowest < 0:
                        lowest = floor
            if lowest > self.start:
                self.start = lowest
                for group in groups.values():
                    if group.cursor < lowest:
                        group.forget_below(lowest)
        kept = self.start
        for group in (self.nobodys, *groups.values()):
            first = group.dead.first if group.dead.count else None
            if first is not None and first < kept:
                kept = first
        if kept > self.kept:
            self.kept = kept
            self.log_index.trim(kept)
            applied.trims.append((self.id, kept))

    # --- groups ------------------------------------------------------------------------------------------------

    def resolve(self, start: Start) -> int:
        """Return the offset of a starting position, within the log's bounds."""
        position, offset = start
        if position == StartPosition.FIRST:
            return self.start
        if position == StartPosition.LAST:
            return max(self.start, self.next_offset - 1)
        if position == StartPosition.NEXT:
            return self.next_offset
        return min(max(self.start, offset), self.next_offset)

    def create_group(
        self, name: str, mode: int, filter_: bytes, start: Start, time: int
    ) -> ConsumerGroup:
        """Create a group; the name is free."""
        group = ConsumerGroup(self.next_group, name, mode, filter_, self.resolve(start))
        group.idle_since = time
        self.next_group += 1
        self.groups[group.id] = group
        self.group_ids[name] = group.id
        self.group_changes += 1
        return group

    def delete_group(self, group: ConsumerGroup, time: int) -> None:
        """Delete a group with its claims and dead messages; release what the queue kept for it."""
        del self.groups[group.id]
        del self.group_ids[group.name]
        self.group_changes += 1
        self.note_members(time)

    def note_members(self, time: int) -> None:
        """Note since when the queue is unused, after members came or went."""
        if self.consumers():
            self.idle_since = 0
        elif not self.idle_since:
            self.idle_since = time

    def expires_at(self) -> int | None:
        """Return when the queue expires for lack of use; None while it does not."""
        if not self.config.expires or not self.idle_since:
            return None
        return self.idle_since + self.config.expires

    # --- snapshots ---------------------------------------------------------------------------------------------

    def pack(self, becomes: int = -1) -> list[Any]:
        """Return plain values for msgpack; for a queue that becomes one of another type, those of that."""
        changes = becomes >= 0
        config = replace(self.config, type=becomes) if changes else self.config
        return [
            *(self.id, config.pack(), self.identity, self.start, self.kept, self.next_offset),
            *(self.next_group, self.idle_since, self.log_index.pack(), self.producers.pack()),
            self.nobodys.pack(changes),
            [group.pack(changes) for group in self.groups.values()],
            *([] if self.move is None else [self.move.pack()]),
        ]

    @staticmethod
    def unpack(packed: list[Any]) -> QueueState:
        """Decode the result of `pack`."""
        id_, config, identity, start, kept, next_offset, next_group, idle_since, *rest = packed
        queue = QueueState(id_, QueueConfig.unpack(config), identity, idle_since)
        queue.start, queue.kept, queue.next_offset = start, kept, next_offset
        queue.next_group = next_group
        log_index, producers, nobodys, groups, *move = rest
        queue.log_index = LogIndex.unpack(log_index)
        queue.producers = Producers.unpack(producers)
        queue.nobodys = ConsumerGroup.unpack(nobodys)
        for each in groups:
            group = ConsumerGroup.unpack(each)
            queue.groups[group.id] = group
            queue.group_ids[group.name] = group.id
        if move:
            queue.move = QueueMoves.unpack(move[0])
            queue.closed = queue.move.closed
        return queue

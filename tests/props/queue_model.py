"""What a queue is meant to do, message by message: lists and dictionaries, no ranges, nothing shared with the code.

Every message of every group has one entry or none: a claim or a wait in ``pending``, a death in
``dead``; below the cursor without an entry it is settled. Slow and plain on purpose.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

GRANULE = 100_000
OK, DUPLICATE, FULL, NO_GROUP, NOT_PENDING, STALE = 0, 2, 16, 19, 20, 21
ACK, NACK, REJECT, RELEASE = 1, 2, 3, 4
REJECTED, EXPIRED, LIMIT, RETRIES, LENGTH = 1, 2, 3, 4, 5

Ranges = list[tuple[int, int]]


@dataclass(frozen=True)
class Rules:
    """What a model queue is told to be."""

    max_depth: int = 0
    max_length: int = 0
    reject_publish: bool = False
    retention_messages: int = 0
    retention_age: int = 0
    max_retries: int = 10
    backoff: int = 5_000_000
    dead_letter: bool = False
    visibility: int = 30_000_000
    delivery_limit: int = 0


@dataclass(frozen=True)
class Message:
    """One pending or dead message of one group."""

    holder: int
    due: int
    attempts: int
    reason: int = 0


@dataclass
class ModelGroup:
    """One work group."""

    cursor: int
    members: set[int] = field(default_factory=set)
    pending: dict[int, Message] = field(default_factory=dict)
    dead: dict[int, Message] = field(default_factory=dict)

    @property
    def floor(self) -> int:
        return min(self.pending, default=self.cursor)


class ModelQueue:
    """One work queue."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.times: list[int] = []  # of every message ever stored
        self.start = 0
        self.kept = 0
        self.groups: dict[int, ModelGroup] = {}
        self.nobodys = ModelGroup(0)
        self.made = 0
        self.seen: set[tuple[int, int]] = set()

    @property
    def end(self) -> int:
        return len(self.times)

    def group_at(self, id_: int) -> ModelGroup | None:
        return self.groups.get(id_)

    # --- appends ---------------------------------------------------------------------------------------------------

    def append(self, now: int, identities: list[tuple[int, int]]) -> tuple[int, int]:
        fresh = []
        for identity in identities:
            if not identity[0] or (identity not in self.seen and identity not in fresh):
                fresh.append(identity)
        if not fresh:
            return DUPLICATE, 0
        if not self._room(len(fresh)):
            return FULL, 0
        base = self.end
        self.seen |= {identity for identity in fresh if identity[0]}
        self.times += [now] * len(fresh)
        return OK, base

    def _room(self, count: int) -> bool:
        rules = self.rules
        owners = list(self.groups.values())
        unsettled = [self.end - each.cursor + len(each.pending) for each in owners]
        ready = [self._ready(each) for each in owners]
        if not owners:
            unsettled = ready = [self.end - self.start]
        if rules.max_depth and max(unsettled) + count > rules.max_depth:
            return False
        return not (
            rules.reject_publish and rules.max_length and max(ready) + count > rules.max_length
        )

    def _ready(self, group: ModelGroup) -> int:
        waiting = [each for each in group.pending.values() if each.holder == 0]
        return self.end - group.cursor + len(waiting)

    def give_way(self, now: int) -> None:
        rules = self.rules
        if rules.max_length and not rules.reject_publish:
            owners = list(self.groups.values())
            if not owners:
                self.nobodys.cursor = self.start
                owners = [self.nobodys]
            for group in owners:
                while self._ready(group) > rules.max_length:
                    waiting = sorted(o for o, each in group.pending.items() if each.holder == 0)
                    if waiting:
                        self._die(group, now, waiting[0], group.pending.pop(waiting[0]), LENGTH)
                    else:
                        self._die(group, now, group.cursor, Message(0, 0, 0), LENGTH)
                        group.cursor += 1
            if not self.groups:
                self.forget_below(self.nobodys.cursor)
        if rules.retention_messages:
            self.forget_below(self.end - rules.retention_messages)
        if rules.retention_age:
            cut = self.start
            while cut < self.end and self.times[cut] <= now - rules.retention_age:
                cut += 1
            self.forget_below(cut)

    def forget_below(self, start: int) -> None:
        self.start = min(max(start, self.start), self.end)
        for group in self.groups.values():
            group.pending = {o: each for o, each in group.pending.items() if o >= self.start}
            group.cursor = max(group.cursor, self.start)

    def after_entry(self) -> None:
        if self.groups:
            self.start = max(self.start, min(each.floor for each in self.groups.values()))
        dead = [o for each in (self.nobodys, *self.groups.values()) for o in each.dead]
        self.kept = max(self.kept, min([self.start, *dead]))

    # --- groups ----------------------------------------------------------------------------------------------------

    def create_group(self) -> tuple[int, int]:
        self.made += 1
        self.groups[self.made] = ModelGroup(self.start)
        return OK, self.made

    def claim(
        self,
        now: int,
        id_: int,
        holder: int,
        cursor: int,
        target: int,
        ranges: Ranges,
        others: list[tuple[int, int, int]],
        automatic: bool = False,
    ) -> tuple[int, int]:
        group = self.group_at(id_)
        if group is None:
            return NO_GROUP, 0
        listed = [o for first, last in ranges for o in range(first, last + 1)]
        later = {o: when for first, last, when in others for o in range(first, last + 1)}
        if ranges and holder not in group.members:
            return STALE, 0
        if group.cursor < cursor or target < cursor or target > self.end:
            return STALE, 0
        low = group.cursor
        new = [o for o in [*listed, *later] if max(low, cursor) <= o]
        if len(set(new)) != len(new) or max(new, default=-1) >= target:
            return STALE, 0
        claimed = 0
        moved = now - now % GRANULE
        due = moved + GRANULE + self.rules.visibility
        for o in listed:
            if o < cursor and o in group.pending:
                each = group.pending[o]
                limit = self.rules.delivery_limit
                if each.due <= now and not (limit and each.attempts >= limit):
                    group.pending[o] = Message(holder, due, each.attempts + 1)
                    if automatic:
                        del group.pending[o]
                    claimed += 1
        for o in range(low, target):
            if o in later:
                if later[o] < 0:
                    self._die(group, now, o, Message(0, 0, 0), EXPIRED)
                else:
                    group.pending[o] = Message(0, later[o], 0)
            elif o in listed:
                if not automatic:
                    group.pending[o] = Message(holder, due, 1)
                claimed += 1
        group.cursor = max(low, target)
        return OK, claimed

    def settle(
        self, now: int, id_: int, verb: int, holder: int, ranges: Ranges, delay: int
    ) -> tuple[int, int]:
        group = self.group_at(id_)
        if group is None:
            return NO_GROUP, 0
        settled = 0
        listed = [o for first, last in ranges for o in range(first, last + 1)]
        for o in listed:
            each = group.pending.get(o)
            if each is None or each.holder != holder:
                continue
            settled += 1
            del group.pending[o]
            if verb == REJECT:
                self._die(group, now, o, each, REJECTED)
            elif verb == NACK and each.attempts > self.rules.max_retries:
                self._die(group, now, o, each, RETRIES)
            elif verb == NACK:
                wait = self.rules.backoff if delay < 0 else delay
                self._wait(group, now, o, each, now + wait)
            elif verb == RELEASE:
                self._wait(group, now, o, each, now)
        return OK if settled == len(listed) else NOT_PENDING, settled

    def leave(self, now: int, id_: int, holder: int) -> tuple[int, int]:
        group = self.groups[id_]
        if holder not in group.members:
            return NOT_PENDING, 0
        group.members.discard(holder)
        held = sorted(o for o, each in group.pending.items() if each.holder == holder)
        for o in held:
            self._wait(group, now, o, group.pending.pop(o), now)
        return OK, len(held)

    def dead_letter(self, now: int, id_: int, reason: int, ranges: Ranges) -> tuple[int, int]:
        group = self.group_at(id_)
        if group is None:
            return NO_GROUP, 0
        buried = 0
        listed = [o for first, last in ranges for o in range(first, last + 1)]
        for o in listed:
            each = group.pending.get(o)
            if each is None:
                continue
            if reason == LIMIT:
                over = each.due <= now and 0 < self.rules.delivery_limit <= each.attempts
            else:
                over = each.holder == 0 or each.due <= now
            if over:
                self._die(group, now, o, group.pending.pop(o), reason)
                buried += 1
        return OK if buried == len(listed) else NOT_PENDING, buried

    def dead_lettered(self, id_: int, ranges: Ranges) -> tuple[int, int]:
        group = self.group_at(id_) if id_ else self.nobodys
        if group is None:
            return NO_GROUP, 0
        gone = 0
        for first, last in ranges:
            for o in range(first, last + 1):
                gone += group.dead.pop(o, None) is not None
        return OK, gone

    def purge(self) -> tuple[int, int]:
        dropped = [self._ready(group) for group in self.groups.values()]
        for group in self.groups.values():
            group.pending = {o: each for o, each in group.pending.items() if each.holder}
            group.cursor = self.end
        if not self.groups:
            dropped.append(self.end - self.start)
            self.start = self.end
        return OK, max(dropped)

    def seek(self, id_: int, offset: int) -> tuple[int, int]:
        group = self.group_at(id_)
        if group is None:
            return NO_GROUP, 0
        group.pending.clear()
        group.cursor = min(max(offset, self.start), self.end)
        return OK, group.cursor

    def _wait(self, group: ModelGroup, now: int, o: int, each: Message, due: int) -> None:
        limit = self.rules.delivery_limit
        if limit and each.attempts >= limit:
            self._die(group, now, o, each, LIMIT)
        else:
            group.pending[o] = replace(each, holder=0, due=due)

    def _die(self, group: ModelGroup, now: int, o: int, each: Message, reason: int) -> None:
        if self.rules.dead_letter and o not in group.dead:
            group.dead[o] = Message(0, now, each.attempts, reason)

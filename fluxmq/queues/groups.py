"""One consumer group of one queue, as every replica knows it.

Below ``cursor`` a message is settled unless it is in a pending range; those at and above it were
never given to a consumer. A group's floor is the lowest offset it may still need. Dead messages
have left the pending ranges but stay in ``dead``, and so in the queue, until their dead-letter
append is committed. Group 0 of a queue is ownerless: it holds messages that died while no group
existed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

from fluxmq.queues.commands import DeadLetterReason, Mode, Range, Verb
from fluxmq.queues.config import QueueConfig
from fluxmq.queues.limits import CLAIM_GRANULE, PENDING_RANGES_MAX
from fluxmq.queues.pending_ledger import NOBODY, Ledger, PendingState, Piece
from fluxmq.queues.results import Code, Result

# Looking up an enum member costs more than the comparison; these are read in every tick.
_OK: Final = int(Code.OK)
_WORK: Final = int(Mode.WORK)
_ACK: Final = int(Verb.ACK)

EXPIRED_AT: Final = -1
"""Time of a range in a claim's others: it has expired."""

TEMPORARY: Final = "\x01"
"""Prefix of the name of a group that ends with its only consumer; no client can use such a name."""

_FOREVER: Final = 1 << 62


def _claimed(timeout: int, time: int, holder: int, attempts: int, first_time: int) -> PendingState:
    """Return the fate of a message claimed at `time` by a holder with a timeout of `timeout` µs."""
    moved = time - time % CLAIM_GRANULE
    due = moved + CLAIM_GRANULE + timeout
    return PendingState(holder, due, attempts, first_time or moved, moved)


class ConsumerGroup:
    """State of one consumer group; only the machine changes it."""

    __slots__ = (
        "cursor",
        "dead",
        "filter",
        "id",
        "idle_since",
        "members",
        "mode",
        "name",
        "pending",
        "timeouts",
        "visiting",
    )

    def __init__(self, id_: int, name: str, mode: int, filter_: bytes, cursor: int) -> None:
        self.id = id_
        self.name = name
        self.mode = mode
        self.filter = filter_
        self.cursor = cursor
        """Work: the next message to give. Stream: the committed offset, from which reading
        resumes."""
        self.pending = Ledger()
        self.dead = Ledger()
        self.members: dict[int, str] = {}
        """Consumers by their number, in order of joining."""
        self.visiting: set[int] = set()
        """Members that do not keep the queue in use: they take single messages, or have stopped."""
        self.timeouts: dict[int, int] = {}
        """µs after which a member's unsettled messages may be claimed again; for others it is the
        queue's."""
        self.idle_since = 0
        """Time since which it has no member, µs; meaningless while it has one."""

    @property
    def floor(self) -> int:
        """The acknowledged floor: everything below is settled."""
        first = self.pending.first
        return self.cursor if first is None else first

    @property
    def consumers(self) -> int:
        """Number of members that keep the queue in use."""
        return len(self.members) - len(self.visiting)

    def unsettled(self, next_offset: int) -> int:
        """Return how many messages are not settled, held ones included."""
        return next_offset - self.cursor + self.pending.count

    def ready(self, next_offset: int) -> int:
        """Return how many messages no consumer holds."""
        return next_offset - self.cursor + self.pending.waiting

    def waiting(self) -> Iterator[Range]:
        """Yield ranges of messages that were returned, or wait for their time."""
        if self.pending.waiting:
            for pending in self.pending:
                if pending.state.holder == NOBODY:
                    yield pending.first, pending.last

    # --- claiming ----------------------------------------------------------------------------------------------

    def claim(
        self,
        config: QueueConfig,
        time: int,
        next_offset: int,
        holder: int,
        passage: tuple[int, int],
        ranges: Sequence[Range],
        others: Sequence[tuple[int, int, int]],
        automatic: bool = False,
    ) -> tuple[Result, bool]:
        """Apply a claim command; return the result and whether every message of it was claimed.

        An `automatic` claim settles what it gives.
        """
        cursor, target = passage
        if self.mode != _WORK or (ranges and holder not in self.members):
            return Result(Code.STALE), False
        if self.cursor < cursor or not cursor <= target <= next_offset:
            return Result(Code.STALE), False
        if len(self.pending) + len(ranges) + len(others) > PENDING_RANGES_MAX:
            return Result(Code.LIMIT), False
        if len(ranges) == 1 and not others and cursor == self.cursor <= ranges[0][0]:
            # The shape of nearly every claim: consecutive new messages.
            first, last = ranges[0]
            if last >= target:
                return Result(Code.STALE), False
            self.cursor = target
            if not automatic:
                timeout = self._timeout(config, holder)
                self.pending.add(first, last, _claimed(timeout, time, holder, 1, 0))
            return Result(_OK, last - first + 1), True
        fresh, again = self._pieces(config, time, holder, passage, ranges, others)
        if fresh and fresh[-1][1] >= target:
            return Result(Code.STALE), False
        for (_, end, _), (first, _, _) in pairwise(fresh):
            if first <= end:
                return Result(Code.STALE), False
        wanted = sum(last - first + 1 for first, last in ranges)
        claimed = 0
        for first, last in again:
            claimed += self._claim_again(config, time, holder, first, last, automatic)
        self.cursor = max(self.cursor, target)
        for first, last, state in fresh:
            claimed += self._claim_new(config, time, (first, last, state), automatic)
        return Result(_OK, claimed), claimed == wanted

    def _timeout(self, config: QueueConfig, holder: int) -> int:
        """Return the µs for which `holder` may keep messages unsettled."""
        return self.timeouts.get(holder, config.visibility_timeout)

    def _pieces(
        self,
        config: QueueConfig,
        time: int,
        holder: int,
        passage: tuple[int, int],
        ranges: Sequence[Range],
        others: Sequence[tuple[int, int, int]],
    ) -> tuple[list[Piece], list[Range]]:
        """Split a claim into pieces that the cursor passes, in order, and ranges below it to give
        again."""
        cursor, _ = passage
        low = self.cursor  # above `cursor` when messages were dropped while the claim was in flight
        state = _claimed(self._timeout(config, holder), time, holder, 1, 0)
        fresh: list[Piece] = []
        again: list[Range] = []
        for first, last in ranges:
            if first < cursor:
                again.append((first, min(last, cursor - 1)))
            if low <= last:
                fresh.append((max(first, low), last, state))
        for first, last, not_before in others:
            if low <= last:
                reason = (
                    DeadLetterReason.EXPIRED if not_before == EXPIRED_AT else DeadLetterReason.NONE
                )
                waits = PendingState(NOBODY, max(not_before, 0), 0, 0, 0, reason)
                fresh.append((max(first, low), last, waits))
        if len(fresh) > 1:
            fresh.sort()
        return fresh, again

    def _claim_new(self, config: QueueConfig, time: int, piece: Piece, automatic: bool) -> int:
        """Record what the cursor passes: given, waiting or dead; return how many messages were
        given."""
        first, last, state = piece
        if state.reason:
            self.die(config, time, first, last, state)
        elif state.holder == NOBODY or not automatic:
            self.pending.add(first, last, state)
        return last - first + 1 if state.holder != NOBODY else 0

    def _claim_again(
        self,
        config: QueueConfig,
        time: int,
        holder: int,
        first: int,
        last: int,
        automatic: bool = False,
    ) -> int:
        """Give waiting or overdue messages of any consumer to `holder`; return how many."""
        limit = config.delivery_limit
        timeout = self._timeout(config, holder)
        claimed = 0
        for low, high, state in self.pending.cut(
            first, last, lambda state: state.due <= time and (not limit or state.attempts < limit)
        ):
            if not automatic:
                taken = _claimed(timeout, time, holder, state.attempts + 1, state.first_time)
                self.pending.add(low, high, taken)
            claimed += high - low + 1
        return claimed

    # --- settling ----------------------------------------------------------------------------------------------

    def settle(
        self,
        config: QueueConfig,
        time: int,
        verb: int,
        holder: int,
        ranges: Sequence[Range],
        delay: int,
        text: bytes,
    ) -> Result:
        """Apply a settle command to `holder`'s messages; the value is how many those were."""
        if holder == NOBODY:
            return Result(Code.NOT_PENDING)
        settled = wanted = 0
        for first, last in ranges:
            wanted += last - first + 1
            if verb == _ACK:
                settled += self.pending.acknowledge(first, last, holder)
                continue
            for low, high, state in self.pending.cut(
                first, last, lambda state: state.holder == holder
            ):
                settled += high - low + 1
                if verb == Verb.REJECT:
                    self.die(
                        config,
                        time,
                        low,
                        high,
                        state._replace(reason=DeadLetterReason.REJECTED, text=text),
                    )
                elif verb == Verb.NACK:
                    self._refuse(config, time, (low, high, state), delay)
                elif verb == Verb.RELEASE:
                    self.wait(config, time, (low, high, state), time)
        return Result(_OK if settled == wanted else Code.NOT_PENDING, settled)

    def release(self, config: QueueConfig, time: int, holder: int) -> int:
        """Release all of a gone holder's messages for redelivery; return how many."""
        held = self.pending.cut(0, self.cursor, lambda state: state.holder == holder)
        for piece in held:
            self.wait(config, time, piece, time)
        return sum(high - low + 1 for low, high, _ in held)

    def _refuse(self, config: QueueConfig, time: int, piece: Piece, delay: int) -> None:
        """Apply a nack: redeliver later, or dead-letter."""
        low, high, state = piece
        if state.attempts > config.max_retries:
            self.die(config, time, low, high, state._replace(reason=DeadLetterReason.MAX_RETRIES))
            return
        later = config.backoff(state.attempts) if delay < 0 else delay
        self.wait(config, time, piece, time + later)

    def wait(self, config: QueueConfig, time: int, piece: Piece, due: int) -> None:
        """Make a cut piece redeliverable from `due` on, unless it was delivered too often."""
        low, high, state = piece
        if config.delivery_limit and state.attempts >= config.delivery_limit:
            self.die(
                config, time, low, high, state._replace(reason=DeadLetterReason.DELIVERY_LIMIT)
            )
            return
        self.pending.add(low, high, state._replace(holder=NOBODY, due=due))

    # --- dying -------------------------------------------------------------------------------------------------

    def die(
        self, config: QueueConfig, time: int, first: int, last: int, state: PendingState
    ) -> None:
        """Remove messages that are in no pending range: dead-letter them, or drop them without a
        dead-letter queue."""
        if not config.dead_letter:
            return
        state = state._replace(holder=NOBODY, due=time, reason=int(state.reason))
        known = self.dead.overlapping(first, last)
        for low, high, _ in known:  # died before and was read again after a seek: once is enough
            if first < low:
                self.dead.add(first, low - 1, state)
            first = high + 1
        if first <= last:
            self.dead.add(first, last, state)

    def dead_letter(
        self, config: QueueConfig, time: int, reason: int, ranges: Sequence[Range]
    ) -> Result:
        """Apply a dead-letter command: dead-letter waiting or overdue messages for `reason`."""
        dead_lettered = wanted = 0

        def over(state: PendingState) -> bool:
            if reason == DeadLetterReason.DELIVERY_LIMIT:
                too_often = 0 < config.delivery_limit <= state.attempts
                return too_often and state.due <= time
            return state.holder == NOBODY or state.due <= time

        for first, last in ranges:
            wanted += last - first + 1
            for low, high, state in self.pending.cut(first, last, over):
                self.die(config, time, low, high, state._replace(reason=reason))
                dead_lettered += high - low + 1
        return Result(Code.OK if dead_lettered == wanted else Code.NOT_PENDING, dead_lettered)

    def drop_ready(self, config: QueueConfig, time: int, count: int, target: int) -> None:
        """Drop the oldest ready messages: `count` of them, and all new ones below `target`."""
        oldest: list[Range] = []
        if count > 0 and self.pending.waiting:
            for pending in self.pending:
                if pending.state.holder == NOBODY:
                    last = min(pending.last, pending.first + count - 1)
                    oldest.append((pending.first, last))
                    count -= last - pending.first + 1
                    if count <= 0:
                        break
        for first, last in oldest:
            for low, high, state in self.pending.cut(first, last):
                self.die(
                    config, time, low, high, state._replace(reason=DeadLetterReason.MAX_LENGTH)
                )
        end = max(target, self.cursor + max(count, 0))
        if end > self.cursor:
            state = PendingState(NOBODY, 0, 0, 0, 0, DeadLetterReason.MAX_LENGTH)
            self.die(config, time, self.cursor, end - 1, state)
            self.cursor = end

    # --- moving ------------------------------------------------------------------------------------------------

    def forget_below(self, start: int) -> bool:
        """Follow a log that now begins at `start`; return whether the group had needed something
        below."""
        lost = bool(self.cursor < start or (self.pending.count and self.floor < start))
        if lost:
            if self.mode == Mode.WORK:
                self.pending.cut(0, start - 1)
            self.cursor = max(self.cursor, start)
        return lost

    def purge(self, next_offset: int) -> int:
        """Drop everything ready; return how many messages."""
        dropped = self.ready(next_offset)
        self.pending.cut(0, _FOREVER, lambda state: state.holder == NOBODY)
        self.cursor = next_offset
        return dropped

    def seek(self, offset: int) -> None:
        """Continue at `offset` and forget what was pending."""
        self.pending.clear()
        self.cursor = offset

    # --- snapshots ---------------------------------------------------------------------------------------------

    def pack(self, anew: bool = False) -> list[Any]:
        """Return plain values for msgpack; ``anew``: deliveries count from now on."""
        return [
            *(self.id, self.name, self.mode, self.filter, self.cursor, self.idle_since),
            [self._pack_member(holder, member) for holder, member in self.members.items()],
            self.pending.pack(anew),
            self.dead.pack(),
        ]

    def _pack_member(self, holder: int, member: str) -> list[Any]:
        visiting = holder in self.visiting
        if holder in self.timeouts:
            return [holder, member, visiting, self.timeouts[holder]]
        return [holder, member, True] if visiting else [holder, member]

    @staticmethod
    def unpack(packed: list[Any]) -> ConsumerGroup:
        """Decode the result of `pack`."""
        id_, name, mode, filter_, cursor, idle_since, members, pending, dead = packed
        group = ConsumerGroup(id_, name, mode, filter_, cursor)
        group.idle_since = idle_since
        group.members = {holder: member for holder, member, *_ in members}
        group.visiting = {holder for holder, _, *more in members if more and more[0]}
        group.timeouts = {holder: more[1] for holder, _, *more in members if len(more) > 1}
        group.pending = Ledger.unpack(pending)
        group.dead = Ledger.unpack(dead)
        return group

"""Claims and dead-letterings of one group that are proposed and not yet applied, in order.

A dispatcher runs ahead of the machine by these: messages being claimed again are not claimed a
second time, and the pending ranges that the claims will create count as if they existed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fluxmq.queues.commands import Range
from fluxmq.queues.interval_set import IntervalSet
from fluxmq.queues.limits import RUN_AHEAD_MAX


@dataclass(slots=True, init=False)
class _InflightClaim:
    """`redelivered`: of messages given before; `ranges`: pending ranges it may create; `target`:
    the new cursor of a claim of new messages, else -1."""

    redelivered: Sequence[Range]
    ranges: int
    target: int

    def __init__(self, redelivered: Sequence[Range], ranges: int, target: int) -> None:
        self.redelivered = redelivered
        self.ranges = ranges
        self.target = target


class InflightClaims:
    """Claims in flight; false when there are none. `ranges`: pending ranges that they may
    create."""

    __slots__ = ("_claiming", "_under_way", "ranges")

    def __init__(self) -> None:
        self._under_way: deque[_InflightClaim] = deque()
        self._claiming = IntervalSet()
        self.ranges = 0

    def __bool__(self) -> bool:
        return bool(self._under_way)

    def may_reach(self, ahead: int) -> bool:
        """Return whether more may be handed out with `ahead` messages handed out beyond the applied
        state."""
        return ahead < RUN_AHEAD_MAX or not self._under_way

    def add_new(self, count: int, target: int) -> None:
        """Add a proposed claim of new messages."""
        self._under_way.append(_InflightClaim((), count, target))
        self.ranges += count

    def add_again(self, ranges: Sequence[Range]) -> None:
        """Add a proposed claim or dead-lettering of messages given before; each range may split in
        two."""
        for first, last in ranges:
            self._claiming.add(first, last)
        count = 2 * len(ranges)
        self._under_way.append(_InflightClaim(ranges, count, -1))
        self.ranges += count

    def join(self, target: int) -> None:
        """Merge the claim up to `target` with the one before it; both are of new messages."""
        under_way = self._under_way
        at = len(under_way) - 1
        while under_way[at].target != target:
            at -= 1
        before = under_way[at - 1]
        assert before.target >= 0, "only claims of new messages are joined"
        under_way[at - 1] = _InflightClaim((), before.ranges + under_way[at].ranges, target)
        del under_way[at]

    def applied(self) -> None:
        """Remove the oldest: it was applied."""
        assert self._under_way, "a claim that this dispatcher never proposed"
        flight = self._under_way.popleft()
        self.ranges -= flight.ranges
        for first, last in flight.redelivered:
            self._claiming.remove(first, last)

    def unclaimed(self, first: int, last: int) -> Iterator[Range]:
        """Yield those of these messages that are not being claimed again."""
        yield from self._claiming.missing(first, last)

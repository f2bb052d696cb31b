"""Messages of which a new leader cannot know whether an earlier one had delivered them.

A leader delivers before its claim is committed, so what was in flight when it was lost has been
delivered and is in no entry. It runs ahead of the applied state by at most `REACH` messages of a
group, and delivers nothing to a group without members. So messages within that distance of the
cursor, and delayed ones that have become due, may have been delivered: they are marked as
redelivered, once, whether they were or not.
"""

from __future__ import annotations

from typing import Final

from fluxmq.queues.commands import Mode
from fluxmq.queues.consumers import ConsumerDelivery, Step
from fluxmq.queues.interval_set import IntervalSet
from fluxmq.queues.limits import CLOCKS_APART_MAX, RUN_AHEAD_MAX, SCANNED_MAX
from fluxmq.queues.machine import Machine

REACH: Final = RUN_AHEAD_MAX + SCANNED_MAX
"""Distance from the applied state at which a run may start, plus the messages it may scan."""
AGAIN: Final = 2
"""Delivery count of these messages: the second, for want of better knowledge."""


class PossiblyDelivered:
    """Messages of each work group that an earlier leader may have delivered."""

    def __init__(self) -> None:
        self._of: dict[tuple[int, int], IntervalSet] = {}

    def __bool__(self) -> bool:
        return bool(self._of)

    def begin(self, machine: Machine, now: int) -> None:
        """Start leading, at `now` in µs, where another node may have led. Stream offsets show
        redeliveries themselves."""
        for queue in machine.queues.values():
            for group in queue.groups.values():
                if group.mode == Mode.STREAM or not group.members:
                    continue
                first = max(group.cursor, queue.start)
                last = min(queue.next_offset, first + REACH) - 1
                intervals = IntervalSet()
                for low, high, state in group.pending.overlapping(0, queue.next_offset):
                    if not state.attempts and state.due <= now + CLOCKS_APART_MAX:
                        intervals.add(low, high)
                if first <= last:
                    intervals.add(first, last)
                if intervals:
                    self._of[queue.id, group.id] = intervals

    def mark(self, queue_id: int, group_id: int, step: Step, at: int) -> None:
        """Mark doubtful messages among a group's deliveries, from the step's index `at` on, as
        redelivered."""
        intervals = self._of.get((queue_id, group_id))
        if intervals is None:
            return
        marked: list[ConsumerDelivery] = []
        for each in step.deliveries[at:]:
            base = each.batch.base_offset
            first, last = base + each.first, base + each.first + each.count - 1
            doubtful = intervals.remove(first, last)
            if not doubtful or each.attempts > 1:
                marked.append(each)
                continue
            for low, high in doubtful:
                if first < low:
                    marked.append(_piece(each, first, low - 1, each.attempts))
                marked.append(_piece(each, low, high, AGAIN))
                first = high + 1
            if first <= last:
                marked.append(_piece(each, first, last, each.attempts))
        step.deliveries[at:] = marked
        if not intervals:
            del self._of[queue_id, group_id]

    def forget(self, queue_id: int) -> None:
        """Forget a queue that is gone."""
        for key in [key for key in self._of if key[0] == queue_id]:
            del self._of[key]

    def clear(self) -> None:
        """Stop leading: forget everything."""
        self._of.clear()


def _piece(whole: ConsumerDelivery, first: int, last: int, attempts: int) -> ConsumerDelivery:
    index = first - whole.batch.base_offset
    return ConsumerDelivery(whole.consumer, whole.batch, index, last - first + 1, attempts)

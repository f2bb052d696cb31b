"""A shard's counters of its queues: plain integers, updated on the hot path and read by reports."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable

from fluxmq.queues.results import Code

RECENT_SYNCS = 1024
"""Number of syncs behind a log's percentile: some seconds under load, minutes at rest."""

REFUSALS = {
    Code.FULL: "queue_full",
    Code.LIMIT: "lost",
    Code.TOO_LARGE: "too_large",
    Code.NO_QUEUE: "no_queue",
    Code.CONFLICT: "failed",
}
"""Names in reports of the reasons for rejecting a batch."""
NOT_LEADER = "not_leader"
LOCKED = "locked"
REFUSED_REASONS = (*REFUSALS.values(), "disk_full", NOT_LEADER, LOCKED)
"""All rejection reasons: also a full disk, another node that leads (`write_policy: reject`), and a
queue exclusive to another connection."""


class QueueCounts:
    """Totals of all of a shard's groups, including ephemeral, since its start."""

    def __init__(self) -> None:
        self.appended = 0
        """Messages stored."""
        self.delivered = 0
        """Messages delivered to consumers, including redeliveries."""
        self.settled: Counter[int] = Counter()
        """Messages settled by consumers, by verb."""
        self.refused: Counter[str] = Counter()
        """Batches not stored, by reason."""
        self.dead: Counter[str] = Counter()
        """Dead letters that were moved, by source queue."""


class SyncTimes:
    """Durations of a log's syncs. ``observe``: further observer of each duration."""

    def __init__(self, observe: Callable[[float], None] = lambda _seconds: None) -> None:
        self._recent: deque[float] = deque(maxlen=RECENT_SYNCS)
        self._observe = observe

    def __call__(self, seconds: float) -> None:
        """Record a sync's duration."""
        self._recent.append(seconds)
        self._observe(seconds)

    @property
    def p99(self) -> float:
        """The 99th percentile of recent syncs, in seconds; 0 before the first."""
        if not self._recent:
            return 0.0
        return sorted(self._recent)[(len(self._recent) * 99 - 1) // 100]

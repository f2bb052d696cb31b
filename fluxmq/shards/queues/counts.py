"""What a shard counts of its queues: plain integers that the hot path adds to and reports read."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable

from fluxmq.queues.results import Code

RECENT_SYNCS = 1024
"""Syncs that a log's percentile is taken over: some seconds under load, minutes at rest."""

REFUSALS = {
    Code.FULL: "queue_full",
    Code.LIMIT: "lost",
    Code.TOO_LARGE: "too_large",
    Code.NO_QUEUE: "no_queue",
    Code.CONFLICT: "failed",
}
"""How reports call what kept a batch from being stored."""
NOT_LEADER = "not_leader"
LOCKED = "locked"
REFUSED_REASONS = (*REFUSALS.values(), "disk_full", NOT_LEADER, LOCKED)
"""All of these, that the disk was too full, that another node leads (`write_policy: reject`), and that the queue is
another connection's."""


class QueueCounts:
    """Sums over all groups of a shard since it started, ephemeral ones included."""

    def __init__(self) -> None:
        self.appended = 0
        """Messages stored."""
        self.delivered = 0
        """Messages handed to consumers, again ones included."""
        self.settled: Counter[int] = Counter()
        """Messages settled by consumers, by verb."""
        self.refused: Counter[str] = Counter()
        """Batches not stored, by reason."""
        self.dead: Counter[str] = Counter()
        """Dead letters that were moved, by the queue they came from."""


class SyncTimes:
    """How long a log's syncs took. ``observe``: who counts them besides."""

    def __init__(self, observe: Callable[[float], None] = lambda _seconds: None) -> None:
        self._recent: deque[float] = deque(maxlen=RECENT_SYNCS)
        self._observe = observe

    def __call__(self, seconds: float) -> None:
        """A sync has ended."""
        self._recent.append(seconds)
        self._observe(seconds)

    @property
    def p99(self) -> float:
        """Seconds that 99 of 100 recent syncs took at most; 0 before the first."""
        if not self._recent:
            return 0.0
        return sorted(self._recent)[(len(self._recent) * 99 - 1) // 100]

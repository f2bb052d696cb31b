"""A shard's counters of its queues: plain integers, updated on the hot path and read by reports."""

from __future__ import annotations

from collections import Counter

from fluxmq.queues.results import Code

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

"""A leader's view of one peer, and how much it may send it (after etcd's raft, `tracker.Progress`).

Three ways of sending:

* PROBE      the logs' divergence is unknown: one append, then wait for it or a heartbeat's answer.
* REPLICATE  the peer keeps up: appends follow each other without waiting, up to a window in bytes.
* SNAPSHOT   the entries it needs are gone: nothing is sent until a snapshot has arrived.

`match` is proven and never falls while the leadership lasts; `next` is a guess that answers
correct.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from fluxmq.raft.types import Entry, ReplicationMode

ENTRY_OVERHEAD_BYTES: Final = 32
"""Size of an entry in the window besides its data, so that empty entries are bounded as well."""


class Progress:
    """A leader's view of one peer."""

    __slots__ = (
        "_inflight",
        "active",
        "commit_sent",
        "due",
        "inflight_bytes",
        "match",
        "next",
        "paused",
        "pending_snapshot",
        "read_answered",
        "state",
    )

    def __init__(self, following: int) -> None:
        self.match = 0
        self.next = following
        self.state = ReplicationMode.PROBE
        self.paused = False
        """PROBE: an append was sent and not answered."""
        self.due = False
        """True if an append is due even without entries, to detect the loss of earlier ones."""
        self.active = True
        """True if the peer was heard since the last quorum check; at first, to give it time."""
        self.commit_sent = 0
        self.read_answered = 0
        self.pending_snapshot = 0
        self.inflight_bytes = 0
        self._inflight: deque[tuple[int, int]] = deque()

    @property
    def inflight_appends(self) -> int:
        """Number of unanswered appends with entries."""
        return len(self._inflight)

    def sent(self, entries: Sequence[Entry]) -> None:
        """Account for an append with these entries."""
        self.due = False
        if self.state is ReplicationMode.PROBE:
            self.paused = True
        elif entries:
            size = ENTRY_OVERHEAD_BYTES * len(entries)
            for entry in entries:
                size += len(entry.data)
            last = entries[-1].index
            self._inflight.append((last, size))
            self.inflight_bytes += size
            self.next = last + 1

    def accepted(self, index: int) -> bool:
        """Note that the peer's log matches up to `index`; return whether that is new."""
        inflight = self._inflight
        while inflight and inflight[0][0] <= index:
            self.inflight_bytes -= inflight.popleft()[1]
        if index >= self.next:
            self.next = index + 1
        if index <= self.match:
            return False
        self.match = index
        self.paused = False
        return True

    def rejected(self, index: int, hint: int) -> bool:
        """Note that the peer lacks `index` and all above `hint`; return False if that is stale."""
        if self.state is ReplicationMode.REPLICATE:
            if index <= self.match:
                return False
            self.probe()
            return True
        if self.state is ReplicationMode.SNAPSHOT or self.next - 1 != index:
            return False
        self.next = max(min(index, hint + 1), self.match + 1)
        self.paused = False
        return True

    def probe(self) -> None:
        """Send one append at a time, from the proven match or a snapshot that has arrived."""
        self._become(ReplicationMode.PROBE)
        self.next = max(self.match, self.pending_snapshot) + 1
        self.pending_snapshot = 0

    def replicate(self) -> None:
        """Send without waiting."""
        self._become(ReplicationMode.REPLICATE)
        self.next = self.match + 1
        self.pending_snapshot = 0

    def want_snapshot(self) -> None:
        """Send nothing until a snapshot has arrived."""
        self._become(ReplicationMode.SNAPSHOT)
        self.pending_snapshot = 0

    def _become(self, state: ReplicationMode) -> None:
        self.state = state
        self.paused = False
        self.due = False
        self.inflight_bytes = 0
        self._inflight.clear()

"""What a leader knows of one peer, and how much it may send it (after etcd's raft, `tracker.Progress`).

Three ways of sending:

* PROBE      where the logs part is not known: one append at a time, then wait for its answer or a heartbeat's.
* REPLICATE  the peer keeps up: appends follow each other without waiting, up to a window in bytes.
* SNAPSHOT   the entries it needs are gone: nothing is sent until a snapshot has arrived.

`match` is proven and never falls while the leadership lasts; `next` is a guess that answers correct.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from fluxmq.raft.types import Entry, Replication

ENTRY_OVERHEAD_BYTES: Final = 32
"""What an entry weighs in the window besides its data, so that empty entries are bounded as well."""


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
        self.state = Replication.PROBE
        self.paused = False
        """PROBE: an append was sent and nothing has come back."""
        self.due = False
        """An append is to be sent even without entries, to find out whether earlier ones were lost."""
        self.active = True
        """Something came from the peer since the last check of the quorum. True at first: give it time."""
        self.commit_sent = 0
        self.read_answered = 0
        self.pending_snapshot = 0
        self.inflight_bytes = 0
        self._inflight: deque[tuple[int, int]] = deque()

    @property
    def inflight_appends(self) -> int:
        """Appends with entries that are not answered."""
        return len(self._inflight)

    def sent(self, entries: Sequence[Entry]) -> None:
        """An append with these entries is on its way."""
        self.due = False
        if self.state is Replication.PROBE:
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
        """The peer's log matches up to `index`; whether that was not known."""
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
        """The peer does not hold the leader's entry at `index`, nor any above `hint`; False when that is old news."""
        if self.state is Replication.REPLICATE:
            if index <= self.match:
                return False
            self.probe()
            return True
        if self.state is Replication.SNAPSHOT or self.next - 1 != index:
            return False
        self.next = max(min(index, hint + 1), self.match + 1)
        self.paused = False
        return True

    def probe(self) -> None:
        """Send one append at a time, from what is proven on, or from behind a snapshot that has arrived."""
        self._become(Replication.PROBE)
        self.next = max(self.match, self.pending_snapshot) + 1
        self.pending_snapshot = 0

    def replicate(self) -> None:
        """Send without waiting."""
        self._become(Replication.REPLICATE)
        self.next = self.match + 1
        self.pending_snapshot = 0

    def want_snapshot(self) -> None:
        """Send nothing until a snapshot has arrived."""
        self._become(Replication.SNAPSHOT)
        self.pending_snapshot = 0

    def _become(self, state: Replication) -> None:
        self.state = state
        self.paused = False
        self.due = False
        self.inflight_bytes = 0
        self._inflight.clear()

"""A leader's view of a peer: three ways of sending, a window, and answers out of order."""

from __future__ import annotations

from fluxmq.raft.progress import ENTRY_OVERHEAD_BYTES, Progress
from fluxmq.raft.types import COMMAND, Entry, ReplicationMode


def entries(first: int, last: int, size: int = 10) -> list[Entry]:
    return [Entry(1, index, COMMAND, b"x" * size) for index in range(first, last + 1)]


def replicating(match: int) -> Progress:
    progress = Progress(match + 1)
    progress.accepted(match)
    progress.replicate()
    return progress


def test_a_probe_waits_for_its_answer() -> None:
    progress = Progress(5)
    progress.sent(entries(5, 6))
    assert progress.paused
    assert (progress.next, progress.inflight_bytes) == (5, 0)
    assert progress.accepted(6)
    assert not progress.paused
    assert (progress.match, progress.next) == (6, 7)


def test_a_probe_goes_back_to_the_hint() -> None:
    progress = Progress(10)
    progress.sent([])
    assert progress.rejected(9, 4)
    assert progress.next == 5
    assert not progress.paused
    assert not progress.rejected(9, 2), "an answer to an earlier probe"
    assert progress.next == 5


def test_it_goes_back_at_least_by_one_and_not_below_what_is_proven() -> None:
    progress = Progress(10)
    assert progress.rejected(9, 20)
    assert progress.next == 9
    assert progress.rejected(8, 0)
    assert progress.next == 1
    progress = replicating(3)
    progress.probe()
    progress.next = 9
    assert progress.rejected(8, 0)
    assert progress.next == 4


def test_the_window_counts_data_and_entries() -> None:
    progress = replicating(0)
    progress.sent(entries(1, 3))
    progress.sent(entries(4, 4, size=0))
    assert progress.next == 5
    assert progress.inflight_bytes == 30 + 4 * ENTRY_OVERHEAD_BYTES
    progress.accepted(2)
    assert progress.inflight_bytes == 30 + 4 * ENTRY_OVERHEAD_BYTES, "an append is answered whole"
    progress.accepted(3)
    assert progress.inflight_bytes == ENTRY_OVERHEAD_BYTES
    assert not progress.accepted(1)
    progress.accepted(4)
    assert (progress.inflight_bytes, progress.match) == (0, 4)


def test_a_rejection_while_replicating_leads_back_to_what_is_proven() -> None:
    progress = replicating(3)
    progress.sent(entries(4, 8))
    assert not progress.rejected(3, 0), "proven meanwhile"
    assert progress.state is ReplicationMode.REPLICATE
    assert progress.rejected(8, 3)
    assert (progress.state, progress.next, progress.inflight_bytes) == (ReplicationMode.PROBE, 4, 0)


def test_behind_a_snapshot_sending_begins_after_it() -> None:
    progress = replicating(3)
    progress.want_snapshot()
    assert not progress.rejected(4, 2)
    progress.pending_snapshot = 20
    progress.probe()
    assert (progress.next, progress.pending_snapshot) == (21, 0)

"""Durability that a publisher's answer waits for: the disks of this shard and of the others."""

from __future__ import annotations

from collections.abc import Callable

from fluxmq.net.links import Link
from fluxmq.net.reactor import Reactor
from fluxmq.shards.durable.commit_waiter import CommitWaiter
from fluxmq.shards.durable.persistent_links import PersistentLink, PersistentRuns
from fluxmq.shards.durable.retained_rows import RetainedRows
from fluxmq.shards.durable.row_router import LocalRows, RemoteRows
from fluxmq.shards.durable.rows import Clock


class Durability:
    """The homes of a shard's rows, and its messages for persistent sessions of other shards."""

    def __init__(
        self,
        shard: int,
        workers: int,
        store: LocalRows,
        reactor: Reactor,
        links: dict[int, Link],
        clock: Clock,
        call_later: Callable[[float, Callable[[], None]], None],
        count_drop: Callable[[str, int], None],
    ) -> None:
        # Greater than all numbers of this shard's former lives.
        first = round(clock.now() * 1_000_000_000)
        homes = {peer: RemoteRows(link, first, clock.now) for peer, link in links.items()}
        self.commit_waiter = CommitWaiter(
            shard, store, reactor, clock, call_later, count_drop, homes, self._homes_told
        )
        numbers = self.commit_waiter.numbers
        self.kept = {
            peer: PersistentLink(link, reactor, first, clock.now, numbers)
            for peer, link in links.items()
        }
        """Reliable links to other shards' persistent sessions."""
        wake = self.commit_waiter.wake
        self.rows = RetainedRows(shard, workers, store, links, clock.now, clock.wall, wake)
        self.runs = PersistentRuns(links, reactor, wake)

    def _homes_told(self) -> None:
        """Send this tick's answers to other shards."""
        self.runs.flush()
        self.rows.flush()

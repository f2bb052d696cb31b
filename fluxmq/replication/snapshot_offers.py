"""Snapshots that the leaders on this shard offer to members which are behind the start of the
log."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from fluxmq.net.links import FrameLink
from fluxmq.raft.types import Message, MessageKind, Snapshot, SnapshotMark
from fluxmq.replication.replica import Replica
from fluxmq.replication.snapshot_calls import SnapshotCalls

UNHEARD_SECONDS: Final = 1.0
"""Time after which a snapshot is offered again if the member has not reacted: the offer was lost,
or the member is reconnecting. A member that is fetching ignores it.
"""
SILENT_SECONDS: Final = 10.0
"""Time after which a member that reported fetching, and then fell silent, is offered a snapshot
again.
"""

SOURCES_SECONDS: Final = 1.0
"""Interval between checks for sources that are no longer in use."""


class SnapshotOffers:
    """The offers of one shard's leaders. ``calls`` serve what was offered."""

    def __init__(
        self, replicas: Mapping[str, Replica], calls: SnapshotCalls, now: Callable[[], float]
    ) -> None:
        self._replicas = replicas
        self._calls = calls
        self._now = now
        self._offered: dict[tuple[str, int], float] = {}
        """By group and member with an offer: when to repeat it, unless the member reports."""
        self._next = 0.0

    def handlers(self) -> dict[str, Callable[..., None]]:
        """Return the handlers of control frames by name."""
        return {"fetching": self._on_fetching, "fetched": self._on_fetched}

    def wanted(self, group: str, member: int) -> None:
        """Offer a snapshot to a member that needs entries which are no longer in the log."""
        replica = self._replicas.get(group)
        if replica is None:
            return
        hosted = replica.hosted
        node, index = hosted.driver.node, hosted.snapshot_index
        mark = SnapshotMark(index, hosted.log.term(index), node.membership_at(index))
        message = node.offer_snapshot(member, Snapshot(mark, b""))
        if message is not None:
            self._offered[group, member] = self._now() + UNHEARD_SECONDS
            replica.hosted.driver.send([message])

    def _on_fetching(self, _link: FrameLink, group: str, member: int) -> None:
        self._calls.is_fetched(group)
        if (group, member) in self._offered:
            self._offered[group, member] = self._now() + SILENT_SECONDS

    def _on_fetched(self, _link: FrameLink, group: str, member: int, index: int) -> None:
        """Take a member's report of the snapshot index it has installed; 0 if it failed."""
        self._offered.pop((group, member), None)
        self._report(group, member, index)

    def _report(self, group: str, member: int, index: int) -> None:
        replica = self._replicas.get(group)
        if replica is None or replica.hosted.group.failed:
            return
        driver = replica.hosted.driver
        driver.node.report_snapshot(member, index > 0)
        if index and driver.leading:
            # The member has committed entries only, so they are here as well: usually more than was
            # offered.
            own = replica.raft_transport.number
            told = Message(MessageKind.APPEND_ANSWER, member, own, driver.node.term, index)
            driver.step([told])

    def housekeeping(self) -> None:
        """Offer again when due; called by the shard's timer."""
        now = self._now()
        for (group, member), until in list(self._offered.items()):
            if now >= until:
                del self._offered[group, member]
                self._report(group, member, 0)
        if now >= self._next:
            self._next = now + SOURCES_SECONDS
            self._calls.housekeeping()

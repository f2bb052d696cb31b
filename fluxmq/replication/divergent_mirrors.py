"""Leaders of mirrored groups that go on although they reach neither etcd nor all of their mirrors: under
``autoheal`` and ``ignore`` of ``cluster.cluster_partition_handling``, never under ``pause_minority``.

Such a copy is *divergent*: the record of its group may name mirrors as synchronised that lack what it
confirms, and may come to name one of them as leader. Its member record says so (`Divergence`) before its
first entry is committed without them, so that no restart forgets it. It does without all other members, also
those that it reaches, sends them nothing and takes nothing from them: two leaders never write one log.

The record decides once it is known again. It still names this node, and no copy was declared the truth
meanwhile: then nobody else has led, all others leave it by one change, and the copy is as good as any
leader's that has lost its mirrors. It names another node: then that one leads since, and what was confirmed
here alone is counted, logged and discarded, and this node joins anew. Under ``ignore`` that waits until this
node is started again; the copy is closed until then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from fluxmq.ipc.mirrored_groups import GroupMirrors
from fluxmq.logs import get_logger
from fluxmq.metrics.registry import Sample
from fluxmq.raft.types import COMMAND, ChangeVerb, MembershipChange, RaftStatus
from fluxmq.replication.member_record import Divergence
from fluxmq.replication.replica import Replica
from fluxmq.storage.errors import StorageError

PAUSE_MINORITY: Final = "pause_minority"
IGNORE: Final = "ignore"
SILENT_SECONDS: Final = 10.0
"""Time for which requests to etcd have to fail: that of a node's lease, after which others may have another
leader. Failures that are further apart are not one."""
READ_BYTES: Final = 1 << 20
"""Bytes of the log that are read at once to count messages."""

_log = get_logger("fluxmq.cluster")


class DivergentMirrors:
    """Those of one shard of ``node``. ``handling``: ``cluster.cluster_partition_handling``."""

    def __init__(self, handling: str, node: str, now: Callable[[], float]) -> None:
        self._handling = handling
        self._node = node
        self._now = now
        self._failing: dict[str, tuple[float, float]] = {}
        """By group: the first and the last of requests that have failed since one was answered."""
        self._begun: set[str] = set()
        """Groups that diverged in this life of the shard."""
        self.appended: Callable[[Any, Iterable[bytes]], int] = lambda _group, _entries: 0
        """Returns how many messages a group's queues were ever given, with those of entries."""
        self.messages = 0
        """Messages that were discarded."""

    def samples(self, replicas: Iterable[Replica]) -> Iterator[Sample]:
        """Yield the samples of the metrics."""
        divergent = sum(each.acquaintances.record.diverged is not None for each in replicas)
        yield "fluxmq_mirror_divergent_groups", {}, float(divergent)
        yield "fluxmq_mirror_divergent_messages_total", {}, float(self.messages)

    # Contact with etcd

    def unanswered(self, group: str) -> None:
        """Note that control could not reach etcd with a request about a group."""
        now = self._now()
        first, last = self._failing.get(group, (now, now))
        self._failing[group] = (first if now - last < SILENT_SECONDS else now, now)

    def answered(self, groups: Iterable[str]) -> None:
        """Note that etcd was reached."""
        for group in groups:
            self._failing.pop(group, None)

    def may_begin(self, group: str) -> bool:
        """Return whether a leader that has lost a mirror goes on without etcd's agreement."""
        if self._handling == PAUSE_MINORITY or group not in self._failing:
            return False
        first, last = self._failing[group]
        return self._now() - first >= SILENT_SECONDS and self._now() - last < SILENT_SECONDS

    # Going on

    def begin(self, replica: Replica, record: GroupMirrors, status: RaftStatus) -> bool:
        """Mark a copy as divergent, durably; return whether it is. Nothing is committed without the
        others before."""
        hosted, group = replica.hosted, replica.plan.name
        messages = self.appended(hosted.group, ())
        mark = Divergence(status.term, status.commit, messages, record.forced)
        try:
            replica.acquaintances.diverge(mark)
        except StorageError as problem:
            hosted.group.fail(str(problem))
            return False
        self._begun.add(group)
        _log.warning(
            "a leader goes on without mirrors and without etcd: what it confirms now may be discarded",
            extra={"group": group, "term": status.term},
        )
        return True

    @staticmethod
    def without_others(status: RaftStatus) -> MembershipChange | None:
        """Return the next change by which a divergent leader becomes the only voter."""
        others = (number for number in status.membership.voters if number != status.id)
        number = next(others, None)
        return None if number is None else MembershipChange(ChangeVerb.ADD_LEARNER, number)

    def end(self, replica: Replica, mark: Divergence | None) -> None:
        """Go on as any other leader: the record names no mirror as synchronised since it was asked, by a copy
        with this mark."""
        group = replica.plan.name
        if mark is None or replica.acquaintances.record.diverged != mark:
            return
        try:
            replica.acquaintances.diverge(None)
        except StorageError as problem:
            replica.hosted.group.fail(str(problem))
            return
        self._begun.discard(group)
        _log.info("a leader reaches etcd again, and nobody else has led", extra={"group": group})

    # Giving way

    def is_over(self, replica: Replica, record: GroupMirrors | None) -> bool:
        """Return whether a divergent copy is to be discarded, because the record names another leader
        since. Under ``ignore``, one that diverged in this life is closed instead."""
        mark, group = replica.acquaintances.record.diverged, replica.plan.name
        if mark is None or record is None or record.leader == self._node:
            return False
        if record.epoch <= mark.epoch:
            return False
        if self._handling != IGNORE or group not in self._begun:
            return True
        if not replica.hosted.driver.halted:
            entries, messages = self._lone(replica, mark)
            replica.hosted.driver.halt()
            _log.warning(
                "a divergent copy is closed, and discarded when this node is started again",
                extra={"group": group, "entries": entries, "messages": messages},
            )
        return False

    def discarding(self, replica: Replica) -> None:
        """Count and log what a copy has that is discarded with it."""
        mark, group = replica.acquaintances.record.diverged, replica.plan.name
        if mark is None:
            return
        entries, messages = self._lone(replica, mark)
        self.messages += messages
        self._begun.discard(group)
        _log.warning(
            "a divergent copy is discarded: another leader has taken its place in a partition",
            extra={"group": group, "entries": entries, "messages": messages},
        )

    def _lone(self, replica: Replica, mark: Divergence) -> tuple[int, int]:
        """Return how many entries and messages were committed alone. After a restart, everything in the
        log counts: it may have been."""
        hosted, status = replica.hosted, replica.hosted.driver.node.status()
        end = status.commit if replica.plan.name in self._begun else status.last_index
        rest = _commands(replica, hosted.group.applied_index + 1, end + 1)
        messages = self.appended(hosted.group, rest) - mark.messages
        return max(0, end - mark.commit), max(0, messages)


def _commands(replica: Replica, low: int, high: int) -> Iterator[bytes]:
    """Yield the commands in the log from one index up to another."""
    while low < high:
        entries = replica.hosted.log.entries(low, high, READ_BYTES)
        for entry in entries:
            if entry.kind == COMMAND:
                yield entry.data
        low = entries[-1].index + 1

"""Copies of mirrored groups that are declared the truth although they may lack messages: the record names an
unsynchronised mirror as leader, because no other is there and the policy has the queues go on.

The copy becomes the group's only voter, with the others as learners, as by ``fluxmqctl force-quorum`` on a
stopped node (`forced_quorum`): first its member record says so, by which other members see that they
were left behind and discard their copies; then its log gets a membership entry behind everything else.
Meanwhile it is closed. After a crash between the two steps, both are done again.
"""

from __future__ import annotations

from dataclasses import replace

from fluxmq.ipc.mirrored_groups import GroupMirrors
from fluxmq.logs import get_logger
from fluxmq.raft.memberships import encode_membership
from fluxmq.raft.types import MEMBERSHIP, Membership, RaftStatus
from fluxmq.replication.hosted_groups import AnyHostedGroups
from fluxmq.replication.member_record import random_number, write_record
from fluxmq.replication.replica import Replica
from fluxmq.settings.plans import member_number
from fluxmq.storage.directory import DataPaths
from fluxmq.storage.errors import StorageError
from fluxmq.storage.files import Files

_log = get_logger("fluxmq.cluster")


class ForcedMirrors:
    """Those of one shard."""

    def __init__(self, hosting: AnyHostedGroups, files: Files, paths: DataPaths) -> None:
        self._hosting = hosting
        self._files = files
        self._paths = paths
        self._closed: set[str] = set()
        """Groups whose logs have the entry, which need not be in the files yet."""

    @staticmethod
    def is_due(replica: Replica, record: GroupMirrors, status: RaftStatus) -> bool:
        """Return whether a record makes this copy the truth, and it is not yet.

        A record that is out of date does not: a node that led is a learner of the next leader, and may hear of
        that before it hears of the record.
        """
        if record.forced > replica.acquaintances.record.forced[0]:
            return True
        return status.id not in status.membership.voters and status.term < record.epoch

    def force(self, replica: Replica, record: GroupMirrors) -> None:
        """Take the next step; called again until `is_due` is false."""
        hosted, name = replica.hosted, replica.plan.name
        driver = hosted.driver
        if not driver.halted:
            driver.halt()
        if not driver.at_rest() or hosted.checkpointing or hosted.group.failed:
            return
        status = driver.node.status()
        term, index = max(status.term, record.epoch), status.last_index + 1
        others = tuple(sorted({member_number(each) for each in record.members} - {status.id}))
        known = replica.acquaintances.record
        count = max(record.forced, known.forced[0])
        forced = replace(
            known,
            incarnation=random_number(),
            life=known.life + 1,
            mark=random_number(),
            known={},
            floor=(0, 0),
            forced=(count, random_number()),
            diverged=None,
        )
        membership = encode_membership(Membership((status.id,), others))
        self._hosting.release(name)
        self._hosting.replacing.add(name)
        self._closed.add(name)
        try:
            write_record(self._files, self._paths, name, forced)
        except StorageError as problem:
            _log.error("a copy cannot be used", extra={"group": name, "problem": str(problem)})
            return  # it is opened again, and the next look tries again
        wal = self._hosting.logs.of(name).wal
        number = wal.number(name)
        wal.append_entry(number, term, index, MEMBERSHIP, membership)
        wal.append_hard_state(number, term, status.id, status.commit)
        self._hosting.wake()
        _log.error(
            "an unsynchronised mirror leads a group: what it lacks is lost",
            extra={"group": name, "entries": index - 1},
        )

    def housekeeping(self) -> None:
        """Open groups again whose logs are in the files."""
        for name in list(self._closed):
            wal = self._hosting.logs.of(name).wal
            if not wal.buffered_bytes and not wal.in_flight:
                self._closed.discard(name)
                self._hosting.replacing.discard(name)
                self._hosting.reopen(name)

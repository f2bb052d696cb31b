"""Makes a stopped node's replicas of groups authoritative, after their majority is lost for good.

The member record of each group is changed first: a new incarnation, which remembers no other, and a
number by which other members see that they were left behind (`incarnation`). Then the log gets a
higher term and, behind everything else, a membership entry with this node as the only voter. At the
next start it elects itself and commits its log. After a crash between the two steps, it is done
again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from fluxmq.ipc.placements import shard_of
from fluxmq.raft.memberships import encode_membership
from fluxmq.raft.types import MEMBERSHIP, Membership
from fluxmq.replication.member_record import MemberRecord, random_number, read_record, write_record
from fluxmq.settings.group_names import is_mirrored
from fluxmq.settings.plans import GroupPlans, UnknownGroup, member_number
from fluxmq.settings.schema import Settings
from fluxmq.storage.directory import DataPaths, name_of, read_placement
from fluxmq.storage.errors import StorageError
from fluxmq.storage.files import Files
from fluxmq.storage.offline_log import offline_log
from fluxmq.storage.snapshots import latest_snapshot
from fluxmq.storage.wal import WriteAheadLog

TERMS_AHEAD: Final = 1 << 20
"""Increase of the term: members left behind may elect leaders among themselves until they meet the
forced replica. Other shards and nodes follow the leader with the highest term, which must be the
forced replica. At one election a second those members need twelve days to pass it."""


class Forcing:
    """Forces groups of one data directory, whose lock is held."""

    def __init__(self, files: Files, paths: DataPaths, settings: Settings) -> None:
        self._files = files
        self._paths = paths
        self._settings = settings
        self._plans = GroupPlans(settings)
        self._own = member_number(settings.cluster.node_id)

    def groups(self) -> list[str]:
        """Return the replicated groups of which this node is a member. Raises StorageError. Records in
        etcd decide about copies of mirrored groups."""
        if not self._files.exists(self._paths.groups):
            return []
        names = (name_of(each) for each in self._files.listdir(self._paths.groups))
        return sorted(
            name
            for name in names
            if name is not None and not is_mirrored(name) and self._hosts(name)
        )

    def _hosts(self, name: str) -> bool:
        record = read_record(self._files, self._paths, name)
        return record is not None and record.hosted

    def force(self, group: str, *, apply: bool) -> dict[str, Any]:
        """Inspect a group, or make this replica authoritative; return what it held. Raises
        StorageError."""
        if is_mirrored(group):
            raise StorageError(
                f"{group} is a group of mirrored queues: start this node, and run fluxmqctl forget_node"
                " for a leader that is gone for good"
            )
        record = read_record(self._files, self._paths, group)
        if record is None or not record.hosted:
            raise StorageError(f"this node has no copy of a replicated group {group}")
        with self._log(group) as wal:
            recovered = wal.recovered(group)
            snapshot = latest_snapshot(
                self._files, self._paths.snapshots(group), recovered.first_index
            )
            last, term = recovered.checkpoint_index, recovered.checkpoint_term
            if snapshot is not None and snapshot.index > last:
                last, term = snapshot.index, snapshot.term
            if recovered.entries:
                last, term = recovered.entries[-1].index, recovered.entries[-1].term
            hard_state = recovered.hard_state
            found = {"group": group, "last": last, "term": term, "nodes": self._nodes(group)}
            if not apply:
                return found
            write_record(self._files, self._paths, group, self._forced(record))
            self._files.reach("force.recorded")
            number = wal.number(group)
            term = max(hard_state.term, term) + TERMS_AHEAD
            alone = encode_membership(Membership((self._own,)))
            wal.append_entry(number, term, last + 1, MEMBERSHIP, alone)
            wal.append_hard_state(number, term, self._own, hard_state.commit)
        return found

    def _nodes(self, group: str) -> list[str]:
        """Return the other nodes that have had replicas, by the settings."""
        try:
            plan = self._plans.of(group)
        except UnknownGroup as problem:
            raise StorageError(str(problem)) from problem
        return [each.node for each in plan.nodes if each.number != self._own]

    def _forced(self, record: MemberRecord) -> MemberRecord:
        return replace(
            record,
            incarnation=random_number(),
            life=record.life + 1,
            mark=random_number(),
            known={},
            floor=(0, 0),
            forced=(record.forced[0] + 1, random_number()),
        )

    @contextlib.contextmanager
    def _log(self, group: str) -> Iterator[WriteAheadLog]:
        """Open the log that contains the group. Raises StorageError."""
        placement = read_placement(self._files, self._paths)
        if placement is None:
            raise StorageError(f"{self._paths.root} was never used by a broker")
        directory = self._paths.wal(shard_of(placement, group))
        with offline_log(self._files, directory, self._settings.storage.wal_file_bytes) as wal:
            if group not in wal.groups():
                raise StorageError(f"the log {directory} knows nothing of group {group}")
            yield wal

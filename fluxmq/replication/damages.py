"""Damaged copies: a node that opens one restarts as a member that has lost its directory, and the
other members fill it.

Damage found when a group is opened is in its part of the shard's log, its snapshots, or the
segments that a snapshot refers to. The files of the group are set aside (`storage.set_aside`), and
a new member record takes their place, with a new incarnation and with what the old one remembered
of others. **This node is no voter in it**, whatever the settings say: several nodes may be damaged
at once, and that must never produce an empty group. So it waits for a leader that remembers it,
notices that it has lost what it promised, removes it, and fills it (see ``incarnation``). Without
such a leader the group makes no progress, and everything that was set aside is kept.

A shard's log belongs to all its groups. It is set aside only when it holds no group that exists on
this node alone: such a group has no other copy, so the shard refuses to start, as a single node
would.

Damage found while a group is in use is in a segment that was read: the member keeps its promises,
which are in the log, and fetches the segments anew (`Snapshots`). If it led, it hands leadership to
another member meanwhile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from fluxmq.logs import get_logger
from fluxmq.replication.hosted_groups import AnyHostedGroups
from fluxmq.replication.member_record import (
    MemberRecord,
    random_number,
    read_record,
    record_path,
    write_record,
)
from fluxmq.replication.replica import Replica
from fluxmq.replication.shard_links import ShardLinks
from fluxmq.replication.shard_logs import WAL
from fluxmq.settings.clustering import BUFFERED, OWN_GROUP_PREFIXES
from fluxmq.settings.plans import GroupPlans, UnknownGroup, member_number
from fluxmq.storage.directory import DataPaths, name_of
from fluxmq.storage.errors import Corruption, FileMissing, Misfit
from fluxmq.storage.files import Files
from fluxmq.storage.set_aside import groups_in_log, set_group_aside, set_log_aside
from fluxmq.storage.snapshots import GroupSnapshotContent, find_snapshots

_log = get_logger("fluxmq.cluster")


class Damages:
    """Handling of damaged copies of one shard's groups. ``refetch`` begins to replace a copy by
    the leader's; it returns False if that is under way."""

    def __init__(
        self,
        replicas: Mapping[str, Replica],
        links: ShardLinks,
        plans: GroupPlans,
        hosting: AnyHostedGroups,
        refetch: Callable[[str], bool],
        files: Files,
        paths: DataPaths,
    ) -> None:
        self.found: Counter[str] = Counter()
        """By group, the number of times a copy was found damaged."""
        self._replicas = replicas
        self._links = links
        self._plans = plans
        self._hosting = hosting
        self._refetch = refetch
        self._files = files
        self._paths = paths

    # While a group is opened

    def mend(self, group: str, damage: Corruption) -> bool:
        """Reset a group that cannot be opened, and is not open; return whether to try again.

        False when no other node has it, or the fault is not in the files. Raises StorageError.
        """
        others = self._others(group)
        if not others or isinstance(damage, Misfit):
            return False
        try:
            self._hosting.logs.of(group)
        except Misfit:
            return False
        except Corruption as of_log:
            return self._mend_log(self._hosting.logs.directory(WAL), of_log)
        self._begin_anew(group, others, damage)
        self._hosting.forget(group)
        return True

    def _mend_log(self, directory: str, damage: Corruption) -> bool:
        """Reset all groups of the shard's damaged log, if other nodes have every one of them."""
        found = groups_in_log(self._files, directory)
        here = {name for name in found.names | self._directories() if self._is_placed_here(name)}
        others = {name: self._others(name) for name in here}
        alone = sorted(name for name in here if not others[name])
        if alone or not found.whole:
            _log.error(
                "a damaged log is not set aside: no other node holds all of its entries",
                extra={"problem": str(damage), "groups": alone or ["a group's name is lost"]},
            )
            return False
        # The log goes last: until then it is found damaged again, and resets are not repeated.
        for name in sorted(here):
            self._begin_anew(name, others[name], damage)
        kept = set_log_aside(self._files, directory)
        _log.error("a damaged log was set aside", extra={"problem": str(damage), "kept": kept})
        return True

    def _directories(self) -> set[str]:
        if not self._files.exists(self._paths.groups):
            return set()
        names = (name_of(each) for each in self._files.listdir(self._paths.groups))
        return {name for name in names if name is not None}

    def _is_placed_here(self, group: str) -> bool:
        buffered = group.startswith(BUFFERED)  # in the other log
        return not buffered and self._links.place_of(group) == self._links.shard

    def _others(self, group: str) -> tuple[int, ...]:
        """Return the other members that a group begins with; none for this node's own groups."""
        if group.startswith(OWN_GROUP_PREFIXES):
            return ()
        try:
            plan = self._plans.of(group)
        except UnknownGroup:
            return ()
        own = member_number(self._links.node)
        if self._voters(group) == (own,):
            return ()  # the others were removed from it
        members = plan.members if plan.own else plan.nodes
        return tuple(each.number for each in members if each.number != own)

    def _voters(self, group: str) -> tuple[int, ...]:
        """Return a group's voters by its newest readable snapshot; empty if there is none."""
        found = find_snapshots(self._files, self._paths.snapshots(group))
        try:
            return GroupSnapshotContent.decode(found.valid[0].content).voters if found.valid else ()
        except ValueError:
            return ()

    def _begin_anew(self, group: str, others: tuple[int, ...], damage: Corruption) -> None:
        """Set a group's files aside and become a new member of it. Raises StorageError."""
        before, raw = self._record(group)
        fresh = MemberRecord(
            random_number(),
            0,
            0,
            True,
            others,
            known={} if before is None else before.known,
            floor=(0, 0) if before is None else before.floor,
        )
        # From here on it states that it has lost what it promised, whatever files are left.
        write_record(self._files, self._paths, group, fresh)
        kept = set_group_aside(self._files, self._paths, group, raw)
        self.found[group] += 1
        _log.error(
            "a damaged replica was set aside and is restored from other members",
            extra={"group": group, "problem": str(damage), "kept": kept or "nothing"},
        )

    def _record(self, group: str) -> tuple[MemberRecord | None, bytes]:
        """Return this node's member record and the raw bytes of its file."""
        try:
            raw = self._files.read_file(record_path(self._paths, group))
        except FileMissing:
            return None, b""
        try:
            return read_record(self._files, self._paths, group), raw
        except Corruption:
            return None, raw

    # While a group is in use

    def met(self, group: str, why: str) -> None:
        """Fetch a copy again that proved damaged when read; quarantine it if its group failed."""
        replica = self._replicas.get(group)
        if replica is None or not self._refetch(group):
            return
        self.found[group] += 1
        _log.error("a damaged replica is fetched again", extra={"group": group, "problem": why})
        if replica.hosted.group.failed:
            replica.give_up(why)

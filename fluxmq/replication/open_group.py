"""A durable group on this shard with everything that belongs to it, and its recovery from disk."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic

from fluxmq.raft.commits import AT_COMMIT, MAJORITY, CommitRule, Wish
from fluxmq.raft.errors import InconsistentLog
from fluxmq.raft.node import Config, Node
from fluxmq.raft.types import Entry, HardState, Membership, Role
from fluxmq.replication.group_log import RaftGroupLog
from fluxmq.replication.ports import Machine, Made, StateMachine
from fluxmq.replication.raft_driver import RaftDriver
from fluxmq.replication.shared_log import SharedLog
from fluxmq.replication.stores import DiskStores
from fluxmq.storage.directory import DataPaths
from fluxmq.storage.errors import Corruption, Misfit
from fluxmq.storage.files import Files
from fluxmq.storage.hand_over import arrive
from fluxmq.storage.snapshots import (
    GroupSnapshot,
    GroupSnapshotContent,
    latest_snapshot,
    snapshot_name,
)
from fluxmq.storage.transfer_install import recover_install, restart_log
from fluxmq.storage.wal_options import Recovered

THIS_NODE = 1
"""Raft id of this node in groups of which it is the only member."""
ELECTION_TICKS = 10
HEARTBEAT_TICKS = 1
INFLIGHT_BYTES_MAX = 4 << 20
INFLIGHT_APPENDS_MAX = 2
"""One in transit while another is being synced; later proposals go with the next."""
MESSAGE_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class Member:
    """This node as a member of a group: its number, the voters of a new group, the speed of its
    clock, the place of its directory (None: with the others), whether the others learn the
    commit index at once, and when entries are committed."""

    number: int = THIS_NODE
    voters: tuple[int, ...] = (THIS_NODE,)
    election_ticks: int = ELECTION_TICKS
    heartbeat_ticks: int = HEARTBEAT_TICKS
    data_dir: str | None = None
    eager_commit: bool = True
    commit_rule: CommitRule = MAJORITY
    appointed: bool = False
    """True if a record names the leaders, instead of elections; with the rule `EVERY_VOTER`."""
    wish: Wish = AT_COMMIT
    """Condition for answering appends, unless `wishes` has another one for their queue."""
    wishes: Mapping[str, Wish] = field(default_factory=dict)

    @property
    def alone(self) -> bool:
        """True if the group is this node's alone. One of a cluster never is, even if it begins with one
        node: others may join."""
        return self.voters == (THIS_NODE,)


ALONE = Member()


@dataclass(slots=True, eq=False)
class OpenGroup(Generic[Machine]):
    """One durable group. ``checkpointing``: a checkpoint of it is being written."""

    group: Machine
    driver: RaftDriver
    log: RaftGroupLog
    stores: DiskStores
    shared: SharedLog
    checkpointing: bool = False
    checkpointed_at: float = 0.0
    snapshot_index: int = 0
    not_before: float = 0.0
    """Time before which no checkpoint is tried, after a failed one."""
    look_interval: float = 0.0
    """Seconds between checks of whether ``entries_max`` entries make a checkpoint due."""
    entries_max: int = 0
    """0: no number of entries makes a checkpoint due."""
    looked_at: float = 0.0
    keep_behind: int = 0
    """Entry behind which the log is kept, despite a later checkpoint, for a member that fetches
    that snapshot. 0: none."""
    mending: bool = False
    """True while its files are fetched again from another member: a failure is not final then."""
    told_full: bool = False
    """True if the last log line said that appends are refused."""
    pressed: bool = False
    """True if it holds back too much of the shard's log: nothing is then kept for others."""

    @property
    def entries_behind(self) -> int:
        """Entries applied since the last checkpoint, which a restart would have to apply again."""
        return self.group.applied_index - self.snapshot_index

    @property
    def role(self) -> str:
        """This node's role in the group: leader, follower, candidate, starting (about to lead),
        leaving, failed."""
        if self.group.failed:
            return "failed"
        if self.group.leaving:
            return "leaving"
        if self.driver.leading:
            return "leader"
        status = self.driver.node.status()
        if self.driver.alone or status.role is Role.LEADER:
            return "starting"
        return "follower" if status.leader else "candidate"


AnyHosted = OpenGroup[StateMachine]
"""A group whatever it replicates."""


def open_group(
    group: Made,
    stores: DiskStores,
    shared: SharedLog,
    files: Files,
    paths: DataPaths,
    member: Member = ALONE,
    draw: Callable[[int], int] | None = None,
) -> OpenGroup[Made]:
    """Recover a group from its snapshot and log, ready to be started. Raises StorageError.

    ``draw``: returns a random number below the given one, for election timeouts; None uses the
    system's.

    Another member's snapshot whose installation was interrupted is installed first. If that happens
    while the shard runs, the log must have written everything the group gave it: the vote is read
    from there.
    """
    installed = recover_install(files, paths, group.name)
    wal = shared.wal
    known = group.name in wal.groups()
    if not known and wal.synced:
        _check_new(files, paths, wal.directory, group.name)
    number = wal.number(group.name)
    recovered = wal.recovered(group.name) if known else None
    if installed is not None and recovered is not None:
        recovered = restart_log(files, paths, group.name, wal, recovered, installed)
    directory = paths.snapshots(group.name)
    first = recovered.first_index if recovered is not None and recovered.entries else None
    snapshot = latest_snapshot(files, directory, first)
    if recovered is not None:
        _check_reaches(directory, snapshot, recovered)
    index = term = 0
    membership = Membership(member.voters)
    if snapshot is not None:
        index, term = snapshot.index, snapshot.term
        state = _decoded(snapshot, directory)
        membership = Membership(state.voters, state.learners)
        _check_members(directory, group.name, membership, member)
        if recovered is None or recovered.checkpoint_index < index:
            # Its writer may have died before its name was durable, and the log is to go on from it.
            files.fsync_directory(directory)
        stores.restore(state.logs)
        group.restore(index, term, state.machine, directory)
    else:
        stores.restore({})
    arrive(files, paths, wal, group.name)
    wal.append_checkpoint(number, index, term)
    log = RaftGroupLog(wal, number, index, term)
    hard_state = HardState(term, 0, 0)
    if recovered is not None:
        hard_state = HardState(*recovered.hard_state)
        _note_entries(log, recovered, index, directory, group.name)
    config = _config(member)
    try:
        draw = draw or random.SystemRandom().randrange
        node = Node(config, log, hard_state, membership, index, draw)
    except InconsistentLog as error:
        raise Corruption(wal.directory, 0, f"group {group.name}: {error}") from error
    driver = RaftDriver(
        group, node, log, shared, _end_of_recovery(group, stores), member.commit_rule
    )
    driver.alone = member.alone
    group.join(driver, not member.alone)
    return OpenGroup(group, driver, log, stores, shared, snapshot_index=index)


def _config(member: Member) -> Config:
    """Return the Raft node's options for a member."""
    return Config(
        member.number,
        member.election_ticks,
        member.heartbeat_ticks,
        INFLIGHT_BYTES_MAX,
        MESSAGE_BYTES_MAX,
        eager_commit=member.eager_commit,
        max_inflight_appends=INFLIGHT_APPENDS_MAX,
        commit_rule=member.commit_rule,
        appointed=member.appointed,
    )


def _end_of_recovery(group: StateMachine, stores: DiskStores) -> Callable[[], None]:
    """Return the action to take when the group has applied its whole log."""

    def complete() -> None:
        stores.recovered()
        group.recovered()

    return complete


def _decoded(snapshot: GroupSnapshot, directory: str) -> GroupSnapshotContent:
    """Return the state that a snapshot holds. Raises Corruption."""
    try:
        return GroupSnapshotContent.decode(snapshot.content)
    except ValueError as error:
        raise Corruption(directory, 0, str(error)) from error


def _note_entries(
    log: RaftGroupLog, recovered: Recovered, index: int, directory: str, name: str
) -> None:
    """Register the log's entries behind the snapshot. Raises Corruption if some are missing."""
    entries = [entry for entry in recovered.entries if entry.index > index]
    if entries and entries[0].index != index + 1:
        what = f"group {name}: entries {index + 1} to {entries[0].index - 1} are missing"
        raise Corruption(directory, 0, what)
    for entry in entries:
        log.note(Entry(entry.term, entry.index, entry.kind, entry.body))


def _check_members(directory: str, name: str, membership: Membership, member: Member) -> None:
    """Check that a one-node group has not become a group of several, or the reverse. Raises
    Misfit."""
    was_alone = membership.voters == (THIS_NODE,)
    if was_alone != member.alone:
        what = "belongs to this node alone" if was_alone else "has other nodes as members"
        raise Misfit(
            directory,
            0,
            f"group {name} {what}, and the settings say otherwise: start it with the settings it was made with, and"
            " move its queues to a group of another name",
        )


def _check_new(files: Files, paths: DataPaths, log: str, name: str) -> None:
    """Check that a group unknown to its log is new, with nothing on disk. Raises Misfit.

    A group is declared in its log, durably, before anything of it is elsewhere.
    """
    for path in (paths.snapshots(name), paths.queues(name)):
        if files.exists(path) and files.listdir(path):
            raise Misfit(log, 0, f"the log knows nothing of group {name}, of which there is {path}")


def _check_reaches(directory: str, snapshot: GroupSnapshot | None, recovered: Recovered) -> None:
    """Check that the snapshot has what the log released. Raises Corruption: it is missing or
    outdated."""
    index = 0 if snapshot is None else snapshot.index
    if index < recovered.checkpoint_index:
        raise Corruption(
            f"{directory}/{snapshot_name(recovered.checkpoint_index)}",
            0,
            f"the log begins behind this snapshot, and the newest there is has entries up to {index}",
        )

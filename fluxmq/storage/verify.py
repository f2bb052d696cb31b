"""Every file of a stopped node's data directory looked at: groups, their snapshots and logs, the write-ahead logs.

Responsible for finding what belongs together: a log is measured against the state in its group's snapshot, a snapshot
against the entries that the write-ahead logs still hold behind it. Changes nothing. ``inspect`` looks into one log,
``wal_recovery`` into one write-ahead log.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from fluxmq.storage.directory import DataPaths, directory_name, name_of
from fluxmq.storage.errors import Corruption, StorageError
from fluxmq.storage.files import Files
from fluxmq.storage.inspect import LogReport, Problem, scan_log, segment_bases
from fluxmq.storage.log_state import LogState
from fluxmq.storage.snapshots import FoundSnapshots, GroupState, Snapshot, find_snapshots
from fluxmq.storage.wal_files import LogFile, file_name, open_key, sequences
from fluxmq.storage.wal_mark import read_mark
from fluxmq.storage.wal_records import file_seed
from fluxmq.storage.wal_recovery import Recovery, recover

NOTHING_PROMISED = LogState(0, 0, ())


@dataclass(slots=True)
class WalReport:
    """What a shard's write-ahead log holds: first and last entry of each group by name."""

    directory: str
    files: int = 0
    entries: dict[str, tuple[int, int]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


@dataclass(slots=True)
class GroupReport:
    """What is wrong with a group's snapshots; `logs`: the directories of its queues, each with what was promised of it.

    None: nothing was promised, and all of it has to be right.
    """

    name: str
    snapshot: int | None = None
    problems: list[Problem] = field(default_factory=list)
    logs: list[tuple[str, LogState | None]] = field(default_factory=list)


def directories(files: Files, path: str) -> list[str]:
    """Return the names in a directory that are not hidden; none when it is not there. Raises StorageError."""
    if not files.exists(path):
        return []
    return [name for name in files.listdir(path) if not name.startswith(".")]


def verify_wals(files: Files, paths: DataPaths) -> Iterator[WalReport]:
    """Read every shard's write-ahead log. Raises StorageError when files cannot be read at all."""
    for shard in directories(files, paths.shards):
        directory = f"{paths.shards}/{shard}/wal"
        if files.exists(directory):
            yield verify_wal(files, directory)


def verify_wal(files: Files, directory: str) -> WalReport:
    """Read one write-ahead log, changing nothing."""
    report = WalReport(directory)
    logs: list[LogFile] = []
    try:
        numbers = sequences(files, directory)
        if not numbers:
            return report
        key = open_key(files, directory, create=False)
        for number in numbers:
            path = f"{directory}/{file_name(number)}"
            fd = files.open_(path, readonly=True)
            logs.append(LogFile(number, path, fd, files.size(fd), file_seed(key, number)))
        _note(report, recover(files, logs, mark=read_mark(files, directory, key)))
    except Corruption as error:
        report.problems.append(Problem(error.path, error.position, error.what, False))
    finally:
        for log in logs:
            files.close(log.fd)
    return report


def _note(report: WalReport, recovery: Recovery) -> None:
    report.files = len(recovery.used)
    for group in recovery.groups.values():
        report.entries[group.name] = (group.first, group.last)


def verify_groups(
    files: Files, paths: DataPaths, entries: dict[str, tuple[int, int]]
) -> Iterator[GroupReport]:
    """Look at every group's snapshots. `entries`: first and last entry that the write-ahead logs have of each group."""
    held = {directory_name(group): span for group, span in entries.items()}
    for directory in directories(files, paths.groups):
        root = f"{paths.groups}/{directory}"
        report = GroupReport(name_of(directory) or directory)
        found = find_snapshots(files, f"{root}/snapshots")
        report.problems += [
            Problem(each.path, each.position, each.what, False) for each in found.damaged
        ]
        group = _group_state(report, root, found)
        first, last = held.get(directory, (1, 0))
        if first <= last:
            _check_reach(report, root, first)
        for queue in directories(files, f"{root}/queues"):
            promised = None if _is_copied(files, root) else _promised(group, queue)
            report.logs.append((f"{root}/queues/{queue}", promised))
        yield report


def _is_copied(files: Files, group: str) -> bool:
    """Whether a group's directory is in no data directory: no start mends what is wrong in it."""
    return not files.exists(f"{group}/../../VERSION")


def _group_state(report: GroupReport, root: str, found: FoundSnapshots) -> GroupState | None:
    """The state in the newest valid snapshot."""
    if not found.valid:
        return None
    newest: Snapshot = found.valid[0]
    report.snapshot = newest.index
    try:
        return GroupState.decode(newest.content)
    except ValueError as error:
        path = f"{root}/snapshots"
        report.problems.append(Problem(path, 0, f"snapshot {newest.index}: {error}", False))
        return None


def _promised(group: GroupState | None, directory: str) -> LogState:
    """What a group's snapshot says of the log in a directory of this name."""
    logs = {} if group is None else group.logs
    named = {directory_name(queue): state for queue, state in logs.items()}
    return named.get(directory, NOTHING_PROMISED)


def _check_reach(report: GroupReport, root: str, first: int) -> None:
    """Every entry is in the snapshot or behind it in the write-ahead log."""
    after = 1 if report.snapshot is None else report.snapshot + 1
    if first > after:
        what = f"entries {after} to {first - 1} are in no snapshot and in no write-ahead log"
        report.problems.append(Problem(f"{root}/snapshots", 0, what, False))


def promised_of(files: Files, directory: str) -> LogState | None:
    """Return what the snapshot of the group above a log's directory says of the log.

    None when there is no group above it, or one in a copy: then nothing is known, and all of it has to be right.
    """
    queues, _, queue = directory.rpartition("/")
    root, _, name = queues.rpartition("/")
    if name != "queues" or _is_copied(files, root):
        return None
    found = find_snapshots(files, f"{root}/snapshots")
    return _promised(_group_state(GroupReport(""), root, found), queue)


def log_at(files: Files, path: str) -> str | None:
    """Return the directory of the log that a path is of: the directory itself or one of its files; None if of none."""
    candidates = [path, path.rpartition("/")[0] or "."]
    for candidate in candidates:
        try:
            if files.exists(f"{candidate}/head") or segment_bases(files, candidate):
                return candidate
        except StorageError:
            continue
    return None


def verify_log(files: Files, directory: str, promised: LogState | None) -> LogReport:
    """Walk over one log; what cannot be read at all is a problem like any other."""
    try:
        return scan_log(files, directory, promised)
    except StorageError as error:
        report = LogReport(directory)
        report.problems.append(Problem(directory, 0, str(error), False))
        return report

"""Checks every file of a stopped node's data directory: groups, snapshots, logs, and write-ahead
logs.

Responsible for matching the parts: a log is compared with the state in its group's snapshot, a
snapshot with the later entries in the write-ahead logs. Changes nothing. ``inspect`` checks one
log, ``wal_recovery`` one write-ahead log.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from fluxmq.storage.directory import DataPaths, directory_name, name_of
from fluxmq.storage.errors import Corruption, StorageError
from fluxmq.storage.files import Files
from fluxmq.storage.inspect import Defect, LogReport, scan_log, segment_bases
from fluxmq.storage.log_state import LogState
from fluxmq.storage.snapshots import (
    FoundSnapshots,
    GroupSnapshot,
    GroupSnapshotContent,
    find_snapshots,
)
from fluxmq.storage.wal_files import LogFile, file_name, open_key, sequences
from fluxmq.storage.wal_mark import read_mark
from fluxmq.storage.wal_records import file_seed
from fluxmq.storage.wal_recovery import Recovery, recover

NOTHING_PROMISED = LogState(0, 0, ())


@dataclass(slots=True)
class WalReport:
    """Contents of a shard's write-ahead log: first and last entry of each group by name."""

    directory: str
    files: int = 0
    entries: dict[str, tuple[int, int]] = field(default_factory=dict)
    problems: list[Defect] = field(default_factory=list)


@dataclass(slots=True)
class GroupReport:
    """Problems of a group's snapshots; `logs`: the directories of its queues, each with the state
    its checkpoint promises.

    None: nothing is promised, and all of it must be correct.
    """

    name: str
    snapshot: int | None = None
    problems: list[Defect] = field(default_factory=list)
    logs: list[tuple[str, LogState | None]] = field(default_factory=list)


def directories(files: Files, path: str) -> list[str]:
    """Return the names in a directory that are not hidden; none when it does not exist. Raises
    StorageError."""
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
    """Read one write-ahead log, without changes."""
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
        report.problems.append(Defect(error.path, error.position, error.what, False))
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
    """Check every group's snapshots. `entries`: first and last entry of each group in the
    write-ahead logs."""
    held = {directory_name(group): span for group, span in entries.items()}
    for directory in directories(files, paths.groups):
        root = f"{paths.groups}/{directory}"
        report = GroupReport(name_of(directory) or directory)
        found = find_snapshots(files, f"{root}/snapshots")
        report.problems += [
            Defect(each.path, each.position, each.what, False) for each in found.damaged
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
    """Return whether a group's directory is outside a data directory, so that no start repairs
    it."""
    return not files.exists(f"{group}/../../VERSION")


def _group_state(
    report: GroupReport, root: str, found: FoundSnapshots
) -> GroupSnapshotContent | None:
    """Return the state in the newest valid snapshot."""
    if not found.valid:
        return None
    newest: GroupSnapshot = found.valid[0]
    report.snapshot = newest.index
    try:
        return GroupSnapshotContent.decode(newest.content)
    except ValueError as error:
        path = f"{root}/snapshots"
        report.problems.append(Defect(path, 0, f"snapshot {newest.index}: {error}", False))
        return None


def _promised(group: GroupSnapshotContent | None, directory: str) -> LogState:
    """Return the state that a group's snapshot promises of the log in a directory of this name."""
    logs = {} if group is None else group.logs
    named = {directory_name(queue): state for queue, state in logs.items()}
    return named.get(directory, NOTHING_PROMISED)


def _check_reach(report: GroupReport, root: str, first: int) -> None:
    """Check that every entry is in the snapshot or after it in the write-ahead log."""
    after = 1 if report.snapshot is None else report.snapshot + 1
    if first > after:
        what = f"entries {after} to {first - 1} are in no snapshot and in no write-ahead log"
        report.problems.append(Defect(f"{root}/snapshots", 0, what, False))


def promised_of(files: Files, directory: str) -> LogState | None:
    """Return the state of a log in the snapshot of the group above its directory.

    None without such a group, or for one in a copy: then nothing is known, and all of it must be
    correct.
    """
    queues, _, queue = directory.rpartition("/")
    root, _, name = queues.rpartition("/")
    if name != "queues" or _is_copied(files, root):
        return None
    found = find_snapshots(files, f"{root}/snapshots")
    return _promised(_group_state(GroupReport(""), root, found), queue)


def log_at(files: Files, path: str) -> str | None:
    """Return the log directory that a path is, or is a file of; None if neither."""
    candidates = [path, path.rpartition("/")[0] or "."]
    for candidate in candidates:
        try:
            if files.exists(f"{candidate}/head") or segment_bases(files, candidate):
                return candidate
        except StorageError:
            continue
    return None


def verify_log(files: Files, directory: str, promised: LogState | None) -> LogReport:
    """Walk one log; if it cannot be read at all, report that as a problem."""
    try:
        return scan_log(files, directory, promised)
    except StorageError as error:
        report = LogReport(directory)
        report.problems.append(Defect(directory, 0, str(error), False))
        return report

"""Puts a snapshot that came from another member in place of a group's files, whole or not at all.

What is to be put in place is complete and durable in its staging directory. Then, each step durable before the next:

1. the staging directory gets another name, so that nobody fetches into it any more, and `installing` is written, which
   names it: from here on the new state holds, and whoever finds the file goes on;
2. the group's queues get another name (`replaced`), the fetched ones theirs;
3. the group's snapshots are removed, and the fetched one is moved there;
4. the group is opened: the write-ahead log gives up what it had of the group and begins behind the snapshot, unless the
   log agrees with the snapshot at its entry: then what it has behind that stays, for it was acknowledged (`restart_log`);
5. at a later start, when that is durable, `installing` is removed.

Each step looks at what is there and may be repeated. Before the first nothing has changed, and what was fetched is used by
the next attempt.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgpack  # type: ignore[import-untyped]
import xxhash

from fluxmq.storage.directory import DataPaths
from fluxmq.storage.errors import Corruption, FileMissing
from fluxmq.storage.files import Files
from fluxmq.storage.snapshots import snapshot_index, snapshot_name
from fluxmq.storage.transfer import (
    TransferError,
    TransferPaths,
    listed,
    remove_tree,
    staged_mark,
)
from fluxmq.storage.transfer_source import remove_outgoing
from fluxmq.storage.wal import WriteAheadLog
from fluxmq.storage.wal_options import Recovered

_QUEUES_DEPTH: Final = 1
"""Directories below that of the queues: each queue's."""
_BESIDE: Final = ".tmp"
"""What `write_whole` puts behind the name of a file until it is whole."""
READY: Final = ".ready"
"""Ends the name of a staging directory that is complete and durable."""


class Installed(NamedTuple):
    """Which snapshot was put in place: its last entry and that one's term."""

    index: int  # type: ignore[assignment]  # tuple has a method of this name
    term: int

    @property
    def name(self) -> str:
        """What its staging directory is called while it is fetched."""
        return f"{self.index}-{self.term}"

    @property
    def ready(self) -> str:
        """What that is called when all is there, and it may be decided."""
        return self.name + READY


def decide(files: Files, paths: DataPaths, group: str, installed: Installed) -> None:
    """Have a snapshot that is ready take the place of what is there; it holds when this returns.

    Raises TransferError when the group has a newer one, StorageError.
    """
    newest = _newest_snapshot(files, paths, group)
    if newest > installed.index:
        raise TransferError(
            f"group {group} has snapshot {newest} already, which is newer than {installed.index}"
        )
    packed: bytes = msgpack.packb([group, installed.index, installed.term])
    transfer = TransferPaths(paths, group)
    ready = f"{transfer.incoming}/{installed.ready}"
    remove_staging(files, ready)
    files.rename(f"{transfer.incoming}/{installed.name}", ready)
    files.fsync_directory(transfer.incoming)
    files.reach("install.decide")
    files.write_whole(transfer.installing, xxhash.xxh3_64_digest(packed) + packed)


def decided(files: Files, paths: DataPaths, group: str) -> Installed | None:
    """Return what was decided and not yet forgotten, None if nothing was. Raises Corruption, StorageError."""
    path = TransferPaths(paths, group).installing
    try:
        data = files.read_file(path)
    except FileMissing:
        return None
    if xxhash.xxh3_64_digest(data[8:]) != data[:8]:
        raise Corruption(path, 0, "the check fails")
    match msgpack.unpackb(data[8:]):
        case [str(named), int(index), int(term)] if named == group:
            return Installed(index, term)
    raise Corruption(path, 8, f"it is not of group {group}")


def finish(files: Files, paths: DataPaths, group: str, installed: Installed) -> None:
    """Do what is left to do of what was decided. The group's files are not open. Raises Corruption, StorageError."""
    transfer = TransferPaths(paths, group)
    staging = f"{transfer.incoming}/{installed.ready}"
    queues, snapshots = paths.queues(group), paths.snapshots(group)
    name = snapshot_name(installed.index)
    if files.exists(f"{staging}/queues"):
        if files.exists(queues):
            remove_tree(files, transfer.replaced, _QUEUES_DEPTH)
            files.reach("install.replace")
            files.rename(queues, transfer.replaced)
            files.fsync_directory(transfer.root)
        files.reach("install.queues")
        files.rename(f"{staging}/queues", queues)
        files.fsync_directory(transfer.root)
        files.fsync_directory(staging)
    if files.exists(f"{staging}/{name}"):
        files.make_directory(snapshots)
        for other in files.listdir(snapshots):
            files.unlink(f"{snapshots}/{other}")
        files.reach("install.snapshot")
        files.rename(f"{staging}/{name}", f"{snapshots}/{name}")
        files.fsync_directory(snapshots)
        files.fsync_directory(staging)
    elif _newest_snapshot(files, paths, group) < installed.index:
        what = f"snapshot {installed.index} was being put in place, and it is nowhere"
        raise Corruption(transfer.installing, 0, what)


def recover_install(files: Files, paths: DataPaths, group: str) -> Installed | None:
    """At the opening of a group, before anything of it is read: finish an installation that was decided.

    Returns what was installed, for `restart_log`; None if nothing was. What no transfer needs any more is removed. Raises
    Corruption, StorageError.
    """
    installed = decided(files, paths, group)
    if installed is not None:
        finish(files, paths, group, installed)
    clean(files, paths, group)
    return installed


def restart_log(
    files: Files,
    paths: DataPaths,
    group: str,
    wal: WriteAheadLog,
    recovered: Recovered,
    installed: Installed,
) -> Recovered:
    """Have a group's part of the log follow an installation; returns what then is in the log. Raises StorageError.

    `recovered`: what was in the log before. Entries behind the snapshot's stay if the log has that entry with the same term
    (Raft's paper, figure 13, step 6). Nothing is done when it was done before; when that is durable, the installation is
    forgotten.
    """
    number = wal.number(group)
    if recovered.checkpoint_index >= installed.index:
        if wal.durable_checkpoint(number) >= installed.index:
            forget_install(files, paths, group)
        return recovered
    at = installed.index - recovered.first_index
    if 0 <= at < len(recovered.entries) and recovered.entries[at].term == installed.term:
        return recovered
    wal.restart(number, installed.index, installed.term)
    commit = min(recovered.hard_state.commit, installed.index)
    hard_state = recovered.hard_state._replace(commit=commit)
    return Recovered(hard_state, installed.index + 1, [], installed.index, installed.term)


def forget_install(files: Files, paths: DataPaths, group: str) -> None:
    """What was decided is done, and the log durably agrees. Raises StorageError."""
    transfer = TransferPaths(paths, group)
    files.reach("install.forget")
    files.unlink(transfer.installing)
    files.fsync_directory(transfer.root)


def clean(files: Files, paths: DataPaths, group: str) -> None:
    """Remove what nobody needs: replaced queues, names of what was being sent, what was fetched of snapshots that the group
    is ahead of; of the others the newest is kept. Raises StorageError.

    May take a moment for many files. Only while nothing is sent or fetched.
    """
    transfer = TransferPaths(paths, group)
    remove_tree(files, transfer.replaced, _QUEUES_DEPTH)
    if files.exists(transfer.installing + _BESIDE):
        files.unlink(transfer.installing + _BESIDE)
    remove_outgoing(files, paths, group)
    for name in listed(files, transfer.incoming):
        fetched = name.removesuffix(READY)
        if fetched != name and not files.exists(f"{transfer.incoming}/{fetched}"):
            # It was not decided, or it is empty by now.
            files.rename(f"{transfer.incoming}/{name}", f"{transfer.incoming}/{fetched}")
    names = listed(files, transfer.incoming)
    newest = _newest_snapshot(files, paths, group)
    marks = {name: staged_mark(name) for name in names}
    ahead = {name: mark for name, mark in marks.items() if mark is not None and mark[0] > newest}
    kept = max(ahead, key=lambda name: ahead[name], default=None)
    for name in names:
        if name != kept:
            remove_staging(files, f"{transfer.incoming}/{name}")


def remove_staging(files: Files, directory: str) -> None:
    """Remove what was fetched of one snapshot. Raises StorageError."""
    remove_tree(files, f"{directory}/queues", _QUEUES_DEPTH)
    remove_tree(files, directory, 0)


def _newest_snapshot(files: Files, paths: DataPaths, group: str) -> int:
    """Index of the newest snapshot by name, 0 when there is none."""
    names = listed(files, paths.snapshots(group))
    return max((snapshot_index(name) or 0 for name in names), default=0)

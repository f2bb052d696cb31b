"""Installs a snapshot from another member in place of a group's files, atomically.

The snapshot is complete and durable in its staging directory. Then, each step durable before the
next:

1. the staging directory is renamed, so that nothing is fetched into it any more, and `installing`
   is written, which names it: from here on the new state is authoritative, and a restart continues;
2. the group's queues are renamed (`replaced`), the fetched ones take their names;
3. the group's snapshots are removed, and the fetched one is moved there;
4. the group is opened: the write-ahead log drops its entries of the group and starts after the
   snapshot, unless it agrees with the snapshot at its entry: then later entries stay, for they were
   acknowledged (`restart_log`);
5. at a later start, when that is durable, `installing` is removed.

Each step checks the files and may be repeated. Before the first nothing has changed, and the next
attempt reuses what was fetched.
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
"""Directory levels below that of the queues: each queue's."""
_BESIDE: Final = ".tmp"
"""Suffix that `write_whole` adds to a file's name until it is complete."""
READY: Final = ".ready"
"""Suffix of a staging directory that is complete and durable."""


class Installed(NamedTuple):
    """The snapshot that was installed: index and term of its last entry."""

    index: int  # type: ignore[assignment]  # tuple has a method of this name
    term: int

    @property
    def name(self) -> str:
        """Name of its staging directory while it is fetched."""
        return f"{self.index}-{self.term}"

    @property
    def ready(self) -> str:
        """Name of that directory once it is complete, and may be decided."""
        return self.name + READY


def decide(files: Files, paths: DataPaths, group: str, installed: Installed) -> None:
    """Let a ready snapshot replace the group's state; authoritative when this returns.

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
    """Return the pending decision, None if there is none. Raises Corruption, StorageError."""
    path = TransferPaths(paths, group).installing
    try:
        data = files.read_file(path)
    except FileMissing:
        return None
    if xxhash.xxh3_64_digest(data[8:]) != data[:8]:
        raise Corruption(path, 0, "the checksum does not match")
    match msgpack.unpackb(data[8:]):
        case [str(named), int(index), int(term)] if named == group:
            return Installed(index, term)
    raise Corruption(path, 8, f"it is not of group {group}")


def finish(files: Files, paths: DataPaths, group: str, installed: Installed) -> None:
    """Complete a decided installation. The group's files must be closed. Raises Corruption,
    StorageError."""
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
    """Finish a decided installation when a group is opened, before anything of it is read.

    Returns what was installed, for `restart_log`; None if nothing was. Files that no transfer needs
    any more are removed. Raises Corruption, StorageError.
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
    """Make a group's part of the log follow an installation; return its new contents. Raises
    StorageError.

    `recovered`: its contents before. Entries after the snapshot's stay if the log has that entry
    with the same term (Raft's paper, figure 13, step 6). Does nothing if already done; once that is
    durable, the installation is forgotten.
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
    """Forget an installation that is complete and with which the log durably agrees. Raises
    StorageError."""
    transfer = TransferPaths(paths, group)
    files.reach("install.forget")
    files.unlink(transfer.installing)
    files.fsync_directory(transfer.root)


def clean(files: Files, paths: DataPaths, group: str) -> None:
    """Remove unneeded files: replaced queues, links for sending, and fetched snapshots that are
    older than the group; of the others the newest is kept. Raises StorageError.

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
    """Remove the fetched parts of one snapshot. Raises StorageError."""
    remove_tree(files, f"{directory}/queues", _QUEUES_DEPTH)
    remove_tree(files, directory, 0)


def _newest_snapshot(files: Files, paths: DataPaths, group: str) -> int:
    """Return the index of the newest snapshot by name, 0 when there is none."""
    names = listed(files, paths.snapshots(group))
    return max((snapshot_index(name) or 0 for name in names), default=0)

"""Groups that a log still holds although they live elsewhere: they were on the way when the shard or the node ended."""

from __future__ import annotations

from fluxmq.storage.directory import DataPaths
from fluxmq.storage.errors import Corruption
from fluxmq.storage.files import Files
from fluxmq.storage.snapshots import latest_snapshot
from fluxmq.storage.wal import WriteAheadLog


def forget(files: Files, paths: DataPaths, directory: str, wal: WriteAheadLog, name: str) -> None:
    """Have a group leave a log, with the next write. Raises Corruption when its snapshot does not have all of it.

    A group leaves a shard with everything in a snapshot, so entries beyond that say that the placement is wrong.
    """
    number = wal.number(name)
    last = wal.last_index(number)
    snapshot = latest_snapshot(files, paths.snapshots(name))
    held = 0 if snapshot is None else snapshot.index
    if last > held:
        what = f"entries {held + 1} to {last} of group {name}, which is placed on another shard"
        raise Corruption(directory, 0, what)
    wal.forget(number)

"""Groups that a log still holds although they live elsewhere: they were on the way when the shard or the node ended."""

from __future__ import annotations

from fluxmq.storage.directory import DataPaths
from fluxmq.storage.errors import Corruption
from fluxmq.storage.files import Files
from fluxmq.storage.hand_over import MARK, discard, is_mark, is_marked
from fluxmq.storage.snapshots import latest_snapshot
from fluxmq.storage.wal import WriteAheadLog


def forget(files: Files, paths: DataPaths, wal: WriteAheadLog, name: str) -> None:
    """Have a group leave a log, with the next write. Raises Corruption when it would be lost by that.

    Another log has what is marked as handed over (`storage.hand_over`). Without a mark, entries that the group's snapshot
    does not have say that the placement is wrong.
    """
    if not is_marked(wal, name):
        last = wal.last_index(wal.number(name))
        snapshot = latest_snapshot(files, paths.snapshots(name))
        held = 0 if snapshot is None else snapshot.index
        if last > held:
            what = f"entries {held + 1} to {last} of group {name}, which is placed on another shard"
            raise Corruption(wal.directory, 0, what)
    discard(wal, name)


def forget_marks(wal: WriteAheadLog) -> None:
    """Have marks leave a log, with the next write, whose groups left it in a write that was torn."""
    groups = wal.groups()
    for name in groups:
        if is_mark(name) and name.removeprefix(MARK) not in groups:
            wal.forget(wal.number(name))

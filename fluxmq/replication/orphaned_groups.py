"""Groups left in a log although they live elsewhere: the shard or node ended during their move."""

from __future__ import annotations

from fluxmq.storage.directory import DataPaths
from fluxmq.storage.errors import Corruption
from fluxmq.storage.files import Files
from fluxmq.storage.hand_over import MARK, discard, is_mark, is_marked
from fluxmq.storage.snapshots import latest_snapshot
from fluxmq.storage.wal import WriteAheadLog


def forget(files: Files, paths: DataPaths, wal: WriteAheadLog, name: str) -> None:
    """Remove a group from a log, with the next write. Raises Corruption if that would lose it.

    What is marked as handed over (`storage.hand_over`) is in another log. Without a mark, entries
    beyond the group's snapshot mean that the placement is wrong.
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
    """Remove marks, with the next write, whose groups left the log in a write that was torn."""
    groups = wal.groups()
    for name in groups:
        if is_mark(name) and name.removeprefix(MARK) not in groups:
            wal.forget(wal.number(name))

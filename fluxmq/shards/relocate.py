"""``python -m fluxmq.shards.relocate``: move groups that change their shard, before the shards
start.

Run once by the supervisor when a node starts with another number of shards or other pins than
before. Standard input has, as JSON, the new placement and the settings; placement.json still has
the old one. Each group that moves is copied from its old shard's log to the new one's as it is:
hard state, checkpoint and every later entry, committed or not. Nothing is applied and nobody votes,
so it does not matter whether the group has replicas on other nodes. Only when all copies are
durable does this program exit with 0, and the supervisor writes the new placement; after an earlier
crash the old one stays valid and the program can run again (`storage.hand_over` describes how a log
tells which copy is valid). Sessions and retained messages move to their new shards at the same
time.

No event loop and no threads except the one that syncs: everything happens in order.
"""

from __future__ import annotations

import select
import sys
import time
from contextlib import ExitStack
from typing import Self

import orjson

from fluxmq.ipc.launch import EXIT_BOOT_FAILURE, EXIT_OK, die_with_parent
from fluxmq.ipc.placements import placement_from_body, shard_of
from fluxmq.replication.orphaned_groups import forget, forget_marks
from fluxmq.replication.shard_logs import WAL, WAL_BUFFERED
from fluxmq.replication.shared_log import SharedLog
from fluxmq.settings.schema import Settings
from fluxmq.storage.directory import DataPaths, Placement, read_placement
from fluxmq.storage.errors import StorageError, WriteFailed
from fluxmq.storage.files import Files
from fluxmq.storage.hand_over import (
    LogPosition,
    append_copy,
    begin_copy,
    groups_of,
    in_pieces,
    mark,
)
from fluxmq.storage.state_redistribution import redistribute
from fluxmq.storage.syncer import Syncer
from fluxmq.storage.wal import WriteAheadLog
from fluxmq.storage.wal_options import WalOptions

SYNC_SECONDS_MAX = 60.0
"""Duration of a sync after which the disk counts as broken."""


class Relocation:
    """Moves groups between the logs of one data directory. A context manager that closes its
    files."""

    def __init__(self, files: Files, paths: DataPaths, settings: Settings) -> None:
        self._files = files
        self._paths = paths
        self._settings = settings
        self._logs: dict[tuple[int, str], tuple[SharedLog, Syncer]] = {}
        self._open = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def run(self, before: Placement, after: Placement) -> list[str]:
        """Copy groups that change their shard to their new logs; return their names. Raises
        StorageError."""
        moves: list[tuple[str, int, str]] = []
        for shard, kind in self._found():
            wal = self._log(shard, kind)[0].wal
            forget_marks(wal)
            for name in sorted(groups_of(wal)):
                if shard_of(before, name) != shard:
                    # It left this shard in an earlier move that ended before the log dropped it.
                    forget(self._files, self._paths, wal, name)
                elif shard_of(after, name) != shard:
                    moves.append((name, shard, kind))
        for name, shard, kind in moves:
            self._copy(name, shard, shard_of(after, name), kind)
        for shard, kind in list(self._logs):
            self._sync(shard, kind)
        self._files.reach("relocate.copied")
        # Only now: a marked group is dropped wherever the placement says that it is elsewhere.
        for name, shard, kind in moves:
            mark(self._log(shard, kind)[0].wal, name)
        for shard, kind in list(self._logs):
            self._sync(shard, kind)
        self._files.reach("relocate.marked")
        return [name for name, _, _ in moves]

    def _found(self) -> list[tuple[int, str]]:
        """Return the existing logs, including those of shards that will be removed."""
        if not self._files.exists(self._paths.shards):
            return []
        shards = [name for name in self._files.listdir(self._paths.shards) if name.isdecimal()]
        return [
            (shard, kind)
            for shard in sorted(map(int, shards))
            for kind in (WAL, WAL_BUFFERED)
            if self._files.exists(self._directory(shard, kind))
        ]

    def _directory(self, shard: int, kind: str) -> str:
        return self._paths.wal(shard) + kind.removeprefix(WAL)

    def _log(self, shard: int, kind: str) -> tuple[SharedLog, Syncer]:
        """Return a log, opened on first use. A buffered one is synced here like the other."""
        found = self._logs.get((shard, kind))
        if found is None:
            syncer = Syncer()
            self._open.callback(syncer.close)
            options = WalOptions(
                file_bytes=self._settings.storage.wal_file_bytes,
                synced=kind == WAL,
                background=False,
            )
            directory = self._directory(shard, kind)
            wal = WriteAheadLog.open(self._files, directory, syncer, options)
            self._open.callback(wal.close)
            found = self._logs[shard, kind] = (SharedLog(wal, lambda: None), syncer)
        return found

    def _sync(self, shard: int, kind: str) -> None:
        """Wait until everything written to a log is durable. Raises StorageError."""
        shared, syncer = self._logs[shard, kind]
        deadline = time.monotonic() + SYNC_SECONDS_MAX
        poll = select.poll()
        poll.register(syncer, select.POLLIN)
        while shared.wal.buffered_bytes or shared.wal.in_flight:
            shared.flush()
            poll.poll(1000)
            shared.completed()
            if shared.failed or time.monotonic() > deadline:
                raise WriteFailed(shared.failed or f"{self._directory(shard, kind)}: no sync")

    def _copy(self, name: str, shard: int, target: int, kind: str) -> None:
        """Copy everything a log has of a group to another log. Raises StorageError."""
        wal, to = self._log(shard, kind)[0].wal, self._log(target, kind)[0].wal
        number = wal.number(name)
        position = LogPosition(
            *wal.hard_state(number), *wal.checkpoint(number), wal.last_index(number)
        )
        copy = begin_copy(to, name, position)
        for piece in in_pieces(wal.written(number)):
            append_copy(to, copy, piece)
            self._sync(target, kind)
        assert to.last_index(copy) == position.last, "all of it moves"


def relocate(settings: Settings, after: Placement) -> list[str]:
    """Move the logs of a data directory to another placement. Raises StorageError."""
    files, paths = Files(), DataPaths(settings.storage.data_dir)
    before = read_placement(files, paths)
    if before is None:
        return []
    with Relocation(files, paths, settings) as relocation:
        return relocation.run(before, after)


def main() -> int:
    """Carry out the request on standard input; return 0, or 3 with a message on standard error."""
    asked = orjson.loads(sys.stdin.buffer.read())
    die_with_parent(asked["parent"])
    try:
        settings = Settings.model_validate_json(asked["settings"])
        placement = placement_from_body(asked["placement"])
        moved = relocate(settings, placement)
        redistribute(Files(), DataPaths(settings.storage.data_dir), placement.workers)
    except StorageError as problem:
        sys.stderr.write(f"storage.data_dir: {problem}\n")
        return EXIT_BOOT_FAILURE
    sys.stdout.write("".join(f"{name}\n" for name in moved))
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main())

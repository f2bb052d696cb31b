"""``python -m fluxmq.shards.relocate``: before the shards start, groups that change their shard are taken out of logs.

Run by the supervisor, once, when a node starts with another number of shards or other pins than it ran with. Standard
input says, as JSON, what placement comes and by which settings; placement.json still says what was. Each group that
comes to live elsewhere is recovered from the log of its old shard, put into a snapshot whole, and declared, with its
hard state, in the log of its new one. Only when that is durable does this program end with 0, and the supervisor
writes the new placement; a crash before leaves the old one valid, and all of this can be done again. Sessions and
retained messages are brought to their new homes at the same time.

No event loop and no threads but the one that syncs: everything happens in order.
"""

from __future__ import annotations

import select
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Self

import orjson

from fluxmq.control.launch import EXIT_BOOT_FAILURE, EXIT_OK, die_with_parent
from fluxmq.control.placements import placement_from_body, shard_of
from fluxmq.settings.schema import Settings
from fluxmq.shards.queues.checkpoints import capture, write
from fluxmq.shards.queues.group import Group
from fluxmq.shards.queues.hosted import Hosted, open_group
from fluxmq.shards.queues.names import BUFFERED
from fluxmq.shards.queues.shard_logs import WAL, WAL_BUFFERED
from fluxmq.shards.queues.shared_log import SharedLog
from fluxmq.shards.queues.stores import DiskStores, segment_options
from fluxmq.shards.queues.strays import forget
from fluxmq.storage.batch_cache import BatchCache
from fluxmq.storage.directory import DataPaths, Placement, read_placement
from fluxmq.storage.errors import StorageError, WriteFailed
from fluxmq.storage.files import Files
from fluxmq.storage.log_reader import OpenSegments
from fluxmq.storage.open_files import OpenFiles
from fluxmq.storage.state_moving import redistribute
from fluxmq.storage.syncer import Syncer
from fluxmq.storage.wal import WriteAheadLog
from fluxmq.storage.wal_options import WalOptions

UNCOMMITTED_MAX = 1 << 62
"""Nobody appends here."""
CACHE_BYTES = 1 << 20
SYNC_SECONDS_MAX = 60.0
"""A disk that takes longer for one sync than this is taken for broken."""


@dataclass(frozen=True, slots=True)
class Taken:
    """A group whose snapshot has everything: its hard state, and what its snapshot is."""

    name: str
    hard_state: tuple[int, int, int]
    index: int
    term: int


class Relocation:
    """Moves groups between the logs of one data directory. A context manager: it closes what it opened."""

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
        """Take out of their logs all groups that change their shard; their names. Raises StorageError."""
        taken = []
        for shard, kind in self._found():
            wal = self._log(shard, kind)[0].wal
            for name in sorted(wal.groups()):
                if shard_of(before, name) != shard:
                    # It left this shard before; the end of that move came too early to forget it.
                    forget(self._files, self._paths, self._directory(shard, kind), wal, name)
                elif shard_of(after, name) != shard:
                    taken.append(self._take(name, shard, kind))
            self._sync(shard, kind)
        self._files.reach("relocate.taken")
        for group in taken:
            self._declare(group, shard_of(after, group.name))
        for shard, kind in list(self._logs):
            self._sync(shard, kind)
        self._files.reach("relocate.declared")
        return [group.name for group in taken]

    def _found(self) -> list[tuple[int, str]]:
        """The logs there are, those of shards that will be no more too."""
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
        """A log, opened when it is first needed. A buffered one is synced here like the other."""
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
        """Until everything written to a log is durable. Raises StorageError."""
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

    def _take(self, name: str, shard: int, kind: str) -> Taken:
        """Bring a group back as its log has it, and put all of it into a snapshot. Raises StorageError."""
        shared, _ = self._log(shard, kind)
        options = segment_options(self._settings)
        cache, segments = BatchCache(CACHE_BYTES), OpenSegments(OpenFiles(self._files))
        stores = DiskStores(self._files, self._paths, name, options, cache, segments)
        group = Group(
            name,
            stores,
            lambda _group: None,
            lambda _group, _dead: None,
            lambda: time.time_ns() // 1000,
            0,
            UNCOMMITTED_MAX,
        )
        hosted = open_group(group, stores, shared, self._files, self._paths)
        try:
            hosted.keeper.start()
            self._sync(shard, kind)  # on the way everything is applied, as the group elects itself
            return self._checkpoint(hosted)
        finally:
            stores.close()
            shared.leave(hosted.keeper)

    def _checkpoint(self, hosted: Hosted) -> Taken:
        """Write a snapshot of everything applied. Raises StorageError, also when the group did not come back."""
        if not hosted.keeper.leading:
            why = hosted.group.failed or "it was not led after its recovery"
            raise StorageError(f"group {hosted.group.name}: {why}")
        index, term, content, parts = capture(hosted)
        name = hosted.group.name
        write(self._files, self._paths, name, index, term, content, parts)
        hosted.stores.synced(parts, None)
        hosted.log.compact(index)
        own_term, vote = hosted.keeper.hard_state
        commit = hosted.keeper.node.status().commit
        return Taken(name, (own_term, vote, commit), index, term)

    def _declare(self, group: Taken, shard: int) -> None:
        """A group begins in a log behind its snapshot, with the hard state it had."""
        kind = WAL_BUFFERED if group.name.startswith(BUFFERED) else WAL
        wal = self._log(shard, kind)[0].wal
        number = wal.number(group.name)
        wal.append_hard_state(number, *group.hard_state)
        wal.append_checkpoint(number, group.index, group.term)


def relocate(settings: Settings, after: Placement) -> list[str]:
    """Bring a data directory from its placement to another one, as far as logs go. Raises StorageError."""
    files, paths = Files(), DataPaths(settings.storage.data_dir)
    before = read_placement(files, paths)
    if before is None:
        return []
    with Relocation(files, paths, settings) as relocation:
        return relocation.run(before, after)


def main() -> int:
    """Do what standard input says; 0, or 3 with a sentence on standard error."""
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

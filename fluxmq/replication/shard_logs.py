"""The write-ahead logs of one shard: one syncs before it acknowledges, the other afterwards.

Each is opened when a group first needs it. The group's name determines its log.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import Executor

from fluxmq.net.reactor import Reactor
from fluxmq.replication.disk import ClosableSyncQueue, Disk
from fluxmq.replication.shared_log import BufferedSyncer, SharedLog, SyncTimes
from fluxmq.settings.clustering import BUFFERED
from fluxmq.settings.schema import Settings
from fluxmq.storage.directory import DataPaths
from fluxmq.storage.wal import WriteAheadLog
from fluxmq.storage.wal_options import WalOptions

WAL = "wal"
"""The log that acknowledges after the sync; name in listings and metrics, and of its directory."""
WAL_BUFFERED = "wal-buffered"
"""The log that acknowledges before the sync."""


class ShardLogs:
    """The logs of one shard, by kind. ``wake`` schedules the end of a tick; ``is_awaited``: see
    `SharedLog`."""

    def __init__(
        self,
        shard: int,
        settings: Settings,
        paths: DataPaths,
        disk: Disk,
        reactor: Reactor,
        wake: Callable[[], None],
        is_awaited: Callable[[], bool],
    ) -> None:
        self.opened: dict[str, SharedLog] = {}
        self.observe_sync: Callable[[str, float], None] = lambda _log, _seconds: None
        """Called with a log's name and the seconds of each of its syncs."""
        self._shard = shard
        self._settings = settings
        self._paths = paths
        self._disk = disk
        self._reactor = reactor
        self._wake = wake
        self._is_awaited = is_awaited
        self.syncers: list[ClosableSyncQueue] = []
        self._next_buffered = 0.0

    def directory(self, kind: str) -> str:
        """Return the directory of a log's files."""
        return self._paths.wal(self._shard) + kind.removeprefix(WAL)

    def of(self, group: str) -> SharedLog:
        """Return the log that a group writes to, opened on first use. Raises StorageError."""
        return self.open(WAL_BUFFERED if group.startswith(BUFFERED) else WAL)

    def open(self, kind: str) -> SharedLog:
        """Return the log of a kind. Raises StorageError."""
        found = self.opened.get(kind)
        if found is None:
            files = self._disk.files
            direct = self._settings.storage.wal_direct_io
            own = self.directory(kind) if direct else ""
            syncer = self._disk.syncer(own) if kind == WAL else BufferedSyncer(files)
            times = SyncTimes(lambda seconds: self.observe_sync(kind, seconds))
            wal = WriteAheadLog.open(
                files,
                self.directory(kind),
                syncer,
                WalOptions(
                    file_bytes=self._settings.storage.wal_file_bytes,
                    synced=kind == WAL,
                    background=self._disk.background,
                    cores=self._disk.spare,
                ),
                on_sync=times,
            )
            cluster = self._settings.cluster
            # With other nodes to talk to there is more to do than to poll for the end of a sync.
            alone = not (cluster.enabled and cluster.raft.enabled)
            beside = kind == WAL and self._disk.beside and alone
            found = self.opened[kind] = SharedLog(
                wal, self._wake, times, polling=beside, is_awaited=self._is_awaited
            )
            self.syncers.append(syncer)
            self._reactor.watch(syncer.fileno(), found.ready)
        return found

    def all(self) -> list[SharedLog]:
        """Return the open logs."""
        return list(self.opened.values())

    def settle(self) -> None:
        """Sync writes that were acknowledged before a sync (blocks). Raises WriteFailed."""
        for syncer in self.syncers:
            if isinstance(syncer, BufferedSyncer):
                syncer.settle()

    @property
    def next_due(self) -> float:
        """Moment to sync writes that were acknowledged before a sync, in monotonic seconds;
        infinite without any."""
        dirty = any(isinstance(each, BufferedSyncer) and each.dirty for each in self.syncers)
        return self._next_buffered if dirty else math.inf

    def sync_later(self, now: float, executor: Executor) -> None:
        """Sync writes that were acknowledged before a sync, in the background, when due."""
        for syncer in self.syncers:
            if isinstance(syncer, BufferedSyncer) and syncer.dirty and now >= self._next_buffered:
                self._next_buffered = now + self._settings.storage.queue_sync_interval
                executor.submit(syncer.sync)

    def close(self) -> None:
        """Close all files."""
        for log in self.opened.values():
            log.close()
        for syncer in self.syncers:
            syncer.close()
        self.syncers.clear()

"""A durable group's queues on disk: their logs, and the part of a checkpoint that concerns
all of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from fluxmq.settings.clustering import BUFFERED
from fluxmq.settings.schema import Settings
from fluxmq.settings.values import microseconds
from fluxmq.storage.batch_cache import BatchCache
from fluxmq.storage.directory import DataPaths, delete_directory, remove_unknown
from fluxmq.storage.errors import Exhausted, StorageError
from fluxmq.storage.files import Files
from fluxmq.storage.log_reader import OpenSegments
from fluxmq.storage.log_state import LogState
from fluxmq.storage.queue_log import QueueLog, SegmentOptions, Unsynced


def segment_options(settings: Settings) -> SegmentOptions:
    """Return the settings' segment options, which apply wherever a group is recovered."""
    storage = settings.storage
    return SegmentOptions(
        storage.segment_bytes, microseconds(storage.segment_age), storage.index_bytes
    )


class DiskStores:
    """Implements ``QueueStores`` for one group. ``cache`` and ``segments`` belong to the shard."""

    def __init__(
        self,
        files: Files,
        paths: DataPaths,
        group: str,
        options: SegmentOptions,
        cache: BatchCache,
        segments: OpenSegments,
        settle: Callable[[], None] | None = None,
    ) -> None:
        """``settle`` is called before files are removed, to make the entry that requested it
        durable."""
        self._files = files
        self._paths = paths
        self._group = group
        self._options = options
        self._cache = cache
        self._segments = segments
        self.by_number: dict[int, QueueLog] = {}
        """The logs by the number of their queue."""
        self._states: dict[str, LogState] = {}
        self._settle = settle
        self._left: dict[str, None] = {}
        """Directories of deleted queues that could not be removed for lack of a descriptor."""
        self._removed = False
        """True if a new queue might reuse the name of a directory whose removal is not durable
        yet."""
        self.recovering = False

    def restore(self, states: dict[str, LogState]) -> None:
        """Prepare recovery: logs opened next are as the snapshot says, before later entries are
        reapplied."""
        self._states = dict(states)
        self.recovering = True

    def recovered(self) -> None:
        """End recovery: everything in the log is applied, so cut the files to exactly that.

        Without disk space a log stays `incomplete`, and its next `flush` cuts it.
        """
        self.recovering = False
        self._states.clear()
        for log in self.by_number.values():
            if not self._group.startswith(BUFFERED):
                log.check_head()
            with contextlib.suppress(Exhausted):
                log.cut()
        # Queues deleted just before a crash may have reappeared.
        known = [log.queue for log in self.by_number.values()]
        if remove_unknown(self._files, self._paths.queues(self._group), known):
            self._removed = True

    def open(self, queue_id: int, name: str) -> QueueLog:
        """Open the log of a queue."""
        self._left.pop(self._paths.queue(self._group, name), None)  # it reuses what is there
        log = QueueLog.open(
            self._files,
            self._paths.queue(self._group, name),
            name,
            self._options,
            self._states.pop(name, None),
            cache=self._cache,
            segments=self._segments,
            recovering=self.recovering,
            settle=self._settle,
            name_synced=self._removed,
        )
        self._removed = False
        self.by_number[queue_id] = log
        return log

    def delete(self, queue_id: int, name: str) -> None:
        """Delete a queue's log."""
        log = self.by_number.pop(queue_id, None)
        if log is not None:
            if self._settle is not None and not self.recovering:
                self._settle()
            self._removed = True
            try:
                log.delete()
            except Exhausted:
                self._left[log.directory] = None

    def unsynced(self) -> dict[str, tuple[QueueLog, Unsynced]]:
        """Return the files that a checkpoint has to sync, by queue."""
        found: dict[str, tuple[QueueLog, Unsynced]] = {}
        for directory in list(self._left):
            delete_directory(self._files, directory)
            del self._left[directory]
        try:
            for log in self.by_number.values():
                found[log.queue] = (log, log.unsynced())
        except StorageError:
            for _, part in found.values():
                part.end()
            raise
        return found

    def synced(
        self, unsynced: dict[str, tuple[QueueLog, Unsynced]], failure: StorageError | None
    ) -> None:
        """Record the end of a sync."""
        for log, part in unsynced.values():
            log.synced(part, failure)

    def logs(self) -> list[QueueLog]:
        """Return all queues' logs."""
        return list(self.by_number.values())

    @property
    def bytes(self) -> int:
        """Bytes of all queues' segments."""
        return sum(log.bytes for log in self.by_number.values())

    def close(self) -> None:
        """Close all files without a sync. Unwritten data is in the log of entries."""
        for log in self.by_number.values():
            with contextlib.suppress(StorageError):
                log.flush()
            log.close()
        self.by_number.clear()

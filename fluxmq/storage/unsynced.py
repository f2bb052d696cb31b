"""What one log has to have synced for a checkpoint, handed to the thread that syncs.

Holds the files open until it is ended, whatever becomes of their segments. Changes nothing in the log: only when the sync is
known to have succeeded does the log take note, so that a checkpoint given up half-way costs nothing but its repetition.
"""

from __future__ import annotations

from collections.abc import Iterable

from fluxmq.storage.errors import FileMissing, OutOfDescriptors, StorageError
from fluxmq.storage.files import Files
from fluxmq.storage.log_state import LogState
from fluxmq.storage.open_files import OpenFile


class Unsynced:
    """What has to be synced before `state` may be believed after a power cut; from `QueueLog.unsynced`.

    `names`: how many changes of names there were, if the directory has to be synced. `done`: all is synced; `failure`: a
    sync failed.
    """

    __slots__ = (
        *("_directory", "_storage", "done", "ends", "failure", "files", "names", "state", "writes"),
    )

    def __init__(
        self,
        storage: Files,
        directory: str,
        state: LogState,
        files: Iterable[OpenFile],
        names: int | None,
    ) -> None:
        self._storage = storage
        self._directory = directory
        self.state = state
        self.files = [file.shared() for file in files if file.dirty]
        self.writes = [file.writes for file in self.files]
        self.ends = [file.end for file in self.files]
        self.names = names
        self.done = False
        self.failure: StorageError | None = None

    def sync(self) -> None:
        """Sync it all, once; may be called in any one thread. Raises StorageError: the state is worth nothing then.

        With OutOfDescriptors nothing has failed to be synced: the log goes on, and a later checkpoint begins again.
        """
        try:
            for file, end in zip(self.files, self.ends, strict=True):
                self._storage.reach("segment.sync")
                file.write_out(end)
                file.sync()
            if self.names is not None:
                self._storage.reach("segment.sync_directory")
                self._sync_directory()
        except OutOfDescriptors:
            raise
        except StorageError as error:
            self.failure = error
            raise
        self.done = True

    def _sync_directory(self) -> None:
        try:
            self._storage.fsync_directory(self._directory)
        except FileMissing:
            # The queue was deleted meanwhile: there is nothing to keep.
            return

    def end(self) -> None:
        """Give the files back; if all was synced, note on them what was."""
        for file, writes in zip(self.files, self.writes, strict=True):
            if self.done:
                file.note_synced(writes)
            file.give_back()

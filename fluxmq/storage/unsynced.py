"""The files of one log to sync for a checkpoint, for the thread that syncs.

Keeps the files open until it is ended, whatever happens to their segments. Changes nothing in the
log: the log is updated only after a successful sync, so an abandoned checkpoint just has to be
repeated.
"""

from __future__ import annotations

from collections.abc import Iterable

from fluxmq.storage.errors import FileMissing, OutOfDescriptors, StorageError
from fluxmq.storage.files import Files
from fluxmq.storage.log_state import LogState
from fluxmq.storage.open_files import OpenFile


class Unsynced:
    """Files to sync before `state` can be trusted after a power cut; from `QueueLog.unsynced`.

    `names`: the number of name changes so far, if the directory must be synced. `done`: all is
    synced; `failure`: a sync failed.
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
        """Sync everything, once, in any one thread. Raises StorageError: the state is then
        worthless.

        After OutOfDescriptors no sync has failed: the log goes on, and a later checkpoint starts
        again.
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
        """Give the files back; if all was synced, record that on them."""
        for file, writes in zip(self.files, self.writes, strict=True):
            if self.done:
                file.note_synced(writes)
            file.give_back()

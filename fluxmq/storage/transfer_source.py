"""The source of a transfer to a lagging member: a snapshot, and the segments as of that snapshot.

Segments grow, are sealed, trimmed and deleted with their queue while others read them, which must
not notice: each gets a second name (a hard link) when the snapshot is captured. The bytes that a
snapshot counts never change, whatever is appended; a link survives every removal of the first name,
costs no descriptor, and is removed at the next start if it was left.

Linking ten thousand segments takes a tenth of a second, so most are linked `ahead`, in a thread,
and only newer ones when the state is captured. A queue that was deleted and created again has other
segments of the same names: the caller distinguishes such lives by keys.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, TypeVar

from fluxmq.model.segments import segment_name
from fluxmq.storage.directory import DataPaths, directory_name
from fluxmq.storage.errors import FileMissing, StorageError
from fluxmq.storage.files import Files
from fluxmq.storage.log_state import LogState, SegmentState
from fluxmq.storage.snapshots import GroupSnapshot
from fluxmq.storage.transfer import (
    CHUNK_BYTES,
    Manifest,
    TransferError,
    TransferPaths,
    digest_of,
    listed,
    remove_tree,
)

T = TypeVar("T")

_DEPTH: Final = 1
"""Directory levels below that of one set of links: one for each queue's life."""


class LiveLog(NamedTuple):
    """A queue's current log: a key that no other queue ever had, its directory, its state."""

    life: str
    directory: str
    state: LogState


class Pinned:
    """Links to a group's segments, in a directory of their own; removed by `release`."""

    def __init__(self, files: Files, paths: DataPaths, group: str) -> None:
        """Create the directory. Raises StorageError."""
        self._files = files
        outgoing = TransferPaths(paths, group).outgoing
        numbers = [int(name) for name in listed(files, outgoing) if name.isdecimal()]
        self.directory = f"{outgoing}/{max(numbers, default=0) + 1}"
        self._linked: set[tuple[str, int]] = set()
        files.make_directory(self.directory)

    def ahead(self, logs: Mapping[str, LiveLog]) -> None:
        """Link the existing segments of these logs, skipping removed ones. Runs in any one thread.
        Raises StorageError."""
        for log in logs.values():
            for segment in log.state.segments:
                try:
                    self._link(log, segment)
                except FileMissing:
                    continue

    def complete(self, logs: Mapping[str, LiveLog]) -> None:
        """Link the remaining segments: the logs are in this state now. Raises StorageError."""
        for log in logs.values():
            for segment in log.state.segments:
                self._link(log, segment)

    def _link(self, log: LiveLog, segment: SegmentState) -> None:
        key = (log.life, segment.base_offset)
        if key in self._linked:
            return
        files, name = self._files, segment_name(segment.base_offset)
        directory = f"{self.directory}/{log.life}"
        try:
            self._link_to(f"{log.directory}/{name}", f"{directory}/{name}")
        except FileMissing:
            if files.exists(directory):
                raise
            files.call("make_directory", directory, os.mkdir, directory, 0o750)
            self._link_to(f"{log.directory}/{name}", f"{directory}/{name}")
        self._linked.add(key)

    def _link_to(self, path: str, name: str) -> None:
        self._files.call("link", name, os.link, path, name)

    def release(self) -> None:
        """Remove the links. Raises StorageError; the next start removes the rest."""
        self._linked.clear()
        remove_tree(self._files, self.directory, _DEPTH)


class SnapshotSource:
    """One snapshot as other members read it. `pinned`, `lives`: the segments' links, and the key of
    each queue's; without them the segments are linked now, which must be the moment of the
    snapshot.
    Every method but `close` may run in any thread."""

    def __init__(
        self,
        files: Files,
        paths: DataPaths,
        group: str,
        snapshot: GroupSnapshot,
        pinned: Pinned | None = None,
        lives: Mapping[str, str] | None = None,
    ) -> None:
        """Raises TransferError when the snapshot is invalid, StorageError when segments cannot be
        linked."""
        self._files = files
        self._manifest = Manifest.of(group, snapshot)
        self._pinned = Pinned(files, paths, group) if pinned is None else pinned
        if pinned is None:
            logs = {
                queue: LiveLog(directory_name(queue), paths.queue(group, queue), state)
                for queue, state in self._manifest.state.logs.items()
            }
            try:
                self._pinned.complete(logs)
            except StorageError:
                self._pinned.release()
                raise
        self._places: dict[tuple[str, str], tuple[str, int]] = {}
        for queue, directory, state in self._manifest.segments():
            life = directory if lives is None else lives[queue]
            path = f"{self._pinned.directory}/{life}/{segment_name(state.base_offset)}"
            self._places[directory, segment_name(state.base_offset)] = (path, state.file_bytes)

    @property
    def index(self) -> int:
        """Index of the snapshot's last entry."""
        return self._manifest.snapshot.index

    @property
    def term(self) -> int:
        """Term of that entry."""
        return self._manifest.snapshot.term

    def manifest(self) -> bytes:
        """Return the encoded manifest, for `SnapshotTarget`."""
        return self._manifest.encode()

    def read(self, queue: str, file: str, position: int, length: int) -> bytes:
        """Return bytes of a segment; `queue` is the queue's directory. Raises TransferError,
        StorageError."""
        data = self._read(queue, file, position, length, self._files.pread)
        if len(data) != length:
            path, whole = self._place(queue, file)
            raise TransferError(f"{path} ends at {position + len(data)}, not at {whole}")
        return data

    def read_now(self, queue: str, file: str, position: int, length: int) -> bytes | None:
        """Return bytes of a segment that are in memory; None where the disk would be needed. Raises
        as `read`."""
        return self._read(queue, file, position, length, self._files.pread_now)

    def _read(
        self, queue: str, file: str, position: int, length: int, pread: Callable[[int, int, int], T]
    ) -> T:
        path, whole = self._place(queue, file)
        if not (0 < length <= CHUNK_BYTES and 0 <= position <= whole - length):
            raise TransferError(f"{queue}/{file}: bytes {position} and {length} on are none")
        fd = self._files.open_(path, readonly=True)
        try:
            return pread(fd, length, position)
        finally:
            self._files.close(fd)

    def digest(self, queue: str, file: str, length: int) -> bytes:
        """Return the xxh3-128 of a segment's first bytes. Raises TransferError, StorageError."""
        path, whole = self._place(queue, file)
        if not 0 < length <= whole:
            raise TransferError(f"{queue}/{file} has {whole} bytes, not {length}")
        return digest_of(self._files, path, length)

    def _place(self, queue: str, file: str) -> tuple[str, int]:
        try:
            return self._places[queue, file]
        except KeyError:
            raise TransferError(f"the snapshot has no segment {queue}/{file}") from None

    def close(self) -> None:
        """Release the segments: later reads fail because they are missing. Raises StorageError."""
        self._pinned.release()


def remove_outgoing(files: Files, paths: DataPaths, group: str) -> None:
    """Remove links left by an earlier run of the node. Raises StorageError."""
    remove_tree(files, TransferPaths(paths, group).outgoing, _DEPTH + 1)

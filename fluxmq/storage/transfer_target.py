"""The receiving side of a transfer: reuses bytes that a lagging member has, fetches the rest.

It works beside the running group and changes none of its files. Everything lies in a staging
directory, complete when `prepare` returns; ``transfer_install`` puts it in place once the group's
files are closed. For each segment it looks for the best local source:

* a sealed segment of the group's own with the manifest's page, footer and length is linked;
* earlier fetched files (of this snapshot or an older one) and the group's own growing segments may
  be equal up to some byte. `questions` are digests to request; `matches` takes the answers and
  bisects for that byte, down to a chunk. Mostly the first answer shows that all is equal.

A crashed transfer needs no other record: what did not reach the disk is not equal. A file with a
second name is never written to, since the group may use it under the first.

Every segment that was not linked is read through when complete and must match the manifest's hash,
batch by batch: damage at the source does not spread.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from fluxmq.model.segments import (
    FOOTER_BYTES,
    HEAD_NAME,
    PAGE_BYTES,
    TIME_NONE,
    Footer,
    HeaderPage,
    QueueHead,
    SegmentError,
    index_name,
)
from fluxmq.storage.directory import DataPaths, directory_name
from fluxmq.storage.errors import Corruption, FileMissing, StorageError
from fluxmq.storage.files import Files
from fluxmq.storage.inspect import read_through
from fluxmq.storage.log_state import LogState
from fluxmq.storage.shape import footer_of
from fluxmq.storage.snapshots import write_snapshot
from fluxmq.storage.transfer import (
    CHUNK_BYTES,
    DamagedSegment,
    Manifest,
    MissingSegment,
    Piece,
    TransferError,
    TransferPaths,
    digest_of,
    listed,
    staged_mark,
)
from fluxmq.storage.transfer_install import Installed, clean, decide, finish, remove_staging

SYNC_BYTES: Final = 1 << 18
"""Bytes of a segment written before a sync: one large final sync would delay all others."""

CHECK_TURN_SECONDS: Final = 0.001
"""Longest read without a pause: otherwise the shard's loop waits 5 ms for the interpreter."""

CHECK_PAUSE_SECONDS: Final = 0.001
"""An equal pause, so that the loop, and other nodes on the same processor, get their turn."""


@dataclass(slots=True)
class Candidate:
    """A file that may share a prefix with the wanted one; `own`: the group's, and never written to.

    `low`: bytes known to be equal; `high`: bytes beyond it are different, or ignored. `answered`:
    asked once.
    """

    path: str
    own: bool
    high: int
    low: int = 0
    answered: bool = False


@dataclass(slots=True)
class _Gathered:
    """A wanted segment: its target path, its possible sources, how much of it is there."""

    wanted: MissingSegment
    path: str
    candidates: list[Candidate] = field(default_factory=list)
    best: Candidate | None = None
    have: int = 0
    """Bytes from the beginning that need not be fetched."""
    missing: int = 0
    """Bytes to fetch that have not arrived."""
    given: int = 0
    """Start of the next piece not yet requested."""
    unsynced: int = 0
    """Bytes written since the last sync."""
    linked: bool = False
    checked: bool = False
    fd: int = -1

    @property
    def size(self) -> int:
        """Bytes of the file when it is complete."""
        return self.wanted.state.file_bytes


class SnapshotTarget:
    """One snapshot being received. Methods block; any thread may call them, one after another.

    `questions` and `matches` until there are no questions, `begin`, then `pieces` and `write` until
    `finished`, `prepare`, and with the group closed `install`. `thorough`: distrust footers of
    sealed segments (of a replica found to differ).
    """

    def __init__(
        self,
        files: Files,
        paths: DataPaths,
        group: str,
        manifest: bytes,
        *,
        thorough: bool = False,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Raises TransferError when the manifest is invalid, StorageError."""
        self.manifest = Manifest.decode(manifest, group)
        self._files = files
        self._paths = paths
        self._group = group
        self._sleep = sleep
        self._transfer = TransferPaths(paths, group)
        self._thorough = thorough
        self.directory = f"{self._transfer.incoming}/{self.manifest.name}"
        self._gathered: dict[tuple[str, str], _Gathered] = {}
        self._older = self._other_stagings()
        self._begun = False
        self._prepared = False
        self.total_bytes = 0
        """Bytes of all segments of the snapshot."""
        self.fetched_bytes = 0
        """Bytes that have arrived."""
        files.make_directory(f"{self.directory}/queues")
        for queue in self.manifest.state.logs:
            files.make_directory(f"{self.directory}/queues/{directory_name(queue)}")
        for wanted in self.manifest.segments():
            path = f"{self.directory}/queues/{wanted.directory}/{wanted.file}"
            found = self._gathered[wanted.directory, wanted.file] = _Gathered(wanted, path)
            self.total_bytes += found.size
            self._look(found)

    @property
    def index(self) -> int:
        """Index of the snapshot's last entry."""
        return self.manifest.snapshot.index

    @property
    def reused_bytes(self) -> int:
        """Bytes that were already here; known after `begin`."""
        return sum(each.have for each in self._gathered.values())

    # Local data

    def _other_stagings(self) -> list[str]:
        """Return directories of other snapshots, the newest first."""
        marks = {
            name: mark
            for name in listed(self._files, self._transfer.incoming)
            if (mark := staged_mark(name)) is not None and name != self.manifest.name
        }
        return sorted(marks, key=lambda name: marks[name], reverse=True)

    def _look(self, found: _Gathered) -> None:
        """Link the group's own segment if it is the same, else note possible partial sources."""
        wanted = found.wanted
        own = f"{self._paths.queues(self._group)}/{wanted.directory}/{wanted.file}"
        if not self._thorough and self._is_same(own, wanted) and self._link(found, own):
            return
        places = [found.path] + [
            f"{self._transfer.incoming}/{name}/queues/{wanted.directory}/{wanted.file}"
            for name in self._older
        ]
        for path in (*places, own):
            try:
                size = min(self._files.size(path), found.size)
            except FileMissing:
                continue
            if size:
                found.candidates.append(Candidate(path, path == own, size))
        found.candidates.sort(key=lambda each: each.high, reverse=True)

    def _is_same(self, path: str, wanted: MissingSegment) -> bool:
        """Return whether a file is the wanted sealed segment, by its page, footer and length."""
        state, files = wanted.state, self._files
        if not state.sealed:
            return False
        try:
            fd = files.open_(path, readonly=True)
        except FileMissing:
            return False
        try:
            page = HeaderPage.decode(files.pread(fd, PAGE_BYTES, 0))
            footer = Footer.decode(files.pread(fd, FOOTER_BYTES, state.length))
            size = files.size(fd)
        except SegmentError:
            return False
        finally:
            files.close(fd)
        expected = HeaderPage(wanted.queue, state.base_offset, state.created)
        return (page, footer, size) == (expected, footer_of(state), state.file_bytes)

    def _link(self, found: _Gathered, path: str) -> bool:
        """Link a complete segment into place; return False when it has gone meanwhile."""
        files = self._files
        if files.exists(found.path):
            files.unlink(found.path)
        try:
            files.call("link", found.path, os.link, path, found.path)
        except FileMissing:
            return False
        index = f"{path.rpartition('/')[0]}/{index_name(found.wanted.state.base_offset)}"
        beside = f"{found.path.rpartition('/')[0]}/{index_name(found.wanted.state.base_offset)}"
        try:
            if not files.exists(beside):
                files.call("link", beside, os.link, index, beside)
        except FileMissing:
            pass  # it can be rebuilt
        found.have = found.given = found.size
        found.linked = True
        found.candidates.clear()
        return True

    # Digests

    def questions(self, most: int = 1000) -> list[Piece]:
        """Return up to `most` segment prefixes whose digests to request; none when all is known."""
        asked: list[Piece] = []
        for found in self._gathered.values():
            length = self._next_length(found)
            if length:
                asked.append(Piece(found.wanted.directory, found.wanted.file, 0, length))
                if len(asked) == most:
                    break
        return asked

    def _next_length(self, found: _Gathered) -> int:
        """Return the most informative prefix length of the first candidate; 0 when none helps."""
        while found.candidates:
            candidate = found.candidates[0]
            best = 0 if found.best is None else found.best.low
            if candidate.high > max(best, candidate.low):
                if not candidate.answered:
                    return candidate.high  # all of it, as is mostly the case
                middle = (candidate.low + candidate.high + 1) // 2
                return -(-middle // CHUNK_BYTES) * CHUNK_BYTES
            if candidate.low > best:
                found.best = candidate
            found.candidates.pop(0)
        return 0

    def matches(self, question: Piece, digest: bytes) -> None:
        """Compare the answer to a question with the local file. Raises StorageError."""
        found = self._gathered[question.queue, question.file]
        candidate = found.candidates[0]
        candidate.answered = True
        try:
            same = digest_of(self._files, candidate.path, question.length) == digest
        except (FileMissing, TransferError):
            # The group has removed it, or something truncated it.
            candidate.low = candidate.high = 0
            return
        if same:
            candidate.low = question.length
        else:
            # Equal ends are found at multiples of a chunk: none lies between the one before and here.
            candidate.high = (question.length - 1) // CHUNK_BYTES * CHUNK_BYTES

    def begin(self) -> None:
        """Put local data in place, and remove other stagings. Raises StorageError."""
        assert not self.questions(1), "everything is known"
        for found in self._gathered.values():
            if not found.linked:
                self._take(found)
        for name in self._older:
            remove_staging(self._files, f"{self._transfer.incoming}/{name}")
        self._older.clear()
        self._begun = True

    def _take(self, found: _Gathered) -> None:
        """Start the segment's file with the bytes known to be equal."""
        best = found.best
        equal = 0 if best is None else best.low
        if best is not None and equal == found.size and self._is_whole(best, found):
            if best.path != found.path and not self._link(found, best.path):
                raise TransferError(f"{best.path} was removed meanwhile")
            found.linked = False  # so that it is read through
        elif best is None or best.path != found.path or not self._is_alone(found.path):
            self._copy(found, None if best is None else best.path, equal)
        else:
            self._cut(found)
        found.have = found.given = equal
        found.missing = found.size - equal

    def _cut(self, found: _Gathered) -> None:
        """Truncate a segment's file to its final length."""
        fd = self._files.open_(found.path)
        try:
            if self._files.size(fd) > found.size:
                self._files.truncate(fd, found.size)
        finally:
            self._files.close(fd)

    def _is_whole(self, candidate: Candidate, found: _Gathered) -> bool:
        """Return whether an equal file is usable: no longer, and the group will not write to it."""
        try:
            size = self._files.size(candidate.path)
        except FileMissing:
            return False
        return size == found.size and (not candidate.own or found.wanted.state.sealed)

    def _is_alone(self, path: str) -> bool:
        """Return whether a file has no other name."""
        return self._files.call("size", path, os.stat, path).st_nlink == 1

    def _copy(self, found: _Gathered, source: str | None, length: int) -> None:
        """Rewrite the segment's file, starting with bytes of another file, which must exist."""
        files, beside = self._files, f"{found.path}.tmp"
        target = files.open_(beside, create=True)
        try:
            files.truncate(target, 0)
            if source is not None and length:
                self._copy_bytes(source, target, length)
        finally:
            files.close(target)
        files.rename(beside, found.path)

    def _copy_bytes(self, source: str, target: int, length: int) -> None:
        files = self._files
        fd = files.open_(source, readonly=True)
        try:
            for position in range(0, length, CHUNK_BYTES):
                data = files.pread(fd, min(CHUNK_BYTES, length - position), position)
                files.pwritev(target, [data], position)
        finally:
            files.close(fd)

    # Fetching

    def pieces(self) -> Iterator[Piece]:
        """Yield the pieces to fetch, each once."""
        assert self._begun, "first what is there"
        for (queue, file), found in self._gathered.items():
            while found.given < found.size:
                position = found.given
                found.given = min((position // CHUNK_BYTES + 1) * CHUNK_BYTES, found.size)
                yield Piece(queue, file, position, found.given - position)

    def write(self, piece: Piece, data: bytes) -> None:
        """Store a fetched piece, each once; after the last one of a segment, read that through.

        Raises TransferError for a wrong length, or when the segment differs from the manifest,
        which removes its fetched bytes. Raises StorageError.
        """
        if len(data) != piece.length:
            what = f"{len(data)} bytes instead of {piece.length}"
            raise TransferError(f"{piece.queue}/{piece.file}, byte {piece.position}: {what}")
        found = self._gathered[piece.queue, piece.file]
        if found.fd < 0:
            found.fd = self._files.open_(found.path)
        self._files.pwritev(found.fd, [data], piece.position)
        found.unsynced += piece.length
        if found.unsynced >= SYNC_BYTES:
            found.unsynced = 0
            self._sync_file(found.fd, found.path)
        found.missing -= piece.length
        self.fetched_bytes += piece.length
        if not found.missing:
            self._close(found)
            self._check(found)

    def _close(self, found: _Gathered) -> None:
        if found.fd >= 0:
            self._files.close(found.fd)
            found.fd = -1

    def _check(self, found: _Gathered) -> None:
        """Read a segment through. Raises TransferError, which removes the file."""
        try:
            self._read_through(found)
        except Corruption as error:
            self._files.unlink(found.path)
            raise DamagedSegment(found.wanted.directory, found.wanted.file, error) from error
        found.checked = True

    def _read_through(self, found: _Gathered) -> None:
        """Compare a segment's file with the manifest. Raises Corruption where they differ."""
        turn = time.monotonic() + CHECK_TURN_SECONDS

        def rest(_bytes: int) -> None:
            nonlocal turn
            if time.monotonic() > turn:
                self._sleep(CHECK_PAUSE_SECONDS)
                turn = time.monotonic() + CHECK_TURN_SECONDS

        read_through(self._files, found.path, found.wanted.queue, found.wanted.state, rest)

    @property
    def finished(self) -> bool:
        """True when everything has arrived."""
        return self._begun and not any(each.missing for each in self._gathered.values())

    def close(self) -> None:
        """Close open files; the next attempt reuses what has arrived."""
        for found in self._gathered.values():
            self._close(found)

    # The end

    def prepare(self) -> None:
        """Make everything durable, so that installing only renames.

        Local data that could not be linked is read through too. Raises TransferError, StorageError.
        """
        assert self.finished, "first all of it"
        files, snapshot = self._files, self.manifest.snapshot
        for found in self._gathered.values():
            if not (found.linked or found.checked):
                self._check(found)
        for queue, log in self.manifest.state.logs.items():
            directory = f"{self.directory}/queues/{directory_name(queue)}"
            self._write_head(directory, log)
            self._remove_unknown(directory, log)
            self._sync(directory)
        files.fsync_directory(f"{self.directory}/queues")
        write_snapshot(files, self.directory, *snapshot)
        files.fsync_directory(self._transfer.incoming)
        files.fsync_directory(self._transfer.root)
        self._prepared = True

    def _write_head(self, directory: str, log: LogState) -> None:
        """Write the log's future head, so that outside readers always find one."""
        if log.segments:
            last = log.segments[-1]
            place = (last.base_offset, last.length, last.last_time)
        else:
            place = (log.next_offset, 0, TIME_NONE)
        heads = [
            QueueHead(number, log.start, log.next_offset, *place).encode() for number in (2, 1)
        ]
        fd = self._files.open_(f"{directory}/{HEAD_NAME}", create=True)
        try:
            self._files.pwritev(fd, [b"".join(heads)], 0)
        finally:
            self._files.close(fd)

    def _remove_unknown(self, directory: str, log: LogState) -> None:
        wanted = {HEAD_NAME}
        for segment in log.segments:
            file = MissingSegment("", "", segment).file
            wanted |= {file, index_name(segment.base_offset)}
        for name in self._files.listdir(directory):
            if name not in wanted:
                self._files.unlink(f"{directory}/{name}")

    def _sync(self, directory: str) -> None:
        for name in self._files.listdir(directory):
            fd = self._files.open_(path := f"{directory}/{name}", readonly=True)
            try:
                self._sync_file(fd, path)
            finally:
                self._files.close(fd)
        self._files.fsync_directory(directory)

    def _sync_file(self, fd: int, path: str) -> None:
        """Sync a file; remove it on failure: a retry would read what the disk has lost."""
        try:
            self._files.fdatasync(fd)
        except StorageError:
            self._files.unlink(path)
            raise

    def install(self) -> Installed:
        """Put the snapshot in place of the group's closed files; open the group next.

        Durable when it returns; if it fails after the decision, the next opening continues. The old
        files are removed, which may take a moment. Raises TransferError when the group has a newer
        snapshot, StorageError.
        """
        assert self._prepared, "first everything durable"
        snapshot = self.manifest.snapshot
        installed = Installed(snapshot.index, snapshot.term)
        decide(self._files, self._paths, self._group, installed)
        finish(self._files, self._paths, self._group, installed)
        clean(self._files, self._paths, self._group)
        return installed

"""What a member that lags gathers of another's snapshot: as much as it has already, and the rest in pieces.

It works beside the running group and changes none of its files. Everything lies in a staging directory, complete when
`prepare` returns; ``transfer_install`` puts it in place of the group's files, when those are closed.

For each segment the best that is there is looked for:

* a sealed segment of the group's own whose page, footer and length are those of the manifest is the same: it is linked;
* what was fetched before (for this snapshot or an older one) and the group's own growing segments may be the same up to
  some byte. `questions` are digests to ask for; `matches` takes the answers. As equal beginnings end at one place, that
  place is found by halving, down to a chunk; mostly the first answer says that all of it is equal.

What a crash left of a transfer needs no other record: what did not reach the disk is not equal. A file with a second name
is never written to, since the group may use it under the first.

Every segment that was not linked is read through once it is complete and has to be, batch by batch, what the manifest's hash
says: damage on the other side does not spread.
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
    Head,
    Page,
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
    Piece,
    TransferError,
    TransferPaths,
    WantedSegment,
    digest_of,
    listed,
    staged_mark,
)
from fluxmq.storage.transfer_install import Installed, clean, decide, finish, remove_staging

SYNC_BYTES: Final = 1 << 18
"""What may be written of a segment before it is synced: all at once at the end would hold up every other sync of the disk."""

CHECK_TURN_SECONDS: Final = 0.001
"""How long batches are read through without a pause: the thread that does it shares the interpreter with the shard's loop,
which would wait 5 ms each time otherwise."""

CHECK_PAUSE_SECONDS: Final = 0.001
"""The pause: as long, so that the loop, and other nodes on the same processor, get their turn."""


@dataclass(slots=True)
class Candidate:
    """A file that may begin like the wanted one; `own`: one of the group's, to which nothing is written.

    `low`: bytes known to be equal; `high`: more than that are not, or not looked for. `answered`: something was asked.
    """

    path: str
    own: bool
    high: int
    low: int = 0
    answered: bool = False


@dataclass(slots=True)
class _Gathered:
    """A wanted segment: where it is put, what it may be made of, how much of it is there."""

    wanted: WantedSegment
    path: str
    candidates: list[Candidate] = field(default_factory=list)
    best: Candidate | None = None
    have: int = 0
    """Bytes from the beginning that need not be fetched."""
    missing: int = 0
    """Bytes that are to be fetched, and have not come."""
    given: int = 0
    """Where the next piece begins that nobody was told to fetch."""
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
    """One snapshot being gathered. Methods block, and are called one after another, from whichever thread.

    `questions` and `matches` until there are no questions, `begin`, then `pieces` and `write` until `finished`, `prepare`,
    and with the group closed `install`. `thorough`: sealed segments are not believed to be what their footers say (of a
    replica that was found to differ).
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
        """Raises TransferError when the manifest is none, StorageError."""
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
        """Bytes that have come."""
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
        """Entry that the snapshot stands for."""
        return self.manifest.snapshot.index

    @property
    def reused_bytes(self) -> int:
        """Bytes that were here already; known after `begin`."""
        return sum(each.have for each in self._gathered.values())

    @property
    def missing_bytes(self) -> int:
        """Bytes that are still to come; known when there are no questions any more."""
        return sum(each.missing for each in self._gathered.values())

    # What is there

    def _other_stagings(self) -> list[str]:
        """Directories of other snapshots, the newest first."""
        marks = {
            name: mark
            for name in listed(self._files, self._transfer.incoming)
            if (mark := staged_mark(name)) is not None and name != self.manifest.name
        }
        return sorted(marks, key=lambda name: marks[name], reverse=True)

    def _look(self, found: _Gathered) -> None:
        """Take the group's own segment if it is the same, else note what may be the same in part."""
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

    def _is_same(self, path: str, wanted: WantedSegment) -> bool:
        """Whether a file is the sealed segment that is wanted, by its page, footer and length."""
        state, files = wanted.state, self._files
        if not state.sealed:
            return False
        try:
            fd = files.open_(path, readonly=True)
        except FileMissing:
            return False
        try:
            page = Page.decode(files.pread(fd, PAGE_BYTES, 0))
            footer = Footer.decode(files.pread(fd, FOOTER_BYTES, state.length))
            size = files.size(fd)
        except SegmentError:
            return False
        finally:
            files.close(fd)
        expected = Page(wanted.queue, state.base_offset, state.created)
        return (page, footer, size) == (expected, footer_of(state), state.file_bytes)

    def _link(self, found: _Gathered, path: str) -> bool:
        """Give a complete segment its place by a second name; False when it has gone meanwhile."""
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
            pass  # it can be made again
        found.have = found.given = found.size
        found.linked = True
        found.candidates.clear()
        return True

    # Digests

    def questions(self, most: int = 1000) -> list[Piece]:
        """Return beginnings of segments whose digests are to be asked for, `most` at a time; none when all is known."""
        asked: list[Piece] = []
        for found in self._gathered.values():
            length = self._next_length(found)
            if length:
                asked.append(Piece(found.wanted.directory, found.wanted.file, 0, length))
                if len(asked) == most:
                    break
        return asked

    def _next_length(self, found: _Gathered) -> int:
        """Bytes whose digest tells most of the segment's first candidate; 0 when no candidate is worth a question."""
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
        """Take the answer to a question: compares it with what is here. Raises StorageError."""
        found = self._gathered[question.queue, question.file]
        candidate = found.candidates[0]
        candidate.answered = True
        try:
            same = digest_of(self._files, candidate.path, question.length) == digest
        except (FileMissing, TransferError):
            # The group has removed it, or something cut it.
            candidate.low = candidate.high = 0
            return
        if same:
            candidate.low = question.length
        else:
            # Equal ends are found at multiples of a chunk: none lies between the one before and here.
            candidate.high = (question.length - 1) // CHUNK_BYTES * CHUNK_BYTES

    def begin(self) -> None:
        """Put in place what is there already; staging directories of other snapshots go. Raises StorageError."""
        assert not self.questions(1), "everything is known"
        for found in self._gathered.values():
            if not found.linked:
                self._take(found)
        for name in self._older:
            remove_staging(self._files, f"{self._transfer.incoming}/{name}")
        self._older.clear()
        self._begun = True

    def _take(self, found: _Gathered) -> None:
        """Make what is known to be equal the beginning of the segment's file."""
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
        """See that a segment's file is no longer than it will be."""
        fd = self._files.open_(found.path)
        try:
            if self._files.size(fd) > found.size:
                self._files.truncate(fd, found.size)
        finally:
            self._files.close(fd)

    def _is_whole(self, candidate: Candidate, found: _Gathered) -> bool:
        """Whether a file that is equal may be used as it is: no longer, and not to be written to by the group."""
        try:
            size = self._files.size(candidate.path)
        except FileMissing:
            return False
        return size == found.size and (not candidate.own or found.wanted.state.sealed)

    def _is_alone(self, path: str) -> bool:
        """Whether a file has no other name."""
        return self._files.call("size", path, os.stat, path).st_nlink == 1

    def _copy(self, found: _Gathered, source: str | None, length: int) -> None:
        """Make the segment's file anew, beginning with bytes of another file; those have to be there."""
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
        """Yield what is to be fetched, each piece once."""
        assert self._begun, "first what is there"
        for (queue, file), found in self._gathered.items():
            while found.given < found.size:
                position = found.given
                found.given = min((position // CHUNK_BYTES + 1) * CHUNK_BYTES, found.size)
                yield Piece(queue, file, position, found.given - position)

    def write(self, piece: Piece, data: bytes) -> None:
        """Take a piece that was fetched; each once. The last one of a segment has it read through.

        Raises TransferError when it is not as long as it should be, or the segment is not what the manifest says: what was
        fetched of it is removed then. Raises StorageError.
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
        """Read a segment through. Raises TransferError; the file is gone then."""
        try:
            self._read_through(found)
        except Corruption as error:
            self._files.unlink(found.path)
            raise DamagedSegment(found.wanted.directory, found.wanted.file, error) from error
        found.checked = True

    def _read_through(self, found: _Gathered) -> None:
        """Raises Corruption where a segment's file is not what the manifest says."""
        turn = time.monotonic() + CHECK_TURN_SECONDS

        def rest(_bytes: int) -> None:
            nonlocal turn
            if time.monotonic() > turn:
                self._sleep(CHECK_PAUSE_SECONDS)
                turn = time.monotonic() + CHECK_TURN_SECONDS

        read_through(self._files, found.path, found.wanted.queue, found.wanted.state, rest)

    @property
    def finished(self) -> bool:
        """Whether everything has come."""
        return self._begun and not any(each.missing for each in self._gathered.values())

    def close(self) -> None:
        """Close what is open; what has come stays, and is used by the next attempt."""
        for found in self._gathered.values():
            self._close(found)

    # The end

    def prepare(self) -> None:
        """Make everything durable, so that installing is a matter of a few names. Raises TransferError, StorageError.

        What was there already and could not be linked is read through as well.
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
        """The head as the log will have it, so that readers outside are not without one meanwhile."""
        if log.segments:
            last = log.segments[-1]
            place = (last.base_offset, last.length, last.last_time)
        else:
            place = (log.next_offset, 0, TIME_NONE)
        heads = [Head(number, log.start, log.next_offset, *place).encode() for number in (2, 1)]
        fd = self._files.open_(f"{directory}/{HEAD_NAME}", create=True)
        try:
            self._files.pwritev(fd, [b"".join(heads)], 0)
        finally:
            self._files.close(fd)

    def _remove_unknown(self, directory: str, log: LogState) -> None:
        wanted = {HEAD_NAME}
        for segment in log.segments:
            file = WantedSegment("", "", segment).file
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
        """Sync a file. One of which that failed is removed: the next attempt would read from memory what the disk has lost."""
        try:
            self._files.fdatasync(fd)
        except StorageError:
            self._files.unlink(path)
            raise

    def install(self) -> Installed:
        """Put the snapshot in place of the group's files, which nobody may have open; the group is opened next.

        Durable when it returns, and when it fails after it was decided the next opening goes on with it. What was there
        before is removed, which may take a moment. Raises TransferError when the group has a newer snapshot, StorageError.
        """
        assert self._prepared, "first everything durable"
        snapshot = self.manifest.snapshot
        installed = Installed(snapshot.index, snapshot.term)
        decide(self._files, self._paths, self._group, installed)
        finish(self._files, self._paths, self._group, installed)
        clean(self._files, self._paths, self._group)
        return installed

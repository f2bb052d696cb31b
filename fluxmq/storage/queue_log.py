"""A queue's log on disk: batches appended as they commit, read by offset and time, removed from the
front.

Responsible for segments (when one is full, which are still needed), for the head file, and for what
a checkpoint must sync. Knows nothing of Raft, consumers or retention policy. Appends are not
synced: a committed batch is safe in the write-ahead log, and stays there until a checkpoint has
synced the segments and written their state.

**After a crash** the log is opened with the state of the last snapshot (`recovering`), and later
entries are appended again. Segments roll by the batches alone (their bytes, their times), so the
same batches give the same bytes in the same files. Until `cut`, files on disk are neither trusted
nor removed: some may be newer than the snapshot, some may have been trimmed since. `cut` then
compares every file with the log's required contents, truncates and removes the rest, and only then
moves the head, which thus never goes back for an outside reader.

**Removal** moves the head's start first and then unlinks, so that a reader that misses a file can
tell why.

**Descriptors** are held only while in use: segments, indexes and head are in the shard's table of
open files, and closed for those of other logs. Work that fails for lack of descriptors or space is
completed by a later `flush`: a new log's directory and first head, the removal of files, and
pending writes.

**Ahead of the log** (`ahead`), entries that a crash may lose have been applied. Their batches may be
written, since a recovery trusts no file, but the head does not show them, and no file is removed
that the log without those entries needs.

One thread uses a log; only `Unsynced.sync` may run in another.

Longer than 500 lines because appending, rolling, recovery and removal keep one invariant over the
same files.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import Final

from fluxmq.model.batch_format import Batch
from fluxmq.model.segments import (
    FOOTER_BYTES,
    HEAD_NAME,
    INDEX_SUFFIX,
    PAGE_BYTES,
    QUEUE_NAME_BYTES_MAX,
    SEGMENT_BYTES_MAX,
    SEGMENT_BYTES_MIN,
    TIME_NONE,
    base_of,
    index_name,
    segment_name,
)
from fluxmq.storage.batch_cache import BatchCache
from fluxmq.storage.directory import delete_directory
from fluxmq.storage.errors import (
    AwaitsSync,
    BatchTooLarge,
    Corruption,
    Exhausted,
    OffsetOutOfRange,
    StorageError,
)
from fluxmq.storage.files import Files
from fluxmq.storage.head import HeadFile, read_head
from fluxmq.storage.log_reader import LogReader, OpenSegments, first_not_before
from fluxmq.storage.log_state import LogState, SegmentState
from fluxmq.storage.open_files import OpenFile, OpenFiles
from fluxmq.storage.segment_index import Extent
from fluxmq.storage.segments import SegmentOptions, SegmentWriter, sealed_extent
from fluxmq.storage.shape import check_growing, check_sealed
from fluxmq.storage.unsynced import Unsynced

__all__ = ["BatchTooLarge", "OffsetOutOfRange", "QueueLog", "SegmentOptions", "Unsynced"]

DROPPED_WHOLE_PART: Final = 4
"""A fully consumed segment that still grows is dropped once it is a quarter full: a queue whose
consumers keep up then uses little disk, and still creates a file only every few megabytes."""


class QueueLog:
    """The log of one queue; created by `open`."""

    def __init__(
        self,
        files: Files,
        directory: str,
        queue: str,
        options: SegmentOptions,
        state: LogState,
        cache: BatchCache,
        segments: OpenSegments,
        settle: Callable[[], None] | None,
        name_synced: bool,
    ) -> None:
        self.directory = directory
        self.queue = queue
        self.options = options
        self.trimmed_bytes = 0
        """Bytes of files removed since the log was opened."""
        self._files = files
        self._table = segments.table
        self._start = state.start
        self._next = state.next_offset
        self._sealed = [segment for segment in state.segments if segment.sealed]
        self._growing: SegmentWriter | None = None
        if state.segments and not state.segments[-1].sealed:
            self._growing = self._writer(state.segments[-1])
        # Sealed and not yet completely written; by base offset, in order.
        self._closing: dict[int, SegmentWriter] = {}
        self._sealed_bytes = sum(segment.file_bytes for segment in self._sealed)
        self._written_offset = self._next
        self._unwritten: list[Batch] = []
        self._segment_bytes = 0
        self._cache = cache
        self._recent = cache.recent()
        self._reader = LogReader(files, cache, segments, options.index_bytes)
        self._head = HeadFile(self._table, directory)
        self._head_moved = True
        # Files of rolled segments that no checkpoint has synced; counts of name changes in the directory since it was
        # opened, and of those synced. Names of segments in `state` are synced, or no snapshot would have them; others
        # are written again.
        self._rolled: dict[str, OpenFile] = {}
        self._names = self._names_synced = 0
        self._recovering = True
        self.arriving = False
        """True while the queue is being copied here: what is written is read by nobody yet."""
        self.ahead = False
        """True while the write-ahead log may lack some of what was appended and trimmed: the head
        then stays where it is, and files are not removed."""
        self._make_synced: bool | None = name_synced
        """Whether the directory's name is synced when it is made; None once it is made."""
        # True after `cut` was called until it is done; dropped segments whose files remain.
        self._cutting = False
        self._gone: list[Extent] = []
        self._failed: StorageError | None = None
        self._settle = settle

    @classmethod
    def open(
        cls,
        files: Files,
        directory: str,
        queue: str,
        options: SegmentOptions,
        state: LogState | None = None,
        *,
        cache: BatchCache | None = None,
        segments: OpenSegments | None = None,
        recovering: bool = False,
        settle: Callable[[], None] | None = None,
        name_synced: bool = False,
    ) -> QueueLog:
        """Open or create the log in a directory.

        `state`: from the last snapshot; None for a newly declared queue. With `recovering` entries
        will be appended again and `cut` must be called after the last; without, it is called here:
        `state` is then everything, and other files in the directory are removed. If a needed
        resource is exhausted, the log is `incomplete`, and the next `flush` completes it. The name
        of a new directory is synced only with `name_synced`. `settle` is called before segments are
        removed. The logs of a shard share `cache` and `segments`. Raises StorageError.
        """
        assert len(queue.encode()) <= QUEUE_NAME_BYTES_MAX, "checked when the queue is declared"
        log = cls(
            files,
            directory,
            queue,
            options,
            state or LogState(0, 0, ()),
            BatchCache() if cache is None else cache,
            OpenSegments(OpenFiles(files)) if segments is None else segments,
            settle,
            name_synced,
        )
        if not recovering:
            with contextlib.suppress(Exhausted):
                log.cut()
        return log

    def _writer(self, state: SegmentState) -> SegmentWriter:
        return SegmentWriter(self._table, self.directory, state, self.options.index_bytes)

    # State

    @property
    def start_offset(self) -> int:
        """The first offset that is kept."""
        return self._start

    @property
    def next_offset(self) -> int:
        """The offset that the next message gets."""
        return self._next

    @property
    def bytes(self) -> int:
        """Bytes of all segments, those not yet written included."""
        return self._sealed_bytes + (self._growing.length if self._growing else 0)

    @property
    def segments(self) -> int:
        """Number of segments."""
        return len(self._sealed) + (self._growing is not None)

    @property
    def pending_bytes(self) -> int:
        """Bytes waiting for `flush`."""
        return sum(segment.pending_bytes for segment in self._writers())

    def _writers(self) -> list[SegmentWriter]:
        return [*self._closing.values(), *([self._growing] if self._growing else [])]

    # Appending

    def bound(self, segment_bytes: int, cached_messages: int, cached_bytes: int) -> None:
        """Set this queue's own limits: segment size in bytes, and messages and bytes kept in
        memory.

        0 means the options' size, or no limit. The size applies to segments that start from now on,
        as near as the format allows; a larger batch gets a segment for itself. As it decides which
        file holds what, it must be set between the same batches wherever they are appended, and
        again after `open`: the state holds only the growing segment's. Messages that wait for
        `flush` are not counted.
        """
        own = min(max(segment_bytes, SEGMENT_BYTES_MIN), SEGMENT_BYTES_MAX)
        self._segment_bytes = own if segment_bytes else 0
        self._cache.bound(self._recent, cached_messages or None, cached_bytes or None)
        self._reader.window_bytes_max = 0 if cached_messages else cached_bytes or None

    def begin_at(self, offset: int) -> None:
        """Start an empty log at this offset: the queue came from elsewhere."""
        if self._next < offset:
            assert self.segments == 0, "only an empty log begins somewhere"
            self._start = self._next = self._written_offset = offset
            self._head_moved = True

    def append(self, batch: Batch) -> None:
        """Append a batch stamped with `next_offset`, time and term; it is readable at once, and
        written by `flush`.

        Raises BatchTooLarge, without effect.
        """
        assert batch.base_offset == self._next, "offsets have no gaps"
        # A batch accepted when segments were larger is stored whatever their size now: it was acknowledged.
        if batch.length > self.options.batch_bytes_max and not self._recovering:
            raise BatchTooLarge(
                f"queue {self.queue!r}: a batch of {batch.length} bytes does not fit into a segment of"
                f" {self.options.segment_bytes} bytes (storage.segment_bytes)"
            )
        segment = self._growing
        if segment is not None and self._is_full(segment, batch):
            self._roll(segment)
            segment = None
        if segment is None:
            segment = SegmentWriter.begin(
                *(self._table, self.directory, self.queue, batch, self.options.index_bytes),
                self._segment_bytes,
            )
            self._growing = segment
            self._names += 1
        segment.append(batch)
        self._next = segment.next_offset
        self._unwritten.append(batch)
        self._cache.add(self._recent, batch)

    def _is_full(self, segment: SegmentWriter, batch: Batch) -> bool:
        full = segment.bytes_max or self.options.segment_bytes
        if segment.length + batch.length + FOOTER_BYTES > full:
            return True
        age = self.options.segment_age
        return age > 0 and batch.base_time - segment.created >= age

    def _roll(self, segment: SegmentWriter) -> None:
        segment.seal()
        state = segment.state()
        self._sealed.append(state)
        self._sealed_bytes += state.file_bytes
        self._closing[segment.base_offset] = segment
        self._growing = None

    def flush(self) -> None:
        """Write appended batches and move the head; nothing is synced. Raises StorageError.

        After Exhausted it may be called again, and completes the rest.
        """
        if self._failed is not None:
            raise self._failed
        if self._cutting:
            self.cut()
            return
        if self._gone and not self.ahead:
            self._clear_away()
        self._write()
        self._move_head()

    @property
    def incomplete(self) -> bool:
        """True when `flush` has work left even if nothing waits to be written."""
        return self._cutting or bool(self._gone)

    def _write(self) -> None:
        if self._make_synced is not None:
            self._files.make_directory(self.directory, synced=self._make_synced)
            self._make_synced = None
        for base, segment in list(self._closing.items()):
            self._files.reach("segment.roll")
            segment.flush(passing=self.arriving)
            self._rolled.update((file.path, file) for file in segment.files())
            del self._closing[base]
            self._written_offset = max(self._written_offset, segment.next_offset)
            # It was read as a growing one.
            self._reader.forget(segment.extent())
        if self._unwritten:
            if self._growing is not None:
                self._files.reach("segment.write")
                self._growing.flush(passing=self.arriving)
            self._unwritten.clear()
            self._written_offset = self._next
            self._head_moved = True

    def _move_head(self) -> None:
        if self._recovering or self.ahead or not self._head_moved:
            return
        committed = self._written_offset
        # Written data ends in the first segment that is not completely written.
        written = next(iter(self._closing.values()), self._growing)
        if written is not None:
            extent = written.extent()
            segment, position, time = extent.base_offset, extent.end, written.last_time
        elif self._sealed:
            last = self._sealed[-1]
            segment, position, time = last.base_offset, last.length, last.last_time
        else:
            segment, position, time = committed, 0, TIME_NONE
        self._head.write(min(self._start, committed), committed, segment, position, time)
        self._head_moved = False

    # Reading

    def read(self, offset: int) -> Batch:
        """Return the batch that holds an offset. Raises OffsetOutOfRange, Corruption and other
        StorageErrors."""
        if not self._start <= offset < self._next:
            raise OffsetOutOfRange(self.queue, offset, self._start, self._next)
        batch = self._recent.find(offset)
        if batch is not None:
            return batch
        if offset >= self._written_offset:
            at = bisect_right(self._unwritten, offset, key=lambda each: each.base_offset) - 1
            return self._unwritten[at]
        return self._reader.read(self._extent_of(offset), offset)

    def _extent_of(self, offset: int) -> Extent:
        at = bisect_right(self._sealed, offset, key=lambda each: each.base_offset) - 1
        if at < 0 or offset >= self._sealed[at].next_offset:
            assert self._growing is not None, "segments follow each other without a gap"
            return self._growing.extent()
        return self._extent(self._sealed[at])

    def _extent(self, state: SegmentState) -> Extent:
        closing = self._closing.get(state.base_offset)
        return sealed_extent(self.directory, state) if closing is None else closing.extent()

    def offset_at(self, time: int) -> int:
        """Return the first kept offset whose message is not before `time` (µs since the epoch),
        else `next_offset`.

        Raises StorageError.
        """
        for state in self._sealed:
            if state.last_time >= time:
                found = self._offset_at(self._extent(state), time)
                if found is not None:
                    return max(found, self._start)
        if self._growing is not None and self._growing.last_time >= time:
            found = self._offset_at(self._growing.extent(), time)
            if found is not None:
                return max(found, self._start)
        return self._next

    def _offset_at(self, extent: Extent, time: int) -> int | None:
        found = self._reader.offset_at(extent, time) if extent.end > PAGE_BYTES else None
        if found is None:
            later = (first_not_before(batch, time) for batch in self._unwritten)
            found = next((offset for offset in later if offset is not None), None)
        return found

    # Removing

    def trim(self, start: int, *, purge: bool = False) -> None:
        """Drop everything before an offset; whole segments below it are deleted. Raises
        StorageError.

        After Exhausted everything is dropped, and the log is `incomplete`. Does nothing when the
        offset is not beyond `start_offset`. The arguments alone decide which segments go. The
        growing segment goes only if all of it is dropped, and it is large or this is a `purge`.
        """
        assert start <= self._next, "only what exists is given up"
        if start <= self._start:
            return
        self._start = start
        self._head_moved = True
        self._cache.drop_below(self._recent, start)
        removed = [self._extent(state) for state in self._take_sealed(start)]
        growing = self._growing
        if growing is not None and start == self._next and (purge or self._is_large(growing)):
            removed.append(growing.extent())
            self.trimmed_bytes += growing.length
            self._release(growing.files())
            self._growing = None
        if not removed:
            return
        self._give_up_unwritten()
        for extent in removed:
            self._reader.forget(extent)
            # Not worth a sync any more.
            self._release(
                self._rolled.pop(path)
                for path in (extent.path, extent.index_path)
                if path in self._rolled
            )
        if not self._recovering:
            self._gone += removed
            if not self.ahead:
                self._clear_away()

    def _clear_away(self) -> None:
        """Remove the files of dropped segments."""
        self._move_head()
        if self._settle is not None:
            self._settle()
        self._files.reach("segment.trim")
        self._unlink(self._gone)
        self._gone.clear()

    def _is_large(self, segment: SegmentWriter) -> bool:
        full = segment.bytes_max or self.options.segment_bytes
        return segment.length * DROPPED_WHOLE_PART >= full

    @staticmethod
    def _release(files: Iterable[OpenFile]) -> None:
        for file in files:
            file.release()

    def _take_sealed(self, start: int) -> list[SegmentState]:
        count = bisect_right(self._sealed, start, key=lambda each: each.next_offset)
        removed = self._sealed[:count]
        del self._sealed[:count]
        size = sum(state.file_bytes for state in removed)
        self._sealed_bytes -= size
        self.trimmed_bytes += size
        return removed

    def _give_up_unwritten(self) -> None:
        """Forget batches that wait to be written into dropped segments."""
        first = self._sealed[0].base_offset if self._sealed else None
        if first is None:
            first = self._growing.base_offset if self._growing else self._next
        for base in [base for base in self._closing if base < first]:
            self._release(self._closing.pop(base).files())
        self._unwritten = [batch for batch in self._unwritten if batch.base_offset >= first]
        self._written_offset = max(self._written_offset, first)

    def _unlink(self, extents: Iterable[Extent]) -> None:
        names = set(self._files.listdir(self.directory))
        for extent in extents:
            for path in (extent.path, extent.index_path):
                if path.rpartition("/")[2] in names:
                    self._files.unlink(path)
        self._names += 1

    # Checkpoints

    def state(self) -> LogState:
        """Return the state for a checkpoint. Everything appended must be written."""
        assert not self._unwritten, "flush first"
        assert not self._closing, "flush first"
        growing = [self._growing.state()] if self._growing else []
        return LogState(self._start, self._next, (*self._sealed, *growing))

    def unsynced(self) -> Unsynced:
        """Write appended batches, and return the log's state with the files to sync for it. Raises
        StorageError.

        The caller runs `Unsynced.sync`, possibly in a thread, and then calls `synced`, also after
        an error. One at a time. The log may be used meanwhile.
        """
        self.flush()
        names = self._names if self._names_synced < self._names else None
        return Unsynced(self._files, self.directory, self.state(), self.written_files(), names)

    def written_files(self) -> list[OpenFile]:
        """Return the files with writes that no checkpoint has permanently synced."""
        growing = () if self._growing is None else self._growing.files()
        return [*self._rolled.values(), *growing]

    def synced(self, unsynced: Unsynced, failure: StorageError | None = None) -> None:
        """End a checkpoint begun by `unsynced`; `failure`: the error that ended it early.

        If a sync of this log failed, nothing is written to it any more: the kernel may have dropped
        anything, and a later sync would not report it. After any other failure this log merely has
        to be synced again.
        """
        assert failure is not None or unsynced.done, (
            "a checkpoint ends well only with everything synced"
        )
        unsynced.end()
        if unsynced.failure is not None:
            self._failed = unsynced.failure
        if unsynced.done and unsynced.names is not None:
            self._names_synced = unsynced.names
        for path in [path for path, file in self._rolled.items() if not file.dirty]:
            self._rolled.pop(path).release()

    # Recovery, end

    def check_head(self) -> None:
        """Check, before `cut`, that everything shown to readers is there. Raises Corruption.

        A head moves when a batch is committed, and is never ahead of the write-ahead log: a log
        that ends before its head has lost acknowledged batches.
        """
        head = read_head(self._files, self.directory)
        if head is not None and head.committed > self._next:
            what = (
                f"offsets {self._next} to {head.committed - 1} were committed, and are nowhere else"
            )
            raise Corruption(f"{self.directory}/{HEAD_NAME}", head.slot_position, what)

    def cut(self) -> None:
        """End a recovery: make the files match the log, and check that they do. Raises Corruption.

        Files of other segments are removed, the last segment is truncated after its last batch, the
        head set. After Exhausted the next `flush` calls it again.
        """
        self._cutting = True
        self._write_at_once()
        state = self.state()
        names = set(self._files.listdir(self.directory))
        wanted = {HEAD_NAME}
        for segment in state.segments:
            wanted |= {segment_name(segment.base_offset), index_name(segment.base_offset)}
            check = check_sealed if segment.sealed else check_growing
            check(self._files, self.directory, self.queue, segment, names)
            self._reader.forget(sealed_extent(self.directory, segment))
        self._recovering = False
        try:
            self._move_head()
        except Exhausted:
            self._recovering = True
            raise
        if self.ahead:
            return  # a later `flush` removes files
        for name in names - wanted:
            if base_of(name) is not None or base_of(name, INDEX_SUFFIX) is not None:
                self._files.unlink(f"{self.directory}/{name}")
                self._names += 1
        self._cutting = False
        self._files.reach("segment.cut")

    def _write_at_once(self) -> None:
        """Write what was appended, syncing files in this thread if that is needed."""
        while True:
            try:
                self._write()
            except AwaitsSync:
                self._table.sync_oldest()
            else:
                return

    def close(self) -> None:
        """Close all files without a sync; unflushed batches are lost."""
        self._cache.drop_below(self._recent, self._next)
        self._reader.forget_windows()
        for state in self._sealed:
            self._reader.forget(sealed_extent(self.directory, state))
        for segment in self._writers():
            self._reader.forget(segment.extent())
            self._release(segment.files())
        self._release(self._rolled.values())
        self._rolled.clear()
        self._closing.clear()
        self._growing = None
        self._head.close()

    def delete(self) -> None:
        """Close the log and remove its directory. Raises StorageError; a later start removes the
        rest."""
        self.close()
        delete_directory(self._files, self.directory)

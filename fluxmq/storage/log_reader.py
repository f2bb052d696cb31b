"""Reads batches of a log from disk, by offset and by time, and checks every byte first.

Responsible for finding a batch in a segment and for the few descriptors and stretches kept for the
next read. Knows nothing of recent appends, retention or other segments. Files are read with pread:
a mapping of a file that shrinks or fails ends the process, and a private copy cannot change after
the check.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from typing import Final

from fluxmq.model.batch_format import Batch, BatchError, parse, verify
from fluxmq.model.segments import BATCH_HEADER_BYTES, PAGE_BYTES, IndexEntries
from fluxmq.storage.batch_cache import BatchCache, ReadWindow
from fluxmq.storage.errors import Corruption, StorageError
from fluxmq.storage.files import Files
from fluxmq.storage.open_files import OpenFile, OpenFiles
from fluxmq.storage.segment_index import (
    Extent,
    checked_span,
    load_growing,
    load_sealed,
    rebuild,
    walk,
)

WINDOW_BYTES: Final = 256 << 10
"""Bytes read at once: a call then serves a thousand messages of a sequential reader; a larger batch
is read alone."""

WINDOWS_MAX: Final = 4
"""Stretches one log keeps: consumer groups that read old messages at different places."""

WALKED_MESSAGES_MAX: Final = 256
"""Offsets beyond the walked part of a stretch that are searched there; farther ahead the index is
faster."""

OPEN_SEGMENTS_MAX: Final = 256
"""Segments that a shard reads at once, so that old messages of many queues do not exhaust places
or, with their indexes, memory."""


class OpenSegment:
    """A recently read segment, with its index once it was needed."""

    __slots__ = ("entries", "file", "sealed")

    def __init__(self, file: OpenFile) -> None:
        self.file = file
        self.entries: IndexEntries | None = None
        # True when `entries` is the whole index of the sealed segment.
        self.sealed = False


class OpenSegments:
    """The most recently read segments of a shard's logs, up to a number. Their files share the
    table of all others."""

    def __init__(self, table: OpenFiles, open_max: int = OPEN_SEGMENTS_MAX) -> None:
        self.table = table
        self._open_max = open_max
        self._open: OrderedDict[str, OpenSegment] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def get(self, path: str) -> OpenSegment:
        """Return a segment."""
        segment = self._open.get(path)
        if segment is not None:
            self._open.move_to_end(path)
            return segment
        segment = self._open[path] = OpenSegment(OpenFile(self.table, path, readonly=True))
        if len(self._open) > self._open_max:
            _, oldest = self._open.popitem(last=False)
            oldest.file.release()
        return segment

    def descriptor(self, path: str) -> int:
        """Return a segment's descriptor, valid until another file is opened. Raises
        StorageError."""
        return self.get(path).file.opened()

    def drop(self, path: str) -> None:
        """Close a segment, if it is open: it will be removed, or has changed."""
        segment = self._open.pop(path, None)
        if segment is not None:
            segment.file.release()

    def close(self) -> None:
        """Close all segments."""
        for path in list(self._open):
            self.drop(path)


class LogReader:
    """Disk reads of one log. `interval`: bytes between index entries, for rebuilding an index."""

    def __init__(
        self, files: Files, cache: BatchCache, segments: OpenSegments, interval: int
    ) -> None:
        self._files = files
        self._cache = cache
        self._segments = segments
        self._interval = interval
        self._windows: list[ReadWindow] = []
        self.window_bytes_max: int | None = None
        """Bytes of cached stretches, not counting the last one read; None: as the cache has
        room."""

    def read(self, extent: Extent, offset: int) -> Batch:
        """Return the batch that holds an offset of this segment. Raises Corruption and other
        StorageErrors."""
        for window in reversed(self._windows):
            ahead = offset - window.next_offset
            if window.base == extent.base_offset and ahead < WALKED_MESSAGES_MAX:
                batch = self._find(window, extent, offset)
                if batch is not None:
                    self._cache.used(window)
                    return batch
        window = self._next_window(extent, offset) or self._searched_window(extent, offset)
        batch = self._find(window, extent, offset)
        while batch is None:
            window = self._window(extent, window.position + window.end, window.next_offset)
            batch = self._find(window, extent, offset)
        while self._windows and (len(self._windows) >= WINDOWS_MAX or self._is_over(window)):
            self._cache.drop_window(self._windows, self._windows[0])
        self._cache.add_window(self._windows, window)
        return batch

    def _is_over(self, window: ReadWindow) -> bool:
        """Return whether one more stretch would exceed this log's limit."""
        if self.window_bytes_max is None:
            return False
        kept = sum(len(each.data) for each in self._windows)
        return kept + len(window.data) > self.window_bytes_max

    def _next_window(self, extent: Extent, offset: int) -> ReadWindow | None:
        """Return the stretch after one that was read to its end, as a sequential reader needs."""
        for window in self._windows:
            if window.base == extent.base_offset and window.next_offset == offset:
                following = self._window(extent, window.position + window.end, offset)
                self._cache.drop_window(self._windows, window)
                return following
        return None

    def _searched_window(self, extent: Extent, offset: int) -> ReadWindow:
        """Return a stretch that begins at or before an offset, found by the index."""
        for retried in (False, True):
            relative, position = self._index(extent, retried).by_offset(offset - extent.base_offset)
            try:
                return self._window(extent, position, extent.base_offset + relative)
            except Corruption:
                # Either the entry or the segment is wrong; an index rebuilt from the segment tells which.
                if retried:
                    raise
        raise AssertionError("the second round returns or raises")

    def _window(self, extent: Extent, position: int, offset: int) -> ReadWindow:
        """Read a stretch that begins with a whole batch; only that batch's header is checked
        yet."""
        fd = self._segments.descriptor(extent.path)
        size = max(0, min(WINDOW_BYTES, extent.end - position))
        data = self._files.pread(fd, size, position)
        if len(data) >= BATCH_HEADER_BYTES:
            length = checked_span(data, 0, extent, position, offset).length
            if length > len(data):
                data = self._files.pread(fd, length, position)
            if length <= len(data):
                return ReadWindow(extent.base_offset, position, data, offset)
        what = f"the file ends within the batch of offset {offset}"
        raise Corruption(extent.path, position + len(data), what)

    def _find(self, window: ReadWindow, extent: Extent, offset: int) -> Batch | None:
        """Return the batch in a stretch that holds an offset; None when it is before or after the
        stretch."""
        while window.next_offset <= offset and window.end < len(window.data):
            position = window.position + window.end
            if len(window.data) - window.end < BATCH_HEADER_BYTES:
                return None
            span = checked_span(window.data, window.end, extent, position, window.next_offset)
            if window.end + span.length > len(window.data):
                return None
            window.bases.append(span.base_offset)
            window.starts.append(window.end)
            window.end += span.length
            window.next_offset = span.next_offset
        at = bisect_right(window.bases, offset) - 1
        if at < 0 or offset >= window.next_offset:
            return None
        base = window.bases[at]
        batch = window.batches.get(base)
        if batch is None:
            batch = window.batches[base] = self._checked(window, extent, window.starts[at])
        return batch

    def _checked(self, window: ReadWindow, extent: Extent, start: int) -> Batch:
        try:
            batch = parse(window.data, start)
            verify(batch)
        except BatchError as error:
            raise Corruption(extent.path, window.position + start, str(error)) from None
        return batch

    def _index(self, extent: Extent, retried: bool) -> IndexEntries:
        """Return the segment's index; rebuild it from the segment if its file is wrong, or on
        request."""
        segment = self._segments.get(extent.path)
        entries = None if retried else segment.entries
        if extent.hash is not None:
            if entries is None or not segment.sealed:
                entries = None if retried else load_sealed(self._files, extent)
        elif not retried:
            if entries is None:
                entries = IndexEntries()
            if not load_growing(self._files, extent, entries):
                entries = None
        if entries is None:
            entries = rebuild(self._files, segment.file.opened(), extent, self._interval)
        segment.entries = entries
        segment.sealed = extent.hash is not None
        return entries

    def offset_at(self, extent: Extent, time: int) -> int | None:
        """Return the offset of the segment's first message not before `time` (µs), None if there is
        none."""
        relative, position = self._index(extent, False).by_time(time)
        # The search may open other files: this one stays open.
        file = self._segments.get(extent.path).file.shared()
        try:
            fd = file.opened()
            try:
                return self._offset_at(fd, extent, position, extent.base_offset + relative, time)
            except StorageError:
                entries = self._index(extent, True)
            relative, position = entries.by_time(time)
            return self._offset_at(fd, extent, position, extent.base_offset + relative, time)
        finally:
            file.give_back()

    def _offset_at(
        self, fd: int, extent: Extent, position: int, offset: int, time: int
    ) -> int | None:
        for _, span in walk(self._files, fd, extent, position, offset):
            if span.last_time >= time:
                found = first_not_before(self.read(extent, span.base_offset), time)
                if found is not None:
                    return found
        return None

    def forget(self, extent: Extent) -> None:
        """Drop everything cached of a segment: it is removed, or ends elsewhere now."""
        self._cache.drop_windows(self._windows, extent.base_offset)
        self._segments.drop(extent.path)

    def forget_windows(self) -> None:
        """Drop all stretches of the log."""
        self._cache.drop_windows(self._windows)


def first_not_before(batch: Batch, time: int) -> int | None:
    """Return the offset of a batch's first message whose time is not before `time` (µs), None if
    there is none."""
    if batch.base_time >= time:
        return batch.base_offset
    for index in range(batch.count):
        if batch.time(index) >= time:
            return batch.base_offset + index
    return None


assert WINDOW_BYTES > PAGE_BYTES

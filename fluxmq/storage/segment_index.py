"""The sparse index beside a segment: written with batches, checked on use, rebuilt when wrong.

An index never decides what is read, only where a search begins: every entry used is compared with
the batch at its position. The file's own check (a chain over its entries, ended with the segment's
hash) makes its *times* trustworthy, which no batch header can confirm. A missing, torn or foreign
index costs one walk over the segment.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from fluxmq.model.segments import (
    BATCH_HEADER_BYTES,
    INDEX_CHAIN_START,
    INDEX_ENTRY_BYTES,
    PAGE_BYTES,
    TIME_NONE,
    BatchSpan,
    IndexEntries,
    SegmentError,
    batch_span,
    index_chain,
    index_entry,
    index_trailer,
    sealed_index,
)
from fluxmq.storage.errors import Corruption, FileMissing, StorageError
from fluxmq.storage.files import Files

WALK_BYTES: Final = 256 << 10
"""Bytes read at once when walking batches: enough to make calls cheap, few enough for a CPU's
cache."""


class Extent(NamedTuple):
    """One segment as far as it is on disk, for a reader.

    `end`: bytes of page and batches. `hash`: of a sealed segment, else None; then `index_entries`
    and `index_check` give what its index must hold.
    """

    path: str
    index_path: str
    base_offset: int
    next_offset: int
    end: int
    hash: bytes | None
    index_entries: int
    index_check: int


def walk(
    files: Files, fd: int, extent: Extent, position: int, offset: int
) -> Iterator[tuple[int, BatchSpan]]:
    """Yield position and header of every batch from `position`, where the batch with `offset`
    begins, to the end.

    Headers are checked, contents are not. Raises Corruption at the first unexpected batch.
    """
    data, start = b"", position
    while position < extent.end:
        at = position - start
        if at + BATCH_HEADER_BYTES > len(data):
            start, at = position, 0
            data = files.pread(fd, min(WALK_BYTES, extent.end - position), position)
        span = checked_span(data, at, extent, position, offset)
        yield position, span
        position += span.length
        offset = span.next_offset


def checked_span(data: bytes, at: int, extent: Extent, position: int, offset: int) -> BatchSpan:
    """Return the header at `data[at]`, read from `position`, which must hold `offset`. Raises
    Corruption."""
    try:
        span = batch_span(data, at)
    except SegmentError as error:
        raise Corruption(extent.path, position, str(error)) from None
    if span.base_offset != offset:
        what = f"a batch from offset {span.base_offset} where {offset} was expected"
        raise Corruption(extent.path, position, what)
    if position + span.length > extent.end:
        what = f"a batch of {span.length} bytes, and the segment ends at {extent.end}"
        raise Corruption(extent.path, position, what)
    return span


class IndexWriter:
    """The index of the growing segment; only entries not yet in its file are held.

    `entries`, `position` (of the last one) and `check` go into checkpoints.
    """

    __slots__ = ("_interval", "_pending", "check", "entries", "position")

    def __init__(
        self,
        interval: int,
        entries: int = 0,
        position: int = PAGE_BYTES,
        check: int = INDEX_CHAIN_START,
    ) -> None:
        self._interval = interval
        self._pending: list[bytes] = []
        self.entries = entries
        self.position = position
        self.check = check

    def batch(self, offset: int, position: int, latest: int) -> None:
        """Index a batch at `position` with `offset` (minus the base); `latest` is the latest time
        before it."""
        if position - self.position >= self._interval:
            entry = index_entry(offset, position, latest)
            self._pending.append(entry)
            self.entries += 1
            self.position = position
            self.check = index_chain(self.check, entry)

    @property
    def waiting(self) -> bool:
        """True when some entry is not in the file."""
        return bool(self._pending)

    def seal(self, segment_hash: bytes) -> None:
        """Add the trailer of a sealed segment's index."""
        self._pending.append(index_trailer(self.entries, self.check, segment_hash))

    def take(self) -> tuple[int, bytes]:
        """Return the bytes to write and their position; they are held until `written`."""
        data = b"".join(self._pending)
        sealed = len(self._pending) > 0 and self._pending[-1][:4] == b"\xff\xff\xff\xff"
        before = self.entries + sealed - len(self._pending)
        return before * INDEX_ENTRY_BYTES, data

    def written(self) -> None:
        """Forget the bytes that the file now has."""
        self._pending.clear()


def load_sealed(files: Files, extent: Extent) -> IndexEntries | None:
    """Return a sealed segment's index, None if the file is missing or wrong."""
    assert extent.hash is not None, "the segment is sealed"
    try:
        data = files.read_file(extent.index_path)
    except FileMissing:
        return None
    return sealed_index(data, extent.hash)


def load_growing(files: Files, extent: Extent, known: IndexEntries) -> bool:
    """Add the new entries of a growing segment's index to `known`; return whether they are
    correct."""
    if len(known) > extent.index_entries:
        return False
    begin = len(known) * INDEX_ENTRY_BYTES
    size = extent.index_entries * INDEX_ENTRY_BYTES - begin
    if size:
        try:
            fd = files.open_(extent.index_path, readonly=True)
        except FileMissing:
            return False
        try:
            data = files.pread(fd, size, begin)
        finally:
            files.close(fd)
        if len(data) != size:
            return False
        known.extend(data)
    return known.check == extent.index_check


def rebuild(files: Files, fd: int, extent: Extent, interval: int) -> IndexEntries:
    """Rebuild the index of a segment by walking it, repair the file, and return the index.

    Raises Corruption when the segment itself is wrong.
    """
    index, latest = IndexWriter(interval), TIME_NONE
    for position, span in walk(files, fd, extent, PAGE_BYTES, extent.base_offset):
        index.batch(span.base_offset - extent.base_offset, position, latest)
        latest = max(latest, span.last_time)
    entries = IndexEntries()
    entries.extend(index.take()[1])
    if extent.hash is not None:
        index.seal(extent.hash)
    elif (index.entries, index.check) != (extent.index_entries, extent.index_check):
        # Written with another interval before: the file continues as it is, and is rewritten when the segment is
        # sealed.
        return entries
    _mend(files, extent, index.take()[1])
    return entries


def _mend(files: Files, extent: Extent, data: bytes) -> None:
    try:
        fd = files.open_(extent.index_path, create=True)
        try:
            files.pwritev(fd, [data], 0)
            if extent.hash is not None:
                files.truncate(fd, len(data))
        finally:
            files.close(fd)
    except StorageError:
        # Reading goes on with the copy in memory; a half-written file fails its check next time.
        return

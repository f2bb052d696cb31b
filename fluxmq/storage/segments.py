"""The segment that a log appends to: bytes determined at once, written by `flush`, synced by
checkpoints.

Responsible for one segment's positions, hash, page and footer. Knows no other segment and decides
nothing: ``queue_log`` decides when to roll, trim or sync. Everything in the files follows from the
batches, so that appending the same batches again writes the same bytes in the same places: this
makes replaying the write-ahead log safe.
"""

from __future__ import annotations

from dataclasses import dataclass

from fluxmq.model.batch_format import Batch
from fluxmq.model.segments import (
    FOOTER_BYTES,
    PAGE_BYTES,
    SEGMENT_BYTES_MAX,
    SEGMENT_BYTES_MIN,
    TIME_NONE,
    Footer,
    HeaderPage,
    chain,
    chain_start,
    index_name,
    segment_name,
)
from fluxmq.storage.files import Buffer
from fluxmq.storage.log_state import SegmentState
from fluxmq.storage.open_files import OpenFile, OpenFiles
from fluxmq.storage.segment_index import Extent, IndexWriter


@dataclass(frozen=True, slots=True)
class SegmentOptions:
    """Size and age at which segments roll, and index density: bytes, µs (0: no age limit), bytes.

    The first two must be the same in every replica of a log and when entries are replayed: they
    decide which file holds what.
    """

    segment_bytes: int = 64 << 20
    segment_age: int = 7 * 86_400 * 1_000_000
    index_bytes: int = 64 << 10

    def __post_init__(self) -> None:
        if not SEGMENT_BYTES_MIN <= self.segment_bytes <= SEGMENT_BYTES_MAX:
            raise ValueError(
                f"segments of {self.segment_bytes} bytes; {SEGMENT_BYTES_MIN} to {SEGMENT_BYTES_MAX}"
            )
        if self.segment_age < 0 or self.index_bytes <= 0:
            raise ValueError("no segment age is below zero, no index interval zero")

    @property
    def batch_bytes_max(self) -> int:
        """The largest batch that fits into a segment."""
        return self.segment_bytes - PAGE_BYTES - FOOTER_BYTES


class SegmentWriter:
    """One growing segment and its index.

    `length` and `next_offset` count everything appended, `written` and `written_offset` what is in
    the file.
    """

    def __init__(
        self, table: OpenFiles, directory: str, state: SegmentState, interval: int
    ) -> None:
        self.base_offset = state.base_offset
        self.next_offset = state.next_offset
        self.length = state.length
        self.created = state.created
        self.last_time = state.last_time
        self.sealed = state.sealed
        self.hash = state.hash
        self.bytes_max = state.bytes_max
        self.written = self.length
        self.written_offset = self.next_offset
        self.file = OpenFile(table, f"{directory}/{segment_name(state.base_offset)}")
        self.index_file = OpenFile(table, f"{directory}/{index_name(state.base_offset)}")
        self._index = IndexWriter(
            interval, state.index_entries, state.index_position, state.index_check
        )
        self._index_written = (state.index_entries, state.index_check)
        self._pending: list[Buffer] = []

    @classmethod
    def begin(
        cls,
        table: OpenFiles,
        directory: str,
        queue: str,
        first: Batch,
        interval: int,
        bytes_max: int = 0,
    ) -> SegmentWriter:
        """Create the segment for a first batch, which is not yet appended. `bytes_max` is only
        stored."""
        page = HeaderPage(queue, first.base_offset, first.base_time).encode()
        state = SegmentState(
            first.base_offset,
            first.base_offset,
            PAGE_BYTES,
            first.base_time,
            TIME_NONE,
            False,
            chain_start(page),
            bytes_max=bytes_max,
        )
        segment = cls(table, directory, state, interval)
        segment._pending.append(page)
        segment.written = 0
        return segment

    def append(self, batch: Batch) -> None:
        """Add a stamped batch, which must begin with `next_offset`."""
        assert not self.sealed, "a sealed segment does not grow"
        assert batch.base_offset == self.next_offset, "offsets have no gaps"
        header = batch.header()
        self._index.batch(self.next_offset - self.base_offset, self.length, self.last_time)
        self._pending.append(header)
        self._pending.append(batch.body())
        self.hash = chain(self.hash, header)
        self.length += batch.length
        self.next_offset += batch.count
        latest = batch.base_time + max(0, batch.last_delta)
        self.last_time = max(self.last_time, latest)

    def seal(self) -> None:
        """Add the footer; nothing is appended after it."""
        footer = Footer(
            self.next_offset - self.base_offset,
            self.next_offset - 1,
            self.created,
            self.last_time,
            self.hash,
            self.length,
        )
        self.sealed = True
        self._pending.append(footer.encode())
        self._index.seal(self.hash)

    def flush(self, *, passing: bool = False) -> None:
        """Write appended batches. Raises StorageError; unwritten bytes are kept for the next
        flush. `passing`: see `Files.pwritev`."""
        if self._pending:
            self.file.write(self._pending, self.written, passing=passing)
            self._pending.clear()
            self.written = self.length + (FOOTER_BYTES if self.sealed else 0)
            self.written_offset = self.next_offset
        if self._index.waiting:
            position, data = self._index.take()
            self.index_file.write([data], position)
            self._index.written()
            self._index_written = (self._index.entries, self._index.check)

    @property
    def pending_bytes(self) -> int:
        """Bytes waiting for `flush`."""
        return self.length + (FOOTER_BYTES if self.sealed else 0) - self.written

    def state(self) -> SegmentState:
        """Return the segment's state for a checkpoint; all of it must be written."""
        return SegmentState(
            self.base_offset,
            self.next_offset,
            self.length,
            self.created,
            self.last_time,
            self.sealed,
            self.hash,
            self._index.entries,
            self._index.position,
            self._index.check,
            0 if self.sealed else self.bytes_max,
        )

    def extent(self) -> Extent:
        """Return the part that readers may see: what is in the file."""
        entries, check = self._index_written
        end = min(self.written, self.length)
        return Extent(
            self.file.path,
            self.index_file.path,
            self.base_offset,
            self.written_offset,
            end,
            None,
            entries,
            check,
        )

    def files(self) -> tuple[OpenFile, OpenFile]:
        """Return the segment's file and its index's."""
        return self.file, self.index_file


def sealed_extent(directory: str, state: SegmentState) -> Extent:
    """Return a sealed segment's extent for readers."""
    return Extent(
        f"{directory}/{segment_name(state.base_offset)}",
        f"{directory}/{index_name(state.base_offset)}",
        state.base_offset,
        state.next_offset,
        state.length,
        state.hash,
        state.index_entries,
        state.index_check,
    )

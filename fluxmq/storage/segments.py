"""The segment that a log is appended to: its bytes fixed at once, written by `flush`, synced by whoever checkpoints.

Responsible for one segment's positions, hash, page and footer. Knows no other segment and decides nothing: when to
roll, trim or sync is ``queue_log``'s. Everything in the files follows from the batches, so that appending the same
batches again writes the same bytes in the same places: that is what makes replaying the write-ahead log safe.
"""

from __future__ import annotations

import time
from typing import Final

from fluxmq._hot.batches import Batch
from fluxmq.model.segments import (
    FOOTER_BYTES,
    INDEX_ENTRY_BYTES,
    PAGE_BYTES,
    TIME_NONE,
    Footer,
    Page,
    chain,
    chain_start,
    index_name,
    segment_name,
)
from fluxmq.storage.errors import StorageError
from fluxmq.storage.files import Buffer, Files
from fluxmq.storage.log_state import SegmentState
from fluxmq.storage.segment_index import Extent, IndexWriter

WRITE_OUT_BYTES: Final = 256 << 10
"""What is written out at a time. Behind much more every write of the log would wait: the disk takes them in turn."""


class OpenFile:
    """A file that is written to, opened when first needed; closed when its last user releases it.

    `writes` counts them, `synced` how many of them are known to be synced. `end` is where the last ended, `begun` up to where
    bytes were written out; `aged` is where `end` was some time ago, for who looks after that.
    """

    __slots__ = (
        *("_users", "aged", "begun", "end", "failure", "fd", "files", "path", "synced", "writes"),
    )

    def __init__(self, files: Files, path: str) -> None:
        self.files = files
        self.path = path
        self.fd = -1
        self.writes = 0
        self.synced = 0
        self.end = self.begun = self.aged = 0
        self.failure: StorageError | None = None
        """What went wrong when bytes were written out: a sync would not report it again."""
        self._users = 1

    def write(self, buffers: list[Buffer], position: int) -> None:
        """Write at a position; the file is made if need be. Raises StorageError."""
        if self.fd < 0:
            self.fd = self.files.open_(self.path, create=True)
            self.end = self.begun = self.aged = position
        self.writes += 1
        self.end = position + self.files.pwritev(self.fd, buffers, position)

    def write_out(self, end: int) -> None:
        """Have bytes up to `end` written out, all but a last piece, a piece at a time with as long a pause behind each.

        In any one thread. Raises StorageError, now and at every later call.
        """
        if self.failure is not None:
            raise self.failure
        try:
            while end - self.begun > WRITE_OUT_BYTES:
                began = time.monotonic()
                self.files.write_out(self.fd, self.begun, WRITE_OUT_BYTES)
                self.begun += WRITE_OUT_BYTES
                time.sleep(time.monotonic() - began)
        except StorageError as error:
            self.failure = error
            raise

    @property
    def dirty(self) -> bool:
        """Whether something was written that is not known to be synced."""
        return self.synced < self.writes

    def shared(self) -> OpenFile:
        """Return it for one more user."""
        self._users += 1
        return self

    def release(self) -> None:
        """Say that one user needs it no more."""
        self._users -= 1
        if self._users == 0 and self.fd >= 0:
            self.files.close(self.fd)
            self.fd = -1


class SegmentWriter:
    """One growing segment and its index.

    `length` and `next_offset` count everything appended, `written` and `written_offset` what is in the file.
    """

    def __init__(self, files: Files, directory: str, state: SegmentState, interval: int) -> None:
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
        self.file = OpenFile(files, f"{directory}/{segment_name(state.base_offset)}")
        self.index_file = OpenFile(files, f"{directory}/{index_name(state.base_offset)}")
        self._index = IndexWriter(
            interval, state.index_entries, state.index_position, state.index_check
        )
        self._index_written = (state.index_entries, state.index_check)
        self._pending: list[Buffer] = []

    @classmethod
    def begin(
        cls,
        files: Files,
        directory: str,
        queue: str,
        first: Batch,
        interval: int,
        bytes_max: int = 0,
    ) -> SegmentWriter:
        """Begin the segment whose first batch is given; the batch is not yet appended. `bytes_max` is only kept."""
        page = Page(queue, first.base_offset, first.base_time).encode()
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
        segment = cls(files, directory, state, interval)
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

    def flush(self) -> None:
        """Write what was appended. Raises StorageError; what was not written is kept, and written by the next flush."""
        if self._pending:
            self.file.write(self._pending, self.written)
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
        """Bytes that wait for `flush`."""
        return self.length + (FOOTER_BYTES if self.sealed else 0) - self.written

    def state(self) -> SegmentState:
        """Return what a checkpoint remembers of it; all of it must be written."""
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
        """Return what a reader may see of it: what is in the file."""
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
    """Return what a reader has to know of a sealed segment."""
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


def index_file_bytes(state: SegmentState) -> int:
    """Return the length of the index file beside a segment."""
    return (state.index_entries + state.sealed) * INDEX_ENTRY_BYTES

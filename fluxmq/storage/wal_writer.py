"""Writes the records of a log, one write and one sync at a time, and reports what is durable.

Responsible for group commit, for continuing in the next file, for handling failed writes, failed
syncs and full disks, and for which files are still needed. Knows the effect of records on
`WalGroup`, not who appends them or why.

One write is in flight at a time: everything appended meanwhile joins the next. A write that does
not fit into its file continues in the next one after the first part was synced; it is done when all
of it is. Nothing is written unless there is room for all of it, so that a full disk leaves the log
usable. After a failed write or sync nothing is acknowledged any more: the disk's state is unknown,
and a second sync would report success.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable

from fluxmq.storage.errors import DiskFull, Exhausted, OutOfDescriptors, StorageError, WriteFailed
from fluxmq.storage.files import Files
from fluxmq.storage.wal_cache import OVERHEAD_BYTES, RecentEntries
from fluxmq.storage.wal_files import LogFile, unpin
from fluxmq.storage.wal_groups import WalGroup
from fluxmq.storage.wal_mark import MarkFile
from fluxmq.storage.wal_options import NO_MARK, SyncQueue, WalOptions, WalStats
from fluxmq.storage.wal_records import (
    BODY_BYTES_MAX,
    CHECKPOINT,
    CLOSED,
    ENTRY,
    FILE,
    FORGET,
    FORMAT,
    GROUP,
    HARD_STATE,
    HEADER_BYTES,
    TRUNCATION,
    Record,
    encode,
    record_bytes,
)
from fluxmq.storage.wal_supply import FileRow

WAIT_SECONDS_MAX = 1.0
"""Longest wait of closing at once; it then reports a full disk."""

_GONE = -1
"""Replaces a checkpoint's index: the group has left."""


class LogWriter:
    """The writing side of a log. `groups` is shared with the log that owns it."""

    def __init__(
        self,
        files: Files,
        row: FileRow,
        syncer: SyncQueue,
        groups: dict[int, WalGroup],
        options: WalOptions,
        on_sync: Callable[[float], None] | None,
        clock: Callable[[], float],
        mark: MarkFile | None = None,
    ) -> None:
        """`on_sync` gets the seconds of each sync; `clock` is monotonic; `mark` stores how far the
        log is synced."""
        self._mark_file = mark
        self._files = files
        self._row = row
        self._syncer = syncer
        self._groups = groups
        self._options = options
        self._on_sync = on_sync
        self._clock = clock
        self.body_max = min(BODY_BYTES_MAX, options.file_bytes // 2)
        self.prologue_bytes = record_bytes(len(FORMAT)) + sum(map(carried_bytes, groups.values()))
        """Size of the records that begin every new file."""
        self.recent = RecentEntries()
        self.buffered_bytes = 0
        self._buffer: list[Record] = []
        self._writing: list[Record] = []
        self._cursor = 0
        self._writing_bytes = 0
        self._syncing = False
        self._begun: LogFile | None = None
        self._direct = False
        self._marks: list[tuple[WalGroup, int]] = []
        self._voids: list[tuple[list[LogFile], int, int]] = []
        self._number = 0
        self._durable = 0
        self._failure: WriteFailed | None = None
        self.stats = WalStats()

    def append(self, record: Record) -> None:
        """Add a record to the next write. Raises DiskFull when too much is buffered."""
        waiting = self.buffered_bytes + HEADER_BYTES + (len(record.body) + 7 & ~7)
        if waiting > self._options.buffered_bytes_max:
            raise DiskFull(f"{self.buffered_bytes} bytes wait to be written to the log")
        self._buffer.append(record)
        self.buffered_bytes = waiting

    @property
    def in_flight(self) -> bool:
        """True while a write is in flight."""
        return self._number != self._durable

    @property
    def room(self) -> int:
        """Bytes of records that can be appended and are sure to find space."""
        capacity = self._capacity(len(self._row.ready))
        return max(0, capacity - self.buffered_bytes - self._writing_bytes)

    def _capacity(self, ready: int) -> int:
        """Return the bytes that fit in any order and size, with `ready` files after the one in
        use."""
        used = self._row.used
        left = used[-1].size - used[-1].end if used else 0
        if not ready:
            return left
        file = self._options.file_bytes - self.prologue_bytes
        # Of each file but the last, the space for one record may stay empty.
        return max(left, file + (ready - 1) * max(0, file - record_bytes(self.body_max)))

    # Writing

    def flush(self) -> int:
        """Write buffered records; see `WriteAheadLog.flush`."""
        if self._syncing or self._row.busy or self._failure is not None:
            self.collect()
        if self._number != self._durable or not self._buffer:
            return 0
        file = self._row.used[-1] if self._row.used else None
        if file is not None and self.buffered_bytes <= file.size - file.end:
            pass  # as nearly always
        elif self.buffered_bytes > self._capacity(len(self._row.ready)):
            self.collect()
            self.tend()  # another file is needed, and may be ready now
            if self.buffered_bytes > self._capacity(len(self._row.ready)):
                full = self._row.full
                if isinstance(full, OutOfDescriptors):
                    raise OutOfDescriptors(str(full))
                if full is not None:
                    raise DiskFull(str(full))
                return 0
        self._writing, self._buffer = self._buffer, []
        self._writing_bytes, self.buffered_bytes = self.buffered_bytes, 0
        self._cursor = 0
        self._number += 1
        self._write()
        return self._number

    def completed(self) -> int:
        """See `WriteAheadLog.completed`."""
        self.collect()
        return self._durable

    def collect(self) -> None:
        """Process the syncer's answers, continue a write that needs another file, tend the
        files."""
        if self._failure is not None:
            raise self._failure
        answers = self._syncer.completed()
        if not answers and not self._row.busy and self._row.full is None:
            return
        for number in self._numbers(answers):
            self._files.reach("wal.synced")
            self._row.used[-1].begun = True
            for group, index in self._marks:
                self._mark(group, index)
            self._marks.clear()
            for logs, number_of_group, index in self._voids:
                unpin(logs, number_of_group, index)
            self._voids.clear()
            if self._cursor < len(self._writing):
                self._write()
            else:
                self._writing = []
                self._cursor = 0
                if self._direct:
                    self._shrink(0, 0)
                self._durable = number
        self.tend()

    def _numbers(self, answers: list[tuple[int, int, float]]) -> list[int]:
        """Return the numbers of the writes that were synced."""
        numbers = []
        for number, failure, seconds in answers:
            self._syncing = False
            self.stats.syncs += 1
            self.stats.last_sync_seconds = seconds
            if self._on_sync is not None:
                self._on_sync(seconds)
            if failure:
                what = "the mark" if failure < 0 else "a write" if self._direct else "fdatasync"
                path = self._row.used[-1].path
                self._fail(WriteFailed(f"{what} of {path}: {os.strerror(abs(failure))}"))
            numbers.append(number)
        return numbers

    def _mark(self, group: WalGroup, index: int) -> None:
        """Record that a checkpoint, or the group's leaving, became durable."""
        if index != _GONE:
            group.checkpoint_durable = max(group.checkpoint_durable, index)
            return
        for file in self._row.used:
            file.last_index.pop(group.number, None)

    def _fail(self, error: WriteFailed) -> None:
        """Fail the log permanently."""
        self._failure = error
        raise error

    def _write(self) -> None:
        """Write what fits into the file in use, or begin the next file, and request the sync."""
        records, size = self._fitting()
        self._cursor += len(records)
        if not records:
            prologue = self._begin_file()
            records, size = self._fitting(self.prologue_bytes)
            self._cursor += len(records)
            records = prologue + records
        file = self._row.used[-1]
        start = file.end
        parts, positions, end = encode(records, file.tie, start, start)
        self._apply(records, file, positions)
        self._writing_bytes -= size
        file.end = end
        self._make_durable(file, parts, start)
        stats = self.stats
        stats.writes += 1
        stats.records += len(records)
        stats.bytes += end - start
        self._shrink(len(records), end - start)

    def _shrink(self, records: int, size: int) -> None:
        """Evict what need not be kept. Data just given to a syncer that writes is not in the
        file yet."""
        if self._direct:
            size += OVERHEAD_BYTES * records
        else:
            size = 0
        waiting = len(self._buffer) + len(self._writing) - self._cursor
        self.recent.shrink(
            self._options.cache_bytes
            + self.buffered_bytes
            + self._writing_bytes
            + OVERHEAD_BYTES * waiting
            + size
        )

    def _make_durable(self, file: LogFile, parts: list[bytes], start: int) -> None:
        """Write, and request the sync. Raises WriteFailed, permanently."""
        syncer = self._syncer
        mark = NO_MARK
        if file is not self._begun:
            self._begun = file
            syncer.begin(file.fd)
        try:
            self._files.reach("wal.write")
            if self._mark_file is not None:
                mark = self._mark_file.after(file.sequence, file.end)
            self._direct = syncer.write(parts, start, self._number, mark)
            if not self._direct:
                self._files.pwritev(file.fd, parts, start)
        except StorageError as error:
            # Also on a full disk: space that was written once has run out, so the file is not what it was.
            self._fail(WriteFailed(str(error)))
        self._files.reach("wal.written")
        self._syncing = True
        if not self._direct:
            syncer.submit(file.fd, self._number, mark)

    def _fitting(self, behind: int = 0) -> tuple[list[Record], int]:
        """Return the next records that fit into the file in use, after `behind` bytes, and their
        size."""
        if not self._row.used:
            return [], 0
        file = self._row.used[-1]
        room = file.size - file.end - behind
        writing, cursor = self._writing, self._cursor
        if self._writing_bytes <= room:
            return (writing[cursor:] if cursor else writing), self._writing_bytes
        size = 0
        last = cursor
        while last < len(writing):
            size_of_next = record_bytes(len(writing[last].body))
            if size + size_of_next > room:
                break
            size += size_of_next
            last += 1
        return writing[cursor:last], size

    def _begin_file(self) -> list[Record]:
        """Continue in the next file; return the records it begins with."""
        self._files.reach("wal.rotate")
        before = self._row.used[-1].end if self._row.used else 0
        file = self._row.begin()
        self.stats.files_begun += 1
        records = [Record(FILE, 0, 0, file.sequence, before, FORMAT)]
        for group in self._groups.values():
            if group.declared:
                records += group.carried()
        return records

    def _apply(self, records: list[Record], file: LogFile, positions: list[int]) -> None:
        """Apply the records that go to the file."""
        groups, last_index = self._groups, file.last_index
        sequence = file.sequence << 32
        for record, position in zip(records, positions, strict=True):
            kind, number, index = record.type, record.group, record.index
            if kind == ENTRY:
                group = groups[number]
                if index <= group.last:
                    self._void(number, index)
                group.add_entry(index, record.term, sequence | position)
                last_index[number] = index
            elif kind == HARD_STATE:
                groups[number].hard_record = record
            elif kind == GROUP:
                groups[number].declared = True
            elif kind == TRUNCATION:
                self._void(number, index)
                groups[number].truncate(index)
            elif kind == CHECKPOINT:
                groups[number].set_checkpoint(index, record.term)
                self._marks.append((groups[number], index))  # 0: none yet, as a new file repeats it
            elif kind == FORGET:
                group = groups.pop(number)
                self.prologue_bytes -= carried_bytes(group)
                self._marks.append((group, _GONE))

    def _void(self, group: int, index: int) -> None:
        """Void entries from `index` on once the current write is durable; until then their files
        stay.

        The file in use stays in any case; entries after this will be in it.
        """
        unpin(self._row.used[-1:], group, index)
        self._voids.append((self._row.used[:-1], group, index))

    # Files

    def pinning(self, file: LogFile) -> list[int]:
        """Return groups that need a file. One whose leaving is not yet durable needs all of its
        files."""
        pinning = []
        for number, index in file.last_index.items():
            group = self._groups.get(number)
            if group is None or min(group.released, group.checkpoint_durable) < index:
                pinning.append(number)
        return pinning

    def _is_needed(self, file: LogFile) -> bool:
        return bool(self.pinning(file))

    def tend(self) -> None:
        """Have the next file made, or the oldest recycled or removed: one step at a time."""
        wanted = 1
        if self.buffered_bytes > self._options.file_bytes - self.prologue_bytes:
            while self._capacity(wanted) < self.buffered_bytes:
                wanted += 1
        try:
            self._row.tend(self._is_needed, wanted, self._clock())
        except StorageError as error:
            self._fail(WriteFailed(str(error)))
        self.stats.files_recycled = self._row.recycled

    def close(self) -> None:
        """See `WriteAheadLog.close`."""
        try:
            self._write_all()
            if self._row.used and self._capacity(0) >= HEADER_BYTES:
                self.append(Record(CLOSED, 0, 0, 0, 0, b""))
                self._write_all()
        except (Exhausted, WriteFailed):
            self._buffer.clear()
        while self._syncing:
            self._wait()
            self._syncing = not self._syncer.completed()
        self._row.close()
        if self._mark_file is not None:
            self._mark_file.close()

    def _write_all(self) -> None:
        while self._buffer or self.in_flight:
            self.flush()
            self._wait()
            self.collect()

    def _wait(self) -> None:
        """Wait until something completed."""
        if self._syncing or self._buffer:
            poll = select.poll()  # select() knows no descriptor above 1023
            poll.register(self._syncer, select.POLLIN)
            poll.poll(WAIT_SECONDS_MAX * 1000)


def carried_bytes(group: WalGroup) -> int:
    """Return the bytes that a group takes at the beginning of every file."""
    return sum(record_bytes(len(record.body)) for record in group.carried())

"""A shard's write-ahead log: the records of all its groups, made durable by one write and one sync at a time.

Responsible for the order of records, for saying what is durable only when it is, for files that follow one another and
are recycled once no group needs them, and for reading entries back. Knows nothing of Raft: indexes and terms are numbers
in the records' headers, bodies are bytes.

One write is under way at a time: everything appended meanwhile goes with the next (group commit). A write that does not
fit into its file goes on in the next file after the first part was synced; it counts as done when all of it is. Nothing
is written unless there is room for the whole of it, so that a full disk leaves the log usable. After a write or a sync
that failed nothing is acknowledged any more (reliability: the pages' state on disk is unknown, and a second sync says
that all is well).

The group a record belongs to is a number; its name is declared in every file, with its hard state, checkpoint and last
index, so that a file's predecessors are never needed for more than their entries.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable

from fluxmq.storage.errors import Corruption, DiskFull, StorageError, WriteFailed
from fluxmq.storage.files import ZEROES, Files
from fluxmq.storage.wal_cache import OVERHEAD_BYTES, Entry, RecentEntries
from fluxmq.storage.wal_files import LogFile, open_key, sequences, unpin
from fluxmq.storage.wal_groups import GROUPS_MAX, NAME_BYTES_MAX, GroupLog, HardStateRecord
from fluxmq.storage.wal_options import (
    Recovered,
    RecoveredEntry,
    SyncQueue,
    WalOptions,
    WalStats,
)
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
    claimed_bytes,
    decode,
    encode,
    record_bytes,
)
from fluxmq.storage.wal_recovery import FIRST_SEQUENCE, Recovery, recover
from fluxmq.storage.wal_supply import BESIDE, FileRow, FileSupply

WAIT_SECONDS_MAX = 1.0
"""How long closing waits at once; a disk that is full says so after that."""

READ_BYTES = 4096
"""What is read of an entry at first; most are shorter."""


class WriteAheadLog:
    """One shard's log. Used from one thread; open it with `open`."""

    def __init__(
        self,
        files: Files,
        directory: str,
        syncer: SyncQueue,
        options: WalOptions,
        on_sync: Callable[[float], None] | None,
        clock: Callable[[], float],
    ) -> None:
        """Use `open`."""
        self._files = files
        self._directory = directory
        self._syncer = syncer
        self._options = options
        self._on_sync = on_sync
        self._clock = clock
        self._body_max = min(BODY_BYTES_MAX, options.file_bytes // 2)
        self._groups: dict[int, GroupLog] = {}
        self._numbers: dict[str, int] = {}
        self._last_number = 0
        self._recent = RecentEntries()
        self._prologue_bytes = record_bytes(len(FORMAT))
        self._buffer: list[Record] = []
        self._buffer_bytes = 0
        self._writing: list[Record] = []
        self._cursor = 0
        self._writing_bytes = 0
        self._syncing = False
        self._marks: list[tuple[GroupLog, int]] = []
        self._number = 0
        self._durable = 0
        self._failure: WriteFailed | None = None
        self.stats = WalStats()

    @classmethod
    def open(
        cls,
        files: Files,
        directory: str,
        syncer: SyncQueue,
        options: WalOptions | None = None,
        *,
        on_sync: Callable[[float], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> WriteAheadLog:
        """Recover the log in `directory`, or begin one. What is recovered is durable when this returns.

        `syncer` is used by this log alone and closed by the caller, afterwards. `on_sync` gets each sync's seconds.
        Raises Corruption, DiskFull, ReadFailed, WriteFailed.
        """
        log = cls(files, directory, syncer, options or WalOptions(), on_sync, clock)
        log._open()
        return log

    def _open(self) -> None:
        files, directory = self._files, self._directory
        files.make_directory(directory)
        beside = os.path.join(directory, BESIDE)
        if files.exists(beside):
            files.unlink(beside)
        found = sequences(files, directory)
        key = open_key(files, directory, create=not found)
        options = self._options
        supply = FileSupply(files, directory, key, options.file_bytes, self._syncer.wake)
        self._row = FileRow(supply, options.file_bytes, options.spare_files)
        logs = [supply.open_(sequence) for sequence in found]
        recovery = recover(files, logs)
        self._make_good(recovery)
        self._groups = recovery.groups
        self._numbers = {group.name: number for number, group in recovery.groups.items()}
        self._last_number = recovery.numbers
        self._prologue_bytes += sum(map(_carried_bytes, self._groups.values()))
        self._row.used.extend(recovery.used)
        self._row.ready.extend(recovery.blank or [] if found else [supply.create(FIRST_SEQUENCE)])
        self._tend()

    def _make_good(self, recovery: Recovery) -> None:
        """Cut what a torn write left, so that it can never be taken for a record; make the rest durable."""
        files = self._files
        if recovery.used:
            active = recovery.used[-1]
            # After a failed sync the kernel holds pages as clean that never reached the disk: write them once more.
            written = files.pread(active.fd, active.end - recovery.last_write, recovery.last_write)
            files.pwritev(active.fd, [written], recovery.last_write)
            if not recovery.closed:
                self._clear(active, active.end)
            files.reach("wal.cut")
            files.fdatasync(active.fd)
        for number, blank in enumerate(recovery.blank):
            if blank.size < self._options.file_bytes or (number == 0 and not recovery.closed):
                self._clear(blank, 0)
                files.fdatasync(blank.fd)
        files.fsync_directory(self._directory)

    def _clear(self, file: LogFile, start: int) -> None:
        """Write zeroes from `start` to the file's end, and make it as long as it should be."""
        end = max(file.size, self._options.file_bytes)
        for position in range(start, end, len(ZEROES)):
            size = min(len(ZEROES), end - position)
            if self._files.pread(file.fd, size, position) != ZEROES[:size]:
                self._files.write_zeroes(file.fd, position, position + size)
        file.size = end

    # Groups

    def groups(self) -> list[str]:
        """Names of the groups in this log."""
        return list(self._numbers)

    def number(self, name: str) -> int:
        """The number of a group; one that is not there is declared with the next write.

        Raises StorageError when the log has no place for another group, or the name is longer than 255 bytes.
        """
        if name in self._numbers:
            return self._numbers[name]
        encoded = name.encode("utf-8")
        if len(encoded) > NAME_BYTES_MAX:
            raise StorageError(f"a group's name has at most {NAME_BYTES_MAX} bytes")
        group = GroupLog(self._last_number + 1, name)
        prologue = self._prologue_bytes + _carried_bytes(group)
        if len(self._numbers) >= GROUPS_MAX or prologue > self._options.file_bytes // 4:
            raise StorageError(f"a log takes no more than {len(self._numbers)} groups")
        self._append(Record(GROUP, 0, group.number, 0, 0, encoded))
        self._prologue_bytes = prologue
        self._last_number = group.number
        self._numbers[name] = group.number
        self._groups[group.number] = group
        return group.number

    def recovered(self, name: str) -> Recovered:
        """What the log holds of a group, entries read from the files. Raises Corruption, ReadFailed."""
        group = self._groups[self._numbers[name]]
        entries = []
        for index in range(group.first, group.last + 1):
            entry = self.entry(group.number, index)
            entries.append(RecoveredEntry(entry.term, index, entry.kind, entry.body))
        return Recovered(
            group.hard_state, group.first, entries, group.checkpoint, group.checkpoint_term
        )

    def forget(self, group: int) -> None:
        """A group leaves this log (it was handed over): nothing of it will be recovered once this is durable."""
        state = self._groups[group]
        self._append(Record(FORGET, 0, group, 0, 0, b""))
        del self._numbers[state.name]
        self._recent.forget(group)

    # Appending

    def append_entry(self, group: int, term: int, index: int, kind: int, body: bytes) -> None:
        """Take an entry for the next write. What the log holds at `index` and behind it becomes void.

        `index` follows the group's last one, or overwrites one behind its checkpoint. Raises StorageError for a body
        that is too long, DiskFull when too much waits.
        """
        state = self._groups[group]
        if not state.checkpoint_appended < index <= state.appended + 1:
            raise ValueError(
                f"entry {index} after {state.appended}, checkpoint {state.checkpoint_appended}"
            )
        if len(body) > self._body_max:
            raise StorageError(
                f"an entry of {len(body)} bytes; the log takes {self._body_max} at most"
            )
        self._append(Record(ENTRY, kind, group, term, index, body))
        if index <= state.appended:
            self._recent.truncate(group, index, state.appended)
        self._recent.add(group, index, Entry(term, kind, body))
        state.appended = index

    def append_hard_state(self, group: int, term: int, vote: int, commit: int) -> None:
        """Take a group's hard state for the next write."""
        self._append(Record(HARD_STATE, 0, group, term, commit, vote.to_bytes(8, "little")))

    def append_truncation(self, group: int, from_index: int) -> None:
        """Entries from `from_index` on become void with the next write."""
        state = self._groups[group]
        if from_index <= state.checkpoint_appended:
            raise ValueError(f"truncation at {from_index}, before the checkpoint")
        self._append(Record(TRUNCATION, 0, group, 0, from_index, b""))
        self._recent.truncate(group, from_index, state.appended)
        state.appended = min(state.appended, from_index - 1)

    def append_checkpoint(self, group: int, index: int, term: int = 0) -> None:
        """A durable snapshot holds everything up to `index`: recovery begins behind it, once this is durable.

        An index behind the last entry makes the log begin there (a snapshot came from elsewhere); `term` is that of the
        entry at `index`, needed only then.
        """
        state = self._groups[group]
        if index <= state.checkpoint_appended:
            return
        self._append(Record(CHECKPOINT, 0, group, term or self.term(group, index) or 0, index, b""))
        state.checkpoint_appended = index
        state.appended = max(state.appended, index)

    def _append(self, record: Record) -> None:
        size = record_bytes(len(record.body))
        waiting = self._buffer_bytes + size
        if waiting > self._options.buffered_bytes_max:
            raise DiskFull(f"{self._buffer_bytes} bytes wait to be written to {self._directory}")
        self._buffer.append(record)
        self._buffer_bytes = waiting

    # Writing

    @property
    def buffered_bytes(self) -> int:
        """Bytes that the next `flush` writes."""
        return self._buffer_bytes

    @property
    def in_flight(self) -> bool:
        """Whether a write is under way."""
        return self._number != self._durable

    @property
    def room(self) -> int:
        """Bytes of records (each its body and about 48 more) that can be appended and will surely be written."""
        return max(
            0, self._capacity(len(self._row.ready)) - self._buffer_bytes - self._writing_bytes
        )

    def _capacity(self, ready: int) -> int:
        """Bytes that fit in any order and of any size, with so many files behind the one in use."""
        used = self._row.used
        left = used[-1].size - used[-1].end if used else 0
        if not ready:
            return left
        file = self._options.file_bytes - self._prologue_bytes
        # Of each file but the last, the space for one record may stay empty.
        return max(left, file + (ready - 1) * max(0, file - record_bytes(self._body_max)))

    def flush(self) -> int:
        """Write everything buffered and have it synced; the number of this write, or 0.

        0: nothing is buffered, or a write is under way, or the file it needs is not ready yet (the syncer's `fileno`
        becomes readable when it is). Raises DiskFull when there is no space for that file, with nothing written and
        everything still buffered; WriteFailed when this log failed, now or before.
        """
        self._collect()
        if self._number != self._durable or not self._buffer:
            return 0
        if self._buffer_bytes > self._capacity(len(self._row.ready)):
            if self._row.full is not None:
                raise DiskFull(str(self._row.full))
            return 0
        self._writing, self._buffer = self._buffer, []
        self._writing_bytes, self._buffer_bytes = self._buffer_bytes, 0
        self._cursor = 0
        self._number += 1
        self._write()
        return self._number

    def completed(self) -> int:
        """Number of the last write that is durable, with all before it. Raises WriteFailed, for ever after."""
        self._collect()
        return self._durable

    def _collect(self) -> None:
        """Take the syncer's answers, go on with a write that needs another file, look after the files."""
        if self._failure is not None:
            raise self._failure
        for number in self._take_answers():
            self._files.reach("wal.synced")
            for group, index in self._marks:
                self._mark(group, index)
            self._marks.clear()
            if self._cursor < len(self._writing):
                self._write()
            else:
                self._writing = []
                self._durable = number
        self._tend()

    def _take_answers(self) -> list[int]:
        """Numbers of the writes that were synced."""
        numbers = []
        for number, failure, seconds in self._syncer.completed():
            self._syncing = False
            self.stats.syncs += 1
            self.stats.last_sync_seconds = seconds
            if self._on_sync is not None:
                self._on_sync(seconds)
            if failure:
                path = self._row.used[-1].path
                self._fail(WriteFailed(f"fdatasync of {path}: {os.strerror(failure)}"))
            numbers.append(number)
        return numbers

    def _mark(self, group: GroupLog, index: int) -> None:
        """A checkpoint became durable; index 0: the group's leaving did."""
        if index:
            group.checkpoint_durable = max(group.checkpoint_durable, index)
            return
        self._prologue_bytes -= _carried_bytes(group)
        for file in self._row.used:
            file.last_index.pop(group.number, None)

    def _fail(self, error: WriteFailed) -> None:
        """The log has failed for good."""
        self._failure = error
        raise error

    def _write(self) -> None:
        """Write what fits into the file in use, or begin the next file, and ask for the sync."""
        chunk, size = self._fitting()
        prologue: list[Record] = []
        if not chunk:
            prologue = self._begin_file()
            chunk, size = self._fitting(sum(record_bytes(len(r.body)) for r in prologue))
        file = self._row.used[-1]
        records = [*prologue, *chunk] if prologue else chunk
        start = file.end
        parts, positions, end = encode(records, file.tie, start, start)
        for record, position in zip(records, positions, strict=True):
            self._apply(record, file, position)
        self._cursor += len(chunk)
        self._writing_bytes -= size
        file.end = end
        try:
            self._files.reach("wal.write")
            self._files.pwritev(file.fd, parts, start)
        except StorageError as error:
            # Also a full disk: space that was written once has run out, so the file is not what it was.
            self._fail(WriteFailed(str(error)))
        self._files.reach("wal.written")
        self._syncing = True
        self._syncer.submit(file.fd, self._number)
        self.stats.writes += 1
        self.stats.records += len(records)
        self.stats.bytes += end - start
        self._recent.shrink(
            self._options.cache_bytes
            + self._buffer_bytes
            + self._writing_bytes
            + OVERHEAD_BYTES * (len(self._buffer) + len(self._writing) - self._cursor)
        )

    def _fitting(self, behind: int = 0) -> tuple[list[Record], int]:
        """Records to write next that fit into the file in use, and their size; `behind` so many bytes."""
        if not self._row.used:
            return [], 0
        room = self._row.used[-1].size - self._row.used[-1].end - behind
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
        """Go on in the next file; what it begins with."""
        self._files.reach("wal.rotate")
        before = self._row.used[-1].end if self._row.used else 0
        file = self._row.begin()
        self.stats.files_begun += 1
        records = [Record(FILE, 0, 0, file.sequence, before, FORMAT)]
        for group in self._groups.values():
            records += group.carried()
        return records

    def _apply(self, record: Record, file: LogFile, position: int) -> None:
        """Note what a record that goes to the file means."""
        number = record.group
        if record.type == ENTRY:
            group = self._groups[number]
            if record.index <= group.last:
                unpin(self._row.used, number, record.index)
            group.add_entry(record.index, record.term, file.sequence, position)
            file.last_index[number] = record.index
        elif record.type == HARD_STATE:
            vote = int.from_bytes(record.body, "little")
            self._groups[number].hard_state = HardStateRecord(record.term, vote, record.index)
        elif record.type == TRUNCATION:
            unpin(self._row.used, number, record.index)
            self._groups[number].truncate(record.index)
        elif record.type == CHECKPOINT:
            group = self._groups[number]
            group.set_checkpoint(record.index, record.term)
            self._marks.append((group, record.index))
        elif record.type == FORGET:
            self._marks.append((self._groups.pop(number), 0))

    # Files

    def release(self, group: int, index: int) -> None:
        """Entries up to `index` are in a durable snapshot and not wanted any longer.

        Marks the checkpoint if that was not done. Files that no group needs are recycled once the mark is durable.
        """
        state = self._groups[group]
        self.append_checkpoint(group, index)
        if index > state.released:
            state.released = index
            state.forget_before(index + 1)
        self._tend()

    def lagging(self, files: int) -> list[int]:
        """Groups without which all but the newest `files` files could be recycled."""
        used = self._row.used
        found: dict[int, None] = {}
        for file in used[: max(0, len(used) - files)]:
            found.update(dict.fromkeys(self._pinning(file)))
        return list(found)

    def _pinning(self, file: LogFile) -> list[int]:
        """Groups that need a file. One whose leaving is not durable yet needs all of its files."""
        pinning = []
        for number, index in file.last_index.items():
            group = self._groups.get(number)
            if group is None or min(group.released, group.checkpoint_durable) < index:
                pinning.append(number)
        return pinning

    def _tend(self) -> None:
        """Have the next file made, the oldest recycled or removed: one step at a time."""
        wanted = 1
        while self._capacity(wanted) < self._buffer_bytes:
            wanted += 1
        try:
            self._row.tend(
                lambda file: bool(self._pinning(file)),
                wanted,
                self._clock(),
                self._options.retry_seconds,
            )
        except StorageError as error:
            self._fail(WriteFailed(str(error)))

    def close(self) -> None:
        """Write what is buffered, say that the log was closed in order, and close the files. Blocks.

        A log that failed, or whose disk is full, is only closed: what was not acknowledged stays so.
        """
        try:
            while self._buffer or self.in_flight:
                self.flush()
                self._wait()
            if self._row.used and self._capacity(0) >= HEADER_BYTES:
                self._append(Record(CLOSED, 0, 0, 0, 0, b""))
                self.flush()
                self._wait()
        except (DiskFull, WriteFailed):
            self._buffer.clear()
        while self._syncing:
            self._take_answers()
        self._row.close()

    def _wait(self) -> None:
        """Until something completed, if anything is under way."""
        if self.in_flight or self._buffer:
            select.select([self._syncer], [], [], WAIT_SECONDS_MAX)
            self._collect()

    # Reading

    def first_index(self, group: int) -> int:
        """Index of the first entry that is kept; behind `last_index` when there is none."""
        return self._groups[group].first

    def last_index(self, group: int) -> int:
        """Index of the last entry appended, written or not."""
        return self._groups[group].appended

    def term(self, group: int, index: int) -> int | None:
        """Term of an entry, also of the one before the first; None when it is not known."""
        entry = self._recent.get(group, index)
        return self._groups[group].term(index) if entry is None else entry.term

    def entry(self, group: int, index: int) -> Entry:
        """An entry, also one that is not written yet: term, kind, body.

        Raises LookupError when it is not (or no longer) in the log, Corruption, ReadFailed.
        """
        entry = self._recent.get(group, index)
        if entry is not None:
            return entry
        place = self._groups[group].place(index)
        if place is None:
            raise LookupError(f"entry {index} of group {group} is not in the log")
        file = self._row.at(place.sequence)
        position = place.position
        data = self._files.pread(file.fd, READ_BYTES, position)
        size = claimed_bytes(data) if len(data) >= HEADER_BYTES else 0
        if READ_BYTES < size <= file.size - position:
            data = self._files.pread(file.fd, size, position)
        view = memoryview(data)
        found = decode(view, position, file.tie, position)
        if found is None or (found.type, found.group, found.index) != (ENTRY, group, index):
            raise Corruption(file.path, position, f"entry {index} of group {group} is damaged")
        return Entry(
            found.term, found.kind, bytes(view[HEADER_BYTES : HEADER_BYTES + found.length])
        )


def _carried_bytes(group: GroupLog) -> int:
    """What a group takes at the beginning of every file."""
    return sum(record_bytes(len(record.body)) for record in group.carried())

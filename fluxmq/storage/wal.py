"""A shard's write-ahead log: the records of all its groups, made durable by one write and one sync
at a time.

Responsible for recovery, for which records a group may append, and for reading entries back;
`wal_writer` writes. Knows nothing of Raft: indexes and terms are numbers in the records' headers,
bodies are bytes.

A record's group is a number; every file declares its name, with its hard state, checkpoint and last
index, so that earlier files are needed only for their entries.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from fluxmq.storage.errors import Corruption, StorageError
from fluxmq.storage.files import ZEROES, Files
from fluxmq.storage.wal_cache import CachedEntry
from fluxmq.storage.wal_files import LogFile, open_key, sequences
from fluxmq.storage.wal_groups import GROUPS_MAX, NAME_BYTES_MAX, HardStateRecord, WalGroup
from fluxmq.storage.wal_mark import MarkFile, SyncMark, read_mark
from fluxmq.storage.wal_options import Recovered, RecoveredEntry, SyncQueue, WalOptions, WalStats
from fluxmq.storage.wal_records import (
    CHECKPOINT,
    ENTRY,
    FORGET,
    GROUP,
    HARD_STATE,
    HEADER_BYTES,
    TRUNCATION,
    Record,
    claimed_bytes,
    decode,
)
from fluxmq.storage.wal_recovery import FIRST_SEQUENCE, Recovery, recover
from fluxmq.storage.wal_supply import BESIDE, FileRow, FileSupply
from fluxmq.storage.wal_writer import LogWriter, carried_bytes

READ_BYTES = 4096
"""Bytes of an entry read at first; most are shorter."""


WINDOW_BYTES = 1 << 20
"""Bytes read at once when entries are read in order."""


class LogWindow(NamedTuple):
    """Bytes of a file. `place`: its sequence above, their position below 32 bits."""

    data: bytes
    place: int


class WriteAheadLog:
    """One shard's log. Used from one thread; created by `open`."""

    def __init__(
        self,
        files: Files,
        directory: str,
        row: FileRow,
        writer: LogWriter,
        groups: dict[int, WalGroup],
        last_number: int,
        options: WalOptions,
    ) -> None:
        """Use `open`."""
        self._files = files
        self._row = row
        self._writer = writer
        self._groups = groups
        self._numbers = {group.name: number for number, group in groups.items()}
        self._last_number = last_number
        self._options = options
        self.directory = directory

    @property
    def synced(self) -> bool:
        """True when acknowledged writes are sure to survive a power cut."""
        return self._options.synced

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
        """Recover the log in `directory`, or create one. Recovered data is durable when this
        returns.

        Only this log uses `syncer`; the caller closes it afterwards. `on_sync` gets each sync's
        seconds. Raises Corruption, Exhausted, ReadFailed, WriteFailed.
        """
        options = options or WalOptions()
        files.make_directory(directory)
        beside = os.path.join(directory, BESIDE)
        if files.exists(beside):
            files.unlink(beside)
        found = sequences(files, directory)
        key = open_key(files, directory, create=not found)
        supply = FileSupply(files, directory, key, options, syncer.wake)
        recovery = recover(
            files,
            [supply.open_(sequence) for sequence in found],
            mark=read_mark(files, directory, key) if options.synced else None,
            synced=options.synced,
        )
        _make_good(files, recovery, options)
        mark = MarkFile(files, directory, key) if options.synced else None
        if mark is not None and recovery.used:
            mark.write(SyncMark(recovery.used[-1].sequence, recovery.used[-1].end))
        files.fsync_directory(directory)
        row = FileRow(supply, options)
        row.used.extend(recovery.used)
        row.ready.extend(recovery.blank if found else [supply.create(FIRST_SEQUENCE)])
        writer = LogWriter(files, row, syncer, recovery.groups, options, on_sync, clock, mark)
        writer.tend()
        return cls(files, directory, row, writer, recovery.groups, recovery.numbers, options)

    # Groups

    def groups(self) -> list[str]:
        """Return the names of the groups in this log."""
        return list(self._numbers)

    def number(self, name: str) -> int:
        """Return the number of a group; a new one is declared with the next write.

        Raises StorageError when the log has no room for another group, or the name is longer than
        255 bytes.
        """
        if name in self._numbers:
            return self._numbers[name]
        encoded = name.encode("utf-8")
        if len(encoded) > NAME_BYTES_MAX:
            raise StorageError(f"a group's name has at most {NAME_BYTES_MAX} bytes")
        group = WalGroup(self._last_number + 1, name)
        prologue = self._writer.prologue_bytes + carried_bytes(group)
        if len(self._numbers) >= GROUPS_MAX or prologue > self._options.file_bytes // 4:
            raise StorageError(f"a log takes no more than {len(self._numbers)} groups")
        self._writer.append(Record(GROUP, 0, group.number, 0, 0, encoded))
        self._writer.prologue_bytes = prologue
        self._last_number = group.number
        self._numbers[name] = group.number
        self._groups[group.number] = group
        return group.number

    def recovered(self, name: str) -> Recovered:
        """Return a group's contents in the log, entries read from the files. Raises Corruption,
        ReadFailed."""
        group = self._groups[self._numbers[name]]
        entries = list(self.written(group.number))
        return Recovered(
            group.hard_state, group.first, entries, group.checkpoint, group.checkpoint_term
        )

    def written(self, group: int) -> Iterator[RecoveredEntry]:
        """Yield every entry of a group that was given to the files, in order. Raises Corruption,
        ReadFailed."""
        state = self._groups[group]
        window = LogWindow(b"", 0)
        for index in range(state.first, state.last + 1):
            entry, window = self._read(state, index, window, WINDOW_BYTES)
            yield RecoveredEntry(entry.term, index, entry.kind, entry.body)

    def hard_state(self, group: int) -> HardStateRecord:
        """Return the hard state last given to the files, now or before this log was opened."""
        return self._groups[group].hard_state

    def checkpoint(self, group: int) -> tuple[int, int]:
        """Return index and term of the checkpoint last given to the files."""
        state = self._groups[group]
        return state.checkpoint, state.checkpoint_term

    def forget(self, group: int) -> None:
        """Remove a group that was handed over: nothing of it will be recovered once this is
        durable."""
        state = self._groups[group]
        self._writer.append(Record(FORGET, 0, group, 0, 0, b""))
        del self._numbers[state.name]
        self._writer.recent.forget(group)

    # Appending

    def append_entry(self, group: int, term: int, index: int, kind: int, body: bytes) -> None:
        """Add an entry to the next write. The log's entries at `index` and after it become void.

        `index` follows the group's last one, or overwrites one after its checkpoint. Raises
        StorageError for a body that is too long, DiskFull when too much is buffered.
        """
        state = self._groups[group]
        if not state.checkpoint_appended < index <= state.appended + 1:
            raise ValueError(
                f"entry {index} after {state.appended}, checkpoint {state.checkpoint_appended}"
            )
        if len(body) > self._writer.body_max:
            raise StorageError(
                f"an entry of {len(body)} bytes; the log takes {self._writer.body_max} at most"
            )
        self._writer.append(Record(ENTRY, kind, group, term, index, body))
        if index <= state.appended:
            self._writer.recent.truncate(group, index, state.appended)
        self._writer.recent.add(group, index, CachedEntry(term, kind, body))
        state.appended = index

    def append_hard_state(self, group: int, term: int, vote: int, commit: int) -> None:
        """Add a group's hard state to the next write."""
        self._writer.append(Record(HARD_STATE, 0, group, term, commit, vote.to_bytes(8, "little")))

    def append_truncation(self, group: int, from_index: int) -> None:
        """Void entries from `from_index` on, with the next write."""
        state = self._groups[group]
        if from_index <= state.checkpoint_appended:
            raise ValueError(f"truncation at {from_index}, before the checkpoint")
        self._writer.append(Record(TRUNCATION, 0, group, 0, from_index, b""))
        self._writer.recent.truncate(group, from_index, state.appended)
        state.appended = min(state.appended, from_index - 1)

    def append_checkpoint(self, group: int, index: int, term: int = 0) -> None:
        """Record that a durable snapshot holds everything up to `index`: recovery starts after it,
        once this is durable.

        An index beyond the last entry makes the log start there (a snapshot came from elsewhere);
        `term` is that of the entry at `index`, needed only then.
        """
        state = self._groups[group]
        if index <= state.checkpoint_appended:
            return
        self._writer.append(
            Record(CHECKPOINT, 0, group, term or self.term(group, index) or 0, index, b"")
        )
        state.checkpoint_appended = index
        state.appended = max(state.appended, index)

    def restart(self, group: int, index: int, term: int) -> None:
        """Start the group's log after a durable snapshot from elsewhere, whose last entry `index`
        has `term`.

        The next write voids the group's entries, its hard state stays, and it continues after
        `index`. Nothing happens when its checkpoint is there or beyond.
        """
        state = self._groups[group]
        if index <= state.checkpoint_appended:
            return
        if state.appended > state.checkpoint_appended:
            self.append_truncation(group, state.checkpoint_appended + 1)
        self.release(group, index, term)

    # Writing

    @property
    def buffered_bytes(self) -> int:
        """Bytes that the next `flush` writes."""
        return self._writer.buffered_bytes

    @property
    def above_high_watermark(self) -> bool:
        """True when over half the buffer limit is used: entries that can be sent again are then
        left out.

        The other half is for mandatory records: hard states, checkpoints, and entries already
        accepted.
        """
        return self._writer.buffered_bytes > self._options.buffered_bytes_max >> 1

    @property
    def in_flight(self) -> bool:
        """True while a write is in flight."""
        return self._writer.in_flight

    @property
    def room(self) -> int:
        """Bytes of records (each its body and about 48 more) that are sure to find space."""
        return self._writer.room

    @property
    def stats(self) -> WalStats:
        """Statistics of this log since it was opened; updated live."""
        return self._writer.stats

    def flush(self) -> int:
        """Write everything buffered and request its sync; return the number of this write, or 0.

        0: nothing is buffered, a write is in flight, or the file it needs is not ready yet (the
        syncer's `fileno` becomes readable when it is). Raises DiskFull when there is no space for
        that file, with nothing written and everything still buffered; WriteFailed when this log
        failed, now or before.
        """
        return self._writer.flush()

    def completed(self) -> int:
        """Return the number of the last write that is durable with all before it. Raises
        WriteFailed, permanently."""
        return self._writer.completed()

    # Files

    def release(self, group: int, index: int, term: int = 0) -> None:
        """Release entries up to `index`: a durable snapshot holds them, and they are not needed any
        more.

        Records the checkpoint if that was not done (`term`: as in `append_checkpoint`). Files that
        no group needs are recycled once the record is durable.
        """
        state = self._groups[group]
        self.append_checkpoint(group, index, term)
        if index > state.released:
            state.released = index
            state.forget_before(index + 1)
        self._writer.tend()

    def lagging(self, files: int) -> list[int]:
        """Return groups that alone keep all but the newest `files` files from being recycled."""
        used = self._row.used
        found: dict[int, None] = {}
        for file in used[: max(0, len(used) - files)]:
            found.update(dict.fromkeys(self._writer.pinning(file)))
        return list(found)

    def close(self) -> None:
        """Write buffered records, record the orderly close, and close the files. Blocks.

        A log that failed, or whose disk is full, is only closed: unacknowledged writes stay so.
        """
        self._writer.close()

    # Reading

    def durable_checkpoint(self, group: int) -> int:
        """Return the index of the group's last durable checkpoint; 0 when there is none."""
        return self._groups[group].checkpoint_durable

    def first_index(self, group: int) -> int:
        """Return the index of the first entry kept; beyond `last_index` when there is none."""
        return self._groups[group].first

    def last_index(self, group: int) -> int:
        """Return the index of the last entry appended, written or not."""
        return self._groups[group].appended

    def term(self, group: int, index: int) -> int | None:
        """Return the term of an entry, also of the one before the first; None when unknown."""
        state = self._groups[group]
        entry = self._writer.recent.get(group, index)
        if entry is not None:
            return entry.term
        return state.term(index) if index <= state.appended else None

    def entry(self, group: int, index: int) -> CachedEntry:
        """Return an entry, even an unwritten one: term, kind, body.

        Raises LookupError when it is not (or no longer) in the log, Corruption, ReadFailed.
        """
        entry = self._writer.recent.get(group, index)
        if entry is not None:
            return entry
        state = self._groups[group]
        if index > state.appended:
            raise LookupError(f"entry {index} of group {group} is not in the log")
        return self._read(state, index, LogWindow(b"", 0), READ_BYTES)[0]

    def _read(
        self, group: WalGroup, index: int, window: LogWindow, ahead: int
    ) -> tuple[CachedEntry, LogWindow]:
        """Return an entry and the file bytes read: `window` if it holds the entry, else `ahead`
        bytes or more."""
        place = group.place(index)
        if place is None:
            raise LookupError(f"entry {index} of group {group.number} is not in the log")
        file = self._row.at(place.sequence)
        position = place.position
        base = window.place - (place.sequence << 32)
        found = decode(memoryview(window.data), position, file.tie, base) if window.data else None
        if found is None:
            data = self._files.pread(file.fd, ahead, position)
            size = claimed_bytes(data) if len(data) >= HEADER_BYTES else 0
            if ahead < size <= file.size - position:
                data = self._files.pread(file.fd, size, position)
            base = position
            window = LogWindow(data, place.sequence << 32 | position)
            found = decode(memoryview(data), position, file.tie, base)
        if found is None or (found.type, found.group, found.index) != (ENTRY, group.number, index):
            what = f"entry {index} of group {group.number} is damaged"
            raise Corruption(file.path, position, what)
        at = position - base + HEADER_BYTES
        return CachedEntry(found.term, found.kind, window.data[at : at + found.length]), window


def _make_good(files: Files, recovery: Recovery, options: WalOptions) -> None:
    """Clear the remains of a torn write, so that they are never taken for a record; make the rest
    durable."""
    file_bytes = options.file_bytes
    if recovery.used:
        active = recovery.used[-1]
        # After a failed sync the kernel holds pages as clean that never reached the disk: write them once more.
        written = files.pread(active.fd, active.end - recovery.last_write, recovery.last_write)
        files.pwritev(active.fd, [written], recovery.last_write)
        if not recovery.closed:
            _clear(files, active, active.end, file_bytes)
        files.reach("wal.cut")
        files.fdatasync(active.fd)
        for file in recovery.used:
            file.begun = True
            if not options.synced:
                files.fdatasync(file.fd)
    for number, blank in enumerate(recovery.blank):
        torn = not options.synced or (number == 0 and not recovery.closed)
        if blank.size < file_bytes or torn:
            _clear(files, blank, 0, file_bytes)
            files.fdatasync(blank.fd)


def _clear(files: Files, file: LogFile, start: int, file_bytes: int) -> None:
    """Write zeroes from `start` to the file's end, and extend it to its full length."""
    end = max(file.size, file_bytes)
    for position in range(start, end, len(ZEROES)):
        size = min(len(ZEROES), end - position)
        if files.pread(file.fd, size, position) != ZEROES[:size]:
            files.write_zeroes(file.fd, position, position + size)
    file.size = end

"""Reads a write-ahead log as a crash left it.

Distinguishes the end of the log, a torn tail (the last write reached the disk in part and was not
acknowledged), and damage to synced data, which is reported with its position and never skipped. It
changes nothing: the caller truncates what must go before it writes. Knows nothing of what entries
mean.

In file order: records up to the first bad one are taken. If the next file begins with its first
record, the file must end exactly where that record says. Otherwise the log ends at the bad record,
and only records of the same write as the bad one may follow (see `wal_records`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from fluxmq.storage.errors import Corruption, Misfit
from fluxmq.storage.files import Files
from fluxmq.storage.wal_files import LogFile, file_name, open_file, open_key, sequences, unpin
from fluxmq.storage.wal_groups import WalGroup
from fluxmq.storage.wal_mark import SyncMark, read_mark
from fluxmq.storage.wal_records import (
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
    FileSeed,
    Found,
    Record,
    decode,
    records_behind,
)

FIRST_SEQUENCE = 1
"""Number of a log's first file."""

Visitor = Callable[[LogFile, Found, memoryview], None]


class Recovery:
    """Contents of a log. `used`: its files with contents, in order; `blank`: later ones, ready for
    use."""

    def __init__(self) -> None:
        self.groups: dict[int, WalGroup] = {}
        self.used: list[LogFile] = []
        self.blank: list[LogFile] = []
        self.last_write = 0
        """Start of the last write in the last used file."""
        self.closed = False
        """True when the log was closed in order: nothing after its end can be of a torn write."""
        self.numbers = 0
        """The highest group number seen."""


def walk(data: memoryview, tie: FileSeed) -> Iterator[Found]:
    """Yield the valid records of a file from its beginning up to the first bad one."""
    position = 0
    while True:
        found = decode(data, position, tie)
        if found is None:
            return
        yield found
        position = found.end


def has_first_record(files: Files, file: LogFile) -> bool:
    """Return whether a file was begun: its first record is complete and names this file."""
    data = memoryview(files.pread(file.fd, HEADER_BYTES + len(FORMAT), 0))
    found = decode(data, 0, file.tie)
    if found is None:
        return False
    if found.type != FILE or found.term != file.sequence:
        raise Corruption(file.path, 0, "the first record is another file's")
    if bytes(data[HEADER_BYTES:]) != FORMAT:
        raise Misfit(file.path, 0, "a format that this version does not know")
    return True


def recover(
    files: Files,
    logs: list[LogFile],
    visit: Visitor | None = None,
    *,
    mark: SyncMark | None = None,
    synced: bool = True,
) -> Recovery:
    """Read all files of a log, given in order. `visit` sees every record, with its file and the
    file's bytes.

    `mark`: how far the log is known to be synced. Not `synced`: writes followed each other without
    syncs, and after a power cut the part before the first gap is taken. Raises Corruption for
    anything that a crash alone cannot have left, ReadFailed when a file cannot be read.
    """
    recovery = Recovery()
    begun = [has_first_record(files, file) for file in logs]
    count = begun.index(False) if False in begun else len(begun)
    if synced and True in begun[count:]:
        raise Corruption(logs[count].path, 0, "a bad first record, although a later file exists")
    for number, file in enumerate(logs[:count]):
        following = logs[number + 1] if number + 1 < count else None
        recovery.used.append(file)
        if not _read_file(files, recovery, file, following, visit, synced=synced):
            count = number + 1
            break
    recovery.blank = logs[count:]
    if not synced:
        for group in recovery.groups.values():
            group.begin_behind_checkpoint()
        return recovery
    for number, file in enumerate(recovery.blank):
        _check_blank(files, file, torn=number == 0)
    if recovery.blank and not recovery.used and recovery.blank[0].sequence != FIRST_SEQUENCE:
        raise Corruption(recovery.blank[0].path, 0, "the files before this one are missing")
    for group in recovery.groups.values():
        if group.first > group.checkpoint + 1:
            raise Corruption(
                logs[0].path,
                0,
                f"entries {group.checkpoint + 1} to {group.first - 1} of group {group.name} are missing",
            )
        group.begin_behind_checkpoint()
    if mark is not None:
        _check_mark(recovery, mark, os.path.dirname(logs[0].path) if logs else "")
    return recovery


def _check_mark(recovery: Recovery, mark: SyncMark, directory: str) -> None:
    """Check that the log reaches at least as far as it was synced."""
    end = (
        SyncMark(recovery.used[-1].sequence, recovery.used[-1].end)
        if recovery.used
        else SyncMark(0, 0)
    )
    if end < mark:
        at = end.position if end.sequence == mark.sequence else 0
        what = f"a bad record, although everything up to byte {mark.position} was synced"
        raise Corruption(os.path.join(directory, file_name(mark.sequence)), at, what)


def read_log(files: Files, directory: str, visit: Visitor) -> Recovery:
    """Read a stopped node's log without changes, for tools. `visit` sees every record before the
    first bad one.

    The files in the result are closed. Raises as `recover`.
    """
    found = sequences(files, directory)
    key = open_key(files, directory, create=False)
    logs: list[LogFile] = []
    try:
        logs.extend(open_file(files, directory, key, number, readonly=True) for number in found)
        return recover(files, logs, visit, mark=read_mark(files, directory, key))
    finally:
        for file in logs:
            files.close(file.fd)


def _read_file(
    files: Files,
    recovery: Recovery,
    file: LogFile,
    following: LogFile | None,
    visit: Visitor | None,
    *,
    synced: bool,
) -> bool:
    """Take the records of one file; `following` is the next file that was begun. Return whether the
    log continues."""
    data = memoryview(files.pread(file.fd, file.size, 0))
    for found in walk(data, file.tie):
        _apply(recovery, file, found, data)
        if visit is not None:
            visit(file, found, data)
        file.end = found.end
        recovery.last_write = found.start
    if following is not None:
        end = _previous_end(files, following)
        if file.end != end:
            if not synced:
                return False
            what = "a bad record" if file.end < end else "records behind its end"
            raise Corruption(file.path, min(file.end, end), f"{what}; the file goes to byte {end}")
        return True
    if not synced:
        return True
    for found in records_behind(data, file.end, file.tie):
        if found.start > file.end:
            raise Corruption(
                file.path,
                file.end,
                f"a bad record, although one at byte {found.position} was written after it was synced",
            )
    return True


def _previous_end(files: Files, following: LogFile) -> int:
    data = memoryview(files.pread(following.fd, HEADER_BYTES + len(FORMAT), 0))
    found = decode(data, 0, following.tie)
    assert found is not None, "this file was begun"
    return found.index


def _check_blank(files: Files, file: LogFile, *, torn: bool) -> None:
    """Check that a file after the end is empty, or holds the torn first write right after the
    end."""
    data = memoryview(files.pread(file.fd, file.size, 0))
    for found in records_behind(data, 0, file.tie):
        if not torn or found.start > 0:
            raise Corruption(
                file.path, 0, f"a bad first record, although there is one at byte {found.position}"
            )


def _apply(recovery: Recovery, file: LogFile, found: Found, data: memoryview) -> None:
    """Apply one record."""
    recovery.closed = found.type == CLOSED
    if found.type in (CLOSED, FILE):
        if found.type == FILE and found.position != 0:
            raise Corruption(file.path, found.position, "a first record in the middle")
        return
    recovery.numbers = max(recovery.numbers, found.group)
    at = found.position + HEADER_BYTES
    if found.type == GROUP:
        _declare(recovery, file, found, bytes(data[at : at + found.length]))
        return
    group = recovery.groups.get(found.group)
    if group is None:
        raise Corruption(
            file.path, found.position, f"group {found.group} was not declared before its record"
        )
    if found.type == ENTRY:
        if found.index <= group.last:
            unpin(recovery.used, group.number, found.index)
        group.add_entry(found.index, found.term, file.sequence << 32 | found.position)
        file.last_index[group.number] = found.index
    elif found.type == HARD_STATE:
        vote = bytes(data[at : at + found.length])
        group.hard_record = Record(HARD_STATE, 0, found.group, found.term, found.index, vote)
    elif found.type == TRUNCATION:
        unpin(recovery.used, group.number, found.index)
        group.truncate(found.index)
    elif found.type == CHECKPOINT:
        group.set_checkpoint(found.index, found.term)
    elif found.type == FORGET:
        del recovery.groups[found.group]


def _declare(recovery: Recovery, file: LogFile, found: Found, name: bytes) -> None:
    """Apply a group's declaration: its first, or one that a file repeats."""
    text = name.decode("utf-8")
    group = recovery.groups.get(found.group)
    if group is None:
        recovery.groups[found.group] = WalGroup(found.group, text, found.index, found.term)
    elif group.name != text or group.last != found.index:
        raise Corruption(
            file.path,
            found.position,
            f"group {text} should go to entry {found.index}, the files before end at {group.last}",
        )

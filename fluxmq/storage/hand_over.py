"""Transfer of a group from one write-ahead log to another: hard state, checkpoint, and all later
entries.

A follower has acknowledged entries that it does not yet know to be committed. They count in the
leader's majority, so they move with the group, and are durable in the new log before the old one
may forget them.

While a group moves, both logs have all of it, and the placement decides which is authoritative. A
log's data of a group placed elsewhere may be discarded only if it is known to be the other copy. A
*mark* records that: a group of the log with no entries, named after the group it is about. The old
log gets it when the group is released, the new one before anything else of the group; opening the
group removes it before anything else is written.

Between shards of a running node the entries travel in a file, ``groups/<group>/tail``, since only
its own shard reads a log. The file is complete and durable before the group is released, names the
state that it continues, and is removed when the group is next opened::

       0 8s  magic "FLUXTAIL"  24 u64 index of the checkpoint
       8 u64 term              32 u64 index of the last entry
      16 u64 vote              40 u64 xxh3-64 over everything but itself
      48  entries: u64 term, u64 index, u32 kind, u32 length, the body
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import xxhash

from fluxmq.storage.directory import DataPaths
from fluxmq.storage.errors import Corruption
from fluxmq.storage.files import Files
from fluxmq.storage.wal import WriteAheadLog
from fluxmq.storage.wal_options import RecoveredEntry

MARK: Final = "@"
"""Prefix of a mark's name. A node's own or shared groups never begin with it: the character
separates the name of another node's group from that node's name."""
PIECE_BYTES: Final = 4 << 20
"""Bytes put into the new log per write: bounds what waits there beside other groups' entries."""

_MAGIC: Final = b"FLUXTAIL"
_HEADER: Final = struct.Struct("<8sQQQQ")
_CHECK: Final = struct.Struct("<Q")
_ENTRY: Final = struct.Struct("<QQII")
_ENTRIES_AT: Final = _HEADER.size + _CHECK.size


class LogPosition(NamedTuple):
    """State of a group's log: hard state, the checkpoint it starts after, and its last entry."""

    term: int
    vote: int
    commit: int
    index: int  # type: ignore[assignment]  # tuple has a method of this name
    index_term: int
    last: int


# --- marks -----------------------------------------------------------------------------------------------------------


def groups_of(wal: WriteAheadLog) -> list[str]:
    """Return the groups in a log, without marks."""
    return [name for name in wal.groups() if not is_mark(name)]


def is_mark(name: str) -> bool:
    """Return whether a log's group is a mark about another one."""
    return name.startswith(MARK)


def is_marked(wal: WriteAheadLog, group: str) -> bool:
    """Return whether a log's data of a group may be discarded once the group is placed
    elsewhere."""
    return MARK + group in wal.groups()


def mark(wal: WriteAheadLog, group: str) -> None:
    """Mark, with the next write, that another log has the group too. Raises StorageError."""
    wal.number(MARK + group)


def unmark(wal: WriteAheadLog, group: str) -> None:
    """Remove the mark, with the next write: the group is about to be opened here, or has gone."""
    if is_marked(wal, group):
        wal.forget(wal.number(MARK + group))


def discard(wal: WriteAheadLog, group: str) -> None:
    """Discard, with the next write, a log's data of a group; the mark last, as a write may be
    torn."""
    if group in wal.groups():
        wal.forget(wal.number(group))
    unmark(wal, group)


# --- the new log -----------------------------------------------------------------------------------------------------


def begin_copy(wal: WriteAheadLog, group: str, position: LogPosition) -> int:
    """Begin a group in its new log, as a copy not yet authoritative; return its number. Raises
    StorageError.

    Remains of an earlier stay are dropped. `append_copy` adds the entries.
    """
    mark(wal, group)
    if group in wal.groups():
        wal.forget(wal.number(group))
    number = wal.number(group)
    wal.append_hard_state(number, position.term, position.vote, position.commit)
    wal.append_checkpoint(number, position.index, position.index_term)
    return number


def append_copy(wal: WriteAheadLog, number: int, entries: Iterable[RecoveredEntry]) -> None:
    """Append entries after the last one. Raises StorageError."""
    for entry in entries:
        wal.append_entry(number, entry.term, entry.index, entry.kind, entry.body)


def in_pieces(entries: Iterable[RecoveredEntry]) -> Iterator[list[RecoveredEntry]]:
    """Yield entries in pieces of about `PIECE_BYTES`, at least one each."""
    piece: list[RecoveredEntry] = []
    size = 0
    for entry in entries:
        piece.append(entry)
        size += len(entry.body) + _ENTRY.size
        if size >= PIECE_BYTES:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece


# --- the file --------------------------------------------------------------------------------------------------------


def tail_path(paths: DataPaths, group: str) -> str:
    """Return the file in which a group's entries travel."""
    return f"{paths.group(group)}/tail"


def write_tail(
    files: Files,
    paths: DataPaths,
    group: str,
    position: LogPosition,
    entries: Iterable[RecoveredEntry],
) -> None:
    """Write the entries after a position's checkpoint; durable when it returns. Raises
    StorageError."""
    header = _header(position)
    parts = [header, b""]
    digest = xxhash.xxh3_64(header)
    for entry in entries:
        head = _ENTRY.pack(entry.term, entry.index, entry.kind, len(entry.body))
        digest.update(head)
        digest.update(entry.body)
        parts += (head, entry.body)
    parts[1] = _CHECK.pack(digest.intdigest())
    files.make_directory(paths.group(group))
    files.write_whole(tail_path(paths, group), b"".join(parts))


def read_tail(
    files: Files, paths: DataPaths, group: str, position: LogPosition
) -> list[RecoveredEntry]:
    """Return the entries after a position's checkpoint, up to its last. Raises Corruption,
    StorageError."""
    if position.last == position.index:
        return []
    path = tail_path(paths, group)
    data = files.read_file(path)
    digest = xxhash.xxh3_64(memoryview(data)[: _HEADER.size])
    digest.update(memoryview(data)[_ENTRIES_AT:])
    if data[: _HEADER.size] != _header(position):
        raise Corruption(path, 0, f"it does not belong to the released group {group}")
    if data[_HEADER.size : _ENTRIES_AT] != _CHECK.pack(digest.intdigest()):
        raise Corruption(path, _HEADER.size, "the checksum does not match")
    entries = []
    at = _ENTRIES_AT
    while at < len(data):
        term, index, kind, length = _ENTRY.unpack_from(data, at)
        at += _ENTRY.size
        entries.append(RecoveredEntry(term, index, kind, data[at : at + length]))
        at += length
    if [entry.index for entry in entries] != list(range(position.index + 1, position.last + 1)):
        raise Corruption(path, _ENTRIES_AT, f"entries {position.index + 1} to {position.last}")
    return entries


def arrive(files: Files, paths: DataPaths, wal: WriteAheadLog, group: str) -> None:
    """Make a log authoritative as its group is opened, and remove a finished transfer's file.
    Raises StorageError."""
    unmark(wal, group)
    path = tail_path(paths, group)
    if files.exists(path):
        files.unlink(path)


def _header(position: LogPosition) -> bytes:
    return _HEADER.pack(_MAGIC, position.term, position.vote, position.index, position.last)

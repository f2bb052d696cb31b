"""Copies of parts of a data directory to another place, from which a broker can start.

A group's files are copied like a snapshot that one member fetches from another (`SnapshotSource`,
`SnapshotTarget`). A new log declares the groups with their hard states. SQLite copies tables while
they are written.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from fluxmq.storage.directory import DataPaths
from fluxmq.storage.errors import WriteFailed
from fluxmq.storage.files import Files
from fluxmq.storage.offline_log import offline_log
from fluxmq.storage.transfer_install import forget_install
from fluxmq.storage.transfer_source import SnapshotSource
from fluxmq.storage.transfer_target import SnapshotTarget

TURN_BYTES: Final = 4 << 20
"""Bytes of segments copied before others get a turn: some milliseconds."""
PAGES_PER_STEP: Final = 1024
"""Pages of a table's file copied while its writers wait, 4 MiB: some milliseconds."""


class CopiedGroup(NamedTuple):
    """A group in a backup: its term, vote and commit, and the last entry in its snapshot."""

    name: str
    term: int
    vote: int
    commit: int
    index: int  # type: ignore[assignment]  # tuple has a method of this name
    index_term: int


def copy_group(files: Files, paths: DataPaths, group: str, source: SnapshotSource) -> Iterator[int]:
    """Copy a group's snapshot and segments into the data directory of `paths`; durable at the end.

    Yields the number of bytes after each `TURN_BYTES`, so that the caller sets the pace. Raises
    StorageError.
    """
    target = SnapshotTarget(files, paths, group, source.manifest())
    try:
        target.begin()
        turn = 0
        for piece in target.pieces():
            target.write(piece, source.read(*piece))
            turn += piece.length
            if turn >= TURN_BYTES:
                yield turn
                turn = 0
        target.prepare()
    finally:
        target.close()
    target.install()
    forget_install(files, paths, group)
    yield turn


def declare_groups(
    files: Files, directory: str, groups: Iterable[CopiedGroup], file_bytes: int
) -> None:
    """Create a write-ahead log in `directory` that continues after the groups' snapshots. Raises
    StorageError."""
    with offline_log(files, directory, file_bytes) as wal:
        for group in groups:
            number = wal.number(group.name)
            wal.append_hard_state(number, group.term, group.vote, group.commit)
            wal.append_checkpoint(number, group.index, group.index_term)


def copy_tables(files: Files, source: str, target: str) -> None:
    """Copy a SQLite database as its last transaction left it, beside its writers. Raises
    StorageError.

    Source: sqlite.org/backup.html.
    """
    try:
        with (
            contextlib.closing(sqlite3.connect(source)) as reading,
            contextlib.closing(sqlite3.connect(target)) as writing,
        ):
            reading.backup(writing, pages=PAGES_PER_STEP)
    except sqlite3.Error as error:
        raise WriteFailed(f"copy of {source} to {target}: {error}") from error
    fd = files.open_(target)
    try:
        files.fdatasync(fd)
    finally:
        files.close(fd)


def copy_file(files: Files, source: str, target: str) -> None:
    """Copy a small file, durably; do nothing when it does not exist. Raises StorageError."""
    if files.exists(source):
        files.write_whole(target, files.read_file(source))

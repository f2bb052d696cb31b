"""Moves damaged state that other members can replace out of the way, without destroying it.

::

    groups/<group>/damaged/<number>/       a group's former files: queues, snapshots, fetched parts
    shards/<shard>/wal.damaged-<number>/   a write-ahead log

The newest `KEPT` of each are kept for inspection, the others removed.
"""

from __future__ import annotations

import re
import shutil
from typing import Final, NamedTuple

from fluxmq.storage.directory import DataPaths
from fluxmq.storage.errors import Corruption, FileMissing
from fluxmq.storage.files import Files
from fluxmq.storage.hand_over import is_mark
from fluxmq.storage.transfer import listed
from fluxmq.storage.wal_files import numbers_found, open_file, open_key
from fluxmq.storage.wal_records import GROUP, HEADER_BYTES, records_behind

KEPT: Final = 2
"""Copies kept of one group, and of one log: the last, and the one before, in case the last was
damaged while it was refilled. Each may be as large as the group."""

_FOLDER: Final = "damaged"
_PARTS: Final = ("snapshots", "installing", "incoming", "queues")
_LOG_SUFFIX: Final = ".damaged-"


class LogGroups(NamedTuple):
    """The groups named in a damaged log. `whole`: every record's group has a known name."""

    names: frozenset[str]
    whole: bool


def set_group_aside(files: Files, paths: DataPaths, group: str, record: bytes = b"") -> str | None:
    """Move a closed group's state away; return its new directory, None if there was nothing.

    `record`: stored with it, this node's former membership. Durable when it returns; after a crash
    it is completed by calling it again, and the files then lie in two places. Raises StorageError.
    """
    root = paths.group(group)
    if not any(listed(files, f"{root}/{part}") for part in ("snapshots", "queues")):
        return None
    parent = f"{root}/{_FOLDER}"
    numbers = sorted(int(name) for name in listed(files, parent) if name.isdecimal())
    for number in numbers[: max(0, len(numbers) + 1 - KEPT)]:
        _remove(files, f"{parent}/{number}")
    target = f"{parent}/{max(numbers, default=0) + 1}"
    files.make_directory(target)
    if record:
        files.write_whole(f"{target}/member", record)
    for part in _PARTS:
        try:
            files.rename(f"{root}/{part}", f"{target}/{part}")
        except FileMissing:
            continue
    files.fsync_directory(target)
    files.fsync_directory(root)
    return target


def set_log_aside(files: Files, directory: str) -> str:
    """Move a closed write-ahead log's directory away; return its new path. Durable when it returns.
    Raises StorageError."""
    parent, _, name = directory.rpartition("/")
    pattern = re.compile(re.escape(name + _LOG_SUFFIX) + "([0-9]+)")
    found = filter(None, map(pattern.fullmatch, files.listdir(parent)))
    numbers = sorted(int(match[1]) for match in found)
    for number in numbers[: max(0, len(numbers) + 1 - KEPT)]:
        _remove(files, f"{directory}{_LOG_SUFFIX}{number}")
    target = f"{directory}{_LOG_SUFFIX}{max(numbers, default=0) + 1}"
    files.rename(directory, target)
    files.fsync_directory(parent)
    return target


def groups_in_log(files: Files, directory: str) -> LogGroups:
    """Return the groups with records in a log that cannot be opened, before and after the damage.

    Groups that have left the log are included while a record of theirs remains. Raises
    StorageError.
    """
    try:
        key = open_key(files, directory, create=False)
    except Corruption:
        return LogGroups(frozenset(), False)
    names: dict[int, str] = {}
    seen: set[int] = set()
    for sequence in numbers_found(files, directory):
        file = open_file(files, directory, key, sequence, readonly=True)
        try:
            data = memoryview(files.pread(file.fd, file.size, 0))
        finally:
            files.close(file.fd)
        for found in records_behind(data, 0, file.tie):
            seen.add(found.group)
            if found.type == GROUP:
                at = found.position + HEADER_BYTES
                names[found.group] = bytes(data[at : at + found.length]).decode()
    whole = bool(names) and seen - {0} <= names.keys()
    # Group 0 belongs to nobody: its records begin a file or end a log.
    return LogGroups(frozenset(name for name in names.values() if not is_mark(name)), whole)


def _remove(files: Files, path: str) -> None:
    files.call("remove_tree", path, shutil.rmtree, path)

"""Snapshots of a group: written atomically, two kept, checked before use.

::

    <index, 20 digits>.snap, little-endian
       0 8s  magic "FLUXSNAP"  24 u64 term
       8 u16 version, 6 zeros  32 u64 content's length
      16 u64 index             40 u64 xxh3-64 over the bytes before it and the content
      48  content

The content is the caller's; this broker uses `GroupSnapshotContent`. A snapshot replaces all log
entries up to its index. When the newest is damaged the older one is as good, *provided that* the
write-ahead log still has every later entry; only the caller knows that, and passes it in.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgpack  # type: ignore[import-untyped]
import xxhash

from fluxmq.storage.errors import Corruption, FileMissing, Misfit
from fluxmq.storage.files import Files
from fluxmq.storage.log_state import LogState

KEPT: Final = 2
"""Snapshots kept of a group: the newest, and one to fall back on."""

VERSION: Final = 1
SUFFIX: Final = ".snap"
_MAGIC: Final = b"FLUXSNAP"
_HEADER: Final = struct.Struct("<8sH6xQQQ")
_CHECK: Final = struct.Struct("<Q")
HEADER_BYTES: Final = _HEADER.size + _CHECK.size


class GroupSnapshot(NamedTuple):  # `index` hides the tuple's own method, which is unused
    """State of a group after the entry `index`, of `term`, was applied."""

    index: int  # type: ignore[assignment]
    term: int
    content: bytes


@dataclass(frozen=True, slots=True)
class FoundSnapshots:
    """Valid snapshots of a directory, newest first, and the damaged ones."""

    valid: tuple[GroupSnapshot, ...]
    damaged: tuple[Corruption, ...]


def snapshot_name(index: int) -> str:
    """Return the file name of the snapshot with an index."""
    return f"{index:020d}{SUFFIX}"


def snapshot_index(name: str) -> int | None:
    """Return the index in a file name, None if it is not a snapshot's."""
    digits = name.removesuffix(SUFFIX)
    named = len(digits) == 20 and name.endswith(SUFFIX) and digits.isascii() and digits.isdigit()
    return int(digits) if named else None


def write_snapshot(files: Files, directory: str, index: int, term: int, content: bytes) -> None:
    """Write a snapshot and remove those before the last two. Durable when it returns. Raises
    StorageError.

    Partial files left by a crash are removed first.
    """
    header = _HEADER.pack(_MAGIC, VERSION, index, term, len(content))
    digest = xxhash.xxh3_64(header)
    digest.update(content)
    files.make_directory(directory)
    for name in files.listdir(directory):
        if snapshot_index(name.removesuffix(".tmp")) is not None and name.endswith(".tmp"):
            files.unlink(f"{directory}/{name}")
    files.reach("snapshot.write")
    data = b"".join((header, _CHECK.pack(digest.intdigest()), content))
    files.write_whole(f"{directory}/{snapshot_name(index)}", data)
    files.reach("snapshot.written")
    for older in _indexes(files, directory)[KEPT:]:
        files.unlink(f"{directory}/{snapshot_name(older)}")


def read_snapshot(files: Files, path: str) -> GroupSnapshot:
    """Return a snapshot. Raises Corruption, StorageError."""
    data = files.read_file(path)
    if len(data) < HEADER_BYTES:
        raise Corruption(path, len(data), "the file ends within the header")
    magic, version, index, term, length = _HEADER.unpack_from(data)
    if magic != _MAGIC:
        raise Corruption(path, 0, "the file is not a snapshot")
    if len(data) != HEADER_BYTES + length:
        what = f"{len(data) - HEADER_BYTES} bytes of content instead of {length}"
        raise Corruption(path, len(data), what)
    digest = xxhash.xxh3_64(data[: _HEADER.size])
    digest.update(memoryview(data)[HEADER_BYTES:])
    if _CHECK.unpack_from(data, _HEADER.size) != (digest.intdigest(),):
        raise Corruption(path, _HEADER.size, "the checksum does not match")
    if version != VERSION:
        raise Misfit(path, 8, f"version {version}; this program reads {VERSION}")
    return GroupSnapshot(index, term, data[HEADER_BYTES:])


def find_snapshots(files: Files, directory: str) -> FoundSnapshots:
    """Return all snapshots of a directory, newest first, damaged ones as their errors.

    Raises Misfit for one that a newer program wrote: starting from an older one would undo its
    work.
    """
    valid, damaged = [], []
    for index in _indexes(files, directory):
        path = f"{directory}/{snapshot_name(index)}"
        try:
            snapshot = read_snapshot(files, path)
            if snapshot.index != index:
                damaged.append(Corruption(path, 16, f"it is snapshot {snapshot.index}"))
            else:
                valid.append(snapshot)
        except Misfit:
            raise
        except Corruption as error:
            damaged.append(error)
    return FoundSnapshots(tuple(valid), tuple(damaged))


def latest_snapshot(
    files: Files, directory: str, first_index: int | None = None
) -> GroupSnapshot | None:
    """Return the snapshot to start from, None if the group has none. Raises Corruption,
    StorageError.

    `first_index`: of the group's first entry in the write-ahead log; None when it has none or it is
    unknown. A snapshot that is not the newest is returned only if the log reaches back to it;
    otherwise the newest one's damage is raised. `find_snapshots` shows whether a fallback was used,
    and what is damaged.
    """
    found = find_snapshots(files, directory)
    if not found.damaged:
        return found.valid[0] if found.valid else None
    newest_damaged = max(
        snapshot_index(each.path.rpartition("/")[2]) or 0 for each in found.damaged
    )
    for snapshot in found.valid:
        reached = first_index is not None and first_index <= snapshot.index + 1
        if snapshot.index > newest_damaged or reached:
            return snapshot
    raise found.damaged[0]


def _indexes(files: Files, directory: str) -> list[int]:
    try:
        names = files.listdir(directory)
    except FileMissing:
        return []
    indexes = [snapshot_index(name) for name in names]
    return sorted((index for index in indexes if index is not None), reverse=True)


# --- the content -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GroupSnapshotContent:
    """Content of a group's snapshot: the machine's bytes, voters and learners, and the state of
    each queue's log."""

    machine: bytes
    voters: tuple[int, ...]
    learners: tuple[int, ...] = ()
    logs: dict[str, LogState] = field(default_factory=dict)

    def encode(self) -> bytes:
        """Encode it as the content of a snapshot."""
        logs = {queue: state.pack() for queue, state in sorted(self.logs.items())}
        content: bytes = msgpack.packb([self.machine, self.voters, self.learners, logs])
        return content

    @classmethod
    def decode(cls, content: bytes) -> GroupSnapshotContent:
        """Decode the result of `encode`. Raises ValueError."""
        limit = len(content)
        try:
            packed = msgpack.unpackb(
                content,
                use_list=False,
                max_bin_len=limit,
                max_str_len=limit,
                max_array_len=limit,
                max_map_len=limit,
            )
        except ValueError as error:
            raise ValueError(f"not the state of a group: {error}") from None
        match packed:
            case [bytes(machine), [*voters], [*learners], dict(logs)] if all(
                type(each) is int for each in (*voters, *learners)
            ) and all(type(queue) is str for queue in logs):
                states = {queue: LogState.unpack(state) for queue, state in logs.items()}
                return cls(machine, tuple(voters), tuple(learners), states)
        raise ValueError("not the state of a group")

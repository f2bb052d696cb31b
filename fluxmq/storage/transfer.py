"""A group's snapshot on its way from one node to another: what is said of it, and where its parts lie meanwhile.

::

    groups/<group>/outgoing/<number>/<life>/<base>.seg     second names of segments that others are reading
    groups/<group>/incoming/<index>-<term>/                what was fetched so far
        queues/<queue>/<base>.seg
        <index>.snap                                       last, when everything is there
    groups/<group>/installing                              what is being put in place of the group's files
    groups/<group>/replaced/                               queues that were there before

Replicas of a log are equal byte for byte, so a member that lags has most of its leader's segments already. The leader
says what there is (`Manifest`); the member looks at its own files, has the leader confirm by a digest how far they are the
same, and fetches the rest. Sealed segments are told by their footers, whose hash covers every byte. Indexes and heads are
not sent: ``segment_index`` makes an index again when somebody searches in it, and a head follows from the manifest.

The parts: ``transfer_source`` keeps what others read, ``transfer_target`` gathers, ``transfer_install`` puts in place.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import msgpack  # type: ignore[import-untyped]
import xxhash

from fluxmq.model.segments import QUEUE_NAME_BYTES_MAX, segment_name
from fluxmq.storage.directory import DataPaths, directory_name
from fluxmq.storage.errors import FileMissing, StorageError
from fluxmq.storage.files import Files
from fluxmq.storage.log_state import SegmentState
from fluxmq.storage.snapshots import GroupState, Snapshot

MANIFEST_VERSION: Final = 1

MANIFEST_BYTES_MAX: Final = 1 << 30
"""A larger one is not believed: a group of 100 000 segments and a million claims has a tenth of it."""

CHUNK_BYTES: Final = 1 << 16
"""Bytes asked for at once: enough that a call does not count, little enough that who writes them lets others have the
processor and the disk within a millisecond."""

DIGEST_READ_BYTES: Final = 4 << 20
"""Bytes hashed at a time: what a digest holds of a file in memory."""

DIGEST_BYTES: Final = 16


class TransferError(StorageError):
    """A snapshot cannot be sent or taken: what was asked for is not there (any more), or what came is not it."""


class DamagedSegment(TransferError):  # noqa: N818 (the name of the condition)
    """A segment came whole, and is not what the manifest says: damaged where it came from. `queue`: its queue's directory."""

    def __init__(self, queue: str, file: str, what: object) -> None:
        super().__init__(f"what was fetched of {queue}/{file} is damaged: {what}")
        self.queue, self.file = queue, file


class Piece(NamedTuple):
    """Bytes of one segment file: the directory of its queue, its name, where, how many."""

    queue: str
    file: str
    position: int
    length: int


class WantedSegment(NamedTuple):
    """A segment that a snapshot needs: the queue's name and directory, and the segment's state."""

    queue: str
    directory: str
    state: SegmentState

    @property
    def file(self) -> str:
        """The file's name."""
        return segment_name(self.state.base_offset)


class Manifest(NamedTuple):
    """What a snapshot consists of, as one member tells another: the group, the snapshot, its content understood."""

    group: str
    snapshot: Snapshot
    state: GroupState

    @classmethod
    def of(cls, group: str, snapshot: Snapshot) -> Manifest:
        """Return the manifest of a snapshot. Raises TransferError when the snapshot's content is none."""
        try:
            return cls(group, snapshot, GroupState.decode(snapshot.content))
        except ValueError as error:
            raise TransferError(f"group {group}, snapshot {snapshot.index}: {error}") from None

    @property
    def name(self) -> str:
        """What the directory of a transfer is called: entry and term that the snapshot stands for."""
        return f"{self.snapshot.index}-{self.snapshot.term}"

    def segments(self) -> Iterator[WantedSegment]:
        """All segments, queue by queue, in order."""
        for queue, log in self.state.logs.items():
            directory = directory_name(queue)
            for segment in log.segments:
                yield WantedSegment(queue, directory, segment)

    def encode(self) -> bytes:
        """Return it as bytes, with a digest of them."""
        snapshot = self.snapshot
        fields = [MANIFEST_VERSION, self.group, snapshot.index, snapshot.term, snapshot.content]
        packed: bytes = msgpack.packb(fields)
        return xxhash.xxh3_128_digest(packed) + packed

    @classmethod
    def decode(cls, data: bytes, group: str) -> Manifest:
        """Return what `encode` was made of. Raises TransferError: not one, damaged, another group's or version's."""
        limit = len(data)
        if not DIGEST_BYTES < limit <= MANIFEST_BYTES_MAX:
            raise TransferError(f"a manifest of {limit} bytes")
        if xxhash.xxh3_128_digest(memoryview(data)[DIGEST_BYTES:]) != data[:DIGEST_BYTES]:
            raise TransferError("the manifest does not match its digest")
        try:
            fields = msgpack.unpackb(
                memoryview(data)[DIGEST_BYTES:], max_bin_len=limit, max_str_len=limit
            )
        except ValueError as error:
            raise TransferError(f"not a manifest: {error}") from None
        match fields:
            case [int(version), *_] if version != MANIFEST_VERSION:
                raise TransferError(f"a manifest of version {version}, not {MANIFEST_VERSION}")
            case [_, str(named), int(index), int(term), bytes(content)] if index > 0 < term:
                if named != group:
                    raise TransferError(f"the manifest is of group {named}, not {group}")
                manifest = cls.of(group, Snapshot(index, term, content))
            case _:
                raise TransferError("not a manifest")
        if any(not 0 < len(name.encode()) <= QUEUE_NAME_BYTES_MAX for name in manifest.state.logs):
            raise TransferError("the manifest has a queue with no name, or one that is too long")
        return manifest


class TransferPaths(NamedTuple):
    """Where parts of snapshots lie in a group's directory."""

    paths: DataPaths
    group: str

    @property
    def root(self) -> str:
        """The group's directory."""
        return self.paths.group(self.group)

    @property
    def outgoing(self) -> str:
        """Second names of segments that others are reading."""
        return f"{self.root}/outgoing"

    @property
    def incoming(self) -> str:
        """What is fetched, a directory for each snapshot."""
        return f"{self.root}/incoming"

    @property
    def installing(self) -> str:
        """The file that says which snapshot is being put in place."""
        return f"{self.root}/installing"

    @property
    def replaced(self) -> str:
        """What the group's queues were before."""
        return f"{self.root}/replaced"


def staged_mark(name: str) -> tuple[int, int] | None:
    """Return the index and term that the name of a directory in `incoming` says, None for another name."""
    index, dash, term = name.partition("-")
    if not (dash and index.isdecimal() and term.isdecimal() and name.isascii()):
        return None
    return int(index), int(term)


def digest_of(files: Files, path: str, length: int) -> bytes:
    """Return the xxh3-128 of a file's first bytes. Raises TransferError when it has fewer, StorageError."""
    digest = xxhash.xxh3_128()
    fd = files.open_(path, readonly=True)
    try:
        position = 0
        while position < length:
            data = files.pread(fd, min(DIGEST_READ_BYTES, length - position), position)
            if not data:
                raise TransferError(f"{path} has {position} bytes, not {length}")
            digest.update(data)
            position += len(data)
    finally:
        files.close(fd)
    return digest.digest()


def listed(files: Files, path: str) -> list[str]:
    """Return the names in a directory; none when it is not there. Raises StorageError."""
    try:
        return files.listdir(path)
    except FileMissing:
        return []


def remove_tree(files: Files, path: str, depth: int) -> None:
    """Remove a directory with what is in it: files, `depth` directories down. Nothing when it is not there.

    Raises StorageError.
    """
    try:
        names = files.listdir(path)
    except FileMissing:
        return
    for name in names:
        if depth > 0:
            remove_tree(files, f"{path}/{name}", depth - 1)
        else:
            files.unlink(f"{path}/{name}")
    files.remove_directory(path)

"""Transfer of a group's snapshot between nodes: its manifest, and where its parts lie meanwhile.

::

    groups/<group>/outgoing/<number>/<life>/<base>.seg  links to segments that others are reading
    groups/<group>/incoming/<index>-<term>/             parts fetched so far
        queues/<queue>/<base>.seg
        <index>.snap                                    last, when everything is there
    groups/<group>/installing                           the snapshot being installed
    groups/<group>/replaced/                            the queues that were there before

Replicas of a log are equal byte for byte, so a lagging member has most of its leader's segments
already. The leader sends a `Manifest`; the member compares its own files, has the leader confirm by
digest how far they are equal, and fetches the rest. Sealed segments are identified by their
footers, whose hash covers every byte. Indexes and heads are not sent: ``segment_index`` rebuilds an
index on the first search, and a head follows from the manifest.

The parts: ``transfer_source`` keeps what others read, ``transfer_target`` collects,
``transfer_install`` installs.
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
from fluxmq.storage.snapshots import GroupSnapshot, GroupSnapshotContent

MANIFEST_VERSION: Final = 1

MANIFEST_BYTES_MAX: Final = 1 << 30
"""Size above which a manifest is refused: a group of 100 000 segments and a million claims has a
tenth of it."""

CHUNK_BYTES: Final = 1 << 16
"""Bytes requested at once: enough to make calls cheap, few enough for their writer to yield
processor and disk within a millisecond."""

DIGEST_READ_BYTES: Final = 4 << 20
"""Bytes hashed at a time: the part of a file that a digest holds in memory."""

DIGEST_BYTES: Final = 16


class TransferError(StorageError):
    """A snapshot cannot be sent or received: a requested part does not exist (any more), or an
    arrived one is wrong."""


class DamagedSegment(TransferError):  # noqa: N818 (the name of the condition)
    """A segment arrived complete but differs from the manifest: it is damaged at its source.
    `queue`: its queue's directory."""

    def __init__(self, queue: str, file: str, what: object) -> None:
        super().__init__(f"what was fetched of {queue}/{file} is damaged: {what}")
        self.queue, self.file = queue, file


class Piece(NamedTuple):
    """Bytes of one segment file: its queue's directory, its name, position and length."""

    queue: str
    file: str
    position: int
    length: int


class MissingSegment(NamedTuple):
    """A segment that a snapshot needs: the queue's name and directory, and the segment's state."""

    queue: str
    directory: str
    state: SegmentState

    @property
    def file(self) -> str:
        """The file's name."""
        return segment_name(self.state.base_offset)


class Manifest(NamedTuple):
    """Contents of a snapshot, for another member: the group, the snapshot, and its decoded
    content."""

    group: str
    snapshot: GroupSnapshot
    state: GroupSnapshotContent

    @classmethod
    def of(cls, group: str, snapshot: GroupSnapshot) -> Manifest:
        """Return the manifest of a snapshot. Raises TransferError when the snapshot's content is
        invalid."""
        try:
            return cls(group, snapshot, GroupSnapshotContent.decode(snapshot.content))
        except ValueError as error:
            raise TransferError(f"group {group}, snapshot {snapshot.index}: {error}") from None

    @property
    def name(self) -> str:
        """Name of a transfer's directory: index and term of the snapshot's last entry."""
        return f"{self.snapshot.index}-{self.snapshot.term}"

    def segments(self) -> Iterator[MissingSegment]:
        """Yield all segments, queue by queue, in order."""
        for queue, log in self.state.logs.items():
            directory = directory_name(queue)
            for segment in log.segments:
                yield MissingSegment(queue, directory, segment)

    def encode(self) -> bytes:
        """Encode the manifest as bytes, with a digest of them."""
        snapshot = self.snapshot
        fields = [MANIFEST_VERSION, self.group, snapshot.index, snapshot.term, snapshot.content]
        packed: bytes = msgpack.packb(fields)
        return xxhash.xxh3_128_digest(packed) + packed

    @classmethod
    def decode(cls, data: bytes, group: str) -> Manifest:
        """Decode the result of `encode`. Raises TransferError: invalid, damaged, or another group's
        or version's."""
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
                manifest = cls.of(group, GroupSnapshot(index, term, content))
            case _:
                raise TransferError("not a manifest")
        if any(not 0 < len(name.encode()) <= QUEUE_NAME_BYTES_MAX for name in manifest.state.logs):
            raise TransferError("the manifest has a queue with no name, or one that is too long")
        return manifest


class TransferPaths(NamedTuple):
    """Paths of snapshot parts in a group's directory."""

    paths: DataPaths
    group: str

    @property
    def root(self) -> str:
        """The group's directory."""
        return self.paths.group(self.group)

    @property
    def outgoing(self) -> str:
        """Links to segments that others are reading."""
        return f"{self.root}/outgoing"

    @property
    def incoming(self) -> str:
        """Fetched parts, a directory for each snapshot."""
        return f"{self.root}/incoming"

    @property
    def installing(self) -> str:
        """The file that names the snapshot being installed."""
        return f"{self.root}/installing"

    @property
    def replaced(self) -> str:
        """The group's queues before the installation."""
        return f"{self.root}/replaced"


def staged_mark(name: str) -> tuple[int, int] | None:
    """Return index and term in the name of a directory in `incoming`, None for another name."""
    index, dash, term = name.partition("-")
    if not (dash and index.isdecimal() and term.isdecimal() and name.isascii()):
        return None
    return int(index), int(term)


def digest_of(files: Files, path: str, length: int) -> bytes:
    """Return the xxh3-128 of a file's first bytes. Raises TransferError when it has fewer,
    StorageError."""
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
    """Return the names in a directory; none when it does not exist. Raises StorageError."""
    try:
        return files.listdir(path)
    except FileMissing:
        return []


def remove_tree(files: Files, path: str, depth: int) -> None:
    """Remove a directory with its files, `depth` directories down. Do nothing when it does not
    exist.

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

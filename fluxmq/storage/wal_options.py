"""What a write-ahead log is opened with, and what it tells.

Plain values and the one thing it is given that acts: the queue of syncs. Knows nothing of files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from fluxmq.storage.wal_groups import HardStateRecord


@dataclass(slots=True, init=False)
class MarkWrite:
    """A few bytes that are written when a sync has worked, before it is answered. `fd` below 0: none."""

    fd: int
    position: int
    data: bytes

    def __init__(self, fd: int, position: int, data: bytes) -> None:
        self.fd = fd
        self.position = position
        self.data = data


NO_MARK = MarkWrite(-1, 0, b"")


class SyncQueue(Protocol):
    """What the log needs of a `Syncer`, which is its alone."""

    def fileno(self) -> int:
        """Readable when something completed."""

    def submit(self, fd: int, number: int, mark: MarkWrite = NO_MARK) -> None:
        """Sync what was written to a file, then write `mark`."""

    def begin(self, fd: int) -> None:
        """`write` goes to this file from now on."""

    def write(
        self, parts: list[bytes], position: int, number: int, mark: MarkWrite = NO_MARK
    ) -> bool:
        """Write and sync at once, then write `mark`. False: that is not done here, so write and `submit`."""

    def completed(self) -> list[tuple[int, int, float]]:
        """Number, errno (below 0: of the mark) and seconds of what ended."""

    def wake(self) -> None:
        """Make `fileno` readable."""


@dataclass(frozen=True, slots=True)
class WalOptions:
    """Sizes of a log. All files of a log need not have the same size."""

    file_bytes: int = 64 << 20
    spare_files: int = 4
    """Files kept ready at most; more that are no longer needed are removed."""
    cache_bytes: int = 16 << 20
    """Entries kept in memory besides those not written yet."""
    buffered_bytes_max: int = 256 << 20
    """What may wait to be written; more is refused with DiskFull."""
    retry_seconds: float = 1.0
    """How long after a full disk making a file is tried again."""
    synced: bool = True
    """Whether who wrote is answered after the sync. Otherwise a power cut may have taken any part of what was written
    and not only the end: recovery then takes what is whole up to the first gap, rather than call the gap damage."""
    background: bool = True
    """Make and recycle files in a thread; otherwise at once, which blocks."""
    cores: tuple[int, ...] = ()
    """Processors that thread may run on; none: those of who opens the log."""


@dataclass(slots=True)
class WalStats:
    """What a log did since it was opened."""

    writes: int = 0
    records: int = 0
    bytes: int = 0
    syncs: int = 0
    last_sync_seconds: float = 0.0
    files_begun: int = 0
    files_recycled: int = 0


class RecoveredEntry(NamedTuple):
    """An entry found at the start."""

    term: int
    index: int  # type: ignore[assignment]  # tuple has a method of this name
    kind: int
    body: bytes


class Recovered(NamedTuple):
    """What the log held of a group. `first_index`: of the first entry, or of the next one when there are none."""

    hard_state: HardStateRecord
    first_index: int
    entries: list[RecoveredEntry]
    checkpoint_index: int
    checkpoint_term: int

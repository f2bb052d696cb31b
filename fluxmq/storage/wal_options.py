"""Options and reports of a write-ahead log.

Plain values, and the interface of the syncer that it is given. Knows nothing of files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from fluxmq.storage.wal_groups import HardStateRecord


@dataclass(slots=True, init=False)
class MarkWrite:
    """Bytes written after a successful sync, before it is answered. `fd` below 0: none."""

    fd: int
    position: int
    data: bytes

    def __init__(self, fd: int, position: int, data: bytes) -> None:
        self.fd = fd
        self.position = position
        self.data = data


NO_MARK = MarkWrite(-1, 0, b"")


class SyncQueue(Protocol):
    """The log's view of its own `Syncer`."""

    def fileno(self) -> int:
        """Return a descriptor, readable when something completed."""

    def submit(self, fd: int, number: int, mark: MarkWrite = NO_MARK) -> None:
        """Sync the writes to a file, then write `mark`."""

    def begin(self, fd: int) -> None:
        """Direct `write` to this file from now on."""

    def write(
        self, parts: list[bytes], position: int, number: int, mark: MarkWrite = NO_MARK
    ) -> bool:
        """Write and sync at once, then write `mark`. False: unsupported here, so write and
        `submit`."""

    def completed(self) -> list[tuple[int, int, float]]:
        """Return number, errno (below 0: of the mark) and seconds of finished requests."""

    def wake(self) -> None:
        """Make `fileno` readable."""


@dataclass(frozen=True, slots=True)
class WalOptions:
    """Sizes of a log. All files of a log need not have the same size."""

    file_bytes: int = 64 << 20
    spare_files: int = 4
    """Maximum number of spare files; more unneeded ones are removed."""
    cache_bytes: int = 16 << 20
    """Bytes of entries kept in memory besides unwritten ones."""
    buffered_bytes_max: int = 256 << 20
    """Bytes that may wait to be written; more is refused with DiskFull."""
    retry_seconds: float = 1.0
    """Pause before another attempt to create a file on a full disk."""
    synced: bool = True
    """Acknowledge writes after their sync. Otherwise a power cut may lose any part of what was
    written, not only the end: recovery then takes everything up to the first gap, instead of
    treating the gap as damage."""
    background: bool = True
    """Create and recycle files in a thread; otherwise at once, which blocks."""
    cores: tuple[int, ...] = ()
    """Processors that thread may run on; with none, those of the log's opener."""


@dataclass(slots=True)
class WalStats:
    """Statistics of a log since it was opened."""

    writes: int = 0
    records: int = 0
    bytes: int = 0
    syncs: int = 0
    last_sync_seconds: float = 0.0
    files_begun: int = 0
    files_recycled: int = 0


class RecoveredEntry(NamedTuple):
    """An entry found at recovery."""

    term: int
    index: int  # type: ignore[assignment]  # tuple has a method of this name
    kind: int
    body: bytes


class Recovered(NamedTuple):
    """A group's contents in the log. `first_index`: of the first entry, or of the next one when
    there are none."""

    hard_state: HardStateRecord
    first_index: int
    entries: list[RecoveredEntry]
    checkpoint_index: int
    checkpoint_term: int

"""Copies one queue's log at one moment, beside a broker that keeps writing it and is not involved.

The head says what may be read of a log, and none of that changes any more: sealed segments are
linked (the same file under a second name, which stays when retention removes the first), the
growing one is copied up to the head. If retention removed a segment meanwhile, the copy restarts
with a newer head. The copy has the layout of a data directory without VERSION, so that no broker
starts on it.

The copy is durable and complete, or does not exist: it is made under a hidden name, synced, and
renamed. The next copy of the same queue removes the remains of a killed process. Knows the log's
files and nothing of consumers.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from fluxmq.model.group_states import GROUPS_NAME
from fluxmq.model.segments import (
    FOOTER_BYTES,
    HEAD_NAME,
    INDEX_ENTRY_BYTES,
    Footer,
    IndexEntries,
    QueueHead,
    SegmentError,
    base_of,
    index_name,
    sealed_index,
    segment_name,
)
from fluxmq.storage.directory import DirectoryError
from fluxmq.storage.errors import Corruption, FileMissing, StorageError
from fluxmq.storage.files import Files
from fluxmq.storage.head import read_head

ATTEMPTS_MAX: Final = 20
"""Restarts of a copy when retention was faster: linking takes milliseconds, retention removes a
segment each time one is full."""

CHUNK_BYTES: Final = 4 << 20
"""Bytes copied at a time where the kernel cannot copy between the files by itself."""

KERNEL_BYTES: Final = 256 << 20
"""Bytes per copy call to the kernel; larger calls gain nothing where the file system shares
extents."""

COPYING: Final = ".copying-"
"""Prefix of the directory's name until the copy is complete; hidden names are not queues."""

_NO_LINK: Final = {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.EACCES}
"""Errors of link(2) when the file cannot have this second name."""

_NO_COPY: Final = {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM}
"""Errors of copy_file_range(2) when it cannot copy between these two files."""

_SEALED_MARK: Final = 0xFFFF_FFFF
"""Offset in the entry that ends the index of a sealed segment."""


@dataclass(slots=True)
class QueueCopy:
    """Result of a copy. `linked` and `copied`: segments; bytes without their indexes. `head`: the
    copy's head.

    `unlinkable`: a segment was to be linked and could not be.
    """

    directory: str
    head: QueueHead
    linked: int = 0
    linked_bytes: int = 0
    copied: int = 0
    copied_bytes: int = 0
    attempts: int = 1
    unlinkable: bool = False

    @property
    def messages(self) -> int:
        """Number of messages in the copy."""
        return self.head.committed - self.head.start


def copy_queue(files: Files, source: str, target: str, *, link: bool = True) -> QueueCopy:
    """Copy the log in the directory `source` to `target`, which must not exist; durable when it
    returns.

    `link`: let sealed segments share their bytes with the source; they are copied where they
    cannot. Raises DirectoryError when the target exists, another copy to it is in progress, the
    source has no valid head or retention was always faster, Corruption when segments are missing,
    and StorageError.
    """
    if files.exists(target):
        raise DirectoryError(f"{target} is there already")
    parent, _, name = target.rpartition("/")
    files.make_directory(parent)
    making = f"{parent}/{COPYING}{name}"
    with _reserved(files, making):
        try:
            copy = _copy(files, source, making, link=link)
            _sync(files, making)
            files.reach("copy.rename")
            files.rename(making, target)
        except StorageError:
            with contextlib.suppress(StorageError):
                _empty(files, making)
                files.remove_directory(making)
            raise
    files.fsync_directory(parent)
    copy.directory = target
    return copy


@contextlib.contextmanager
def _reserved(files: Files, directory: str) -> Iterator[None]:
    """Create a directory and hold its lock. Raises DirectoryError when another process holds it."""
    files.make_directory(directory)
    fd = files.open_(directory, readonly=True)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DirectoryError(f"another process is making {directory}") from None
        # The previous holder may have renamed it meanwhile: it is a complete copy now.
        try:
            there = files.call("size", directory, os.stat, directory)
        except FileMissing:
            there = None
        if there is None or not os.path.samestat(there, os.fstat(fd)):
            raise DirectoryError(
                f"another process has already made the copy that {directory} was for"
            )
        yield
    finally:
        files.close(fd)


def _empty(files: Files, directory: str) -> None:
    for name in files.listdir(directory):
        files.unlink(f"{directory}/{name}")


def _sync(files: Files, directory: str) -> None:
    """Sync a directory with all its files: linked ones too, which the broker may not have synced
    yet."""
    for name in files.listdir(directory):
        fd = files.open_(f"{directory}/{name}", readonly=True)
        try:
            files.fdatasync(fd)
        finally:
            files.close(fd)
    files.fsync_directory(directory)


def _copy(files: Files, source: str, making: str, *, link: bool) -> QueueCopy:
    head = read_head(files, source)
    for attempt in range(1, ATTEMPTS_MAX + 1):
        if head is None:
            raise DirectoryError(f"{source} has no valid head yet")
        _empty(files, making)
        try:
            copy = _Copier(files, source, making, head, link=link).copy()
            copy.attempts = attempt
            return copy
        except FileMissing as error:
            # The head's start moves before a segment is removed: one that is still kept is missing for another reason.
            newer = read_head(files, source)
            if newer is not None and newer.start == head.start:
                what = f"the head keeps offsets from {head.start}, and there are not all"
                raise Corruption(f"{source}/{HEAD_NAME}", head.slot_position, what) from error
            head = newer
    raise DirectoryError(
        f"{source}: retention removed segments while they were copied, {ATTEMPTS_MAX} times"
    )


class _Copier:
    """Makes one copy, up to one head. Raises FileMissing when a segment has gone."""

    def __init__(
        self, files: Files, source: str, target: str, head: QueueHead, *, link: bool
    ) -> None:
        self._files = files
        self._source = source
        self._target = target
        self._head = head
        self._link = link
        self._made = QueueCopy(target, head)

    def copy(self) -> QueueCopy:
        """Copy everything; the caller corrects the directory in the result."""
        head = self._head
        with contextlib.suppress(FileMissing):
            # Copied first, so that the messages it refers to are in the segments.
            groups = self._files.read_file(f"{self._source}/{GROUPS_NAME}")
            self._write(GROUPS_NAME, groups)
        if head.committed > head.start:
            for base in self._bases():
                if base == head.segment:
                    self._last(base)
                else:
                    self._sealed(base)
        else:
            head = head._replace(segment=head.committed, position=0)
        slots = [head._replace(sequence=sequence).encode() for sequence in (2, 1)]
        self._write(HEAD_NAME, b"".join(slots))
        self._made.head = head
        return self._made

    def _bases(self) -> list[int]:
        """Return the segments with messages between the head's start and its end."""
        head = self._head
        names = self._files.listdir(self._source)
        bases = sorted(
            base for base in map(base_of, names) if base is not None and base < head.committed
        )
        kept = [
            base
            for base, after in zip(bases, [*bases[1:], head.committed], strict=bool(bases))
            if after > head.start
        ]
        # The head is at the end of a full segment while the next one has nothing yet.
        ended = head.segment == head.committed
        if not kept or kept[0] > head.start or (kept[-1] != head.segment and not ended):
            raise FileMissing(f"{self._source} has no segment for offset {head.start}")
        return kept

    def _sealed(self, base: int) -> None:
        name = segment_name(base)
        if self._linked(name):
            self._made.linked += 1
            self._made.linked_bytes += self._files.size(f"{self._target}/{name}")
        else:
            self._made.copied += 1
            self._made.copied_bytes += self._copied(name)
        index = index_name(base)
        try:
            if not self._linked(index):
                self._copied(index)
        except FileMissing:
            # A missing index can be rebuilt, unless retention has just removed it with its segment.
            if not self._files.exists(f"{self._source}/{name}"):
                raise

    def _last(self, base: int) -> None:
        """Copy the segment in which the head ends: it may be sealed already, or still growing."""
        head = self._head
        if self._is_sealed(base):
            self._sealed(base)
            return
        self._made.copied += 1
        self._made.copied_bytes += self._copied(segment_name(base), head.position)
        with contextlib.suppress(FileMissing):
            index = self._files.read_file(f"{self._source}/{index_name(base)}")
            self._write(index_name(base), _entries_before(index, head.position))

    def _is_sealed(self, base: int) -> bool:
        """Return whether a segment and its index end as sealed ones do; the index is written
        last."""
        files = self._files
        fd = files.open_(f"{self._source}/{segment_name(base)}", readonly=True)
        try:
            footer = Footer.decode(files.pread(fd, FOOTER_BYTES, self._head.position))
            index = files.read_file(f"{self._source}/{index_name(base)}")
        except (SegmentError, FileMissing):
            return False
        finally:
            files.close(fd)
        whole = sealed_index(index, footer.hash) is not None
        return whole and footer.length == self._head.position

    # Files

    def _linked(self, name: str) -> bool:
        """Link a file; return False when that is impossible."""
        if not self._link:
            return False
        files, path = self._files, f"{self._target}/{name}"
        try:
            files.call("link", path, os.link, f"{self._source}/{name}", path)
        except StorageError as error:
            if _errno(error) not in _NO_LINK:
                raise
            self._link = False
            self._made.unlinkable = True
            return False
        return True

    def _copied(self, name: str, size: int | None = None) -> int:
        """Copy a file, or its first `size` bytes; return how many bytes."""
        files = self._files
        source = files.open_(f"{self._source}/{name}", readonly=True)
        try:
            size = files.size(source) if size is None else size
            target = files.open_(f"{self._target}/{name}", create=True)
            try:
                self._copy_bytes(source, target, size)
            finally:
                files.close(target)
        finally:
            files.close(source)
        return size

    def _copy_bytes(self, source: int, target: int, size: int) -> None:
        files, path = self._files, self._files.path_of(target)
        done = 0
        try:
            while done < size:
                part = min(size - done, KERNEL_BYTES)
                places = (source, target, part, done, done)
                copied = files.call("copy", path, os.copy_file_range, *places)
                if copied == 0:
                    break
                done += copied
        except StorageError as error:
            if _errno(error) not in _NO_COPY:
                raise
        while done < size:
            data = files.pread(source, min(size - done, CHUNK_BYTES), done)
            if not data:
                what = f"the file ends here, and the head says that it has {size} bytes"
                raise Corruption(files.path_of(source), done, what)
            files.pwritev(target, [data], done)
            done += len(data)

    def _write(self, name: str, data: bytes) -> None:
        fd = self._files.open_(f"{self._target}/{name}", create=True)
        try:
            self._files.pwritev(fd, [data], 0)
        finally:
            self._files.close(fd)


def _errno(error: StorageError) -> int | None:
    return error.__cause__.errno if isinstance(error.__cause__, OSError) else None


def _entries_before(index: bytes, position: int) -> bytes:
    """Return the index entries of batches before a position, without the end mark of a sealed
    index."""
    whole = len(index) - len(index) % INDEX_ENTRY_BYTES
    entries = IndexEntries()
    entries.extend(index[:whole])
    count = 0
    while (
        count < len(entries)
        and entries.offsets[count] != _SEALED_MARK
        and entries.positions[count] < position
    ):
        count += 1
    return index[: count * INDEX_ENTRY_BYTES]

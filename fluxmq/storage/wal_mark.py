"""The mark of a write-ahead log: how far it is known to be synced; written after every sync, never
synced.

After a successful sync the mark is written before the result is reported: no write is acknowledged
before its mark, and the mark is never ahead of the log.

A crash can tear the last write of a log, which was then never acknowledged; damage to the last
*synced* write looks the same. The mark distinguishes them whenever the kernel outlived the process,
and after a power cut as far as it happened to reach the disk: it may then be old, or torn and so
invalid, but is never ahead of the log. A log that ends before its mark has lost acknowledged data.

::

    wal.synced: two slots, 512 bytes apart, written in turn; the later valid one counts
       0 8s  magic "FluxWSyn"      16 u64 position in it up to which everything is synced
       8 u64 sequence of the file  24 u64 xxh3-64 of these 24 bytes, seeded with the log's key
"""

from __future__ import annotations

import contextlib
import os
import struct
from typing import Final, NamedTuple

from xxhash import xxh3_64_intdigest

from fluxmq.storage.errors import Exhausted, FileMissing
from fluxmq.storage.files import Files
from fluxmq.storage.wal_options import NO_MARK, MarkWrite

MARK_FILE: Final = "wal.synced"
_MAGIC: Final = b"FluxWSyn"
_FIELDS: Final = struct.Struct("<8sQQ")
_CHECK: Final = struct.Struct("<Q")
_SLOT_SPACING: Final = 512
"""Slots are in different sectors: a torn one leaves the other intact."""


class SyncMark(NamedTuple):
    """Everything before `position` of file `sequence` is synced."""

    sequence: int
    position: int


def read_mark(files: Files, directory: str, key: int) -> SyncMark | None:
    """Return the mark of a log; None when there is no valid one. Raises ReadFailed."""
    try:
        data = files.read_file(os.path.join(directory, MARK_FILE))
    except FileMissing:
        return None
    found = []
    for at in (0, _SLOT_SPACING):
        fields = data[at : at + _FIELDS.size]
        check = data[at + _FIELDS.size : at + _FIELDS.size + _CHECK.size]
        if len(check) == _CHECK.size and check == _check(fields, key):
            magic, sequence, position = _FIELDS.unpack(fields)
            if magic == _MAGIC:
                found.append(SyncMark(sequence, position))
    return max(found, default=None)


def _check(fields: bytes, key: int) -> bytes:
    return _CHECK.pack(xxh3_64_intdigest(fields, key))


class MarkFile:
    """The mark of one log, for its only writer."""

    def __init__(self, files: Files, directory: str, key: int) -> None:
        """The first write creates the file."""
        self._files = files
        self._path = os.path.join(directory, MARK_FILE)
        self._key = key
        self._fd = -1
        self._slot = 0

    def write(self, mark: SyncMark) -> None:
        """Write how far the log is synced. Skipped on a full disk or without a descriptor: an older
        mark is still true. Raises WriteFailed."""
        last = self.after(mark.sequence, mark.position)
        if last.fd >= 0:
            with contextlib.suppress(Exhausted):
                self._files.overwrite(last.fd, last.data, last.position)

    def after(self, sequence: int, end: int) -> MarkWrite:
        """Return the mark to write once a sync up to here, requested now, succeeds. Raises
        WriteFailed."""
        if self._fd < 0:
            try:
                self._fd = self._files.open_(self._path, create=True)
            except Exhausted:
                return NO_MARK
        fields = _FIELDS.pack(_MAGIC, sequence, end)
        position = self._slot
        self._slot = _SLOT_SPACING - position
        return MarkWrite(self._fd, position, fields + _check(fields, self._key))

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            self._files.close(self._fd)
            self._fd = -1

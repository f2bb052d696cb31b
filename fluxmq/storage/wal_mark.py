"""How far a write-ahead log is known to be synced, written beside it after every sync and never synced itself.

Whoever syncs the log writes the mark when that has worked, before it says so: nobody is answered before the mark is there,
and the mark is never ahead of the log.

The last write of a log can be torn by a crash, and then it was never acknowledged; damage to the last write that *was*
synced looks just the same. This mark tells them apart whenever the kernel outlived the process, and after a power cut
as far as it happened to reach the disk: it may be old then, or torn and so not valid, but is never ahead of the log. A
log that ends before its mark has lost what was acknowledged.

::

    wal.synced: two slots, 512 bytes apart, written in turn; the valid one that is further counts
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
"""Slots are in different sectors: one that is torn leaves the other."""


class Mark(NamedTuple):
    """Everything before `position` of file `sequence` is synced."""

    sequence: int
    position: int


def read_mark(files: Files, directory: str, key: int) -> Mark | None:
    """What the mark of a log says; None when there is none, or none is valid. Raises ReadFailed."""
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
                found.append(Mark(sequence, position))
    return max(found, default=None)


def _check(fields: bytes, key: int) -> bytes:
    return _CHECK.pack(xxh3_64_intdigest(fields, key))


class MarkFile:
    """The mark of one log, as its only writer has it."""

    def __init__(self, files: Files, directory: str, key: int) -> None:
        """The file is made by the first write."""
        self._files = files
        self._path = os.path.join(directory, MARK_FILE)
        self._key = key
        self._fd = -1
        self._slot = 0

    def write(self, mark: Mark) -> None:
        """Say how far the log is synced. On a full disk, or without a descriptor for it, it is not said: an older mark is as
        true. Raises WriteFailed."""
        last = self.after(mark.sequence, mark.position)
        if last.fd >= 0:
            with contextlib.suppress(Exhausted):
                self._files.overwrite(last.fd, last.data, last.position)

    def after(self, sequence: int, end: int) -> MarkWrite:
        """What has to be written when a sync up to here, that is asked for now, has worked. Raises WriteFailed."""
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

"""The files of a write-ahead log: their names, their key, and their metadata.

Responsible for finding them in order and for the key that ties records to them. Does not decide
when they are created.
"""

from __future__ import annotations

import os
import re
import secrets
import struct
from itertools import pairwise
from typing import Final

from xxhash import xxh3_64_intdigest

from fluxmq.storage.errors import Corruption
from fluxmq.storage.files import Files
from fluxmq.storage.wal_records import FileSeed, file_seed

_NAME = re.compile(r"([0-9]{20})\.wal")
KEY_FILE: Final = "wal.key"
_KEY = struct.Struct("<8sQQ")
_KEY_MAGIC = b"FluxWKey"
_KEY_SPACING: Final = 512
"""The key is stored twice, in different sectors."""


class LogFile:
    """One file of the log.

    `last_index`: for each group with entries here, the highest valid index. `begun`: its first
    records are durable, so that earlier files are needed only for entries.
    """

    __slots__ = ("begun", "end", "fd", "last_index", "path", "sequence", "size", "tie")

    def __init__(self, sequence: int, path: str, fd: int, size: int, tie: FileSeed) -> None:
        self.sequence = sequence
        self.path = path
        self.fd = fd
        self.size = size
        self.tie = tie
        self.end = 0
        self.begun = False
        self.last_index: dict[int, int] = {}


def file_name(sequence: int) -> str:
    """Return the name of file `sequence`."""
    return f"{sequence:020}.wal"


def numbers_found(files: Files, directory: str) -> list[int]:
    """Return the numbers of the log's existing files, ascending."""
    return [int(match[1]) for match in map(_NAME.fullmatch, files.listdir(directory)) if match]


def sequences(files: Files, directory: str) -> list[int]:
    """Return the numbers of the log's files, ascending. Raises Corruption where one is missing
    between others."""
    found = numbers_found(files, directory)
    for before, after in pairwise(found):
        if after != before + 1:
            raise Corruption(
                os.path.join(directory, file_name(before + 1)), 0, "this file is missing"
            )
    return found


def open_key(files: Files, directory: str, *, create: bool) -> int:
    """Return the log's key. `create`: there are no files yet, so draw a missing one.

    Raises Corruption when both copies are damaged, or the key is missing although there are files.
    """
    path = os.path.join(directory, KEY_FILE)
    if not files.exists(path):
        if not create:
            raise Corruption(path, 0, "the key is missing, without it no record can be verified")
        key = secrets.randbits(64)
        check = xxh3_64_intdigest(_KEY_MAGIC + key.to_bytes(8, "little"))
        copy = _KEY.pack(_KEY_MAGIC, key, check)
        files.write_whole(path, copy.ljust(_KEY_SPACING, b"\0") + copy)
        return key
    data = files.read_file(path)
    for position in (0, _KEY_SPACING):
        copy = data[position : position + _KEY.size]
        if len(copy) == _KEY.size and xxh3_64_intdigest(copy[:16]) == int.from_bytes(
            copy[16:], "little"
        ):
            return int(_KEY.unpack(copy)[1])
    raise Corruption(path, 0, "both copies of the key are damaged")


def open_file(
    files: Files, directory: str, key: int, sequence: int, *, readonly: bool = False
) -> LogFile:
    """Open an existing file of the log."""
    path = os.path.join(directory, file_name(sequence))
    fd = files.open_(path, readonly=readonly)
    return LogFile(sequence, path, fd, files.size(fd), file_seed(key, sequence))


def same_file(files: Files, directory: str, key: int, sequence: int, fd: int) -> LogFile:
    """Return an open file that was renamed to a file of the log; it stays open, as the same
    descriptor."""
    path = os.path.join(directory, file_name(sequence))
    files.renamed(fd, path)
    return LogFile(sequence, path, fd, files.size(fd), file_seed(key, sequence))


def unpin(logs: list[LogFile], group: int, index: int) -> None:
    """Release files from void entries: those of a group from `index` on."""
    for file in logs:
        if file.last_index.get(group, 0) >= index:
            file.last_index[group] = index - 1

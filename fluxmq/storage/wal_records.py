"""The write-ahead log's records: their encoding, and how to recognise them.

Responsible for encoding and checking. Knows nothing of files' names, groups' state or when to sync.

A record, little-endian, 8-aligned in its file::

     0 u64 check: xxh3-64 of bytes 8 to 40, seeded with xxh3-64 of the body, seeded with the file's
                  seed plus position
     8 u32 length of the body   12 u8 type   13 u8 kind   14 u16 mark of the file
    16 u32 group                20 u32 position at which the record's write began
    24 u64 term                 32 u64 index
    40 body, zeroes up to a multiple of 8

The file's seed comes from the log's key (secret, drawn when the log is created) and the file's
sequence number: bytes from a recycled file's past, from another file or position, and bytes that a
client crafted to look like a record, fail the check. The mark (16 bits from the seed, never 0) only
makes searching for records fast.

The start of the write distinguishes a torn tail from damage: a write begins only after the previous
one was synced. So when a record is bad and a later one is valid, the later one's write began either
after the bad record (which had been synced by then: damage) or before it (the same write, of which
a power cut kept only some sectors: torn).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from xxhash import xxh3_64_intdigest

ENTRY: Final = 1
HARD_STATE: Final = 2
"""term: term, index: commit, body: u64 vote."""
TRUNCATION: Final = 3
"""index: entries from it on are void."""
CHECKPOINT: Final = 4
"""index, term: the last entry that a snapshot holds; entries up to it are no longer needed."""
GROUP: Final = 5
"""body: the name that goes with the group's number, UTF-8."""
FORGET: Final = 6
"""The group has left this log; all of it is void."""
FILE: Final = 7
"""First record of a file. term: its sequence, index: where the file before it ended, body:
FORMAT."""
CLOSED: Final = 8
"""The log was closed in order: everything before it is complete."""
TYPES = frozenset(range(ENTRY, CLOSED + 1))

FORMAT = b"FluxMQ write-ahead log 1"
HEADER_BYTES: Final = 40
ALIGNMENT: Final = 8
BODY_BYTES_MAX: Final = 32 << 20
"""A record fits into a file beside its first records; larger messages are refused long before."""

_HEAD = struct.Struct("<IBBHIIQQ")
_CHECK = struct.Struct("<Q")
_WORD: Final = (1 << 64) - 1
_PADDING = [bytes(n) for n in range(ALIGNMENT)]


@dataclass(slots=True, init=False)
class Record:
    """A record to write, at a position that is decided then."""

    type: int
    kind: int
    group: int
    term: int
    index: int
    body: bytes

    def __init__(
        self, type_: int, kind: int, group: int, term: int, index: int, body: bytes
    ) -> None:
        self.type = type_
        self.kind = kind
        self.group = group
        self.term = term
        self.index = index
        self.body = body


class Found(NamedTuple):
    """A valid record in a file; `start` is where its write began, `length` its body's."""

    type: int
    kind: int
    group: int
    term: int
    index: int  # type: ignore[assignment]  # tuple has a method of this name
    start: int
    position: int
    length: int

    @property
    def end(self) -> int:
        """Position of the next record."""
        return self.position + record_bytes(self.length)


class FileSeed(NamedTuple):
    """Seed and mark that tie records to one file of one log."""

    seed: int
    mark: int


def file_seed(key: int, sequence: int) -> FileSeed:
    """Return seed and mark for file `sequence` of the log with this key."""
    seed = xxh3_64_intdigest(struct.pack("<QQ", key, sequence))
    return FileSeed(seed, (seed >> 48) or 1)


def record_bytes(body_bytes: int) -> int:
    """Return the bytes that a record with such a body takes in its file."""
    return HEADER_BYTES + (body_bytes + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


def encode(
    records: Iterable[Record], tie: FileSeed, position: int, start: int
) -> tuple[list[bytes], list[int], int]:
    """Return buffers to write at `position`, the position of each record, and where they end.

    `start`: where their write begins, not after `position`.
    """
    parts: list[bytes] = []
    positions: list[int] = []
    seed, mark = tie
    for record in records:
        body = record.body
        length = len(body)
        head = _HEAD.pack(
            *(length, record.type, record.kind, mark),
            *(record.group, start, record.term, record.index),
        )
        check = xxh3_64_intdigest(head, xxh3_64_intdigest(body, (seed + position) & _WORD))
        positions.append(position)
        parts.append(_CHECK.pack(check) + head)
        position += HEADER_BYTES + length
        if length:
            parts.append(body)
            if length % ALIGNMENT:
                padding = -length % ALIGNMENT
                parts.append(_PADDING[padding])
                position += padding
    return parts, positions, position


def decode(data: memoryview, position: int, tie: FileSeed, base: int = 0) -> Found | None:
    """Return the record at `position` of a file whose bytes from `base` on are `data`; None without
    a valid, complete one."""
    at = position - base
    if at < 0 or at + HEADER_BYTES > len(data):
        return None
    length, type_, kind, mark, group, start, term, index = _HEAD.unpack_from(data, at + 8)
    if mark != tie.mark or type_ not in TYPES or start > position:
        return None
    if at + HEADER_BYTES + length > len(data):
        return None
    seed = xxh3_64_intdigest(
        data[at + HEADER_BYTES : at + HEADER_BYTES + length], (tie.seed + position) & _WORD
    )
    if xxh3_64_intdigest(data[at + 8 : at + HEADER_BYTES], seed) != _CHECK.unpack_from(data, at)[0]:
        return None
    return Found(type_, kind, group, term, index, start, position, length)


def claimed_bytes(header: bytes) -> int:
    """Return the bytes that a record header claims; true only if `decode` agrees."""
    return record_bytes(_HEAD.unpack_from(header, 8)[0])


def records_behind(data: memoryview, position: int, tie: FileSeed) -> Iterator[Found]:
    """Yield every valid record at or after `position`, at any place. Fast over other bytes."""
    position = -(-position // ALIGNMENT) * ALIGNMENT
    words = np.frombuffer(data[: len(data) // 8 * 8], dtype="<u8")
    window = 1 << 20
    for first in range(position // 8 + 1, len(words), window):
        marks = words[first : first + window] >> np.uint64(48)
        for offset in np.nonzero(marks == tie.mark)[0].tolist():
            found = decode(data, (first + offset - 1) * 8, tie)
            if found is not None:
                yield found

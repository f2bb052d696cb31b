"""The bytes of a queue's log on disk: segment, index and head. Pure: bytes in, values out.

The broker writes these files and Spark's reader reads them; both use this one definition. It knows
no file, no clock and no other process. ``fluxmq.model.batches`` handles the batches between a
segment's header page and its footer; only their 64 bytes of header are read here, for the lengths,
offsets and times that a walk over a segment needs.

All integers are little-endian, everything is 8-aligned. Checks are the low 32 bits of xxh3-64 over
the structure with the check's own field zero. No file depends on the machine that wrote it, so
replicas of a log are equal byte for byte.

::

    <base offset, 20 digits>.seg
      page, 4096 bytes
         0 8s  magic "FLUXSEG\\n"        16 u64 base offset
         8 u32 check of the page         24 i64 created, µs: base time of the first batch
        12 u16 format version            32 u32 bytes of the queue's name
        14 u16 zero                      36 u32 zero
                                         40     the queue's name, UTF-8; zeros up to 4096
      batches, back to back
      footer, 64 bytes, once the segment is sealed
         0 u32 magic "FXSF"              16 u64 last offset
         4 u32 check of the footer       24 i64 first time, µs
         8 u64 messages                  32 i64 last time, µs: the latest of any message
        40 16s hash of what is before    56 u64 bytes before the footer

    <base offset, 20 digits>.idx        entries of 16 bytes, one for about every 64 KiB of batches
         0 u32 offset less the base      8 i64 latest time of any message before this position
         4 u32 position in the segment
      and in a sealed segment a last one
         0 u32 0xFFFFFFFF                8 u64 check of the entries and of the segment's hash
         4 u32 number of entries

    head: two slots of 64 bytes, written in turn; the valid one with the higher sequence number holds
         0 u32 magic "FXHD"              32 u64 base offset of the last segment
         4 u32 check of the slot         40 u64 its bytes
         8 u64 sequence number           48 i64 latest time of any message
        16 u64 first offset kept         56 u64 zero
        24 u64 committed: the offset after the last message

**The hash of a segment** is a chain: xxh3-128 of the page, then for each batch xxh3-128 of the hash
so far followed by the batch's header. A header holds the check of everything after it, so the chain
covers every byte, costs 0.1 µs a batch, and resumes after a restart from its 16 bytes; a plain hash
of the file would require reading it again. The check of an index is a chain as well: xxh3-64 of
each entry, seeded with the check so far; the last entry's is that of the segment's hash.

**Times.** An index entry holds the latest time before it, and the footer the latest of all: with
these, "the first message not before t" is found exactly even if a clock once went back.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from typing import Final, NamedTuple

import numpy
import xxhash

FORMAT_VERSION: Final = 1
PAGE_BYTES: Final = 4096
FOOTER_BYTES: Final = 64
INDEX_ENTRY_BYTES: Final = 16
SLOT_BYTES: Final = 64
HEAD_BYTES: Final = 2 * SLOT_BYTES
BATCH_HEADER_BYTES: Final = 64
BATCH_ALIGNMENT: Final = 8
BATCH_MAGIC: Final = int.from_bytes(b"FLXB", "little")

SEGMENT_BYTES_MAX: Final = 4 << 30
"""Largest segment: positions in the index are four bytes."""

SEGMENT_BYTES_MIN: Final = 2 * PAGE_BYTES
"""Smallest segment: below this the page would be most of the file."""

QUEUE_NAME_BYTES_MAX: Final = 1024
"""Bytes of a queue's name in UTF-8: fits the page many times and any protocol's short string."""

TIME_NONE: Final = -(1 << 63)
"""Latest time of no messages at all."""

SEGMENT_SUFFIX: Final = ".seg"
INDEX_SUFFIX: Final = ".idx"
HEAD_NAME: Final = "head"

_PAGE: Final = struct.Struct("<8sIHHQqII")
_FOOTER: Final = struct.Struct("<IIQQqq16sQ")
_SLOT: Final = struct.Struct("<IIQQQQQqQ")
_BATCH: Final = struct.Struct("<IIIBBHQqQIIIIIi")
_CHECK: Final = struct.Struct("<I")

_PAGE_MAGIC: Final = b"FLUXSEG\n"
_PAGE_CHECK_AT: Final = 8
_FOOTER_MAGIC: Final = int.from_bytes(b"FXSF", "little")
_SLOT_MAGIC: Final = int.from_bytes(b"FXHD", "little")
_CHECK_AT: Final = 4
_SEALED_MARK: Final = 0xFFFF_FFFF

_INDEX_COLUMNS: Final = numpy.dtype([("offset", "<u4"), ("position", "<u4"), ("time", "<i8")])
_TRAILER: Final = struct.Struct("<IIQ")
_ENTRY: Final = struct.Struct("<IIq")

assert _FOOTER.size == FOOTER_BYTES
assert _SLOT.size == SLOT_BYTES
assert _BATCH.size == BATCH_HEADER_BYTES
assert _ENTRY.size == _TRAILER.size == _INDEX_COLUMNS.itemsize == INDEX_ENTRY_BYTES
assert _PAGE.size + QUEUE_NAME_BYTES_MAX < PAGE_BYTES
assert PAGE_BYTES % BATCH_ALIGNMENT == 0


class SegmentError(ValueError):
    """The bytes are invalid; the text names the fault."""


def segment_name(base_offset: int) -> str:
    """Return the file name of the segment that begins with an offset."""
    return f"{base_offset:020d}{SEGMENT_SUFFIX}"


def index_name(base_offset: int) -> str:
    """Return the file name of the index beside that segment."""
    return f"{base_offset:020d}{INDEX_SUFFIX}"


def base_of(name: str, suffix: str = SEGMENT_SUFFIX) -> int | None:
    """Return the base offset in a file name, None if it is not such a name."""
    digits = name.removesuffix(suffix)
    if len(digits) != 20 or len(name) != 20 + len(suffix) or not digits.isascii():
        return None
    return int(digits) if digits.isdigit() else None


def _check_of(data: bytes, at: int) -> int:
    return xxhash.xxh3_64_intdigest(data[:at] + bytes(4) + data[at + 4 :]) & 0xFFFF_FFFF


def _with_check(data: bytes, at: int) -> bytes:
    return data[:at] + _CHECK.pack(_check_of(data, at)) + data[at + 4 :]


# --- the page ----------------------------------------------------------------------------------------------------


class HeaderPage(NamedTuple):
    """A segment's header page. `created`: base time of its first batch, µs since the epoch."""

    queue: str
    base_offset: int
    created: int

    def encode(self) -> bytes:
        """Return the page's 4096 bytes."""
        name = self.queue.encode()
        assert len(name) <= QUEUE_NAME_BYTES_MAX, "names are checked when a queue is declared"
        fields = _PAGE.pack(
            _PAGE_MAGIC, 0, FORMAT_VERSION, 0, self.base_offset, self.created, len(name), 0
        )
        return _with_check((fields + name).ljust(PAGE_BYTES, b"\0"), _PAGE_CHECK_AT)

    @classmethod
    def decode(cls, data: bytes) -> HeaderPage:
        """Decode a page from the first 4096 bytes of `data`. Raises SegmentError."""
        if len(data) < PAGE_BYTES:
            raise SegmentError(f"the segment has {len(data)} bytes and no whole header page")
        data = bytes(data[:PAGE_BYTES])
        magic, check, version, _, base_offset, created, name_bytes, _ = _PAGE.unpack_from(data)
        if magic != _PAGE_MAGIC:
            raise SegmentError("the header page is not that of a segment")
        if check != _check_of(data, _PAGE_CHECK_AT):
            raise SegmentError("the header page does not match its checksum")
        if version != FORMAT_VERSION:
            raise SegmentError(f"format version {version}; this program reads {FORMAT_VERSION}")
        name = data[_PAGE.size : _PAGE.size + name_bytes]
        return cls(name.decode(), base_offset, created)


# --- the chain and the footer ------------------------------------------------------------------------------------


def chain_start(page: bytes) -> bytes:
    """Return the hash of a segment that holds its page and nothing else: 16 bytes."""
    return xxhash.xxh3_128_digest(page)


def chain(so_far: bytes, batch_header: bytes) -> bytes:
    """Return the hash of a segment after one more batch, given the batch's 64 header bytes."""
    return xxhash.xxh3_128_digest(so_far + batch_header)


class Footer(NamedTuple):
    """The end of a sealed segment. `length`: bytes before the footer. Times in µs since the
    epoch."""

    messages: int
    last_offset: int
    first_time: int
    last_time: int
    hash: bytes
    length: int

    def encode(self) -> bytes:
        """Return the footer's 64 bytes."""
        return _with_check(_FOOTER.pack(_FOOTER_MAGIC, 0, *self), _CHECK_AT)

    @classmethod
    def decode(cls, data: bytes) -> Footer:
        """Decode a footer from 64 bytes. Raises SegmentError."""
        if len(data) != FOOTER_BYTES:
            raise SegmentError("the footer is cut short")
        magic, check, *fields = _FOOTER.unpack(data)
        if magic != _FOOTER_MAGIC:
            raise SegmentError("there is no footer")
        if check != _check_of(bytes(data), _CHECK_AT):
            raise SegmentError("the footer does not match its checksum")
        return cls(*fields)


# --- batches, as far as a walk needs them --------------------------------------------------------------------------


class BatchSpan(NamedTuple):
    """A batch as a walk over a segment sees it: bytes, offsets, times in µs since the epoch."""

    length: int
    base_offset: int
    messages: int
    base_time: int
    last_time: int

    @property
    def next_offset(self) -> int:
        """The offset after the batch's last message."""
        return self.base_offset + self.messages


def batch_span(data: bytes, start: int = 0) -> BatchSpan:
    """Return the batch whose header is at `start`. Raises SegmentError.

    Checks magic, header check, and that the length is possible; not what follows the header, which
    need not be in `data`.
    """
    if len(data) - start < BATCH_HEADER_BYTES:
        raise SegmentError("the batch's header is cut short")
    fields = _BATCH.unpack_from(data, start)
    if fields[0] != BATCH_MAGIC:
        raise SegmentError("there is no batch")
    header = data[start : start + BATCH_HEADER_BYTES]
    if fields[1] != _check_of(header, _CHECK_AT):
        raise SegmentError("the batch's header does not match its checksum")
    length, base_offset, base_time, messages = fields[2], fields[6], fields[7], fields[9]
    if length < BATCH_HEADER_BYTES or length % BATCH_ALIGNMENT or messages == 0:
        raise SegmentError(f"a batch of {length} bytes with {messages} messages cannot be")
    return BatchSpan(length, base_offset, messages, base_time, base_time + max(0, fields[14]))


# --- the index -----------------------------------------------------------------------------------------------------


INDEX_CHAIN_START: Final = 0


def index_entry(offset: int, position: int, time: int) -> bytes:
    """Return one entry: offset less the base, position, and the latest time before it."""
    return _ENTRY.pack(offset, position, time)


def index_chain(so_far: int, entry: bytes) -> int:
    """Return the check of an index after one more entry; INDEX_CHAIN_START that of none."""
    return xxhash.xxh3_64_intdigest(entry, so_far)


def index_trailer(entries: int, check: int, segment_hash: bytes) -> bytes:
    """Return the trailer of a sealed segment's index: it fits only these entries and this
    segment."""
    return _TRAILER.pack(_SEALED_MARK, entries, xxhash.xxh3_64_intdigest(segment_hash, check))


class IndexEntries:
    """A searchable index in memory: offsets less the base, positions, times; and its check so far.

    The segment's first batch, at PAGE_BYTES, precedes the first entry and has none itself.
    """

    __slots__ = ("check", "offsets", "positions", "times")

    def __init__(self) -> None:
        self.offsets = array("I")
        self.positions = array("I")
        self.times = array("q")
        self.check = INDEX_CHAIN_START

    def __len__(self) -> int:
        return len(self.offsets)

    def extend(self, data: bytes) -> None:
        """Add the entries in `data`; `check` later tells whether they are right."""
        for at in range(0, len(data), INDEX_ENTRY_BYTES):
            self.check = index_chain(self.check, data[at : at + INDEX_ENTRY_BYTES])
        columns = numpy.frombuffer(data, _INDEX_COLUMNS)
        self.offsets.frombytes(columns["offset"].tobytes())
        self.positions.frombytes(columns["position"].tobytes())
        self.times.frombytes(columns["time"].tobytes())

    def by_offset(self, offset: int) -> tuple[int, int]:
        """Return (offset less the base, position) of the last indexed batch not behind `offset`,
        itself less the base."""
        at = bisect_right(self.offsets, offset) - 1
        return (0, PAGE_BYTES) if at < 0 else (self.offsets[at], self.positions[at])

    def by_time(self, time: int) -> tuple[int, int]:
        """Return the same for the last indexed batch before which all messages are earlier than
        `time`."""
        at = bisect_left(self.times, time) - 1
        return (0, PAGE_BYTES) if at < 0 else (self.offsets[at], self.positions[at])


def sealed_index(data: bytes, segment_hash: bytes) -> IndexEntries | None:
    """Return a sealed segment's index, None if the file is not whole or is another segment's."""
    if len(data) % INDEX_ENTRY_BYTES or not data:
        return None
    entries = IndexEntries()
    entries.extend(data[:-INDEX_ENTRY_BYTES])
    trailer = index_trailer(len(entries), entries.check, segment_hash)
    return entries if data[-INDEX_ENTRY_BYTES:] == trailer else None


# --- the head ------------------------------------------------------------------------------------------------------


class QueueHead(NamedTuple):
    """Bounds for readers outside the broker; the module's text describes the fields."""

    sequence: int
    start: int
    committed: int
    segment: int
    position: int
    time: int

    def encode(self) -> bytes:
        """Return one slot's 64 bytes; it belongs at `slot_position`."""
        return _with_check(_SLOT.pack(_SLOT_MAGIC, 0, *self, 0), _CHECK_AT)

    @property
    def slot_position(self) -> int:
        """Position in the file of this sequence number's slot."""
        return self.sequence % 2 * SLOT_BYTES


def _slot(data: bytes) -> QueueHead | None:
    if len(data) != SLOT_BYTES:
        return None
    magic, check, *fields, _ = _SLOT.unpack(data)
    if magic != _SLOT_MAGIC or check != _check_of(data, _CHECK_AT):
        return None
    return QueueHead(*fields)


def newest_head(data: bytes) -> QueueHead | None:
    """Return the newest valid slot of a head file's bytes, None if there is none."""
    slots = [_slot(bytes(data[at : at + SLOT_BYTES])) for at in (0, SLOT_BYTES)]
    return max((slot for slot in slots if slot is not None), default=None)

"""The batch: messages of one queue as bytes, in the form logged, replicated, stored and delivered.

Checks and reads batches; ``batches`` builds them and writes their messages for subscribers. Knows
nothing of queues, groups or files. Layout, little-endian; a column exists only if its flag is set::

    header, 64 bytes
       0 u32 magic            16 u64 base offset     40 u32 count            56 u32 term
       4 u32 header check     24 i64 base time, us   44 u32 key bytes        60 i32 last time delta, us
       8 u32 length, whole    32 u64 payload check   48 u32 property bytes
      12 u8 version, u8 codec, u16 flags             52 u32 payload bytes
    columns of eight bytes
      EXPIRY      i64[count]   us since the epoch after which a message is dead, 0 never
      DELAY       i64[count]   us since the epoch before which it is not delivered, 0 at once
      PRODUCER    u64[count]   producer, then i64[count] its sequence numbers
    columns of four bytes
      ATTRIBUTES  u32[count]   see the ATTRIBUTE constants
      TIMES       i32[count]   us after the base time; without it all are at the base time
      KEYS        i32[count+1] where each key ends, from 0 on; without it the key area is one key for all
      PROPERTIES  i32[count+1] the same for property blocks
      always      i32[count+1] the same for payloads
    areas: keys, properties, payloads; then zeros up to a multiple of eight

The payload check (xxh3-64 of everything after the header) is computed once, when the batch is
built. Offset, time and term are stamped when the log entry that holds it is applied; then only the
header and its check (low half of xxh3-64 over the header with a check of zero) are rewritten.

Each of the two digests is one call of ``xxhash`` per batch. ``parse`` checks every length before
use, and every end, so that a parsed batch can be read without further checks.
"""

from __future__ import annotations

import struct

import cython
from xxhash import xxh3_64_intdigest

if cython.compiled:
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
    from cython.cimports.fluxmq.model.octets import (
        Octets,
        load_i32,
        load_i64,
        load_u32,
        load_u64,
        pointer,
        write_u32,
        write_u64,
    )
    from cython.cimports.libc.string import memset
else:
    from fluxmq.model.octets import Octets, load_i32, load_i64, load_u32, load_u64

MAGIC = 0x42584C46
"""``FLXB``, as the first four bytes read."""
VERSION = 1
CODEC_NONE = 0
HEADER_BYTES = 64
MESSAGES_MAX = 4096
"""Messages of one batch: the number that one claim or one read handles at once."""
PAYLOAD_BYTES_MAX = 1 << 20
"""Payload bytes of one batch, so that none blocks a ring or a write; a larger message is alone in
its batch."""
AREA_BYTES_MAX = 0x7FFFFFFF
"""Bytes of one area: its ends are signed numbers of four bytes, as in Arrow."""
TIME_MAX = 1 << 62
"""Largest distance of a time from the epoch, in us, so that adding a delta never overflows."""

TIMES = 1
KEYS = 2
PROPERTIES = 4
EXPIRY = 8
DELAY = 16
PRODUCER = 32
ATTRIBUTES = 64
FLAGS = 127
"""All defined flags."""

ATTRIBUTE_QOS = 3
"""Bits of an attribute: the QoS the message was published with."""
ATTRIBUTE_REDELIVERED = 4
"""The message was delivered elsewhere before."""
ATTRIBUTE_PROTOCOL = 0xF00
"""The protocol by which it arrived, see below; 0 unknown."""
PROTOCOL_MQTT = 0x100
PROTOCOL_AMQP_0_9_1 = 0x200
PROTOCOL_AMQP_1_0 = 0x300

_HEADER = struct.Struct("<IIIBBHQqQIIIIIi")
_U32 = struct.Struct("<I")
_OFFSET_MAX = 0xFFFF_FFFF_FFFF_FFFF


class BatchError(ValueError):
    """The bytes are not a valid batch; the text names the fault."""


class Batch:
    """One checked batch, ``data[start:start+length]``; created by ``parse``, and raises BatchError
    as it does.

    ``base_offset``, ``base_time`` (us since the epoch) and ``term`` are as read until ``stamp``
    sets them; the bytes themselves never change. Methods with an index raise IndexError outside of
    ``range(count)``.
    """

    def __init__(self, data: bytes, start: cython.Py_ssize_t) -> None:
        if start < 0 or len(data) - start < HEADER_BYTES:
            raise BatchError("shorter than a header")
        if load_u32(data, start) != MAGIC:
            raise BatchError("no batch begins here")
        if _header_check(data, start) != load_u32(data, start + 4):
            raise BatchError("the header does not match its checksum")
        if data[start + 12] != VERSION or data[start + 13] != CODEC_NONE:
            raise BatchError("an unknown version or codec")
        self.data = data
        self.start = start
        self.length = load_u32(data, start + 8)
        self.flags = data[start + 14] | (data[start + 15] << 8)
        self.base_offset = load_u64(data, start + 16)
        self.base_time = load_i64(data, start + 24)
        self.payload_check = load_u64(data, start + 32)
        self.count = load_u32(data, start + 40)
        self.key_bytes = load_u32(data, start + 44)
        self.property_bytes = load_u32(data, start + 48)
        self.payload_bytes = load_u32(data, start + 52)
        self.term = load_u32(data, start + 56)
        self.last_delta = load_i32(data, start + 60)
        self.check()

    def check(self) -> cython.int:
        """Raise BatchError for inconsistent fields or ends; set the positions of columns."""
        data: bytes = self.data
        start: cython.Py_ssize_t = self.start
        if self.flags & ~FLAGS:
            raise BatchError("an unknown flag")
        if self.count < 1 or self.count > MESSAGES_MAX:
            raise BatchError("an invalid message count")
        if self.base_offset > _OFFSET_MAX - cython.cast(cython.ulonglong, self.count):
            raise BatchError("offsets above the maximum")
        if self.base_time < -TIME_MAX or self.base_time > TIME_MAX:
            raise BatchError("a time out of range")
        if self.locate() != self.length:
            raise BatchError("a length that differs from the sum of its parts")
        if self.length > len(data) - start:
            raise BatchError("longer than the available bytes")
        if self.flags & KEYS and not _ends_are_right(
            data, self.key_ends_at, self.count, self.key_bytes
        ):
            raise BatchError("keys whose ends are not ascending")
        if self.flags & PROPERTIES and not _ends_are_right(
            data, self.property_ends_at, self.count, self.property_bytes
        ):
            raise BatchError("properties whose ends are not ascending")
        if not _ends_are_right(data, self.payload_ends_at, self.count, self.payload_bytes):
            raise BatchError("payloads whose ends are not ascending")
        if self.last_delta != (
            load_i32(data, self.times_at + 4 * (self.count - 1)) if self.flags & TIMES else 0
        ):
            raise BatchError("a last time that differs from the last message's")
        return 0

    def locate(self) -> cython.Py_ssize_t:
        """Set where columns and areas begin; return the length that the batch must have."""
        at: cython.Py_ssize_t = self.start + HEADER_BYTES
        flags: cython.int = self.flags
        eight: cython.Py_ssize_t = 8 * self.count
        self.expiry_at = at
        at += eight if flags & EXPIRY else 0
        self.delay_at = at
        at += eight if flags & DELAY else 0
        self.producer_at = at
        at += 2 * eight if flags & PRODUCER else 0
        self.attributes_at = at
        at += eight >> 1 if flags & ATTRIBUTES else 0
        self.times_at = at
        at += eight >> 1 if flags & TIMES else 0
        self.key_ends_at = at
        at += (eight >> 1) + 4 if flags & KEYS else 0
        self.property_ends_at = at
        at += (eight >> 1) + 4 if flags & PROPERTIES else 0
        self.payload_ends_at = at
        self.keys_at = at + (eight >> 1) + 4
        self.properties_at = self.keys_at + self.key_bytes
        self.payloads_at = self.properties_at + self.property_bytes
        return (self.payloads_at + self.payload_bytes - self.start + 7) & ~7

    @property
    def last_offset(self) -> int:
        """Offset of the last message."""
        return self.base_offset + (self.count - 1)

    @property
    def last_time(self) -> int:
        """Time of the last message, us since the epoch."""
        return self.base_time + self.last_delta

    @property
    def uniform_key(self) -> bool:
        """True when all messages share one key."""
        return not self.flags & KEYS

    @property
    def uniform_properties(self) -> bool:
        """True when all messages share one property block."""
        return not self.flags & PROPERTIES

    def stamp(
        self, base_offset: cython.ulonglong, base_time: cython.longlong, term: cython.uint
    ) -> cython.int:
        """Set the batch's position in the log: offset and time (us since the epoch) of its first
        message."""
        self.base_offset = base_offset
        self.base_time = base_time
        self.term = term
        return 0

    def header(self) -> bytes:
        """Return the 64 bytes of the header as stamped, with their check."""
        return encode_header(
            self.length,
            self.flags,
            self.base_offset,
            self.base_time,
            self.payload_check,
            self.count,
            self.key_bytes,
            self.property_bytes,
            self.payload_bytes,
            self.term,
            self.last_delta,
        )

    def body(self) -> memoryview:
        """Return everything after the header."""
        return memoryview(self.data)[self.start + HEADER_BYTES : self.start + self.length]

    def inside(self, index: cython.Py_ssize_t) -> cython.int:
        """Raise IndexError for an index of no message."""
        if index < 0 or index >= self.count:
            raise IndexError(index)
        return 0

    def piece(self, ends: cython.Py_ssize_t, area: cython.Py_ssize_t) -> bytes:
        """Return the part of an area between two neighbouring ends."""
        first: cython.Py_ssize_t = load_i32(self.data, ends)
        return self.data[area + first : area + load_i32(self.data, ends + 4)]

    def key(self, index: cython.Py_ssize_t) -> bytes:
        """Return the key of a message: its topic, or exchange and routing key."""
        self.inside(index)
        if not self.flags & KEYS:
            return self.data[self.keys_at : self.keys_at + self.key_bytes]
        return self.piece(self.key_ends_at + 4 * index, self.keys_at)

    def properties(self, index: cython.Py_ssize_t) -> bytes:
        """Return the canonical property block of a message."""
        self.inside(index)
        if not self.flags & PROPERTIES:
            return self.data[self.properties_at : self.properties_at + self.property_bytes]
        return self.piece(self.property_ends_at + 4 * index, self.properties_at)

    def payload(self, index: cython.Py_ssize_t) -> bytes:
        """Return the payload of a message."""
        self.inside(index)
        return self.piece(self.payload_ends_at + 4 * index, self.payloads_at)

    def payload_length(self, index: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Return the bytes of a message's payload."""
        self.inside(index)
        return load_i32(self.data, self.payload_ends_at + 4 * index + 4) - load_i32(
            self.data, self.payload_ends_at + 4 * index
        )

    def expiry(self, index: cython.Py_ssize_t) -> cython.longlong:
        """Return when a message expires, us since the epoch; 0 never."""
        self.inside(index)
        return load_i64(self.data, self.expiry_at + 8 * index) if self.flags & EXPIRY else 0

    def delay(self, index: cython.Py_ssize_t) -> cython.longlong:
        """Return the time before which a message is not delivered, us since the epoch; 0 at
        once."""
        self.inside(index)
        return load_i64(self.data, self.delay_at + 8 * index) if self.flags & DELAY else 0

    def producer(self, index: cython.Py_ssize_t) -> cython.ulonglong:
        """Return the producer of a message, for duplicate detection; 0 unknown."""
        self.inside(index)
        if not self.flags & PRODUCER:
            return 0
        return load_u64(self.data, self.producer_at + 8 * index)

    def sequence(self, index: cython.Py_ssize_t) -> cython.longlong:
        """Return the producer's sequence number of a message; 0 where there is none."""
        self.inside(index)
        if not self.flags & PRODUCER:
            return 0
        return load_i64(self.data, self.producer_at + 8 * (self.count + index))

    def attributes(self, index: cython.Py_ssize_t) -> cython.uint:
        """Return the attribute bits of a message."""
        self.inside(index)
        return load_u32(self.data, self.attributes_at + 4 * index) if self.flags & ATTRIBUTES else 0

    def time(self, index: cython.Py_ssize_t) -> cython.longlong:
        """Return when a message arrived, us since the epoch."""
        self.inside(index)
        if not self.flags & TIMES:
            return self.base_time
        return self.base_time + load_i32(self.data, self.times_at + 4 * index)


def parse(data: bytes, start: cython.Py_ssize_t = 0) -> Batch:
    """Return the batch that begins at ``data[start]``; following bytes are ignored.

    Raises BatchError unless magic, header check, version, lengths and every end are right.
    ``verify`` does the payload check.
    """
    return Batch(data, start)


def verify(batch: Batch) -> cython.int:
    """Raise BatchError unless the bytes after the header match its check."""
    if xxh3_64_intdigest(batch.body()) != batch.payload_check:
        raise BatchError("the messages do not match their checksum")
    return 0


@cython.cfunc
def _header_check(data: bytes, start: cython.Py_ssize_t) -> cython.uint:
    """Return the check that a header should have."""
    if cython.compiled:
        header: bytes = PyBytes_FromStringAndSize(PyBytes_AS_STRING(data) + start, 64)
        memset(pointer(header) + 4, 0, 4)
        return xxh3_64_intdigest(header) & 0xFFFFFFFF
    zeroed = data[start : start + 4] + b"\0\0\0\0" + data[start + 8 : start + HEADER_BYTES]
    return xxh3_64_intdigest(zeroed) & 0xFFFFFFFF


@cython.cfunc
def _ends_are_right(
    data: bytes, at: cython.Py_ssize_t, count: cython.Py_ssize_t, total: cython.Py_ssize_t
) -> cython.bint:
    """Return whether ends begin at 0, never decrease and reach exactly ``total``."""
    index: cython.Py_ssize_t
    before: cython.Py_ssize_t = 0
    end: cython.Py_ssize_t
    if cython.compiled:
        if load_i32(data, at) != 0:
            return False
        for index in range(1, count + 1):
            end = load_i32(data, at + 4 * index)
            if end < before:
                return False
            before = end
        return before == total
    ends = struct.unpack_from(f"<{count + 1}i", data, at)
    return ends[0] == 0 and ends[count] == total and list(ends) == sorted(ends)


def encode_header(
    length: cython.Py_ssize_t,
    flags: cython.int,
    base_offset: cython.ulonglong,
    base_time: cython.longlong,
    payload_check: cython.ulonglong,
    count: cython.Py_ssize_t,
    key_bytes: cython.Py_ssize_t,
    property_bytes: cython.Py_ssize_t,
    payload_bytes: cython.Py_ssize_t,
    term: cython.uint,
    last_delta: cython.int,
) -> bytes:
    """Encode a header with its check; the fields are ``Batch``'s."""
    place: Octets
    check: cython.uint
    if cython.compiled:
        header: bytes = PyBytes_FromStringAndSize(cython.NULL, 64)
        place = pointer(header)
        write_u32(place, MAGIC)
        write_u32(place + 4, 0)
        write_u32(place + 8, length)
        place[12] = 1
        place[13] = 0
        place[14] = flags & 0xFF
        place[15] = flags >> 8
        write_u64(place + 16, base_offset)
        write_u64(place + 24, base_time)
        write_u64(place + 32, payload_check)
        write_u32(place + 40, count)
        write_u32(place + 44, key_bytes)
        write_u32(place + 48, property_bytes)
        write_u32(place + 52, payload_bytes)
        write_u32(place + 56, term)
        write_u32(place + 60, cython.cast(cython.uint, last_delta))
        check = xxh3_64_intdigest(header) & 0xFFFFFFFF
        write_u32(place + 4, check)
        return header
    packed = _HEADER.pack(
        MAGIC,
        0,
        length,
        VERSION,
        CODEC_NONE,
        flags,
        base_offset,
        base_time,
        payload_check,
        count,
        key_bytes,
        property_bytes,
        payload_bytes,
        term,
        last_delta,
    )
    return packed[:4] + _U32.pack(xxh3_64_intdigest(packed) & 0xFFFFFFFF) + packed[8:]

"""Batches for readers and tools: columns as arrays, messages as values.

The layout is at the top of ``fluxmq.model.batch_format``, whose ``parse`` the broker itself runs;
this is a second implementation, for callers that want whole columns (Spark, ``fluxmqctl log``) or
combine messages of different keys and properties. Tests compare the two. Knows nothing of segments,
queues or the meaning of a property block.

Bytes may come from a damaged file: every length is checked before use, allocations are bounded by
the input, and only ``BatchError`` is raised.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, NamedTuple

import numpy
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from fluxmq.model.batch_format import (
    AREA_BYTES_MAX,
    ATTRIBUTES,
    CODEC_NONE,
    DELAY,
    EXPIRY,
    FLAGS,
    HEADER_BYTES,
    KEYS,
    MAGIC,
    MESSAGES_MAX,
    PAYLOAD_BYTES_MAX,
    PRODUCER,
    PROPERTIES,
    TIME_MAX,
    TIMES,
    VERSION,
    BatchError,
)

LENGTH_MAX: Final = 0xFFFF_FFF8
"""Bytes of a batch: a number of four bytes, and a multiple of eight."""

_HEADER: Final = struct.Struct("<IIIBBHQqQIIIIIi")
_CHECK_AT: Final = 4
_CHECK: Final = struct.Struct("<I")


class BatchMessage(NamedTuple):
    """One message. Times are microseconds since the epoch; 0 means never, at once, unknown."""

    key: bytes
    properties: bytes
    payload: bytes
    time_us: int
    expiry_us: int = 0
    delay_us: int = 0
    producer: int = 0
    sequence: int = 0
    attributes: int = 0


@dataclass(frozen=True, slots=True)
class Header:
    """The fields of a batch's header, in their order; lengths in bytes, times in microseconds."""

    magic: int
    header_check: int
    length: int
    version: int
    codec: int
    flags: int
    base_offset: int
    base_time: int
    payload_check: int
    count: int
    key_bytes: int
    property_bytes: int
    payload_bytes: int
    term: int
    last_delta: int

    @property
    def last_offset(self) -> int:
        """Offset of the last message."""
        return self.base_offset + self.count - 1

    @property
    def last_time(self) -> int:
        """Time of the last message."""
        return self.base_time + self.last_delta


@dataclass(frozen=True, slots=True)
class Columns:
    """A batch as arrays over its own bytes, without copies except `times`.

    `times` are absolute. The ends (int32, one more than messages, from 0 on) delimit the areas as
    Arrow's offsets do; `key_ends` and `property_ends` are None where all messages share one key or
    property block. The others are None where no message has any.
    """

    header: Header
    times: NDArray[numpy.int64]
    key_ends: NDArray[numpy.int32] | None
    property_ends: NDArray[numpy.int32] | None
    payload_ends: NDArray[numpy.int32]
    expiry: NDArray[numpy.int64] | None
    delay: NDArray[numpy.int64] | None
    producer: NDArray[numpy.uint64] | None
    sequence: NDArray[numpy.int64] | None
    attributes: NDArray[numpy.uint32] | None
    keys: memoryview
    properties: memoryview
    payloads: memoryview

    def messages(self) -> Iterator[BatchMessage]:
        """Yield every message, copied out."""
        for index in range(self.header.count):
            yield BatchMessage(
                _cut(self.keys, self.key_ends, index),
                _cut(self.properties, self.property_ends, index),
                _cut(self.payloads, self.payload_ends, index),
                int(self.times[index]),
                _number(self.expiry, index),
                _number(self.delay, index),
                _number(self.producer, index),
                _number(self.sequence, index),
                _number(self.attributes, index),
            )


def _cut(area: memoryview, ends: NDArray[numpy.int32] | None, index: int) -> bytes:
    return bytes(area) if ends is None else bytes(area[ends[index] : ends[index + 1]])


def _number(
    column: NDArray[numpy.int64] | NDArray[numpy.uint64] | NDArray[numpy.uint32] | None, index: int
) -> int:
    return 0 if column is None else int(column[index])


def read_header(data: bytes | memoryview, start: int = 0) -> Header:
    """Return the header at `data[start]`, checked by itself; the rest of the batch is not checked.

    Raises `BatchError`.
    """
    if start < 0 or len(data) - start < HEADER_BYTES:
        raise BatchError("shorter than a header")
    raw = bytearray(data[start : start + HEADER_BYTES])
    header = Header(*_HEADER.unpack(raw))
    if header.magic != MAGIC:
        raise BatchError("no batch begins here")
    _CHECK.pack_into(raw, _CHECK_AT, 0)
    if xxh3_64_intdigest(raw) & 0xFFFF_FFFF != header.header_check:
        raise BatchError("the header does not match its checksum")
    if header.version != VERSION or header.codec != CODEC_NONE:
        raise BatchError("an unknown version or codec")
    if header.flags & ~FLAGS:
        raise BatchError("an unknown flag")
    if not 1 <= header.count <= MESSAGES_MAX:
        raise BatchError("an invalid message count")
    if header.base_offset > 0xFFFF_FFFF_FFFF_FFFF - header.count:
        raise BatchError("offsets above the maximum")
    if not -TIME_MAX <= header.base_time <= TIME_MAX:
        raise BatchError("a time out of range")
    return header


class _Cursor:
    """Takes one column after the other; the caller has checked the lengths."""

    def __init__(self, body: memoryview) -> None:
        self.body = body
        self.at = 0

    def take(self, size: int) -> memoryview:
        self.at += size
        return self.body[self.at - size : self.at]


def columns(data: bytes | memoryview, start: int = 0, *, verify: bool = True) -> Columns:
    """Return the batch that begins at `data[start]`; following bytes are ignored.

    Raises `BatchError` as `fluxmq.protocols.mqtt.batches.parse` does, and with `verify` when the
    payload check is wrong. The arrays are views of `data`, which must not change.
    """
    header = read_header(data, start)
    flags, count = header.flags, header.count
    if header.length != _length(header):
        raise BatchError("a length that differs from the sum of its parts")
    if header.length > len(data) - start:
        raise BatchError("longer than the available bytes")
    body = memoryview(data)[start + HEADER_BYTES : start + header.length]
    if verify and xxh3_64_intdigest(body) != header.payload_check:
        raise BatchError("the messages do not match their checksum")
    cursor = _Cursor(body)
    expiry = _signed(cursor, count) if flags & EXPIRY else None
    delay = _signed(cursor, count) if flags & DELAY else None
    producer = numpy.frombuffer(cursor.take(8 * count), "<u8") if flags & PRODUCER else None
    sequence = _signed(cursor, count) if flags & PRODUCER else None
    attributes = numpy.frombuffer(cursor.take(4 * count), "<u4") if flags & ATTRIBUTES else None
    deltas = numpy.frombuffer(cursor.take(4 * count), "<i4") if flags & TIMES else None
    key_ends = _ends(cursor, header.key_bytes, count, "keys") if flags & KEYS else None
    property_ends = (
        _ends(cursor, header.property_bytes, count, "properties") if flags & PROPERTIES else None
    )
    payload_ends = _ends(cursor, header.payload_bytes, count, "payloads")
    if header.last_delta != (0 if deltas is None else int(deltas[-1])):
        raise BatchError("a last time that differs from the last message's")
    times = numpy.full(count, header.base_time, numpy.int64)
    if deltas is not None:
        times += deltas
    return Columns(
        header,
        times,
        key_ends,
        property_ends,
        payload_ends,
        expiry,
        delay,
        producer,
        sequence,
        attributes,
        cursor.take(header.key_bytes),
        cursor.take(header.property_bytes),
        cursor.take(header.payload_bytes),
    )


def _length(header: Header) -> int:
    """Return the sum of a batch's parts."""
    flags, count = header.flags, header.count
    eights = sum(size for flag, size in ((EXPIRY, 1), (DELAY, 1), (PRODUCER, 2)) if flags & flag)
    fours = sum(1 for flag in (ATTRIBUTES, TIMES, KEYS, PROPERTIES) if flags & flag)
    ends = sum(1 for flag in (KEYS, PROPERTIES) if flags & flag)
    size = HEADER_BYTES + 8 * count * eights + 4 * count * (fours + 1) + 4 * (ends + 1)
    return (size + header.key_bytes + header.property_bytes + header.payload_bytes + 7) & ~7


def _signed(cursor: _Cursor, count: int) -> NDArray[numpy.int64]:
    return numpy.frombuffer(cursor.take(8 * count), "<i8")


def _ends(cursor: _Cursor, total: int, count: int, what: str) -> NDArray[numpy.int32]:
    ends: NDArray[numpy.int32] = numpy.frombuffer(cursor.take(4 * (count + 1)), "<i4")
    if ends[0] != 0 or ends[-1] != total or bool((ends[1:] < ends[:-1]).any()):
        raise BatchError(f"{what} whose ends are not ascending")
    return ends


def encode(messages: Sequence[BatchMessage], base_offset: int = 0, term: int = 0) -> bytes:
    """Encode a batch of any messages; the first one's time is the base time.

    Columns exist only where messages differ or have a value, so that equal messages give the same
    bytes as `fluxmq.protocols.mqtt.batches.build_batches`. Raises `ValueError` for no or too many
    messages, for more payload than `PAYLOAD_BYTES_MAX` unless it is one message's, and for numbers
    outside the layout's range.
    """
    count = len(messages)
    if not 1 <= count <= MESSAGES_MAX:
        raise ValueError(f"a batch holds 1 to {MESSAGES_MAX} messages")
    base_time = messages[0].time_us
    flags, pieces = 0, []
    wanted: tuple[tuple[int, str, list[int]], ...] = (
        (EXPIRY, "q", [message.expiry_us for message in messages]),
        (DELAY, "q", [message.delay_us for message in messages]),
    )
    producers = [message.producer for message in messages]
    sequences = [message.sequence for message in messages]
    deltas = [message.time_us - base_time for message in messages]
    if any(producers) or any(sequences):
        wanted += ((PRODUCER, "Q", producers), (PRODUCER, "q", sequences))
    wanted += ((ATTRIBUTES, "I", [message.attributes for message in messages]),)
    wanted += ((TIMES, "i", deltas),)
    for flag, code, numbers in wanted:
        if flag & PRODUCER or any(numbers):
            flags |= flag
            pieces.append(_packed(code, numbers))
    areas = []
    for flag, values in (
        (KEYS, [message.key for message in messages]),
        (PROPERTIES, [message.properties for message in messages]),
        (0, [message.payload for message in messages]),
    ):
        if flag and all(value == values[0] for value in values):
            areas.append(values[0])
            continue
        flags |= flag
        area = b"".join(values)
        if len(area) > (PAYLOAD_BYTES_MAX if not flag and count > 1 else AREA_BYTES_MAX):
            raise ValueError("more bytes than one batch takes")
        pieces.append(_packed("i", [0, *accumulate(map(len, values))]))
        areas.append(area)
    body = b"".join((*pieces, *areas))
    body += bytes(-len(body) & 7)
    if HEADER_BYTES + len(body) > LENGTH_MAX or abs(base_time) > TIME_MAX:
        raise ValueError("a length or time out of range")
    fields = [MAGIC, 0, HEADER_BYTES + len(body), VERSION, CODEC_NONE, flags, base_offset]
    fields += [base_time, xxh3_64_intdigest(body), count, *map(len, areas), term, deltas[-1]]
    header = bytearray(_packed_header(fields))
    _CHECK.pack_into(header, _CHECK_AT, xxh3_64_intdigest(header) & 0xFFFF_FFFF)
    return bytes(header) + body


def _packed(code: str, numbers: Sequence[int]) -> bytes:
    try:
        return struct.pack(f"<{len(numbers)}{code}", *numbers)
    except struct.error as error:
        raise ValueError(f"a number that its column cannot hold: {error}") from None


def _packed_header(fields: Sequence[int]) -> bytes:
    try:
        return _HEADER.pack(*fields)
    except struct.error as error:
        raise ValueError(f"a number that the header cannot hold: {error}") from None

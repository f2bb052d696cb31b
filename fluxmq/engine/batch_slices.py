"""Cuts a part of a batch into a batch, for a remote consumer that gets only some of its
messages."""

from __future__ import annotations

import numpy as np
import xxhash

from fluxmq.model.batch_format import (
    ATTRIBUTES,
    DELAY,
    EXPIRY,
    HEADER_BYTES,
    KEYS,
    PRODUCER,
    PROPERTIES,
    TIMES,
    Batch,
    encode_header,
    parse,
)

_FLAGS_AT = 14
"""Position of the column flags in a batch."""
_TIME_MAX = (1 << 63) - 1
_WIDE = ((EXPIRY, "expiry_at"), (DELAY, "delay_at"))


def cut(batch: Batch, first: int, count: int) -> bytes:
    """Return messages ``first`` to ``first + count`` of a batch, with their offsets, times and
    term."""
    if count == batch.count:
        return b"".join((batch.header(), batch.body()))
    data = memoryview(batch.data)
    parts: list[bytes] = []
    for flag, name in _WIDE:
        if batch.flags & flag:
            parts.append(_slice(data, getattr(batch, name), 8, first, count))
    if batch.flags & PRODUCER:
        parts.append(_slice(data, batch.producer_at, 8, first, count))
        parts.append(_slice(data, batch.producer_at + 8 * batch.count, 8, first, count))
    if batch.flags & ATTRIBUTES:
        parts.append(_slice(data, batch.attributes_at, 4, first, count))
    if batch.flags & TIMES:
        parts.append(_slice(data, batch.times_at, 4, first, count))
    areas: list[bytes] = []
    sizes: list[int] = []
    for uniform, ends_at, area_at, area_bytes in (
        (not batch.flags & KEYS, batch.key_ends_at, batch.keys_at, batch.key_bytes),
        (
            not batch.flags & PROPERTIES,
            batch.property_ends_at,
            batch.properties_at,
            batch.property_bytes,
        ),
        (False, batch.payload_ends_at, batch.payloads_at, batch.payload_bytes),
    ):
        start, end = 0, area_bytes
        if not uniform:
            ends = np.frombuffer(data, "<i4", count + 1, ends_at + 4 * first)
            start, end = int(ends[0]), int(ends[-1])
            parts.append((ends - ends[0]).astype("<i4").tobytes())
        areas.append(bytes(data[area_at + start : area_at + end]))
        sizes.append(end - start)
    body = b"".join((*parts, *areas))
    body += bytes(-len(body) % 8)
    last = batch.time(first + count - 1) - batch.base_time
    header = encode_header(
        HEADER_BYTES + len(body),
        batch.flags,
        batch.base_offset + first,
        batch.base_time,
        xxhash.xxh3_64_intdigest(body),
        count,
        sizes[0],
        sizes[1],
        sizes[2],
        batch.term,
        last,
    )
    return header + body


def apart(data: bytes) -> list[bytes]:
    """Return every message of a batch as its own batch."""
    batch = parse(data)
    return [data] if batch.count == 1 else [cut(batch, index, 1) for index in range(batch.count)]


def is_timed(data: bytes) -> bool:
    """Return whether a batch has messages with an expiry or a delay."""
    return bool(data[_FLAGS_AT] & (EXPIRY | DELAY))


def shifted(data: bytes, by: int) -> bytes:
    """Return a batch with expiry and delay times `by` µs later, for a queue whose clock is ahead of
    the publisher's."""
    batch = parse(data)
    body = bytearray(batch.body())
    for flag, at in ((EXPIRY, batch.expiry_at), (DELAY, batch.delay_at)):
        if batch.flags & flag:
            times = np.frombuffer(body, "<i8", batch.count, at - batch.start - HEADER_BYTES)
            # Clamp to the largest representable time.
            times[times != 0] = np.minimum(times[times != 0], _TIME_MAX - by) + by
    header = encode_header(
        HEADER_BYTES + len(body),
        batch.flags,
        batch.base_offset,
        batch.base_time,
        xxhash.xxh3_64_intdigest(body),
        batch.count,
        batch.key_bytes,
        batch.property_bytes,
        batch.payload_bytes,
        batch.term,
        batch.last_delta,
    )
    return header + bytes(body)


def _slice(data: memoryview, at: int, width: int, first: int, count: int) -> bytes:
    return bytes(data[at + width * first : at + width * (first + count)])


def received(frame: bytes, at: int) -> Batch:
    """Return the batch at the end of a frame."""
    return parse(frame, at)

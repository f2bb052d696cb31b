"""Builds batches from runs, as ``batch_delivery`` builds runs from batches.

A payload is copied once, from the receive buffer into the batch. Knows nothing of queues, groups or
files; the caller supplies key, properties and times.
"""

from __future__ import annotations

import struct

import cython
from xxhash import xxh3_64_intdigest

from fluxmq.model.batch_format import (
    ATTRIBUTES,
    DELAY,
    EXPIRY,
    MESSAGES_MAX,
    PAYLOAD_BYTES_MAX,
    encode_header,
)
from fluxmq.protocols.mqtt.run import PublishRun

if cython.compiled:
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
    from cython.cimports.fluxmq.model.batch_format import encode_header
    from cython.cimports.fluxmq.model.octets import Octets, pointer
    from cython.cimports.fluxmq.protocols.mqtt.run import PublishRun
    from cython.cimports.libc.string import memcpy, memset
else:
    from fluxmq.model.octets import Octets


def build_batches(
    run: PublishRun,
    key: bytes,
    properties: bytes,
    now_us: cython.longlong,
    expiry_us: cython.longlong = 0,
    delay_us: cython.longlong = 0,
    attributes: cython.uint = 0,
) -> list[bytes]:
    """Build batches of a run's messages, copying each payload once; the run may refer to the
    receive buffer.

    All get the one ``key``, canonical property block, time ``now_us``, expiry and delay (us since
    the epoch, 0 for none) and attributes.
    """
    offset: cython.Py_ssize_t = run.start
    left: cython.Py_ssize_t = run.count
    count: cython.Py_ssize_t
    total: cython.Py_ssize_t
    place: cython.Py_ssize_t
    flags: cython.int = _constant_flags(expiry_us, delay_us, attributes)
    columns: bytes = b""
    built: list[bytes] = []
    while left > 0:
        count = 1
        place = run.body_at(offset) + run.body_length
        total = run.body_length
        if run.stride:
            count = PAYLOAD_BYTES_MAX // total if total else left
            count = max(1, min(count, left, MESSAGES_MAX))
            total *= count
        else:
            while count < left and count < MESSAGES_MAX:
                place = run.body_at(place) + run.body_length
                if total + run.body_length > PAYLOAD_BYTES_MAX:
                    break
                total += run.body_length
                count += 1
        if flags:
            columns = _constant_columns(count, expiry_us, delay_us, attributes)
        built.append(_filled(run, offset, count, total, flags, columns, key, properties, now_us))
        left -= count
        if left:
            offset = run.skip(offset, count)
    return built


@cython.cfunc
def _constant_flags(
    expiry_us: cython.longlong, delay_us: cython.longlong, attributes: cython.uint
) -> cython.int:
    """Return the flags of the columns that ``_constant_columns`` makes."""
    return (
        (EXPIRY if expiry_us else 0)
        | (DELAY if delay_us else 0)
        | (ATTRIBUTES if attributes else 0)
    )


@cython.cfunc
def _constant_columns(
    count: cython.Py_ssize_t,
    expiry_us: cython.longlong,
    delay_us: cython.longlong,
    attributes: cython.uint,
) -> bytes:
    """Return the columns before the ends when every message has the same values."""
    columns: bytes = b""
    if expiry_us:
        columns = struct.pack("<q", expiry_us) * count
    if delay_us:
        columns += struct.pack("<q", delay_us) * count
    if attributes:
        columns += struct.pack("<I", attributes) * count
    return columns


@cython.cfunc
def _filled(
    run: PublishRun,
    offset: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
    total: cython.Py_ssize_t,
    flags: cython.int,
    columns: bytes,
    key: bytes,
    properties: bytes,
    now_us: cython.longlong,
) -> bytes:
    """Build a batch of ``count`` messages from ``offset`` on, ``total`` bytes of payload;
    ``columns``: those before the ends."""
    areas: bytes = key + properties
    at: cython.Py_ssize_t = 64 + len(columns)
    length: cython.Py_ssize_t = at + 4 * (count + 1) + len(areas) + total
    padding: cython.Py_ssize_t = -length & 7
    target: Octets
    header: bytes
    if cython.compiled:
        batch: bytes = PyBytes_FromStringAndSize(cython.NULL, length + padding)
        target = pointer(batch)
        memcpy(target + 64, PyBytes_AS_STRING(columns), len(columns))
        memcpy(target + at + 4 * (count + 1), PyBytes_AS_STRING(areas), len(areas))
        memset(target + length, 0, padding)
        _copy_payloads(run, offset, count, target + at, target + length - total)
        check = xxh3_64_intdigest(memoryview(batch)[64:])
    else:
        body = _body_uncompiled(run, offset, count, columns, areas, bytes(padding))
        check = xxh3_64_intdigest(body)
    header = encode_header(
        length + padding,
        flags,
        0,
        now_us,
        check,
        count,
        len(key),
        len(properties),
        total,
        0,
        0,
    )
    if cython.compiled:
        memcpy(target, PyBytes_AS_STRING(header), 64)
        return batch
    return header + body


if cython.compiled:

    @cython.cfunc
    def _copy_payloads(
        run: PublishRun,
        offset: cython.Py_ssize_t,
        count: cython.Py_ssize_t,
        ends: cython.p_uchar,
        target: cython.p_uchar,
    ) -> cython.int:
        """Write payloads and their ends."""
        source: cython.p_uchar = pointer(run.buffer)
        end: cython.Py_ssize_t = 0
        size: cython.Py_ssize_t
        place: cython.Py_ssize_t
        _index: cython.Py_ssize_t
        memset(ends, 0, 4)
        for _index in range(count):
            place = run.body_at(offset)
            size = run.body_length
            memcpy(target, source + place, size)
            target += size
            end += size
            offset = place + size
            ends += 4
            ends[0] = end & 0xFF
            ends[1] = (end >> 8) & 0xFF
            ends[2] = (end >> 16) & 0xFF
            ends[3] = (end >> 24) & 0xFF
        return 0


def _body_uncompiled(
    run: PublishRun,
    offset: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
    columns: bytes,
    areas: bytes,
    padding: bytes,
) -> bytes:
    """Return the bytes after the header, with slices and one join; equal sizes need no walk."""
    view = memoryview(run.buffer)
    payloads: list[memoryview] = []
    ends: list[int] = [0]
    end = 0
    if run.stride:
        place = run.body_at(offset)
        size = run.body_length
        ends = [size * index for index in range(count + 1)]
        stop = place + count * run.stride
        payloads = [view[at : at + size] for at in range(place, stop, run.stride)]
    else:
        for _ in range(count):
            place = run.body_at(offset)
            offset = place + run.body_length
            payloads.append(view[place:offset])
            end += run.body_length
            ends.append(end)
    return b"".join((columns, struct.pack(f"<{count + 1}i", *ends), areas, *payloads, padding))

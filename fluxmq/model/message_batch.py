"""Builds a batch of one message: from values, where ``protocols`` build theirs from runs."""

from __future__ import annotations

import struct

import cython
from xxhash import xxh3_64_intdigest

from fluxmq.model.batch_format import (
    ATTRIBUTES,
    DELAY,
    EXPIRY,
    HEADER_BYTES,
    PRODUCER,
    encode_header,
)

if cython.compiled:
    from cython.cimports.fluxmq.model.batch_format import encode_header


def build_message(
    key: bytes,
    properties: bytes,
    payload: bytes,
    now_us: cython.longlong,
    expiry_us: cython.longlong = 0,
    delay_us: cython.longlong = 0,
    attributes: cython.uint = 0,
    producer: cython.ulonglong = 0,
    sequence: cython.longlong = 0,
) -> bytes:
    """Build a batch of one message. Arguments as for ``build_batches``; ``producer`` 0 and
    ``sequence`` 0: unknown."""
    flags: cython.int = 0
    columns: bytes = b""
    if expiry_us:
        flags |= EXPIRY
        columns = struct.pack("<q", expiry_us)
    if delay_us:
        flags |= DELAY
        columns += struct.pack("<q", delay_us)
    if producer or sequence:
        flags |= PRODUCER
        columns += struct.pack("<Qq", producer, sequence)
    if attributes:
        flags |= ATTRIBUTES
        columns += struct.pack("<I", attributes)
    size: cython.Py_ssize_t = len(payload)
    columns += struct.pack("<ii", 0, size)
    body: bytes = columns + key + properties + payload
    body += bytes(-len(body) & 7)
    return (
        encode_header(
            HEADER_BYTES + len(body),
            flags,
            0,
            now_us,
            xxh3_64_intdigest(body),
            1,
            len(key),
            len(properties),
            size,
            0,
            0,
        )
        + body
    )

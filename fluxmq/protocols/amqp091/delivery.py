"""Messages as AMQP 0.9.1 frames for clients: basic.deliver, basic.get-ok and basic.return with
content.

Deliveries are written straight from the batch, whole claims at once: the common parts are a
template, in which delivery tag, body size and possibly the message's offset are rewritten for each.
Knows nothing of queues or channels: the caller supplies exchange, routing key and properties.

Source: AMQP 0-9-1 section 1.8.3 (basic), 2.3.5 (frames), 4.2.6 (content).
"""

from __future__ import annotations

import struct
from itertools import pairwise

import cython

from fluxmq.model.batch_format import Batch

if cython.compiled:
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
    from cython.cimports.fluxmq.model.batch_format import Batch
    from cython.cimports.fluxmq.model.network_order import (
        store_u16,
        store_u32,
        store_u64,
    )
    from cython.cimports.fluxmq.model.octets import Octets, pointer, read_i32
    from cython.cimports.libc.string import memcpy

SHORT_MAX = 255
"""Maximum bytes of a short string, as exchanges, routing keys and tags are."""
FRAME_BYTES = 8
"""Bytes of a frame besides its payload."""

# The same for C, typed in the declarations: public names are looked up as Python's.
_FRAME = FRAME_BYTES
_SHORT_MAX = SHORT_MAX

_DELIVER = b"\x00\x3c\x00\x3c"
_GET_OK = b"\x00\x3c\x00\x47"
_RETURN = b"\x00\x3c\x00\x32"
_END = b"\xce"
_METHOD = struct.Struct(">BHI")
_HEADER = struct.Struct(">BHIIQ")
_CONTENT_CLASS = 60 << 16


def encode_deliveries(
    batch: Batch,
    first: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
    channel: cython.int,
    consumer_tag: bytes,
    first_tag: cython.ulonglong,
    redelivered: cython.bint,
    exchange: bytes,
    routing_key: bytes,
    properties: bytes,
    frame_max: cython.Py_ssize_t,
    offset_at: cython.Py_ssize_t = -1,
) -> bytes:
    """Encode ``count`` messages of a batch from index ``first`` on as deliveries with tags from
    ``first_tag`` on.

    ``properties``: flags and list shared by all, as they follow a body size; ``offset_at``:
    position in them of each message's own offset, in eight bytes, -1 for none. No body frame is
    larger than ``frame_max``; the caller ensures the same for the properties.

    Raises IndexError for messages that the batch does not have, ValueError for names too long for a
    frame, a ``frame_max`` without room and an ``offset_at`` outside of the properties.
    """
    front: cython.Py_ssize_t
    if first < 0 or count < 1 or first > batch.count - count:
        raise IndexError(first)
    if (
        len(consumer_tag) > _SHORT_MAX
        or len(exchange) > _SHORT_MAX
        or len(routing_key) > _SHORT_MAX
    ):
        raise ValueError("a name that no frame can hold")
    _check(frame_max)
    # Bytes of the method frame, which the content header follows.
    front = 24 + len(consumer_tag) + len(exchange) + len(routing_key)
    offset_at = _patch(front + 19, properties, offset_at)
    if cython.compiled:
        total: cython.Py_ssize_t = front + 20 + len(properties)
        out: bytes = PyBytes_FromStringAndSize(
            cython.NULL, _size(batch, first, count, total, frame_max - _FRAME)
        )
        target: Octets = pointer(out)
        _write_front(target, channel, consumer_tag, redelivered, exchange, routing_key, properties)
        _write(
            target,
            total,
            batch,
            first,
            count,
            channel,
            12 + len(consumer_tag),
            front + 11,
            offset_at,
            first_tag,
            frame_max - _FRAME,
        )
        return out
    method = _method(
        channel,
        b"".join(
            (
                _DELIVER,
                _short(consumer_tag),
                bytes(8),
                b"\x01" if redelivered else b"\x00",
                _short(exchange),
                _short(routing_key),
            )
        ),
    )
    template = method + _header(channel, 0, properties)
    return _deliveries_uncompiled(
        *(batch, first, count, channel, template, 12 + len(consumer_tag), front + 11),
        *(offset_at, first_tag, frame_max),
    )


def encode_get_ok(
    batch: Batch,
    index: cython.Py_ssize_t,
    channel: cython.int,
    tag: cython.ulonglong,
    redelivered: cython.bint,
    exchange: bytes,
    routing_key: bytes,
    message_count: cython.ulonglong,
    properties: bytes,
    frame_max: cython.Py_ssize_t,
    offset_at: cython.Py_ssize_t = -1,
) -> bytes:
    """Encode one message of a batch as the answer to basic.get; ``message_count`` more are ready.

    Otherwise as for ``encode_deliveries``. A count too large for the field is capped.
    """
    patch: cython.Py_ssize_t = _patch(0, properties, offset_at)
    if patch >= 0:
        offset: bytes = (batch.base_offset + index).to_bytes(8, "big")
        properties = properties[:patch] + offset + properties[patch + 8 :]
    arguments: bytes = b"".join(
        (
            _GET_OK,
            tag.to_bytes(8, "big"),
            b"\x01" if redelivered else b"\x00",
            _short(exchange),
            _short(routing_key),
            min(message_count, 0xFFFFFFFF).to_bytes(4, "big"),
        )
    )
    return _content(channel, arguments, properties, batch.payload(index), frame_max)


def encode_return(
    channel: cython.int,
    reply_code: cython.int,
    reply_text: bytes,
    exchange: bytes,
    routing_key: bytes,
    properties: bytes,
    payload: bytes,
    frame_max: cython.Py_ssize_t,
) -> bytes:
    """Encode a message returned to its publisher. Raises ValueError as ``encode_deliveries``
    does."""
    arguments: bytes = b"".join(
        (
            _RETURN,
            reply_code.to_bytes(2, "big"),
            _short(reply_text),
            _short(exchange),
            _short(routing_key),
        )
    )
    return _content(channel, arguments, properties, payload, frame_max)


def encode_delivery(
    channel: cython.int,
    consumer_tag: bytes,
    tag: cython.ulonglong,
    redelivered: cython.bint,
    exchange: bytes,
    routing_key: bytes,
    properties: bytes,
    payload: bytes,
    frame_max: cython.Py_ssize_t,
) -> bytes:
    """Encode a message that is in no batch as a delivery (direct replies). Raises ValueError as
    ``encode_deliveries`` does."""
    arguments: bytes = b"".join(
        (
            _DELIVER,
            _short(consumer_tag),
            tag.to_bytes(8, "big"),
            b"\x01" if redelivered else b"\x00",
            _short(exchange),
            _short(routing_key),
        )
    )
    return _content(channel, arguments, properties, payload, frame_max)


@cython.cfunc
def _short(text: bytes) -> bytes:
    """Encode a short string."""
    if len(text) > _SHORT_MAX:
        raise ValueError("a name that no frame can hold")
    return bytes((len(text),)) + text


@cython.cfunc
def _method(channel: cython.int, payload: bytes) -> bytes:
    """Encode a method frame."""
    return _METHOD.pack(1, channel, len(payload)) + payload + _END


@cython.cfunc
def _header(channel: cython.int, size: cython.Py_ssize_t, properties: bytes) -> bytes:
    """Encode the frame of a content header."""
    return _HEADER.pack(2, channel, 12 + len(properties), _CONTENT_CLASS, size) + properties + _END


@cython.cfunc
def _patch(
    base: cython.Py_ssize_t, properties: bytes, offset_at: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Return the position of the offset, with ``base`` bytes before the properties; -1 for none."""
    if offset_at == -1:
        return -1
    if offset_at < 0 or offset_at > len(properties) - 8:
        raise ValueError("an offset outside of the properties")
    return base + offset_at


@cython.cfunc
def _check(frame_max: cython.Py_ssize_t) -> cython.int:
    """Raise ValueError for frames without room for a body."""
    if frame_max <= _FRAME:
        raise ValueError("frames without room")
    return 0


@cython.cfunc
def _content(
    channel: cython.int,
    arguments: bytes,
    properties: bytes,
    payload: bytes,
    frame_max: cython.Py_ssize_t,
) -> bytes:
    """Encode a method with its content."""
    size: cython.Py_ssize_t = len(payload)
    room: cython.Py_ssize_t = frame_max - _FRAME
    at: cython.Py_ssize_t = 0
    length: cython.Py_ssize_t
    pieces: list[bytes] = [_method(channel, arguments), _header(channel, size, properties)]
    _check(frame_max)
    while at < size:
        length = min(room, size - at)
        pieces += (_METHOD.pack(3, channel, length), payload[at : at + length], _END)
        at += length
    return b"".join(pieces)


if cython.compiled:

    @cython.cfunc
    def _size(
        batch: Batch,
        first: cython.Py_ssize_t,
        count: cython.Py_ssize_t,
        front: cython.Py_ssize_t,
        room: cython.Py_ssize_t,
    ) -> cython.Py_ssize_t:
        """Return the bytes of all frames; ``front``: of those before each body."""
        ends: cython.p_uchar = cython.cast(cython.p_uchar, PyBytes_AS_STRING(batch.data))
        total: cython.Py_ssize_t = count * front
        before: cython.Py_ssize_t
        end: cython.Py_ssize_t
        index: cython.Py_ssize_t
        ends += batch.payload_ends_at + 4 * first
        before = read_i32(ends)
        for index in range(1, count + 1):
            end = read_i32(ends + 4 * index)
            total += end - before
            if end - before <= room:
                total += _FRAME if end > before else 0
            else:
                total += _FRAME * ((end - before + room - 1) // room)
            before = end
        return total

    @cython.cfunc
    def _write_name(
        target: cython.p_uchar, at: cython.Py_ssize_t, name: bytes
    ) -> cython.Py_ssize_t:
        """Write a short string; return where it ends."""
        length: cython.Py_ssize_t = len(name)
        target[at] = length
        memcpy(target + at + 1, PyBytes_AS_STRING(name), length)
        return at + 1 + length

    @cython.cfunc
    def _write_front(
        target: cython.p_uchar,
        channel: cython.int,
        consumer_tag: bytes,
        redelivered: cython.bint,
        exchange: bytes,
        routing_key: bytes,
        properties: bytes,
    ) -> cython.int:
        """Write the common bytes before each body, without tag, size and offset."""
        at: cython.Py_ssize_t
        target[0] = 1
        store_u16(target, 1, channel)
        store_u32(target, 7, 0x003C003C)
        at = _write_name(target, 11, consumer_tag)
        target[at + 8] = 1 if redelivered else 0
        at = _write_name(target, at + 9, exchange)
        at = _write_name(target, at, routing_key)
        store_u32(target, 3, at - 7)
        target[at] = 0xCE
        target += at + 1
        target[0] = 2
        store_u16(target, 1, channel)
        store_u32(target, 3, 12 + len(properties))
        store_u32(target, 7, 0x003C0000)
        memcpy(target + 19, PyBytes_AS_STRING(properties), len(properties))
        target[19 + len(properties)] = 0xCE
        return 0

    @cython.cfunc
    def _write(
        target: cython.p_uchar,
        front: cython.Py_ssize_t,
        batch: Batch,
        first: cython.Py_ssize_t,
        count: cython.Py_ssize_t,
        channel: cython.int,
        tag_at: cython.Py_ssize_t,
        size_at: cython.Py_ssize_t,
        patch: cython.Py_ssize_t,
        tag: cython.ulonglong,
        room: cython.Py_ssize_t,
    ) -> cython.int:
        """Write all messages; the first ``front`` bytes are there, and are copied for the
        others."""
        model: cython.p_uchar = target
        source: cython.p_uchar = cython.cast(cython.p_uchar, PyBytes_AS_STRING(batch.data))
        ends: cython.p_uchar = source + batch.payload_ends_at + 4 * first
        before: cython.Py_ssize_t = read_i32(ends)
        end: cython.Py_ssize_t
        size: cython.Py_ssize_t
        length: cython.Py_ssize_t
        index: cython.Py_ssize_t
        source += batch.payloads_at + before
        for index in range(count):
            end = read_i32(ends + 4 * index + 4)
            size = end - before
            before = end
            if index:
                memcpy(target, model, front)
            store_u64(target, tag_at, tag + index)
            store_u64(target, size_at, size)
            if patch >= 0:
                store_u64(target, patch, batch.base_offset + first + index)
            target += front
            while size:
                length = min(size, room)
                target[0] = 3
                store_u16(target, 1, channel)
                store_u32(target, 3, length)
                memcpy(target + 7, source, length)
                target[7 + length] = 0xCE
                target += length + _FRAME
                source += length
                size -= length
        return 0


def _deliveries_uncompiled(
    batch: Batch,
    first: int,
    count: int,
    channel: int,
    template: bytes,
    tag_at: int,
    size_at: int,
    patch: int,
    tag: int,
    frame_max: int,
) -> bytes:
    """Encode the frames of ``encode_deliveries`` with slices and one join."""
    places = struct.unpack_from(f"<{count + 1}i", batch.data, batch.payload_ends_at + 4 * first)
    view = memoryview(batch.data)
    room = frame_max - _FRAME
    front, between = template[:tag_at], template[tag_at + 8 : size_at]
    back = template[size_at + 8 :]
    cut = patch - size_at - 8
    offset = batch.base_offset + first
    pieces: list[bytes | memoryview] = []
    for begin, end in pairwise(places):
        size = end - begin
        pieces += (front, tag.to_bytes(8, "big"), between, size.to_bytes(8, "big"))
        if patch >= 0:
            pieces += (back[:cut], offset.to_bytes(8, "big"), back[cut + 8 :])
        else:
            pieces.append(back)
        begin += batch.payloads_at
        end += batch.payloads_at
        while begin < end:
            stop = min(begin + room, end)
            pieces += (_METHOD.pack(3, channel, stop - begin), view[begin:stop], _END)
            begin = stop
        tag += 1
        offset += 1
    return b"".join(pieces)

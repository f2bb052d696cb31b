"""Runs of messages received over AMQP 0.9.1, and the batches made of them.

A run is a stretch of a channel's bytes with consecutive whole publishes (method, content header,
one body frame or none) that are equal in everything but their payloads. Like MQTT's runs it refers
to the receive buffer while it is handled; to keep it, call ``detach`` first. A message assembled
from several frames is a run of one. Knows nothing of connections, exchanges or the meaning of
properties.

Source: AMQP 0-9-1 section 2.3.5 (frames), 4.2.6 (content).
"""

from __future__ import annotations

import struct

import cython
from xxhash import xxh3_64_intdigest

from fluxmq.model.batch_format import (
    ATTRIBUTES,
    DELAY,
    EXPIRY,
    HEADER_BYTES,
    MESSAGES_MAX,
    PAYLOAD_BYTES_MAX,
    PRODUCER,
    PROPERTIES,
    PROTOCOL_AMQP_0_9_1,
    encode_header,
)

if cython.compiled:
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
    from cython.cimports.fluxmq.model.batch_format import encode_header
    from cython.cimports.fluxmq.model.network_order import load_u64
    from cython.cimports.fluxmq.model.octets import Octets, pointer
    from cython.cimports.libc.string import memcpy, memset
else:
    from fluxmq.model.network_order import load_u64
    from fluxmq.model.octets import Octets, pointer

FRAME_HEADER_BYTES = 7
"""Bytes of type, channel and size before a frame's payload; one end octet follows it."""
BODY_SIZE_AT = 11
"""Position of the body's size in a content header's frame."""

# The same for C, typed in the declarations: public names are looked up as Python's.
_FRAME_HEADER = FRAME_HEADER_BYTES
_BODY_SIZE_AT = BODY_SIZE_AT
_MESSAGES_MAX = MESSAGES_MAX
_ATTRIBUTES = ATTRIBUTES
_PAYLOADS_MAX = PAYLOAD_BYTES_MAX
_BOUNDS = struct.Struct("<ii")


class AmqpPublishRun:
    """Whole publishes on one channel, equal in exchange, routing key, bits and properties.

    ``buffer[start:end]`` holds ``count`` of them, all ``stride`` bytes long unless that is 0: a
    method frame of ``method_size`` bytes, a header frame of ``header_size``, a body frame unless
    the payload is empty. If both sizes are 0, the bytes are one bare payload. ``properties``:
    flags and list, as they follow the body size. ``payload_bytes``: of all together, ``largest``:
    of the largest. ``blocks``: if they differ (AMQP 1.0), the column of where each message's property
    block ends, and the blocks; None if one is given for all.
    """

    def __init__(
        self,
        buffer: bytes | bytearray,
        start: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        channel: cython.int,
        exchange: bytes,
        routing_key: bytes,
        bits: cython.int,
        properties: bytes,
    ) -> None:
        self.buffer = buffer
        self.start = start
        self.end = end
        self.count = 1
        self.stride = end - start
        self.method_size = 0
        self.header_size = 0
        self.payload_bytes = end - start
        self.largest = end - start
        self.body_length = 0
        self.channel = channel
        self.exchange = exchange
        self.routing_key = routing_key
        self.mandatory = (bits & 1) != 0
        self.immediate = (bits & 2) != 0
        self.properties = properties
        self.kept = False
        self.blocks: tuple[bytes, bytes] | None = None
        self._walked = 0, start

    @staticmethod
    def of(
        channel: int,
        exchange: bytes,
        routing_key: bytes,
        mandatory: bool,
        immediate: bool,
        properties: bytes,
        payload: bytes,
    ) -> AmqpPublishRun:
        """Return a run of one message whose content was assembled elsewhere."""
        bits = (1 if mandatory else 0) | (2 if immediate else 0)
        run = AmqpPublishRun(
            payload, 0, len(payload), channel, exchange, routing_key, bits, properties
        )
        run.kept = True
        return run

    def detach(self) -> cython.int:
        """Copy the bytes out of a buffer that will be reused; a repeated call is cheap."""
        if not self.kept:
            self.buffer = bytes(memoryview(self.buffer)[self.start : self.end])
            self._walked = 0, 0
            self.end -= self.start
            self.start = 0
            self.kept = True
        return 0

    def body_at(self, offset: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Return where the payload of the message at ``offset`` begins; its length goes to
        ``body_length``."""
        data: Octets
        if self.header_size == 0:
            self.body_length = self.end - offset
            return offset
        data = pointer(self.buffer) if cython.compiled else self.buffer
        self.body_length = load_u64(data, offset + self.method_size + _BODY_SIZE_AT)
        offset += self.method_size + self.header_size
        return offset + _FRAME_HEADER if self.body_length else offset

    def following(self, offset: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Return the offset of the message after the one at ``offset``, whose payload length goes
        to ``body_length``."""
        if self.stride:
            self.body_at(offset)
            return offset + self.stride
        offset = self.body_at(offset) + self.body_length
        return offset + 1 if self.body_length else offset

    def payload(self, index: cython.Py_ssize_t) -> bytes:
        """Return a copy of one payload; reading them in order needs no walk. Raises IndexError."""
        place: cython.Py_ssize_t
        if index < 0 or index >= self.count:
            raise IndexError(index)
        if self.stride:
            place = self.body_at(self.start + index * self.stride)
        else:
            at, place = self._walked
            if index < at:
                at, place = 0, self.start
            while at < index:
                place = self.following(place)
                at += 1
            self._walked = at, place
            place = self.body_at(place)
        return bytes(memoryview(self.buffer)[place : place + self.body_length])

    def payloads(self) -> list[bytes]:
        """Return copies of all payloads, for callers off the hot path."""
        return [self.payload(index) for index in range(self.count)]

    def block(self, index: int, common: bytes) -> bytes:
        """Return the property block of a message; ``common``: of all, if they do not differ."""
        if self.blocks is None:
            return common
        ends, blocks = self.blocks
        first, end = _BOUNDS.unpack_from(ends, 4 * index)
        return blocks[first:end]

    def single(self, index: int) -> AmqpPublishRun:
        """Return one message of the run as a run of its own."""
        made = AmqpPublishRun.of(
            self.channel,
            self.exchange,
            self.routing_key,
            self.mandatory,
            self.immediate,
            self.properties,
            self.payload(index),
        )
        if self.blocks is not None:
            block = self.block(index, b"")
            made.blocks = _BOUNDS.pack(0, len(block)), block
        return made


def build_amqp_batches(
    run: AmqpPublishRun,
    key: bytes,
    block: bytes,
    now_us: cython.longlong,
    expiry_us: cython.longlong = 0,
    delay_us: cython.longlong = 0,
    producer: cython.ulonglong = 0,
    sequence: cython.longlong = 0,
    attributes: cython.uint = 0,
) -> list[bytes]:
    """Build batches of a run's messages, copying each payload once; the run may refer to the
    receive buffer.

    All get the one ``key``, canonical property block unless the run has one for each, time
    ``now_us``, expiry and delay (us since the epoch, 0 for none), ``producer`` and attributes, to
    which the protocol is added.
    ``sequence``: the producer's number of the first message, the others follow; 0 for both:
    unknown.
    """
    offset: cython.Py_ssize_t = run.start
    left: cython.Py_ssize_t = run.count
    count: cython.Py_ssize_t
    total: cython.Py_ssize_t
    place: cython.Py_ssize_t
    following: cython.Py_ssize_t
    index: cython.Py_ssize_t = 0
    flags: cython.int = _ATTRIBUTES
    of_batch: cython.int
    columns: bytes
    content: bytes
    ends: bytes = b""
    built: list[bytes] = []
    attributes |= PROTOCOL_AMQP_0_9_1
    if expiry_us:
        flags |= EXPIRY
    if delay_us:
        flags |= DELAY
    if producer or sequence:
        flags |= PRODUCER
    while left > 0:
        count = 1
        following = run.following(offset)
        total = run.body_length
        if run.stride:
            count = _PAYLOADS_MAX // total if total else left
            count = max(1, min(count, left, _MESSAGES_MAX))
            following = offset + count * run.stride
            total *= count
        else:
            while count < left and count < _MESSAGES_MAX:
                place = run.following(following)
                if total + run.body_length > _PAYLOADS_MAX:
                    break
                following = place
                total += run.body_length
                count += 1
        if run.blocks is not None:
            ends, block = _blocks(run, index, count)
        columns = _columns(count, expiry_us, delay_us, producer, sequence, attributes, ends)
        content = _filled(run, offset, count, total, columns, key + block)
        of_batch = flags | PROPERTIES if ends else flags
        built.append(_headed(content, of_batch, now_us, count, len(key), len(block), total))
        left -= count
        index += count
        offset = following
        if sequence:
            sequence += count
    return built


@cython.cfunc
def _columns(
    count: cython.Py_ssize_t,
    expiry_us: cython.longlong,
    delay_us: cython.longlong,
    producer: cython.ulonglong,
    sequence: cython.longlong,
    attributes: cython.uint,
    ends: bytes,
) -> bytes:
    """Return the columns before that of the payloads' ends. ``ends``: the one of where property blocks
    end, empty for none."""
    columns: bytes = b""
    if expiry_us:
        columns = struct.pack("<q", expiry_us) * count
    if delay_us:
        columns += struct.pack("<q", delay_us) * count
    if producer or sequence:
        columns += struct.pack("<Q", producer) * count
        if sequence:
            columns += struct.pack(f"<{count}q", *range(sequence, sequence + count))
        else:
            columns += bytes(8 * count)
    each: bytes = struct.pack("<I", attributes)
    return columns + each * count + ends


def _blocks(run: AmqpPublishRun, index: int, count: int) -> tuple[bytes, bytes]:
    """Return the column of ends and the property blocks of some messages of a run; one has no
    column."""
    if count == 1:
        return b"", run.block(index, b"")
    assert run.blocks is not None
    column, blocks = run.blocks
    if count == run.count:
        return column, blocks
    ends = struct.unpack_from(f"<{count + 1}i", column, 4 * index)
    first = ends[0]
    part = struct.pack(f"<{count + 1}i", *[end - first for end in ends])
    return part, blocks[first : ends[count]]


@cython.cfunc
def _filled(
    run: AmqpPublishRun,
    offset: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
    total: cython.Py_ssize_t,
    columns: bytes,
    areas: bytes,
) -> bytes:
    """Build a batch of ``count`` messages from ``offset`` on, ``total`` bytes of payload, but for its
    header, which is blank. ``columns``: those before the payloads' ends; ``areas``: keys and property
    blocks."""
    at: cython.Py_ssize_t = 64 + len(columns)
    length: cython.Py_ssize_t = at + 4 * (count + 1) + len(areas) + total
    padding: cython.Py_ssize_t = -length & 7
    target: Octets
    if cython.compiled:
        batch: bytes = PyBytes_FromStringAndSize(cython.NULL, length + padding)
        target = pointer(batch)
        memset(target, 0, 64)
        memcpy(target + 64, PyBytes_AS_STRING(columns), len(columns))
        memcpy(target + at + 4 * (count + 1), PyBytes_AS_STRING(areas), len(areas))
        memset(target + length, 0, padding)
        _copy_payloads(run, offset, count, target + at, target + length - total)
        return batch
    body = _body_uncompiled(run, offset, count, columns + _ends(run, offset, count), areas)
    return bytes(HEADER_BYTES) + body + bytes(padding)


@cython.cfunc
def _headed(
    batch: bytes,
    flags: cython.int,
    now_us: cython.longlong,
    count: cython.Py_ssize_t,
    key_bytes: cython.Py_ssize_t,
    block_bytes: cython.Py_ssize_t,
    total: cython.Py_ssize_t,
) -> bytes:
    """Return a batch with its header, in place of the blank one. Nobody else has it yet."""
    content = memoryview(batch)[HEADER_BYTES:]
    check = xxh3_64_intdigest(content)
    header: bytes = encode_header(
        len(batch), flags, 0, now_us, check, count, key_bytes, block_bytes, total, 0, 0
    )
    if cython.compiled:
        memcpy(pointer(batch), PyBytes_AS_STRING(header), HEADER_BYTES)
        return batch
    return header + content


if cython.compiled:

    @cython.cfunc
    def _copy_payloads(
        run: AmqpPublishRun,
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
            offset = place + size + 1 if size else place
            ends += 4
            ends[0] = end & 0xFF
            ends[1] = (end >> 8) & 0xFF
            ends[2] = (end >> 16) & 0xFF
            ends[3] = (end >> 24) & 0xFF
        return 0


def _ends(run: AmqpPublishRun, offset: int, count: int) -> bytes:
    """Return the payloads' ends, uncompiled."""
    ends = [0]
    end = 0
    for _ in range(count):
        offset = run.following(offset)
        end += run.body_length
        ends.append(end)
    return struct.pack(f"<{count + 1}i", *ends)


def _body_uncompiled(
    run: AmqpPublishRun, offset: int, count: int, columns: bytes, areas: bytes
) -> bytes:
    """Return the bytes after the header, with slices and one join; equal sizes need no walk."""
    view = memoryview(run.buffer)
    payloads: list[memoryview] = []
    if run.stride:
        place = run.body_at(offset)
        size = run.body_length
        stop = place + count * run.stride
        payloads = [view[at : at + size] for at in range(place, stop, run.stride)]
    else:
        for _ in range(count):
            place = run.body_at(offset)
            payloads.append(view[place : place + run.body_length])
            offset = run.following(offset)
    return b"".join((columns, areas, *payloads))

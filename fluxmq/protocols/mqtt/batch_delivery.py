"""The messages of a batch as PUBLISH packets for MQTT subscribers.

Packets are written once for all subscribers of a protocol version, straight from the batch, as a
run that a session's delivery then copies with packet identifiers of its own. The common parts of
all packets are a template; offsets are incremented in it in place, as digits. Knows nothing of
queues or sessions: the caller supplies topic and properties.

Source: MQTT 5.0 section 3.3 (PUBLISH).
"""

from __future__ import annotations

import struct
from itertools import pairwise

import cython

from fluxmq.model.batch_format import Batch
from fluxmq.protocols.mqtt.run import PublishRun, encode_length

if cython.compiled:
    from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
    from cython.cimports.fluxmq.model.batch_format import Batch
    from cython.cimports.fluxmq.model.octets import Octets, read_i32
    from cython.cimports.fluxmq.protocols.mqtt.run import PublishRun, encode_length
    from cython.cimports.libc.string import memcpy
else:
    from fluxmq.model.octets import Octets

_REMAINING_MAX = 268_435_455
_FIELD_MAX = 65_535
_MESSAGE_ID = b"\x26\x00\x0amessage-id"
_OFFSET = b"\x26\x00\x06offset"
_BETWEEN_DIGITS = 11
"""Bytes between an offset's digits in ``message-id`` and in ``offset``: that property without its
value."""
_DIGITS_MAX = 20
"""Decimal digits of the largest offset."""
_TENS = tuple(10**digits for digits in range(_DIGITS_MAX + 1))


class OffsetProperties:
    """Two user properties that give a consumer each message's position: ``message-id``
    (``<queue>:<offset>``) and ``offset``. Raises ValueError for a queue name too long for a
    property."""

    def __init__(self, queue: bytes) -> None:
        if len(queue) + 1 + _DIGITS_MAX > _FIELD_MAX:
            raise ValueError("a queue name that no property can hold")
        self.queue = queue

    def encode(self, offset: cython.ulonglong) -> bytes:
        """Encode both properties for ``offset``, whose digits are the last bytes."""
        digits: bytes = b"%d" % offset
        identity: bytes = self.queue + b":" + digits
        return b"".join(
            (
                _MESSAGE_ID,
                len(identity).to_bytes(2, "big"),
                identity,
                _OFFSET,
                len(digits).to_bytes(2, "big"),
                digits,
            )
        )


def delivery_runs(
    batch: Batch,
    first: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
    version: cython.int,
    topic: bytes,
    properties: bytes,
    offsets: OffsetProperties | None = None,
    qos: cython.int = 1,
    expiry_seconds: cython.uint = 0,
) -> list[PublishRun]:
    """Encode ``count`` messages of a batch from index ``first`` on as PUBLISH packets for
    subscribers of ``version``.

    ``topic``: the topic name; ``properties``: MQTT 5 properties shared by all, encoded, without
    length; ``expiry_seconds``: Message Expiry Interval, 0 for none; version 4 has neither. At
    ``qos`` 1 the packet identifiers are placeholders. ``offsets`` adds properties of each message's
    own (version 5): such runs are ``fixed``, one for each number of digits, since packets of a run
    are alike.

    Raises IndexError for messages that the batch does not have, ValueError for another QoS, a topic
    that is too long or a message too large for a packet.
    """
    runs: list[PublishRun] = []
    content: bytes = b""
    part: cython.Py_ssize_t
    if first < 0 or count < 1 or first > batch.count - count:
        raise IndexError(first)
    if qos != 0 and qos != 1:
        raise ValueError("a QoS that no delivery has")
    if len(topic) > _FIELD_MAX:
        raise ValueError("a topic that no packet can hold")
    head: bytes = len(topic).to_bytes(2, "big") + topic + (b"\0\1" if qos else b"")
    if version == 5:
        content = properties
        if expiry_seconds:
            content = b"\x02" + expiry_seconds.to_bytes(4, "big") + content
    if version != 5 or offsets is None:
        template = bytearray(head)
        if version == 5:
            template += encode_length(len(content)) + content
        run = _delivery(batch, first, count, version, topic, template, 0, qos)
        run.properties = content
        return [run]
    while count:
        offset = batch.base_offset + first
        own: bytes = content + offsets.encode(offset)
        digits: cython.int = len(b"%d" % offset)
        part = min(count, _TENS[digits] - offset)
        template = bytearray(head + encode_length(len(own)) + own)
        run = _delivery(batch, first, part, version, topic, template, digits, qos)
        run.properties = own
        run.fixed = True
        runs.append(run)
        first += part
        count -= part
    return runs


@cython.cfunc
def _delivery(
    batch: Batch,
    first: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
    version: cython.int,
    topic: bytes,
    template: bytearray,
    digits: cython.int,
    qos: cython.int,
) -> PublishRun:
    """Encode one run. ``template`` is the part between a packet's length and its payload; with
    ``digits`` it ends in that many digits of the offset, which are repeated ``_BETWEEN_DIGITS``
    bytes earlier."""
    variable: cython.Py_ssize_t = len(template)
    first_byte: cython.int = 0x30 | (qos << 1)
    ends: Octets
    source: Octets
    index: cython.Py_ssize_t
    begin: cython.Py_ssize_t
    before: cython.Py_ssize_t
    end: cython.Py_ssize_t
    size: cython.Py_ssize_t
    largest: cython.Py_ssize_t = 0
    smallest: cython.Py_ssize_t = _REMAINING_MAX
    total: cython.Py_ssize_t = 0
    out: bytes
    if cython.compiled:
        source = cython.cast(cython.p_uchar, PyBytes_AS_STRING(batch.data))
        ends = source + batch.payload_ends_at + 4 * first
        begin = before = read_i32(ends)
        for index in range(1, count + 1):
            end = read_i32(ends + 4 * index)
            size = variable + end - before
            before = end
            if size > largest:
                largest = size
            if size < smallest:
                smallest = size
            total += size + _header_length(size)
        _fit(largest)
        out = PyBytes_FromStringAndSize(cython.NULL, total)
        _write(
            cython.cast(cython.p_uchar, PyBytes_AS_STRING(out)),
            ends,
            source + batch.payloads_at,
            count,
            first_byte,
            template,
            digits,
        )
        size = read_i32(ends + 4) - begin + variable
    else:
        places = struct.unpack_from(f"<{count + 1}i", batch.data, batch.payload_ends_at + 4 * first)
        sizes = [variable + end - begin for begin, end in pairwise(places)]
        largest = max(sizes)
        smallest = min(sizes)
        _fit(largest)
        out = _written_uncompiled(batch, places, sizes, first_byte, template, digits)
        size = sizes[0]
    return _run_over(out, count, version, first_byte, variable, size, smallest, largest, topic)


@cython.cfunc
def _run_over(
    out: bytes,
    count: cython.Py_ssize_t,
    version: cython.int,
    first_byte: cython.int,
    variable: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
    smallest: cython.Py_ssize_t,
    largest: cython.Py_ssize_t,
    topic: bytes,
) -> PublishRun:
    """Return the run of these packets; the first has a content of ``size`` bytes."""
    whole: cython.Py_ssize_t = largest + _header_length(largest)
    run: PublishRun = PublishRun(
        out,
        0,
        len(out),
        count,
        whole if largest == smallest else 0,
        version,
        first_byte,
        variable,
        _header_length(size) + 2 + len(topic) if first_byte & 6 else 0,
        whole,
        topic,
    )
    run.kept = True
    return run


@cython.cfunc
def _fit(largest: cython.Py_ssize_t) -> cython.int:
    """Raise ValueError for a packet too large for its length field."""
    if largest > _REMAINING_MAX:
        raise ValueError("a message that no packet can hold")
    return 0


@cython.cfunc
@cython.inline
def _header_length(size: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Return the bytes before a packet's content of ``size`` bytes."""
    return 2 if size < 128 else 3 if size < 16384 else 4 if size < 2097152 else 5


if cython.compiled:

    @cython.cfunc
    def _write(
        target: cython.p_uchar,
        ends: cython.p_uchar,
        payloads: cython.p_uchar,
        count: cython.Py_ssize_t,
        first_byte: cython.int,
        template: bytearray,
        digits: cython.int,
    ) -> cython.int:
        """Write the packets of ``_delivery``; increments the digits in the template."""
        variable: cython.Py_ssize_t = len(template)
        fixed: cython.p_uchar = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(template))
        number: cython.p_uchar = fixed + variable - digits
        again: cython.p_uchar = number - digits - cython.cast(cython.Py_ssize_t, _BETWEEN_DIGITS)
        place: cython.p_uchar
        begin: cython.Py_ssize_t = read_i32(ends)
        end: cython.Py_ssize_t
        length: cython.Py_ssize_t
        index: cython.Py_ssize_t
        for index in range(1, count + 1):
            end = read_i32(ends + 4 * index)
            length = variable + end - begin
            target[0] = first_byte
            target += 1
            while length >= 128:
                target[0] = length & 0x7F | 0x80
                target += 1
                length >>= 7
            target[0] = length
            target += 1
            memcpy(target, fixed, variable)
            target += variable
            memcpy(target, payloads + begin, end - begin)
            target += end - begin
            begin = end
            if digits and index < count:
                place = fixed + variable - 1
                while place[0] == 57:
                    place[0] = 48
                    place -= 1
                place[0] += 1
                memcpy(again, number, digits)
        return 0


def _written_uncompiled(
    batch: Batch,
    places: tuple[int, ...],
    sizes: list[int],
    first_byte: cython.int,
    template: bytearray,
    digits: cython.int,
) -> bytes:
    """Return the packets of ``_delivery``, made with slices and one join."""
    view = memoryview(batch.data)
    payloads = [
        view[batch.payloads_at + begin : batch.payloads_at + end] for begin, end in pairwise(places)
    ]
    heads = {size: bytes((first_byte,)) + encode_length(size) for size in set(sizes)}
    fixed = bytes(template)
    pieces: list[bytes | memoryview] = []
    if not digits:
        for size, payload in zip(sizes, payloads, strict=True):
            pieces += (heads[size], fixed, payload)
        return b"".join(pieces)
    number = int(fixed[-digits:])
    front = fixed[: -2 * digits - _BETWEEN_DIGITS]
    between = fixed[-digits - _BETWEEN_DIGITS : -digits]
    for size, payload in zip(sizes, payloads, strict=True):
        text = b"%d" % number
        pieces += (heads[size], front, text, between, text, payload)
        number += 1
    return b"".join(pieces)

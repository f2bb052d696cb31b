"""Runs of messages and how they are written for subscribers.

A run is a stretch of PUBLISH wire bytes whose packets share topic, QoS, flags and properties. It is
the unit of routing, queueing and transfer between shards: one object for up to thousands of
messages. While it is routed it refers to the shard's receive buffer; to keep it, call ``detach``
first, which copies its bytes once.

Subscribers that need exactly these bytes (same protocol version, QoS 0 or new packet identifiers
only) get copies of the slice; for all others it is rewritten from topic, properties and the bodies
found by walking.

Source: MQTT 3.1.1 and 5.0 section 3.3 (PUBLISH), 3.4 (PUBACK).
"""

from __future__ import annotations

from typing import Any, Final

import cython

if cython.compiled:
    from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING, PyByteArray_Resize
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING
    from cython.cimports.fluxmq.model.octets import Octets, Writable, pointer
    from cython.cimports.libc.string import memcpy
else:
    from fluxmq.model.octets import Octets, Writable, pointer

HIGH: Final = bytes(number >> 8 for number in range(65536))
LOW: Final = bytes(number & 0xFF for number in range(65536))
"""The low bytes of all packet identifiers, in order, for slices."""
_NO_PROPERTIES = b"\x00"


class PublishRun:
    """Neighbouring PUBLISH packets with equal topic, QoS, flags and properties.

    ``buffer[start:end]`` holds ``count`` packets of protocol ``version`` (4 or 5), all ``stride``
    bytes long unless that is 0, the largest ``largest`` bytes long. ``variable`` is the length of
    topic, packet identifier and properties on the wire, ``pid_at`` the offset of the packet
    identifier within the first packet (0 at QoS 0). ``topic`` and ``properties`` (encoded, without
    length, alias, expiry) go to subscribers. ``verbatim``: the bytes may be copied unchanged to a
    subscriber of the same version. ``deadline``: monotonic seconds after which the messages have
    expired, 0 for never. ``publisher``: identity of the publishing session, for no-local.
    ``fixed``: every packet carries properties of its own, so that the bytes are only ever copied.
    ``control``: the run was a command to the broker and is not routed. ``options``: its publisher's
    options for queues, None for none. ``identity``: the life of the shard that the messages were
    published to, and the first one's number there; None until it is needed.
    """

    def __init__(
        self,
        buffer: bytes | bytearray,
        start: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        count: cython.Py_ssize_t,
        stride: cython.Py_ssize_t,
        version: cython.int,
        first: cython.int,
        variable: cython.Py_ssize_t,
        pid_at: cython.Py_ssize_t,
        largest: cython.Py_ssize_t,
        topic: bytes,
    ) -> None:
        self.buffer = buffer
        self.start = start
        self.end = end
        self.count = count
        self.stride = stride
        self.version = version
        self.qos = (first >> 1) & 3
        self.retain = first & 1
        self.variable = variable
        self.pid_at = pid_at
        self.largest = largest
        self.topic = topic
        self.properties = b""
        self.verbatim = (first & 9) == 0
        self.kept = False
        self.deadline = 0.0
        self.publisher: Any = None
        self.fixed = False
        self.control = False
        self.options: Any = None
        self.identity: tuple[int, int] | None = None
        self._plain: dict[int, bytes] | None = None

    def detach(self) -> cython.int:
        """Copy the bytes out of a buffer that will be reused; a repeated call is cheap."""
        if not self.kept:
            if cython.compiled:
                self.buffer = PyByteArray_AS_STRING(self.buffer)[self.start : self.end]
            else:
                self.buffer = bytes(memoryview(self.buffer)[self.start : self.end])
            self.end -= self.start
            self.start = 0
            self.kept = True
        return 0

    def part(
        self, offset: cython.Py_ssize_t, end: cython.Py_ssize_t, count: cython.Py_ssize_t
    ) -> PublishRun:
        """Return a run of ``count`` of this one's packets, from byte ``offset`` to ``end``, sharing
        the bytes; its identity is that of this one's first."""
        piece: PublishRun = PublishRun(
            self.buffer,
            offset,
            end,
            count,
            self.stride,
            self.version,
            0x30 | (self.qos << 1) | self.retain,
            self.variable,
            self.pid_at,
            self.largest,
            self.topic,
        )
        piece.properties = self.properties
        piece.verbatim = self.verbatim
        piece.kept = self.kept
        piece.deadline = self.deadline
        piece.publisher = self.publisher
        piece.fixed = self.fixed
        piece.options = self.options
        piece.identity = self.identity
        return piece

    def skip(self, offset: cython.Py_ssize_t, count: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Return the offset ``count`` packets after the one at ``offset``."""
        _index: cython.Py_ssize_t
        if self.stride:
            return offset + count * self.stride
        for _index in range(count):
            offset = self.body_at(offset) + self.body_length
        return offset

    def body_at(self, offset: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Return where the payload of the packet at ``offset`` begins; its length goes to
        ``body_length``."""
        data: Octets
        header: cython.Py_ssize_t = 2
        length: cython.Py_ssize_t
        shift: cython.int = 7
        data = pointer(self.buffer) if cython.compiled else self.buffer
        length = data[offset + 1]
        if length & 0x80:
            length &= 0x7F
            while True:
                length |= (data[offset + header] & 0x7F) << shift
                header += 1
                if not data[offset + header - 1] & 0x80:
                    break
                shift += 7
        self.body_length = length - self.variable
        return offset + header + self.variable

    def payloads(self) -> list[bytes]:
        """Return copies of all payloads, for callers off the hot path."""
        offset: cython.Py_ssize_t = self.start
        place: cython.Py_ssize_t
        found: list[bytes] = []
        while offset < self.end:
            place = self.body_at(offset)
            offset = place + self.body_length
            found.append(bytes(self.buffer[place:offset]))
        return found

    def packet_ids(self) -> list[int]:
        """Return every packet identifier, in order."""
        ranges = self.packet_id_ranges()
        return [each for first, count in ranges for each in range(first, first + count)]

    def packet_id_ranges(self) -> list[tuple[int, int]]:
        """Return the packet identifiers, in order, as ranges: the first and how many."""
        offset: cython.Py_ssize_t = self.start
        _index: cython.Py_ssize_t
        place: cython.Py_ssize_t
        before_body: cython.Py_ssize_t
        pid: cython.Py_ssize_t
        first: cython.Py_ssize_t = 0
        size: cython.Py_ssize_t = 0
        data: Octets
        found: list[tuple[int, int]] = []
        data = pointer(self.buffer) if cython.compiled else self.buffer
        before_body = self.body_at(offset) - offset - self.pid_at
        for _index in range(self.count):
            if self.stride:
                place = offset + self.pid_at
                offset += self.stride
            else:
                place = self.body_at(offset)
                offset = place + self.body_length
                place -= before_body
            pid = (data[place] << 8) | data[place + 1]
            if size and pid == first + size:
                size += 1
            else:
                if size:
                    found.append((first, size))
                first = pid
                size = 1
        found.append((first, size))
        return found

    def plain(self, version: cython.int) -> bytes:
        """Return the run written for QoS 0 and ``version`` without extras; made once, shared by
        subscribers."""
        if self._plain is None:
            self._plain = {}
        encoded: bytes | None = self._plain.get(version)
        if encoded is None:
            out = bytearray()
            append_publishes(
                out,
                self,
                self.start,
                self.count,
                0x30,
                self.topic,
                properties_field(version, self.properties, 0, 0, b""),
                0,
            )
            encoded = self._plain[version] = bytes(out)
        return encoded


def message_run(
    topic: bytes,
    payload: bytes,
    qos: cython.int,
    retain: cython.int,
    properties: bytes = b"",
    deadline: cython.double = 0.0,
) -> PublishRun:
    """Return a run of one message made by the broker: a will, a retained message, a system topic.

    It has 3.1.1's form; ``properties`` (encoded, without length) are added when it is written for a
    subscriber of version 5.
    """
    variable: cython.Py_ssize_t = 2 + len(topic) + (2 if qos else 0)
    first: cython.int = 0x30 | (qos << 1) | retain
    front: bytes = bytes((first,)) + encode_length(variable + len(payload))
    pid_at: cython.Py_ssize_t = len(front) + 2 + len(topic) if qos else 0
    data: bytes = (
        front + len(topic).to_bytes(2, "big") + topic + (b"\0\1" if qos else b"") + payload
    )
    size: cython.Py_ssize_t = len(data)
    run: PublishRun = PublishRun(data, 0, size, 1, size, 4, first, variable, pid_at, size, topic)
    run.kept = True
    run.properties = properties
    run.deadline = deadline
    if properties:
        run.verbatim = False
        run.largest += len(properties)
    return run


def properties_field(
    version: cython.int,
    forward: bytes,
    expiry: cython.long,
    alias: cython.int,
    subscription_ids: bytes,
) -> bytes:
    """Encode the properties of a PUBLISH with their length; empty in version 4.

    ``forward``: properties to pass on, encoded. ``expiry``: seconds left plus one, 0 for no expiry.
    ``alias``: topic alias, 0 for none. ``subscription_ids``: encoded Subscription Identifier
    properties.
    """
    content: bytes = forward
    length: cython.Py_ssize_t
    if version != 5:
        return b""
    if expiry:
        content = b"\x02" + (expiry - 1).to_bytes(4, "big") + content
    if alias:
        content = b"\x23" + alias.to_bytes(2, "big") + content
    if subscription_ids:
        content = content + subscription_ids
    length = len(content)
    if length == 0:
        return _NO_PROPERTIES
    return encode_length(length) + content


def encode_length(length: cython.Py_ssize_t) -> bytes:
    """Encode ``length`` as a variable byte integer. Source: MQTT 5.0 section 1.5.5."""
    if length < 128:
        return bytes((length,))
    if length < 16384:
        return bytes((length & 0x7F | 0x80, length >> 7))
    if length < 2097152:
        return bytes((length & 0x7F | 0x80, length >> 7 & 0x7F | 0x80, length >> 14))
    return bytes(
        (length & 0x7F | 0x80, length >> 7 & 0x7F | 0x80, length >> 14 & 0x7F | 0x80, length >> 21)
    )


def append_publishes(
    out: bytearray,
    run: PublishRun,
    offset: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
    first: cython.int,
    topic: bytes,
    properties: bytes,
    pid: cython.int,
) -> cython.Py_ssize_t:
    """Rewrite ``count`` of the run's messages at the end of ``out``.

    ``offset``: byte offset of the first of them in the run's buffer. ``first``: the first byte to
    write. ``topic``: the topic to write, empty beside an alias. ``properties``: with length, empty
    in version 4. ``pid``: the first packet identifier, incremented for later ones; 0 at QoS 0.
    Returns the offset after the last message read.
    """
    fixed: cython.Py_ssize_t = 2 + len(topic) + len(properties) + (2 if pid else 0)
    topic_length: cython.Py_ssize_t = len(topic)
    properties_length: cython.Py_ssize_t = len(properties)
    length: cython.Py_ssize_t
    body: cython.Py_ssize_t
    _index: cython.Py_ssize_t
    used: cython.Py_ssize_t
    target: Writable
    source: Octets
    if cython.compiled:
        source = pointer(run.buffer)
        used = len(out)
        # Upper bound of the growth: every packet gets the new fixed part and at most five header bytes.
        length = run.end - offset + count * (5 + fixed)
        PyByteArray_Resize(out, used + length)
        target = pointer(out) + used
        for _index in range(count):
            body = run.body_at(offset)
            length = fixed + run.body_length
            target[0] = first
            target += 1
            while length >= 128:
                target[0] = length & 0x7F | 0x80
                target += 1
                length >>= 7
            target[0] = length
            target[1] = topic_length >> 8
            target[2] = topic_length & 0xFF
            target += 3
            memcpy(target, PyBytes_AS_STRING(topic), topic_length)
            target += topic_length
            if pid:
                target[0] = pid >> 8
                target[1] = pid & 0xFF
                target += 2
                pid += 1
            if properties_length:
                memcpy(target, PyBytes_AS_STRING(properties), properties_length)
                target += properties_length
            memcpy(target, source + body, run.body_length)
            target += run.body_length
            offset = body + run.body_length
        PyByteArray_Resize(out, target - pointer(out))
        return offset
    return _append_publishes_uncompiled(out, run, offset, count, first, topic, properties, pid)


def _append_publishes_uncompiled(
    out: bytearray,
    run: PublishRun,
    offset: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
    first: cython.int,
    topic: bytes,
    properties: bytes,
    pid: cython.int,
) -> cython.Py_ssize_t:
    """Do the same with slices and one join; equal sizes need no walk."""
    view = memoryview(run.buffer)
    name = len(topic).to_bytes(2, "big") + topic
    fixed = len(name) + len(properties) + (2 if pid else 0)
    pieces: list[bytes | memoryview] = []
    if run.stride:
        body = run.body_at(offset)
        size = run.body_length
        head = bytes((first,)) + encode_length(fixed + size) + name
        stride = run.stride
        for place in range(body, body + count * stride, stride):
            if pid:
                pieces += (head, pid.to_bytes(2, "big"), properties, view[place : place + size])
                pid += 1
            else:
                pieces += (head, properties, view[place : place + size])
        out += b"".join(pieces)
        return offset + count * stride
    for _ in range(count):
        body = run.body_at(offset)
        size = run.body_length
        pieces += (bytes((first,)), encode_length(fixed + size), name)
        if pid:
            pieces.append(pid.to_bytes(2, "big"))
            pid += 1
        pieces += (properties, view[body : body + size])
        offset = body + size
    out += b"".join(pieces)
    return offset


def append_numbered(
    out: bytearray,
    run: PublishRun,
    offset: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
    first: cython.int,
    pid: cython.int,
) -> cython.Py_ssize_t:
    """Copy ``count`` packets of a run of QoS 1 or 2 with a new first byte and identifiers."""
    end: cython.Py_ssize_t = run.skip(offset, count)
    used: cython.Py_ssize_t = len(out)
    _index: cython.Py_ssize_t
    place: cython.Py_ssize_t
    stride: cython.Py_ssize_t = run.stride
    topic_size: cython.Py_ssize_t
    target: Writable
    if cython.compiled:
        PyByteArray_Resize(out, used + end - offset)
        target = pointer(out) + used
        memcpy(target, pointer(run.buffer) + offset, end - offset)
    else:
        out += memoryview(run.buffer)[offset:end]
        target = out
    if stride:
        place = run.pid_at
        if cython.compiled:
            for _index in range(count):
                target[0] = first
                target[place] = pid >> 8
                target[place + 1] = pid & 0xFF
                pid += 1
                target += stride
        else:
            out[used::stride] = bytes((first,)) * count
            out[used + place :: stride] = HIGH[pid : pid + count]
            out[used + place + 1 :: stride] = LOW[pid : pid + count]
        return end
    topic_size = 2 + len(run.topic)
    place = offset
    for _index in range(count):
        if cython.compiled:
            target[place - offset] = first
        else:
            target[used + place - offset] = first
        place = run.body_at(place)
        if cython.compiled:
            target[place - run.variable + topic_size - offset] = pid >> 8
            target[place - run.variable + topic_size + 1 - offset] = pid & 0xFF
        else:
            target[used + place - run.variable + topic_size - offset] = pid >> 8
            target[used + place - run.variable + topic_size + 1 - offset] = pid & 0xFF
        pid += 1
        place += run.body_length
    return end


def append_acknowledgements(out: bytearray, run: PublishRun, first: cython.int) -> cython.int:
    """Answer every packet of a run of QoS 1 or 2 with a four-byte packet of type ``first``."""
    used: cython.Py_ssize_t = len(out)
    count: cython.Py_ssize_t = run.count
    index: cython.Py_ssize_t
    offset: cython.Py_ssize_t = run.start
    place: cython.Py_ssize_t
    after_topic: cython.Py_ssize_t
    target: Writable
    source: Octets
    if not cython.compiled and run.stride:
        place = run.start + run.pid_at
        out += bytes(4 * count)
        out[used::4] = bytes((first,)) * count
        out[used + 1 :: 4] = b"\x02" * count
        out[used + 2 :: 4] = run.buffer[place : run.end : run.stride]
        out[used + 3 :: 4] = run.buffer[place + 1 : run.end : run.stride]
        return 0
    if cython.compiled:
        PyByteArray_Resize(out, used + 4 * count)
        target = pointer(out) + used
        source = pointer(run.buffer)
    else:
        source = run.buffer
    after_topic = run.pid_at - (run.body_at(offset) - run.variable - offset)
    for index in range(count):
        place = run.body_at(offset)
        offset = place + run.body_length
        place += after_topic - run.variable
        if cython.compiled:
            target[4 * index] = first
            target[4 * index + 1] = 2
            target[4 * index + 2] = source[place]
            target[4 * index + 3] = source[place + 1]
        else:
            out += bytes((first, 2, source[place], source[place + 1]))
    return 0

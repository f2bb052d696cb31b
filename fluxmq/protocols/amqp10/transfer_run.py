"""Runs of transfers as they come, and messages of them that differ in nothing but payload, ids and
creation time.

A `TransferRun` is a stretch of a connection's bytes with consecutive single-frame transfers of one
link, with delivery ids one apart. A `MessageShape` is made of a message that was checked; it tells
how many messages of a run need no check of their own, and makes of these a run to publish: with one
property block for all if their sections are equal, else with a block for each, into which the
message's own id, correlation id and creation time are put as they came. Knows nothing of links,
exchanges or permissions.

Longer than 500 lines because a run and the shape that divides it are one scanner over the same bytes.

Source: OASIS AMQP 1.0 part 2, section 2.7.5 (transfer), part 3, section 3.2 (message format).
"""

from __future__ import annotations

import struct
from array import array

import cython

from fluxmq.model.amqp10_values import AmqpValueError, end_of

if cython.compiled:
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
    from cython.cimports.fluxmq.model.network_order import load_u16, load_u32, store_u64
    from cython.cimports.fluxmq.model.octets import Octets, pointer, write_u32
    from cython.cimports.libc.string import memcmp, memcpy, memset
else:
    from fluxmq.model.network_order import load_u16, load_u32
    from fluxmq.model.octets import Octets, pointer

RUN_MAX = 4096
"""Transfers of one run: as many as a batch has messages."""
TRANSFER_BYTES_MIN = 24
"""Bytes of the shortest frame with a transfer and a message."""
DATA_BYTES = 4
"""Descriptor and constructor of a data section, which end a message's front."""

# The same for C, typed in the declarations: public names are looked up as Python's.
_RUN_MAX = RUN_MAX
_BYTES_MIN = TRANSFER_BYTES_MIN
_DATA = DATA_BYTES
_HEAD = 19
_FRAME = 7
"""Bytes before a payload in the form of AMQP 0.9.1: a content header's frame, the head of a body's."""

_NULL = 0x40
_TRUE = 0x41
_FALSE = 0x42
_ZERO = 0x43
_FIELDS_MAX = 11
_MODE = 6
_STATE = 7
"""Numbers of the fields after ``settled`` that are no booleans."""
_BATCHABLE = 10
"""Number of the one field after ``more`` that may be true."""
_ID = 0
_CORRELATION = 5
_CREATION = 9
"""Numbers of the properties in which messages of a run may differ."""


class TransferRun:
    """Transfers of one link: ``count``, on ``channel`` and ``handle``, with ids from ``first`` on, all
    ``settled`` or none. ``largest``: bytes of the largest message.

    ``places``: of each, where its message begins, where its frame ends, and, once a shape matched it,
    where its payload begins; in ``buffer``, whose bytes are valid while the run is handled.
    """

    def __init__(self) -> None:
        self.places = array("i", bytes(12 * RUN_MAX))
        self.buffer: bytes | bytearray = b""
        self.start = 0
        self.count = 0
        self.channel = 0
        self.handle = 0
        self.first = 0
        self.settled = False
        self.largest = 0
        self._number = 0
        self._handle = 0
        self._delivery = 0
        self._settled = False

    def read(
        self,
        buffer: bytes | bytearray,
        at: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        frame_max: cython.Py_ssize_t,
    ) -> cython.Py_ssize_t:
        """Read the transfers in whole frames from ``at`` on; return their number, 0 if the first one
        is of another form."""
        data: Octets
        size: cython.Py_ssize_t
        channel: cython.int
        sections: cython.Py_ssize_t
        count: cython.Py_ssize_t = 0
        self.buffer = buffer
        self.start = at
        self.largest = 0
        data = pointer(buffer) if cython.compiled else buffer
        while count < _RUN_MAX and at + _BYTES_MIN <= end:
            size = load_u32(data, at)
            if size > frame_max or size > end - at or size < _BYTES_MIN:
                break
            if data[at + 4] != 2 or data[at + 5] != 0:
                break
            channel = load_u16(data, at + 6)
            sections = self._envelope(buffer, at + 8, at + size)
            if sections < 0:
                break
            if count == 0:
                self.channel = channel
                self.handle = self._handle
                self.first = self._delivery
                self.settled = self._settled
            elif (
                channel != self.channel
                or self._handle != self.handle
                or self._delivery != (self.first + count) & 0xFFFFFFFF
                or self._settled != self.settled
            ):
                break
            at += size
            self.places[3 * count] = sections
            self.places[3 * count + 1] = at
            if at - sections > self.largest:
                self.largest = at - sections
            count += 1
        self.count = count
        return count

    def begin(self, index: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Return where a transfer's frame begins."""
        return self.places[3 * index - 2] if index else self.start

    def end(self, index: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Return where a transfer's frame ends."""
        return self.places[3 * index + 1]

    def message(self, index: cython.Py_ssize_t) -> bytes:
        """Return a copy of a transfer's message."""
        start: cython.Py_ssize_t = self.places[3 * index]
        return bytes(memoryview(self.buffer)[start : self.end(index)])

    def _envelope(  # noqa: C901 - one C function
        self, buffer: bytes | bytearray, at: cython.Py_ssize_t, end: cython.Py_ssize_t
    ) -> cython.Py_ssize_t:
        """Read the performative of a whole, unsettled or settled message in the form that clients
        write; return where the message begins, -1 for another form."""
        data: Octets = pointer(buffer) if cython.compiled else buffer
        stop: cython.Py_ssize_t
        fields: cython.int
        field: cython.int
        code: cython.int
        if data[at] != 0 or data[at + 1] != 0x53 or data[at + 2] != 0x14 or data[at + 3] != 0xC0:
            return -1
        stop = at + 5 + data[at + 4]
        fields = data[at + 5]
        if stop > end or fields < 4 or fields > _FIELDS_MAX:
            return -1
        at = self._uint(buffer, at + 6, stop)
        if at < 0:
            return -1
        self._handle = self._number
        at = self._uint(buffer, at, stop)
        if at < 0 or at + 2 > stop or data[at] != 0xA0:
            return -1
        self._delivery = self._number
        at += 2 + data[at + 1]
        if at < stop and data[at] == _NULL:
            at += 1
        else:
            at = self._uint(buffer, at, stop)
            if at < 0 or self._number:
                return -1
        self._settled = False
        for field in range(4, fields):
            if at >= stop:
                return -1
            code = data[at]
            if code == _TRUE:
                if field == 4:
                    self._settled = True
                elif field != _BATCHABLE:
                    return -1
            elif code != _NULL and (code != _FALSE or field in (_MODE, _STATE)):
                return -1
            at += 1
        return at if at == stop else -1

    def _uint(
        self, buffer: bytes | bytearray, at: cython.Py_ssize_t, stop: cython.Py_ssize_t
    ) -> cython.Py_ssize_t:
        """Read a uint into ``_number``; return where it ends, -1 if there is none."""
        data: Octets = pointer(buffer) if cython.compiled else buffer
        code: cython.int
        if at >= stop:
            return -1
        code = data[at]
        if code == 0x52 and at + 2 <= stop:
            self._number = data[at + 1]
            return at + 2
        if code == 0x70 and at + 5 <= stop:
            self._number = load_u32(data, at + 1)
            return at + 5
        if code == _ZERO:
            self._number = 0
            return at + 1
        return -1


class MessageShape:
    """Messages that are like a checked one.

    ``front``: its bytes before the length of the payload, which end with the constructor of its one
    data section. ``head``: its property block up to the size of the last item, AMQP10; ``lead``: that
    item up to the properties section, which begins at ``properties_at`` in the front; -1: others have
    to be equal to it. ``varied``, ``payload_bytes``: of the messages that were matched last.
    ``payload_bytes``, ``largest``, ``stride``: of those that were framed last, as in a publish run.
    """

    def __init__(
        self, front: bytes, head: bytes = b"", lead: bytes = b"", properties_at: int = -1
    ) -> None:
        self.front = front
        self.head = head
        self.lead = lead
        self.wide = front.endswith(b"\xb0")
        self.properties_at = properties_at
        self.varied = False
        self.payload_bytes = 0
        self.largest = 0
        self.stride = 0
        self._fields = 0
        self._fields_behind = 0
        self._before = self._middle = self._behind = self._rest = b""
        if properties_at >= 0 and not self._divide(properties_at + 3):
            self.properties_at = -1

    def _divide(self, at: int) -> bool:
        """Divide the front at the fields that may differ; return False if there is no list at
        ``at``."""
        front = self.front
        wide = front[at] == 0xD0
        if not wide and front[at] != 0xC0:
            return False
        start = at + (9 if wide else 3)
        size, count = front[at + 1], front[at + 2]
        if wide:
            size, count = struct.unpack_from(">II", front, at + 1)
        end = at + size + (5 if wide else 2)
        places = [start]
        stop = start
        try:
            for _ in range(count):
                stop = end_of(front, stop, end)
                places.append(stop)
        except AmqpValueError:
            return False
        if stop != end:
            return False

        def place(field: int) -> int:
            return places[min(field, count)]

        self._fields = count
        self._before = front[: at + 1]
        self._middle = front[place(_ID + 1) : place(_CORRELATION)]
        self._behind = front[place(_CORRELATION + 1) : place(_CREATION)]
        self._rest = front[place(_CREATION + 1) :]
        self._fields_behind = end - place(_CREATION + 1)
        return True

    def extent(
        self, run: TransferRun, index: cython.Py_ssize_t, end: cython.Py_ssize_t
    ) -> cython.Py_ssize_t:
        """Return how many transfers of a run, from ``index`` on and before ``end``, have messages like
        this one."""
        start: cython.Py_ssize_t = index
        place: cython.Py_ssize_t
        stop: cython.Py_ssize_t
        total: cython.Py_ssize_t = 0
        self.varied = False
        while index < end:
            stop = run.places[3 * index + 1]
            place = self._payload_at(run.buffer, run.places[3 * index], stop)
            if place < 0:
                break
            run.places[3 * index + 2] = place
            total += stop - place
            index += 1
        self.payload_bytes = total
        return index - start

    def _payload_at(
        self, buffer: bytes | bytearray, at: cython.Py_ssize_t, end: cython.Py_ssize_t
    ) -> cython.Py_ssize_t:
        """Return where the payload of a message begins that ends at ``end``; -1 if the message is of
        another shape."""
        data: Octets
        size: cython.Py_ssize_t
        place: cython.Py_ssize_t = len(self.front)
        if place < end - at and _same(buffer, at, self.front):
            place += at
        else:
            place = self._walk(buffer, at, end) if self.properties_at >= 0 else -1
            if place < 0:
                return -1
            self.varied = True
        data = pointer(buffer) if cython.compiled else buffer
        if not self.wide:
            if place + 1 > end:
                return -1
            size = data[place]
            place += 1
        else:
            if place + 4 > end:
                return -1
            size = load_u32(data, place)
            place += 4
            if size <= 0xFF:
                return -1
        return place if place + size == end else -1

    def _walk(
        self, buffer: bytes | bytearray, at: cython.Py_ssize_t, end: cython.Py_ssize_t
    ) -> cython.Py_ssize_t:
        """Return where the length of the payload is due in a message whose id, correlation id and
        creation time may differ; -1 if it differs in more."""
        data: Octets = pointer(buffer) if cython.compiled else buffer
        place: cython.Py_ssize_t = at + self.properties_at + 3
        count: cython.Py_ssize_t
        stop: cython.Py_ssize_t
        if place + 9 > end or not _same(buffer, at, self._before):
            return -1
        if data[place] == 0xC0:
            stop = place + 2 + data[place + 1]
            count = data[place + 2]
            place += 3
        else:
            stop = place + 5 + cython.cast(cython.Py_ssize_t, load_u32(data, place + 1))
            count = load_u32(data, place + 5)
            place += 9
        if count != self._fields or stop > end:
            return -1
        if count > _ID:
            place = _id_end(buffer, place, stop)
        place = _past(buffer, place, stop, self._middle)
        if count > _CORRELATION:
            place = _id_end(buffer, place, stop)
        place = _past(buffer, place, stop, self._behind)
        if place >= 0 and count > _CREATION:
            if place + 9 <= stop and data[place] == 0x83:
                place += 9
            elif place < stop and data[place] == _NULL:
                place += 1
            else:
                return -1
        if place < 0 or place + self._fields_behind != stop:
            return -1
        return _past(buffer, place, end, self._rest)

    def framed(self, run: TransferRun, index: cython.Py_ssize_t, count: cython.Py_ssize_t) -> bytes:
        """Return copies of matched messages as a run to publish has them, each framed as in AMQP 0.9.1:
        zeros, the size where a content header has it, and a body frame. Sets what is told of them."""
        total: cython.Py_ssize_t = 0
        largest: cython.Py_ssize_t = 0
        least: cython.Py_ssize_t = -1
        size: cython.Py_ssize_t
        length: cython.Py_ssize_t = 0
        each: cython.Py_ssize_t
        for each in range(index, index + count):
            size = run.places[3 * each + 1] - run.places[3 * each + 2]
            total += size
            length += _HEAD + (_FRAME + size + 1 if size else 0)
            if size > largest:
                largest = size
            if least < 0 or size < least:
                least = size
        self.payload_bytes = total
        self.largest = largest
        self.stride = length // count if least == largest else 0
        return _framed(run, index, count, length)

    def blocks(
        self, run: TransferRun, index: cython.Py_ssize_t, count: cython.Py_ssize_t
    ) -> tuple[bytes, bytes]:
        """Return the column of where the property block of each matched message ends, and the
        blocks."""
        pieces: list[bytes | bytearray] = []
        ends: bytearray = bytearray(4 * (count + 1))
        each: cython.Py_ssize_t
        first: cython.Py_ssize_t
        last: cython.Py_ssize_t
        total: cython.Py_ssize_t = 0
        length: cython.Py_ssize_t
        size: bytes = b""
        known: cython.Py_ssize_t = -1
        width: cython.Py_ssize_t = _DATA + (4 if self.wide else 1)
        at: cython.Py_ssize_t = 0
        fixed: cython.Py_ssize_t = len(self.head) + len(self.lead)
        source: Octets
        target: Octets
        for each in range(index, index + count):
            length = run.places[3 * each + 2] - width - run.places[3 * each] - self.properties_at
            total += fixed + _size_bytes(len(self.lead) + length) + length
        if cython.compiled:
            source = pointer(run.buffer)
            area: bytes = PyBytes_FromStringAndSize(cython.NULL, total)
            target = pointer(area)
        for each in range(index, index + count):
            first = run.places[3 * each] + self.properties_at
            last = run.places[3 * each + 2] - width
            length = len(self.lead) + last - first
            if length != known:
                known = length
                size = _size(length)
            if cython.compiled:
                memcpy(target + at, PyBytes_AS_STRING(self.head), len(self.head))
                at += len(self.head)
                memcpy(target + at, PyBytes_AS_STRING(size), len(size))
                at += len(size)
                memcpy(target + at, PyBytes_AS_STRING(self.lead), len(self.lead))
                at += len(self.lead)
                memcpy(target + at, source + first, last - first)
                at += last - first
                write_u32(pointer(ends) + 4 * (each - index + 1), at)
            else:
                pieces += (self.head, size, self.lead, run.buffer[first:last])
                at += fixed + len(size) + last - first
                struct.pack_into("<i", ends, 4 * (each - index + 1), at)
        if cython.compiled:
            return bytes(ends), area
        return bytes(ends), b"".join(pieces)


@cython.cfunc
@cython.inline
def _same(buffer: bytes | bytearray, at: cython.Py_ssize_t, wanted: bytes) -> cython.bint:
    """Return whether these bytes are at a place; the caller knows that there are as many."""
    if cython.compiled:
        return memcmp(pointer(buffer) + at, PyBytes_AS_STRING(wanted), len(wanted)) == 0
    return buffer.startswith(wanted, at)


@cython.cfunc
@cython.inline
def _past(
    buffer: bytes | bytearray, at: cython.Py_ssize_t, end: cython.Py_ssize_t, wanted: bytes
) -> cython.Py_ssize_t:
    """Return the place behind these bytes if they are at ``at``; -1 if not, or if that is -1."""
    if at < 0 or at + len(wanted) > end or not _same(buffer, at, wanted):
        return -1
    return at + len(wanted)


@cython.cfunc
def _id_end(  # noqa: C901 - one C function
    buffer: bytes | bytearray, at: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Return where a message id or correlation id ends; -1 for none, for a string with more than
    ASCII, and if ``at`` is -1."""
    data: Octets = pointer(buffer) if cython.compiled else buffer
    code: cython.int
    start: cython.Py_ssize_t
    stop: cython.Py_ssize_t
    if at < 0 or at >= end:
        return -1
    code = data[at]
    start = at + 1
    if code == _NULL or code == 0x44:
        stop = start
    elif code == 0x53:
        stop = start + 1
    elif code == 0x80:
        stop = start + 8
    elif code == 0x98:
        stop = start + 16
    elif code == 0xA0 or code == 0xA1:
        if at + 2 > end:
            return -1
        start = at + 2
        stop = start + data[at + 1]
    elif code == 0xB0 or code == 0xB1:
        if at + 5 > end:
            return -1
        start = at + 5
        stop = start + cython.cast(cython.Py_ssize_t, load_u32(data, at + 1))
    else:
        return -1
    if stop > end:
        return -1
    if code & 1 and code > 0x98:
        if cython.compiled:
            while start < stop:
                if data[start] > 0x7F:
                    return -1
                start += 1
        else:
            return stop if bytes(memoryview(buffer)[start:stop]).isascii() else -1
    return stop


@cython.cfunc
def _size_bytes(size: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Return how many bytes the size of a block's item takes."""
    count: cython.Py_ssize_t = 1
    while size >= 0x80:
        size >>= 7
        count += 1
    return count


@cython.cfunc
def _size(size: cython.Py_ssize_t) -> bytes:
    """Return the size of a block's item: see `fluxmq.model.properties`."""
    out: bytearray = bytearray()
    while size >= 0x80:
        out.append(size & 0x7F | 0x80)
        size >>= 7
    out.append(size)
    return bytes(out)


@cython.cfunc
def _framed(
    run: TransferRun,
    index: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
    length: cython.Py_ssize_t,
) -> bytes:
    """Return the payloads of a run, each as the content of a publish of AMQP 0.9.1."""
    each: cython.Py_ssize_t
    place: cython.Py_ssize_t
    size: cython.Py_ssize_t
    source: Octets
    target: Octets
    if cython.compiled:
        source = pointer(run.buffer)
        made: bytes = PyBytes_FromStringAndSize(cython.NULL, length)
        target = pointer(made)
        for each in range(index, index + count):
            place = run.places[3 * each + 2]
            size = run.places[3 * each + 1] - place
            memset(target, 0, _HEAD)
            store_u64(target, _HEAD - 8, size)
            target += _HEAD
            if size:
                memset(target, 0, _FRAME)
                memcpy(target + _FRAME, source + place, size)
                target += _FRAME + size
                target[0] = 0
                target += 1
        return made
    parts: list[bytes | bytearray] = []
    for each in range(index, index + count):
        place = run.places[3 * each + 2]
        size = run.places[3 * each + 1] - place
        parts += (bytes(_HEAD - 8), size.to_bytes(8, "big"))
        if size:
            parts += (bytes(_FRAME), run.buffer[place : place + size], b"\0")
    return b"".join(parts)

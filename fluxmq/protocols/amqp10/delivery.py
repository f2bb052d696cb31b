"""Transfers to clients: messages as frames, split where they are larger than a frame.

The first frame has the delivery's id and tag, the others the handle alone. All have fields of fixed
widths. Deliveries are written straight from the batch, as many as a `DeliveryTemplate` is for: the
parts that they share are copied, and the sections in which they differ come from their property
blocks as they are.

Source: OASIS AMQP 1.0 part 2, sections 2.6.14 (transferring large messages) and 2.7.5 (transfer),
part 3, section 3.2 (message format).
"""

from __future__ import annotations

import struct

import cython

from fluxmq.model.batch_format import ATTRIBUTE_REDELIVERED, KEYS, PROPERTIES, Batch

if cython.compiled:
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
    from cython.cimports.fluxmq.model.batch_format import Batch
    from cython.cimports.fluxmq.model.network_order import load_u32 as load_size
    from cython.cimports.fluxmq.model.network_order import store_u16, store_u32, store_u64
    from cython.cimports.fluxmq.model.octets import Octets, load_i32, pointer, read_i32
    from cython.cimports.libc.string import memcmp, memcpy
else:
    from fluxmq.model.network_order import load_u32 as load_size
    from fluxmq.model.octets import Octets, load_i32, pointer

_FIRST_FRAME = struct.Struct(">IBBH6sBIBI2sIBBB")
_NEXT_FRAME = struct.Struct(">IBBH6sBI4sB")
_FIRST_LIST = b"\x00\x53\x14\xc0\x14\x06"
_NEXT_LIST = b"\x00\x53\x14\xc0\x0b\x06"
_UINT = 0x70
_TAG = b"\xa0\x04"
_NULLS = b"\x40\x40\x40\x40"
_TRUE = 0x41
_FALSE = 0x42
_FORMAT_0 = 0x43
FIRST_BYTES = 33
"""Bytes of a message's first frame besides the message."""
NEXT_BYTES = 24
"""The same of its other frames."""

# For C, typed in the declarations: public names are looked up as Python's.
_FIRST = FIRST_BYTES
_REDELIVERED = ATTRIBUTE_REDELIVERED
_KEYS = KEYS
_PROPERTIES = PROPERTIES
_LENGTH = struct.Struct(">I")


def transfer_frames(
    channel: int, handle: int, delivery: int, settled: bool, message: bytes, frame_max: int
) -> list[bytes]:
    """Return the frames of one delivery. Its id and its tag are both the serial ``delivery``.

    ``frame_max``: of the receiver, at least 512.
    """
    size = FIRST_BYTES + len(message)
    if size <= frame_max:
        return [_first(size, channel, handle, delivery, settled, False) + message]
    at = frame_max - FIRST_BYTES
    frames = [_first(frame_max, channel, handle, delivery, settled, True) + message[:at]]
    room = frame_max - NEXT_BYTES
    while at < len(message):
        part = message[at : at + room]
        at += room
        more = _TRUE if at < len(message) else _FALSE
        frames.append(
            _NEXT_FRAME.pack(
                NEXT_BYTES + len(part),
                2,
                0,
                channel,
                _NEXT_LIST,
                _UINT,
                handle,
                _NULLS,
                more,
            )
            + part
        )
    return frames


def _first(size: int, channel: int, handle: int, delivery: int, settled: bool, more: bool) -> bytes:
    """Return what precedes a message in its first frame."""
    return _FIRST_FRAME.pack(
        size,
        2,
        0,
        channel,
        _FIRST_LIST,
        _UINT,
        handle,
        _UINT,
        delivery,
        _TAG,
        delivery,
        _FORMAT_0,
        _TRUE if settled else _FALSE,
        _TRUE if more else _FALSE,
    )


class TransferForm:
    """The common part of a link's transfers: ``channel``, ``handle``, whether they are
    ``settled``, and ``frame_max``, the bytes of the largest frame that holds a whole message."""

    def __init__(
        self,
        channel: cython.int,
        handle: cython.uint,
        settled: cython.bint,
        frame_max: cython.Py_ssize_t,
    ) -> None:
        self.channel = channel
        self.handle = handle
        self.settled = settled
        self.frame_max = frame_max


class DeliveryTemplate:
    """Messages that are equal but for their payloads and, if there is a ``lead``, for the sections
    behind it in their property blocks.

    ``block``, ``key``: of the message that it was made of. ``front``: sections before those of the
    block; ``tail``: those, with which this block ends. ``head``: the block up to the size of its last
    item, ``lead``: that item up to its first section of properties; both empty if only equal blocks
    match. ``section``: what precedes the payload's length, empty if the payload is encoded;
    ``wide``: it has four bytes always; ``after``: sections behind the payload. ``expiry``: column of
    the messages, ``redelivered``: their mark. ``offset_at``: place in the front of the message's
    offset in its stream, of eight bytes; -1 for none.
    """

    def __init__(
        self,
        block: bytes,
        key: bytes,
        front: bytes,
        tail: bytes,
        head: bytes,
        lead: bytes,
        section: bytes,
        after: bytes,
    ) -> None:
        self.block = block
        self.key = key
        self.front = front
        self.tail = tail
        self.head = head
        self.lead = lead
        self.section = section
        self.after = after
        self.wide = False
        self.expiry = 0
        self.redelivered = False
        self.offset_at = -1
        self.count = 0
        self._tail_at = 0
        self._tail_bytes = 0

    def encode(
        self,
        batch: Batch,
        first: cython.Py_ssize_t,
        most: cython.Py_ssize_t,
        form: TransferForm,
        delivery: cython.uint,
        room: cython.Py_ssize_t,
    ) -> bytes:
        """Return transfers of the messages from index ``first`` on that match, each in one frame: at
        most ``most``, and as many as fill ``room`` bytes. ``count``: how many these are; 0: the first
        one does not match, or needs several frames.

        ``delivery``: id and tag of the first.
        """
        total: cython.Py_ssize_t = 0
        size: cython.Py_ssize_t
        count: cython.Py_ssize_t = 0
        if first < 0 or most < 0 or first + most > batch.count:
            raise IndexError(first)
        while count < most and total < room:
            size = self._size(batch, first + count)
            if size < 0 or size > form.frame_max:
                break
            total += size
            count += 1
        self.count = count
        if count == 0:
            return b""
        if cython.compiled:
            out: bytes = PyBytes_FromStringAndSize(cython.NULL, total)
            _write(self, pointer(out), batch, first, form, delivery)
            return out
        return _transfers_uncompiled(self, batch, first, form, delivery)

    def matches(self, batch: Batch, index: cython.Py_ssize_t) -> cython.bint:
        """Return whether a message is one of those that this is for."""
        return self._size(batch, index) >= 0

    def tail_of(self, batch: Batch, index: cython.Py_ssize_t) -> bytes:
        """Return the sections of a message's block, if it matches."""
        if not self._tail(batch, index):
            return b""
        return batch.data[self._tail_at : self._tail_at + self._tail_bytes]

    def _size(self, batch: Batch, index: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Return the bytes of a message's frame; -1 if the message does not match."""
        payload: cython.Py_ssize_t = batch.payload_length(index)
        if (batch.attributes(index) & _REDELIVERED != 0) != self.redelivered:
            return -1
        if batch.expiry(index) != self.expiry:
            return -1
        if not self._tail(batch, index):
            return -1
        size: cython.Py_ssize_t = _FIRST + len(self.front) + self._tail_bytes + payload
        if self.section:
            size += len(self.section) + (4 if self.wide or payload > 0xFF else 1)
        return size + len(self.after)

    def _tail(self, batch: Batch, index: cython.Py_ssize_t) -> cython.bint:
        """Find the sections of a message's block, ``_tail_at`` in the batch; return False if they do
        not fit."""
        data: bytes = batch.data
        at: cython.Py_ssize_t = batch.keys_at
        end: cython.Py_ssize_t = at + batch.key_bytes
        if batch.flags & _KEYS:
            end = at + load_i32(data, batch.key_ends_at + 4 * index + 4)
            at += load_i32(data, batch.key_ends_at + 4 * index)
        if not _is(data, at, end, self.key):
            return False
        at = batch.properties_at
        end = at + batch.property_bytes
        if batch.flags & _PROPERTIES:
            end = at + load_i32(data, batch.property_ends_at + 4 * index + 4)
            at += load_i32(data, batch.property_ends_at + 4 * index)
        if _is(data, at, end, self.block):
            self._tail_at = end - len(self.tail)
            self._tail_bytes = len(self.tail)
            return True
        if not self.head or not _begins(data, at, end, self.head):
            return False
        at = _sized(data, at + len(self.head), end)
        if at < 0 or not _begins(data, at, end, self.lead):
            return False
        at += len(self.lead)
        self._tail_at = at
        self._tail_bytes = end - at
        return _are_properties(data, at, end)


if cython.compiled:

    @cython.cfunc
    def _write(  # noqa: PLR0915 - one C function
        template: DeliveryTemplate,
        target: cython.p_uchar,
        batch: Batch,
        first: cython.Py_ssize_t,
        form: TransferForm,
        delivery: cython.uint,
    ) -> cython.int:
        """Write ``template.count`` messages from index ``first`` on, which match."""
        source: cython.p_uchar = cython.cast(cython.p_uchar, PyBytes_AS_STRING(batch.data))
        ends: cython.p_uchar = source + batch.payload_ends_at + 4 * first
        before: cython.Py_ssize_t = read_i32(ends)
        end: cython.Py_ssize_t
        size: cython.Py_ssize_t
        length: cython.Py_ssize_t
        begin: cython.p_uchar
        index: cython.Py_ssize_t
        for index in range(first, first + template.count):
            ends += 4
            end = read_i32(ends)
            size = end - before
            begin = target
            target[4] = 2
            target[5] = 0
            store_u16(target, 6, form.channel)
            memcpy(target + 8, PyBytes_AS_STRING(_FIRST_LIST), 6)
            target[14] = 0x70
            store_u32(target, 15, form.handle)
            target[19] = 0x70
            store_u32(target, 20, delivery)
            target[24] = 0xA0
            target[25] = 4
            store_u32(target, 26, delivery)
            target[30] = 0x43
            target[31] = 0x41 if form.settled else 0x42
            target[32] = 0x42
            target += _FIRST
            delivery += 1
            memcpy(target, PyBytes_AS_STRING(template.front), len(template.front))
            if template.offset_at >= 0:
                store_u64(target, template.offset_at, batch.base_offset + index)
            target += len(template.front)
            template._tail(batch, index)
            if template._tail_bytes:
                memcpy(target, source + template._tail_at, template._tail_bytes)
                target += template._tail_bytes
            if template.section:
                length = len(template.section)
                memcpy(target, PyBytes_AS_STRING(template.section), length)
                target += length
                if template.wide or size > 0xFF:
                    (target - 1)[0] |= 0x10
                    store_u32(target, 0, size)
                    target += 4
                else:
                    target[0] = size
                    target += 1
            memcpy(target, source + batch.payloads_at + before, size)
            target += size
            memcpy(target, PyBytes_AS_STRING(template.after), len(template.after))
            target += len(template.after)
            store_u32(begin, 0, target - begin)
            before = end
        return 0


def _transfers_uncompiled(
    template: DeliveryTemplate,
    batch: Batch,
    first: int,
    form: TransferForm,
    delivery: int,
) -> bytes:
    """Return ``template.count`` messages from index ``first`` on, which match, as transfers."""
    pieces: list[bytes] = []
    front, section, after = template.front, template.section, template.after
    for index in range(first, first + template.count):
        if template.offset_at >= 0:
            at = template.offset_at
            offset = (batch.base_offset + index).to_bytes(8, "big")
            front = front[:at] + offset + front[at + 8 :]
        payload = batch.payload(index)
        length = b""
        start = section
        if section:
            if template.wide or len(payload) > 0xFF:
                last = len(section) - 1
                start = section[:last] + bytes((section[last] | 0x10,))
                length = _LENGTH.pack(len(payload))
            else:
                length = bytes((len(payload),))
        message = front + template.tail_of(batch, index) + start + length + payload + after
        size = FIRST_BYTES + len(message)
        head = _first(size, form.channel, form.handle, delivery, form.settled, False)
        pieces += (head, message)
        delivery = (delivery + 1) & 0xFFFFFFFF
    return b"".join(pieces)


@cython.cfunc
@cython.inline
def _begins(
    data: bytes, at: cython.Py_ssize_t, end: cython.Py_ssize_t, wanted: bytes
) -> cython.bint:
    """Return whether ``data[at:end]`` begins with these bytes."""
    if end - at < len(wanted):
        return False
    if cython.compiled:
        return memcmp(PyBytes_AS_STRING(data) + at, PyBytes_AS_STRING(wanted), len(wanted)) == 0
    return data.startswith(wanted, at)


@cython.cfunc
@cython.inline
def _is(data: bytes, at: cython.Py_ssize_t, end: cython.Py_ssize_t, wanted: bytes) -> cython.bint:
    """Return whether ``data[at:end]`` is this."""
    return end - at == len(wanted) and _begins(data, at, end, wanted)


@cython.cfunc
def _sized(data: bytes, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Return where the content of a block's last item begins, whose size is at ``at``; -1 if it does
    not end at ``end``."""
    size: cython.Py_ssize_t = 0
    shift: cython.int = 0
    byte: cython.int
    while at < end and shift < 35:
        byte = data[at]
        size |= cython.cast(cython.Py_ssize_t, byte & 0x7F) << shift
        shift += 7
        at += 1
        if byte < 0x80:
            return at if at + size == end else -1
    return -1


@cython.cfunc
def _are_properties(data: bytes, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.bint:
    """Return whether these bytes are a section of properties, one of application properties, both or
    none, by their outer form."""
    if at < end and _begins(data, at, end, b"\x00\x53\x73"):
        at = _compound_end(data, at + 3, end, 0xC0)
    if 0 <= at < end and _begins(data, at, end, b"\x00\x53\x74"):
        at = _compound_end(data, at + 3, end, 0xC1)
    return at == end


@cython.cfunc
def _compound_end(
    data: bytes, at: cython.Py_ssize_t, end: cython.Py_ssize_t, code: cython.int
) -> cython.Py_ssize_t:
    """Return where a list or map ends whose short constructor is ``code``; -1 for other values."""
    octets: Octets = pointer(data)
    if at >= end:
        return -1
    if octets[at] == code and at + 2 <= end:
        at += 2 + octets[at + 1]
    elif octets[at] == code | 0x10 and at + 5 <= end:
        at += 5 + cython.cast(cython.Py_ssize_t, load_size(octets, at + 1))
    elif octets[at] == 0x45 and code == 0xC0:
        at += 1
    else:
        return -1
    return at if at <= end else -1

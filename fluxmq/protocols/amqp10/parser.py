"""Cuts a connection's bytes into protocol headers and frames, and passes them to its handler:
transfers as runs, outcomes of deliveries that were accepted as ranges, all others one by one.

Consecutive single-frame transfers of one link are a run, consecutive dispositions that accept
deliveries one after the other are a range; no object is made per message. What the handler does not
take this way it gets frame by frame, as well as all that has another form. A frame's performative
is decoded by the handler then. ``connection.version`` is 0 while a protocol header is due: at the
start, and again once SASL is over.

Source: OASIS AMQP 1.0 part 2, sections 2.2, 2.3, 2.7.5 (transfer) and 2.7.6 (disposition).
"""

from __future__ import annotations

import struct
from typing import Protocol

import cython

from fluxmq.protocols.amqp10.frames import AMQP_HEADER, HEADER_BYTES, SASL_HEADER, TLS_HEADER
from fluxmq.protocols.amqp10.transfer_run import TransferRun
from fluxmq.protocols.connection import Connection

if cython.compiled:
    from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING
    from cython.cimports.fluxmq.model.network_order import load_u16, load_u32
    from cython.cimports.fluxmq.model.octets import Octets, pointer
    from cython.cimports.fluxmq.protocols.amqp10.transfer_run import TransferRun
    from cython.cimports.fluxmq.protocols.connection import Connection
else:
    from fluxmq.model.network_order import load_u16, load_u32
    from fluxmq.model.octets import Octets, pointer

_FRAME = struct.Struct(">IBB")
_HEADERS = frozenset((AMQP_HEADER, SASL_HEADER, TLS_HEADER))

# For C, typed in the declarations: public names are looked up as Python's.
_HEAD = HEADER_BYTES
_TRANSFER = 0x14
_DISPOSITION = 0x15
_ACCEPTED = 0x24
_NULL = 0x40
_TRUE = 0x41
_FALSE = 0x42


def begins_amqp10(buffer: bytearray, end: int) -> bool:
    """Return whether ``buffer[:end]`` begins with a protocol header of AMQP 1.0: with SASL, TLS or
    neither."""
    return end >= HEADER_BYTES and bytes(memoryview(buffer)[:HEADER_BYTES]) in _HEADERS


class Amqp10Handler(Protocol):
    """Receiver of what the parser finds; ``connection.handler``."""

    def protocol_header(self, connection: Connection, header: bytes, /) -> object:
        """Handle eight bytes where a protocol header was due."""

    def frame(self, connection: Connection, kind: int, channel: int, body: bytes, /) -> object:
        """Handle a frame. ``body``: without its header; empty for a heartbeat."""

    def transfers(self, connection: Connection, run: TransferRun, index: int, /) -> int:
        """Take transfers of a run from ``index`` on; return how many were taken. The next one is
        passed as a frame then."""

    def accepted(self, connection: Connection, channel: int, first: int, last: int, /) -> bool:
        """Settle accepted deliveries with these ids; return False to get the frames instead."""

    def processed(self, connection: Connection, /) -> object:
        """Finish with the frames of one read."""

    def broken(self, connection: Connection, text: str, /) -> object:
        """Handle bytes that are no frame; later ones are ignored."""


class Amqp10Parser:
    """Passes the frames of any connection to its handler. ``capacity``: bytes of the receive
    buffer."""

    def __init__(self, capacity: cython.Py_ssize_t) -> None:
        self.capacity = capacity
        self._run = TransferRun()
        self._following = 0
        self._first = 0
        self._last = 0
        self._number = 0

    def process(  # noqa: C901 - one C function
        self, connection: Connection, buffer: bytearray, end: cython.Py_ssize_t
    ) -> cython.int:
        """Handle the frames in ``buffer[:end]``; the connection keeps incomplete bytes. Return
        0."""
        data: Octets
        at: cython.Py_ssize_t = 0
        size: cython.Py_ssize_t
        following: cython.Py_ssize_t
        singly: cython.Py_ssize_t = 0
        needed: cython.Py_ssize_t = 0
        kind: cython.int
        handler: Amqp10Handler = connection.handler
        while at < end:
            needed = _HEAD
            if end - at < _HEAD:
                break
            if connection.version == 0:
                following = at + _HEAD
                connection.version = 1
                handler.protocol_header(connection, _piece(buffer, at, following))
            else:
                data = pointer(buffer) if cython.compiled else buffer
                size = load_u32(data, at)
                if (
                    size > connection.frame_max
                    or data[at + 4] < 2
                    or 4 * data[at + 4] > size
                    or data[at + 5] > 1
                ):
                    handler.broken(connection, _wrong(buffer, at, connection.frame_max))
                    return 0
                if size > end - at:
                    needed = size
                    break
                following = at + size
                kind = 0
                if at >= singly and data[at + 4] == 2 and not data[at + 5] and size > _HEAD + 4:
                    kind = data[at + 10]
                if kind == _TRANSFER and self._run.read(buffer, at, end, connection.frame_max):
                    self._transfers(connection, handler, buffer)
                    following = self._following
                elif kind == _DISPOSITION and self._accepts(buffer, at, end, connection.frame_max):
                    following = self._following
                    if not handler.accepted(
                        connection, load_u16(data, at + 6), self._first, self._last
                    ):
                        singly = following
                        following = at
                else:
                    handler.frame(
                        connection,
                        data[at + 5],
                        load_u16(data, at + 6),
                        _piece(buffer, at + 4 * data[at + 4], following),
                    )
            at = following
            needed = 0
            if connection.fd < 0 or connection.closing:
                return 0
            if connection.paused:
                break
        handler.processed(connection)
        if at < end and connection.fd >= 0 and not connection.closing:
            connection.gather(buffer, at, end, needed, self.capacity)
        return 0

    def _transfers(
        self, connection: Connection, handler: Amqp10Handler, buffer: bytearray
    ) -> cython.int:
        """Pass on the transfers that were read."""
        run: TransferRun = self._run
        index: cython.Py_ssize_t = 0
        taken: cython.Py_ssize_t
        while index < run.count:
            taken = handler.transfers(connection, run, index)
            if taken == 0:
                piece: bytes = _piece(buffer, run.begin(index) + _HEAD, run.end(index))
                handler.frame(connection, 0, run.channel, piece)
                taken = 1
            index += taken
            if connection.fd < 0 or connection.closing or connection.paused:
                break
        self._following = run.end(index - 1)
        return 0

    def _accepts(
        self,
        buffer: bytearray,
        at: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        frame_max: cython.Py_ssize_t,
    ) -> cython.bint:
        """Read dispositions that settle deliveries as accepted, one range after the other; return
        False if the first one is none. Sets the range and where they end."""
        data: Octets = pointer(buffer) if cython.compiled else buffer
        size: cython.Py_ssize_t
        channel: cython.int = load_u16(data, at + 6)
        first: cython.uint = 0
        last: cython.uint = 0
        count: cython.Py_ssize_t = 0
        while at + _HEAD <= end:
            size = load_u32(data, at)
            if size > frame_max or size > end - at or size < _HEAD:
                break
            if data[at + 4] != 2 or data[at + 5] or load_u16(data, at + 6) != channel:
                break
            if not self._accepted(buffer, at + _HEAD, at + size):
                break
            if count == 0:
                first = self._first
            elif self._first != (last + 1) & 0xFFFFFFFF:
                break
            elif (self._last - first) & 0xFFFFFFFF > 0x7FFFFFFF:
                break  # more than serials can tell apart
            last = self._last
            count += 1
            at += size
        self._following = at
        self._first = first
        self._last = last
        return count > 0

    def _accepted(
        self, buffer: bytearray, at: cython.Py_ssize_t, end: cython.Py_ssize_t
    ) -> cython.bint:
        """Read a disposition of a receiver that accepts and settles deliveries; return False for any
        other."""
        data: Octets = pointer(buffer) if cython.compiled else buffer
        fields: cython.int
        first: cython.uint
        if end - at < 14 or data[at] or data[at + 1] != 0x53 or data[at + 2] != _DISPOSITION:
            return False
        fields = data[at + 5]
        if data[at + 3] != 0xC0 or at + 5 + data[at + 4] != end or fields < 5 or fields > 6:
            return False
        if data[at + 6] != _TRUE:
            return False
        at = self._uint(buffer, at + 7, end)
        if at < 0 or at >= end:
            return False
        first = self._number
        at = at + 1 if data[at] == _NULL else self._uint(buffer, at, end)
        if at < 0 or at + 5 > end:
            return False
        self._first = first
        self._last = self._number
        if data[at] != _TRUE or data[at + 1] or data[at + 2] != 0x53 or data[at + 3] != _ACCEPTED:
            return False
        if data[at + 4] == 0x45:
            at += 5
        elif at + 7 <= end and data[at + 4] == 0xC0 and data[at + 5] == 1 and not data[at + 6]:
            at += 7
        else:
            return False
        if fields == 6:
            if at >= end or data[at] < _NULL or data[at] > _FALSE:
                return False
            at += 1
        return at == end and (self._last - first) & 0xFFFFFFFF <= 0x7FFFFFFF

    def _uint(
        self, buffer: bytearray, at: cython.Py_ssize_t, end: cython.Py_ssize_t
    ) -> cython.Py_ssize_t:
        """Read a uint into ``_number``; return where it ends, -1 if there is none."""
        data: Octets = pointer(buffer) if cython.compiled else buffer
        if at >= end:
            return -1
        if data[at] == 0x52 and at + 2 <= end:
            self._number = data[at + 1]
            return at + 2
        if data[at] == 0x70 and at + 5 <= end:
            self._number = load_u32(data, at + 1)
            return at + 5
        if data[at] == 0x43:
            self._number = 0
            return at + 1
        return -1


@cython.cfunc
@cython.inline
def _piece(buffer: bytearray, start: cython.Py_ssize_t, end: cython.Py_ssize_t) -> bytes:
    """Return a copy of ``buffer[start:end]``."""
    if cython.compiled:
        return (PyByteArray_AS_STRING(buffer) + start)[: end - start]
    return bytes(memoryview(buffer)[start:end])


def _wrong(buffer: bytearray, at: int, largest: int) -> str:
    """Return what is wrong with a frame's header."""
    size, offset, kind = _FRAME.unpack_from(buffer, at)
    if size > largest:
        return f"a frame of {size} bytes, the maximum is {largest}"
    if offset < 2 or 4 * offset > size:
        return f"a frame of {size} bytes with its body at {4 * offset}"
    return f"a frame of the unknown type {kind}"

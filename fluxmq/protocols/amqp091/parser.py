"""Parses AMQP 0.9.1 frames: publishes as runs, acknowledgements as numbers, all others one by one.

Consecutive publishes whose frames are complete, each with at most one body frame, form a run; no
object is made per message. One cut off by the end of the received bytes is awaited as a whole.
Everything else goes to the handler frame by frame in order: methods, contents in several body
frames, contents interleaved with another channel's frames. A basic.ack of a channel with a ledger
is settled there. The parser checks what framing needs (type, size, end octet) and keeps no state
between calls; the handler knows what frames mean.

Source: AMQP 0-9-1 section 2.3.5 and 4.2.3 (frames), 4.2.6 (content), 4.2.7 (heartbeats).
"""

from __future__ import annotations

import cython

from fluxmq.protocols.amqp091.ledger import ChannelLedger
from fluxmq.protocols.amqp091.ports import AmqpHandler
from fluxmq.protocols.amqp091.run import AmqpPublishRun
from fluxmq.protocols.connection import Connection

if cython.compiled:
    from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING
    from cython.cimports.fluxmq.model.network_order import load_u16, load_u32, load_u64
    from cython.cimports.fluxmq.model.octets import Octets, pointer
    from cython.cimports.fluxmq.protocols.amqp091.ledger import ChannelLedger
    from cython.cimports.fluxmq.protocols.amqp091.run import AmqpPublishRun
    from cython.cimports.fluxmq.protocols.connection import Connection
    from cython.cimports.libc.string import memcmp
else:
    from fluxmq.model.network_order import load_u16, load_u32, load_u64
    from fluxmq.model.octets import Octets, pointer

FRAME_METHOD = 1
FRAME_HEADER = 2
FRAME_BODY = 3
FRAME_HEARTBEAT = 8
FRAME_END = 0xCE
FRAME_BYTES = 8
"""Bytes of a frame besides its payload: type, channel, size and the end octet."""
PROTOCOL_HEADER_BYTES = 8
"""Bytes of the protocol header that a client sends first, which is no frame."""
FRAME_ERROR = 501
UNEXPECTED_FRAME = 505
UNIFORM_RUN_MIN = 8
"""A run of equal sizes at least this long is closed when a publish of another size follows, so that
it keeps its ``stride``: equal sizes are copied without a walk."""
SNIPPET_BYTES = 16
"""Bytes of a bad frame's payload shown in the error's text."""

# The same for C, typed in the declarations: public names are looked up as Python's.
_METHOD = FRAME_METHOD
_BODY = FRAME_BODY
_HEARTBEAT = FRAME_HEARTBEAT
_END = FRAME_END
_FRAME = FRAME_BYTES

_BASIC_PUBLISH = 0x003C0028
_BASIC_ACK = 0x003C0050
_PUBLISH_BYTES_MIN = 9
_ACK_BYTES = 13
_HEADER_BYTES_MIN = 14

_ESCAPES = {
    8: "\\b",
    9: "\\t",
    10: "\\n",
    11: "\\v",
    12: "\\f",
    13: "\\r",
    27: "\\e",
    34: '\\"',
    92: "\\\\",
}

_HANDLED = -1
_SINGLE = 0
_HOLD = 1
_RUN = 2
_SETTLED = 3


class AmqpParser:
    """Passes the frames of any connection to its handler. ``capacity``: bytes of the receive
    buffer.

    ``needed``, ``run``: results of the last search for a run; ``following``: where the last run
    ended.
    """

    def __init__(self, capacity: cython.Py_ssize_t) -> None:
        self.capacity = capacity
        self.needed = 0
        self.following = 0
        self.run: AmqpPublishRun | None = None

    def process(  # noqa: C901, PLR0915 - one C function
        self, connection: Connection, buffer: bytearray, end: cython.Py_ssize_t
    ) -> cython.int:
        """Handle the frames in ``buffer[:end]``; the connection keeps incomplete bytes.

        A frame may carry ``connection.frame_max`` bytes: eight more than negotiated, as with
        RabbitMQ.
        """
        data: Octets
        at: cython.Py_ssize_t = 0
        size: cython.Py_ssize_t
        following: cython.Py_ssize_t
        needed: cython.Py_ssize_t = 0
        kind: cython.int
        channel: cython.int
        channel_known: cython.int = -1
        found: cython.int
        method: cython.uint
        ledger: ChannelLedger | None = None
        handler: AmqpHandler = connection.handler
        if connection.version == 0:
            at = self.protocol_header(connection, buffer, end)
            if at <= 0:
                return 0
        while at < end:
            needed = 0
            if end - at < _FRAME - 1:
                break
            data = pointer(buffer) if cython.compiled else buffer
            kind = data[at]
            channel = load_u16(data, at + 1)
            size = load_u32(data, at + 3)
            if size > connection.frame_max:
                return self.refuse(connection, buffer, at, end, "too_large")
            following = at + size + _FRAME
            if following > end:
                needed = size + _FRAME
                break
            if data[following - 1] != _END:
                return self.refuse(connection, buffer, at, end, "end")
            if kind == _METHOD and size >= _PUBLISH_BYTES_MIN:
                method = load_u32(data, at + 7)
                if method == _BASIC_PUBLISH or method == _BASIC_ACK:  # noqa: SIM109 - two comparisons of numbers
                    if channel != channel_known:
                        channel_known = channel
                        ledger = _ledger(connection, channel)
                    if ledger is not None and ledger.direct:
                        found = self.direct(connection, ledger, buffer, at, end, method)
                        if found == _HOLD:
                            needed = self.needed
                            break
                        if found == _SETTLED:
                            at = following
                            continue
                        if found == _RUN:
                            following = self.following
                            kind = _HANDLED
            elif kind == _HEARTBEAT and size == 0 and channel == 0:
                at = following
                continue
            if kind != _HANDLED:
                if kind < _METHOD or kind > _BODY:
                    return self.refuse(connection, buffer, at, end, "type")
                handler.frame(connection, kind, channel, _piece(buffer, at + 7, following - 1))
            # A handler may have opened or closed channels.
            channel_known = -1
            at = following
            if connection.fd < 0 or connection.closing:
                return 0
            if connection.paused:
                break
        if at < end:
            connection.gather(buffer, at, end, needed, self.capacity)
        return 0

    def direct(
        self,
        connection: Connection,
        ledger: ChannelLedger,
        buffer: bytearray,
        at: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        method: cython.uint,
    ) -> cython.int:
        """Handle the complete basic.ack or basic.publish at ``at`` without passing frames to the
        handler.

        _SETTLED: the ledger knew the acknowledgement. _RUN: the handler got a run, which ends at
        ``following``. _HOLD and _SINGLE as in ``publishes``.
        """
        data: Octets
        found: cython.int
        behind: cython.Py_ssize_t
        run: AmqpPublishRun | None
        if method == _BASIC_ACK:
            data = pointer(buffer) if cython.compiled else buffer
            if load_u32(data, at + 3) == _ACK_BYTES and ledger.acknowledge(
                load_u64(data, at + 11), data[at + 19] & 1 != 0
            ):
                return _SETTLED
            return _SINGLE
        if not ledger.publishing:
            return _SINGLE
        found = self.publishes(buffer, at, end, connection.frame_max)
        if found == _RUN:
            run = self.run
            self.run = None
            assert run is not None
            behind = run.end  # a run that is kept uses another buffer afterwards
            handler: AmqpHandler = connection.handler
            handler.publish_run(connection, run.channel, run)
            self.following = behind
        return found

    def protocol_header(
        self, connection: Connection, buffer: bytearray, end: cython.Py_ssize_t
    ) -> cython.Py_ssize_t:
        """Give the handler the protocol header. Return where the frames begin; 0 to stop."""
        header: bytes = _piece(buffer, 0, min(end, PROTOCOL_HEADER_BYTES))
        if len(header) < PROTOCOL_HEADER_BYTES:
            connection.gather(buffer, 0, end, PROTOCOL_HEADER_BYTES, self.capacity)
            return 0
        connection.version = 1
        handler: AmqpHandler = connection.handler
        handler.protocol_header(connection, header)
        if connection.fd < 0 or connection.closing:
            return 0
        if connection.paused:
            if end > PROTOCOL_HEADER_BYTES:
                connection.gather(buffer, PROTOCOL_HEADER_BYTES, end, 0, self.capacity)
            return 0
        return PROTOCOL_HEADER_BYTES

    def refuse(
        self,
        connection: Connection,
        buffer: bytearray,
        at: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        reason: str,
    ) -> cython.int:
        """Report an invalid frame to the handler; later bytes are ignored."""
        limit = connection.frame_max - _FRAME
        handler: AmqpHandler = connection.handler
        handler.broken(connection, *refusal(_piece(buffer, at, end), reason, limit))
        return 0

    def publishes(  # noqa: C901 - one C function
        self,
        buffer: bytearray,
        at: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        frame_max: cython.Py_ssize_t,
    ) -> cython.int:
        """Search for complete publishes from the complete method frame at ``at`` on.

        _RUN: they are in ``run``; _HOLD: the first is incomplete and has at least ``needed`` bytes;
        _SINGLE: its frames are to be handled one by one.
        """
        data: Octets
        size: cython.Py_ssize_t
        exchange: cython.Py_ssize_t
        key: cython.Py_ssize_t
        header: cython.Py_ssize_t
        body: cython.Py_ssize_t
        length: cython.ulonglong
        data = pointer(buffer) if cython.compiled else buffer
        size = load_u32(data, at + 3)
        exchange = data[at + 13]
        if _PUBLISH_BYTES_MIN + exchange > size:
            return _SINGLE
        key = data[at + 14 + exchange]
        if _PUBLISH_BYTES_MIN + exchange + key != size:
            return _SINGLE
        header = at + size + _FRAME
        # A frame that has only begun may turn out to be another: the next byte decides.
        self.needed = end - at + 1
        if not self.may_be(buffer, at, header, end, 2):
            return _SINGLE
        if header + 7 > end:
            return _HOLD
        size = load_u32(data, header + 3)
        if size < _HEADER_BYTES_MIN or size > frame_max:
            return _SINGLE
        body = header + size + _FRAME
        if body > end:
            self.needed = body - at
            return _HOLD
        if data[body - 1] != _END or load_u32(data, header + 7) != 0x003C0000:
            return _SINGLE
        length = load_u64(data, header + 11)
        if length:
            if length > cython.cast(cython.ulonglong, frame_max) or not self.may_be(
                buffer, at, body, end, _BODY
            ):
                return _SINGLE
            if body + 7 > end:
                self.needed = end - at + 1
                return _HOLD
            if load_u32(data, body + 3) != length:
                return _SINGLE
            if body + length + _FRAME > cython.cast(cython.ulonglong, end):
                self.needed = body + length + _FRAME - at
                return _HOLD
            if data[body + 7 + length] != _END:
                return _SINGLE
        self.run = self.run_from(buffer, at, end, frame_max, header, body, length)
        return _RUN

    def may_be(
        self,
        buffer: bytearray,
        at: cython.Py_ssize_t,
        place: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        kind: cython.int,
    ) -> cython.bint:
        """Return whether a frame of ``kind`` on the same channel as ``at`` may begin at
        ``place``."""
        if place < end and buffer[place] != kind:
            return False
        if place + 1 < end and buffer[place + 1] != buffer[at + 1]:
            return False
        return place + 2 >= end or buffer[place + 2] == buffer[at + 2]

    def run_from(
        self,
        buffer: bytearray,
        at: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        frame_max: cython.Py_ssize_t,
        header: cython.Py_ssize_t,
        body: cython.Py_ssize_t,
        length: cython.Py_ssize_t,
    ) -> AmqpPublishRun:
        """Return the run that begins with the complete publish at ``at``, of ``length`` bytes."""
        exchange: cython.Py_ssize_t = buffer[at + 13]
        exchange_at: cython.Py_ssize_t = at + 14
        key_at: cython.Py_ssize_t = exchange_at + exchange + 1
        run: AmqpPublishRun = AmqpPublishRun(
            buffer,
            at,
            body + length + _FRAME if length else body,
            (buffer[at + 1] << 8) | buffer[at + 2],
            _piece(buffer, exchange_at, exchange_at + exchange),
            _piece(buffer, key_at, header - 2),
            buffer[header - 2],
            _piece(buffer, header + 19, body - 1),
        )
        run.method_size = header - at
        run.header_size = body - header
        run.payload_bytes = length
        run.largest = length
        self.extend(run, buffer, end, length)
        if run.count < UNIFORM_RUN_MIN:
            self.extend_any_size(run, buffer, end, frame_max)
        return run

    def extend(
        self,
        run: AmqpPublishRun,
        buffer: bytearray,
        end: cython.Py_ssize_t,
        length: cython.Py_ssize_t,
    ) -> cython.int:
        """Extend the run over neighbours of the same size."""
        data: Octets
        at: cython.Py_ssize_t = run.start
        total: cython.Py_ssize_t = run.stride
        position: cython.Py_ssize_t = at + total
        front: cython.Py_ssize_t = total - length - 1 if length else total
        count: cython.Py_ssize_t = 1
        if cython.compiled:
            data = pointer(buffer)
            while position + total <= end:
                if data[position + total - 1] != _END:
                    break
                if memcmp(data + position, data + at, front):
                    break
                position += total
                count += 1
        else:
            head = bytes(memoryview(buffer)[at : at + front])
            last = end - total
            while (
                position <= last
                and buffer[position + total - 1] == _END
                and buffer.startswith(head, position)
            ):
                position += total
                count += 1
        run.end = position
        run.count = count
        run.payload_bytes = length * count
        return 0

    def extend_any_size(
        self,
        run: AmqpPublishRun,
        buffer: bytearray,
        end: cython.Py_ssize_t,
        frame_max: cython.Py_ssize_t,
    ) -> cython.int:
        """Extend the run over neighbours of other sizes; the run has no stride then."""
        data: Octets
        at: cython.Py_ssize_t = run.start
        position: cython.Py_ssize_t = run.end
        # Later publishes must repeat everything up to the body's size, and what follows it in the header.
        front: cython.Py_ssize_t = run.method_size + 11
        back_at: cython.Py_ssize_t = front + 8
        back: cython.Py_ssize_t = run.header_size - 19
        body: cython.Py_ssize_t
        total: cython.Py_ssize_t
        length: cython.ulonglong
        if cython.compiled:
            data = pointer(buffer)
        else:
            data = buffer
            head = bytes(memoryview(buffer)[at : at + front])
            tail = bytes(memoryview(buffer)[at + back_at : at + back_at + back])
        while position + run.method_size + run.header_size <= end:
            if cython.compiled:
                if memcmp(data + position, data + at, front) or memcmp(
                    data + position + back_at, data + at + back_at, back
                ):
                    break
            elif not (
                buffer.startswith(head, position) and buffer.startswith(tail, position + back_at)
            ):
                break
            length = load_u64(data, position + front)
            body = position + run.method_size + run.header_size
            total = body - position
            if length:
                if (
                    length > cython.cast(cython.ulonglong, frame_max)
                    or body + _FRAME + length > cython.cast(cython.ulonglong, end)
                    or data[body] != _BODY
                    or load_u16(data, body + 1) != cython.cast(cython.uint, run.channel)
                    or load_u32(data, body + 3) != length
                    or data[body + 7 + length] != _END
                ):
                    break
                total += _FRAME + length
            if total != run.stride:
                run.stride = 0
            if length > cython.cast(cython.ulonglong, run.largest):
                run.largest = length
            run.payload_bytes += length
            run.count += 1
            position += total
        run.end = position
        return 0


@cython.cfunc
def _ledger(connection: Connection, channel: cython.int) -> ChannelLedger | None:
    """Return a channel's ledger, or None."""
    ledgers: dict[int, ChannelLedger] | None = connection.ledgers
    return None if ledgers is None else ledgers.get(channel)


@cython.cfunc
@cython.inline
def _piece(buffer: bytearray, start: cython.Py_ssize_t, end: cython.Py_ssize_t) -> bytes:
    """Return a copy of ``buffer[start:end]``."""
    if cython.compiled:
        return (PyByteArray_AS_STRING(buffer) + start)[: end - start]
    return bytes(memoryview(buffer)[start:end])


def refusal(frame: bytes, reason: str, limit: int) -> tuple[int, str]:
    """Return reply code and text for an invalid frame, worded as RabbitMQ does.

    ``frame``: the bytes from its beginning on, perhaps with more after it. ``reason``: "too_large",
    "end" or "type".
    """
    kind = frame[0]
    channel = int.from_bytes(frame[1:3], "big")
    size = int.from_bytes(frame[3:7], "big")
    payload = frame[7 : 7 + size]
    code = FRAME_ERROR
    error = ": unknown_frame"
    if reason == "too_large":
        payload = b""
        error = f": {{frame_too_large,{size},{limit}}}"
    elif reason == "end":
        error = f": {{invalid_frame_end_marker,{frame[7 + size]}}}"
    elif kind == _HEARTBEAT and not size and channel:
        code = UNEXPECTED_FRAME
        error = ""
    snippet = _snippet(payload[:SNIPPET_BYTES])
    amount = "all" if len(payload) <= SNIPPET_BYTES else f"first {SNIPPET_BYTES}"
    return code, f"type {kind}, {amount} octets = <<{snippet}>>{error}"


def _snippet(payload: bytes) -> str:
    """Format bytes as Erlang does: quoted where all are ASCII text, else as numbers."""
    if payload and all(32 <= byte < 127 or byte in _ESCAPES for byte in payload):
        return '"' + "".join(_ESCAPES.get(byte, chr(byte)) for byte in payload) + '"'
    return ",".join(map(str, payload))

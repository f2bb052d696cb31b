"""One end of an HTTP/2 connection as gRPC uses it, without I/O: bytes and calls go in, events and
bytes come out.

Sources: RFC 9113 (HTTP/2), RFC 7541 (HPACK, by the library of that name), gRPC's PROTOCOL-HTTP2.
Features that gRPC does not use are missing: priorities are skipped, pushes refused. Flow control of
received data: a stream whose messages are taken at once has a wide window, and TCP holds its sender
back; one that is read piece by piece gets as much window as has been read.
"""

from __future__ import annotations

from hpack import Decoder
from hpack.exceptions import HPACKError

from fluxmq.cluster.http2_frames import (
    ACK,
    COMPRESSION_ERROR,
    CONTINUATION,
    CUT_SHORT_MAX,
    DATA,
    ENABLE_PUSH,
    END_HEADERS,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    FLOW_CONTROL_ERROR,
    FRAME_BYTES_DEFAULT,
    FRAME_BYTES_MAX,
    FRAME_SIZE_ERROR,
    GOAWAY_BYTES_MIN,
    HEAD,
    HEADER_TABLE_MAX,
    HEADER_TABLE_SIZE,
    HEADERS,
    HEADERS_BYTES_MAX,
    IDLE_FRAMES_MAX,
    INITIAL_WINDOW_SIZE,
    LONG,
    MAX_CONCURRENT_STREAMS,
    MAX_FRAME_SIZE,
    OF_CONNECTION,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PRIORITY_BYTES,
    PROTOCOL_ERROR,
    PUSH_PROMISE,
    REFUSED_STREAM,
    RST_STREAM,
    SETTING,
    SETTINGS,
    STREAM_CLOSED,
    STREAM_WINDOW_WIDE,
    WINDOW_DEFAULT,
    WINDOW_MAX,
    WINDOW_UPDATE,
    WITH_PRIORITY,
    Http2Error,
    frame,
)
from fluxmq.cluster.http2_sender import Fields, Http2Sender
from fluxmq.cluster.http2_streams import Event, EventKind, Http2Stream


class Http2(Http2Sender):
    """One end. ``heard_goodbye``: no stream may be opened any more."""

    def __init__(
        self, client: bool, streams_max: int, message_max: int, call_window: int = WINDOW_DEFAULT
    ) -> None:
        """As `Http2Sender`."""
        super().__init__(client, streams_max, message_max, call_window)
        self.heard_goodbye = False
        self._streams_max = streams_max
        self._preface = b"" if client else PREFACE
        self._expects_settings = True
        self._rest = b""
        self._data_left = 0
        self._data_stream: Http2Stream | None = None
        self._data_ends = False
        self._block = b""
        self._block_of = 0
        self._block_flags = 0
        self._left = WINDOW_MAX
        self._taken = 0
        self._cut_short = 0
        self._idle_frames = 0
        self._turned_away = 0
        self._decoder = Decoder(HEADERS_BYTES_MAX)

    @property
    def begun(self) -> bool:
        """True once the other side has sent the HTTP/2 preface."""
        return not self._preface

    def calm(self) -> None:
        """Reset the rate counters; called at intervals."""
        self._cut_short = self._idle_frames = self._turned_away = 0

    def turned_away(self) -> None:
        """Count a refused stream: too many end the connection, as do too many reset ones."""
        self._turned_away += 1

    def receive(self, data: bytes) -> list[Event]:
        """Process received bytes. Raises Http2Error: then the connection is unusable, and ``take``
        returns the GOAWAY.
        """
        events: list[Event] = []
        try:
            self._receive(data, events)
        except Http2Error as error:
            self.goodbye(error.code, str(error))
            raise
        return events

    def _receive(self, data: bytes, events: list[Event]) -> None:
        if self._rest:
            data = self._rest + data
            self._rest = b""
        at = self._begin(data) if self._preface else 0
        end = len(data)
        while True:
            if self._data_left:
                at = self._payload(data, at, end, events)
                if self._data_left:
                    return
            if end - at < HEAD.size:
                break
            high, low, kind, flags, number = HEAD.unpack_from(data, at)
            length = high << 16 | low
            number &= WINDOW_MAX
            if length > FRAME_BYTES_MAX:
                raise Http2Error(FRAME_SIZE_ERROR, f"a frame of {length} bytes")
            if self._block_of or self._expects_settings:
                self._check_order(kind, flags, number)
            if kind == DATA and not flags & PADDED:
                at += HEAD.size
                self._begin_data(number, length, bool(flags & END_STREAM), events)
                continue
            if length > HEADERS_BYTES_MAX:
                raise Http2Error(ENHANCE_YOUR_CALM, f"{length} bytes that are not data in a frame")
            if end - at - HEAD.size < length:
                break
            at += HEAD.size
            self._frame(kind, flags, number, data[at : at + length], events)
            at += length
        self._rest = data[at:] if at else data

    def _begin(self, data: bytes) -> int:
        """Check the available part of the preface and return its end."""
        length = min(len(data), len(self._preface))
        if data[:length] != self._preface[:length]:
            raise Http2Error(PROTOCOL_ERROR, "the HTTP/2 connection preface is missing")
        self._preface = self._preface[length:]
        return length

    def _check_order(self, kind: int, flags: int, number: int) -> None:
        """Check that settings come first and headers are contiguous (RFC 9113, 3.4 and 6.10)."""
        if self._block_of and (kind != CONTINUATION or number != self._block_of):
            raise Http2Error(PROTOCOL_ERROR, "CONTINUATION expected")
        if self._expects_settings and (kind != SETTINGS or flags & ACK):
            raise Http2Error(PROTOCOL_ERROR, "the first frame is not SETTINGS")
        self._expects_settings = False

    def _frame(self, kind: int, flags: int, number: int, body: bytes, events: list[Event]) -> None:
        if kind == HEADERS:
            self._on_headers(flags, number, _unpadded(body, flags), events)
        elif kind == CONTINUATION:
            self._on_block(flags, number, body, events)
        elif kind == DATA:
            # Padding counts for the windows (RFC 9113, 6.9.1).
            inner = _unpadded(body, flags)
            padding = len(body) - len(inner)
            self._begin_data(number, len(inner), bool(flags & END_STREAM), events, padding)
            if inner:
                self._payload(inner, 0, len(inner), events)
        elif kind in OF_CONNECTION:
            if number:
                raise Http2Error(PROTOCOL_ERROR, f"a connection-level frame on stream {number}")
            self._on_connection(kind, flags, body, events)
        elif kind == WINDOW_UPDATE:
            self._on_window(number, body, events)
        elif kind == RST_STREAM:
            self._on_reset(number, body, events)
        elif kind == PRIORITY:
            if not number:
                raise Http2Error(PROTOCOL_ERROR, "PRIORITY on stream 0")
            _exactly(body, PRIORITY_BYTES)
        elif kind == PUSH_PROMISE:
            raise Http2Error(PROTOCOL_ERROR, "PUSH_PROMISE, although pushes are disabled")
        # Priorities and unknown kinds are ignored (RFC 9113, 5.5).

    def _on_connection(self, kind: int, flags: int, body: bytes, events: list[Event]) -> None:
        """Handle a frame that belongs to no stream."""
        if kind == SETTINGS:
            self._on_settings(flags, body, events)
        elif kind == PING:
            _exactly(body, 8)
            if not flags & ACK:
                self._count_idle()
                self._out.append(frame(PING, ACK, 0, body))
        else:
            if len(body) < GOAWAY_BYTES_MIN:
                raise Http2Error(FRAME_SIZE_ERROR, "GOAWAY is too short")
            self.heard_goodbye = True
            events.append((EventKind.GOODBYE, None, [("", body[8:].decode("utf-8", "replace"))]))

    # Data

    def _count(self, length: int) -> None:
        """Count bytes against the connection's window, which is replenished as they come."""
        self._left -= length
        self._taken += length
        if self._left < 0:
            raise Http2Error(FLOW_CONTROL_ERROR, "the connection's flow-control window is exceeded")
        if self._taken >= WINDOW_MAX // 2:
            self._grant(0, self._taken)
            self._left += self._taken
            self._taken = 0

    def _begin_data(
        self, number: int, length: int, ends: bool, events: list[Event], padding: int = 0
    ) -> None:
        self._count(length + padding)
        stream = self.streams.get(number)
        if stream is None:
            self._check_known(number)
        elif stream.ended_there:
            raise Http2Error(STREAM_CLOSED, "DATA after the end of the stream")
        else:
            stream.left -= length + padding
            stream.unread += padding
            if stream.left < 0:
                raise Http2Error(FLOW_CONTROL_ERROR, "a stream's flow-control window is exceeded")
            if stream.wide and stream.left < STREAM_WINDOW_WIDE // 2:
                self._give(stream, STREAM_WINDOW_WIDE - stream.left)
        self._data_stream, self._data_left, self._data_ends = stream, length, ends
        if not length:
            self._end_data(events)

    def _payload(self, data: bytes, at: int, end: int, events: list[Event]) -> int:
        """Take the available part of a data frame and return its end."""
        stop = min(end, at + self._data_left)
        self._data_left -= stop - at
        stream = self._data_stream
        if stream is not None and not stream.ended_there:
            try:
                messages = stream.take(data, at, stop)
            except Http2Error as error:
                self._break(stream, error, events)
                messages = []
            events.extend((EventKind.MESSAGE, stream, message) for message in messages)
        if not self._data_left:
            self._end_data(events)
        return stop

    def _end_data(self, events: list[Event]) -> None:
        stream = self._data_stream
        if self._data_ends and stream is not None and not stream.ended_there:
            self._end_there(stream, events)
        self._data_stream = None

    def _end_there(self, stream: Http2Stream, events: list[Event]) -> None:
        stream.ended_there = True
        if stream.ended_here:
            self.streams.pop(stream.number, None)
        events.append((EventKind.ENDED, stream, None))

    def _break(self, stream: Http2Stream, error: Http2Error, events: list[Event]) -> None:
        """Break a stream because of what came on it."""
        self.cut(stream, error.code)
        events.append((EventKind.BROKEN, stream, [("", str(error))]))

    # Headers

    def _on_headers(self, flags: int, number: int, body: bytes, events: list[Event]) -> None:
        if flags & WITH_PRIORITY:
            if len(body) < PRIORITY_BYTES:
                raise Http2Error(FRAME_SIZE_ERROR, "HEADERS without the priority they announce")
            body = body[PRIORITY_BYTES:]
        if not number or (not self.client and not number & 1):
            raise Http2Error(PROTOCOL_ERROR, f"headers on stream {number}")
        self._block_of, self._block, self._block_flags = number, b"", flags
        self._on_block(flags, number, body, events)

    def _on_block(self, flags: int, number: int, body: bytes, events: list[Event]) -> None:
        if not self._block_of:
            raise Http2Error(PROTOCOL_ERROR, "CONTINUATION without HEADERS")
        self._block += body
        if len(self._block) > HEADERS_BYTES_MAX:
            raise Http2Error(ENHANCE_YOUR_CALM, f"headers of more than {HEADERS_BYTES_MAX} bytes")
        if not flags & END_HEADERS:
            self._count_idle()
            return
        block, self._block, self._block_of = self._block, b"", 0
        try:
            fields = [
                (_text(key), _text(value)) for key, value in self._decoder.decode(block, raw=True)
            ]
        except (HPACKError, UnicodeDecodeError) as error:
            raise Http2Error(COMPRESSION_ERROR, f"headers cannot be decoded: {error}") from error
        self._on_fields(number, fields, bool(self._block_flags & END_STREAM), events)

    def _on_fields(self, number: int, fields: Fields, ends: bool, events: list[Event]) -> None:
        stream = self.streams.get(number)
        if stream is None:
            if self.client or number <= self._last:
                self._check_known(number)
                return
            self._last = number
            if self._turned_away > CUT_SHORT_MAX:
                raise Http2Error(ENHANCE_YOUR_CALM, f"{CUT_SHORT_MAX} streams were refused")
            if len(self.streams) >= self._streams_max:
                self._count_idle()
                self._out.append(frame(RST_STREAM, 0, number, LONG.pack(REFUSED_STREAM)))
                return
            stream = self._stream(number)
        elif stream.ended_there:
            raise Http2Error(STREAM_CLOSED, "HEADERS after the end of the stream")
        elif stream.answered and not ends:
            self._break(
                stream, Http2Error(PROTOCOL_ERROR, "trailers that do not end the stream"), events
            )
            return
        stream.answered = not self.client or not _is_interim(fields)
        events.append((EventKind.HEADERS, stream, fields))
        if ends:
            self._end_there(stream, events)

    # The connection

    def _on_settings(self, flags: int, body: bytes, events: list[Event]) -> None:
        if flags & ACK:
            _exactly(body, 0)
            return
        if len(body) % SETTING.size:
            raise Http2Error(FRAME_SIZE_ERROR, "SETTINGS of a wrong length")
        self._count_idle()
        for key, value in SETTING.iter_unpack(body):
            if key == INITIAL_WINDOW_SIZE:
                self._on_initial_window(value)
            elif key == MAX_FRAME_SIZE:
                if not FRAME_BYTES_DEFAULT <= value < 1 << 24:
                    raise Http2Error(PROTOCOL_ERROR, "an invalid SETTINGS_MAX_FRAME_SIZE")
                self._frame_max = min(value, FRAME_BYTES_MAX)
            elif key == HEADER_TABLE_SIZE:
                last = min(value, HEADER_TABLE_MAX)
                least = self._table_least
                self._table_least = last if least < 0 else min(least, last)
                self._table_last = last
            elif key == MAX_CONCURRENT_STREAMS:
                self._peer_streams_max = value
            elif key == ENABLE_PUSH and value > int(not self.client):
                raise Http2Error(PROTOCOL_ERROR, "an invalid SETTINGS_ENABLE_PUSH")
        # Acknowledge before using what the new settings allow: the other side applies them to what
        # follows (6.5.3).
        self._out.append(frame(SETTINGS, ACK, 0, b""))
        for stream in list(self.streams.values()):
            self._open(stream, events)

    def _on_initial_window(self, value: int) -> None:
        if value > WINDOW_MAX:
            raise Http2Error(FLOW_CONTROL_ERROR, "the flow-control window overflows")
        more, self._window_of_streams = value - self._window_of_streams, value
        for stream in self.streams.values():
            stream.window += more
            if stream.window > WINDOW_MAX:
                raise Http2Error(FLOW_CONTROL_ERROR, "a stream's flow-control window overflows")

    def _on_window(self, number: int, body: bytes, events: list[Event]) -> None:
        _exactly(body, 4)
        more = LONG.unpack(body)[0] & WINDOW_MAX
        if not number:
            self._window += more
            if not more or self._window > WINDOW_MAX:
                raise Http2Error(
                    FLOW_CONTROL_ERROR if more else PROTOCOL_ERROR, "an invalid WINDOW_UPDATE"
                )
            for stream in list(self.streams.values()):
                self._open(stream, events)
            return
        found = self.streams.get(number)
        if found is None:
            self._check_known(number)
            return
        found.window += more
        if not more or found.window > WINDOW_MAX:
            error = Http2Error(
                FLOW_CONTROL_ERROR if more else PROTOCOL_ERROR, "an invalid WINDOW_UPDATE"
            )
            self._break(found, error, events)
            return
        self._open(found, events)

    def _open(self, stream: Http2Stream, events: list[Event]) -> None:
        """Send waiting data after a window was opened."""
        if stream.waiting:
            self._pump(stream)
            if not stream.waiting:
                events.append((EventKind.WRITABLE, stream, None))

    def _on_reset(self, number: int, body: bytes, events: list[Event]) -> None:
        _exactly(body, 4)
        stream = self.streams.pop(number, None)
        if stream is None:
            self._check_known(number)
            return
        self._cut_short += 1
        if self._cut_short > CUT_SHORT_MAX and not self.client:
            raise Http2Error(ENHANCE_YOUR_CALM, f"{CUT_SHORT_MAX} streams were cut short")
        stream.waiting.clear()
        stream.ended_here = stream.ended_there = True
        code = LONG.unpack(body)[0]
        events.append(
            (EventKind.BROKEN, stream, [("", f"the other node reset the stream, code {code}")])
        )

    def _check_known(self, number: int) -> None:
        """Check a frame of an absent stream: valid if that has ended, an error if it never was."""
        if not number:
            raise Http2Error(PROTOCOL_ERROR, "a stream-level frame on stream 0")
        ours = bool(number & 1) == self.client
        if number >= self._next if ours else number > self._last:
            raise Http2Error(PROTOCOL_ERROR, f"a frame of stream {number}, which has not begun")

    def _count_idle(self) -> None:
        self._idle_frames += 1
        if self._idle_frames > IDLE_FRAMES_MAX:
            raise Http2Error(ENHANCE_YOUR_CALM, "too many control frames that need an answer")


def _is_interim(fields: Fields) -> bool:
    """Return whether an answer's headers only announce others (RFC 9113, 8.1)."""
    return any(key == ":status" and value.startswith("1") for key, value in fields)


def _unpadded(body: bytes, flags: int) -> bytes:
    if not flags & PADDED:
        return body
    if not body or body[0] >= len(body):
        raise Http2Error(PROTOCOL_ERROR, "padding longer than its frame")
    return body[1 : len(body) - body[0]]


def _exactly(body: bytes, length: int) -> None:
    if len(body) != length:
        raise Http2Error(FRAME_SIZE_ERROR, f"{len(body)} bytes instead of {length}")


def _text(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode("utf-8")

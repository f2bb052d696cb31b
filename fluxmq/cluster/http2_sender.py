"""The sending half of an HTTP/2 connection: frames as bytes, within the other side's windows."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from hpack import Encoder

from fluxmq.cluster.http2_frames import (
    DATA,
    ENABLE_PUSH,
    END_HEADERS,
    END_STREAM,
    FRAME_BYTES_DEFAULT,
    FRAME_BYTES_MAX,
    GOAWAY,
    HEAD,
    HEADERS,
    HEADERS_BYTES_MAX,
    INITIAL_WINDOW_SIZE,
    LONG,
    MAX_CONCURRENT_STREAMS,
    MAX_FRAME_SIZE,
    MAX_HEADER_LIST_SIZE,
    MESSAGE_HEAD,
    NO_ERROR,
    PING,
    PREFACE,
    RST_STREAM,
    SETTING,
    SETTINGS,
    STREAM_WINDOW_WIDE,
    WINDOW_DEFAULT,
    WINDOW_MAX,
    WINDOW_UPDATE,
    frame,
)
from fluxmq.cluster.http2_streams import Http2Stream

Fields = Sequence[tuple[str, str]]

_MESSAGE: Final = struct.Struct(">BHBBIBI")


class Http2Sender:
    """The sending half. ``client``: opens streams. ``streams``: those that are open."""

    def __init__(
        self, client: bool, streams_max: int, message_max: int, call_window: int = WINDOW_DEFAULT
    ) -> None:
        """``streams_max``: streams that the other side may have open; ``message_max``: bytes of a
        received message; ``call_window``: bytes that may come on a stream before they are read.
        """
        self.client = client
        self.streams: dict[int, Http2Stream] = {}
        self._message_max = message_max
        self._call_window = call_window
        self._last = 0
        """The highest number the other side has used."""
        self._next = 1 if client else 2
        self._window = WINDOW_DEFAULT
        self._window_of_streams = WINDOW_DEFAULT
        self._frame_max = FRAME_BYTES_DEFAULT
        self._encoder = Encoder()
        self._table_least = -1
        self._table_last = -1
        self._peer_streams_max = WINDOW_MAX
        settings = {
            ENABLE_PUSH: 0,
            INITIAL_WINDOW_SIZE: call_window,
            MAX_FRAME_SIZE: FRAME_BYTES_MAX,
            MAX_HEADER_LIST_SIZE: HEADERS_BYTES_MAX,
        }
        if not client:
            settings[MAX_CONCURRENT_STREAMS] = streams_max
            del settings[ENABLE_PUSH]
        body = b"".join(SETTING.pack(key, value) for key, value in settings.items())
        self._out: list[bytes] = [PREFACE] if client else []
        self._out.append(frame(SETTINGS, 0, 0, body))
        self._grant(0, WINDOW_MAX - WINDOW_DEFAULT)

    def take(self) -> bytes:
        """Return the bytes to write; they then count as written."""
        out = self._out
        if not out:
            return b""
        joined = out[0] if len(out) == 1 else b"".join(out)
        out.clear()
        return joined

    @property
    def full(self) -> bool:
        """True if as many streams are open as the other side accepts."""
        return len(self.streams) >= self._peer_streams_max

    def open(self, fields: Fields, ends: bool = False) -> Http2Stream:
        """Open a stream with headers (client only); not if ``full``."""
        number = self._next
        self._next += 2
        stream = self._stream(number)
        self.headers(stream, fields, ends)
        return stream

    def headers(self, stream: Http2Stream, fields: Fields, ends: bool = False) -> None:
        """Send headers, or with ``ends`` trailers, behind which nothing is sent."""
        if stream.ended_here:
            return
        if self._table_least >= 0:
            self._resize()
        block = self._encoder.encode(list(fields))
        flags = END_HEADERS | (END_STREAM if ends else 0)
        self._out.append(frame(HEADERS, flags, stream.number, block))
        if ends:
            self._end_here(stream)

    def send(self, stream: Http2Stream, message: bytes) -> None:
        """Send a message; the part beyond the windows waits in the stream (``stream.waiting``)."""
        length = len(message) + MESSAGE_HEAD
        if stream.ended_here:
            return
        if (
            length <= self._frame_max
            and length <= self._window
            and length <= stream.window
            and not stream.waiting
        ):
            self._window -= length
            stream.window -= length
            self._out.append(
                _MESSAGE.pack(
                    length >> 16, length & 0xFFFF, DATA, 0, stream.number, 0, len(message)
                )
            )
            self._out.append(message)
            return
        stream.waiting.append(b"\0" + LONG.pack(len(message)))
        if message:
            stream.waiting.append(message)
        self._pump(stream)

    def finish(self, stream: Http2Stream) -> None:
        """End sending on a stream once everything that waits is sent."""
        if stream.waiting:
            stream.ending = True
        elif not stream.ended_here:
            self._out.append(frame(DATA, END_STREAM, stream.number, b""))
            self._end_here(stream)

    def cut(self, stream: Http2Stream, code: int = NO_ERROR) -> None:
        """End a stream at once, in both directions."""
        if self.streams.pop(stream.number, None) is not None:
            self._out.append(frame(RST_STREAM, 0, stream.number, LONG.pack(code)))
        stream.waiting.clear()
        stream.ended_here = stream.ended_there = True

    def widen(self, stream: Http2Stream) -> None:
        """Take a stream's messages at once from now on: TCP alone holds its sender back."""
        stream.wide = True
        self._give(stream, STREAM_WINDOW_WIDE - stream.left)

    def allow(self, stream: Http2Stream, window: int) -> None:
        """Allow ``window`` unread bytes on a stream."""
        self._give(stream, window - stream.left)

    def consumed(self, stream: Http2Stream, message: bytes) -> None:
        """Replenish the window by a message that was read."""
        stream.unread += len(message) + MESSAGE_HEAD
        if stream.unread * 4 >= self._call_window and not stream.ended_there:
            self._give(stream, stream.unread)
            stream.unread = 0

    def ping(self) -> None:
        """Ask the other side whether it is there."""
        self._out.append(frame(PING, 0, 0, bytes(8)))

    def goodbye(self, code: int = NO_ERROR, why: str = "") -> None:
        """Tell the other side that this one ends the connection."""
        body = LONG.pack(self._last) + LONG.pack(code) + why.encode()[:200]
        self._out.append(frame(GOAWAY, 0, 0, body))

    def _resize(self) -> None:
        """Apply the requested table sizes: the least and the last suffice (RFC 7541, 4.2)."""
        least, last = self._table_least, self._table_last
        self._table_least = self._table_last = -1
        if least < last:
            self._encoder.header_table_size = least
        if last != self._encoder.header_table_size:
            self._encoder.header_table_size = last

    def _stream(self, number: int) -> Http2Stream:
        stream = Http2Stream(number, self._window_of_streams, self._call_window, self._message_max)
        self.streams[number] = stream
        return stream

    def _end_here(self, stream: Http2Stream) -> None:
        stream.ended_here = True
        if stream.ended_there:
            self.streams.pop(stream.number, None)

    def _give(self, stream: Http2Stream, more: int) -> None:
        if more > 0:
            stream.left += more
            self._grant(stream.number, more)

    def _grant(self, number: int, more: int) -> None:
        self._out.append(frame(WINDOW_UPDATE, 0, number, LONG.pack(more)))

    def _pump(self, stream: Http2Stream) -> None:
        """Send waiting data as far as the windows allow."""
        waiting = stream.waiting
        while waiting:
            room = min(self._window, stream.window, self._frame_max)
            if room <= 0:
                return
            pieces: list[bytes] = []
            length = 0
            while waiting and length < room:
                piece = waiting[0]
                start = stream.waiting_at
                part = (
                    piece[start : start + room - length]
                    if start or len(piece) > room - length
                    else piece
                )
                pieces.append(part)
                length += len(part)
                if start + len(part) == len(piece):
                    waiting.popleft()
                    stream.waiting_at = 0
                else:
                    stream.waiting_at = start + len(part)
            self._window -= length
            stream.window -= length
            head = HEAD.pack(length >> 16, length & 0xFFFF, DATA, 0, stream.number)
            self._out.append(head)
            self._out.extend(pieces)
        if stream.ending:
            self.finish(stream)

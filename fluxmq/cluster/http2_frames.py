"""Frames of HTTP/2 as bytes: kinds, codes, settings and limits (RFC 9113, sections 4, 6 and 7)."""

from __future__ import annotations

import struct
from typing import Final

HEAD: Final = struct.Struct(">BHBBI")
"""Length in three bytes, kind, flags, the stream's number."""

DATA: Final = 0
END_STREAM: Final = 1
END_HEADERS: Final = 4

NO_ERROR: Final = 0
PROTOCOL_ERROR: Final = 1
INTERNAL_ERROR: Final = 2
FLOW_CONTROL_ERROR: Final = 3
STREAM_CLOSED: Final = 5
FRAME_SIZE_ERROR: Final = 6
REFUSED_STREAM: Final = 7
CANCEL: Final = 8
ENHANCE_YOUR_CALM: Final = 11
"""Codes of RFC 9113, section 7."""

WINDOW_MAX: Final = (1 << 31) - 1
LONG: Final = struct.Struct(">I")
SETTING: Final = struct.Struct(">HI")
MESSAGE_HEAD: Final = 5
"""Bytes before a message of gRPC: compressed or not, and its length."""

HEADERS: Final = 1
PRIORITY: Final = 2
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH_PROMISE: Final = 5
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9

ACK: Final = 1
PADDED: Final = 8
WITH_PRIORITY: Final = 32

COMPRESSION_ERROR: Final = 9

HEADER_TABLE_SIZE: Final = 1
ENABLE_PUSH: Final = 2
MAX_CONCURRENT_STREAMS: Final = 3
INITIAL_WINDOW_SIZE: Final = 4
MAX_FRAME_SIZE: Final = 5
MAX_HEADER_LIST_SIZE: Final = 6

OF_CONNECTION: Final = frozenset((SETTINGS, PING, GOAWAY))
"""Kinds that concern the connection, and no stream (RFC 9113, 6.5, 6.7 and 6.8)."""
PRIORITY_BYTES: Final = 5
GOAWAY_BYTES_MIN: Final = 8
HEADER_TABLE_MAX: Final = 4096
"""Size of the header compression table, however much more the other side offers."""

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FRAME_BYTES_MAX: Final = 1 << 20
"""Longest frame accepted, and sent if the other side accepts it. Urgent frames wait for one such
frame at most.
"""
FRAME_BYTES_DEFAULT: Final = 1 << 14
"""Longest frame that the other side accepts until it allows more (RFC 9113, 6.5.2)."""
WINDOW_DEFAULT: Final = (1 << 16) - 1
"""Bytes that either side may send on a stream, and on all together, until it is granted more (RFC
9113, 6.9.2).
"""
STREAM_WINDOW_WIDE: Final = 1 << 30
"""Window of a stream whose messages are taken at once."""
HEADERS_BYTES_MAX: Final = 16 << 10
"""Size of a block of headers, packed and unpacked, and of any non-data frame that is read whole: a
greeting is some hundred bytes, and comes from strangers too.
"""
CUT_SHORT_MAX: Final = 1000
"""Streams of one connection that the other side may reset between two calls of ``calm``: no healthy
node does so (CVE-2023-44487). As many may be refused.
"""
IDLE_FRAMES_MAX: Final = 10_000
"""Frames without a message that demand an answer, likewise (CVE-2019-9512 and 9515)."""


def frame(kind: int, flags: int, number: int, body: bytes) -> bytes:
    """Encode one frame."""
    length = len(body)
    return HEAD.pack(length >> 16, length & 0xFFFF, kind, flags, number) + body


class Http2Error(Exception):
    """Received bytes are not HTTP/2, or not gRPC's; ``code`` tells the other side."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.code = code

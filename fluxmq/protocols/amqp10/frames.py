"""Frames and protocol headers of AMQP 1.0.

A frame is its size (u32, all bytes), the offset of its body in words of four bytes (u8), its type
(u8), and a channel (u16, of AMQP frames only)::

    size u32 | doff u8 | type u8 | channel u16 | extended header | body: a performative, a payload

Source: OASIS AMQP 1.0 part 2, sections 2.2 (protocol header) and 2.3 (frames), part 5, section
5.3.1.
"""

from __future__ import annotations

import struct
from typing import Final

from fluxmq.protocols.amqp10.performatives import write

AMQP_HEADER: Final = b"AMQP\x00\x01\x00\x00"
TLS_HEADER: Final = b"AMQP\x02\x01\x00\x00"
SASL_HEADER: Final = b"AMQP\x03\x01\x00\x00"
HEADER_BYTES: Final = 8
"""Bytes of a protocol header, and of a frame's own header."""
FRAME_AMQP: Final = 0
FRAME_SASL: Final = 1
FRAME_BYTES_MIN: Final = 512
"""Smallest max-frame-size, and the size of frames before it is agreed on (2.4.1)."""
EMPTY_FRAME: Final = b"\x00\x00\x00\x08\x02\x00\x00\x00"
"""A frame without body: it only shows that its sender is alive (2.4.5)."""

_FRAME: Final = struct.Struct(">IBBH")
_ACCEPTED: Final = struct.Struct(">IBBH7sBIBI5s")
_SETTLED: Final = b"\x41\x00\x53\x24\x45"


def frame(
    channel: int, performative: object, payload: bytes = b"", kind: int = FRAME_AMQP
) -> bytes:
    """Return a frame with a performative, and a payload behind it."""
    body = write(performative)
    size = HEADER_BYTES + len(body) + len(payload)
    return _FRAME.pack(size, 2, kind, channel) + body + payload


def accepted_frame(channel: int, first: int, last: int) -> bytes:
    """Return a receiver's disposition that settles deliveries with these serials as accepted (2.7.6)."""
    return _ACCEPTED.pack(
        30,
        2,
        FRAME_AMQP,
        channel,
        b"\x00\x53\x15\xc0\x11\x05\x41",
        0x70,
        first,
        0x70,
        last,
        _SETTLED,
    )


def frame_of(channel: int, body: bytes) -> bytes:
    """Return an AMQP frame of a body that is encoded already."""
    return _FRAME.pack(HEADER_BYTES + len(body), 2, FRAME_AMQP, channel) + body

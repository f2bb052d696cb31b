"""Transfers to clients: one message as frames, split where it is larger than a frame.

The first frame has the delivery's id and tag, the others the handle alone. All have fields of fixed
widths, so that one `struct` makes each.

Source: OASIS AMQP 1.0 part 2, sections 2.6.14 (transferring large messages) and 2.7.5 (transfer).
"""

from __future__ import annotations

import struct
from typing import Final

_FIRST: Final = struct.Struct(">IBBH6sBIBI2sIBBB")
_NEXT: Final = struct.Struct(">IBBH6sBI4sB")
_FIRST_LIST: Final = b"\x00\x53\x14\xc0\x14\x06"
_NEXT_LIST: Final = b"\x00\x53\x14\xc0\x0b\x06"
_UINT: Final = 0x70
_TAG: Final = b"\xa0\x04"
_NULLS: Final = b"\x40\x40\x40\x40"
_TRUE: Final = 0x41
_FALSE: Final = 0x42
_FORMAT_0: Final = 0x43
FIRST_BYTES: Final = _FIRST.size
"""Bytes of a message's first frame besides the message."""
NEXT_BYTES: Final = _NEXT.size
"""The same of its other frames."""


def transfer_frames(
    channel: int, handle: int, delivery: int, settled: bool, message: bytes, frame_max: int
) -> list[bytes]:
    """Return the frames of one delivery. Its id and its tag are both the serial ``delivery``.

    ``frame_max``: of the receiver, at least 512.
    """
    size = FIRST_BYTES + len(message)
    settled_code = _TRUE if settled else _FALSE
    if size <= frame_max:
        return [
            _FIRST.pack(
                *(size, 2, 0, channel, _FIRST_LIST, _UINT, handle, _UINT, delivery),
                *(_TAG, delivery, _FORMAT_0, settled_code, _FALSE),
            )
            + message
        ]
    at = frame_max - FIRST_BYTES
    frames = [
        _FIRST.pack(
            *(frame_max, 2, 0, channel, _FIRST_LIST, _UINT, handle, _UINT, delivery),
            *(_TAG, delivery, _FORMAT_0, settled_code, _TRUE),
        )
        + message[:at]
    ]
    room = frame_max - NEXT_BYTES
    while at < len(message):
        part = message[at : at + room]
        at += room
        more = _TRUE if at < len(message) else _FALSE
        frames.append(
            _NEXT.pack(
                *(NEXT_BYTES + len(part), 2, 0, channel, _NEXT_LIST),
                *(_UINT, handle, _NULLS, more),
            )
            + part
        )
    return frames

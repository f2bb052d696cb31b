"""Frames on the control socket: a length and one msgpack value, both ways.

    +----------------------+----------------------------------+
    | length, u32 big end. | msgpack value, `length` bytes    |
    +----------------------+----------------------------------+

Pure: bytes in, values out. Knows sizes and shapes of bytes, not their meaning (that is `messages`).
Both ends run as the same user on one machine, so a bad frame is a bug or a foreign program: it is
rejected, never repaired.
"""

from __future__ import annotations

import struct
from typing import Final

import msgpack  # type: ignore[import-untyped]

from fluxmq.model.errors import FluxmqError

# A snapshot of all users is the largest message (see `user_messages.SNAPSHOT_BYTES_MAX`, which
# leaves room for its envelope).
FRAME_BYTES_MAX: Final = 16 * 1024 * 1024
# Longest list or map in one message: a scrape of one shard has at most some thousand samples.
ELEMENTS_MAX: Final = 65536

_LENGTH: Final = struct.Struct(">I")


class FramingError(FluxmqError):
    """The bytes on the control socket are not frames, or a frame is larger than allowed; the
    connection must end."""


def encode_frame(value: object) -> bytes:
    """Return the frame for a value of str, bytes, int, float, bool, None, list and dict.

    Raises FramingError when the value cannot be encoded or the frame would exceed
    `FRAME_BYTES_MAX`.
    """
    body = encode_value(value)
    return _LENGTH.pack(len(body)) + body


def encode_value(value: object) -> bytes:
    """Return a frame's value without the length. Raises as `encode_frame` does."""
    try:
        body: bytes = msgpack.packb(value, use_bin_type=True)
    except (TypeError, ValueError, OverflowError) as error:
        raise FramingError(f"value cannot be encoded: {error}") from error
    if len(body) > FRAME_BYTES_MAX:
        raise FramingError(f"frame of {len(body)} bytes exceeds {FRAME_BYTES_MAX}")
    return body


def _refuse_extension(code: int, data: bytes) -> object:
    raise ValueError(
        f"msgpack extension type {code} of {len(data)} bytes is not part of this protocol"
    )


def decode_value(body: bytes | memoryview) -> object:
    """Return the value of a frame. Raises FramingError when it is not msgpack."""
    try:
        return msgpack.unpackb(
            body,
            raw=False,
            strict_map_key=True,
            ext_hook=_refuse_extension,
            max_array_len=ELEMENTS_MAX,
            max_map_len=ELEMENTS_MAX,
        )
    except (ValueError, TypeError, RecursionError, msgpack.exceptions.UnpackException) as error:
        raise FramingError(f"frame is not msgpack: {error}") from error


class FrameDecoder:
    """Turns the bytes of one connection, however they were split, into the values of its frames.

    Invariants: holds at most one incomplete frame plus the bytes of one `feed`; work is linear in
    the bytes fed. After a FramingError every call raises again, because the position in the stream
    is lost.
    """

    __slots__ = ("_broken", "_buffer", "_needed")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._needed = _LENGTH.size
        self._broken: FramingError | None = None

    def feed(self, data: bytes | bytearray | memoryview) -> list[object]:
        """Take the next bytes and return the values of all frames they complete, in order.

        Raises FramingError for a frame that is too long (as soon as its length is known) or not
        msgpack; values completed before the bad frame are lost with the connection.
        """
        if self._broken is not None:
            raise self._broken
        self._buffer += data
        if len(self._buffer) < self._needed:
            return []
        try:
            return self._take()
        except FramingError as error:
            self._broken = error
            self._buffer.clear()
            raise

    @property
    def buffered(self) -> int:
        """Number of buffered bytes of an incomplete frame."""
        return len(self._buffer)

    def _take(self) -> list[object]:
        values: list[object] = []
        position = 0
        end = len(self._buffer)
        self._needed = _LENGTH.size
        with memoryview(self._buffer) as view:
            while end - position >= _LENGTH.size:
                (length,) = _LENGTH.unpack_from(view, position)
                if length > FRAME_BYTES_MAX:
                    raise FramingError(f"frame of {length} bytes exceeds {FRAME_BYTES_MAX}")
                if end - position - _LENGTH.size < length:
                    self._needed = _LENGTH.size + length
                    break
                position += _LENGTH.size
                with view[position : position + length] as body:
                    values.append(decode_value(body))
                position += length
        del self._buffer[:position]
        return values

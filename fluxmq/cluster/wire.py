"""Frames as messages: protobuf, as ``proto/fluxmq/cluster/v1/cluster.proto`` has it.

Frames of one turn are joined into messages of about ``JOINED_BYTES``, since a message has a fixed
cost on either side. A frame longer than ``PIECE_BYTES`` is split into pieces, one message each and
in order with the rest, so that no message comes near the limit and neither side holds more than one
such frame twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from fluxmq.cluster.errors import MalformedStream
from fluxmq.cluster.protobuf import bytes_field, element, fields, number_field

MESSAGE_BYTES_MAX: Final = 32 << 20
"""Longest gRPC message sent or accepted; a received one must fit into memory a few times over."""

PIECE_BYTES: Final = 4 << 20
"""Length of the pieces of a longer frame: some milliseconds of the event loop each."""

JOINED_BYTES: Final = 1 << 20
"""Size at which a message is sent; a longer one would only delay the receiver."""

FRAME_BYTES_MAX: Final = 256 << 20
"""Longest frame. Above every limit on a frame's contents: messages, entries, batches."""

_FRAME_OVERHEAD: Final = 8
"""Counted for each frame when joining, so that empty ones are bounded too."""


_FRAME, _PIECE, _LAST = 1, 2, 3
"""Numbers of the fields of a message."""
_FRAMES: Final = b"\x0a"
"""Bytes before each frame in a message: the field's number and kind (protobuf's encoding)."""
_SHORT: Final = 1 << 14
"""Lengths below have one byte or two."""


def single(frame: bytes) -> bytes:
    """Encode one frame of at most ``PIECE_BYTES`` as a message."""
    length = len(frame)
    if length < 0x80:
        return _FRAMES + bytes((length,)) + frame
    if length < _SHORT:
        return _FRAMES + bytes((length & 0x7F | 0x80, length >> 7)) + frame
    return element(_FRAME, frame)


def _of_single(data: bytes) -> bytes | None:
    """Return the frame of a message that has a single short one; None for all others."""
    size = len(data)
    if size < 2 or data[0] != _FRAMES[0]:
        return None
    length = data[1]
    if length < 0x80:
        return data[2:] if size == length + 2 else None
    if size < 3 or data[2] >= 0x80:
        return None
    length = length & 0x7F | data[2] << 7
    return data[3:] if size == length + 3 else None


def messages(frames: Sequence[bytes]) -> Iterator[tuple[bytes, int]]:
    """Yield frames as messages, with the number of frame bytes in each, on demand."""
    if len(frames) == 1 and len(frames[0]) <= PIECE_BYTES:  # as nearly always
        yield single(frames[0]), len(frames[0])
        return
    joined: list[bytes] = []
    carried = room = 0
    for frame in frames:
        if len(frame) > PIECE_BYTES:
            if joined:
                yield b"".join(joined), carried
                joined, carried, room = [], 0, 0
            yield from _pieces(frame)
            continue
        joined.append(single(frame))
        carried += len(frame)
        room += len(frame) + _FRAME_OVERHEAD
        if room >= JOINED_BYTES:
            yield b"".join(joined), carried
            joined, carried, room = [], 0, 0
    if joined:
        yield b"".join(joined), carried


def _pieces(frame: bytes) -> Iterator[tuple[bytes, int]]:
    for at in range(0, len(frame), PIECE_BYTES):
        piece = frame[at : at + PIECE_BYTES]
        last = at + PIECE_BYTES >= len(frame)
        yield bytes_field(_PIECE, piece) + number_field(_LAST, last), len(piece)


def _read(data: bytes) -> tuple[list[bytes], bytes, bool]:
    """Return the frames of a message, its piece, and whether that is the last. Raises
    ValueError."""
    frames: list[bytes] = []
    at, size = 0, len(data)
    while at + 2 < size and data[at] == _FRAMES[0]:  # frames alone, as nearly always
        length, begin = data[at + 1], at + 2
        if length >= 0x80:
            if data[begin] >= 0x80:
                break
            length, begin = length & 0x7F | data[begin] << 7, begin + 1
        end = begin + length
        if end > size:
            break
        frames.append(data[begin:end])
        at = end
    piece, last = b"", False
    for number, value in fields(data[at:]):
        if isinstance(value, bytes):
            if number == _FRAME:
                frames.append(value)
            elif number == _PIECE:
                piece = value
        elif number == _LAST:
            last = value != 0
    return frames, piece, last


class Assembler:
    """Messages as frames again. Holds the pieces of one frame, of at most ``frame_max`` bytes."""

    __slots__ = ("_bytes", "_frame_max", "_pieces")

    def __init__(self, frame_max: int = FRAME_BYTES_MAX) -> None:
        self._frame_max = frame_max
        self._pieces: list[bytes] = []
        self._bytes = 0

    def take(self, data: bytes) -> list[bytes]:
        """Return the frames that a message completes, in order. Raises MalformedStream."""
        if not self._pieces:
            frame = _of_single(data)  # as nearly always
            if frame is not None:
                return [frame]
        try:
            frames, piece, last = _read(data)
        except ValueError as error:
            raise MalformedStream("a message is malformed") from error
        if bool(frames) == bool(piece):
            raise MalformedStream("a message must have either frames or a piece")
        if not piece:
            if self._pieces:
                raise MalformedStream("a fragmented frame is incomplete")
            return frames
        self._bytes += len(piece)
        if self._bytes > self._frame_max:
            self._pieces.clear()
            raise MalformedStream(f"a frame is longer than {self._frame_max} bytes")
        self._pieces.append(piece)
        if not last:
            return []
        whole = b"".join(self._pieces)
        self._pieces.clear()
        self._bytes = 0
        return [whole]

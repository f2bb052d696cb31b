"""Frames as messages: protobuf, as ``proto/fluxmq/cluster/v1/cluster.proto`` has it.

Frames of one turn are joined into messages of about ``JOINED_BYTES``, since a message costs some 40 µs on either side
whatever is in it. A frame that is longer than ``PIECE_BYTES`` goes in pieces, one message each and in order with the rest, so
that no message comes near gRPC's limit and neither side holds more than one such frame twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from google.protobuf.message import DecodeError

from fluxmq.cluster.errors import MalformedStream
from fluxmq.cluster.generated.cluster_pb2 import Message

MESSAGE_BYTES_MAX: Final = 32 << 20
"""Longest gRPC message that is sent or taken; what is received must fit into memory a few times over."""

PIECE_BYTES: Final = 4 << 20
"""A longer frame is carried in pieces of this length: some milliseconds of the event loop each."""

JOINED_BYTES: Final = 1 << 20
"""A message that holds this much is sent; a longer one would only make the receiver wait for its beginning."""

FRAME_BYTES_MAX: Final = 256 << 20
"""Longest frame. Above every limit on what a frame is made of: messages, entries, batches."""

_FRAME_OVERHEAD: Final = 8
"""Counted for each frame when joining, so that empty ones are bounded too."""


def messages(frames: Sequence[bytes]) -> Iterator[tuple[bytes, int]]:
    """Frames as messages, and how many bytes of frames each carries. Made one by one, as they are taken."""
    if len(frames) == 1 and len(frames[0]) <= PIECE_BYTES:  # as nearly always
        yield Message(frames=frames).SerializeToString(), len(frames[0])
        return
    joined: list[bytes] = []
    carried = room = 0
    for frame in frames:
        if len(frame) > PIECE_BYTES:
            if joined:
                yield Message(frames=joined).SerializeToString(), carried
                joined, carried, room = [], 0, 0
            yield from _pieces(frame)
            continue
        joined.append(frame)
        carried += len(frame)
        room += len(frame) + _FRAME_OVERHEAD
        if room >= JOINED_BYTES:
            yield Message(frames=joined).SerializeToString(), carried
            joined, carried, room = [], 0, 0
    if joined:
        yield Message(frames=joined).SerializeToString(), carried


def _pieces(frame: bytes) -> Iterator[tuple[bytes, int]]:
    for at in range(0, len(frame), PIECE_BYTES):
        piece = frame[at : at + PIECE_BYTES]
        last = at + PIECE_BYTES >= len(frame)
        yield Message(piece=piece, last=last).SerializeToString(), len(piece)


class Assembler:
    """Messages as frames again. Holds the pieces of at most one frame, of at most ``FRAME_BYTES_MAX``."""

    __slots__ = ("_bytes", "_pieces")

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._bytes = 0

    def take(self, data: bytes) -> list[bytes]:
        """The frames that a message completes, in their order. Raises MalformedStream."""
        try:
            message = Message.FromString(data)
        except DecodeError as error:
            raise MalformedStream("a message is not one") from error
        frames = list(message.frames)
        piece = message.piece
        if bool(frames) == bool(piece):
            raise MalformedStream("a message has neither frames nor a piece, or both")
        if not piece:
            if self._pieces:
                raise MalformedStream("a frame began in pieces and did not end")
            return frames
        self._bytes += len(piece)
        if self._bytes > FRAME_BYTES_MAX:
            self._pieces.clear()
            raise MalformedStream(f"a frame is longer than {FRAME_BYTES_MAX} bytes")
        self._pieces.append(piece)
        if not message.last:
            return []
        whole = b"".join(self._pieces)
        self._pieces.clear()
        self._bytes = 0
        return [whole]

"""A publish that arrives frame by frame: its method, then a header, then any number of body frames.

The hot path makes runs of publishes that lie in the receive buffer as a whole; those handled here
are spread over several body frames or reads, or are interleaved with other channels' frames.

Source: AMQP 0-9-1 sections 2.3.5.2 and 4.2.6 (content).
"""

from __future__ import annotations

from typing import Final

from fluxmq.protocols.amqp091.constants import (
    CLASS_BASIC,
    FRAME_BODY,
    FRAME_HEADER,
    FRAME_METHOD,
    ReplyCode,
)
from fluxmq.protocols.amqp091.content import split_header
from fluxmq.protocols.amqp091.errors import AmqpError, HardError, SoftError
from fluxmq.protocols.amqp091.method_codec import ids
from fluxmq.protocols.amqp091.methods import BasicPublish
from fluxmq.protocols.amqp091.run import AmqpPublishRun
from fluxmq.sessions.amqp091.budget import Share

PIECE_BYTES: Final = 64
"""Approximate size of the object that keeps one body frame, besides its bytes: a body may come in
frames of one byte."""


class IncomingContent:
    """The publish being assembled. ``size``: bytes of its body, -1 until the header came; ``have``:
    those received. ``share``: of the connection's budget; released with the content."""

    __slots__ = ("have", "method", "pieces", "properties", "share", "size")

    def __init__(self, method: BasicPublish, share: Share) -> None:
        self.method = method
        self.share = share
        self.size = -1
        self.have = 0
        self.properties = b""
        self.pieces: list[bytes] = []

    def add(self, kind: int, payload: bytes, size_max: int) -> bool:
        """Take the next frame; return True when the publish is complete.

        Raises AmqpError: 505 for an unexpected frame, 501 for a body longer than announced, 406 (of
        the channel) for one announced longer than ``size_max``, or when the connection holds too
        much.
        """
        try:
            if self.size < 0:
                self._header(kind, payload, size_max)
            else:
                self._body(kind, payload)
        except AmqpError as error:
            error.class_id, error.method_id = ids(BasicPublish)
            raise
        return self.have == self.size

    def _header(self, kind: int, payload: bytes, size_max: int) -> None:
        if kind != FRAME_HEADER:
            raise _unexpected(
                f"expected content header for class {CLASS_BASIC}, got non content header frame instead"
            )
        size, self.properties = split_header(payload)
        check_size(size, size_max)
        self.share.take(len(self.properties))
        self.size = size

    def _body(self, kind: int, payload: bytes) -> None:
        if kind != FRAME_BODY:
            raise _unexpected("expected content body, got non content body frame instead")
        self.have += len(payload)
        if self.have > self.size:
            raise HardError(
                ReplyCode.FRAME_ERROR, f"content body of more than {self.size} bytes announced"
            )
        # Any number of frames without payload may come; they must not take memory.
        if payload:
            self.share.take(len(payload) + PIECE_BYTES)
            self.pieces.append(payload)

    def run(self, channel: int) -> AmqpPublishRun:
        """Return the complete publish, as a run of one."""
        method = self.method
        return AmqpPublishRun.of(
            channel,
            method.exchange.encode(),
            method.routing_key.encode(),
            method.mandatory,
            method.immediate,
            self.properties,
            b"".join(self.pieces),
        )


def check_size(size: int, size_max: int) -> None:
    """Raise SoftError 406 for a message that is too large."""
    if size > size_max:
        text = f"message size {size} is larger than configured max size {size_max}"
        raise SoftError(ReplyCode.PRECONDITION_FAILED, text, *ids(BasicPublish))


def check_method_due(kind: int) -> None:
    """Raise HardError 505 for another frame where a method is due."""
    if kind != FRAME_METHOD:
        raise _unexpected("expected method frame, got non method frame instead")


def _unexpected(text: str) -> HardError:
    return HardError(ReplyCode.UNEXPECTED_FRAME, text)

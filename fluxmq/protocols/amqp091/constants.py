"""Numbers of AMQP 0.9.1: frame types, reply codes and their scope.

Source: AMQP 0-9-1 sections 1.2 (reply codes), 2.3.5 and 4.2.3 (frames).
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"
"""First bytes from a client, and the server's answer to any other version (section 4.2.2)."""

FRAME_METHOD: Final = 1
FRAME_HEADER: Final = 2
FRAME_BODY: Final = 3
FRAME_HEARTBEAT: Final = 8
FRAME_END: Final = 206

FRAME_OVERHEAD: Final = 8
"""Bytes of a frame besides its payload: type, channel, size, end."""

FRAME_MIN_SIZE: Final = 4096
"""Minimum of a negotiated frame_max, and the largest frame before negotiation (section 4.2.3)."""

HEARTBEAT: Final = b"\x08\x00\x00\x00\x00\x00\x00\xce"
"""A whole heartbeat frame."""

CLASS_BASIC: Final = 60
"""The only class with content."""

METHOD_PUBLISH: Final = 40
"""The only method of that class that a client sends with content."""

SHORT_STRING_BYTES_MAX: Final = 255
"""Maximum bytes of a short string: its length is one byte (section 4.2.5.3)."""


class ReplyCode(IntEnum):
    """Reason for a refusal or a close (section 1.2)."""

    REPLY_SUCCESS = 200
    CONTENT_TOO_LARGE = 311
    NO_ROUTE = 312
    NO_CONSUMERS = 313
    CONNECTION_FORCED = 320
    INVALID_PATH = 402
    ACCESS_REFUSED = 403
    NOT_FOUND = 404
    RESOURCE_LOCKED = 405
    PRECONDITION_FAILED = 406
    FRAME_ERROR = 501
    SYNTAX_ERROR = 502
    COMMAND_INVALID = 503
    CHANNEL_ERROR = 504
    UNEXPECTED_FRAME = 505
    RESOURCE_ERROR = 506
    NOT_ALLOWED = 530
    NOT_IMPLEMENTED = 540
    INTERNAL_ERROR = 541


HARD: Final = frozenset(
    {
        ReplyCode.CONNECTION_FORCED,
        ReplyCode.INVALID_PATH,
        ReplyCode.FRAME_ERROR,
        ReplyCode.SYNTAX_ERROR,
        ReplyCode.COMMAND_INVALID,
        ReplyCode.CHANNEL_ERROR,
        ReplyCode.UNEXPECTED_FRAME,
        ReplyCode.RESOURCE_ERROR,
        ReplyCode.NOT_ALLOWED,
        ReplyCode.NOT_IMPLEMENTED,
        ReplyCode.INTERNAL_ERROR,
    }
)
"""Codes that end the connection; the others from 311 on end the channel."""

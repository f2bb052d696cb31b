"""What a peer did wrong, in the reply codes of AMQP 0.9.1, by what it costs.

A `HardError` ends the connection with connection.close, a `SoftError` the channel with channel.close (section 1.2).
The text is without the code's name before it; `reply_text` puts it there.
"""

from __future__ import annotations

from typing import Final

from fluxmq.protocols.amqp091.constants import HARD, SHORT_STRING_BYTES_MAX, ReplyCode

OCTETS_SHOWN_MAX: Final = 32
"""Bytes of what is broken that a text shows: a reply text holds 255 characters."""


class AmqpError(Exception):
    """The peer broke the protocol or may not have what it wants.

    `class_id` and `method_id` name the method that did it, 0 where none did.
    """

    def __init__(self, code: ReplyCode, text: str, class_id: int = 0, method_id: int = 0) -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text
        self.class_id = class_id
        self.method_id = method_id

    def __str__(self) -> str:
        return f"{int(self.code)} {self.code.name} - {self.text}"


class HardError(AmqpError):
    """Ends the connection."""


class SoftError(AmqpError):
    """Ends the channel."""


def error_of(code: ReplyCode, text: str, class_id: int = 0, method_id: int = 0) -> AmqpError:
    """The error of the scope that the specification gives the code."""
    scope = HardError if code in HARD else SoftError
    return scope(code, text, class_id, method_id)


def reply_text(error: AmqpError) -> str:
    """Text of the close method: name of the code, dash, what happened; cut to what a short string holds."""
    return shortened(f"{error.code.name} - {error.text}")


def shortened(text: str) -> str:
    """At most 255 bytes of UTF-8 of it, whole characters."""
    raw = text.encode("utf-8", "replace")[:SHORT_STRING_BYTES_MAX]
    return raw.decode("utf-8", "ignore")


def octets(raw: bytes) -> str:
    """Bytes as RabbitMQ's texts have them; of a long one the beginning."""
    numbers = ",".join(map(str, raw[:OCTETS_SHOWN_MAX]))
    return f"<<{numbers}{',...' if len(raw) > OCTETS_SHOWN_MAX else ''}>>"


def unknown_frame(frame_type: int, payload: bytes) -> HardError:
    """The answer to a frame that is none of its type (501)."""
    text = f"type {frame_type}, all octets = {octets(payload)}: unknown_frame"
    return HardError(ReplyCode.FRAME_ERROR, text)

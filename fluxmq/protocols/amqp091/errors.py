"""Errors of a peer, in the reply codes of AMQP 0.9.1, by scope.

A `HardError` ends the connection with connection.close, a `SoftError` the channel with
channel.close (section 1.2). The text lacks the code's name in front; `reply_text` adds it.
"""

from __future__ import annotations

from typing import Final

from fluxmq.protocols.amqp091.constants import HARD, SHORT_STRING_BYTES_MAX, ReplyCode

OCTETS_SHOWN_MAX: Final = 32
"""Maximum bytes of malformed data in a text: a reply text holds 255 characters."""


class AmqpError(Exception):
    """The peer violated the protocol, or its request is refused.

    `class_id` and `method_id` name the offending method, 0 if there is none.
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
    """An error that ends the connection."""


class SoftError(AmqpError):
    """An error that ends the channel."""


def error_of(code: ReplyCode, text: str, class_id: int = 0, method_id: int = 0) -> AmqpError:
    """Return the error of the code's scope in the specification."""
    scope = HardError if code in HARD else SoftError
    return scope(code, text, class_id, method_id)


def reply_text(error: AmqpError) -> str:
    """Return the text of the close method: name of the code, dash, cause; truncated to a short
    string."""
    return shortened(f"{error.code.name} - {error.text}")


def shortened(text: str) -> str:
    """Return at most 255 bytes of UTF-8, whole characters."""
    raw = text.encode("utf-8", "replace")[:SHORT_STRING_BYTES_MAX]
    return raw.decode("utf-8", "ignore")


def octets(raw: bytes) -> str:
    """Return bytes as RabbitMQ's texts show them, truncated if long."""
    numbers = ",".join(map(str, raw[:OCTETS_SHOWN_MAX]))
    return f"<<{numbers}{',...' if len(raw) > OCTETS_SHOWN_MAX else ''}>>"


def unknown_frame(frame_type: int, payload: bytes) -> HardError:
    """Return the error for a frame of an unknown type (501)."""
    text = f"type {frame_type}, all octets = {octets(payload)}: unknown_frame"
    return HardError(ReplyCode.FRAME_ERROR, text)

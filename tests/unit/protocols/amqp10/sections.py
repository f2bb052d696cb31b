"""Sections of messages of AMQP 1.0, as bytes."""

from __future__ import annotations

from typing import Any

from fluxmq.protocols.amqp10 import codec

NAMES = {
    0x70: "amqp:header:list",
    0x71: "amqp:delivery-annotations:map",
    0x72: "amqp:message-annotations:map",
    0x73: "amqp:properties:list",
    0x74: "amqp:application-properties:map",
    0x75: "amqp:data:binary",
    0x76: "amqp:amqp-sequence:list",
    0x77: "amqp:amqp-value:*",
    0x78: "amqp:footer:map",
}


def encoded(code: int, value: Any, form: int = 0) -> bytes:
    """A section with its descriptor in one of four forms."""
    name = NAMES[code].encode()
    descriptor = (
        b"\x53" + bytes((code,)),
        b"\x80" + code.to_bytes(8, "big"),
        b"\xa3" + bytes((len(name),)) + name,
        b"\xb3" + len(name).to_bytes(4, "big") + name,
    )[form]
    return b"\0" + descriptor + codec.encode(value)

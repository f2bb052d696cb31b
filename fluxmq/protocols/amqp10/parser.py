"""Cuts a connection's bytes into protocol headers and frames, and passes them to its handler.

A frame's performative is decoded by the handler. ``connection.version`` is 0 while a protocol
header is due: at the start, and again once SASL is over.

Source: OASIS AMQP 1.0 part 2, sections 2.2 and 2.3.
"""

from __future__ import annotations

import struct
from typing import Final, Protocol

from fluxmq.protocols.amqp10.frames import (
    AMQP_HEADER,
    FRAME_AMQP,
    FRAME_SASL,
    HEADER_BYTES,
    SASL_HEADER,
    TLS_HEADER,
)
from fluxmq.protocols.connection import Connection

_FRAME: Final = struct.Struct(">IBBH")
_HEADERS: Final = frozenset((AMQP_HEADER, SASL_HEADER, TLS_HEADER))


def begins_amqp10(buffer: bytearray, end: int) -> bool:
    """Return whether ``buffer[:end]`` begins with a protocol header of AMQP 1.0: with SASL, TLS or
    neither."""
    return end >= HEADER_BYTES and bytes(buffer[:HEADER_BYTES]) in _HEADERS


class Amqp10Handler(Protocol):
    """Receiver of what the parser finds; ``connection.handler``."""

    def protocol_header(self, connection: Connection, header: bytes) -> None:
        """Handle eight bytes where a protocol header was due."""

    def frame(self, connection: Connection, kind: int, channel: int, body: bytes) -> None:
        """Handle a frame. ``body``: without its header; empty for a heartbeat."""

    def processed(self, connection: Connection) -> None:
        """Finish with the frames of one read."""

    def broken(self, connection: Connection, text: str) -> None:
        """Handle bytes that are no frame; later ones are ignored."""


class Amqp10Parser:
    """Passes the frames of any connection to its handler. ``capacity``: bytes of the receive
    buffer."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity

    def process(self, connection: Connection, buffer: bytearray, end: int) -> int:
        """Handle the frames in ``buffer[:end]``; the connection keeps incomplete bytes. Return
        0."""
        handler: Amqp10Handler = connection.handler
        at, needed = self._frames(connection, handler, buffer, end)
        if connection.fd < 0 or connection.closing or at < 0:
            return 0
        handler.processed(connection)
        if at < end and connection.fd >= 0 and not connection.closing:
            connection.gather(buffer, at, end, needed, self.capacity)
        return 0

    def _frames(
        self, connection: Connection, handler: Amqp10Handler, buffer: bytearray, end: int
    ) -> tuple[int, int]:
        """Handle whole frames; return where the first incomplete one begins, -1 for nowhere, and
        its size as far as it is known."""
        at = 0
        needed = 0
        while at < end:
            needed = HEADER_BYTES
            if end - at < HEADER_BYTES:
                break
            if connection.version == 0:
                following = at + HEADER_BYTES
                connection.version = 1
                handler.protocol_header(connection, bytes(buffer[at:following]))
            else:
                size, offset, kind, channel = _FRAME.unpack_from(buffer, at)
                wrong = _wrong(size, offset, kind, connection.frame_max)
                if wrong:
                    handler.broken(connection, wrong)
                    return -1, 0
                if size > end - at:
                    needed = size
                    break
                following = at + size
                with memoryview(buffer) as view:
                    body = bytes(view[at + 4 * offset : following])
                handler.frame(connection, kind, channel, body)
            at = following
            needed = 0
            if connection.fd < 0 or connection.closing:
                return -1, 0
            if connection.paused:
                break
        return at, needed


def _wrong(size: int, offset: int, kind: int, largest: int) -> str:
    """Return what is wrong with a frame's header, empty for nothing."""
    if size > largest:
        return f"a frame of {size} bytes, the maximum is {largest}"
    if offset < 2 or 4 * offset > size:
        return f"a frame of {size} bytes with its body at {4 * offset}"
    if kind not in (FRAME_AMQP, FRAME_SASL):
        return f"a frame of the unknown type {kind}"
    return ""

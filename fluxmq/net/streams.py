"""Filters between the bytes of a socket and the bytes of MQTT.

A filter is fed received bytes and returns bytes to send; it never touches a socket, a clock or a
loop, so the connection that owns it is the same for plain TCP, TLS and WebSocket. Every filter
fails in one way only: ``closed`` becomes true and ``error`` holds the reason. No input makes it
raise.

The life of a filtered connection::

    plain = stream.feed(received)        # decoded so far, may be empty
    send(stream.pending())               # handshake, pong, alert: the filter's own output
    send(stream.encode(chunks))          # our output; includes anything still pending, in order
    if stream.closed: send(stream.pending()); close the socket
    send(stream.shutdown())              # an orderly end from our side
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

Chunk = bytes | bytearray | memoryview


class ByteFilter(Protocol):
    """One direction-aware filter; lives in the shard, owned by exactly one connection."""

    @property
    def closed(self) -> bool:
        """True when no plain byte will come out any more: send ``pending()``, then close the
        socket."""

    @property
    def error(self) -> str | None:
        """Reason for the closure, unless it was an orderly end."""

    def feed(self, data: Chunk) -> bytes:
        """Take wire bytes as received and return the plain bytes they complete. Never raises on
        input."""

    def encode(self, chunks: Sequence[Chunk]) -> bytes:
        """Return the wire bytes of ``chunks``, preceded by whatever is pending; empty when
        closed."""

    def pending(self) -> bytes:
        """Return and forget the wire bytes that the filter itself wants to send."""

    def shutdown(self) -> bytes:
        """Return the wire bytes of an orderly end.  Nothing can be encoded afterwards."""

    def release(self) -> None:
        """Break reference cycles of a closed connection, since garbage is seldom collected."""

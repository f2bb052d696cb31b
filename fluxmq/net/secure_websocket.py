"""MQTT over WebSocket over TLS (wss): one stream filter inside another.

Neither filter knows of the other. Both have their bounds; what one decodes goes into the other at
once, so nothing is kept between them.
"""

from __future__ import annotations

from collections.abc import Sequence

from fluxmq.net.streams import Chunk
from fluxmq.net.tls import TlsStream
from fluxmq.net.websocket import WebSocketStream


class SecureWebSocketStream:
    """The server's side of one wss connection (see `streams.ByteFilter`)."""

    __slots__ = ("tls", "websocket")

    def __init__(self, tls: TlsStream, websocket: WebSocketStream) -> None:
        self.tls = tls
        self.websocket = websocket

    @property
    def closed(self) -> bool:
        """True when no plain byte will come out any more."""
        return self.tls.closed or self.websocket.closed

    @property
    def error(self) -> str | None:
        """Reason for the failure; None for an orderly end."""
        return self.tls.error or self.websocket.error

    def feed(self, data: Chunk) -> bytes:
        """Take wire bytes and return the payload of every data frame they complete."""
        return self.websocket.feed(self.tls.feed(data))

    def encode(self, chunks: Sequence[Chunk]) -> bytes:
        """Return ``chunks`` as one encrypted binary frame; nothing when empty or not open."""
        return self._encrypt(self.websocket.encode(chunks))

    def pending(self) -> bytes:
        """Return what either filter wants to send: handshakes, alerts, pongs, close frames. Once
        the WebSocket has ended, close_notify too."""
        waiting = self._encrypt(self.websocket.pending())
        if self.websocket.closed and not self.tls.closed:
            waiting += self.tls.shutdown()
        return waiting

    def shutdown(self) -> bytes:
        """Return a close frame with code 1000 and close_notify. The peer's own close frame is not
        awaited: nobody would read it."""
        return self._encrypt(self.websocket.shutdown()) + self.tls.shutdown()

    def release(self) -> None:
        """Release the WebSocket's parser."""
        self.websocket.release()
        self.tls.release()

    def _encrypt(self, plain: bytes) -> bytes:
        return self.tls.encode([plain]) if plain else self.tls.pending()

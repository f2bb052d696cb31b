"""MQTT over WebSocket: RFC 6455 for the wire, MQTT 5 section 6 for MQTT's requirements on it.

Framing, masking, fragmentation and the closing handshake are those of the ``websockets`` library's
protocol object, which does no I/O. This module adds the listener's rules (path, origin,
subprotocol, binary only) and the bounds. It does not reassemble messages: MQTT control packets are
not aligned to frames [MQTT-6.0.0-2], so every fragment's payload is passed on as it comes, and
compression is never negotiated.

Memory: at most HANDSHAKE_BYTES_MAX before the upgrade, afterwards one frame of at most
``max_packet`` plus FRAME_MARGIN_BYTES. Rejected alternative: feeding the library the request
together with the bytes after it; it would then answer frames before the request.
"""

from __future__ import annotations

import http
import logging
import struct
from collections.abc import Sequence

from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request, Response
from websockets.protocol import OPEN
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from fluxmq.auth.origins import PageOrigin, page_of
from fluxmq.net.streams import Chunk

SUBPROTOCOL = Subprotocol("mqtt")
"""Subprotocol that a client must offer [MQTT-6.0.0-3]."""

HANDSHAKE_BYTES_MAX = 8 * 1024
"""Size of the upgrade request: the same bound as everything else before authentication."""

FRAME_MARGIN_BYTES = 64 * 1024
"""Bytes by which a frame may exceed one packet: clients put several small packets into one
frame."""

PIECE_BYTES = 64 * 1024
"""Input is parsed in pieces of this size, so that a flood of empty frames cannot pile up
objects."""

_HEADER_END = b"\r\n\r\n"
_BINARY_FINAL = 0x82  # FIN, opcode 2

# The library logs every connection; ours are logged by their owner. Not part of the logger tree, whose
# levels belong to the process.
_SILENT = logging.Logger("websockets", logging.CRITICAL + 1)  # noqa: LOG001


class WebSocketStream:
    """The server's side of one WebSocket connection (see `streams.ByteFilter`).

    ``path``: the request's path must equal it; ``allowed_origins``: see ``page_of``, whose result
    is in ``page``. A request without Origin comes from a program, not from a page, and is not
    checked. ``max_packet``: the largest MQTT packet, in bytes.
    """

    __slots__ = (
        "_closed",
        "_ending",
        "_error",
        "_open",
        "_origins",
        "_path",
        "_protocol",
        "_request",
        "page",
    )

    def __init__(self, path: str, allowed_origins: Sequence[str], max_packet: int) -> None:
        self._path = path
        self._origins = allowed_origins
        self._protocol = ServerProtocol(
            subprotocols=[SUBPROTOCOL],
            # Messages may be endless, they are streamed; a frame is held in memory and therefore bounded.
            max_size=(None, max_packet + FRAME_MARGIN_BYTES),
            logger=_SILENT,
        )
        self._request = bytearray()
        self._open = False
        self._ending = False
        self._closed = False
        self._error: str | None = None
        self.page = PageOrigin.FOREIGN

    @property
    def closed(self) -> bool:
        """True when no plain byte will come out any more."""
        return self._closed

    @property
    def error(self) -> str | None:
        """Reason for the failure; None for an orderly end."""
        return self._error

    def feed(self, data: Chunk) -> bytes:
        """Take wire bytes and return the payload of every data frame they complete."""
        plain: list[bytes] = []
        rest = memoryview(data)
        if not self._open and not self._closed:
            rest = self._handshake(rest)
        while len(rest) and not self._closed:
            self._protocol.receive_data(bytes(rest[:PIECE_BYTES]))
            rest = rest[PIECE_BYTES:]
            self._take_frames(plain)
        return plain[0] if len(plain) == 1 else b"".join(plain)

    def encode(self, chunks: Sequence[Chunk]) -> bytes:
        """Return one binary frame holding all of ``chunks``; nothing when empty or not open."""
        waiting = self.pending()
        length = sum(len(chunk) for chunk in chunks)
        if not self._open or self._closed or self._ending or not length:
            return waiting
        # Written out rather than by Frame.serialize, which copies the payload once more.
        if length < 126:
            header = bytes((_BINARY_FINAL, length))
        elif length < 65536:
            header = struct.pack(">BBH", _BINARY_FINAL, 126, length)
        else:
            header = struct.pack(">BBQ", _BINARY_FINAL, 127, length)
        return b"".join((waiting, header, *chunks))

    def pending(self) -> bytes:
        """Return the handshake response, pongs and close frames."""
        return b"".join(self._protocol.data_to_send())

    def shutdown(self) -> bytes:
        """Return a close frame with code 1000. The peer's own close frame is still awaited by
        ``feed``."""
        if self._open and not self._ending and self._protocol.state is OPEN:
            self._protocol.send_close(CloseCode.NORMAL_CLOSURE)
        self._ending = True
        if not self._open:
            self._closed = True
        return self.pending()

    def release(self) -> None:
        """Release the library's parser: suspended or failed, it and its exception refer to each
        other."""
        self._protocol.parser.close()
        self._protocol.parser_exc = None

    def _handshake(self, data: memoryview) -> memoryview:
        """Collect the upgrade request, answer it, and return what follows it."""
        seen = len(self._request)
        room = HANDSHAKE_BYTES_MAX - seen
        self._request += data[:room]
        end = self._request.find(_HEADER_END, max(0, seen - len(_HEADER_END) + 1))
        if end < 0:
            if len(self._request) >= HANDSHAKE_BYTES_MAX:
                status = http.HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
                self._refuse(self._protocol.reject(status, "request too large\n"))
            return data[len(data) :]
        end += len(_HEADER_END)
        rest = data[end - seen :]
        self._protocol.receive_data(bytes(self._request[:end]))
        self._request = bytearray()
        events = self._protocol.events_received()
        if len(events) != 1 or not isinstance(events[0], Request):
            self._closed = True
            self._error = "WebSocket: not a valid HTTP request"
            return rest[:0]
        response = self._judge(events[0])
        if response.status_code != http.HTTPStatus.SWITCHING_PROTOCOLS:
            self._refuse(response)
            return rest[:0]
        self._protocol.send_response(response)
        self._open = True
        return rest

    def _judge(self, request: Request) -> Response:
        """Apply the listener's own rules, then the standard's."""
        if request.path.partition("?")[0] != self._path:
            return self._protocol.reject(http.HTTPStatus.NOT_FOUND, "nothing here\n")
        headers = request.headers
        page = page_of(headers.get_all("Origin"), headers.get_all("Host"), self._origins)
        if page is None:
            return self._protocol.reject(http.HTTPStatus.FORBIDDEN, "origin not allowed\n")
        self.page = page
        return self._protocol.accept(request)

    def _refuse(self, response: Response) -> None:
        self._protocol.send_response(response)
        self._request = bytearray()
        self._closed = True
        body = bytes(response.body or b"").decode("utf-8", "replace").strip()
        self._error = f"WebSocket: HTTP {response.status_code}: {body}"

    def _take_frames(self, plain: list[bytes]) -> None:
        """Collect payloads; detect the end, orderly or not."""
        protocol = self._protocol
        for event in protocol.events_received():
            assert isinstance(event, Frame)  # the one request was answered
            if event.opcode is Opcode.BINARY or event.opcode is Opcode.CONT:
                if not self._ending:
                    plain.append(bytes(event.data))
            elif event.opcode is Opcode.TEXT:  # [MQTT-6.0.0-1]
                protocol.fail(CloseCode.UNSUPPORTED_DATA, "binary frames only")
                self._closed = True
                self._error = "WebSocket: text frame"
                return
        if protocol.parser_exc is not None:
            self._closed = True
            self._error = f"WebSocket: {protocol.parser_exc}"
        elif protocol.close_rcvd is not None:
            self._closed = True

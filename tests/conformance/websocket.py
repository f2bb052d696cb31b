"""The client's side of RFC 6455, small and by hand, so that tests can break its rules.

Responsible for the opening handshake, masking, cutting what is sent into frames of any size, and
joining what is received. It is a stream like a socket for `client.AmqpClient`.
"""

from __future__ import annotations

import base64
import hashlib
import os
import socket
import struct

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
DEADLINE = float(os.environ.get("FLUXMQ_TEST_DEADLINE", "15"))


class WebSocket:
    """A WebSocket connection; `frame_size` cuts what is sent into frames of at most so many bytes."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        path: str = "/mqtt",
        subprotocols: tuple[str, ...] = ("mqtt",),
        origin: str | None = None,
        frame_size: int | None = None,
    ) -> None:
        self.frame_size = frame_size
        self.socket = socket.create_connection((host, port), timeout=DEADLINE)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._bytes = bytearray()
        self._payload = bytearray()
        self.opcodes: list[int] = []
        key = base64.b64encode(os.urandom(16)).decode()
        lines = [
            f"GET {path} HTTP/1.1",
            f"Host: {host}:{port}",
            "Upgrade: websocket",
            "Connection: Upgrade",
            f"Sec-WebSocket-Key: {key}",
            "Sec-WebSocket-Version: 13",
        ]
        if subprotocols:
            lines.append(f"Sec-WebSocket-Protocol: {', '.join(subprotocols)}")
        if origin is not None:
            lines.append(f"Origin: {origin}")
        self.socket.sendall("\r\n".join([*lines, "", ""]).encode())
        self.status, self.headers = self._answer()
        if self.status == 101:
            digest = hashlib.sha1((key + GUID).encode(), usedforsecurity=False).digest()
            assert self.headers["sec-websocket-accept"] == base64.b64encode(digest).decode()

    def _answer(self) -> tuple[int, dict[str, str]]:
        while b"\r\n\r\n" not in self._bytes:
            data = self.socket.recv(4096)
            if not data:
                # Refused without a word: no status.
                return 0, {}
            self._bytes += data
        head, _, rest = bytes(self._bytes).partition(b"\r\n\r\n")
        self._bytes = bytearray(rest)
        first, *lines = head.decode().split("\r\n")
        fields = [line.partition(":") for line in lines]
        return int(first.split()[1]), {name.lower(): value.strip() for name, _, value in fields}

    def send_frame(
        self, opcode: int, payload: bytes = b"", *, final: bool = True, masked: bool = True
    ) -> None:
        """One frame, as told."""
        length = len(payload)
        mask_bit = 0x80 if masked else 0
        head = bytes([(0x80 if final else 0) | opcode])
        if length < 126:
            head += bytes([mask_bit | length])
        elif length < 1 << 16:
            head += struct.pack(">BH", mask_bit | 126, length)
        else:
            head += struct.pack(">BQ", mask_bit | 127, length)
        if masked:
            key = os.urandom(4)
            head += key
            stretched = (key * (length // 4 + 1))[:length]
            payload = (int.from_bytes(payload, "big") ^ int.from_bytes(stretched, "big")).to_bytes(
                length, "big"
            )
        self.socket.sendall(head + payload)

    def receive_frame(self) -> tuple[int, bytes] | None:
        """The next frame, control frames included; None at the end of the connection."""
        head = self._take(2)
        if head is None:
            return None
        assert not head[1] & 0x80, "a server must not mask (RFC 6455, 5.1)"
        length = head[1] & 0x7F
        if length == 126:
            length = struct.unpack(">H", self._take(2) or b"\0\0")[0]
        elif length == 127:
            length = struct.unpack(">Q", self._take(8) or bytes(8))[0]
        return head[0] & 0x0F, self._take(length) or b""

    def _take(self, count: int) -> bytes | None:
        while len(self._bytes) < count:
            data = self.socket.recv(65536)
            if not data:
                return None
            self._bytes += data
        taken = bytes(self._bytes[:count])
        del self._bytes[:count]
        return taken

    # --- as a stream for client.Client ----------------------------------------------------------

    def sendall(self, data: bytes) -> None:
        """Send bytes in binary frames."""
        size = self.frame_size or max(1, len(data))
        for start in range(0, len(data), size):
            self.send_frame(BINARY, data[start : start + size])

    def recv(self, size: int) -> bytes:
        """The payload of the next data frame, up to `size`; b"" once closed."""
        while not self._payload:
            frame = self.receive_frame()
            if frame is None or frame[0] == CLOSE:
                return b""
            opcode, payload = frame
            self.opcodes.append(opcode)
            if opcode in (BINARY, CONTINUATION):
                self._payload += payload
        taken = bytes(self._payload[:size])
        del self._payload[:size]
        return taken

    def settimeout(self, seconds: float | None) -> None:
        """As a socket's."""
        self.socket.settimeout(seconds)

    def close(self) -> None:
        """Close the connection without a closing handshake."""
        self.socket.close()

"""The kernel's figures of a client's socket: this end's address, and bytes received and sent.

Asked when somebody looks at a connection, so that reading and writing count nothing themselves. The
kernel's numbers are of TCP's payload, TLS and WebSocket included.
"""

from __future__ import annotations

import socket
import struct
from typing import Final, NamedTuple

RECEIVED_AT: Final = 128
SENT_AT: Final = 200
"""Places of ``tcpi_bytes_received``, and of ``tcpi_bytes_sent`` before ``tcpi_bytes_retrans``, in the
kernel's ``struct tcp_info`` (include/uapi/linux/tcp.h), to which fields are only added."""
INFO_BYTES: Final = 216


class SocketFigures(NamedTuple):
    """This end's address and port, and bytes received and sent; None for what is not known."""

    host: str | None = None
    port: int | None = None
    received: int | None = None
    sent: int | None = None


NOTHING: Final = SocketFigures()


def figures_of_socket(fd: int) -> SocketFigures:
    """Return the figures of a socket, which stays open; nothing if it has ended or is no TCP socket."""
    try:
        sock = socket.socket(fileno=fd)
    except (OSError, ValueError):
        return NOTHING
    try:
        host, port = sock.getsockname()[:2]
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, INFO_BYTES)
    except (OSError, ValueError):
        return NOTHING
    finally:
        sock.detach()
    if len(info) < INFO_BYTES:
        return SocketFigures(host, port)
    (received,) = struct.unpack_from("=Q", info, RECEIVED_AT)
    sent, again = struct.unpack_from("=QQ", info, SENT_AT)
    return SocketFigures(host, port, received, sent - again)

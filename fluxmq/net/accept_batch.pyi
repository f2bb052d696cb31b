# Types of ``batch``, for the checker: the source's annotations are C types.

import socket
from typing import Final

LISTENERS_MAX: Final = 8
PEER_MAX: Final = 255
DATA_MAX: Final = 65535

class Batch:
    connections_max: int
    bytes_max: int
    used: int
    body: bytearray
    counts: bytearray
    fds: list[int]
    paused: bool

    def __init__(self, connections_max: int, bytes_max: int) -> None: ...
    def clear(self) -> None: ...
    def add(
        self, fd: int, listener: int, peer: bytes, data: bytes | bytearray, length: int
    ) -> bool: ...
    def message(self) -> bytes: ...
    def send(self, sock: socket.socket) -> bool: ...
    def close(self) -> None: ...

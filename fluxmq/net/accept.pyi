# Types of ``accept``, for the checker: the source's annotations are C types.

import socket
from typing import Final

from fluxmq.net.accept_batch import Batch

NONE: Final = 0
HANDED: Final = 1
AWAIT: Final = 2
READ: Final = 3
ENDED: Final = 4
ASK: Final = 5
FAILED: Final = 6
NO_SHARD: Final = -1
EARLY_TURNS: Final = 3

class Entrance:
    limit: int
    batches: list[Batch]
    plain: int
    room: int
    ask_loopback: bool
    ask_others: bool
    left: int
    accepted: int
    early: list[tuple[int, int, bytes, bool, int]]
    due: list[tuple[int, int, bytes, bool, int]]
    buffer: bytearray
    length: int
    fd: int
    listener: int
    peer: bytes
    loopback: bool
    error: int

    def __init__(self, limit: int, batches: list[Batch], plain: int) -> None: ...
    def take(self, sock: socket.socket, listener: int) -> int: ...
    def begin(self) -> None: ...
    def again(self) -> int: ...
    def enter(self) -> int: ...
    def read(self, fd: int, most: int) -> int: ...
    def hear(self, fd: int, listener: int, peer: str) -> int: ...
    def data(self) -> bytes: ...

def shard_of_connect(buffer: bytearray, length: int, limit: int, workers: int) -> int: ...

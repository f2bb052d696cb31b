"""One bidirectional stream to another node, the same to whoever dialled and whoever was dialled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, Protocol

BACKLOG_BYTES_MAX = 64 << 20


class Hello(NamedTuple):
    node: str
    shard: int
    workers: int
    epoch: int
    purpose: str


class Listener(Protocol):
    def connected(self, connection: Connection) -> None: ...
    def received(self, connection: Connection, frames: Sequence[bytes]) -> None: ...
    def lost(self, connection: Connection, why: str) -> None: ...


class Connection:
    def __init__(self, hello: Hello, outgoing: bool, write: Callable[[bytes], Awaitable[None]]) -> None:
        self.hello = hello
        self.outgoing = outgoing
        self.open = True
        self.backlog_bytes = 0
        self.closed = asyncio.Event()
        self._write = write
        self._next: list[bytes] = []
        self._wake = asyncio.Event()

    def send(self, frame: bytes) -> bool:
        if not self.open or self.backlog_bytes > BACKLOG_BYTES_MAX:
            self.close()
            return False
        self._next.append(frame)
        self.backlog_bytes += len(frame)
        self._wake.set()
        return True

    def close(self) -> None:
        self.open = False
        self.closed.set()
        self._wake.set()

    async def pump(self) -> None:
        while self.open:
            await self._wake.wait()
            self._wake.clear()
            records, self._next = self._next, []
            if records and self.open:
                await self._write(encode(records))
                self.backlog_bytes -= sum(map(len, records))


def encode(records: Sequence[bytes]) -> bytes:
    pieces = []
    for record in records:
        pieces.append(b"\x0a" + _varint(len(record)))
        pieces.append(record)
    return b"".join(pieces)


def _varint(n: int) -> bytes:
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    out.append(n)
    return bytes(out)


def decode(data: bytes) -> list[bytes]:
    found = []
    at = 0
    while at < len(data):
        at += 1
        length = shift = 0
        while True:
            byte = data[at]
            at += 1
            length |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        found.append(data[at : at + length])
        at += length
    return found

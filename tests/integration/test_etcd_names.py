"""Endpoints of etcd by name: one that moves to another address is found there."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from typing import Any

from fluxmq.control.etcd.client import EtcdClient, EtcdError
from fluxmq.control.etcd.messages import Get
from tests.broker import HOST

MOVED = "127.0.0.2"
SECONDS = 10.0
"""Time in which it is found: gRPC by itself resolves a name again after 30 s."""
PAUSE = 0.2
"""Between two requests of the client, as its users make them."""


class NameServer(asyncio.DatagramProtocol):
    """Answers every question for an IPv4 address with one (RFC 1035, section 4.1)."""

    def __init__(self) -> None:
        self.address = HOST
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, addr: Any) -> None:
        question = data[12 : data.index(b"\0", 12) + 5]
        (kind,) = struct.unpack(">H", question[-4:-2])
        answer = b"\xc0\x0c" + struct.pack(">HHIH", 1, 1, 0, 4) + socket.inet_aton(self.address)
        answers = [answer] if kind == 1 else []
        head = data[:2] + struct.pack(">HHHHH", 0x8180, 1, len(answers), 0, 0)
        self._transport.sendto(head + question + b"".join(answers), addr)


def test_an_endpoint_whose_name_has_another_address_is_found_there() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        listening, names = await loop.create_datagram_endpoint(NameServer, local_addr=(HOST, 0))
        resolver = listening.get_extra_info("sockname")[1]
        came: list[str] = []

        async def serve(host: str, port: int) -> asyncio.Server:
            def connected(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                came.append(host)
                writer.close()

            return await asyncio.start_server(connected, host, port)

        before = await serve(HOST, 0)
        port = before.sockets[0].getsockname()[1]
        after = await serve(MOVED, port)
        client = EtcdClient([f"dns://{HOST}:{resolver}/etcd.example:{port}"])

        async def reach(host: str) -> None:
            async with asyncio.timeout(SECONDS):
                while host not in came:
                    try:
                        await client.transact((), (Get(b"x"),))
                    except EtcdError:
                        await asyncio.sleep(PAUSE)

        await reach(HOST)
        assert MOVED not in came
        names.address = MOVED
        began = time.monotonic()
        await reach(MOVED)
        assert time.monotonic() - began < SECONDS
        await client.close()
        for server in (before, after):
            server.close()
        listening.close()

    asyncio.run(scenario())

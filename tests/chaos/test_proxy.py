"""Links between nodes do what they are told: late, slow, silent, reset."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import pytest

from tests.broker import HOST, free_ports
from tests.chaos.proxy import Link, Manner

Scenario = Callable[[Link, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def over_a_link(scenario: Scenario) -> None:
    """A client connected through a link to a server that sends everything back."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    async def run() -> None:
        front, back = free_ports(2)
        server = await asyncio.start_server(echo, HOST, back)
        link = Link((HOST, front), (HOST, back), Random(1))
        await link.start()
        reader, writer = await asyncio.open_connection(HOST, front)
        try:
            await scenario(link, reader, writer)
        finally:
            writer.close()
            await link.stop()
            server.close()

    asyncio.run(run())


async def seconds(writer: asyncio.StreamWriter, reader: asyncio.StreamReader, data: bytes) -> float:
    """How long it takes there and back."""
    began = asyncio.get_running_loop().time()
    writer.write(data)
    assert await reader.readexactly(len(data)) == data
    return asyncio.get_running_loop().time() - began


def test_what_goes_in_comes_out_at_once_late_or_slowly() -> None:
    async def scenario(
        link: Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await seconds(writer, reader, bytes(1 << 20))
        link.behave(Manner(delay=0.05, jitter=0.01))
        assert await seconds(writer, reader, b"late") >= 0.1
        link.behave(Manner(bandwidth=200_000), Manner())
        assert await seconds(writer, reader, bytes(20_000)) >= 0.1
        assert link.passed == 2 * ((1 << 20) + 4 + 20_000)

    over_a_link(scenario)


def test_a_stalled_link_says_nothing_and_loses_nothing() -> None:
    async def scenario(
        link: Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        link.behave(Manner(), Manner(stalled=True))
        writer.write(b"there and not back")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.readexactly(1), 0.05)
        link.behave(Manner())
        assert await reader.readexactly(18) == b"there and not back"

    over_a_link(scenario)


def test_a_reset_ends_the_connection_and_another_can_be_made() -> None:
    async def scenario(
        link: Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await seconds(writer, reader, b"before")
        link.reset_soon()
        with pytest.raises(ConnectionResetError):
            await reader.readexactly(1)
        again_reader, again = await asyncio.open_connection(*link.listen)
        await seconds(again, again_reader, b"after")
        again.close()

    over_a_link(scenario)

"""Strangers at the addresses for other nodes, and strict ends of HTTP/2 by others, over sockets."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import ConnectionTerminated, DataReceived, RequestReceived, StreamEnded

from fluxmq.cluster import channels, greeting
from fluxmq.cluster.http2_frames import CUT_SHORT_MAX
from tests.integration.test_cluster_transport import (
    LONG,
    NODE1,
    NODE2,
    Side,
    dialling,
    listening,
    run,
    security,
)
from tests.protobuf.cluster_pb2 import Message

STRANGE = "127.0.0.2"
"""Where strangers come from in these tests; members are at 127.0.0.1."""


async def stranger(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection from an address of no member."""
    host, _, port = address.rpartition(":")
    return await asyncio.open_connection(host, int(port), local_addr=(STRANGE, 0))


@pytest.mark.parametrize("certificate", ["", "node"])
def test_strangers_do_not_keep_members_out(
    certificate: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Review finding 16: they hold their share, of connections and of TLS handshakes that they do not finish, and no more."""
    monkeypatch.setattr(channels, "SOCKETS_MAX", 4)
    monkeypatch.setattr(channels, "STRANGERS_MAX", 2)
    monkeypatch.setattr(channels, "STRANGERS_HANDSHAKES_MAX", 2)

    async def scenario() -> None:
        near, far = Side(), Side()
        one, two = (security(f"node{n}", certificate and f"node{n}") for n in (1, 2))
        two.hosts = frozenset(("127.0.0.1",))
        async with listening(far, two) as there:
            held = [await stranger(there.address) for _ in range(2)]
            await settled(lambda: there.door.strangers == 2)
            for _ in range(5):
                reader, writer = await stranger(there.address)
                with suppress(ConnectionError):
                    assert await reader.read(1000) == b""
                writer.close()
            assert two.guard.refused["connection"] == 5
            assert there.door.strangers_shaking == (2 if certificate else 0)
            async with dialling(near, there.address, one), dialling(near, there.address, one):
                for _ in range(2):
                    await near.ups.get()
                assert (there.door.inside, there.door.strangers) == (4, 2)
            for _, writer in held:
                writer.close()
            await settled(lambda: there.door.inside == 0)
            assert there.door.shaking == 0
        assert two.guard.refused["handshake"] == (2 if certificate else 0)

    run(scenario)


async def settled(condition: Callable[[], bool]) -> None:
    """Wait until something is so."""
    async with asyncio.timeout(LONG):
        while not condition():  # noqa: ASYNC110 - what is waited for tells nobody
            await asyncio.sleep(0.01)


def test_whoever_does_not_finish_the_handshake_is_sent_away(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Review finding 16: within the time for greetings, counted and logged."""
    monkeypatch.setattr(channels, "GREETING_SECONDS", 0.2)
    caplog.set_level("INFO", "fluxmq.cluster")

    async def scenario() -> None:
        safe = security("node2", "node2")
        async with listening(Side(), safe) as there:
            reader, writer = await stranger(there.address)
            await settled(lambda: there.door.shaking == 1)
            with suppress(ConnectionError):
                assert await reader.read(1000) == b""
            writer.close()
            await settled(lambda: there.door.inside == 0)
            assert safe.guard.refused["handshake"] == 1

    run(scenario)
    assert any("TLS handshake" in each.getMessage() for each in caplog.records)


def test_a_client_whose_calls_are_unknown_is_sent_away() -> None:
    """Review finding 16: streams that are refused as fast as they come end the connection; others go on."""

    async def scenario() -> None:
        near, far = Side(), Side()
        safe = security("node2")
        async with listening(far, safe) as there, dialling(near, there.address):
            member = await near.ups.get()
            reader, writer = await stranger(there.address)
            peer = H2Connection()
            peer.initiate_connection()
            asked = 0
            ended: list[Any] = []
            while not ended:
                room = peer.remote_settings.max_concurrent_streams - peer.open_outbound_streams
                for _ in range(min(room, 100)):
                    number = peer.get_next_available_stream_id()
                    peer.send_headers(number, UNKNOWN, end_stream=True)
                    asked += 1
                writer.write(peer.data_to_send())
                events = peer.receive_data(await reader.read(65_536))
                ended = [each for each in events if isinstance(each, ConnectionTerminated)]
                # Whoever asks at this pace is counted within one period.
                assert asked < 66_000
            assert ended[0].error_code == ErrorCodes.ENHANCE_YOUR_CALM
            assert safe.guard.refused["stream"] >= CUT_SHORT_MAX
            assert safe.guard.refused["protocol"] == 1
            writer.close()
            assert member.send(b"still there")
            assert await far.frames.get() == b"still there"

    run(scenario)


UNKNOWN = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/somebody.Else/Asks"),
    (":authority", "node2"),
    ("content-type", "application/grpc"),
]


def test_a_strict_client_and_a_strict_server_over_sockets() -> None:
    """Review finding 16: `h2` speaks with an endpoint and is spoken to by a dialer, and finds nothing wrong."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8"))
        peer.initiate_connection()
        metadata = [(key, b64encode(value).decode()) for key, value in greeting.as_metadata(NODE2)]
        while not reader.at_eof():
            writer.write(peer.data_to_send())
            for event in peer.receive_data(await reader.read(65_536)):
                if isinstance(event, RequestReceived):
                    answered = [(":status", "200"), ("content-type", "application/grpc")]
                    peer.send_headers(event.stream_id, answered + metadata)
                elif isinstance(event, DataReceived):
                    peer.send_data(event.stream_id, event.data)
                    peer.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        writer.close()

    async def scenario() -> None:
        near = Side()
        served = await asyncio.start_server(serve, "127.0.0.1", 0)
        host, port = served.sockets[0].getsockname()[:2]
        async with dialling(near, f"{host}:{port}"):
            here = await near.ups.get()
            assert here.hello == NODE2
            for frame in (b"small", bytes(40_000), b"last"):
                assert here.send(frame)
                assert await near.frames.get() == frame
        served.close()
        far = Side()
        async with listening(far) as there:
            reader, writer = await asyncio.open_connection(*there.address.rsplit(":", 1))
            peer = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
            peer.initiate_connection()
            metadata = [
                (key, b64encode(value).decode()) for key, value in greeting.as_metadata(NODE1)
            ]
            asked = [(key, value) for key, value in UNKNOWN if key != ":path"]
            peer.send_headers(1, [(":path", channels.CONNECT), *asked, *metadata])
            message = Message(frames=[b"from h2"]).SerializeToString()
            peer.send_data(1, b"\0" + len(message).to_bytes(4, "big") + message)
            writer.write(peer.data_to_send())
            assert await far.frames.get() == b"from h2"
            connection = await far.ups.get()
            assert connection.send(b"to h2")
            got = b""
            while b"to h2" not in got:
                for event in peer.receive_data(await reader.read(65_536)):
                    if isinstance(event, DataReceived):
                        got += event.data
                writer.write(peer.data_to_send())
            connection.close()
            ended: list[Any] = []
            while not ended:
                events = peer.receive_data(await reader.read(65_536))
                ended = [each for each in events if isinstance(each, StreamEnded)]
            writer.close()

    run(scenario)

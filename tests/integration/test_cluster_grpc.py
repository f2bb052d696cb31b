"""The transport between nodes and gRPC's own library: each understands the other, and what speaks neither is sent away."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import grpc
import grpc.aio
import pytest

from fluxmq.cluster import channels, greeting
from fluxmq.cluster.errors import CallRefused
from fluxmq.cluster.http2 import Http2
from fluxmq.cluster.http2_frames import PREFACE
from fluxmq.cluster.wire import MESSAGE_BYTES_MAX
from tests.integration.test_cluster_transport import (
    FILES,
    LONG,
    NODE1,
    NODE2,
    Side,
    dialling,
    listening,
    run,
    security,
)
from tests.protobuf.cluster_pb2 import Answer, Message, Question


def channel_to(address: str, certificate: str = "", node: str = "") -> Any:
    """A channel of gRPC's own library."""
    sizes = tuple((f"grpc.max_{way}_message_length", 64 << 20) for way in ("send", "receive"))
    if not certificate:
        return grpc.aio.insecure_channel(address, options=sizes)
    credentials = grpc.ssl_channel_credentials(
        (FILES / "ca.pem").read_bytes(),
        (FILES / f"{certificate}.key").read_bytes(),
        (FILES / f"{certificate}.pem").read_bytes(),
    )
    name = ("grpc.ssl_target_name_override", node)
    return grpc.aio.secure_channel(address, credentials, options=(*sizes, name))


@pytest.mark.parametrize("certificate", ["", "node"])
def test_a_client_of_grpcs_own_library_is_understood(certificate: str) -> None:
    async def scenario() -> None:
        far = Side()
        far.echoes = True
        async with (
            listening(far, security("node2", certificate and "node2")) as there,
            channel_to(there.address, certificate and "node1", "node2") as channel,
        ):
            call = channel.stream_stream(channels.CONNECT)(metadata=greeting.as_metadata(NODE1))
            assert greeting.from_metadata(await call.initial_metadata()) == NODE2
            for frames in ([b"a", b"b"], [os.urandom(3 << 20)], [b""] * 1000):
                await call.write(Message(frames=frames).SerializeToString())
                found: list[bytes] = []
                while len(found) < len(frames):
                    found += Message.FromString(await call.read()).frames
                assert found == frames
            asked = channel.unary_stream(channels.ASK)(
                Question(name="answer", body=b"long").SerializeToString(),
                metadata=greeting.as_metadata(NODE1),
            )
            chunks = [Answer.FromString(await asked.read()).body for _ in range(2)]
            assert [len(chunk) for chunk in chunks] == [5, MESSAGE_BYTES_MAX]
            assert await asked.code() is grpc.StatusCode.INTERNAL
            await call.done_writing()
            assert await far.losses.get() == "closed by the other node"
            assert await call.code() is grpc.StatusCode.OK
            other = channel.unary_unary("/somebody.Else/Asks")
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await other(b"")
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED

    run(scenario)


def test_a_server_of_grpcs_own_library_is_understood() -> None:
    async def connect(_: object, context: Any) -> None:
        await context.send_initial_metadata(greeting.as_metadata(NODE2))
        while (data := await context.read()) is not grpc.aio.EOF:
            await context.write(data)

    async def ask(request: bytes, context: Any) -> None:
        question = Question.FromString(request)
        for n in range(20):
            await context.write(Answer(body=question.body * (n + 1)).SerializeToString())
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "100 % of them: \u00e9")

    async def scenario() -> None:
        # Nodes ask more often whether the other is there than that library has it by default.
        server = grpc.aio.server(options=(("grpc.http2.max_ping_strikes", 0),))
        handlers = {
            "Connect": grpc.stream_stream_rpc_method_handler(connect),
            "Ask": grpc.unary_stream_rpc_method_handler(ask),
        }
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(channels.SERVICE, handlers),)
        )
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            near = Side()
            async with dialling(near, f"127.0.0.1:{port}") as dialer:
                here = await near.ups.get()
                assert here.hello == NODE2
                for frame in (b"small", os.urandom(3 << 20), b"last"):
                    assert here.send(frame)
                    assert await near.frames.get() == frame
                chunks = dialer.call("any", bytes(100_000), LONG)
                found = [len(await anext(chunks)) for _ in range(20)]
                with pytest.raises(CallRefused, match="100 % of them: \u00e9"):
                    await anext(chunks)
                assert found == [100_000 * (n + 1) for n in range(20)]
                await server.stop(0)
                assert await near.losses.get()
        finally:  # a server that outlives its loop keeps that from closing
            await server.stop(0)
            await server.wait_for_termination()

    run(scenario)


SILENT = Http2(True, 0, 1000).take()
"""How a connection begins on which nothing follows."""


@pytest.mark.parametrize(
    "sent",
    [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01", PREFACE + bytes(100), PREFACE[:7], SILENT],
)
def test_who_says_nothing_that_is_understood_is_sent_away_and_the_others_stay(
    sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "GREETING_SECONDS", 1.0)
    monkeypatch.setattr(channels, "IDLE_SECONDS", 1.0)

    async def scenario() -> None:
        near, far = Side(), Side()
        async with listening(far) as there, dialling(near, there.address):
            here = await near.ups.get()
            host, _, port = there.address.rpartition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(sent)
            while await reader.read(1000):  # settings, a farewell, and the end
                pass
            writer.close()
            here.send(b"still there")
            assert await far.frames.get() == b"still there"

    run(scenario)

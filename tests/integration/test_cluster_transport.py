"""The transport between nodes over real sockets: streams, calls, strangers, losses, ends."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import uvloop

from fluxmq.cluster import channels, greeting
from fluxmq.cluster.connection import NodeStream, StreamHello
from fluxmq.cluster.dialer import Dialer
from fluxmq.cluster.endpoint import CallHandler, Endpoint
from fluxmq.cluster.errors import CallFailed, CallRefused, EndpointError, SecurityError
from fluxmq.cluster.security import Security
from fluxmq.cluster.wire import MESSAGE_BYTES_MAX
from tests.protobuf.cluster_pb2 import Greeting

FILES = Path(__file__).parents[1] / "certificates" / "cluster"
LONG = 60.0
"""Seconds that no test takes unless it fails."""

NODE1 = StreamHello("node1", 0, 2, 111, "shard")
NODE2 = StreamHello("node2", 1, 4, 222, "shard")


def security(own: str, certificate: str = "", *members: str) -> Security:
    others = members or ("node1", "node2", "node3")
    if not certificate:
        return Security(own, others)
    return Security(
        own,
        others,
        certificate=str(FILES / f"{certificate}.pem"),
        key=str(FILES / f"{certificate}.key"),
        authority=str(FILES / "ca.pem"),
    )


class Side:
    """A listener that keeps what it is told. ``connection``: the newest."""

    def __init__(self) -> None:
        self.ups: asyncio.Queue[NodeStream] = asyncio.Queue()
        self.frames: asyncio.Queue[bytes] = asyncio.Queue()
        self.losses: asyncio.Queue[str] = asyncio.Queue()
        self.echoes = False

    def connected(self, connection: NodeStream) -> None:
        self.ups.put_nowait(connection)

    def received(self, connection: NodeStream, frames: Sequence[bytes]) -> None:
        for frame in frames:
            if self.echoes:
                connection.send(frame)
            else:
                self.frames.put_nowait(frame)

    def lost(self, connection: NodeStream, why: str) -> None:
        self.losses.put_nowait(why)


async def answer(hello: StreamHello, body: bytes) -> AsyncIterator[bytes]:
    """A call that does what its body says."""
    yield hello.node.encode()
    if body == b"refuse":
        raise CallRefused("not today")
    if body == b"fail":
        raise KeyError("a fault")
    if body == b"hang":
        await asyncio.Event().wait()
    if body == b"long":
        yield bytes(MESSAGE_BYTES_MAX)
        yield bytes(MESSAGE_BYTES_MAX + 1)
    yield body


@asynccontextmanager
async def listening(
    side: Side,
    safe: Security | None = None,
    accept: Callable[[StreamHello], str] = lambda _: "",
    address: str = "127.0.0.1:0",
    own: StreamHello = NODE2,
) -> AsyncIterator[Endpoint]:
    calls: dict[str, CallHandler] = {"answer": answer}
    found = Endpoint(safe or security("node2"), address, own, {"shard": side}, accept, calls)
    await found.start()
    try:
        yield found
    finally:
        await found.stop()


@asynccontextmanager
async def dialling(
    side: Side,
    address: str,
    safe: Security | None = None,
    own: StreamHello = NODE1,
    node: str = "node2",
) -> AsyncIterator[Dialer]:
    found = Dialer(safe or security("node1"), address, node, own, side)
    found.start()
    try:
        yield found
    finally:
        await found.stop()


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(LONG):
            await scenario()

    uvloop.run(bounded())


@pytest.mark.parametrize("certificate", ["", "node"])
def test_frames_cross_in_both_directions(certificate: str) -> None:
    async def scenario() -> None:
        near, far = Side(), Side()
        one, two = (security(f"node{n}", certificate and f"node{n}") for n in (1, 2))
        async with listening(far, two) as there, dialling(near, there.address, one):
            here, away = await near.ups.get(), await far.ups.get()
            assert (here.hello, here.outgoing) == (NODE2, True)
            assert (away.hello, away.outgoing) == (NODE1, False)
            frames = [b"a", b"", bytes(70_000), b"x" * (9 << 20), b"last"]
            for frame in frames:
                assert here.send(frame)
                assert away.send(frame)
            assert [await far.frames.get() for _ in frames] == frames
            assert [await near.frames.get() for _ in frames] == frames
            away.close()
            assert await far.losses.get() == "closed"
            assert await near.losses.get() == "closed by the other node"
            assert await near.ups.get() is not here
        assert await near.losses.get() == "stopped"

    run(scenario)


def test_a_frame_of_many_messages_crosses() -> None:
    async def scenario() -> None:
        near, far = Side(), Side()
        far.echoes = True
        frame = os.urandom(1 << 20) * 80
        async with listening(far) as there, dialling(near, there.address):
            here = await near.ups.get()
            assert here.send(frame)
            assert not here.send(b"one more, while so much waits")
            assert (await near.losses.get()).startswith(f"{len(frame)} bytes are waiting")
            here = await near.ups.get()
            assert here.send(frame[: 40 << 20])
            assert here.send(b"behind it")
            assert await near.frames.get() == frame[: 40 << 20]
            assert await near.frames.get() == b"behind it"
            assert here.backlog_bytes == 0

    run(scenario)


STRANGERS = [
    ({"node": "node9"}, "not among the nodes"),
    ({"node": "node2"}, "own name"),
    ({"purpose": "group:orders"}, "address of shard, not of group:orders"),
    ({"version": greeting.VERSION + 1}, f"version {greeting.VERSION + 1}"),
    ({"shard": 7}, "no such shard"),
    (None, "the greeting is missing"),
]


@pytest.mark.parametrize(("change", "problem"), STRANGERS)
def test_a_stranger_is_refused(
    change: dict[str, Any] | None, problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        far = Side()

        def accept(hello: StreamHello) -> str:
            return "no such shard" if hello.shard > 3 else ""

        async with (
            listening(far, accept=accept) as there,
            grpc.aio.insecure_channel(there.address) as channel,
        ):
            sent = Greeting(
                **{
                    "version": greeting.VERSION,
                    "node": "node1",
                    "purpose": "shard",
                    **(change or {}),
                }
            )
            metadata = ((greeting.KEY, sent.SerializeToString()),) if change else ()
            call = channel.stream_stream(channels.CONNECT)(metadata=metadata)
            assert await call.code() is grpc.StatusCode.PERMISSION_DENIED
            assert problem in await call.details()
            assert there.refused == 1
            assert far.ups.empty()

    run(scenario)
    (record,) = [each for each in caplog.records if each.name == "fluxmq.cluster"]
    assert record.getMessage() == "refused another node"
    assert problem in vars(record)["problem"]


@pytest.mark.parametrize("sent", [b"\xff\xff\xff", b"", b"\x10\x01"])
def test_what_is_no_message_ends_the_stream_and_no_more(sent: bytes) -> None:
    async def scenario() -> None:
        near, far = Side(), Side()
        async with (
            listening(far) as there,
            grpc.aio.insecure_channel(there.address) as channel,
        ):
            call = channel.stream_stream(channels.CONNECT)(metadata=greeting.as_metadata(NODE1))
            await call.write(sent)
            await far.ups.get()
            assert "message" in await far.losses.get()
            assert await call.read() is grpc.aio.EOF
            async with dialling(near, there.address):
                (await near.ups.get()).send(b"still there")
                assert await far.frames.get() == b"still there"

    run(scenario)


def test_too_many_streams_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "STREAMS_MAX", 2)

    async def scenario() -> None:
        far = Side()
        async with listening(far) as there, AsyncExitStack() as stack:
            near = Side()
            for _ in range(2):
                await stack.enter_async_context(dialling(near, there.address))
                await near.ups.get()
            async with grpc.aio.insecure_channel(there.address) as channel:
                call = channel.stream_stream(channels.CONNECT)(metadata=greeting.as_metadata(NODE1))
                assert "2 streams already" in await call.details()

    run(scenario)


@pytest.mark.parametrize("certificate", ["", "node2"])
def test_connections_are_counted_while_they_last_and_no_longer(
    certificate: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that come to nothing in the TLS handshake, too."""
    monkeypatch.setattr(channels, "SOCKETS_MAX", 3)

    async def scenario() -> None:
        near, far = Side(), Side()
        safe = security("node1", certificate and "node1")
        async with listening(far, security("node2", certificate)) as there:
            host, _, port = there.address.rpartition(":")
            for _ in range(5):
                reader, writer = await asyncio.open_connection(host, int(port))
                writer.write(b"this is neither TLS nor HTTP/2" * 10)
                while await reader.read(1000):
                    pass
                writer.close()
            async with AsyncExitStack() as stack:
                for _ in range(3):
                    await stack.enter_async_context(dialling(near, there.address, safe))
                    await near.ups.get()
                more = Dialer(safe, there.address, "node2", NODE1, near)
                with pytest.raises(CallFailed):
                    await anext(more.call("answer", b"", LONG))
                await more.stop()
            async with dialling(near, there.address, safe):
                await near.ups.get()

    run(scenario)


WRONG = [
    ("node2", "node1", "node2", "other1"),  # an authority that is not the cluster's
    ("node2", "node1", "node2", "node3"),  # the certificate of another node
    ("node2", "node1", "node2", ""),  # none at all
    ("node3", "node1", "node2", "node1"),  # the wrong node where node2 should be
    ("", "node1", "node2", "node1"),  # no TLS there
]


@pytest.mark.parametrize(("there_has", "here", "wanted", "here_has"), WRONG)
def test_who_proves_nothing_gets_no_stream(
    there_has: str, here: str, wanted: str, here_has: str
) -> None:
    async def scenario() -> None:
        near, far = Side(), Side()
        async with listening(far, security("node2", there_has)) as there:
            dialer = Dialer(security(here, here_has), there.address, wanted, NODE1, near)
            with pytest.raises((CallFailed, CallRefused)):
                await anext(dialer.call("answer", b"", LONG))
            await dialer.stop()
            assert far.ups.empty()

    run(scenario)


def test_a_common_name_will_do_where_there_is_no_other() -> None:
    """On either side: gRPC compares the names of those that are dialled, and the endpoint those of who dials."""

    async def scenario() -> None:
        near, far = Side(), Side()
        own, safe = NODE1._replace(node="node3"), security("node3", "node3")
        async with (
            listening(far, security("node2", "node2")) as there,
            dialling(near, there.address, safe, own),
        ):
            assert (await far.ups.get()).hello.node == "node3"
        async with (
            listening(far, safe, own=own) as there,
            dialling(near, there.address, security("node1", "node1"), node="node3"),
        ):
            assert (await far.ups.get()).hello.node == "node1"

    run(scenario)


def test_the_wrong_node_behind_an_address_gets_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        near, far = Side(), Side()
        async with (
            listening(far) as there,
            dialling(near, there.address, node="node3"),
        ):
            await far.ups.get()
            assert await far.losses.get()
            await far.ups.get()  # it tries again
        assert near.ups.empty()

    run(scenario)
    found = [vars(each)["problem"] for each in caplog.records if hasattr(each, "problem")]
    assert "node2 answered instead of node3" in found


async def asked(dialer: Dialer, name: str, body: bytes, seconds: float = LONG) -> list[bytes]:
    return [chunk async for chunk in dialer.call(name, body, seconds)]


def test_calls_are_answered_refused_or_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "CALLS_MAX", 1)

    async def scenario() -> None:
        far = Side()
        dialer: Dialer
        async with listening(far) as there:
            dialer = Dialer(security("node1"), there.address, "node2", NODE1, Side())
            assert await asked(dialer, "answer", b"body") == [b"node1", b"body"]
            with pytest.raises(CallRefused, match=r"^not today$"):
                await asked(dialer, "answer", b"refuse")
            with pytest.raises(CallRefused, match="unknown call 'other'"):
                await asked(dialer, "other", b"")
            with pytest.raises(CallFailed, match="KeyError"):
                await asked(dialer, "answer", b"fail")
            with pytest.raises(CallFailed, match=r"within 0\.1 s"):
                await asked(dialer, "answer", b"hang", 0.1)
            stream = dialer.call("answer", b"long", LONG)
            assert await anext(stream) == b"node1"
            with pytest.raises(CallFailed, match="1 calls are in progress already"):
                await asked(dialer, "answer", b"")
            assert len(await anext(stream)) == MESSAGE_BYTES_MAX
            with pytest.raises(CallFailed, match=f"a chunk of {MESSAGE_BYTES_MAX + 1} bytes"):
                await anext(stream)
            refusing = Dialer(security("node9"), there.address, "node2", NODE1, Side())
            refusing._own = NODE1._replace(node="node9")
            with pytest.raises(CallRefused, match="not among the nodes"):
                await asked(refusing, "answer", b"")
            await refusing.stop()
        with pytest.raises(CallFailed):
            await asked(dialer, "answer", b"")
        await dialer.stop()

    run(scenario)


def test_addresses_that_cannot_be_used_are_named() -> None:
    async def scenario() -> None:
        async with listening(Side()) as there:
            second = Endpoint(
                security("node2"), there.address, NODE2, {"shard": Side()}, lambda _: ""
            )
            with pytest.raises(EndpointError, match=there.address):
                await second.start()
            await second.stop()
        away = Endpoint(security("node2"), "0.0.0.0:0", NODE2, {"shard": Side()}, lambda _: "")
        with pytest.raises(EndpointError, match=r"0\.0\.0\.0:0 is not a loopback address"):
            await away.start()
        dialer = Dialer(security("node1"), "192.0.2.1:1", "node2", NODE1, Side())
        with pytest.raises(SecurityError, match=r"192\.0\.2\.1:1 is not a loopback address"):
            await anext(dialer.call("answer", b"", LONG))

    run(scenario)


def test_a_node_that_comes_back_is_dialled_again() -> None:
    async def scenario() -> None:
        near = Side()
        async with AsyncExitStack() as stack:
            async with listening(Side()) as there:
                await stack.enter_async_context(dialling(near, there.address))
                first = await near.ups.get()
            await near.losses.get()
            assert not first.open
            assert not first.send(b"nobody hears it")
            far = Side()
            await stack.enter_async_context(listening(far, address=there.address))
            again = await near.ups.get()
            assert again.send(b"heard")
            assert await far.frames.get() == b"heard"

    run(scenario)


OTHER = """
import asyncio, sys
import uvloop
from tests.integration.test_cluster_transport import Side, listening

async def main():
    side = Side()
    side.echoes = True
    async with listening(side) as there:
        print(there.address, flush=True)
        await asyncio.Event().wait()

async def cancelled():
    from tests.integration.test_cluster_transport import NODE2, dialling, security
    from fluxmq.cluster.endpoint import Endpoint
    near, far = Side(), Side()
    there = Endpoint(security("node2"), "127.0.0.1:0", NODE2, {"shard": far}, lambda _: "")
    await there.start()
    async with dialling(near, there.address):
        (await near.ups.get()).send(b"x")
        await far.frames.get()
        asyncio.current_task().cancel()
        await asyncio.sleep(0)

if sys.argv[1] == "serve":
    uvloop.run(main())
runner = asyncio.run if sys.argv[2] == "asyncio" else uvloop.run
try:
    runner(cancelled())
except asyncio.CancelledError:
    print("ended")
"""


def test_a_node_that_is_silent_is_taken_for_dead() -> None:
    """A stopped process keeps its sockets: nothing but keepalive notices."""
    process = subprocess.Popen([sys.executable, "-c", OTHER, "serve"], stdout=subprocess.PIPE)
    assert process.stdout is not None
    address = process.stdout.readline().decode().strip()

    async def scenario() -> None:
        near = Side()
        async with dialling(near, address):
            here = await near.ups.get()
            here.send(b"x")
            assert await near.frames.get() == b"x"
            process.send_signal(signal.SIGSTOP)
            began = time.monotonic()
            assert await near.losses.get()
            expected = channels.KEEPALIVE_SECONDS + channels.KEEPALIVE_TIMEOUT_SECONDS
            assert time.monotonic() - began < expected + 5.0

    try:
        run(scenario)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_program_that_is_cancelled_ends_without_a_word(loop: str) -> None:
    """Even where nobody stopped the endpoint."""
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", OTHER, "cancel", loop]
    found = subprocess.run(command, capture_output=True, timeout=LONG, check=False, text=True)
    assert (found.stderr, found.stdout, found.returncode) == ("", "ended\n", 0)

"""A stream over queues in the place of gRPC: what is joined, bounded, and told of its end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from fluxmq.cluster import connection as connections
from fluxmq.cluster import wire
from fluxmq.cluster.connection import BACKLOG_BYTES_MAX, Connection, Hello
from fluxmq.cluster.dialer import (
    FIRST_PAUSE_SECONDS,
    LAST_PAUSE_SECONDS,
    STEADY_SECONDS,
    Backoff,
)
from fluxmq.cluster.errors import StreamEnded

HELLO = Hello("node2", 0, 1, 77, "shard")


class Told:
    """What a listener was told. ``on``: what to do besides, by event."""

    def __init__(self, **on: Callable[[Connection], object]) -> None:
        self.events: list[str] = []
        self.frames: list[list[bytes]] = []
        self.why = ""
        self.up = asyncio.Event()
        self._on = on

    def _note(self, event: str, connection: Connection) -> None:
        self.events.append(event)
        self._on.get(event, lambda _: None)(connection)

    def connected(self, connection: Connection) -> None:
        self.up.set()
        self._note("connected", connection)

    def received(self, connection: Connection, frames: Sequence[bytes]) -> None:
        self.frames.append(list(frames))
        self._note("received", connection)

    def lost(self, connection: Connection, why: str) -> None:
        assert not connection.open
        self.why = why
        self._note("lost", connection)


class Wires:
    """The two directions of a stream; ``gate`` is what a write waits for."""

    def __init__(self) -> None:
        self.incoming: asyncio.Queue[bytes | Exception | None] = asyncio.Queue()
        self.outgoing: asyncio.Queue[list[bytes]] = asyncio.Queue()
        self.writing = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()

    async def read(self) -> bytes | None:
        data = await self.incoming.get()
        if isinstance(data, Exception):
            raise data
        return data

    async def write(self, message: bytes) -> None:
        self.writing.set()
        await self.gate.wait()
        self.outgoing.put_nowait(wire.Assembler().take(message))

    def arrive(self, *frames: bytes) -> None:
        for message, _ in wire.messages(frames):
            self.incoming.put_nowait(message)


def carrying(
    told: Told, scenario: Callable[[Connection, Wires, asyncio.Task[None]], Awaitable[None]]
) -> Connection:
    """Run a stream beside a scenario, to the end of both."""

    async def main() -> Connection:
        wires = Wires()
        connection = Connection(HELLO, True, told)
        running = asyncio.create_task(connection.run(wires.read, wires.write))
        await scenario(connection, wires, running)
        await asyncio.wait([running])
        assert running.cancelled() or running.exception() is None
        return connection

    async def bounded() -> Connection:
        async with asyncio.timeout(20):
            return await main()

    return asyncio.run(bounded())


def test_frames_of_one_turn_are_one_message() -> None:
    told = Told(connected=lambda connection: connection.send(b"first"))

    async def scenario(connection: Connection, wires: Wires, _: object) -> None:
        assert await wires.outgoing.get() == [b"first"]
        for frame in (b"a", b"", b"b"):
            assert connection.send(frame)
        assert connection.backlog_bytes == 2
        assert await wires.outgoing.get() == [b"a", b"", b"b"]
        connection.send(b"c")
        assert await wires.outgoing.get() == [b"c"]
        assert connection.backlog_bytes == 0
        wires.arrive(b"x", b"y")
        wires.incoming.put_nowait(None)

    carrying(told, scenario)
    assert told.events == ["connected", "received", "lost"]
    assert told.frames == [[b"x", b"y"]]
    assert told.why == "ended by the other side"


def test_frames_gather_while_a_message_is_on_its_way() -> None:
    async def scenario(connection: Connection, wires: Wires, _: object) -> None:
        wires.gate.clear()
        connection.send(b"a")
        await wires.writing.wait()
        for frame in (b"b", b"c"):
            connection.send(frame)
            await asyncio.sleep(0)
        wires.gate.set()
        assert [await wires.outgoing.get() for _ in range(2)] == [[b"a"], [b"b", b"c"]]
        connection.close()

    carrying(Told(), scenario)


def test_a_backlog_that_grows_too_long_ends_the_stream() -> None:
    told = Told()
    frame = bytes(BACKLOG_BYTES_MAX // 4)

    async def scenario(connection: Connection, wires: Wires, _: object) -> None:
        await told.up.wait()
        wires.gate.clear()
        assert all(connection.send(frame) for _ in range(5))
        assert connection.open
        assert not connection.send(b"one more")
        assert not connection.open
        assert not connection.send(b"and another")

    connection = carrying(told, scenario)
    assert told.events == ["connected", "lost"]
    assert "bytes wait to be sent" in told.why
    assert connection.backlog_bytes == 0


def test_a_frame_that_is_too_long_ends_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "FRAME_BYTES_MAX", 10)
    told = Told()

    async def scenario(connection: Connection, wires: Wires, _: object) -> None:
        assert connection.send(bytes(10))
        assert await wires.outgoing.get() == [bytes(10)]
        assert not connection.send(bytes(11))

    carrying(told, scenario)
    assert told.events == ["connected", "lost"]


def test_nothing_is_received_after_close() -> None:
    told = Told(received=lambda connection: connection.close())

    async def scenario(connection: Connection, wires: Wires, _: object) -> None:
        wires.arrive(b"x")
        wires.arrive(b"y")

    carrying(told, scenario)
    assert told.frames == [[b"x"]]
    assert told.events == ["connected", "received", "lost"]
    assert told.why == "closed"


def test_what_has_come_when_it_is_closed_is_not_received() -> None:
    told = Told()

    async def scenario(connection: Connection, wires: Wires, _: object) -> None:
        connection.send(b"both tasks run")
        await wires.outgoing.get()
        wires.arrive(b"x")
        connection.close()

    carrying(told, scenario)
    assert told.events == ["connected", "lost"]


@pytest.mark.parametrize("event", ["connected", "received", "lost"])
def test_a_fault_of_the_listener_ends_the_stream_only(
    event: str, caplog: pytest.LogCaptureFixture
) -> None:
    def fault(_: Connection) -> None:
        raise KeyError(event)

    told = Told(**{event: fault})

    async def scenario(connection: Connection, wires: Wires, _: object) -> None:
        wires.arrive(b"x")
        if event == "lost":
            wires.incoming.put_nowait(None)

    carrying(told, scenario)
    assert told.events[-1] == "lost"
    assert told.events.count("lost") == 1
    assert "a stream between nodes ends after a fault here" in caplog.messages


@pytest.mark.parametrize(
    ("arrives", "why"),
    [(StreamEnded("it broke"), "it broke"), (b"\xff\xff", "a message is not one")],
)
def test_what_breaks_a_stream_is_told(arrives: bytes | Exception, why: str) -> None:
    told = Told()

    async def scenario(connection: Connection, wires: Wires, _: object) -> None:
        wires.incoming.put_nowait(arrives)

    carrying(told, scenario)
    assert told.events == ["connected", "lost"]
    assert told.why == why


def test_a_write_that_fails_ends_the_stream() -> None:
    told = Told()

    async def write(_: bytes) -> None:
        raise StreamEnded("no more")

    async def main() -> None:
        wires = Wires()
        connection = Connection(HELLO, False, told)
        running = asyncio.create_task(connection.run(wires.read, write))
        await told.up.wait()
        assert connection.send(b"x")
        await running

    asyncio.run(main())
    assert told.why == "no more"


def test_cancelling_tells_of_the_loss() -> None:
    told = Told()

    async def scenario(connection: Connection, wires: Wires, running: asyncio.Task[None]) -> None:
        await told.up.wait()
        running.cancel()

    carrying(told, scenario)
    assert told.events == ["connected", "lost"]
    assert told.why == "stopped"


def test_problems_of_one_node_are_said_a_few_times_a_second() -> None:
    before = connections._problems.suppressed_total
    for _ in range(20):
        carrying(Told(), _sends_rubbish)
    assert connections._problems.suppressed_total > before


async def _sends_rubbish(connection: Connection, wires: Wires, _: object) -> None:
    wires.incoming.put_nowait(b"\xff")


def test_pauses_double_and_are_spread() -> None:
    for draw, factor in ((0.0, 0.5), (1.0, 1.0)):
        backoff = Backoff(lambda draw=draw: draw)
        pauses = [backoff.after(0.0) / factor for _ in range(8)]
        expected = [min(FIRST_PAUSE_SECONDS * 2**n, LAST_PAUSE_SECONDS) for n in range(8)]
        assert pauses == pytest.approx(expected)


def test_a_steady_stream_is_dialled_again_at_once() -> None:
    backoff = Backoff(lambda: 1.0)
    for _ in range(5):
        backoff.after(STEADY_SECONDS)
    assert backoff.after(STEADY_SECONDS + 0.1) == 0.0
    assert backoff.after(0.0) == FIRST_PAUSE_SECONDS

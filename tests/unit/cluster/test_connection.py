"""A stream without a socket: what is joined, bounded, and told of its end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from fluxmq.cluster import connection as connections
from fluxmq.cluster import wire
from fluxmq.cluster.connection import BACKLOG_BYTES_MAX, NodeStream, StreamHello
from fluxmq.cluster.dialer import (
    FIRST_PAUSE_SECONDS,
    LAST_PAUSE_SECONDS,
    STEADY_SECONDS,
    Backoff,
)

HELLO = StreamHello("node2", 0, 1, 77, "shard")


class Told:
    """What a listener was told. ``on``: what to do besides, by event."""

    def __init__(self, **on: Callable[[NodeStream], object]) -> None:
        self.events: list[str] = []
        self.frames: list[list[bytes]] = []
        self.why = ""
        self.up = asyncio.Event()
        self._on = on

    def _note(self, event: str, connection: NodeStream) -> None:
        self.events.append(event)
        self._on.get(event, lambda _: None)(connection)

    def connected(self, connection: NodeStream) -> None:
        self.up.set()
        self._note("connected", connection)

    def received(self, connection: NodeStream, frames: Sequence[bytes]) -> None:
        self.frames.append(list(frames))
        self._note("received", connection)

    def lost(self, connection: NodeStream, why: str) -> None:
        assert not connection.open
        self.why = why
        self._note("lost", connection)


class Wires:
    """What a connection is written to. ``room``: messages that go out before it has to wait."""

    def __init__(self) -> None:
        self.sent: list[list[bytes]] = []
        self.room = 1 << 30
        self.ended = False
        self.resting = False

    @property
    def writable(self) -> bool:
        return self.room > 0

    def send(self, message: bytes) -> None:
        assert not self.ended
        self.room -= 1
        self.sent.append(wire.Assembler().take(message))

    def end(self) -> None:
        self.ended = True

    def rest(self, on: bool) -> None:
        self.resting = on


def arrive(connection: NodeStream, *frames: bytes) -> None:
    for message, _ in wire.messages(frames):
        connection.take(message)


def carrying(
    told: Told, scenario: Callable[[NodeStream, Wires], Awaitable[None]]
) -> tuple[NodeStream, Wires]:
    """Run a scenario with a stream; it is ended if the scenario does not."""

    async def main() -> tuple[NodeStream, Wires]:
        wires = Wires()
        connection = NodeStream(HELLO, True, told, wires)
        connection.start()
        await scenario(connection, wires)
        connection.broken("the test is over")
        await connection.ended
        assert wires.ended
        return connection, wires

    async def bounded() -> tuple[NodeStream, Wires]:
        async with asyncio.timeout(20):
            return await main()

    return asyncio.run(bounded())


async def turn() -> None:
    """What was to be done with this turn of the loop is done."""
    await asyncio.sleep(0)


def test_frames_of_one_turn_are_one_message() -> None:
    told = Told(connected=lambda connection: connection.send(b"first"))

    async def scenario(connection: NodeStream, wires: Wires) -> None:
        await turn()
        assert wires.sent == [[b"first"]]
        for frame in (b"a", b"", b"b"):
            assert connection.send(frame)
        assert connection.backlog_bytes == 2
        await turn()
        assert wires.sent[1:] == [[b"a", b"", b"b"]]
        connection.send(b"c")
        await turn()
        assert wires.sent[2:] == [[b"c"]]
        assert connection.backlog_bytes == 0
        arrive(connection, b"x", b"y")
        connection.broken("closed by the other node")

    carrying(told, scenario)
    assert told.events == ["connected", "received", "lost"]
    assert told.frames == [[b"x", b"y"]]
    assert told.why == "closed by the other node"


def test_who_has_given_all_its_frames_need_not_wait_for_the_turn() -> None:
    async def scenario(connection: NodeStream, wires: Wires) -> None:
        assert connection.put(b"a")
        assert connection.put(b"b")
        assert wires.sent == []
        connection.flush()
        assert wires.sent == [[b"a", b"b"]]
        await turn()
        assert len(wires.sent) == 1

    carrying(Told(), scenario)


def test_frames_gather_while_there_is_no_room() -> None:
    async def scenario(connection: NodeStream, wires: Wires) -> None:
        wires.room = 1
        for frame in (b"a", b"b", b"c"):
            connection.send(frame)
            await turn()
        assert wires.sent == [[b"a"]]
        wires.room = 1
        connection.writable()
        assert wires.sent == [[b"a"], [b"b", b"c"]]
        assert connection.backlog_bytes == 0

    carrying(Told(), scenario)


def test_a_long_frame_goes_as_far_as_there_is_room() -> None:
    async def scenario(connection: NodeStream, wires: Wires) -> None:
        wires.room = 2
        connection.send(bytes(3 * wire.PIECE_BYTES))
        connection.send(b"behind it")
        await turn()
        assert connection.backlog_bytes == wire.PIECE_BYTES + len(b"behind it")
        assert len(wires.sent) == 2
        wires.room = 2
        connection.writable()
        assert len(wires.sent) == 4
        assert connection.backlog_bytes == 0

    carrying(Told(), scenario)


def test_a_backlog_that_grows_too_long_ends_the_stream() -> None:
    told = Told()
    frame = bytes(BACKLOG_BYTES_MAX // 4)

    async def scenario(connection: NodeStream, wires: Wires) -> None:
        wires.room = 0
        assert all(connection.send(frame) for _ in range(5))
        assert connection.open
        assert not connection.send(b"one more")
        assert not connection.open
        assert not connection.send(b"and another")

    connection, wires = carrying(told, scenario)
    assert told.events == ["connected", "lost"]
    assert "bytes are waiting to be sent" in told.why
    assert connection.backlog_bytes == 0
    assert wires.sent == []


def test_a_frame_that_is_too_long_ends_the_stream() -> None:
    told = Told()

    async def scenario(connection: NodeStream, wires: Wires) -> None:
        assert connection.send(bytes(10))
        assert not connection.send(bytes(wire.FRAME_BYTES_MAX + 1))

    _, wires = carrying(told, scenario)
    assert told.events == ["connected", "lost"]
    assert wires.sent == []


def test_nothing_is_received_after_close() -> None:
    told = Told(received=lambda connection: connection.close())

    async def scenario(connection: NodeStream, wires: Wires) -> None:
        arrive(connection, b"x")
        arrive(connection, b"y")

    carrying(told, scenario)
    assert told.frames == [[b"x"]]
    assert told.events == ["connected", "received", "lost"]
    assert told.why == "closed"


@pytest.mark.parametrize("event", ["connected", "received", "lost"])
def test_a_fault_of_the_listener_ends_the_stream_only(
    event: str, caplog: pytest.LogCaptureFixture
) -> None:
    def fault(_: NodeStream) -> None:
        raise KeyError(event)

    told = Told(**{event: fault})

    async def scenario(connection: NodeStream, wires: Wires) -> None:
        arrive(connection, b"x")
        if event == "lost":
            connection.close()

    carrying(told, scenario)
    assert told.events[-1] == "lost"
    assert told.events.count("lost") == 1
    assert "inter-node stream closed after an internal error" in caplog.messages


def test_the_first_reason_is_told() -> None:
    told = Told()

    async def scenario(connection: NodeStream, wires: Wires) -> None:
        connection.take(b"\xff\xff")
        connection.broken("and then it broke")
        await connection.ended

    carrying(told, scenario)
    assert told.events == ["connected", "lost"]
    assert told.why == "a message is malformed"


def test_problems_of_one_node_are_said_a_few_times_a_second() -> None:
    async def rubbish(connection: NodeStream, wires: Wires) -> None:
        connection.take(b"\xff")

    before = connections._problems.suppressed_total
    for _ in range(20):
        carrying(Told(), rubbish)
    assert connections._problems.suppressed_total > before


def test_pauses_double_and_are_spread() -> None:
    for draw, factor in ((0.0, 0.5), (1.0, 1.0)):

        def drawn(draw: float = draw) -> float:
            return draw

        backoff = Backoff(drawn)
        pauses = [backoff.after(0.0) / factor for _ in range(8)]
        expected = [min(FIRST_PAUSE_SECONDS * 2**n, LAST_PAUSE_SECONDS) for n in range(8)]
        assert pauses == pytest.approx(expected)


def test_a_steady_stream_is_dialled_again_at_once() -> None:
    backoff = Backoff(lambda: 1.0)
    for _ in range(5):
        backoff.after(STEADY_SECONDS)
    assert backoff.after(STEADY_SECONDS + 0.1) == 0.0
    assert backoff.after(0.0) == FIRST_PAUSE_SECONDS

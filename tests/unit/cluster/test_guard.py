"""What the connections of a process have in common: bounds on what nobody reads, and refusals that are counted."""

from __future__ import annotations

import asyncio

import pytest

from fluxmq.cluster.guard import PROTOCOL, STREAM, UNREAD, Guard
from fluxmq.cluster.http2_frames import PING, PREFACE, SETTINGS, frame
from fluxmq.cluster.sockets import UNREAD_COUNTED, Socket
from tests.unit.cluster.test_sockets import Transport

MIB = 1 << 20


class Holder:
    """A connection that holds what the test says."""

    def __init__(self, guard: Guard, trusted: bool, length: int) -> None:
        self.peer = "192.0.2.1:1"
        self.trusted = trusted
        self.length = length
        self.ended = ""
        guard.holds(self, length)

    def unread(self) -> int:
        return self.length

    def overfull(self, why: str) -> None:
        self.ended = why


def test_what_all_connections_hold_together_is_bounded() -> None:
    """Review finding 16: many connections below their own bound are still too much."""
    guard = Guard(16 * MIB)
    holders = [Holder(guard, False, MIB) for _ in range(17)]
    ended = [each for each in holders if each.ended]
    assert len(ended) == 3
    assert guard.unread_bytes == 14 * MIB
    assert guard.refused[UNREAD] == 3


def test_those_of_nobody_known_go_first_and_the_largest_of_them() -> None:
    """Review finding 16: a stranger does not get a member's stream ended."""
    guard = Guard(16 * MIB)
    member = Holder(guard, True, 8 * MIB)
    small, large = Holder(guard, False, MIB), Holder(guard, False, 4 * MIB)
    other = Holder(guard, True, 4 * MIB)
    assert [bool(each.ended) for each in (member, small, large, other)] == [
        False,
        False,
        True,
        False,
    ]
    assert guard.unread_bytes == 13 * MIB


def test_what_was_read_meanwhile_is_not_held_against_anybody() -> None:
    guard = Guard(16 * MIB)
    holders = [Holder(guard, False, 2 * MIB) for _ in range(8)]
    for each in holders:
        each.length = 0
    last = Holder(guard, False, MIB)
    assert not any(each.ended for each in (*holders, last))
    assert guard.unread_bytes == MIB


def test_refusals_are_counted_and_logged_at_a_bounded_rate(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Review finding 16: refusals leave a trace, and not one for each."""
    guard = Guard()
    for _ in range(1000):
        guard.refuse(STREAM, "", "refused another node", problem="x" * 1000)
    assert guard.refused[STREAM] == 1000
    found = [each for each in caplog.records if each.name == "fluxmq.cluster"]
    assert 1 <= len(found) <= 10
    assert len(vars(found[0])["problem"]) == 300


def connected(guard: Guard) -> tuple[Socket, Transport]:
    socket = Socket(False, 4, guard=guard)
    transport = Transport(socket)
    socket.connection_made(transport)  # type: ignore[arg-type]
    return socket, transport


def test_a_connection_says_what_it_holds_as_long_as_it_lives() -> None:
    """Review finding 16: what waits to be written counts, until it is read or its connection ends."""

    async def scenario() -> None:
        guard = Guard(16 * MIB)
        begun = PREFACE + frame(SETTINGS, 0, 0, b"")
        socket, transport = connected(guard)
        socket.data_received(begun)
        for held, counted in ((MIB, MIB), (UNREAD_COUNTED, 0), (2 * MIB, 2 * MIB)):
            transport.unread = held
            socket.data_received(frame(PING, 0, 0, bytes(8)))
            assert guard.unread_bytes == counted
        transport.unread = 3 * MIB
        socket._on_look()
        assert guard.unread_bytes == 3 * MIB
        transport.unread = MIB
        socket.pause_writing()
        socket.resume_writing()
        assert guard.unread_bytes == MIB
        transport.abort()
        assert guard.unread_bytes == 0
        others = [connected(guard) for _ in range(9)]
        for other, way in others:
            other.data_received(begun)
            way.unread = 2 * MIB
            other.data_received(frame(PING, 0, 0, bytes(8)))
        assert [way.ended for _, way in others].count("aborted") == 2
        assert guard.refused[UNREAD] == 2
        assert guard.unread_bytes == 14 * MIB

    asyncio.run(scenario())


def test_what_is_not_http2_is_counted() -> None:
    async def scenario() -> None:
        guard = Guard()
        socket, transport = connected(guard)
        socket.data_received(b"GET / HTTP/1.1\r\n\r\n")
        assert transport.ended == "closed"
        assert guard.refused[PROTOCOL] == 1

    asyncio.run(scenario())

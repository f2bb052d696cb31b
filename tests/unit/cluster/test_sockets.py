"""A connection on a transport of the test's own: what it makes of time that has passed without it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from fluxmq.cluster import sockets
from fluxmq.cluster.http2 import Http2
from fluxmq.cluster.sockets import Socket, SocketStream


class Transport:
    """Takes everything, and says how it ended."""

    def __init__(self, socket: Socket) -> None:
        self.socket = socket
        self.written = b""
        self.ended = ""
        self.unread = 0

    def get_write_buffer_size(self) -> int:
        return self.unread

    def set_write_buffer_limits(self, high: int) -> None:
        assert high > 0

    def get_extra_info(self, name: str) -> object:
        return self if name == "ssl_object" else None  # so that it writes here

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.end("closed")

    def abort(self) -> None:
        self.end("aborted")

    def end(self, how: str) -> None:
        if not self.ended:
            self.ended = how
            self.socket.connection_lost(None)


def told(act: Callable[[Socket, bytes], None]) -> tuple[Transport, list[Any]]:
    """Let an endpoint's connection be there, and something happen to it: its transport, and the streams that it was told of."""
    opened: list[Any] = []

    def take(wire: SocketStream, fields: Any) -> None:
        opened.append(fields)

    async def main() -> Transport:
        socket = Socket(False, 4, take)
        transport = Transport(socket)
        socket.connection_made(transport)  # type: ignore[arg-type]
        client = Http2(True, 0, 1000)
        client.open(((":path", "/x"),))
        act(socket, client.take())
        return transport

    return asyncio.run(main()), opened


def test_what_comes_in_time_is_believed() -> None:
    transport, opened = told(lambda socket, data: socket.data_received(data))
    assert transport.ended == ""
    assert len(opened) == 1


def test_what_came_while_this_side_was_away_is_not() -> None:
    def after_a_pause(socket: Socket, data: bytes) -> None:
        socket._looked -= sockets.AWAY_SECONDS + 0.1
        socket.data_received(data)

    transport, opened = told(after_a_pause)
    assert transport.ended == "aborted"
    assert opened == []


def test_who_was_away_and_notices_first_says_so() -> None:
    def after_a_pause(socket: Socket, data: bytes) -> None:
        socket._looked -= sockets.AWAY_SECONDS + 0.1
        socket._on_look()
        assert socket.ended.done()

    assert told(after_a_pause)[0].ended == "aborted"


def test_who_looks_often_enough_is_there() -> None:
    def within_time(socket: Socket, data: bytes) -> None:
        socket._looked -= sockets.AWAY_SECONDS - 0.5
        socket._on_look()
        socket.data_received(data)

    transport, opened = told(within_time)
    assert transport.ended == ""
    assert len(opened) == 1


def test_who_reads_no_answers_is_heard_no_longer() -> None:
    def unread(length: int) -> Callable[[Socket, bytes], None]:
        def act(socket: Socket, data: bytes) -> None:
            socket._transport.unread = length
            socket.pause_writing()
            socket.data_received(data)

        return act

    transport, opened = told(unread(sockets.UNREAD_BYTES_MAX))
    assert (transport.ended, len(opened)) == ("", 1)
    transport, opened = told(unread(sockets.UNREAD_BYTES_MAX + 1))
    assert (transport.ended, len(opened)) == ("aborted", 0)


def pings(transport: Transport) -> int:
    """How often a transport was given a ping (RFC 9113, section 6.7)."""
    return transport.written.count(b"\x00\x00\x08\x06\x00")


def test_a_connection_at_rest_is_pinged_seldom_and_given_up_in_the_end() -> None:
    def rest(socket: Socket, data: bytes) -> None:
        socket.data_received(data)
        socket.rest(True)
        assert socket._look is not None
        left = socket._look.when() - asyncio.get_running_loop().time()
        assert left > sockets.RESTING_LOOK_SECONDS - 1
        socket._on_look()  # something was heard before it went to rest, or since the last look
        assert pings(socket._transport) == 0
        socket._on_look()
        assert pings(socket._transport) == 1
        assert not socket.ended.done()
        socket._on_look()

    transport, _ = told(rest)
    assert transport.ended == "aborted"


def test_a_connection_at_rest_believes_what_comes_if_others_have_looked() -> None:
    def rest(socket: Socket, data: bytes) -> None:
        socket.rest(True)
        socket._looked -= 10 * sockets.AWAY_SECONDS
        socket.data_received(data)

    transport, opened = told(rest)
    assert (transport.ended, len(opened)) == ("", 1)


def test_a_connection_at_rest_does_not_believe_what_came_while_the_process_was_away() -> None:
    def rest(socket: Socket, data: bytes) -> None:
        socket.rest(True)
        socket._guard.looked -= sockets.AWAY_SECONDS + 0.1
        socket.rest(False)
        socket.data_received(data)

    transport, opened = told(rest)
    assert (transport.ended, opened) == ("aborted", [])


def test_a_connection_that_has_rested_is_looked_at_as_before() -> None:
    def wake(socket: Socket, data: bytes) -> None:
        socket.rest(True)
        socket.rest(False)
        assert socket._look is not None
        left = socket._look.when() - asyncio.get_running_loop().time()
        assert left <= sockets.LOOK_SECONDS

    assert told(wake)[0].ended == ""

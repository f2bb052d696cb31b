"""One connection's bytes: partial writes, shared pieces, stream filters, incomplete packets, aliases."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence

import pytest

from fluxmq.net import sockets
from fluxmq.protocols.connection import CHUNK_MIN, DIRECT_MIN, Connection, Tally
from tests.unit.protocols.mqtt.lines import messages

LIMIT = 1 << 20


class Wire:
    """A connection and the socket at the other end."""

    def __init__(self, send_buffer: int = 0) -> None:
        ours, self.client = socket.socketpair()
        ours.setblocking(False)
        self.client.setblocking(False)
        if send_buffer:
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        self.dirty: list[Connection] = []
        self.connection = Connection(ours.detach(), Tally(), self.dirty, LIMIT, sockets.send)

    def read(self) -> bytes:
        """What is in the socket."""
        found = bytearray()
        while True:
            try:
                data = self.client.recv(1 << 20)
            except BlockingIOError:
                return bytes(found)
            if not data:
                return bytes(found)
            found += data

    def drain(self) -> tuple[bytes, int]:
        """Flush and read until everything is out; the bytes, and how many flushes it took."""
        found = bytearray()
        for flushes in range(1, 10_000):
            state = self.connection.flush()
            assert state >= 0
            found += self.read()
            if state == 1:
                return bytes(found), flushes
        raise AssertionError("the output does not end")

    def close(self) -> None:
        """Both ends."""
        self.client.close()
        if self.connection.fd >= 0:
            os.close(self.connection.fd)


@pytest.fixture
def wire() -> Iterator[Wire]:
    made = Wire()
    yield made
    made.close()


@pytest.fixture
def narrow() -> Iterator[Wire]:
    """The kernel takes a few kilobytes at a time."""
    made = Wire(send_buffer=4096)
    yield made
    made.close()


class Upper:
    """A stream filter that can be seen to work: it writes in capitals and marks each call."""

    def __init__(self) -> None:
        self.own = b""
        self.encoded: list[list[bytes]] = []
        self.closed = False

    def pending(self) -> bytes:
        data, self.own = self.own, b""
        return data

    def encode(self, chunks: Sequence[bytes | bytearray]) -> bytes:
        self.encoded.append([bytes(chunk) for chunk in chunks])
        return b"<" + b"".join(chunks).upper() + b">" if any(chunks) else b""

    def feed(self, data: bytes) -> bytes:
        return data.lower()

    def shutdown(self) -> bytes:
        return b""

    def release(self) -> None:
        """Hold nothing."""


def test_an_idle_connection_holds_no_buffers(wire: Wire) -> None:
    connection = wire.connection
    connection.append(b"x" * 10)
    connection.append(b"y" * CHUNK_MIN)
    assert wire.drain() == (b"x" * 10 + b"y" * CHUNK_MIN, 1)
    assert connection.out is None
    assert connection.chunks is None
    assert connection.tail is None
    assert connection.gathering is None
    assert connection.size == 0


def test_output_makes_a_connection_dirty_once(wire: Wire) -> None:
    connection = wire.connection
    connection.append(b"a")
    connection.append(b"b" * CHUNK_MIN)
    run = messages(3, 0)
    connection.append_slice(run.buffer, run.start, run.end, run.kept)
    assert wire.dirty == [connection]
    wire.drain()
    assert not connection.dirty
    connection.append(b"c")
    assert wire.dirty == [connection, connection]


def test_small_and_large_pieces_stay_in_order(wire: Wire) -> None:
    pieces = [b"a" * 10, b"b" * CHUNK_MIN, b"c" * 20, b"d", b"e" * (CHUNK_MIN + 1), b"f" * 3]
    for piece in pieces:
        wire.connection.append(piece)
    assert wire.connection.size == sum(map(len, pieces))
    assert wire.drain()[0] == b"".join(pieces)


def test_large_pieces_are_shared_and_small_ones_copied(wire: Wire) -> None:
    large = b"x" * CHUNK_MIN
    wire.connection.append(large)
    wire.connection.append(b"y" * (CHUNK_MIN - 1))
    assert wire.connection.chunks is not None
    assert wire.connection.chunks[0] is large
    assert isinstance(wire.connection.out, bytearray)


def test_a_kept_run_is_shared_by_all_who_get_it(wire: Wire, narrow: Wire) -> None:
    run = messages(1000, 0)
    run.detach()
    for each in (wire, narrow):
        each.connection.append_slice(run.buffer, run.start, run.end, run.kept)
        assert each.connection.chunks is not None
        assert each.connection.chunks[0] is run.buffer
        assert each.drain()[0] == run.buffer


def test_a_small_run_is_copied_from_the_receive_buffer(wire: Wire) -> None:
    run = messages(3, 0)
    before = bytes(run.buffer)
    wire.connection.append_slice(run.buffer, run.start, run.end, run.kept)
    assert isinstance(run.buffer, bytearray)
    run.buffer[:] = bytes(len(before))
    assert wire.drain()[0] == before
    assert not run.kept


@pytest.mark.parametrize("count", [1000, 10_000])
def test_a_large_run_survives_the_next_reading(narrow: Wire, count: int) -> None:
    """What the socket did not take at once must not be looked for in the receive buffer later."""
    run = messages(count, 0)
    buffer = run.buffer
    before = bytes(buffer)
    assert isinstance(buffer, bytearray)
    narrow.connection.append_slice(run.buffer, run.start, run.end, run.kept)
    buffer[:] = bytes(len(before))
    assert narrow.drain()[0] == before


def test_a_very_large_run_goes_straight_to_the_kernel(wire: Wire) -> None:
    run = messages(DIRECT_MIN // 8, 0)
    before = bytes(run.buffer)
    assert len(before) >= DIRECT_MIN
    wire.connection.append_slice(run.buffer, run.start, run.end, run.kept)
    assert wire.connection.size == 0
    assert wire.connection.chunks is None
    assert wire.read() == before


def test_nothing_overtakes_what_waits(wire: Wire) -> None:
    run = messages(DIRECT_MIN // 8, 0)
    wire.connection.append(b"first")
    wire.connection.append_slice(run.buffer, run.start, run.end, run.kept)
    assert wire.drain()[0] == b"first" + bytes(run.buffer)


def test_part_of_a_run_is_written_as_such(wire: Wire) -> None:
    for count in (10, 1000):
        run = messages(count, 0)
        run.detach()
        part = run.part(run.skip(0, 2), run.skip(0, count - 1), count - 3)
        wire.connection.append_slice(part.buffer, part.start, part.end, part.kept)
        assert wire.drain()[0] == run.buffer[part.start : part.end]


def test_partial_writes_lose_and_repeat_nothing(narrow: Wire) -> None:
    connection = narrow.connection
    written = bytearray()
    read = bytearray()
    for number in range(200):
        piece = bytes((number,)) * (17 * number % 9000)
        connection.append(piece)
        written += piece
        if number % 7 == 0:
            assert connection.flush() in (0, 1)
        if number % 5 == 0:
            read += narrow.read()
        assert connection.size == len(written) - len(read) - waiting(narrow)
    rest, flushes = narrow.drain()
    assert flushes > 1
    assert bytes(read + rest) == bytes(written)
    assert connection.size == 0


def waiting(wire: Wire) -> int:
    """Bytes in the kernel, not yet read."""
    return len(wire.client.recv(1 << 20, socket.MSG_PEEK)) if readable(wire) else 0


def readable(wire: Wire) -> bool:
    try:
        wire.client.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    return True


def test_room_is_what_the_limit_leaves(wire: Wire) -> None:
    wire.connection.append(b"x" * 1000)
    assert wire.connection.room() == LIMIT - 1000
    wire.drain()
    assert wire.connection.room() == LIMIT


def test_a_lost_connection_says_so(wire: Wire) -> None:
    wire.client.close()
    wire.connection.append(b"x")
    assert wire.connection.flush() == -1


def test_a_closed_connection_is_not_written(wire: Wire) -> None:
    fd, wire.connection.fd = wire.connection.fd, -1
    wire.connection.append(b"x")
    assert wire.connection.flush() == -1
    wire.connection.fd = fd


# Stream filters


def test_a_stream_filter_is_given_each_byte_once(narrow: Wire) -> None:
    stream = Upper()
    connection = narrow.connection
    connection.stream = stream
    read = bytearray()
    for number in range(20):
        connection.append(b"a" * 500)
        connection.append(b"b" * CHUNK_MIN)
        connection.flush()
        if number % 3 == 0:
            read += narrow.read()
    read += narrow.drain()[0]
    assert b"".join(map(b"".join, stream.encoded)) == (b"a" * 500 + b"b" * CHUNK_MIN) * 20
    assert bytes(read) == (b"<" + b"A" * 500 + b"B" * CHUNK_MIN + b">") * 20
    assert connection.size == 0
    assert connection.encoded == 0


def test_what_a_filter_has_to_say_goes_first(wire: Wire) -> None:
    stream = Upper()
    wire.connection.stream = stream
    stream.own = b"hello "
    wire.connection.append(b"data")
    assert wire.drain()[0] == b"hello <DATA>"
    stream.own = b"alone"
    wire.connection.buffer()
    assert wire.drain()[0] == b"alone"
    wire.connection.buffer()
    assert wire.drain()[0] == b""


def test_large_runs_pass_through_the_filter(wire: Wire) -> None:
    stream = Upper()
    wire.connection.stream = stream
    run = messages(DIRECT_MIN // 8, 0)
    before = bytes(run.buffer)
    wire.connection.append_slice(run.buffer, run.start, run.end, run.kept)
    assert wire.drain()[0] == b"<" + before.upper() + b">"


# Incomplete packets


def test_a_short_packet_is_kept_as_it_is(wire: Wire) -> None:
    wire.connection.gather(bytearray(b"..abc"), 2, 5, 100, 65_536)
    assert wire.connection.tail == b"abc"
    assert wire.connection.gathering is None


@pytest.mark.parametrize(("at", "needed"), [(2, 65_537), (0, CHUNK_MIN + 1)])
def test_a_long_one_gets_a_buffer_that_grows_with_what_comes(
    wire: Wire, at: int, needed: int
) -> None:
    connection = wire.connection
    connection.gather(bytearray(b"..abc"), at, 5, needed, 65_536)
    assert connection.tail is None
    assert connection.gathering is not None
    assert connection.gathered == 5 - at
    assert len(connection.gathering) == CHUNK_MIN
    while len(connection.gathering) < needed:
        connection.gathered = len(connection.gathering)
        connection.widen()
        assert connection.gathered < len(connection.gathering) <= 2 * connection.gathered
    assert len(connection.gathering) == needed
    assert connection.gathering.startswith(b"..abc"[at:])


def test_a_packet_from_a_filter_is_filled_up(wire: Wire) -> None:
    connection = wire.connection
    connection.stream = Upper()
    connection.gather(bytearray(b"a" * 10), 0, 10, 5000, 65_536)
    assert connection.gathering == bytearray(b"a" * 10)
    assert connection.fill(b"b" * 4989) == b""
    assert connection.gathered == 4999
    assert connection.fill(b"cde") == b"de"
    assert connection.gathering == bytearray(b"a" * 10) + b"b" * 4989 + b"c"
    assert connection.gathered == connection.needed == 5000


# Aliases and counts


def test_aliases_are_given_out_up_to_the_clients_maximum(wire: Wire) -> None:
    connection = wire.connection
    assert connection.alias(b"a") == 0
    connection.alias_maximum = 2
    assert [connection.alias(topic) for topic in (b"a", b"a", b"b", b"c", b"b", b"a")] == [
        *(-1, 1, -2, 0, 2, 1)
    ]


def test_messages_are_counted_by_quality_of_service() -> None:
    tally = Tally()
    for qos, count, size in ((0, 1, 10), (1, 2, 20), (2, 3, 30), (1, 4, 40)):
        tally.sent(qos, count, size)
        tally.received(qos, 10 * count, 10 * size)
    assert (tally.sent0, tally.sent1, tally.sent2) == (1, 6, 3)
    assert (tally.sent_bytes0, tally.sent_bytes1, tally.sent_bytes2) == (10, 60, 30)
    assert (tally.received0, tally.received1, tally.received2) == (10, 60, 30)
    assert (tally.received_bytes0, tally.received_bytes1, tally.received_bytes2) == (100, 600, 300)
    assert tally.runs == 4

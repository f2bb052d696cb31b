"""What an end of HTTP/2 remembers, takes and opens of what the other side may ask for without end."""

from __future__ import annotations

import struct

import pytest
from hpack import Decoder
from hpack.hpack import decode_integer

from fluxmq.cluster.http2 import Http2
from fluxmq.cluster.http2_frames import (
    CUT_SHORT_MAX,
    ENHANCE_YOUR_CALM,
    HEADER_TABLE_SIZE,
    HEADERS_BYTES_MAX,
    PREFACE,
    SETTINGS,
    Http2Error,
    frame,
)
from fluxmq.cluster.http2_streams import EventKind
from tests.unit.cluster.test_http2 import MESSAGE_MAX, Pair, headers, setting


def decoded(decoder: Decoder, block: bytes) -> tuple[tuple[object, object], ...]:
    """The fields in a block of headers."""
    return tuple((name, value) for name, value in decoder.decode(block))


def test_table_sizes_between_two_headers_cost_nothing() -> None:
    """Review finding 16: the least and the last are all that is remembered, and said (RFC 7541, 4.2)."""
    server = Http2(False, 4, MESSAGE_MAX)
    server.receive(PREFACE + frame(SETTINGS, 0, 0, b"") + headers(1))
    server.take()
    sizes = [*range(4095, 100, -1), *range(100, 3000)] * 20
    body = b"".join(struct.pack(">HI", HEADER_TABLE_SIZE, size) for size in sizes)
    step = HEADERS_BYTES_MAX // 6 * 6
    for at in range(0, len(body), step):
        server.receive(frame(SETTINGS, 0, 0, body[at : at + step]))
    assert server._encoder.table_size_changes == []
    server.take()
    server.headers(server.streams[1], ((":status", "200"),))
    block = server.take()[9:]
    assert len(block) < 20
    first, last = decode_integer(block, 5)
    assert first == min(sizes)
    second, end = decode_integer(block[last:], 5)
    assert second == sizes[-1]
    assert block[last + end :] == b"\x88"
    decoder = Decoder()
    decoder.header_table_size = 4096
    assert decoded(decoder, block) == ((":status", "200"),)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ((0,), [0]),
        ((0, 4096), [0, 4096]),
        ((4096,), []),
        ((1 << 31,), []),
        ((100, 200, 50, 300), [50, 300]),
        ((300, 200), [200]),
        ((100, 4096, 1 << 20), [100, 4096]),
    ],
)
def test_the_other_side_is_told_of_tables_that_shrank_and_grew(
    asked: tuple[int, ...], said: list[int]
) -> None:
    """Review finding 16: its decoder sees the least and the last size, and headers stay readable."""
    server = Http2(False, 4, MESSAGE_MAX)
    server.receive(PREFACE + frame(SETTINGS, 0, 0, b"") + headers(1))
    stream, decoder = server.streams[1], Decoder()
    fields = ((":status", "200"), ("x-long", "value" * 10))
    for _ in range(2):
        server.take()
        server.headers(stream, fields)
        assert decoded(decoder, server.take()[9:]) == fields
    for each in asked:
        server.receive(setting(HEADER_TABLE_SIZE, each))
    server.take()
    server.headers(stream, fields)
    block, found = server.take()[9:], []
    at = 0
    while block[at] & 0xE0 == 0x20:
        size, length = decode_integer(block[at:], 5)
        found.append(size)
        at += length
    assert found == said
    if said:
        decoder.header_table_size = said[-1]
    assert decoded(decoder, block) == fields
    server.headers(stream, fields)
    assert decoded(decoder, server.take()[9:]) == fields


def test_who_is_refused_again_and_again_is_sent_away() -> None:
    """Review finding 16: refused streams count as those that are cut short."""
    server = Http2(False, 4, MESSAGE_MAX)
    server.receive(PREFACE + frame(SETTINGS, 0, 0, b""))

    def ask(numbers: range) -> None:
        for number in numbers:
            ((_, stream, _),) = server.receive(headers(number))
            assert stream is not None
            server.turned_away()
            server.headers(stream, ((":status", "200"), ("grpc-status", "12")), ends=True)
            server.cut(stream)

    next_number = 1
    for _ in range(3):
        ask(range(next_number, next_number + 2 * CUT_SHORT_MAX, 2))
        next_number += 2 * CUT_SHORT_MAX
        server.calm()
    ask(range(next_number, next_number + 2 * CUT_SHORT_MAX + 2, 2))
    with pytest.raises(Http2Error) as caught:
        server.receive(headers(next_number + 2 * CUT_SHORT_MAX + 2))
    assert caught.value.code == ENHANCE_YOUR_CALM


def test_no_more_streams_are_opened_than_the_other_side_takes() -> None:
    """RFC 9113, 5.1.2: MAX_CONCURRENT_STREAMS holds for whoever gets it."""
    pair = Pair()
    for _ in range(4):
        assert not pair.client.full
        pair.open()
    assert pair.client.full
    pair.client.cut(next(iter(pair.client.streams.values())))
    assert not pair.client.full


def test_trailers_end_their_stream() -> None:
    """RFC 9113, 8.1: headers in the middle of a message break it, those that announce an answer do not."""
    pair = Pair()
    near, far = pair.open()
    pair.server.headers(far, ((":status", "103"),))
    pair.server.headers(far, ((":status", "200"),))
    pair.carry()
    assert pair.kinds(pair.client) == [EventKind.HEADERS] * 2
    pair.server.headers(far, (("grpc-status", "0"),))
    pair.carry()
    assert pair.kinds(pair.client)[-1] is EventKind.BROKEN
    assert pair.kinds(pair.server)[-1] is EventKind.BROKEN
    assert near.ended_here

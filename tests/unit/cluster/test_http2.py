"""HTTP/2 between two ends without a network, and against what nobody should send."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pytest
from hpack import Encoder
from hypothesis import given
from hypothesis import strategies as st

from fluxmq.cluster.http2 import Http2
from fluxmq.cluster.http2_frames import (
    ACK,
    COMPRESSION_ERROR,
    CONTINUATION,
    CUT_SHORT_MAX,
    DATA,
    ENABLE_PUSH,
    END_HEADERS,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    FLOW_CONTROL_ERROR,
    FRAME_BYTES_DEFAULT,
    FRAME_BYTES_MAX,
    FRAME_SIZE_ERROR,
    GOAWAY,
    HEADERS,
    HEADERS_BYTES_MAX,
    IDLE_FRAMES_MAX,
    INITIAL_WINDOW_SIZE,
    MAX_FRAME_SIZE,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PROTOCOL_ERROR,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    STREAM_CLOSED,
    WINDOW_DEFAULT,
    WINDOW_UPDATE,
    WITH_PRIORITY,
    Http2Error,
    frame,
)
from fluxmq.cluster.http2_streams import Event, EventKind, Http2Stream

FIELDS = ((":method", "POST"), (":path", "/s/m"), ("x-bin", "AAEC"))
MESSAGE_MAX = 1 << 20


class Pair:
    """Two ends. What each is told is kept; ``step``: bytes carried at once."""

    def __init__(self, step: int = 1 << 20, call_window: int = WINDOW_DEFAULT) -> None:
        self.client = Http2(True, 0, MESSAGE_MAX, call_window)
        self.server = Http2(False, 4, MESSAGE_MAX)
        self.step = step
        self.told: dict[Http2, list[Event]] = {self.client: [], self.server: []}
        self.carry()

    def carry(self) -> None:
        """Until neither has anything to say."""
        while True:
            quiet = True
            for here, there in ((self.client, self.server), (self.server, self.client)):
                data = here.take()
                quiet &= not data
                for at in range(0, len(data), self.step):
                    self.told[there] += there.receive(data[at : at + self.step])
            if quiet:
                return

    def open(self) -> tuple[Http2Stream, Http2Stream]:
        """A stream, from the client's side and the server's."""
        near = self.client.open(FIELDS)
        self.carry()
        far = self.told[self.server][-1][1]
        assert far is not None
        return near, far

    def messages(self, end: Http2) -> list[bytes]:
        """What an end has received."""
        return [what for kind, _, what in self.told[end] if kind is EventKind.MESSAGE]

    def kinds(self, end: Http2) -> list[EventKind]:
        """What an end was told of."""
        return [kind for kind, _, _ in self.told[end]]


@pytest.mark.parametrize("step", [1, 7, 1 << 20])
def test_a_call_from_its_beginning_to_its_end(step: int) -> None:
    pair = Pair(step)
    near, far = pair.open()
    pair.client.send(near, b"question")
    pair.client.finish(near)
    pair.carry()
    pair.server.headers(far, ((":status", "200"),))
    for message in (b"", b"answer"):
        pair.server.send(far, message)
    pair.server.headers(far, (("grpc-status", "0"),), ends=True)
    pair.carry()
    assert pair.told[pair.server] == [
        (EventKind.HEADERS, far, list(FIELDS)),
        (EventKind.MESSAGE, far, b"question"),
        (EventKind.ENDED, far, None),
    ]
    assert pair.told[pair.client] == [
        (EventKind.HEADERS, near, [(":status", "200")]),
        (EventKind.MESSAGE, near, b""),
        (EventKind.MESSAGE, near, b"answer"),
        (EventKind.HEADERS, near, [("grpc-status", "0")]),
        (EventKind.ENDED, near, None),
    ]
    assert not pair.client.streams
    assert not pair.server.streams


@given(
    st.lists(st.integers(0, 200_000), min_size=1, max_size=6),
    st.integers(1, 40_000),
    st.booleans(),
)
def test_messages_come_whole_and_in_order(sizes: list[int], step: int, wide: bool) -> None:
    pair = Pair(max(step, 500))
    near, far = pair.open()
    sent = [bytes((n,)) * size for n, size in enumerate(sizes)]
    if wide:
        pair.server.widen(far)
        pair.client.widen(near)
    for message in sent:
        pair.client.send(near, message)
        pair.server.send(far, message)
    pair.carry()
    for end, stream in ((pair.server, far), (pair.client, near)):
        seen = 0
        while len(pair.messages(end)) < len(sent):
            assert not wide
            now = pair.messages(end)
            if seen == len(now):  # a message longer than the window: whoever reads lets it come
                end.allow(stream, MESSAGE_MAX + 5)
            for message in now[seen:]:
                end.consumed(stream, message)
            seen = len(now)
            pair.carry()
        assert pair.messages(end) == sent


def test_who_is_not_read_is_held_back_and_goes_on() -> None:
    pair = Pair(call_window=100_000)
    near, far = pair.open()
    for _ in range(5):
        pair.server.send(far, bytes(40_000))
    pair.carry()
    assert len(pair.messages(pair.client)) == 2
    assert far.waiting
    for message in pair.messages(pair.client):
        pair.client.consumed(near, message)
    pair.carry()
    assert len(pair.messages(pair.client)) == 4
    for message in pair.messages(pair.client)[2:]:
        pair.client.consumed(near, message)
    pair.carry()
    assert len(pair.messages(pair.client)) == 5
    assert pair.kinds(pair.server)[-1] is EventKind.WRITABLE
    assert not far.waiting


@pytest.mark.parametrize(
    "wider",
    [{INITIAL_WINDOW_SIZE: 1 << 20}, {INITIAL_WINDOW_SIZE: 1 << 20, MAX_FRAME_SIZE: 1 << 18}],
)
def test_what_settings_allow_is_sent_behind_the_word_that_they_are_taken(
    wider: dict[int, int],
) -> None:
    server = Http2(False, 4, MESSAGE_MAX)
    server.receive(PREFACE + frame(SETTINGS, 0, 0, b"") + window(0, 1 << 20) + headers(1))
    stream = server.streams[1]
    server.send(stream, bytes(1 << 19))
    server.take()
    assert stream.waiting
    body = b"".join(struct.pack(">HI", key, value) for key, value in wider.items())
    events = server.receive(frame(SETTINGS, 0, 0, body))
    told = server.take()
    taken = frame(SETTINGS, ACK, 0, b"")
    assert told.startswith(taken)
    data = told[len(taken) :]
    assert data[3] == DATA
    assert int.from_bytes(data[:3], "big") == wider.get(MAX_FRAME_SIZE, FRAME_BYTES_DEFAULT)
    assert [kind for kind, _, _ in events] == [EventKind.WRITABLE]


def test_a_question_that_waits_for_a_window_ends_behind_itself() -> None:
    pair = Pair()
    near, far = pair.open()
    question = bytes(3 * WINDOW_DEFAULT)
    pair.client.send(near, question)
    pair.client.finish(near)
    pair.carry()
    assert pair.messages(pair.server) == []
    assert EventKind.ENDED not in pair.kinds(pair.server)
    pair.server.allow(far, len(question) + 5)
    pair.carry()
    assert pair.messages(pair.server) == [question]
    assert pair.kinds(pair.server)[-1] is EventKind.ENDED


def test_a_wide_stream_never_waits_for_who_reads() -> None:
    pair = Pair()
    near, far = pair.open()
    pair.server.widen(far)
    pair.carry()
    for _ in range(3000):
        pair.client.send(near, bytes(1 << 20))
        assert not near.waiting
        pair.carry()
        assert len(pair.messages(pair.server)) == 1
        pair.told[pair.server].clear()


def test_streams_beyond_the_limit_are_refused_and_the_others_go_on() -> None:
    pair = Pair()
    near = [pair.client.open(FIELDS) for _ in range(6)]
    pair.carry()
    assert pair.kinds(pair.client) == [EventKind.BROKEN] * 2
    assert len(pair.server.streams) == 4
    pair.client.send(near[0], b"x")
    pair.carry()
    assert pair.messages(pair.server) == [b"x"]


def test_what_is_cut_off_is_told_once_and_what_follows_is_read_past() -> None:
    pair = Pair()
    near, far = pair.open()
    pair.client.send(near, b"on its way")
    pair.server.cut(far)
    pair.carry()
    assert pair.messages(pair.server) == []
    assert pair.kinds(pair.client) == [EventKind.BROKEN]
    pair.client.send(near, b"nobody hears it")
    assert pair.client.take() == b""


def test_a_message_that_is_too_long_breaks_its_stream_only() -> None:
    pair = Pair()
    (near, far), (other, _) = pair.open(), pair.open()
    pair.server.widen(far)
    pair.client.send(near, bytes(MESSAGE_MAX + 1))
    pair.client.send(other, b"well")
    pair.carry()
    assert EventKind.BROKEN in pair.kinds(pair.server)
    assert EventKind.BROKEN in pair.kinds(pair.client)
    assert pair.messages(pair.server) == [b"well"]


def test_goodbye_is_heard() -> None:
    pair = Pair()
    pair.server.goodbye(0, "enough")
    pair.carry()
    assert pair.client.heard_goodbye
    assert pair.told[pair.client] == [(EventKind.GOODBYE, None, [("", "enough")])]


def test_a_ping_is_answered_with_what_it_carries() -> None:
    pair = Pair()
    pair.server.receive(frame(PING, 0, 0, b"12345678"))
    assert pair.server.take() == frame(PING, ACK, 0, b"12345678")
    pair.client.ping()
    assert pair.client.take() == frame(PING, 0, 0, bytes(8))


def headers(number: int, flags: int = END_HEADERS, body: bytes | None = None) -> bytes:
    return frame(HEADERS, flags, number, _block() if body is None else body)


def _block() -> bytes:
    return Encoder().encode(FIELDS)


def setting(key: int, value: int) -> bytes:
    return frame(SETTINGS, 0, 0, struct.pack(">HI", key, value))


def window(number: int, more: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, number, struct.pack(">I", more))


WRONG: list[tuple[Sequence[bytes], int]] = [
    ([frame(SETTINGS, 0, 1, b"")], PROTOCOL_ERROR),  # of the connection, on a stream
    ([frame(PING, 0, 1, bytes(8))], PROTOCOL_ERROR),
    ([frame(GOAWAY, 0, 1, bytes(8))], PROTOCOL_ERROR),
    ([frame(SETTINGS, ACK, 0, bytes(6))], FRAME_SIZE_ERROR),
    ([frame(GOAWAY, 0, 0, bytes(7))], FRAME_SIZE_ERROR),
    ([frame(PRIORITY, 0, 0, bytes(5))], PROTOCOL_ERROR),
    ([frame(PRIORITY, 0, 1, bytes(4))], FRAME_SIZE_ERROR),
    ([headers(1, END_HEADERS | WITH_PRIORITY, bytes(4))], FRAME_SIZE_ERROR),
    ([setting(ENABLE_PUSH, 2)], PROTOCOL_ERROR),
    ([frame(DATA, 0, 1, b"x")], PROTOCOL_ERROR),  # a stream that has not begun
    ([frame(DATA, 0, 0, b"x")], PROTOCOL_ERROR),
    ([headers(2)], PROTOCOL_ERROR),  # even numbers are the server's
    ([headers(0)], PROTOCOL_ERROR),
    ([headers(1, END_HEADERS | END_STREAM), frame(DATA, 0, 1, b"x")], STREAM_CLOSED),
    ([headers(1, body=b"\xff\xff\xff")], COMPRESSION_ERROR),
    ([headers(1, 0), frame(DATA, 0, 1, b"")], PROTOCOL_ERROR),  # not continued
    ([headers(1, 0), frame(CONTINUATION, 0, 3, b"")], PROTOCOL_ERROR),
    ([frame(CONTINUATION, END_HEADERS, 1, b"")], PROTOCOL_ERROR),
    ([headers(1, 0, bytes(9000)), frame(CONTINUATION, 0, 1, bytes(9000))], ENHANCE_YOUR_CALM),
    ([headers(1, END_HEADERS | PADDED, b"\x09")], PROTOCOL_ERROR),
    ([frame(PING, 0, 0, b"short")], FRAME_SIZE_ERROR),
    ([frame(SETTINGS, 0, 0, b"12345")], FRAME_SIZE_ERROR),
    ([setting(INITIAL_WINDOW_SIZE, 1 << 31)], FLOW_CONTROL_ERROR),
    ([headers(1), window(1, 1), setting(INITIAL_WINDOW_SIZE, (1 << 31) - 1)], FLOW_CONTROL_ERROR),
    ([setting(MAX_FRAME_SIZE, 100)], PROTOCOL_ERROR),
    ([window(0, 0)], PROTOCOL_ERROR),
    ([window(0, (1 << 31) - 1)], FLOW_CONTROL_ERROR),
    ([window(1, 1)], PROTOCOL_ERROR),
    ([frame(WINDOW_UPDATE, 0, 0, b"123")], FRAME_SIZE_ERROR),
    ([frame(RST_STREAM, 0, 1, bytes(4))], PROTOCOL_ERROR),
    ([frame(PUSH_PROMISE, 0, 1, bytes(4))], PROTOCOL_ERROR),
    ([headers(1), frame(DATA, 0, 1, b"\0\0\1\0\0" + bytes(WINDOW_DEFAULT))], FLOW_CONTROL_ERROR),
    ([struct.pack(">BHBBI", 0, HEADERS_BYTES_MAX + 1, 77, 0, 0)], ENHANCE_YOUR_CALM),
    ([struct.pack(">BHBBI", (FRAME_BYTES_MAX + 1) >> 16, 1, DATA, 0, 1)], FRAME_SIZE_ERROR),
]


@pytest.mark.parametrize(("sent", "code"), WRONG)
def test_what_is_not_http2_ends_the_connection_with_its_code(
    sent: Sequence[bytes], code: int
) -> None:
    server = Http2(False, 4, MESSAGE_MAX)
    server.receive(PREFACE + frame(SETTINGS, 0, 0, b""))
    server.take()
    for each in sent[:-1]:
        server.receive(each)
    with pytest.raises(Http2Error) as caught:
        server.receive(sent[-1])
    assert caught.value.code == code
    told = server.take()
    assert told[3] == GOAWAY
    assert struct.unpack_from(">I", told, 13)[0] == code


def test_another_protocol_is_refused_at_its_first_bytes() -> None:
    server = Http2(False, 4, MESSAGE_MAX)
    assert not server.begun
    server.receive(PREFACE[:5])
    with pytest.raises(Http2Error):
        server.receive(b"GET / HTTP/1.1\r\n")
    assert not server.begun


def test_a_compressed_message_breaks_its_stream() -> None:
    pair = Pair()
    pair.open()
    pair.told[pair.server] += pair.server.receive(frame(DATA, 0, 1, b"\1\0\0\0\0"))
    assert pair.kinds(pair.server)[-1] is EventKind.BROKEN


def test_padding_is_read_past_and_counts() -> None:
    pair = Pair()
    _, far = pair.open()
    left = far.left
    padded = b"\x03" + b"\0\0\0\0\1x" + bytes(3)
    pair.told[pair.server] += pair.server.receive(frame(DATA, PADDED, 1, padded))
    assert pair.messages(pair.server) == [b"x"]
    assert left - far.left == len(padded)


def test_priorities_and_unknown_frames_say_nothing() -> None:
    pair = Pair()
    assert pair.server.receive(frame(PRIORITY, 0, 1, bytes(5)) + frame(77, 0, 0, b"?")) == []
    found = pair.server.receive(headers(1, END_HEADERS | WITH_PRIORITY, bytes(5) + _block()))
    assert [kind for kind, _, _ in found] == [EventKind.HEADERS]


def test_who_only_opens_and_cuts_off_is_sent_away() -> None:
    server = Http2(False, 4, MESSAGE_MAX)
    server.receive(PREFACE + frame(SETTINGS, 0, 0, b""))
    many = range(1, 2 * CUT_SHORT_MAX + 5, 2)
    cut = b"".join(headers(n) + frame(RST_STREAM, 0, n, bytes(4)) for n in many)
    with pytest.raises(Http2Error) as caught:
        server.receive(cut)
    assert caught.value.code == ENHANCE_YOUR_CALM


@pytest.mark.parametrize("asks", [frame(PING, 0, 0, bytes(8)), frame(SETTINGS, 0, 0, b"")])
def test_who_only_wants_answers_is_sent_away_unless_he_takes_his_time(asks: bytes) -> None:
    server = Http2(False, 4, MESSAGE_MAX)
    server.receive(PREFACE + frame(SETTINGS, 0, 0, b""))
    for _ in range(3):
        server.receive(asks * (IDLE_FRAMES_MAX - 1))
        server.calm()
    with pytest.raises(Http2Error) as caught:
        server.receive(asks * (IDLE_FRAMES_MAX + 1))
    assert caught.value.code == ENHANCE_YOUR_CALM


@given(st.binary(max_size=400), st.booleans())
def test_any_bytes_are_taken_or_refused(data: bytes, begun: bool) -> None:
    end = Http2(False, 4, MESSAGE_MAX)
    try:
        end.receive(PREFACE + frame(SETTINGS, 0, 0, b"") + headers(1) if begun else b"")
        events = end.receive(data)
    except Http2Error:
        assert end.take()
        return
    assert all(isinstance(kind, EventKind) for kind, _, _ in events)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 10), st.integers(0, 255), st.integers(0, 5), st.binary(max_size=30)
        ),
        max_size=12,
    )
)
def test_any_frames_are_taken_or_refused(frames: list[tuple[int, int, int, bytes]]) -> None:
    end = Http2(False, 4, MESSAGE_MAX)
    end.receive(PREFACE + frame(SETTINGS, 0, 0, b"") + headers(1) + headers(3))
    try:
        for each in frames:
            end.receive(frame(*each))
    except Http2Error:
        assert end.take()
    assert len(end.streams) <= 4

"""Frames made by `hyperframe` that break RFC 9113, one rule each, and floods of frames that break none.

Review finding 16: a hostile end gets the error that the section has for it, and holds no memory here. A stream's error may be
taken for the connection's (5.4.1), and is where nobody who is well makes it.
"""

from __future__ import annotations

import itertools
import struct
import tracemalloc
from collections.abc import Callable, Iterator, Sequence

import pytest
from hpack import Encoder
from hyperframe.frame import (
    AltSvcFrame,
    ContinuationFrame,
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    PushPromiseFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from fluxmq.cluster.http2 import Http2
from fluxmq.cluster.http2_frames import (
    COMPRESSION_ERROR,
    ENHANCE_YOUR_CALM,
    FLOW_CONTROL_ERROR,
    FRAME_SIZE_ERROR,
    HEADERS_BYTES_MAX,
    PREFACE,
    PROTOCOL_ERROR,
    REFUSED_STREAM,
    STREAM_CLOSED,
    WINDOW_DEFAULT,
    WINDOW_MAX,
    Http2Error,
)
from fluxmq.cluster.http2_streams import EventKind

MESSAGE_MAX = 1 << 20
STREAMS_MAX = 4
FIELDS = ((":method", "POST"), (":path", "/s/m"))
BLOCK = Encoder().encode(FIELDS)
HEAD = 9
MEMORY_MAX = 2 << 20
"""Bytes that a connection may hold of whoever has no stream that was taken."""


def raw(kind: int, flags: int, number: int, body: bytes) -> bytes:
    """A frame that hyperframe would not make."""
    return struct.pack(">BHBBI", len(body) >> 16, len(body) & 0xFFFF, kind, flags, number) + body


def asks(number: int = 1, *flags: str) -> bytes:
    """Headers that open a stream."""
    return HeadersFrame(number, BLOCK, flags=["END_HEADERS", *flags]).serialize()


def data(number: int, body: bytes, *flags: str) -> bytes:
    return DataFrame(number, body, flags=list(flags)).serialize()


def window(number: int, more: int) -> bytes:
    return WindowUpdateFrame(number, more).serialize()


def settings(**values: int) -> bytes:
    known = {getattr(SettingsFrame, key): value for key, value in values.items()}
    return SettingsFrame(0, known).serialize()


def begun() -> Http2:
    """A server to which somebody speaks HTTP/2."""
    server = Http2(False, STREAMS_MAX, MESSAGE_MAX)
    server.receive(PREFACE + SettingsFrame(0).serialize())
    server.take()
    return server


def frames_of(sent: bytes) -> list[Frame]:
    """What an end has sent, read by others."""
    found, at = [], 0
    while at < len(sent):
        made, length = Frame.parse_frame_header(memoryview(sent)[at : at + HEAD])
        made.parse_body(memoryview(sent)[at + HEAD : at + HEAD + length])
        found.append(made)
        at += HEAD + length
    return found


OF_CONNECTION: dict[str, tuple[Sequence[bytes], int]] = {
    "4.1 a frame longer than was allowed": (
        [raw(0, 0, 1, bytes((1 << 20) + 1))],
        FRAME_SIZE_ERROR,
    ),
    "4.3 headers that nobody can read": (
        [HeadersFrame(1, b"\xff\xff\xff\xff", flags=["END_HEADERS"]).serialize()],
        COMPRESSION_ERROR,
    ),
    "4.3 a table larger than was allowed": (
        [HeadersFrame(1, b"\x3f\xe1\xff\x03" + BLOCK, flags=["END_HEADERS"]).serialize()],
        COMPRESSION_ERROR,
    ),
    "5.1 data on an idle stream": ([data(1, b"x")], PROTOCOL_ERROR),
    "5.1 a reset of an idle stream": ([RstStreamFrame(1).serialize()], PROTOCOL_ERROR),
    "5.1 a window of an idle stream": ([window(1, 1)], PROTOCOL_ERROR),
    "5.1 a continuation on an idle stream": (
        [ContinuationFrame(1, BLOCK, flags=["END_HEADERS"]).serialize()],
        PROTOCOL_ERROR,
    ),
    "5.1 data behind the end": ([asks(1, "END_STREAM"), data(1, b"x")], STREAM_CLOSED),
    "5.1 headers behind the end": ([asks(1, "END_STREAM"), asks(1)], STREAM_CLOSED),
    "5.1.1 an even number from a client": ([asks(2)], PROTOCOL_ERROR),
    "6.1 data on no stream": ([raw(0, 0, 0, b"x")], PROTOCOL_ERROR),
    "6.1 padding longer than data": ([asks(), raw(0, 8, 1, b"\x05x")], PROTOCOL_ERROR),
    "6.1 padding of no length": ([asks(), raw(0, 8, 1, b"")], PROTOCOL_ERROR),
    "6.2 headers on no stream": ([raw(1, 4, 0, BLOCK)], PROTOCOL_ERROR),
    "6.2 padding longer than headers": ([raw(1, 4 | 8, 1, b"\xff" + BLOCK)], PROTOCOL_ERROR),
    "6.2 headers without their priority": ([raw(1, 4 | 32, 1, bytes(4))], FRAME_SIZE_ERROR),
    "6.2 another stream between headers": (
        [HeadersFrame(1, BLOCK[:1]).serialize(), asks(3)],
        PROTOCOL_ERROR,
    ),
    "6.2 an unknown frame between headers": (
        [HeadersFrame(1, BLOCK[:1]).serialize(), raw(77, 0, 1, b"")],
        PROTOCOL_ERROR,
    ),
    "6.3 a priority of no stream": ([raw(2, 0, 0, bytes(5))], PROTOCOL_ERROR),
    "6.3 a priority of four bytes": ([raw(2, 0, 1, bytes(4))], FRAME_SIZE_ERROR),
    "6.4 a reset of no stream": ([raw(3, 0, 0, bytes(4))], PROTOCOL_ERROR),
    "6.4 a reset of three bytes": ([asks(), raw(3, 0, 1, bytes(3))], FRAME_SIZE_ERROR),
    "6.5 settings on a stream": ([raw(4, 0, 1, b"")], PROTOCOL_ERROR),
    "6.5 settings of a wrong length": ([raw(4, 0, 0, bytes(5))], FRAME_SIZE_ERROR),
    "6.5 an acknowledgement with settings": ([raw(4, 1, 0, bytes(6))], FRAME_SIZE_ERROR),
    "6.5.2 pushes neither on nor off": ([settings(ENABLE_PUSH=2)], PROTOCOL_ERROR),
    "6.5.2 a window too wide": (
        [settings(INITIAL_WINDOW_SIZE=WINDOW_MAX + 1)],
        FLOW_CONTROL_ERROR,
    ),
    "6.5.2 a frame size too small": ([settings(MAX_FRAME_SIZE=16_383)], PROTOCOL_ERROR),
    "6.5.2 a frame size too large": ([settings(MAX_FRAME_SIZE=1 << 24)], PROTOCOL_ERROR),
    "6.6 a push from a client": ([PushPromiseFrame(1, 2, BLOCK).serialize()], PROTOCOL_ERROR),
    "6.7 a ping on a stream": ([raw(6, 0, 1, bytes(8))], PROTOCOL_ERROR),
    "6.7 a ping of seven bytes": ([raw(6, 0, 0, bytes(7))], FRAME_SIZE_ERROR),
    "6.8 a goodbye on a stream": ([raw(7, 0, 1, bytes(8))], PROTOCOL_ERROR),
    "6.8 a goodbye too short": ([raw(7, 0, 0, bytes(7))], FRAME_SIZE_ERROR),
    "6.9 a window of three bytes": ([raw(8, 0, 0, bytes(3))], FRAME_SIZE_ERROR),
    "6.9 a window opened by nothing": ([raw(8, 0, 0, bytes(4))], PROTOCOL_ERROR),
    "6.9.1 a window too wide": ([window(0, WINDOW_MAX)], FLOW_CONTROL_ERROR),
    "6.9.1 more than a stream's window": (
        [asks(), data(1, b"\0" + (WINDOW_DEFAULT).to_bytes(4, "big") + bytes(WINDOW_DEFAULT))],
        FLOW_CONTROL_ERROR,
    ),
    "6.9.2 a stream's window too wide by settings": (
        [asks(), window(1, 1), settings(INITIAL_WINDOW_SIZE=WINDOW_MAX)],
        FLOW_CONTROL_ERROR,
    ),
    "6.10 a continuation of nothing": (
        [asks(), ContinuationFrame(1, BLOCK, flags=["END_HEADERS"]).serialize()],
        PROTOCOL_ERROR,
    ),
    "10.5.1 headers without end": (
        [
            HeadersFrame(1, bytes(HEADERS_BYTES_MAX - 1)).serialize(),
            ContinuationFrame(1, bytes(2)).serialize(),
        ],
        ENHANCE_YOUR_CALM,
    ),
}


@pytest.mark.parametrize("rule", OF_CONNECTION)
def test_whoever_breaks_the_connections_rules_is_sent_away(rule: str) -> None:
    """Review finding 16: with the code of the section, in a goodbye that others can read."""
    sent, code = OF_CONNECTION[rule]
    server = begun()
    for each in sent[:-1]:
        server.receive(each)
    with pytest.raises(Http2Error) as caught:
        server.receive(sent[-1])
    assert caught.value.code == code
    last = frames_of(server.take())[-1]
    assert isinstance(last, GoAwayFrame)
    assert last.error_code == code
    assert last.additional_data


OF_STREAM: dict[str, tuple[Sequence[bytes], int]] = {
    "5.1.2 more streams than are taken": (
        [asks(number) for number in range(1, 2 * STREAMS_MAX + 3, 2)],
        REFUSED_STREAM,
    ),
    "6.9 a stream's window opened by nothing": ([asks(), raw(8, 0, 1, bytes(4))], PROTOCOL_ERROR),
    "6.9.1 a stream's window too wide": ([asks(), window(1, WINDOW_MAX)], FLOW_CONTROL_ERROR),
    "8.1 headers in the middle": ([asks(), asks()], PROTOCOL_ERROR),
}


@pytest.mark.parametrize("rule", OF_STREAM)
def test_whoever_breaks_a_streams_rules_loses_that_stream(rule: str) -> None:
    """Review finding 16: and no other."""
    sent, code = OF_STREAM[rule]
    server = begun()
    for each in sent:
        server.receive(each)
    (reset,) = [each for each in frames_of(server.take()) if isinstance(each, RstStreamFrame)]
    assert reset.error_code == code
    assert reset.stream_id not in server.streams
    server.receive(PingFrame(0, b"12345678").serialize())
    (answered,) = frames_of(server.take())
    assert isinstance(answered, PingFrame)
    assert "ACK" in answered.flags


READ_PAST: dict[str, Sequence[bytes]] = {
    "4.1 a frame of an unknown kind": [raw(77, 255, 3, b"?")],
    "5.5 frames of other documents": [AltSvcFrame(0, b"here", b"there").serialize()],
    "5.1 a priority of an idle stream": [PriorityFrame(9, depends_on=3).serialize()],
    "5.1 a reset of a stream that is no more": [
        asks(),
        RstStreamFrame(1).serialize(),
        RstStreamFrame(1).serialize(),
    ],
    "5.1 a window of a stream that is no more": [
        asks(),
        RstStreamFrame(1).serialize(),
        window(1, 5),
    ],
    "6.5.2 unknown settings": [SettingsFrame(0, {0xF000: 1}).serialize()],
    "6.7 an answer to no ping": [PingFrame(0, bytes(8), flags=["ACK"]).serialize()],
    "6.1 data without any": [asks(), data(1, b"")],
}


@pytest.mark.parametrize("rule", READ_PAST)
def test_what_says_nothing_is_read_past(rule: str) -> None:
    server = begun()
    for each in READ_PAST[rule]:
        server.receive(each)
    server.take()
    ((kind, _, _),) = server.receive(asks(11))
    assert kind is EventKind.HEADERS


@pytest.mark.parametrize(
    "first",
    [
        asks(),
        PingFrame(0, bytes(8)).serialize(),
        SettingsFrame(0, flags=["ACK"]).serialize(),
        window(0, 1),
    ],
)
@pytest.mark.parametrize("client", [False, True])
def test_settings_come_first(first: bytes, client: bool) -> None:
    """RFC 9113, 3.4, of either side."""
    end = Http2(client, STREAMS_MAX, MESSAGE_MAX)
    with pytest.raises(Http2Error) as caught:
        end.receive((b"" if client else PREFACE) + first)
    assert caught.value.code == PROTOCOL_ERROR


HOSTILE_SERVER: dict[str, tuple[bytes, int]] = {
    "5.1 headers on a stream that was not opened": (asks(7), PROTOCOL_ERROR),
    "5.1.1 a stream of the server's": (asks(2), PROTOCOL_ERROR),
    "6.5.2 pushes that a server has on": (settings(ENABLE_PUSH=1), PROTOCOL_ERROR),
    "6.6 a push that was forbidden": (
        PushPromiseFrame(1, 2, BLOCK, flags=["END_HEADERS"]).serialize(),
        PROTOCOL_ERROR,
    ),
}


@pytest.mark.parametrize("rule", HOSTILE_SERVER)
def test_a_hostile_server_is_left(rule: str) -> None:
    """Review finding 16: whoever dials is as strict."""
    sent, code = HOSTILE_SERVER[rule]
    client = Http2(True, 0, MESSAGE_MAX)
    client.open(FIELDS)
    client.receive(SettingsFrame(0).serialize())
    client.take()
    with pytest.raises(Http2Error) as caught:
        client.receive(sent)
    assert caught.value.code == code
    assert isinstance(frames_of(client.take())[-1], GoAwayFrame)


def numbered(make: Callable[[int], bytes]) -> Iterator[bytes]:
    """Something for each stream that a client may open."""
    return (make(number) for number in itertools.count(1, 2))


FLOODS: dict[str, tuple[Sequence[bytes], Callable[[], Iterator[bytes]]]] = {
    "settings": ([], lambda: itertools.repeat(SettingsFrame(0).serialize())),
    "table sizes": (
        [],
        lambda: (settings(HEADER_TABLE_SIZE=size) for size in itertools.cycle(range(4095))),
    ),
    "table sizes in long frames": (
        [],
        lambda: itertools.repeat(
            raw(4, 0, 0, b"".join(struct.pack(">HI", 1, size) for size in range(2700)))
        ),
    ),
    "pings": ([], lambda: itertools.repeat(PingFrame(0, bytes(8)).serialize())),
    "resets": ([], lambda: numbered(lambda n: asks(n) + RstStreamFrame(n).serialize())),
    "streams beyond the limit": ([], lambda: numbered(asks)),
    "windows": ([asks()], lambda: itertools.repeat(window(1, 1))),
    "windows of all": ([asks()], lambda: itertools.repeat(window(0, 1))),
    "priorities": ([], lambda: itertools.repeat(PriorityFrame(1, depends_on=3).serialize())),
    "data without any": ([asks()], lambda: itertools.repeat(data(1, b""))),
    "unknown frames": ([], lambda: itertools.repeat(raw(77, 0, 0, bytes(100)))),
    "continuations without any": (
        [HeadersFrame(1, BLOCK[:1]).serialize()],
        lambda: itertools.repeat(ContinuationFrame(1, b"").serialize()),
    ),
    "goodbyes": ([], lambda: itertools.repeat(GoAwayFrame(0, 0, 0, b"x" * 1000).serialize())),
}
ENDING = (
    "settings",
    "table sizes",
    "pings",
    "resets",
    "streams beyond the limit",
    "continuations without any",
)
"""Those that cost something: whoever sends them is sent away."""
COUNT = 30_000


@pytest.mark.parametrize("flood", FLOODS)
def test_floods_hold_no_memory(flood: str) -> None:
    """Review finding 16: whatever comes, without end, and is not read either."""
    first, made = FLOODS[flood]
    server = begun()
    for each in first:
        server.receive(each)
    frames = list(itertools.islice(made(), COUNT if len(next(made())) < 1000 else COUNT // 100))
    codes: list[int] = []
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    try:
        for each in frames:
            server.receive(each)
    except Http2Error as error:
        codes.append(error.code)
    held = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert held < MEMORY_MAX
    assert codes == ([ENHANCE_YOUR_CALM] if flood in ENDING else [])
    # Without the answers that wait to be read, which are bounded where they are written:
    server.take()
    assert len(server.streams) <= STREAMS_MAX
